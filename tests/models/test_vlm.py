"""The model against an independent dense formulation, what may affect what, and its gated unit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cxrjax.models import VLM, LoRAConfig, apply_lora, partition
from cxrjax.models.gemma import gated
from tests.models.sizes import arrays, copy_of, drawn, named

_CONFIG = named("tiny")
_B, _Q, _P, _A = 2, 3, 7, 5


@functools.cache
def _parts(share, **kwargs):
    return nnx.split(drawn(lambda: VLM(_CONFIG, rngs=nnx.Rngs(0), share=share, **kwargs)))


def _model(share="tower", **kwargs):
    """Always the same parameters."""
    return copy_of(_parts(share, **kwargs))


@functools.partial(nnx.jit, static_argnames="packed_length")
def _hidden(model, inputs, question_index=None, dropout_key=None, packed_length=None):
    return model(
        **inputs,
        question_index=question_index,
        dropout_key=dropout_key,
        packed_length=packed_length,
    )


def _inputs(seed=0):
    rng = np.random.default_rng(seed)
    prefix_mask = np.ones((_B, _Q, _P), bool)
    prefix_mask[0, 1, :3] = False
    prefix_mask[1, 2, :5] = False
    answer_mask = np.ones((_B, _Q, _A), bool)
    answer_mask[0, 0, 3:] = False
    return {
        "images": rng.integers(0, 256, (_B, 24, 24, 3)).astype(np.uint8),
        "prefix_tokens": rng.integers(0, 1100, (_B, _Q, _P)) * prefix_mask,
        "prefix_mask": prefix_mask,
        "answer_tokens": rng.integers(0, 1100, (_B, _Q, _A)) * answer_mask,
        "answer_mask": answer_mask,
    }


def _numpy_hidden(model, image, prefix, answer):
    """PaliGemma for one question without padding, in float64 NumPy, heads and mask written out."""
    w = {path: array.astype(np.float64) for path, array in arrays(model).items()}

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    def softmax(x):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def layer_norm(x, scale, bias):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * scale + bias

    def rms_norm(x, scale):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * (1 + scale)

    vision, decoder = model.config.vision, model.config.decoder
    pixels = image.astype(np.float64) / 127.5 - 1
    p, n = vision.patch_size, vision.image_size // vision.patch_size
    x = pixels.reshape(n, p, n, p, 3).swapaxes(1, 2).reshape(n * n, -1)
    x = x @ w["vision/patch_embed/kernel"] + w["vision/patch_embed/bias"]
    x = x + w["vision/position_embed"]
    for i in range(vision.depth):

        def v(name, i=i):
            return w[f"vision/layers/{name}"][i]

        y = layer_norm(x, v("norm1/scale"), v("norm1/bias"))
        q, k, val = (
            y @ v(f"attn/{n}_proj/kernel") + v(f"attn/{n}_proj/bias") for n in ("q", "k", "v")
        )
        size = vision.width // vision.num_heads
        heads = [slice(h * size, (h + 1) * size) for h in range(vision.num_heads)]
        mixed = [softmax(q[:, h] @ k[:, h].T / np.sqrt(size)) @ val[:, h] for h in heads]
        x = x + np.concatenate(mixed, -1) @ v("attn/out_proj/kernel") + v("attn/out_proj/bias")
        y = layer_norm(x, v("norm2/scale"), v("norm2/bias"))
        y = gelu(y @ v("mlp/fc1/kernel") + v("mlp/fc1/bias"))
        x = x + y @ v("mlp/fc2/kernel") + v("mlp/fc2/bias")
    x = layer_norm(x, w["vision/final_norm/scale"], w["vision/final_norm/bias"])
    x = x @ w["projector/kernel"] + w["projector/bias"]

    tokens = np.concatenate([prefix, answer])
    embedded = w["decoder/embedder/table"][tokens] * np.sqrt(decoder.width)
    num_context = len(x)
    x = np.concatenate([x, embedded])
    full = num_context + len(prefix)
    index = np.arange(len(x))
    sees = (index[None, :] < full) | (index[None, :] <= index[:, None])
    half = decoder.head_dim // 2
    angles = index[:, None] * decoder.rope_base ** (-np.arange(half) / half)
    rotation = np.exp(1j * angles)

    def rope(y):
        z = (y[:, :half] + 1j * y[:, half:]) * rotation
        return np.concatenate([z.real, z.imag], -1)

    for i in range(decoder.depth):

        def d(name, i=i):
            return w[f"decoder/layers/{name}"][i]

        y = rms_norm(x, d("attn_norm/scale"))
        q, k, val = (y @ d(f"attn/{n}_proj/kernel") for n in ("q", "k", "v"))
        mixed, size = [], decoder.head_dim
        for h in range(decoder.num_heads):
            kv = slice((h * decoder.num_kv_heads // decoder.num_heads) * size, None)
            kv = slice(kv.start, kv.start + size)
            logits = rope(q[:, h * size : (h + 1) * size]) @ rope(k[:, kv]).T / np.sqrt(size)
            mixed.append(softmax(np.where(sees, logits, -np.inf)) @ val[:, kv])
        x = x + np.concatenate(mixed, -1) @ d("attn/o_proj/kernel")
        y = rms_norm(x, d("mlp_norm/scale"))
        y = gelu(y @ d("mlp/gate_proj/kernel")) * (y @ d("mlp/up_proj/kernel"))
        x = x + y @ d("mlp/down_proj/kernel")
    x = rms_norm(x, w["decoder/final_norm/scale"])
    return x[full - 1 : full - 1 + len(answer)]


def test_equals_a_dense_numpy_formulation_for_every_question():
    model, inputs = _model("tower"), _inputs()
    # Norm scales that differ from their initial value, so that 1 + scale is seen.
    model.decoder.final_norm.scale[...] = jnp.linspace(-0.5, 0.5, 20)
    hidden = _hidden(model, inputs)
    for b in range(_B):
        for q in range(_Q):
            prefix = inputs["prefix_tokens"][b, q][inputs["prefix_mask"][b, q]]
            answer = inputs["answer_tokens"][b, q][inputs["answer_mask"][b, q]]
            expected = _numpy_hidden(model, inputs["images"][b], prefix, answer)
            np.testing.assert_allclose(hidden[b, q, : len(answer)], expected, atol=2e-5)


@pytest.mark.parametrize("share", ["tower", "image"])
def test_questions_do_not_see_each_other_nor_answers_the_future(share):
    model, inputs = _model(share), _inputs()
    hidden = _hidden(model, inputs)
    for q in range(_Q):
        alone = {
            name: value if name == "images" else value[:, q : q + 1]
            for name, value in inputs.items()
        }
        np.testing.assert_allclose(_hidden(model, alone)[:, 0], hidden[:, q], atol=1e-5)
    later = dict(inputs, answer_tokens=inputs["answer_tokens"].copy())
    later["answer_tokens"][:, :, 2] = 7
    changed = np.abs(np.asarray(_hidden(model, later) - hidden)).max(axis=(0, 1, 3))
    # Entry a predicts token a, so token 2 is first seen by entry 3.
    np.testing.assert_array_less(changed[:3], 1e-6)
    assert changed[3] > 1e-3

    # Entry 0 stands on the last prompt token and sees the ones before it.
    early = dict(inputs, prefix_tokens=inputs["prefix_tokens"].copy())
    early["prefix_tokens"][:, :, -2] = 9
    assert np.abs(np.asarray(_hidden(model, early) - hidden)[:, :, 0]).max() > 1e-3


def test_image_tokens_see_the_prompt_only_where_they_are_not_shared():
    inputs = _inputs()
    other = dict(inputs, prefix_tokens=(inputs["prefix_tokens"] + 1) % 1100)

    def context_keys(share, inputs):
        asked = (inputs[name] for name in ("images", "prefix_tokens", "prefix_mask"))
        prefill = nnx.jit(lambda model, *asked: model.prefill(*asked, max_answer=1))
        return np.asarray(prefill(_model(share), *asked)[1].layers[-1].context_k)

    assert np.abs(context_keys("tower", inputs) - context_keys("tower", other)).max() > 1e-3
    np.testing.assert_array_equal(context_keys("image", inputs), context_keys("image", other))


def test_padding_and_empty_slots_change_nothing_and_are_finite():
    model, inputs = _model("image"), _inputs()
    hidden = _hidden(model, inputs)
    garbage = dict(inputs)
    for part in ("prefix", "answer"):
        mask = inputs[f"{part}_mask"]
        garbage[f"{part}_tokens"] = np.where(mask, inputs[f"{part}_tokens"], 55)
    seen = inputs["answer_mask"]
    np.testing.assert_allclose(
        np.asarray(_hidden(model, garbage))[seen], np.asarray(hidden)[seen], atol=1e-6
    )
    empty = dict(inputs, prefix_mask=inputs["prefix_mask"].copy())
    empty["prefix_mask"][0, 0] = False
    empty["answer_mask"] = inputs["answer_mask"].copy()
    empty["answer_mask"][0, 0] = False
    with_empty = np.asarray(_hidden(model, empty))
    assert np.isfinite(with_empty).all()
    np.testing.assert_allclose(with_empty[1], hidden[1], atol=1e-6)


@pytest.mark.parametrize(
    "kwargs", [{"remat": "full"}, {"remat": "attention"}, {"remat": "products"}, {"unroll": True}]
)
def test_remat_and_unroll_change_neither_values_nor_gradients(kwargs):
    inputs = jax.tree.map(jnp.asarray, _inputs())

    def value_and_grad(model):
        graphdef, state = nnx.split(model)

        def loss(state):
            return jnp.mean(nnx.merge(graphdef, state)(**inputs) ** 3)

        return jax.jit(jax.value_and_grad(loss))(state)

    plain, other = value_and_grad(_model()), value_and_grad(_model(**kwargs))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), plain, other)


def test_bfloat16_activations_stay_near_float32_and_backward_keeps_its_arguments_alone():
    inputs = _inputs()
    exact, rounded = _hidden(_model(), inputs), _hidden(_model(dtype="bfloat16"), inputs)
    assert rounded.dtype == jnp.bfloat16
    assert np.abs(np.asarray(exact) - np.asarray(rounded, np.float32)).mean() < 0.02
    _, backward = jax.vjp(lambda gate, up: gated(gate, up, "gelu"), jnp.ones(7), jnp.ones(7))
    assert [leaf.shape for leaf in jax.tree.leaves(backward)] == [(7,), (7,)]


def _tuned(model):
    targets = (r"attn/.*_proj", r"mlp/.*", "projector")
    apply_lora(model, LoRAConfig(rank=3, alpha=6.0, dropout=0.4, targets=targets), nnx.Rngs(1))
    model.decoder.embedder.add_loc_delta()

    def fill(path, value):
        return value + 0.3 if path[-1] == "b" else value

    graphdef, trainable, frozen = partition(model, ("/lora/b",))
    return nnx.merge(graphdef, nnx.map_state(fill, trainable), frozen)


@pytest.mark.parametrize("share", ["tower", "image"])
def test_dropout_belongs_to_the_question_not_to_its_place_in_the_batch(share):
    model, inputs = _tuned(_model(share)), _inputs()
    index, key = np.arange(_B * _Q).reshape(_B, _Q) + 100, jax.random.key(3)
    together = _hidden(model, inputs, index, key)
    assert np.abs(np.asarray(together - _hidden(model, inputs))).max() > 1e-2
    for b in range(_B):
        row = {name: value[b : b + 1] for name, value in inputs.items()}
        alone = _hidden(model, row, index[b : b + 1], key)
        np.testing.assert_allclose(alone[0], together[b], atol=1e-5)
    again = _hidden(model, inputs, index, jax.random.key(4))
    assert np.abs(np.asarray(together - again)).max() > 1e-2


def test_leaving_the_padding_out_changes_nothing():
    inputs, index, key = _inputs(), np.arange(_B * _Q).reshape(_B, _Q), jax.random.key(5)
    said = inputs["answer_mask"]
    longest = int((inputs["prefix_mask"].sum((1, 2)) + said.sum((1, 2))).max())
    model = _tuned(_model("image"))
    for noise in ((None, None), (index, key)):
        padded = np.asarray(_hidden(model, inputs, *noise))
        for length in (longest, longest + 4):
            packed = np.asarray(_hidden(model, inputs, *noise, packed_length=length))
            np.testing.assert_allclose(packed[said], padded[said], atol=1e-5)
    with pytest.raises(ValueError, match="share='image'"):
        _model("tower")(**jax.tree.map(jnp.asarray, inputs), packed_length=longest)


def test_loc_delta_is_a_change_of_the_loc_rows_on_both_sides():
    model, inputs = _model(), _inputs()
    model.decoder.embedder.add_loc_delta()
    delta = 0.1 * jax.random.normal(jax.random.key(0), (1024, 20))
    model.decoder.embedder.loc_delta[...] = delta
    changed = _model()
    start = _CONFIG.loc_token_start
    table = changed.decoder.embedder.table
    table[...] = table[...].at[start : start + 1024].add(delta)
    hidden, expected = _hidden(model, inputs), _hidden(changed, inputs)
    np.testing.assert_allclose(hidden, expected, atol=1e-5)
    np.testing.assert_allclose(model.logits(hidden), changed.logits(hidden), atol=1e-4)
    np.testing.assert_allclose(
        model.loc_logits(hidden), model.logits(hidden)[..., start : start + 1024], atol=1e-5
    )


@pytest.mark.parametrize(("activation", "plain"), [("gelu", jax.nn.gelu), ("silu", jax.nn.silu)])
@pytest.mark.parametrize(("dtype", "rounding"), [("float32", 2e-5), ("bfloat16", 0.1)])
def test_values_and_gradients_are_as_of_its_parts(dtype, rounding, activation, plain):
    rng = np.random.default_rng(0)
    far = [-1e4, -50.0, 0.0, 50.0, 1e4]
    gate = jnp.asarray(np.append(4 * rng.normal(size=200), far), dtype)
    up, weights = (jnp.asarray(rng.normal(size=gate.shape), dtype) for _ in range(2))

    def run(function):
        weighted = lambda gate, up: jnp.sum(function(gate, up) * weights)  # noqa: E731
        return function(gate, up), *jax.grad(weighted, (0, 1))(gate, up)

    found = run(lambda gate, up: gated(gate, up, activation))
    for ours, theirs in zip(found, run(lambda gate, up: plain(gate) * up), strict=True):
        assert ours.dtype == theirs.dtype == dtype
        ours, theirs = (np.asarray(y, np.float32) for y in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=rounding, atol=rounding)
