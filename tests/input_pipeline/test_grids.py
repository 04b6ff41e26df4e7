"""Images of one run on several grids: each on its nearest, a batch on one, boxes where they are."""

import collections
import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cxrjax.codecs import get_codec
from cxrjax.codecs.frames import nearest_grid
from cxrjax.errors import UserError
from cxrjax.images.geometry import letterbox_geometry
from cxrjax.input_pipeline.examples import image_geometry, load_image
from cxrjax.input_pipeline.loader import eval_loader, single_source, train_loader
from cxrjax.input_pipeline.mixture import Mixture, MixtureSource
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.records import write_records

from .conftest import IMAGES, assert_order_holds, question, take

GRIDS = ((56, 56), (84, 56), (56, 84))
# Of `IMAGES`, by height over width 1.2, 0.6, 1, 1.55 and 1.75.
NEAREST = ((56, 56), (56, 84), (56, 56), (84, 56), (84, 56))


@pytest.fixture
def on_grids(config):
    return dataclasses.replace(
        config, image_size=84, image_width=56, grids=GRIDS, geometry="letterbox"
    )


@pytest.mark.parametrize(("image", "grid"), zip(IMAGES, NEAREST, strict=True))
def test_an_image_goes_where_least_is_padding(image, grid):
    (height, width), _ = image

    def share(each):
        scale = min(each[0] / height, each[1] / width)
        return scale**2 * height * width / (each[0] * each[1])

    assert nearest_grid(height, width, GRIDS) == grid == max(GRIDS, key=share)


def test_the_grid_of_an_image_of_an_aspect_or_of_unknown_size(tmp_path, on_grids, config):
    assert nearest_grid(100, 100, [(28, 28), (56, 56), (42, 42)]) == (56, 56)
    Image.fromarray(np.zeros((20, 80), np.uint8)).save(tmp_path / "i.png")
    assert load_image(Path(tmp_path / "i.png"), on_grids).shape == (84, 56, 3)
    assert load_image(Path(tmp_path / "i.png"), on_grids, None, (20, 80)).shape == (56, 84, 3)
    with pytest.raises(UserError, match=r"\(28, 28\) is none of them"):
        dataclasses.replace(config, grids=GRIDS)


def test_what_turns_on_no_order_of_grids_has_none():
    """A square fills a grid as it does the one turned round."""
    turned = [(84, 56), (56, 84)]
    assert nearest_grid(100, 100, turned) == nearest_grid(100, 100, turned[::-1])
    codecs = [get_codec(f"qwen2.5_vl_{sizes}") for sizes in ("84x56,56x84", "56x84,84x56")]
    geometry = letterbox_geometry(100, 100, 84, 56)
    box = np.array([[0.25, 0.25, 0.75, 0.75]])
    places = [codec.frame.to_grid(box, 100, 100, geometry) for codec in codecs]
    np.testing.assert_array_equal(*places)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_batches_are_of_one_grid_and_every_row_comes_as_often(
    records_file, tokenizer, on_grids, workers
):
    mixture = single_source(RecordSource(records_file, questions_per_image=3), on_grids)
    loader = train_loader(mixture, tokenizer, global_batch_size=2, seed=0, workers=workers)
    seen = collections.Counter()
    steps = 35 if workers == 0 else 4  # 7 rows: ten times each
    with loader:
        for loaded in take(loader, steps):
            size = loaded.batch.images.shape[1:3]
            for ids in loaded.question_ids:
                images = {int(each[1]) for each in ids if each is not None}
                assert len(images) == 1 and NEAREST[images.pop()] == size
                seen[tuple(ids)] += 1
    if workers == 0:
        assert len(seen) == 7 and all(abs(times - 10) <= 2 for times in seen.values()), seen


def test_hosts_have_rows_of_one_batch_and_a_step_hangs_on_its_number(
    records_file, tokenizer, on_grids
):
    mixture = single_source(RecordSource(records_file, questions_per_image=3), on_grids)
    mixture = pickle.loads(pickle.dumps(mixture))

    def make(**changes):
        return train_loader(mixture, tokenizer, **{"global_batch_size": 4, "seed": 3} | changes)

    assert_order_holds(make, steps=9)


def test_sources_keep_their_shares_on_every_grid(tmp_path, records_file, make_records, on_grids):
    """The second file has squares alone: its share is what the first one lacks there."""
    few = [record for record in make_records() if record.image_id in ("image0", "image2")]
    write_records(tmp_path / "few/records/train.jsonl", few)
    parts = [
        MixtureSource("many", RecordSource(records_file, questions_per_image=3), on_grids, 1.0),
        MixtureSource("few", RecordSource(tmp_path / "few/records/train.jsonl"), on_grids, 1.0),
    ]
    mixture = Mixture(parts)
    order = mixture.batches(0, 2)
    rows = [int(row) for step in range(350) for row in order[step]]
    taken = collections.Counter(map(mixture.source_of, rows))
    assert taken[0] / len(rows) == pytest.approx(0.5, abs=0.01)
    times = collections.Counter(rows)
    for source, span in enumerate((range(7), range(7, 9))):
        even = taken[source] / len(span)
        assert all(abs(times[row] / even - 1) < 0.05 for row in span), times


def test_evaluation_asks_each_question_once_and_records_know_sizes(
    records_file, tokenizer, on_grids
):
    source = RecordSource(records_file, questions_per_image=3)
    loader = eval_loader(source, tokenizer, on_grids, global_batch_size=4)
    sizes = [loaded.batch.images.shape[1:3] for loaded in loader]
    assert len(loader) == len(sizes) == 3 and sorted(sizes) == sorted(GRIDS)
    asked = [i for loaded in loader for i in loaded.batch.question_index.ravel() if i >= 0]
    assert sorted(asked) == list(range(15))
    expected = [list(source[element].records[0].image_hw) for element in range(7)]
    assert source.image_sizes().tolist() == expected


@pytest.mark.parametrize("geometry", ["letterbox", "resize"])
@pytest.mark.parametrize(
    ("codec", "steps"),
    [("paligemma", 1024), ("qwen3_vl", 1000), ("qwen2.5_vl_56x56,84x56,56x84", None)],
)
def test_boxes_stand_where_the_pixels_do(tmp_path, tokenizer, on_grids, codec, steps, geometry):
    """A white rectangle on black: the answer's numbers are its place in the batch's image."""
    on_grids = dataclasses.replace(on_grids, codec=codec, geometry=geometry, answer_buckets=(96,))
    boxes = {0: (10, 30, 30, 50), 1: (40, 8, 70, 40), 3: (5, 10, 25, 40)}
    records = []
    (tmp_path / "images").mkdir()
    for image, (x0, y0, x1, y1) in boxes.items():
        (height, width), _ = IMAGES[image]
        pixels = np.zeros((height, width), np.uint8)
        pixels[y0:y1, x0:x1] = 255
        Image.fromarray(pixels).save(tmp_path / f"images/{image}.png")
        records.append(question(image, 0, (height, width), [boxes[image]]))
    write_records(tmp_path / "records/train.jsonl", records)
    source = RecordSource(tmp_path / "records/train.jsonl")
    loader = eval_loader(source, tokenizer, on_grids, global_batch_size=1, with_answers=True)
    seen = set()
    for loaded in loader:
        shown = loaded.batch.images[0, ..., 0] > 127
        size = shown.shape
        seen.add(size)
        rows, columns = np.flatnonzero(shown.any(1)), np.flatnonzero(shown.any(0))
        edges = np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
        record = source.record(int(loaded.batch.question_index[0, 0]))
        answer = loaded.batch.answer_tokens[0, 0][loaded.batch.answer_mask[0, 0]]
        text = tokenizer.decode(answer[:-1].tolist())
        # The rectangle's numbers as they stand in the text, in pixels of the input.
        read = get_codec(codec)
        (numbers,) = read.read_numbers(text, *record.image_hw)[1]
        per_pixel = 1 if steps is None else steps / np.array([size[1], size[0]] * 2)
        assert np.abs(np.array(numbers) / per_pixel - edges).max() <= 1.0
        # And back, in pixels of the original.
        placed = image_geometry(*record.image_hw, on_grids)
        found = read.decode(text, *record.image_hw, placed).boxes[0]
        height, width = record.image_hw
        original = found * np.array([width, height, width, height])
        assert np.abs(original - boxes[int(record.image_id[5:])]).max() <= 1.0
    assert len(seen) == 3
