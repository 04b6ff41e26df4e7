"""Several devices write the answers of one, whatever they share and however many rows there are."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cxrjax.decoding.beam import spread_cache
from cxrjax.decoding.generate import Generator, generate
from cxrjax.decoding.strategy import Strategy
from cxrjax.distributed import meshes
from tests.models.sizes import talking_model

SLOTS, VOCAB, ROWS = 5, 40, 5
MESHES = {
    "data": {},
    "tensor2": {"data": 4, "tensor": 2},
    "tensor4": {"data": 2, "tensor": 4},
    "all": {"replica": 2, "fsdp": 2, "tensor": 2},
}
GREEDY = Strategy(SLOTS, (1,))
OTHERS = {
    "beams": Strategy(SLOTS, (1,), beams=2),
    "sampled": Strategy(SLOTS, (1,), temperature=1.0, best_of=2, seed=3),
}


def model(share):
    """Four heads, two of keys and values."""
    return talking_model(share, VOCAB, width=32, num_kv_heads=2)


@pytest.fixture(scope="module")
def inputs():
    """Five images, which no mesh divides, of three questions; one of them empty."""
    rng = np.random.default_rng(4)
    mask = np.ones((ROWS, 3, 6), bool)
    mask[0, 1, :4] = False
    mask[1, 0] = False
    tokens = (rng.integers(2, VOCAB, mask.shape) * mask).astype(np.int32)
    images = rng.integers(0, 256, (ROWS, 16, 16, 3)).astype(np.uint8)
    return images, tokens, mask, np.arange(ROWS * 3, dtype=np.int32).reshape(ROWS, 3)


def _mesh(**sizes):
    return meshes.make_mesh(meshes.MeshConfig(**sizes))


def _assert_same(ours, theirs):
    np.testing.assert_array_equal(ours.tokens, theirs.tokens)
    np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-5)
    assert len(np.unique(ours.tokens)) > 5  # an answer that never changes would prove little


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(sizes, id=name, marks=() if name == "all" else pytest.mark.slow)
        for name, sizes in MESHES.items()
    ],
)
def test_eight_devices_write_the_tokens_of_one(inputs, sizes, monkeypatch):
    monkeypatch.setattr(meshes, "_FSDP_MIN_SIZE", 16)
    alone = Generator(model("image"), GREEDY)(*inputs)
    _assert_same(Generator(model("image"), GREEDY, mesh=_mesh(**sizes))(*inputs), alone)


@pytest.mark.heavy
@pytest.mark.parametrize("share", ["image", "tower"])
@pytest.mark.parametrize("strategy", OTHERS.values(), ids=OTHERS)
def test_beams_and_draws_too(inputs, share, strategy):
    alone = Generator(model(share), strategy)(*inputs)
    mesh = _mesh(data=4, tensor=2)
    _assert_same(Generator(model(share), strategy, mesh=mesh)(*inputs), alone)


@pytest.mark.parametrize(("tensor", "heads"), [(2, 1), pytest.param(4, 2, marks=pytest.mark.slow)])
def test_every_device_keeps_its_part_of_the_cache(inputs, tensor, heads):
    """Also in the loop: the compiled program holds no cache of the whole batch or of all heads."""
    mesh = _mesh(data=8 // tensor, tensor=tensor)
    graphdef, state = nnx.split(model("image"))
    state = jax.device_put(state, meshes.tree_shardings(mesh, state))
    batch = meshes.put_batch(tuple(np.concatenate([x, x[:3]]) for x in inputs), mesh)

    @jax.jit
    def cache_of(state, images, tokens, mask, _):
        _, decode = nnx.merge(graphdef, state).prefill(images, tokens, mask, SLOTS)
        return spread_cache(decode, mesh)

    rows = 8 // mesh.shape["data"]
    decode = cache_of(state, *batch)
    for layer in decode.layers:
        for part in layer:
            assert part.sharding.shard_shape(part.shape)[:2] == (rows, heads)
    for part in decode[1:3]:
        assert part.sharding.shard_shape(part.shape)[0] == rows

    def answer(state, *batch):
        return generate(nnx.merge(graphdef, state), *batch, GREEDY, mesh=mesh)

    program = jax.jit(answer).lower(state, *batch).compile().as_text()
    loop = [line for line in program.splitlines() if " while(" in line]
    # Four devices and two heads: XLA may let two devices share a head rather than copy both.
    assert re.search(rf"f32\[{rows},[1-{heads}],3,{SLOTS},8\]", " ".join(loop))
    assert f"f32[8,2,3,{SLOTS},8]" not in program


def test_a_batch_is_raised_to_what_the_devices_share():
    def whole(count, **sizes):
        return Generator(model("image"), GREEDY, mesh=_mesh(**sizes)).whole_batch(count)

    assert whole(5) == whole(8) == 8
    assert whole(9) == 16
    assert whole(5, data=2, tensor=4) == 6
    assert Generator(model("image"), GREEDY).whole_batch(5) == 5


def test_context_tokens_and_masks_are_spread_with_the_rows(inputs):
    images, tokens, mask, index = inputs
    context = np.full((ROWS, 6), -1, np.int32)  # four image tokens after two of text
    context[:, :2] = np.arange(2 * ROWS).reshape(ROWS, 2) + 2
    present = np.ones_like(context, bool)
    present[2, 0] = False
    asked = (images, tokens, mask, index, context, present)
    alone = Generator(model("image"), GREEDY)(*asked)
    _assert_same(Generator(model("image"), GREEDY, mesh=_mesh())(*asked), alone)
    assert not jnp.array_equal(alone.tokens, Generator(model("image"), GREEDY)(*inputs).tokens)
