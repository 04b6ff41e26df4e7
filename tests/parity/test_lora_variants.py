"""LoRA, rsLoRA and DoRA against PEFT: outputs and gradients of one map."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cxrjax.models import partition
from cxrjax.models.layers import Linear
from cxrjax.models.lora import LoRA

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")

pytestmark = pytest.mark.parity


# Few tokens go beside the kernel, many through it (lora.folding_pays).
@pytest.mark.parametrize("tokens", [3, 40])
@pytest.mark.parametrize("kind", [None, "use_rslora", "use_dora"])
def test_one_map_and_its_gradients_equal_peft_s(kind, tokens):
    in_features, out_features, rank, alpha = 7, 5, 3, 2.0
    extra = {} if kind is None else {kind: True}
    torch.manual_seed(0)
    reference = torch.nn.Sequential(torch.nn.Linear(in_features, out_features))
    kernel = reference[0].weight.detach().numpy().T.copy()
    bias = reference[0].bias.detach().numpy().copy()
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=["0"], **extra)
    reference = peft.get_peft_model(reference, config)
    theirs = {name: p for name, p in reference.named_parameters() if p.requires_grad}
    for parameter in theirs.values():
        parameter.data += 0.3 * torch.rand_like(parameter)

    def find(part):
        return next((p for name, p in theirs.items() if part in name), None)

    a, b, magnitude = find("lora_A"), find("lora_B"), find("lora_magnitude_vector")
    assert (magnitude is not None) == (kind == "use_dora")

    linear = Linear(in_features, out_features, use_bias=True, rngs=nnx.Rngs(0))
    linear.kernel[...], linear.bias[...] = jnp.asarray(kernel), jnp.asarray(bias)

    def taken(parameter):
        return None if parameter is None else jnp.asarray(parameter.detach().numpy().T)

    scaled, scales = kind == "use_rslora", taken(magnitude)
    linear.lora = LoRA(taken(a), taken(b), alpha, 0.0, use_rslora=scaled, magnitude=scales)
    x = np.random.default_rng(0).normal(size=(tokens, in_features)).astype(np.float32)
    expected = reference(torch.from_numpy(x))
    torch.mean(torch.sin(expected)).backward()

    graphdef, lora, frozen = partition(linear, ("lora/",))

    @jax.jit
    def run(lora):
        y = nnx.merge(graphdef, lora, frozen)(jnp.asarray(x))
        return jnp.mean(jnp.sin(y)), y

    found, gradients = jax.value_and_grad(run, has_aux=True)(lora)
    np.testing.assert_allclose(found[1], expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    for name, parameter in (("a", a), ("b", b), ("magnitude", magnitude)):
        if parameter is not None:
            ours = gradients["lora"][name][...].T
            np.testing.assert_allclose(ours, parameter.grad.numpy(), rtol=1e-4, atol=1e-6)
