"""Models and adapters of drawn configurations against transformers and PEFT.

One of each family, and with `-m heavy` fifty: logits, loss, gradients of LoRA, greedy answers,
and the files that go back out, as they are and merged.
"""

import copy
import functools
import json
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from bench.fuzz.drawn_configs import KINDS, draw_adapter
from cxrjax.decoding.generate import Generator
from cxrjax.decoding.strategy import Strategy
from cxrjax.models import apply_lora, partition
from cxrjax.models.hf_export import hf_tensors, write_shards
from cxrjax.models.hf_layout import canonical_name, found_prefixes, published_prefixes
from cxrjax.models.lora import merge_lora
from cxrjax.models.peft import LOC_DELTA, LOC_ROWS, adapter_parameters, read_peft, save_peft
from tests.models.sizes import with_arrays
from tests.parity import conftest as shared

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

# 50 of each family; the first is quick enough for every day.
_SEEDS = [pytest.param(seed, marks=[] if seed < 1 else pytest.mark.heavy) for seed in range(50)]


def _adapted_by_peft(pair, seed, directory):
    """PEFT's model with a drawn adapter, everything in it moved, which is also saved."""
    import peft

    settings = draw_adapter(pair.kind, seed, pair.model.config.decoder.depth)
    torch.manual_seed(seed)
    theirs = peft.get_peft_model(pair.hf, peft.LoraConfig(init_lora_weights=False, **settings))
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "trainable_tokens_delta" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif "lora_magnitude" in name:
                parameter.mul_(1 + 0.2 * torch.rand_like(parameter))
            elif "modules_to_save" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
            elif "lora_" in name:
                parameter.copy_(0.3 * torch.randn_like(parameter))
    theirs.save_pretrained(directory)
    # What PEFT writes of a setting that was left alone may change with its version.
    stated = json.loads((directory / "adapter_config.json").read_text())
    assert stated["use_rslora"] == settings["use_rslora"]
    return theirs.eval()


def _ours(pair, directory):
    adapter = read_peft(directory, pair.model.config)
    model = shared.copied(pair.model)
    apply_lora(model, adapter.config, nnx.Rngs(0))
    if adapter.untied:
        model.untie()
    trained = adapter_parameters(model, adapter)
    if LOC_DELTA in trained:
        model.decoder.embedder.add_loc_delta()
    return with_arrays(model, trained), adapter


def _gradients(theirs):
    return {
        re.sub(
            r"(_vector)\.weight$|\.modules_to_save(?=\.)", r"\1", name.replace(".default", "")
        ): (parameter.grad.numpy())
        for name, parameter in theirs.named_parameters()
        if parameter.requires_grad and parameter.grad is not None
    }


def _nudged(theirs, asked):
    """Logits and gradients where each parameter is moved by its last digit, or not."""
    other = copy.deepcopy(theirs)
    other.zero_grad()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1 + torch.randint(-1, 2, parameter.shape) * 2.0**-23)
    out = other(**asked)
    out.loss.backward()
    return out.logits.detach().numpy(), _gradients(other)


def _near(ours, theirs, nudged, unfused, scale):
    """Within 1e-4 of a scale; of models that amplify rounding, four times what either side does.

    Args:
        nudged: gives theirs, rounded otherwise: each parameter is.
        unfused: gives ours, rounded otherwise: each operation is.
    """
    ours, off = np.asarray(ours), np.abs(np.asarray(ours) - theirs).max()
    assert ours.shape == theirs.shape and np.isfinite(ours).all()
    if off > 1e-4 * scale:
        rounding = max(np.abs(nudged() - theirs).max(), np.abs(unfused() - ours).max())
        assert off <= 4 * rounding, f"off by {off / scale:.1e}, rounding is {rounding / scale:.1e}"


def _on_host(model):
    """In NumPy: on a device each layer's slice would be a program of its own to compile."""
    graphdef, state = nnx.split(model)
    return nnx.merge(graphdef, jax.device_get(state))


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_drawn_models_and_adapters(make_random_pair, close, tmp_path, kind, seed):
    pair = make_random_pair(kind, seed)
    sizes, questions = pair.model.config, shared.with_loc(pair.questions(seed=seed))
    tensors = load_file(pair.directory / "model.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = _adapted_by_peft(pair, seed, tmp_path / "adapter")
    model, adapter = _ours(pair, tmp_path / "adapter")

    given, context = jax.tree.map(jnp.asarray, questions.ours())
    modules = [path for path in adapter.arrays if "/lora/" not in path and path != LOC_ROWS]
    rules = ("/lora/", *(f"^{path}$" for path in modules))
    rules += () if model.decoder.embedder.loc_delta is None else ("loc_delta$",)
    parts = partition(model, rules)
    computed = (parts, given, context["context_tokens"])
    loss, logits, named = shared.logits_and_gradients(*computed, tmp_path / "gradients")
    out = theirs(**questions.theirs(kind))
    out.loss.backward()
    nudged = functools.cache(lambda: _nudged(theirs, questions.theirs(kind)))

    @functools.cache
    def unfused():
        with jax.disable_jit():
            return shared.logits_and_gradients(*computed, tmp_path / "unfused")[1:]

    whole = out.logits.detach().numpy()
    close(loss, out.loss.detach().numpy())
    for row, (prefix, answer) in enumerate(zip(questions.prefix, questions.answers, strict=True)):
        start = questions.context.shape[1] + len(prefix)
        place = (row, slice(start - 1, start - 1 + len(answer)))
        own = (row, 0, slice(len(answer)))
        _near(
            logits[own],
            whole[place],
            lambda place=place: nudged()[0][place],
            lambda own=own: unfused()[0][own],
            np.abs(whole[place]).max(),
        )

    grads = _gradients(theirs)
    largest = max(np.abs(gradient).max() for gradient in grads.values())
    rows = [name for name in grads if "trainable_tokens_delta" in name]
    assert (LOC_DELTA in named) == bool(rows)
    for name, gradient in grads.items():
        # Small ones are rounded as what flows back is, of which they are differences.
        scale = max(np.abs(gradient).max(), 0 if name in rows else largest / 4)
        own = LOC_DELTA if name in rows else name
        _near(
            named.get(own, np.zeros_like(gradient)),
            gradient,
            lambda name=name: nudged()[1][name],
            lambda own=own: unfused()[1].get(own, 0),
            scale,
        )

    slots = 5
    ids = Generator(model, Strategy(slots, (1,)))(*given[:3]).tokens[:, 0]
    asked = questions.theirs(kind, "left", answers=False)
    with torch.no_grad():
        generated = theirs.generate(
            **asked, max_new_tokens=slots, do_sample=False, eos_token_id=1, use_cache=True
        )
    generated = generated[:, asked["input_ids"].shape[1] :].numpy()
    # There an answer ends; where a random model says an image's token, which transformers embeds as
    # no word, so does what can be compared.
    last = np.isin(generated, (1, shared.IMAGE_ID))
    heard = np.cumsum(last, axis=1) - last == 0
    np.testing.assert_array_equal(ids[:, : generated.shape[1]][heard], generated[heard])

    save_peft(tmp_path / "back", model, use_rslora=adapter.config.use_rslora, whole=modules)
    shared.check_same_adapter(tmp_path / "adapter", tmp_path / "back")

    prefixes = found_prefixes(tensors)
    write_shards(tmp_path / "adapter", hf_tensors(_on_host(pair.model), sizes, prefixes))
    again = load_file(tmp_path / "adapter/model.safetensors")
    assert again.keys() == tensors.keys()
    assert all(np.array_equal(again[name], tensors[name]) for name in tensors)

    merge_lora(model)
    prefixes = published_prefixes(model.config) | prefixes
    write_shards(tmp_path / "back", hf_tensors(_on_host(model), model.config, prefixes))
    merged = load_file(tmp_path / "back/model.safetensors")
    state = theirs.merge_and_unload().state_dict()
    state = {canonical_name(name): tensor.numpy() for name, tensor in state.items()}
    for name, tensor in merged.items():
        rounding = 1e-5 if tensors[next(iter(tensors))].dtype == np.float32 else 2.0**-8
        close(tensor, state[canonical_name(name)], rounding)
