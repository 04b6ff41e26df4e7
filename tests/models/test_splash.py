"""Rules against the masks of layout.py, and the kernels, interpreted, against dense attention."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh

from cxrjax.distributed import meshes
from cxrjax.models import PRESETS, VLM, splash
from cxrjax.models.layout import Context, image_of_token, make_layout
from tests.models.sizes import changed, named
from tests.models.test_layout import PLAIN, masks_in_full
from tests.papers.cases import data

TPU, GPU = "splash_interpreted", "cudnn_interpreted"


def layouts(
    config, is_image, mask, num_prefix, context_mask=None, *, context_sees_prefix, kind=TPU
):
    """Both layouts of the same batch."""
    num_context = len(is_image)
    context = Context(num_context, image_of_token(jnp.asarray(is_image)[None]), context_mask)
    by_mask = make_layout(
        config, context, mask, num_prefix, context_sees_prefix=context_sees_prefix
    )
    by_rule = splash.make_splash_layout(
        config,
        context_mask,
        splash.image_spans(is_image),
        num_context,
        mask,
        num_prefix,
        context_sees_prefix=context_sees_prefix,
        kind=kind,
    )
    return by_mask, by_rule


def random_mask(rng, rows, questions, num_prefix, num_answer):
    slot = np.arange(num_prefix + num_answer)
    first = rng.integers(0, num_prefix, (rows, questions, 1))
    last = num_prefix + rng.integers(0, num_answer + 1, (rows, questions, 1))  # also no answer
    return jnp.asarray((slot >= first) & (slot < last))


@settings(max_examples=60)
@given(
    attention=st.sampled_from(["full", "causal", "local"]),
    window=st.sampled_from([None, 3, 5, 40]),
    kinds=st.lists(st.booleans(), min_size=1, max_size=7),
    questions=st.integers(1, 3),
    shared=st.booleans(),
    context_padding=st.booleans(),
    seed=st.integers(0, 99),
)
def test_rules_say_what_masks_say(
    attention, window, kinds, questions, shared, context_padding, seed
):
    causal, of_two_kinds = attention != "full", attention == "local"
    config = dataclasses.replace(
        PLAIN,
        prefix_attention=attention,
        window=window or (40 if of_two_kinds else None),
        global_every=2 if window or of_two_kinds else 1,
        global_head_dim=6 if of_two_kinds else None,
    )
    rng = np.random.default_rng(seed)
    rows, questions = 2, questions if shared else 1
    is_image = np.array(kinds)
    mask = random_mask(rng, rows, questions, 3, 4)
    there = None
    if context_padding:
        there = jnp.asarray(np.arange(len(kinds)) >= rng.integers(0, len(kinds), (rows, 1)))
    by_mask, by_rule = layouts(config, is_image, mask, 3, there, context_sees_prefix=not shared)
    if by_rule is None:  # slots do not tell
        assert window is not None
        assert context_padding or (shared and not causal)
        return
    present = np.asarray(by_rule.present)
    assert (by_rule.local_rule is None) == (by_mask.seen_locally is None)
    for local, rule in ((False, by_rule.rule), (True, by_rule.local_rule)):
        if rule is None:
            continue
        slot = np.arange(rule.length)
        found = np.broadcast_to(rule(slot[:, None], slot[None, :]), (rule.length,) * 2)
        assert found.diagonal().all()  # no softmax over nothing
        for row in range(rows):
            order = slot if by_rule.order is None else np.asarray(by_rule.order)[row]
            assert sorted(order) == list(slot)
            expected = masks_in_full(by_mask, local, row)[np.ix_(order, order)]
            valid = present[row][order]
            np.testing.assert_array_equal(
                found[np.ix_(valid, valid)], expected[np.ix_(valid, valid)]
            )


def dense(q, k, v, seen, softcap):
    """Attention with the mask written out, [B, S, heads, H], in float32."""
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    scores = jnp.einsum("bqnh,bknh->bnqk", q, k)
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    weights = jax.nn.softmax(jnp.where(seen[:, None], scores, -1e30), axis=-1)
    return jnp.einsum("bnqk,bknh->bqnh", weights, v)


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def check_equal(attend, expected, arrays, valid):
    """Values and gradients, where queries are no padding."""
    weights = normal(9, *arrays[0].shape) * valid[..., None, None]

    def run(function):
        def loss(*arrays):
            out = function(*arrays)
            return jnp.sum(out * weights), out * valid[..., None, None]

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(*arrays)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, 3e-6, 3e-5), run(attend), run(expected)
    )


KINDS = data(__file__)["kinds"]


def each_kind(quick, mark):
    kinds = [pytest.param(kind, marks=() if kind == quick else mark) for kind in KINDS]
    return pytest.mark.parametrize("kind", kinds)


@each_kind("prefix_lm", pytest.mark.heavy)
@pytest.mark.parametrize("is_local", [False, True])
def test_kernels_equal_dense_attention(kind, is_local):
    check_kernels(TPU, kind, is_local)


@each_kind("shared_context", pytest.mark.slow)
@pytest.mark.parametrize("is_local", [False, True])
def test_masks_for_cudnn_equal_dense_attention(kind, is_local):
    """XLA in the place of cuDNN: what this machine can tell."""
    check_kernels(GPU, kind, is_local)


def check_kernels(by, kind, is_local):
    prefix_attention, window, softcap, questions, num_image = KINDS[kind]
    softcap = None if by == GPU else softcap
    if is_local and window is None:
        pytest.skip("no local layers")
    config = dataclasses.replace(
        PLAIN, prefix_attention=prefix_attention, window=window, global_every=2 if window else 1
    )
    is_image = np.array([False] * 2 + [True] * num_image + [False] * 3)
    mask = random_mask(np.random.default_rng(0), 2, questions, 10, 12)
    sees = questions == 1
    by_mask, by_rule = layouts(config, is_image, mask, 10, context_sees_prefix=sees, kind=by)
    assert by_rule is not None
    seen = jnp.asarray(np.stack([masks_in_full(by_mask, is_local, row) for row in range(2)]))
    length = seen.shape[1]
    arrays = [normal(i, 2, length, heads, 8) for i, heads in enumerate((4, 2, 2))]

    def attend(q, k, v):
        return splash.attend_by_rule(q, k, v, by_rule, jnp.asarray(is_local), softcap)

    def expected(q, k, v):
        return dense(q, k, v, seen, softcap)

    check_equal(attend, expected, arrays, by_rule.present)


@pytest.mark.heavy
def test_several_blocks_equal_dense_attention():
    """More tokens than a block has; one key-value head for all query heads."""
    config = dataclasses.replace(PLAIN, prefix_attention="full")
    mask = random_mask(np.random.default_rng(1), 1, 1, 64, 64)
    by_mask, by_rule = layouts(config, np.ones(500, bool), mask, 64, context_sees_prefix=True)
    assert by_rule is not None
    seen = jnp.asarray(masks_in_full(by_mask, False, 0))[None]
    arrays = [normal(i, 1, 628, heads, 8) for i, heads in enumerate((2, 1, 1))]
    check_equal(
        lambda q, k, v: splash.attend_by_rule(q, k, v, by_rule, False),
        lambda q, k, v: dense(q, k, v, seen, None),
        arrays,
        by_rule.present,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_kernels_on_eight_devices_equal_dense_attention(kv_heads):
    """Rows and heads spread; the only head of keys and values is on every device."""
    config = dataclasses.replace(PLAIN, prefix_attention="causal")
    mask = random_mask(np.random.default_rng(0), 8, 2, 10, 12).at[1, 1].set(False)
    by_mask, by_rule = layouts(config, np.ones(25, bool), mask, 10, context_sees_prefix=False)
    seen = jnp.asarray(np.stack([masks_in_full(by_mask, False, row) for row in range(8)]))
    mesh = Mesh(np.asarray(jax.devices()).reshape(1, 2, 2, 2), meshes.AXES)
    arrays = [normal(i, *seen.shape[:2], heads, 8) for i, heads in enumerate((4, *[kv_heads] * 2))]

    def attend(q, k, v):
        with meshes.mesh_of_kernels(mesh):
            return splash.attend_by_rule(q, k, v, by_rule, False)

    check_equal(
        attend,
        lambda q, k, v: dense(q, k, v, seen, None),
        jax.device_put(arrays, meshes.batch_sharding(mesh)),
        by_rule.present,
    )


@pytest.mark.parametrize(
    ("by", "length"),
    [
        pytest.param(TPU, 150, marks=pytest.mark.heavy),
        pytest.param(GPU, 150, marks=pytest.mark.slow),
        (GPU, 151),
    ],
)
def test_the_tower_equals_dense_attention(by, length):
    arrays = [normal(i, 2, length, 2, 9) for i in range(3)]
    everything = jnp.ones((2, length), bool)
    check_equal(
        lambda q, k, v: splash.attend_to_all(q, k, v, kind=by),
        lambda q, k, v: dense(q, k, v, jnp.ones((2, length, length), bool), None),
        arrays,
        everything,
    )


@pytest.mark.parametrize("remat", [pytest.param("none", marks=pytest.mark.slow), "attention"])
@pytest.mark.parametrize("by", [pytest.param(TPU, marks=pytest.mark.heavy), GPU])
def test_a_model_by_kernels_equals_the_dense_one(by, remat, drawn):
    config = named("tiny")
    rng = np.random.default_rng(0)
    mask = np.asarray(random_mask(rng, 2, 2, 7, 5))
    tokens = rng.integers(0, 1100, mask.shape)
    images = rng.integers(0, 256, (2, 24, 24, 3)).astype(np.uint8)
    parts = images, tokens[..., :7], mask[..., :7], tokens[..., 7:], mask[..., 7:]
    inputs = tuple(map(jnp.asarray, parts))

    def value_and_grad(**kwargs):
        graphdef, state = nnx.split(drawn(lambda: VLM(config, rngs=nnx.Rngs(0), **kwargs)))

        def loss(state):
            hidden = nnx.merge(graphdef, state)(*inputs)
            return jnp.mean(jnp.where(inputs[4][..., None], hidden, 0) ** 3)

        return jax.jit(jax.value_and_grad(loss))(state)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
        value_and_grad(attention=by, remat=remat),
        value_and_grad(),
    )


def test_auto_is_what_the_device_has_and_cudnn_caps_no_scores():
    medgemma = PRESETS["medgemma_4b"]
    of_size = [changed(medgemma, decoder={"head_dim": size}) for size in (64, 264, 252, 100)]
    uneven = changed(medgemma, vision={"num_heads": 32})  # heads of 36 in the tower, 1152 / 32

    def auto(platform, capability=None, dtype="bfloat16", sizes=medgemma):
        device = SimpleNamespace(platform=platform)
        if capability:
            device.compute_capability = capability
        return splash.resolve_attention("auto", device, dtype, sizes)

    assert auto("tpu") == auto("tpu", dtype="float32") == "splash"
    assert auto("cpu") == "dense"
    assert auto("gpu", "9.0") == "cudnn"
    # Ampere's kernels take no heads of 256, those of float32 none at all; AMD has others.
    assert {auto("gpu", "8.0"), auto("gpu", "gfx90a"), auto("gpu")} == {"dense"}
    assert auto("gpu", "9.0", "float32") == auto("gpu", "9.0", sizes=uneven) == "dense"
    # At most 256, and a multiple of 8.
    found = [auto("gpu", "9.0", sizes=sizes) for sizes in of_size]
    assert found == ["cudnn", "dense", "dense", "dense"]
    cpu = SimpleNamespace(platform="cpu")
    assert splash.resolve_attention("splash", cpu, "float32", medgemma) == "splash"
    with pytest.raises(ValueError, match="'flash' is unknown"):
        splash.resolve_attention("flash", cpu, "float32", medgemma)
    config = dataclasses.replace(PLAIN, attn_softcap=50.0)
    mask = jnp.ones((1, 1, 4), bool)
    for by, found in ((GPU, False), (TPU, True)):
        rule = layouts(config, np.ones(3, bool), mask, 2, context_sees_prefix=True, kind=by)[1]
        assert (rule is not None) == found
