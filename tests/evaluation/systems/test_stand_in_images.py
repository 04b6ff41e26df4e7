"""Images in the place of others."""

import pickle
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cxrjax.errors import UserError
from cxrjax.evaluation.systems.stand_in_images import StandInImages, derangement
from cxrjax.images.decode import read_image
from cxrjax.images.files import ImageError
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.records import write_records

_SIDE = 32
_GRIDS = [(_SIDE, _SIDE)]


@pytest.fixture
def questions(tmp_path, record):
    """Two questions about each of six images, each image of its own grey."""
    for number in range(6):
        Image.new("L", (20, 10), 10 + number).save(tmp_path / f"image{number}.png")
    records = [record(number, image_id=f"image{number // 2}") for number in range(12)]
    return _source(tmp_path, records, questions_per_image=2)


def _source(folder, records, **how):
    write_records(folder / "questions.jsonl", records)
    return RecordSource(folder / "questions.jsonl", **how)


def _shown(questions, kind, seed=0):
    source = questions.showing(StandInImages(kind, questions, _GRIDS, seed).of, f"{kind}/{seed}")
    source = pickle.loads(pickle.dumps(source))
    elements = [source[k] for k in range(len(source))]
    # The questions are the same ones, in their order.
    assert [e.records for e in elements] == [questions[k].records for k in range(len(questions))]
    return [read_image(element.image_path) for element in elements]


@given(st.integers(2, 40), st.integers())
def test_nothing_keeps_its_place(n, seed):
    order = derangement(n, random.Random(seed))
    assert sorted(order) == list(range(n))
    assert all(place != value for place, value in enumerate(order))


def test_shuffled_shows_every_image_once_and_none_to_its_own_questions(questions):
    def order(seed):
        return tuple(int(image[0, 0, 0]) - 10 for image in _shown(questions, "shuffled", seed))

    greys = order(0)
    assert sorted(greys) == list(range(6))
    assert all(grey != own for own, grey in enumerate(greys))
    assert greys == order(0)
    assert len(set(map(order, range(8)))) > 1


def test_blind_is_grey_and_noise_of_the_seed_and_the_image(questions):
    for image in _shown(questions, "blind"):
        assert image.shape == (_SIDE, _SIDE, 3)
        assert np.abs(image / 127.5 - 1).max() < 0.005
    images = _shown(questions, "noise")
    np.testing.assert_array_equal(images, _shown(questions, "noise"))
    everything = [image.tobytes() for image in images + _shown(questions, "noise", seed=1)]
    assert len(set(everything)) == len(everything)
    levels = np.concatenate([image[..., 0].ravel() for image in images])
    # 6,144 even draws: mean 127.5, standard error 0.94.
    assert abs(levels.mean() - 127.5) < 4
    assert (images[0][..., 0] == images[0][..., 1]).all()


@pytest.mark.parametrize("kind", ["blind", "noise"])
def test_each_grid_is_filled(tmp_path, record, kind):
    """Of an input that is not square nothing is left to padding."""
    sizes = [(40, 20), (20, 40), (30, 30), None]
    records = [record(n, image_id=f"i{n}", image_hw=size) for n, size in enumerate(sizes)]
    grids = [(24, 24), (48, 24), (24, 48)]
    images = StandInImages(kind, _source(tmp_path, records), grids, 0)
    shapes = [read_image(images.of(one)).shape[:2] for one in records]
    assert shapes == [(48, 24), (24, 48), (24, 24), (24, 24)]


def test_images_that_cannot_stand_in_are_refused_as_they_are_stored(tmp_path, record):
    with pytest.raises(UserError, match="one image alone"):
        StandInImages("shuffled", _source(tmp_path, [record(1), record(2)]), _GRIDS, 0)
    questions = _pictures(tmp_path, record, {"a": np.zeros((9, 9), np.uint8)})
    (tmp_path / "a.png").write_bytes(b"none")
    with pytest.raises(ImageError, match=r"/a.png: "):
        _shown(questions, "masked")


def _pictures(tmp_path, record, pictures):
    """The questions of a file about pictures, one each."""
    for name, pixels in pictures.items():
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    records = [record(number, image_id=name) for number, name in enumerate(pictures)]
    return _source(tmp_path, records)


def test_masked_keeps_margins_and_hides_the_middle_with_the_mean(tmp_path, record):
    drawn = np.random.default_rng(0).integers(0, 256, (60, 40), np.uint8)
    coloured = np.zeros((20, 50, 3), np.uint8)
    coloured[..., 0] = 200
    questions = _pictures(tmp_path, record, {"a": drawn, "b": coloured})
    grey, colour = _shown(questions, "masked")
    assert grey.shape == (60, 40, 3) and colour.shape == (20, 50, 3)
    hidden = np.zeros((60, 40), bool)
    hidden[6:54, 4:36] = True
    assert (grey[hidden] == round(float(drawn.mean()))).all()
    np.testing.assert_array_equal(grey[..., 0][~hidden], drawn[~hidden])
    np.testing.assert_array_equal(colour, coloured)


def test_blurred_keeps_what_is_coarse_and_loses_the_rest(tmp_path, record):
    side = 96
    drawn = np.zeros((side, side // 2), np.uint8)
    drawn[:, side // 4 :] = 200  # two halves
    dotted = np.full((side, side), 100, np.uint8)
    dotted[::2, ::2] = 140
    questions = _pictures(tmp_path, record, {"a": drawn, "b": dotted})
    halves, dots = (image[..., 0].astype(float) for image in _shown(questions, "blurred"))
    # A Gaussian of a sixteenth of 96, one deviation off the edge: by its tables, nearly.
    across = halves[side // 2]
    assert abs(across[side // 4 - 6] - 0.1587 * 200) < 10
    assert abs(across[side // 4 + 6] - 0.8413 * 200) < 10
    middle = dots[30:-30, 30:-30]  # the edge goes on beyond itself
    assert np.ptp(middle) <= 2 and abs(middle.mean() - dotted.mean()) < 1
