"""Augmented images: boxes stay on what they mark, whatever else of the run changes."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from cxrjax.errors import UserError
from cxrjax.images.geometry import Geometry, letterbox
from cxrjax.input_pipeline.augment import AugmentConfig, ImageChange, OutOfPictureError, draw_change
from cxrjax.input_pipeline.caches import ImageCache
from cxrjax.input_pipeline.examples import ExampleConfig, QuestionEncoder, load_image
from cxrjax.input_pipeline.loader import single_source, train_loader
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.training.config import default_config
from cxrjax.training.config_file import typed_config, validate
from tests.papers.cases import cases

from .conftest import assert_order_holds, make_record, take, written

STRONG = AugmentConfig(zoom=0.3, shift=0.15, gamma=0.4)
WHOLE = dataclasses.replace(STRONG, stretch=0.2, noise=0.05)


def _record(boxes):
    text = f"ILD at {' '.join(written(boxes))}."
    return make_record(
        text, boxes, image_hw=(120, 90), question="Where is the ILD?", variables={"finding": "ILD"}
    )


def _extent(pixels):
    """The box of what is bright, fractions of the picture."""
    bright = pixels[..., 0] > 128
    (y, x), (height, width) = (np.flatnonzero(bright.any(axis)) for axis in (1, 0)), bright.shape
    return np.array([x[0] / width, y[0] / height, (x[-1] + 1) / width, (y[-1] + 1) / height])


@pytest.mark.parametrize("geometry", ["resize", "letterbox"])
@pytest.mark.parametrize("codec", ["paligemma", "vindr_px"])
@pytest.mark.parametrize("prompt", ["vqa", "detect"])
def test_boxes_lie_on_what_the_changed_picture_shows(tmp_path, tokenizer, geometry, codec, prompt):
    # Off the middle and not square: what is mirrored, or changes its axes, is somewhere else.
    box = (20, 22, 38, 70)
    pixels = np.full((120, 90), 20, np.uint8)
    pixels[box[1] : box[3], box[0] : box[2]] = 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    config = ExampleConfig(
        128, codec=codec, geometry=geometry, prompt=prompt, answer_buckets=(128,)
    )
    encoder = QuestionEncoder(tokenizer, config)
    plain = encoder.encode(_record([box])).boxes[0]
    moves = []
    for position in range(30):
        change = draw_change(WHOLE, 5, position)
        told = encoder.encode(_record([box]), change=change).boxes
        shown = _extent(load_image(tmp_path / "a.png", config, change, (120, 90)))
        np.testing.assert_allclose(told[0], shown, atol=1.6 / 128)
        moves.append(np.abs(told[0] - plain).max())
    assert max(moves) > 0.1 and np.median(moves) > 0.05


def test_a_box_is_clipped_or_left_out_by_the_share_that_stays():
    change = draw_change(AugmentConfig(shift=1.0), 0, 3)
    move = change.geometry.offset_x
    assert abs(move) > 0.2 and change.geometry.scale_x == 1 and change.gamma == 1
    # A wide box of which `move` leaves the picture along x.
    top = 0.5 - change.geometry.offset_y
    wide = np.array([[0.0, top, 1.0, top + 1e-3]])
    stays = 1 - abs(move)
    kept = change._replace(min_visibility=stays - 0.01).of_boxes(wide)[0]
    assert kept.min() >= 0 and kept.max() <= 1
    np.testing.assert_allclose(kept[2] - kept[0], stays, atol=1e-6)
    with pytest.raises(OutOfPictureError, match=f"{stays:.0%} of it"):
        change._replace(min_visibility=stays + 0.01).of_boxes(wide)
    # What is wholly outside has no box, whatever may leave.
    outside = wide + [0, 5, 0, 5]
    with pytest.raises(OutOfPictureError):
        change._replace(min_visibility=0.0).of_boxes(outside)


@pytest.mark.parametrize("size", [(400, 400), (300, 480)])
def test_the_box_of_an_ellipse_turns_with_it(size):
    (height, width), box = size, np.array([0.55, 0.2, 0.75, 0.7])
    y, x = np.mgrid[:height, :width]
    middle, half = (box[:2] + box[2:]) / 2, (box[2:] - box[:2]) / 2
    inside = ((x + 0.5) / width - middle[0]) ** 2 / half[0] ** 2
    inside += ((y + 0.5) / height - middle[1]) ** 2 / half[1] ** 2
    pixels = np.repeat(255 * (inside <= 1)[..., None], 3, axis=-1).astype(np.uint8)
    for degrees in (-20, 7, 30):
        change = ImageChange(Geometry(1, 1, 0, 0), 1.0, 0.5, angle=np.radians(degrees))
        seen = _extent(change.of_pixels(pixels))
        np.testing.assert_allclose(change.of_boxes(box[None])[0], seen, atol=4 / min(size))
        assert np.abs(seen - box).max() > 0.015
    drawn = [draw_change(AugmentConfig(rotate=10), 0, n).angle for n in range(300)]
    assert np.radians(9) < max(drawn) <= np.radians(10) and min(drawn) < -np.radians(9)


def test_what_is_erased_is_grey_and_leaves_hidden_boxes_out():
    pixels = np.full((100, 200, 3), 255, np.uint8)
    change = ImageChange(Geometry(1, 1, 0, 0), 1.0, 0.5, erased=(0.2, 0.1, 0.5, 0.4))
    seen = change.of_pixels(pixels)
    assert (seen[10:40, 40:100] == 127).all() and (seen == 127).sum() == 30 * 60 * 3
    assert (pixels == 255).all(), "the image itself stays"
    half_hidden = np.array([[0.35, 0.1, 0.65, 0.4]])
    np.testing.assert_array_equal(change.of_boxes(half_hidden), half_hidden)
    with pytest.raises(OutOfPictureError, match="33%"):
        change.of_boxes(np.array([[0.3, 0.1, 0.6, 0.4]]))
    for n in range(100):
        x0, y0, x1, y1 = draw_change(AugmentConfig(erase=0.3), 0, n).erased
        assert 0 <= x0 <= x1 <= 1 and 0 <= y0 <= y1 <= 1 and max(x1 - x0, y1 - y0) <= 0.3


def test_noise_is_grey_and_beyond_the_border_is_black():
    picture = np.full((64, 64, 3), 120, np.uint8)
    change = draw_change(AugmentConfig(noise=0.05), 0, 4)
    noisy = change.of_pixels(picture)
    assert np.array_equal(noisy, change.of_pixels(picture))
    assert (noisy[..., :1] == noisy).all()
    spread = noisy[..., 0].std() / 255
    assert abs(spread / change.noise - 1) < 0.1 and 0 < change.noise <= 0.05
    other = draw_change(AugmentConfig(noise=0.05), 0, 5).of_pixels(picture)
    assert not np.array_equal(noisy, other)
    smaller = ImageChange(Geometry(0.8, 0.8, 0.1, 0.1), 1.0, 0.5)
    changed = smaller.of_pixels(np.full((100, 100, 3), 200, np.uint8))
    assert (changed[:9] == 0).all() and (changed[:, 91:] == 0).all()
    assert (changed[12:88, 12:88] == 200).all()
    # A letterbox of a wide picture: nothing may be drawn above it, however large it becomes.
    image, placed = letterbox(np.full((50, 100), 200, np.uint8), 100, 100)
    larger = smaller._replace(geometry=Geometry(1.2, 1.2, -0.1, -0.1))
    np.testing.assert_array_equal(larger.of_pixels(image, placed), image)


def test_ranges_are_as_configured_and_gamma_is_one_curve():
    changes = [draw_change(STRONG, 0, position) for position in range(500)]
    scales = np.array([change.geometry.scale_x for change in changes])
    assert 1 / 1.3 <= scales.min() < 0.8 and 1.25 < scales.max() <= 1.3
    assert 0.45 < (scales > 1).mean() < 0.55
    middles = np.array([change.geometry.apply(np.full(4, 0.5))[:2] for change in changes]) - 0.5
    assert 0.14 < np.abs(middles).max() <= 0.15 + 1e-6
    gammas = np.log([change.gamma for change in changes])
    assert -0.4 <= gammas.min() < -0.38 and 0.38 < gammas.max() <= 0.4
    # Width and height are stretched apart, about what zoom makes of both.
    stretched = [draw_change(WHOLE, 0, position).geometry for position in range(500)]
    x, y = np.array([(one.scale_x, one.scale_y) for one in stretched]).T
    np.testing.assert_allclose(np.sqrt(x * y), scales, rtol=1e-6)
    ratios = np.sqrt(x / y)
    assert 1 / 1.2 <= ratios.min() < 0.85 and 1.17 < ratios.max() <= 1.2
    # Nothing is drawn for what is off, and each is drawn on its own.
    assert draw_change(AugmentConfig(), 0, 1) is None
    only = draw_change(AugmentConfig(gamma=0.4), 0, 7)
    assert only.gamma == changes[7].gamma and only.geometry.scale_x == 1
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16)
    changed = only.of_pixels(ramp).reshape(-1)
    expected = 255 * (np.arange(256) / 255) ** only.gamma
    assert np.abs(changed - expected).max() <= 0.5 and (changed[0], changed[-1]) == (0, 255)


@pytest.fixture
def make_loader(records_file, tokenizer, config):
    """`make_loader(seed, augment, **changes)`: of the small source, 4 images a batch."""
    rng = np.random.default_rng(0)
    for picture in sorted((records_file.parent.parent / "images").iterdir()):
        size = np.array(Image.open(picture)).shape
        Image.fromarray(rng.integers(0, 256, size, np.uint8)).save(picture)

    def make(seed=0, augment=STRONG, example=config, **changes):
        source = RecordSource(records_file, questions_per_image=3)
        changes = {"global_batch_size": 4} | changes
        mixture = single_source(source, example)
        return train_loader(mixture, tokenizer, seed=seed, augment=augment, **changes)

    return make


def _same(a, b):
    pairs = [(x.batch, y.batch) for x, y in zip(a, b, strict=True)]
    names = ("images", "target_boxes", "answer_tokens", "question_index", "box_mask")
    return all(
        np.array_equal(getattr(x, name), getattr(y, name)) for x, y in pairs for name in names
    )


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_same_bits_with_workers_on_hosts_and_after_a_resume(make_loader, workers):
    expected = assert_order_holds(make_loader, steps=8, workers=workers)
    assert not _same(expected, take(make_loader(seed=1), 8))
    assert not _same(expected, take(make_loader(augment=AugmentConfig()), 8))


def test_changes_are_anew_each_visit_and_not_in_the_image_cache(make_loader, config, tmp_path):
    visits = {}
    for loaded in take(make_loader(augment=AugmentConfig(gamma=0.4)), 20):
        for index, image in zip(
            loaded.batch.question_index[:, 0], loaded.batch.images, strict=True
        ):
            visits.setdefault(int(index), set()).add(image.tobytes())
    assert min(map(len, visits.values())) > 5
    cache = ImageCache(tmp_path / "cache", config.image_size, config.geometry)
    cached = dataclasses.replace(config, image_cache=cache)
    expected = take(make_loader(), 6)
    for _ in range(2):
        assert _same(expected, take(make_loader(example=cached), 6))
    plain = take(make_loader(augment=AugmentConfig()), 6)
    assert _same(plain, take(make_loader(augment=AugmentConfig(), example=cached), 6))


def test_a_question_whose_box_leaves_is_left_out_of_that_visit_alone_and_counted(make_loader):
    wild = AugmentConfig(shift=0.5, min_visibility=0.9)
    loaded = take(make_loader(augment=wild), 30)
    asked = sum(int((each.batch.question_index >= 0).sum()) for each in loaded)
    left_out = sum(each.unvaried["out_of_picture"] for each in loaded)
    everything = take(make_loader(augment=AugmentConfig()), 30)
    assert asked + left_out == sum(
        int((each.batch.question_index >= 0).sum()) for each in everything
    )
    assert left_out > 0.1 * asked
    assert not any(each.problems for each in loaded)  # nothing is wrong with the question
    # Questions without boxes stay, and no question is out of every visit.
    seen = {int(index) for each in loaded for index in each.batch.question_index.ravel()}
    assert seen == {-1, *range(15)}
    for each in loaded:
        batch = each.batch
        empty = batch.question_index < 0
        assert not batch.answer_mask[empty].any() and not batch.box_mask[empty].any()


@cases("key, value, message")
def test_bad_settings_are_one_line(key, value, message):
    config = default_config()
    config.training.update({"steps": 1, "batch_images": 1})
    config.data.feature_cache = "features"
    validate(typed_config(config))
    config.data.augment[key] = value
    with pytest.raises(UserError, match=message):
        validate(typed_config(config))
