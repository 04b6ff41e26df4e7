"""Every experiment in configs/ can be read and its step traced; the papers' values are theirs."""

import ast
import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from bench.objectives import VARIANTS
from cxrjax.apps.planner.program import step_inputs
from cxrjax.codecs import get_codec
from cxrjax.errors import UserError
from cxrjax.input_pipeline.batch import empty_batch
from cxrjax.models import PRESETS, partition
from cxrjax.training import checkpoint, step
from cxrjax.training.config import flatten
from cxrjax.training.config_file import load_config
from cxrjax.training.optimizer import learning_rate_schedule, make_optimizer

_CONFIGS = Path(__file__).parents[1] / "configs"


def test_gemex_recipe_and_the_best_variant_are_what_was_measured():
    """Beside the paper's recipe on the same model: the objective alone, the benchmark's winner."""
    best, paper = (
        flatten(dataclasses.asdict(load_config(f"{_CONFIGS / 'vindr_lora.py'}:{name}")))
        for name in ("best", "paligemma")
    )
    changed = {key: value for key, value in best.items() if value != paper[key]}
    assert changed == {"training.lambda_box": 0.0}
    assert VARIANTS["lambda_0"] == ("training.lambda_box=0.0",)
    demo = load_config(f"{_CONFIGS / 'vindr_lora.py'}:demo").training
    assert demo.lambda_box == best["training.lambda_box"] == 0.0
    assert best["training.coordinate_width"] == 0.0 < demo.coordinate_width
    # arXiv 2411.16778, section 4.1, and its script
    config = load_config(str(_CONFIGS / "gemex_sft.py"))
    assert config.trainable == ("^projector", "^decoder/")
    assert (config.optimizer.warmup_from, config.optimizer.learning_rate) == (3e-7, 2e-5)
    assert (config.optimizer.schedule, config.optimizer.weight_decay) == ("cosine", 0.0)
    assert (config.training.batch_questions, config.training.epochs) == (64, 3.0)
    # The highest rate comes with the warm-up's last step, 3 % of all, and the lowest with the last.
    steps = round(3 * 1_588_975 / 64)
    rate = learning_rate_schedule(config.optimizer, steps)
    assert [float(rate(n)) for n in (0, 2234, steps - 1)] == pytest.approx(
        [3e-7, 2e-5, 0.0], rel=1e-4
    )
    assert float(rate(1117)) == pytest.approx((3e-7 + 2e-5) / 2, rel=1e-3)
    assert (config.model.dtype, config.model.remat, config.mesh.fsdp) == ("bfloat16", "full", 8)


def variants(file: Path) -> list[str]:
    """FILE and FILE:VARIANT of every variant that the file's source asks for."""
    tree = ast.parse(file.read_text())
    found = {
        constant.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and getattr(node.left, "id", "") == "variant"
        for comparator in node.comparators
        for constant in ast.walk(comparator)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
        if constant.value
    }
    return [file.name, *(f"{file.name}:{name}" for name in sorted(found))]


SPECS = [spec for file in sorted(_CONFIGS.glob("*.py")) for spec in variants(file)]


def test_variants_are_found_with_the_papers_values():
    assert {"vindr_lora.py:released", "demo_base.py:decoder", "mixture.py:tiny"} <= set(SPECS)
    # arXiv 2511.00504v2, section 3.1
    config = load_config(str(_CONFIGS / "vindr_lora.py"))
    assert (config.lora.rank, config.lora.alpha, config.lora.dropout) == (16, 32.0, 0.1)
    assert (config.optimizer.learning_rate, config.optimizer.weight_decay) == (2e-5, 0.01)
    assert config.training.batch_questions == 16
    assert config.training.accumulation_steps == 8  # 4 x 4 in the paper: the same sums
    assert (config.training.epochs, config.training.lambda_box) == (3.0, 0.5)
    assert config.training.box_mean == "questions"  # both terms are means, of L_vqa + 0.5 L_bbox
    released = load_config(f"{_CONFIGS / 'vindr_lora.py'}:released")
    assert released.training.best_metric == "vqa/f1"
    # Selected by a figure in which who always says yes has no more than who always says no.
    assert config.training.best_metric == "vqa/balanced_accuracy"
    assert config.data.train != released.data.train


@pytest.mark.parametrize("spec", SPECS)
def test_every_config_and_variant_is_whole_and_says_how_to_run_it(spec):
    config = load_config(str(_CONFIGS / spec))
    assert config.model.preset in PRESETS
    # A frozen tower runs once an image, but where images change or are few and small.
    assert config.model.preset.startswith("tiny") != bool(config.data.feature_cache)
    assert config.model.init_from or config.model.init == "random"
    file, _, variant = spec.partition(":")
    text = (_CONFIGS / file).read_text()
    assert f"--config=configs/{spec}" in text or (variant and f"`:{variant}`" in text)
    with pytest.raises(UserError, match="no_such_variant"):
        load_config(f"{_CONFIGS / file}:no_such_variant")


def abstract_step(config):
    """What a step takes and gives, in shapes: the largest batch of the configuration."""
    sizes = PRESETS[config.model.preset]
    graphdef, trainable, frozen = partition(checkpoint.abstract_model(config), config.trainable)
    frozen = jax.eval_shape(lambda f: step.cast_params(f, config.model.frozen_dtype), frozen)
    optimizer = make_optimizer(config.optimizer, 10)
    state = jax.eval_shape(lambda t: step.init_state(t, optimizer), trainable)
    sources = [config.of_source(name).data for name in config.mixture.sources]
    codec = get_codec(config.data.codec)
    route = config.box_route
    digits = codec.max_digits if route == "digits" else 0
    empty = empty_batch(
        1,
        np.zeros((sizes.vision.image_size, sizes.vision.image_size, 3), np.uint8),
        max(data.questions_per_image for data in sources or [config.data]),
        config.data.prefix_buckets[-1],
        config.data.answer_buckets[-1],
        config.data.max_boxes,
        config.data.packed_buckets[-1] if config.data.packed_buckets else None,
        digits,
        tuple(range(10)) if digits else (),
    )
    images = config.batch_images
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((images, *x.shape[1:]), x.dtype), empty)
    if config.rl.kind != "none":
        batch = step_inputs(config).batch  # answers that were drawn
    function = step.make_train_step(graphdef, config, 10)
    return state, *jax.eval_shape(function, state, frozen, batch)


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_a_step_of_every_variant_traces(spec):
    state, after, metrics = abstract_step(load_config(str(_CONFIGS / spec)))
    before, behind = jax.tree.map(lambda x: (x.shape, x.dtype), (state, after))
    assert before == behind
    assert jax.tree.leaves(state.trainable), "nothing is trained"
    assert (metrics.loss.shape, metrics.loss.dtype) == ((), np.float32)
