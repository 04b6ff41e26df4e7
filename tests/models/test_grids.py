"""Images of several sizes, rows of a table over devices, and the box head."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from cxrjax.apps.planner.hlo import read_program
from cxrjax.decoding.generate import Generator
from cxrjax.decoding.strategy import Strategy
from cxrjax.distributed.meshes import BATCH_AXES, mesh_of_kernels
from cxrjax.models import PRESETS, VLM, LoRAConfig, apply_lora
from cxrjax.models.gemma import Embedder
from cxrjax.models.presets import DecoderConfig
from tests.models.sizes import PLAIN, changed


def _inputs(rng, height, width):
    return {
        "images": rng.integers(0, 256, (2, height, width, 3)).astype(np.uint8),
        "prefix_tokens": rng.integers(2, 1000, (2, 2, 4)).astype(np.int32),
        "prefix_mask": np.ones((2, 2, 4), bool),
        "answer_tokens": rng.integers(2, 1000, (2, 2, 3)).astype(np.int32),
        "answer_mask": np.ones((2, 2, 3), bool),
    }


def _made_for(model, height, width):
    """The same parameters in a model that was made for images of another size."""
    made = nnx.eval_shape(
        lambda: VLM(model.config.for_images(height, width), rngs=nnx.Rngs(0), share=model.share)
    )
    apply_lora(made, _LORA, nnx.Rngs(0))
    return nnx.merge(nnx.graphdef(made), nnx.state(model))


_LORA = LoRAConfig(rank=2, alpha=4.0, targets=(r"decoder/layers/.*attn/q_proj", "projector"))


@pytest.mark.parametrize(
    ("preset", "share"),
    [
        ("tiny_qwen3", "tower"),
        ("tiny_gemma4", "image"),
        pytest.param("tiny_qwen", "image", marks=pytest.mark.slow),
        pytest.param("tiny_gemma4_12b", "tower", marks=pytest.mark.slow),
        pytest.param("tiny_internvl", "image", marks=pytest.mark.slow),
    ],
)
def test_a_model_takes_each_batch_as_the_model_of_its_size_does(preset, share, drawn):
    model = drawn(lambda: VLM(PRESETS[preset], rngs=nnx.Rngs(0), share=share))
    apply_lora(model, _LORA, nnx.Rngs(1))
    own = model.config
    hidden = nnx.jit(lambda model, inputs: model(**inputs))
    rng = np.random.default_rng(0)
    for size in [(128, 256), (256, 128)]:
        inputs, made = _inputs(rng, *size), _made_for(model, *size)
        np.testing.assert_array_equal(hidden(model, inputs), hidden(made, inputs))
    asked = [inputs[name] for name in ("images", "prefix_tokens", "prefix_mask")]
    answers = [Generator(one, Strategy(2, (1,)))(*asked) for one in (model, made)]
    jax.tree.map(np.testing.assert_array_equal, *answers)
    assert model.config is own and model.vision.config is own.vision


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_a_few_logits_are_those_of_all(softcap, drawn):
    config = changed(PLAIN, decoder={"final_softcap": softcap})
    model = drawn(lambda: VLM(config, rngs=nnx.Rngs(0)))
    hidden = 3 * jax.random.normal(jax.random.key(1), (2, 5, 8))
    tokens = (1090, 1031, 2)
    np.testing.assert_allclose(
        model.token_logits(hidden, tokens), model.logits(hidden)[..., list(tokens)], atol=1e-5
    )


VOCAB, WIDTH = 512, 16


@pytest.mark.parametrize(
    "sizes",
    [
        *((2, 2, 2, 1), (1, 2, 2, 2)),
        *(pytest.param(sizes, marks=pytest.mark.slow) for sizes in ((1, 2, 4, 1), (1, 1, 8, 1))),
    ],
)
def test_rows_and_gradients_on_a_mesh(sizes):
    """The last of the meshes also cuts over `tensor`, and is left to XLA."""
    mesh = Mesh(np.asarray(jax.devices()).reshape(sizes), (*BATCH_AXES, "tensor"))
    config = DecoderConfig(
        vocab_size=VOCAB, width=WIDTH, depth=1, num_heads=1, num_kv_heads=1, head_dim=16, mlp_dim=16
    )
    graph, state = nnx.split(Embedder(config, -1, nnx.Rngs(0)))
    rng = np.random.default_rng(0)
    tokens = jnp.asarray(rng.integers(0, VOCAB, (64, 3, 40)), jnp.int32)
    weights = jnp.asarray(rng.normal(size=(*tokens.shape, WIDTH)), jnp.float32)

    def loss(state, tokens, weights):
        rows = nnx.merge(graph, state).encode(tokens, jnp.float32)
        return jnp.sum(rows * weights), rows

    def spread(*arguments):
        with mesh_of_kernels(mesh):
            return jax.grad(loss, has_aux=True)(*arguments)

    cut, rows = NamedSharding(mesh, P("fsdp")), NamedSharding(mesh, P(BATCH_AXES))
    step = jax.jit(spread, in_shardings=(cut, rows, rows), out_shardings=(cut, rows))
    found = step(state, tokens, weights)
    expected = jax.grad(loss, has_aux=True)(state, tokens, weights)
    for ours, plain in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)
    if sizes[3] == 1:
        text = step.lower(state, tokens, weights).compile().as_text()
        sent = read_program(text, mesh.size).collectives
        whole = [one for one in sent if one.bytes >= 4 * VOCAB * WIDTH and one.kind == "all-reduce"]
        assert not whole and f"f32[{VOCAB},{WIDTH}]" not in text
