"""Every preset at full size without allocating, and its FLOPs against JAX and XLA."""

import dataclasses
import functools
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from cxrjax.input_pipeline.batch import Batch
from cxrjax.models import PRESETS, VLM, LoRAConfig, apply_lora, count_parameters, partition
from cxrjax.models.families.qwen_vl import QWEN2_5_VL, QWEN3_VL
from cxrjax.models.flops import BatchShape, step_flops, total
from cxrjax.models.hf_layout import tensor_rules
from cxrjax.models.partition import parameter_shapes
from cxrjax.models.presets import IMAGE, DecoderConfig, VisionConfig, VLMConfig, check_sizes
from cxrjax.training.config import default_config
from cxrjax.training.config_file import typed_config
from cxrjax.training.optimizer import make_optimizer
from cxrjax.training.step import init_state, make_train_step
from tests.models.sizes import changed

_FILE = Path(__file__).with_name("published_parameters.tsv")
PUBLISHED = dict(line.split("\t") for line in _FILE.read_text().splitlines() if line[0] != "#")


@functools.cache
def abstract(preset: str) -> VLM:
    return nnx.eval_shape(lambda: VLM(PRESETS[preset], rngs=nnx.Rngs(0), share="image"))


@pytest.mark.parametrize("preset", PUBLISHED)
def test_parameter_count_is_the_published_one(preset: str) -> None:
    assert count_parameters(nnx.state(abstract(preset))) == int(PUBLISHED[preset])


def test_published_presets_are_compared_and_the_papers_adapter_trains_8_912_896():
    assert PUBLISHED.keys() == {preset for preset in PRESETS if not preset.startswith("tiny")}

    def build() -> VLM:
        model = VLM(PRESETS["medgemma_4b"], rngs=nnx.Rngs(0))
        apply_lora(model, LoRAConfig(rank=16, alpha=32.0), nnx.Rngs(1))
        return model

    model = nnx.eval_shape(build)
    _, trainable, _ = partition(model, ("/lora/",))
    assert count_parameters(trainable) == 8_912_896


@pytest.mark.parametrize("preset", PRESETS)
def test_every_parameter_has_a_name_in_a_published_checkpoint(preset: str) -> None:
    rules = tensor_rules(PRESETS[preset])
    assert sorted(rule.path for rule in rules) == sorted(parameter_shapes(abstract(preset)))
    names = [name for rule in rules for name in rule.names(PRESETS[preset])]
    assert len({*names}) == len(names)


# One of each family; the others are slow.
_SOME = {
    *("paligemma_3b_224", "paligemma2_3b_224", "medgemma_4b", "gemma4_31b", "gemma4_12b"),
    *("gemma4_e2b", "llava15_7b", "qwen25_vl_3b", "qwen3_vl_2b", "internvl3_1b"),
}


@pytest.mark.parametrize(
    "preset",
    [
        pytest.param(name, marks=() if name in _SOME else pytest.mark.slow)
        for name in PRESETS
        if PRESETS[name].vision is not None
    ],
)
def test_a_training_step_traces_at_full_size(preset: str) -> None:
    config = default_config()
    config.model.preset = preset
    config.lora.rank = 16
    config.lora.alpha = 32.0
    rows, questions, prefix, answer, boxes = 2, 2, 8, 16, 2
    side = PRESETS[preset].vision.image_size

    def build() -> VLM:
        model = VLM(PRESETS[preset], rngs=nnx.Rngs(0), share="image", dtype="bfloat16")
        apply_lora(model, LoRAConfig(rank=16, alpha=32.0), nnx.Rngs(1))
        return model

    graphdef, trainable, frozen = partition(nnx.eval_shape(build), ("/lora/",))
    state = jax.eval_shape(
        lambda p: init_state(p, make_optimizer(typed_config(config).optimizer, 10)), trainable
    )

    def batch() -> Batch:
        return Batch(
            images=jnp.zeros((rows, side, side, 3), jnp.uint8),
            prefix_tokens=jnp.zeros((rows, questions, prefix), jnp.int32),
            prefix_mask=jnp.ones((rows, questions, prefix), bool),
            answer_tokens=jnp.zeros((rows, questions, answer), jnp.int32),
            answer_mask=jnp.ones((rows, questions, answer), bool),
            question_index=jnp.zeros((rows, questions), jnp.int32),
            coordinate_positions=jnp.zeros((rows, questions, boxes, 4), jnp.int32),
            target_boxes=jnp.zeros((rows, questions, boxes, 4)),
            box_mask=jnp.ones((rows, questions, boxes), bool),
        )

    step = make_train_step(graphdef, typed_config(config), 10)
    new_state, metrics = jax.eval_shape(step, state, frozen, jax.eval_shape(batch))
    assert metrics.loss.shape == ()
    assert jax.tree.map(jnp.shape, new_state) == jax.tree.map(jnp.shape, state)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_sizes_that_a_file_may_have(name):
    check_sizes(PRESETS[name])


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("decoder", {"depth": 10**9}),
        ("decoder", {"depth": True}),
        ("decoder", {"width": "8"}),
        ("decoder", {"width": -8}),
        ("decoder", {"width": 10**300}),
        ("decoder", {"rope_base": float("nan")}),
        ("decoder", {"rope_base": None}),
        ("decoder", {"post_norms": 1}),
        ("decoder", {"prefix_attention": "all"}),
        ("vision", {"image_size": 224.0}),
        ("vision", {"patch_size": None}),
        ("decoder", {"rope_sections": (True, 0, 127)}),
        ("vision", {"window": 0.5}),
        ("", {"projector": "none"}),
        ("", {"context": (1.5,)}),
        ("", {"context": (1,) * 10_001}),
    ],
)
def test_sizes_that_no_model_has_are_refused_by_name(part, changes):
    sizes = PRESETS["paligemma_3b_224"]
    if part:
        changes = {part: dataclasses.replace(getattr(sizes, part), **changes)}
    with pytest.raises(ValueError, match=r"^\w+ is "):
        check_sizes(dataclasses.replace(sizes, **changes))


VISION = VisionConfig(image_size=32, patch_size=8, width=64, depth=2, num_heads=4, mlp_dim=192)
DECODER = DecoderConfig(
    vocab_size=1100, width=128, depth=3, num_heads=4, num_kv_heads=2, head_dim=32, mlp_dim=384
)
FULL = VLMConfig(VISION, DECODER, 4)
CAUSAL = changed(
    FULL, decoder={"prefix_attention": "causal"}, context=(2, IMAGE, 3), projector="normed"
)
SHAPE = BatchShape(images=2, questions=3, prefix=5, answer=7)


def _products(jaxpr) -> float:
    """Operations of every dot_general of a jaxpr, loops multiplied by their length."""
    count = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            inner = math.prod(shape[d] for d in contracted)
            count += 2.0 * math.prod(equation.outvars[0].aval.shape) * inner
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            if hasattr(value, "jaxpr") or hasattr(value, "eqns"):
                count += times * _products(getattr(value, "jaxpr", value))
    return count


def _loss(sizes, share, remat, rules, shape, rank=4):
    """Gradients of a loss of all answer logits in what trains, and what it takes."""

    def make():
        model = VLM(sizes, rngs=nnx.Rngs(0), share=share, remat=remat, dtype="bfloat16")
        if rank:
            targets = ("decoder/layers/attn/.*", "projector")
            apply_lora(model, LoRAConfig(rank=rank, targets=targets), nnx.Rngs(1))
        return model

    model = nnx.eval_shape(make)
    graphdef, trainable, frozen = partition(model, rules)
    slots = (shape.images, shape.questions)
    arrays = (
        jax.ShapeDtypeStruct((shape.images, 32, 32, 3), jnp.uint8),
        jax.ShapeDtypeStruct((*slots, shape.prefix), jnp.int32),
        jax.ShapeDtypeStruct((*slots, shape.prefix), bool),
        jax.ShapeDtypeStruct((*slots, shape.answer), jnp.int32),
        jax.ShapeDtypeStruct((*slots, shape.answer), bool),
    )

    def loss(trainable, frozen, *batch):
        model = nnx.merge(graphdef, trainable, frozen)
        hidden = model(*batch, packed_length=shape.packed_length)
        return jnp.sum(jax.nn.logsumexp(model.logits(hidden), axis=-1))

    def gradients(trainable, frozen, *batch):
        return jax.grad(loss)(trainable, frozen, *batch)

    return model, loss, gradients, (trainable, frozen, *arrays)


CASES = {
    "full fine-tuning": (FULL, "tower", (".*",), SHAPE),
    "lora in the decoder": (FULL, "tower", ("/lora/",), SHAPE),
    "shared image": (CAUSAL, "image", ("decoder/.*/lora/",), SHAPE),
    "packed": (FULL, "image", ("/lora/",), BatchShape(2, 3, 5, 7, packed_length=20)),
    "projector and decoder": (CAUSAL, "tower", ("^projector", "^decoder/"), SHAPE),
}


@pytest.mark.parametrize("name", CASES)
def test_formula_is_what_jax_traces(name):
    """But for what nobody needs: the gradient of the pixels, and of the first layer's input."""
    sizes, share, rules, shape = CASES[name]
    model, loss, gradients, arguments = _loss(sizes, share, "none", rules, shape)
    found = total(step_flops(model, rules, shape, remat=False))
    assert _products(jax.make_jaxpr(loss)(*arguments).jaxpr) == pytest.approx(found.forward)
    traced = _products(jax.make_jaxpr(gradients)(*arguments).jaxpr)
    assert traced == pytest.approx(found.model, rel=0.01)


@pytest.mark.parametrize("rules", [pytest.param((".*",), marks=pytest.mark.slow), ("/lora/",)])
def test_formula_against_xla(rules):
    """XLA counts what is not a product too, and no loop: one layer each, unscanned."""
    vision, decoder = ({"depth": 1, "width": n, "mlp_dim": 4 * n} for n in (256, 512))
    sizes = changed(FULL, vision, decoder)
    shape = BatchShape(4, 2, 32, 32)
    model, _, gradients, arguments = _loss(sizes, "tower", "none", rules, shape, rank=8)
    compiled = jax.jit(gradients).lower(*arguments).compile()
    counted = compiled.cost_analysis()["flops"]
    found = total(step_flops(model, rules, shape, remat=False)).model
    assert counted == pytest.approx(found, rel=0.05)


def _of_tower(part, rules, shape, **settings):
    sizes = changed(FULL, settings, projector="merger")
    model = nnx.eval_shape(lambda: VLM(sizes, rngs=nnx.Rngs(0)))
    return step_flops(model, rules, shape, remat=False)[part]


def test_remat_computes_layers_again_and_windows_see_themselves():
    """Four windows of 4 x 4 patches in two layers, the whole of 8 x 8 in the third."""
    settings = {"image_size": 64, "depth": 3, "pool": 2, "full_every": 3, **QWEN2_5_VL.tower}
    shape = dataclasses.replace(SHAPE, questions=1)
    whole, apart = (
        _of_tower("vision", ("decoder/",), shape, **settings, window=window).forward
        for window in (None, 4)
    )
    per_pair = 4.0 * shape.images * VISION.width
    assert whole - apart == per_pair * 2 * (64 * 64 - 64 * 16)
    rules = ("/lora/",)
    model, _, gradients, arguments = _loss(FULL, "tower", "full", rules, SHAPE)
    parts = step_flops(model, rules, SHAPE, remat=True)
    assert parts["vision"].recompute == parts["vision"].backward == 0  # frozen: no backward
    again = total(parts).recompute
    traced = _products(jax.make_jaxpr(gradients)(*arguments).jaxpr)
    assert traced - total(parts).model == pytest.approx(again, rel=0.05)


def test_inner_layers_of_a_tower_are_merged_too():
    """Two maps each, of four patches side by side, counted with the projector."""
    settings = {"depth": 3, "pool": 2, "position_side": 3, **QWEN3_VL.tower}
    added, without = (
        _of_tower("projector", ("deepstack/",), SHAPE, **settings, deepstack=inner)
        for inner in ((0, 2), ())
    )
    merged, tokens = 4 * VISION.width, 2 * 2
    expected = 2.0 * SHAPE.images * tokens * 2 * merged * (merged + DECODER.width)
    assert added.forward - without.forward == expected
    # Of the weights, and of what goes in: a norm before them trains too.
    assert added.backward - without.backward == 2 * expected
