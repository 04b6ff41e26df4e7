"""Several questions of one image: what sharing the context, or layers apart, leaves as it is."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cxrjax.models import VLM, LoRAConfig, apply_lora, partition
from cxrjax.models.families.llava import LLAVA
from cxrjax.models.families.qwen_vl import QWEN2_5_VL, QWEN3_VL
from cxrjax.models.layers import ClippedLinear, take_apart
from cxrjax.models.presets import IMAGE, VisionConfig, VLMConfig
from cxrjax.models.siglip import VisionTower
from cxrjax.models.vlm import context_of_two
from tests.models import sizes

# Everything that Gemma 3 has, and a window that neither context nor question fits into.
GEMMA3 = sizes.named("gemma3")
# Rows and columns of the image in the decoder's positions, windows over the edge in the tower.
QWEN = sizes.named("qwen")
# What the decoder's first two layers add to the image besides.
QWEN3 = sizes.named("qwen3")
# Layers of two kinds, in two periods, of which only the local ones see images whole.
GEMMA4 = sizes.named("gemma4")
# Of its small sizes: layers that read others' keys, and have an input of their own.
GEMMA4_SMALL = sizes.named("gemma4_small")
slow = functools.partial(pytest.param, marks=pytest.mark.slow)
each_causal = pytest.mark.parametrize(
    "config",
    [
        pytest.param(GEMMA3, id="gemma3"),
        pytest.param(QWEN, id="qwen", marks=pytest.mark.heavy),  # Qwen3 has its positions
        pytest.param(QWEN3, id="qwen3"),
        slow(GEMMA4, id="gemma4"),  # and its small sizes all else
        pytest.param(GEMMA4_SMALL, id="gemma4_small"),
    ],
)
ROWS, QUESTIONS, PREFIX, ANSWER = 2, 3, 5, 6

# What rounding may do to a parameter's gradient, of its norm. Computed in float64 throughout, both
# ways differ by up to 500 roundings (1e-13, Gemma 4); in float32 1,350 were seen.
ROUNDING = 4096 * np.finfo(np.float32).eps


@pytest.fixture
def model(drawn):
    """`model(share, config)`, with LoRA."""

    def make(share: str, config: VLMConfig = GEMMA3) -> VLM:
        def build() -> VLM:
            made = VLM(config, rngs=nnx.Rngs(0), share=share, unroll=True)
            apply_lora(made, LoRAConfig(rank=2, alpha=4.0, targets=(".*_proj",)), nnx.Rngs(1))
            return made

        made = drawn(build)
        for _, module in nnx.iter_modules(made):
            # Not around 0, or all but rounding is lost from layer to layer.
            if getattr(module, "layer_scale", None) is not None:
                count = module.layer_scale.shape[0]
                module.layer_scale[...] = jnp.linspace(0.7, 1.2, count)[:, None]
            if isinstance(module, ClippedLinear):
                for name in ("input", "output"):
                    getattr(module, f"{name}_min")[...] -= 1.5
                    getattr(module, f"{name}_max")[...] += 1.5
        return made

    return make


def batch(rng: np.random.Generator) -> dict:
    prefix_length = rng.integers(1, PREFIX + 1, (ROWS, QUESTIONS, 1))
    answer_length = rng.integers(1, ANSWER + 1, (ROWS, QUESTIONS, 1))
    arrays = {
        "images": rng.uniform(-1, 1, (ROWS, 24, 24, 3)).astype(np.float32),
        "prefix_tokens": rng.integers(1030, 1100, (ROWS, QUESTIONS, PREFIX)).astype(np.int32),
        "prefix_mask": np.arange(PREFIX) >= PREFIX - prefix_length,
        "answer_tokens": rng.integers(1030, 1100, (ROWS, QUESTIONS, ANSWER)).astype(np.int32),
        "answer_mask": np.arange(ANSWER) < answer_length,
    }
    return {name: jnp.asarray(value) for name, value in arrays.items()}


def states(made: VLM, inputs: dict, **options) -> jax.Array:
    """The answers' hidden states, by one program: run by itself every operation is compiled."""
    return nnx.jit(lambda called, values: called(**values, **options))(made, inputs)


def summed_loss_and_gradients(made: VLM, inputs: dict):
    graphdef, trainable, frozen = partition(made, ("/lora/",))

    def loss(trainable):
        whole = nnx.merge(graphdef, trainable, frozen)
        logits = whole.logits(whole(**inputs))
        target, mask = inputs["answer_tokens"], inputs["answer_mask"]
        chosen = jnp.take_along_axis(logits, target[..., None], axis=-1)[..., 0]
        return jnp.sum(jnp.where(mask, jax.nn.logsumexp(logits, axis=-1) - chosen, 0))

    return jax.jit(jax.value_and_grad(loss))(trainable)


@each_causal
def test_loss_and_gradients_are_the_sum_over_separate_examples(model, config):
    inputs = batch(np.random.default_rng(0))
    loss, gradients = summed_loss_and_gradients(model("image", config), inputs)
    alone = model("tower", config)
    separate = {
        name: value if name == "images" else value.reshape(-1, 1, value.shape[-1])
        for name, value in inputs.items()
    }
    separate["images"] = np.repeat(inputs["images"], QUESTIONS, axis=0)
    expected, expected_gradients = summed_loss_and_gradients(alone, separate)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for found, wanted in zip(
        jax.tree.leaves(gradients), jax.tree.leaves(expected_gradients), strict=True
    ):
        assert np.linalg.norm(found - wanted) < ROUNDING * np.linalg.norm(wanted)


@each_causal
def test_packed_questions_keep_their_windows(model, config):
    inputs = batch(np.random.default_rng(1))
    made = model("image", config)
    mask = inputs["answer_mask"]
    packed = states(made, inputs, packed_length=QUESTIONS * (PREFIX + ANSWER) - 1)
    np.testing.assert_allclose(packed[mask], states(made, inputs)[mask], atol=2e-5)


@each_causal
def test_decoding_sees_what_training_saw(model, config):
    inputs = batch(np.random.default_rng(2))
    for share in ("image", "tower"):
        made = model(share, config)
        expected = states(made, inputs)
        prompt = [inputs[name] for name in ("images", "prefix_tokens", "prefix_mask")]
        hidden, state = nnx.jit(lambda called, *values: called.prefill(*values, ANSWER))(
            made, *prompt
        )
        decode = nnx.jit(
            lambda called, *values: called.decode_step(called.decoder.blocks(), *values)
        )
        for step in range(ANSWER):
            mask = inputs["answer_mask"][..., step]
            np.testing.assert_allclose(hidden[mask], expected[:, :, step][mask], atol=3e-5)
            tokens = inputs["answer_tokens"][..., step]
            hidden, state = decode(made, tokens, state, jnp.asarray(step))


@pytest.mark.parametrize(
    ("config", "two"), [slow(QWEN, False, id="one"), (QWEN, True), slow(GEMMA4, False, id="gemma4")]
)
def test_questions_behind_a_context_that_was_read_before(model, config, two):
    """As the server reads them; the places of Qwen's text follow from the context's images."""
    inputs = batch(np.random.default_rng(7))
    made = model("image", config)
    pair = jnp.stack([inputs["images"], inputs["images"][::-1]], axis=1)
    tokens, there = context_of_two(config, jnp.asarray([True, False])) if two else (None, None)
    images = pair if two else inputs["images"]
    prompt = inputs["prefix_tokens"], inputs["prefix_mask"]

    @nnx.jit
    def both(made, images, prompt, tokens, there):
        hidden, state = made.prefill(images, *prompt, ANSWER, tokens, there)
        contexts = [(layer.context_k, layer.context_v) for layer in state.layers]
        blocks = made.decoder.blocks()
        again = made.read_questions(blocks, contexts, *prompt, ANSWER, there, tokens)
        return (hidden, state.next_position), (again[0], again[1].next_position)

    whole, apart = both(made, images, prompt, tokens, there)
    np.testing.assert_allclose(apart[0], whole[0], atol=3e-5)
    np.testing.assert_array_equal(apart[1], whole[1])


@each_causal
@pytest.mark.parametrize("padding", [slow(0), 3])
def test_a_context_given_token_by_token_is_the_presets(model, padding, config):
    inputs = batch(np.random.default_rng(3))
    made = model("image", config)
    image = [IMAGE] * config.vision.num_tokens
    row = [0] * padding + [2, 7, 1050, *image, 1051]
    tokens = jnp.asarray([row] * ROWS, jnp.int32)
    there = jnp.arange(len(row))[None] >= padding
    context = {"context_tokens": tokens, "context_mask": jnp.repeat(there, ROWS, axis=0)}
    found = states(made, inputs | context)
    mask = inputs["answer_mask"]
    np.testing.assert_allclose(found[mask], states(made, inputs)[mask], atol=2e-5)


def test_two_images_stand_where_their_tokens_are(model):
    inputs = batch(np.random.default_rng(4))
    made = model("image")
    image = [IMAGE] * GEMMA3.vision.num_tokens
    tokens = jnp.asarray([[2, *image, 1050, *image, 1051]] * ROWS, jnp.int32)
    pair = jnp.stack([inputs["images"], inputs["images"][::-1]], axis=1)
    inputs["context_tokens"] = tokens
    first = states(made, inputs | {"images": pair})
    swapped = states(made, inputs | {"images": pair[:, ::-1]})
    mask = inputs["answer_mask"]
    assert np.abs(np.asarray(first - swapped))[mask].max() > 1e-3
    # The second row's pair is the first row's, the other way round.
    same = states(made, inputs | {"images": pair[::-1, ::-1]})
    np.testing.assert_allclose(first[mask], same[mask], atol=1e-5)


SMALL_PALIGEMMA = sizes.named("paligemma")


@pytest.mark.parametrize(
    ("family", "share"),
    [
        ("gemma3", "image"),
        slow("gemma3", "tower"),
        slow("paligemma", "image"),
        ("paligemma", "tower"),
        slow("qwen", "image"),
        slow("qwen", "tower"),
        ("qwen3", "image"),
        slow("qwen3", "tower"),
    ],
)
def test_a_row_without_a_second_image_is_as_of_one_image(model, share, family):
    gemma3 = dataclasses.replace(GEMMA3, second_image=(1051, 9, 1050, IMAGE))
    config = {"gemma3": gemma3, "paligemma": SMALL_PALIGEMMA, "qwen": QWEN, "qwen3": QWEN3}[family]
    inputs = batch(np.random.default_rng(6))
    made = model(share, config)
    one = states(made, inputs)
    tokens, there = context_of_two(config, jnp.asarray([False, True]))
    pair = jnp.stack([inputs["images"], inputs["images"][::-1]], axis=1)
    context = {"images": pair, "context_tokens": tokens, "context_mask": there}
    two = states(made, inputs | context)
    mask = inputs["answer_mask"]
    np.testing.assert_allclose(two[0][mask[0]], one[0][mask[0]], atol=3e-5)
    assert np.abs(np.asarray(two - one))[1][mask[1]].max() > 1e-3
    if share == "image":
        packed = states(made, inputs | context, packed_length=QUESTIONS * (PREFIX + ANSWER) - 1)
        np.testing.assert_allclose(packed[mask], two[mask], atol=3e-5)


def test_paligemma_shared_by_the_tower_is_paligemma_and_shared_by_the_image_is_not(model):
    inputs = batch(np.random.default_rng(5))
    tower, image = (states(model(share, SMALL_PALIGEMMA), inputs) for share in ("tower", "image"))
    mask = inputs["answer_mask"]
    first = {name: value[:, :1] if name != "images" else value for name, value in inputs.items()}
    alone = states(model("tower", SMALL_PALIGEMMA), first)
    np.testing.assert_allclose(tower[:, :1][mask[:, :1]], alone[mask[:, :1]], atol=1e-5)
    assert np.abs(np.asarray(tower - image))[mask].max() > 1e-3


KINDS = {
    "siglip": {},
    "class token": {**LLAVA.tower, "skip_last": 1},
    "windows": {**QWEN2_5_VL.tower, "pool": 2, "window": 2, "full_every": 2},
    "deepstack": {**QWEN3_VL.tower, "pool": 2, "position_side": 3, "deepstack": (0, 2)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_layers_one_by_one_see_what_stacked_ones_do(kind):
    config = VisionConfig(16, 4, 16, depth=3, num_heads=2, mlp_dim=16, **KINDS[kind])
    tower = VisionTower(config, nnx.Rngs(0), remat="none", unroll=False, attention="dense")
    images = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, (1, 16, 16, 3)), jnp.float32)

    def see(apart: bool) -> np.ndarray:
        own = nnx.merge(*nnx.split(tower))
        if apart:
            own.layers = nnx.List(take_apart(own.layers))
        graphdef, state = nnx.split(own)
        return np.asarray(jax.jit(lambda state: nnx.merge(graphdef, state)(images))(state))

    np.testing.assert_allclose(see(True), see(False), atol=1e-5)
