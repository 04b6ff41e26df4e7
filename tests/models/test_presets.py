"""Every preset at full size: parameters, shapes and a whole training step, without allocating."""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from cxrjax.input_pipeline.batch import Batch
from cxrjax.models import PRESETS, VLM, LoRAConfig, apply_lora, count_parameters, partition
from cxrjax.models.hf_layout import tensor_rules
from cxrjax.models.partition import parameter_shapes
from cxrjax.models.presets import check_sizes
from cxrjax.training.config import default_config
from cxrjax.training.config_file import typed_config
from cxrjax.training.step import init_state, make_optimizer, make_train_step

_FILE = Path(__file__).with_name("published_parameters.tsv")
PUBLISHED = dict(line.split("\t") for line in _FILE.read_text().splitlines() if line[0] != "#")


@functools.cache
def abstract(preset: str) -> VLM:
    return nnx.eval_shape(lambda: VLM(PRESETS[preset], rngs=nnx.Rngs(0), share="image"))


@pytest.mark.parametrize("preset", PUBLISHED)
def test_parameter_count_is_the_published_one(preset: str) -> None:
    assert count_parameters(nnx.state(abstract(preset))) == int(PUBLISHED[preset])


def test_every_preset_but_the_tiny_ones_is_compared() -> None:
    assert PUBLISHED.keys() == {preset for preset in PRESETS if not preset.startswith("tiny")}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_parameter_has_a_name_in_a_published_checkpoint(preset: str) -> None:
    rules = tensor_rules(PRESETS[preset])
    assert sorted(rule.path for rule in rules) == sorted(parameter_shapes(abstract(preset)))
    names = [name for rule in rules for name in rule.names(PRESETS[preset])]
    assert len({*names}) == len(names)


def test_lora_of_the_paper_on_medgemma_4b_trains_8_912_896_parameters() -> None:
    # The paper names no targets: rank 16 on the decoder's q, k, v and o is its "8.9 M".

    def build() -> VLM:
        model = VLM(PRESETS["medgemma_4b"], rngs=nnx.Rngs(0))
        apply_lora(model, LoRAConfig(rank=16, alpha=32.0), nnx.Rngs(1))
        return model

    model = nnx.eval_shape(build)
    _, trainable, _ = partition(model, ("/lora/",))
    assert count_parameters(trainable) == 8_912_896


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
