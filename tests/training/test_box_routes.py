"""The routes of the box loss where there are no <loc> tokens: digits."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads
from PIL import Image
from scipy.special import softmax

from bench.tokenizer_training import template_corpus, train_tokenizer
from cxrjax import boxes
from cxrjax.distributed import meshes
from cxrjax.input_pipeline.batch import DigitTokens
from cxrjax.input_pipeline.loader import single_source, train_loader
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.input_pipeline.tokenizer import Tokenizer
from cxrjax.models import VLM, partition
from cxrjax.records import write_records
from cxrjax.training.box_loss import DISTANCE_WEIGHT, ordered_giou_loss
from cxrjax.training.config_file import typed_config, validate
from cxrjax.training.coordinate_report import make_coordinate_report
from cxrjax.training.data import example_config
from cxrjax.training.loss import multitask_loss
from cxrjax.training.metric_log import step_figures
from cxrjax.training.optimizer import make_optimizer
from cxrjax.training.step import init_state, make_train_step
from tests.training.conftest import SMALL, HiddenModel, random_batch
from tests.training.small_data import make_record

DIGIT_IDS = tuple(range(1028, 1038))


@pytest.fixture
def digit_batch():
    """Boxes in up to three digits a coordinate, their tokens in the answers."""
    rng = np.random.default_rng(5)
    batch = random_batch(seed=5, images=2, questions=2, answer=40, boxes=2)
    shape = (*batch.box_mask.shape, 4)
    box_mask = np.array([[[True, True], [True, False]], [[False, False], [True, False]]])
    low, extent = rng.integers(0, 400, (*shape[:-1], 2)), rng.integers(20, 400, (*shape[:-1], 2))
    numbers = np.concatenate([low, low + extent], axis=-1)
    count = np.char.str_len(numbers.astype(str))
    start = 3 * np.arange(8).reshape(2, 4) + 1
    positions, weights = np.zeros((*shape, 3), np.int32), np.zeros((*shape, 3), np.float32)
    tokens, mask = batch.answer_tokens.copy(), np.ones_like(batch.answer_mask)
    for b, q, k in np.argwhere(box_mask):
        for c, d in np.ndindex(4, 3):
            if d < count[b, q, k, c]:
                positions[b, q, k, c, d] = start[k, c] + d
                weights[b, q, k, c, d] = 10 ** (count[b, q, k, c] - 1 - d)
                digit = int(str(numbers[b, q, k, c])[d])
                tokens[b, q, start[k, c] + d] = DIGIT_IDS[digit]
    scale = np.tile(rng.uniform(0.5, 1, (2, 2, 2)) / 1000, 2).astype(np.float32)
    offset = np.tile(rng.uniform(0, 0.1, (2, 2, 2)), 2).astype(np.float32)
    target = numbers * scale[:, :, None] + offset[:, :, None]
    return batch.replace(
        answer_tokens=tokens,
        answer_mask=mask,
        coordinate_positions=positions[..., 0],
        target_boxes=np.where(box_mask[..., None], target, 0).astype(np.float32),
        box_mask=box_mask,
        digits=DigitTokens(positions, weights, scale, offset, DIGIT_IDS),
    )


@functools.partial(jax.jit, static_argnames=("graphdef", "route"))
def _compiled(graphdef, state, batch, lambda_box, route):
    weights = {"lambda_box": lambda_box}
    return multitask_loss(nnx.merge(graphdef, state), batch, weights, box_route=route)


def box_loss(model, batch, route, lambda_box=1.0):
    """The loss and its parts."""
    return _compiled(*nnx.split(model), batch, lambda_box, route)


def on_device(batch):
    return jax.tree.map(jnp.asarray, batch)


def test_digit_route_equals_numpy(digit_batch):
    digits = digit_batch.digits
    with jax.enable_x64(True):
        model = HiddenModel(digit_batch, seed=2, dtype=np.float64)
        _, parts = box_loss(model, on_device(digit_batch), "digits")
    hidden, table = np.asarray(model.hidden[...]), np.asarray(model.table[...])
    loss = iou = 0.0
    values = np.arange(10)
    for b, q, k in np.argwhere(digit_batch.box_mask):
        box, away, spread = digits.offset[b, q].astype(float), 0.0, np.zeros(4)
        for c, d in np.ndindex(4, 3):
            at = digits.positions[b, q, k, c, d]
            place = digits.place_weights[b, q, k, c, d] * digits.scale[b, q, c]
            p = softmax(table[list(DIGIT_IDS)] @ hidden[b, q, at])
            mean, written = p @ values, digit_batch.answer_tokens[b, q, at] - DIGIT_IDS[0]
            box[c] += place * mean
            away += place * (p @ np.abs(values - written))
            spread[c] = np.hypot(spread[c], place * np.sqrt(p @ (values - mean) ** 2))
        weight = 1 / digit_batch.box_mask[b, q].sum()
        target = digit_batch.target_boxes[b, q, k]
        loss += weight * (float(ordered_giou_loss(box, target, spread)) + DISTANCE_WEIGHT * away)
        iou += weight * boxes.iou(box, target, swapped="empty")
    np.testing.assert_allclose(parts["box_loss"], (loss, 3), rtol=1e-5)
    np.testing.assert_allclose(parts["box_iou"], (iou, 3), rtol=1e-6)


def test_digit_gradient_equals_finite_differences_and_flows_through_digits_alone(digit_batch):
    with jax.enable_x64(True):
        model = HiddenModel(digit_batch, seed=4, dtype=np.float64)
        graphdef, state = nnx.split(model)
        batch = on_device(digit_batch)

        @jax.jit
        def loss(state):
            return _compiled(graphdef, state, batch, 1.0, "digits")[1]["box_loss"][0]

        gradient = jax.jit(jax.grad(loss))(state)
        check_grads(loss, (state,), order=1, modes=["rev"], rtol=1e-6)
    by_hidden, by_table = np.asarray(gradient["hidden"][...]), np.asarray(gradient["table"][...])
    moved = np.flatnonzero(by_table.any(-1))
    np.testing.assert_array_equal(moved, DIGIT_IDS)
    digits = digit_batch.digits
    reached = np.zeros(digit_batch.answer_mask.shape, bool)
    for place in np.argwhere(digits.place_weights > 0):
        reached[place[0], place[1], digits.positions[tuple(place)]] = True
    np.testing.assert_array_equal(by_hidden.any(-1), reached)


def test_a_route_without_what_it_needs_is_refused(digit_batch):
    batch = on_device(random_batch(images=1))
    with pytest.raises(ValueError, match="needs a batch with `digits`"):
        box_loss(HiddenModel(batch), batch, "digits")
    _, parts = box_loss(HiddenModel(batch), batch, "none")
    assert parts["box_loss"][0] == 0 and "box_iou" not in parts


def _small_model(tokenizer: Tokenizer) -> VLM:
    sizes = dataclasses.replace(
        SMALL,
        vision=dataclasses.replace(SMALL.vision, width=32, depth=1),
        decoder=dataclasses.replace(
            SMALL.decoder, vocab_size=tokenizer.vocab_size, width=32, depth=1, mlp_dim=64
        ),
        loc_token_start=int(tokenizer.loc_ids[0]),
    )
    return VLM(sizes, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(train_tokenizer(template_corpus()))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Two images of other shapes, each with a question about a box of its own."""
    folder = tmp_path_factory.mktemp("records")
    records = []
    for number, (height, width, box) in enumerate(
        [(300, 200, (20, 30, 120, 250)), (1000, 1500, (900, 400, 1400, 800))]
    ):
        pixels = np.full((height, width), 60 + 100 * number, np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        written = "<loc_" + "_".join(map(str, box)) + ">"
        asked = {"question": "Where is the ILD?", "image_path": f"{number}.png"}
        records.append(
            make_record(f"q{number}", f"image{number}", f"At {written}.", (height, width), **asked)
        )
    write_records(folder / "train.jsonl", records)
    return RecordSource(folder / "train.jsonl", folder, questions_per_image=1)


def _written(config, codec):
    config.data.codec = codec
    config.data.prefix_buckets, config.data.answer_buckets = (24,), (64,)
    config.data.max_boxes = 2
    return config


@pytest.mark.parametrize("codec", ["vindr_px", "medgemma_json"])
def test_records_to_a_falling_box_loss(run_config, source, tokenizer, codec):
    config = _written(run_config, codec)
    config.data.geometry = "letterbox"
    config.training.batch_images, config.training.lambda_box = 2, 1.0
    config.optimizer.learning_rate = 1e-2
    config.optimizer.schedule = "constant"
    validate(typed_config(config))
    examples = dataclasses.replace(example_config(typed_config(config)), image_size=16)
    mixture = single_source(source, examples)
    batch = next(train_loader(mixture, tokenizer, global_batch_size=2, seed=0)).batch
    assert batch.box_mask.sum() == 2
    model = _small_model(tokenizer)
    graphdef, trainable, frozen = partition(model, config.trainable)
    step = jax.jit(make_train_step(graphdef, typed_config(config), steps=40))
    state = init_state(trainable, make_optimizer(typed_config(config).optimizer, 40))
    seen = []
    for _ in range(40):
        state, metrics = step(state, frozen, batch)
        seen.append(step_figures(metrics))
    assert seen[-1]["giou_loss"] < 0.6 * seen[0]["giou_loss"]
    assert seen[-1]["box_iou"] > seen[0]["box_iou"] + 0.1
    assert seen[-1]["coordinates/expected_distance"] < seen[0]["coordinates/expected_distance"]
    assert seen[-1]["ce"] < seen[0]["ce"]


def test_the_report_is_of_the_text(run_config, source, tokenizer):
    config = _written(run_config, "medgemma_json")
    examples = dataclasses.replace(example_config(typed_config(config)), image_size=16)
    model = _small_model(tokenizer)
    mesh = meshes.make_mesh(typed_config(config).mesh, jax.devices()[:1])
    seen = []

    def report(examples, each_batch=lambda: seen.append(1)):
        options = {"images_per_batch": 2, "mesh": mesh, "each_batch": each_batch}
        return make_coordinate_report(source, tokenizer, examples, **options)(model)["all"]

    told = report(examples)
    assert told["n"] == 2 and told["questions_left_out"] == 0 and seen == [1]
    assert told["spread"][0] > 0
    told = report(dataclasses.replace(examples, answer_buckets=(4,)))
    assert told["n"] == 0 and told["questions_left_out"] == 2

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        report(examples, stop)
    none = dataclasses.replace(examples, box_route="none")
    assert make_coordinate_report(source, tokenizer, none, images_per_batch=2, mesh=mesh) is None
