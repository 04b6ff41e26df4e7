"""LoRA: exact at step 0, the formula afterwards, and rules that must match."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cxrjax.errors import UserError
from cxrjax.models import PRESETS, VLM, LoRAConfig, apply_lora
from cxrjax.models.gemma import Embedder
from cxrjax.models.layers import Linear, RMSNorm, TokenDropout, scan_layers, stack_layers
from cxrjax.models.lora import LoRA, folded_matmul, folding_pays, merge_lora, parse_pattern
from cxrjax.models.partition import count_parameters, parameter_shapes, partition
from tests.models.sizes import drawn


def test_a_branch_starts_at_zero_and_merges_in_its_dtype():
    linear = Linear(6, 4, use_bias=True, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (2, 3, 6))
    base = linear(x)
    a, b = (jax.random.normal(jax.random.key(k), s) for k, s in ((2, (6, 2)), (3, (2, 4))))
    linear.lora = LoRA(a, jnp.zeros_like(b), alpha=8.0, dropout=0.5)
    np.testing.assert_array_equal(linear(x), base)
    linear.lora = LoRA(a, b, alpha=8.0, dropout=0.5)
    merged = linear.kernel[...] + (8.0 / 2) * a @ b
    np.testing.assert_allclose(linear(x), x @ merged + linear.bias[...], rtol=2e-5, atol=1e-5)
    linear = Linear(6, 4, rngs=nnx.Rngs(0))
    linear.kernel = nnx.Param(linear.kernel[...].astype(jnp.bfloat16))
    linear.lora = LoRA(jnp.ones((6, 2)), jnp.ones((2, 4)), alpha=1.0, dropout=0.0)
    expected = (linear.kernel[...].astype(jnp.float32) + 1.0).astype(jnp.bfloat16)
    merge_lora(nnx.Dict(map=linear))
    np.testing.assert_array_equal(linear.kernel[...], expected)


def test_a_whole_model_starts_exactly_at_its_base():
    model = drawn(lambda: VLM(PRESETS["tiny"], rngs=nnx.Rngs(0), share="image"))
    rng = np.random.default_rng(0)
    inputs = (
        rng.integers(0, 256, (1, 128, 128, 3)).astype(np.uint8),
        rng.integers(0, 2048, (1, 2, 4)),
        np.ones((1, 2, 4), bool),
        rng.integers(0, 2048, (1, 2, 3)),
        np.ones((1, 2, 3), bool),
    )
    inputs = tuple(map(jnp.asarray, inputs))
    answer = nnx.jit(lambda called: called(*inputs))
    before = answer(model)
    paths = apply_lora(model, LoRAConfig(targets=(r"attn/.*_proj", "projector")), nnx.Rngs(1))
    assert "vision/layers/attn/out_proj" in paths and "projector" in paths
    np.testing.assert_array_equal(answer(model), before)


def test_the_rules_name_what_trains_and_must_match():
    model = drawn(lambda: VLM(PRESETS["tiny"], rngs=nnx.Rngs(0)))
    with pytest.raises(UserError, match=r"'attn/x_proj' matches no linear map.*q_proj"):
        apply_lora(model, LoRAConfig(targets=("attn/x_proj",)), nnx.Rngs(1))
    apply_lora(model, LoRAConfig(rank=4), nnx.Rngs(1))
    config = PRESETS["tiny"].decoder
    width, heads = config.width, config.num_heads * config.head_dim
    kv = config.num_kv_heads * config.head_dim
    per_layer = 4 * ((width + heads) + 2 * (width + kv) + (heads + width))
    _, trainable, frozen = partition(model, ("/lora/",))
    assert count_parameters(trainable) == config.depth * per_layer
    everything = count_parameters(nnx.split(model)[1])
    assert count_parameters(trainable) + count_parameters(frozen) == everything
    with pytest.raises(UserError, match="'bias_only' matches no parameter"):
        partition(model, ("/lora/", "bias_only"))


def test_patterns_match_as_configurations_write_them_or_are_refused():
    model = drawn(lambda: VLM(PRESETS["tiny"], rngs=nnx.Rngs(0)))
    with pytest.raises(UserError, match=r"lora\.rank is 0"):
        apply_lora(model, LoRAConfig(rank=0), nnx.Rngs(1))
    model = _towers()
    assert apply_lora(model, LoRAConfig(targets=("vision/.*",)), nnx.Rngs(1)) == ["vision/fc1"]
    assert model.projector.lora is None and model.decoder.q_proj.lora is None
    with pytest.raises(UserError, match=r"lora\.rank_pattern: 'q_proj' matches no map.*vision/fc1"):
        config = LoRAConfig(targets=("vision/.*",), rank_pattern={"q_proj": 4})
        apply_lora(_towers(), config, nnx.Rngs(1))
    assert parse_pattern(("vision/.*=8", "a=b=2"), "lora.rank_pattern") == {
        "vision/.*": 8,
        "a=b": 2,
    }
    assert parse_pattern(("x=0.5",), "lora.alpha_pattern") == {"x": 0.5}
    for wrong in ("vision", "vision=", "=3", "vision=0", "vision=1.5", "(=3"):
        with pytest.raises(UserError, match=r"lora\.rank_pattern: .* expected REGEX=NUMBER"):
            parse_pattern((wrong,), "lora.rank_pattern")


# The gradients of a and b go through the kernel's own in the first shape, around it in the second.
@pytest.mark.parametrize("shape", [(6, 4), (16, 24)])
def test_folding_the_branch_into_the_kernel_changes_neither_output_nor_gradients(shape):
    (i, o), rank, tokens = shape, 2, 40
    keys = jax.random.split(jax.random.key(0), 4)
    x, kernel = jax.random.normal(keys[0], (2, tokens // 2, i)), jax.random.normal(keys[1], (i, o))
    a, b = jax.random.normal(keys[2], (i, rank)), jax.random.normal(keys[3], (rank, o))
    assert folding_pays(tokens, i, o) and not folding_pays(2, i, o)

    def folded(x, kernel, a, b):
        return LoRA(a, b, alpha=1.0, dropout=0.0)(x, kernel, None)

    def plain(x, kernel, a, b):
        return x @ kernel + x @ a @ b * 0.5

    def run(f):
        loss = jax.jit(jax.grad(lambda *args: jnp.mean(jnp.sin(f(*args))), argnums=(0, 1, 2, 3)))
        return f(x, kernel, a, b), *loss(x, kernel, a, b)

    for found, expected in zip(run(folded), run(plain), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    few = x[:1, :2]
    np.testing.assert_array_equal(folded(few, kernel, a, b), plain(few, kernel, a, b))


def test_a_frozen_kernel_costs_no_product_for_its_gradient():
    # In a scan too, where layers sit stacked.
    tokens, width, rank = 512, 32, 2
    kernels = jnp.ones((2, width, width))

    def loss(adapters, x, kernels):
        def body(x, layer):
            kernel, a, b = layer
            return folded_matmul(x, kernel, a, b, 1.0), None

        return jnp.sum(jax.lax.scan(body, x, (kernels, *adapters))[0] ** 2)

    adapters = jnp.ones((2, width, rank)), jnp.ones((2, rank, width))
    text = jax.jit(jax.grad(loss)).lower(adapters, jnp.ones((tokens, width)), kernels)
    products = re.findall(r"= (f32\[[\d,]+\]).* dot\(", text.compile().as_text())
    assert products.count(f"f32[{tokens},{width}]") == 2  # forward, and backward to x
    # a @ b, twice; never x.T @ dy, which would be a third.
    assert products.count(f"f32[{width},{width}]") == 2


class Towers(nnx.Module):
    """Two stacks, a map between them and an embedder: a VLM's places, without its sizes."""

    def __init__(self, rngs: nnx.Rngs):
        self.vision = nnx.Dict(fc1=stack_layers(lambda r: Linear(6, 6, rngs=r), 2, rngs))
        self.projector = Linear(6, 8, use_bias=True, rngs=rngs)
        layers = stack_layers(lambda r: Linear(8, 8, rngs=r), 3, rngs)
        embedder = Embedder(dataclasses.replace(PRESETS["tiny"].decoder, width=8), 1024, rngs)
        self.decoder = nnx.Dict(q_proj=layers, embedder=embedder)

    def __call__(self, x):
        def apply(layer, x, _):
            return jnp.tanh(layer(x)), ()

        x, _ = scan_layers(self.vision.fc1, apply, x, remat="none", unroll=False)
        x, _ = scan_layers(
            self.decoder.q_proj, apply, self.projector(x), remat="full", unroll=False
        )
        return self.decoder.embedder.decode(x)


def _towers():
    return drawn(lambda: Towers(nnx.Rngs(0)))


EVERYWHERE = ("vision/.*", "projector", "decoder/q_proj")


def set_random(model, seed=5):
    """Gives every adapter and the <loc> rows values, as if they had been trained."""
    _, trainable, _ = partition(model, ("lora/", "loc_delta"))
    leaves, tree = jax.tree.flatten(trainable)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    noise = [x + 0.3 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    nnx.update(model, jax.tree.unflatten(tree, noise))


# Enough tokens to fold the branch into the kernel, and few.
@pytest.mark.parametrize("tokens", [3, 40])
def test_dora_follows_its_formula_and_starts_at_the_base(tokens):
    keys = jax.random.split(jax.random.key(0), 5)
    kernel, a = jax.random.normal(keys[0], (6, 4)), jax.random.normal(keys[1], (6, 2))
    b, x = jax.random.normal(keys[2], (2, 4)), jax.random.normal(keys[3], (tokens, 6))
    linear = Linear(6, 4, use_bias=True, rngs=nnx.Rngs(0))
    linear.kernel[...], linear.bias[...] = kernel, jnp.arange(4.0)
    base = linear(x)
    config = LoRAConfig(2, 6.0, 0.0, ("map",), use_dora=True)
    assert apply_lora(nnx.Dict(map=linear), config, nnx.Rngs(1)) == ["map"]
    assert linear.lora.magnitude.shape == (4,)
    np.testing.assert_allclose(linear(x), base, rtol=1e-5, atol=1e-6)

    magnitude = jnp.array([0.5, 1.0, 2.0, 3.0])
    linear.lora.a[...], linear.lora.b[...], linear.lora.magnitude[...] = a, b, magnitude
    w, s = np.asarray(kernel, np.float64), 6.0 / 2
    full = w + s * np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    unit = full / np.sqrt((full**2).sum(axis=0))
    expected = np.asarray(x) @ (np.asarray(magnitude) * unit) + np.arange(4.0)
    np.testing.assert_allclose(linear(x), expected, rtol=1e-4, atol=1e-5)

    # The norms are constants to the gradient.
    norms = jnp.asarray(np.sqrt((full**2).sum(axis=0)), jnp.float32)

    def loss_of(y):
        return jnp.mean(jnp.sin(y))

    def plain(a, b, magnitude):
        return loss_of(magnitude / norms * (x @ kernel + s * x @ a @ b) + jnp.arange(4.0))

    graphdef, lora, frozen = partition(linear, ("lora/",))
    found = jax.grad(lambda lora: loss_of(nnx.merge(graphdef, lora, frozen)(x)))(lora)["lora"]
    expected = jax.grad(plain, (0, 1, 2))(a, b, magnitude)
    for name, g in zip(("a", "b", "magnitude"), expected, strict=True):
        np.testing.assert_allclose(found[name][...], g, rtol=1e-4, atol=1e-6, err_msg=name)


def test_dropout_acts_on_all_that_dora_changes_as_in_peft():
    keys = jax.random.split(jax.random.key(0), 4)
    kernel, a = jax.random.normal(keys[0], (6, 4)), jax.random.normal(keys[1], (6, 2))
    b, x = jax.random.normal(keys[2], (2, 4)), jax.random.normal(keys[3], (2, 5, 6))
    dropout = TokenDropout.of_questions(jax.random.key(9), jnp.arange(2)[:, None], 2, 3)
    magnitude = jnp.array([0.5, 1.0, 2.0, 3.0])
    dropped = dropout(x, 0.5)
    assert float(jnp.mean(dropped == 0)) > 0.2
    full = kernel + 1.5 * a @ b
    ratio = magnitude / jnp.linalg.norm(full, axis=0)
    expected = x @ kernel + (ratio - 1) * (dropped @ kernel) + ratio * (1.5 * dropped @ a @ b)
    found = LoRA(a, b, alpha=3.0, dropout=0.5, magnitude=magnitude)(x, kernel, dropout)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_rank_and_alpha_can_differ_by_target():
    model = _towers()
    config = LoRAConfig(
        rank=2,
        alpha=4.0,
        targets=EVERYWHERE,
        use_rslora=True,
        use_dora=True,
        rank_pattern={"vision/.*": 4, "fc1": 3},
        alpha_pattern={"projector": 1.0},
    )
    assert apply_lora(model, config, nnx.Rngs(1)) == ["vision/fc1", "projector", "decoder/q_proj"]
    tower, between, decoder = model.vision.fc1.lora, model.projector.lora, model.decoder.q_proj.lora
    assert tower.a.shape == (2, 6, 4) and tower.scale == 4.0 / 2  # the first rule counts
    assert between.b.shape == (2, 8) and between.scale == pytest.approx(1.0 / 2**0.5)
    assert decoder.magnitude.shape == (3, 8) and decoder.scale == pytest.approx(4.0 / 2**0.5)
    # i r + r o + o of every layer.
    _, trainable, _ = partition(model, ("/lora/",))
    assert count_parameters(trainable) == 2 * (48 + 6) + (12 + 16 + 8) + 3 * (32 + 8)


@pytest.mark.parametrize("kind", ["use_rslora", "use_dora"])
def test_merging_leaves_the_outputs_and_removes_the_adapters(kind):
    model = _towers()
    config = LoRAConfig(2, 3.0, 0.1, EVERYWHERE, rank_pattern={"fc1": 3}, **{kind: True})
    apply_lora(model, config, nnx.Rngs(1))
    model.decoder.embedder.add_loc_delta()
    x = jax.random.normal(jax.random.key(2), (5, 6))
    before = model(x)
    set_random(model)
    trained = model(x)
    assert float(jnp.abs(trained - before).max()) > 0.1
    assert merge_lora(model) == ["decoder/q_proj", "projector", "vision/fc1"]
    fresh = _towers()
    assert parameter_shapes(model) == parameter_shapes(fresh)
    np.testing.assert_allclose(model(x), trained, rtol=1e-4, atol=1e-5)
    assert merge_lora(fresh) == []


def test_noise_is_fair_stable_and_of_its_own_for_each_token_stream_and_question():
    keys = jnp.arange(6).reshape(2, 3)
    noise = TokenDropout.of_questions(jax.random.key(9), keys, 20, 20)
    ones = jnp.ones((2, 80, 513))
    streams = [noise.fold_in(number) for number in range(4)]
    drawn = np.stack([np.asarray(each(ones, 0.1)) for each in streams])
    kept = drawn > 0
    assert set(np.unique(drawn)) == {0, np.float32(1 / 0.9)}
    # 328,320 draws: five standard deviations of their mean are 0.0026.
    assert np.abs(kept.mean(axis=(1, 2, 3)) - 0.9).max() < 0.0026
    assert np.abs(kept.mean(axis=(0, 1, 2)) - 0.9).max() < 5 * (0.09 / 640) ** 0.5
    # No two rows, neighbouring entries or halves of a hash agree more than chance has it (0.82).
    rows = kept.reshape(-1, 513)
    for one, other in [
        (rows[1:], rows[:-1]), (rows[1:, 1:], rows[:-1, :-1]), (rows[80:], rows[:-80]),
        (rows[:, 1:], rows[:, :-1]), (rows[:, 257:], rows[:, :256]), (kept[1:], kept[:-1]),
    ]:  # fmt: skip
        assert abs((one == other).mean() - 0.82) < 0.004
    assert len({row.tobytes() for row in rows}) == len(rows)
    # A function of key, question, token and stream: neither of the batch nor of the version.
    alone = TokenDropout.of_questions(jax.random.key(9), keys[1:, :1], 20, 20)
    again = alone.fold_in(0)(ones[:1, :40], 0.1)[0]
    assert np.array_equal(again, drawn[0][1, :40])
    assert np.flatnonzero(~kept[0, 0, 0])[:8].tolist() == [4, 6, 9, 23, 35, 49, 55, 113]


@pytest.mark.parametrize("plain", [False, True, None])
def test_norms_have_the_gradients_of_their_formula_and_keep_their_input_alone(plain):
    norm = RMSNorm(8, plain=bool(plain), scaled=plain is not None)
    keys = jax.random.split(jax.random.key(0), 3)
    x, dy = (jax.random.normal(key, (2, 3, 8)) for key in keys[:2])
    if norm.scale is not None:
        norm.scale[...] = jax.random.normal(keys[2], (8,))
    graphdef, params = nnx.split(norm)

    def formula(params, x):
        scale = 1.0 if plain is None else params["scale"][...] + (0.0 if plain else 1.0)
        return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + norm.eps) * scale

    found, back = jax.vjp(lambda p, x: nnx.merge(graphdef, p)(x), params, x)
    expected, back_of_formula = jax.vjp(formula, params, x)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    pairs = zip(jax.tree.leaves(back(dy)), jax.tree.leaves(back_of_formula(dy)), strict=True)
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-5)
    half = jnp.ones((4, 8), jnp.bfloat16)
    kept = jax.tree.leaves(jax.vjp(lambda x: nnx.merge(graphdef, params)(x), half)[1])
    assert {x.dtype for x in kept if jnp.size(x) >= half.size} == {jnp.bfloat16.dtype}
