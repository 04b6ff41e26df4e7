"""A hermetic tokenizer and a small folder of images with questions about them."""

import functools
import io
import itertools
import json
import os
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest
import sentencepiece
from PIL import Image

from bench.tokenizer_training import template_corpus, train_tokenizer
from cxrjax.input_pipeline.batch import LoadedBatch
from cxrjax.input_pipeline.examples import ExampleConfig
from cxrjax.input_pipeline.tokenizer import Tokenizer, load_tokenizer
from cxrjax.records import Answer, QARecord, write_records

FINDINGS = ("Cardiomegaly", "Pleural effusion", "Nodule/Mass", "ILD", "Pneumothorax")
# (height, width), and how many questions are asked: more than fit one element, exactly as many,
# fewer, one. 15 questions; 7 elements at 3 questions an image.
IMAGES = (((60, 50), 5), ((48, 80), 3), ((64, 64), 2), ((51, 33), 1), ((70, 40), 4))


@functools.cache
def demo_tokenizer() -> Tokenizer:
    return Tokenizer(train_tokenizer(template_corpus()))


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return demo_tokenizer()


@pytest.fixture(scope="session")
def real() -> Tokenizer:
    """Gemma 3's published tokenizer, 262,145 entries; data/gemma3/README.md."""
    path = os.environ.get("CXRJAX_GEMMA3_TOKENIZER", "data/downloads/gemma3/tokenizer.json")
    if not Path(path).is_file():
        pytest.skip(f"no {path}: data/gemma3/README.md, or set CXRJAX_GEMMA3_TOKENIZER")
    return load_tokenizer(Path(path))


def train_pieces(texts, **changes) -> bytes:
    """A small SentencePiece model: BPE with bytes and single digits, Gemma's special ids."""
    model = io.BytesIO()
    options = {
        **{"model_type": "bpe", "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3},
        **{"byte_fallback": True, "split_digits": True, "hard_vocab_limit": False},
        **{"normalization_rule_name": "identity", "add_dummy_prefix": False},
        **{"remove_extra_whitespaces": False, "num_threads": 1, "minloglevel": 2},
    } | changes
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, **options
    )
    return model.getvalue()


@pytest.fixture
def config() -> ExampleConfig:
    return ExampleConfig(
        image_size=28, max_boxes=3, prefix_buckets=(12, 24), answer_buckets=(16, 48)
    )


def take(loader, count: int) -> list:
    return list(itertools.islice(loader, count))


def assert_equal(a, b) -> None:
    """Two loaded batches have the same content, in arrays of their own."""
    assert (a.question_ids, a.problems) == (b.question_ids, b.problems)
    assert a.images_by_source == b.images_by_source
    assert +Counter(a.unvaried) == +Counter(b.unvaried)
    pairs = [jax.tree.flatten_with_path(each.batch) for each in (a, b)]
    assert pairs[0][1] == pairs[1][1]
    for (name, x), (_, y) in zip(pairs[0][0], pairs[1][0], strict=True):
        # No shared memory of a worker: its size is limited and its life is not ours.
        assert type(x) is type(y) is np.ndarray
        assert x.dtype == y.dtype, name
        np.testing.assert_array_equal(x, y, err_msg=str(name))


def assert_order_holds(make, steps: int = 6, every: int = 3, workers: int = 0) -> list:
    """Batches hang on seed and step alone, whoever loads them; returns those of seed 0.

    `make(seed=0, rows=None, workers=0)` gives a loader of 4 rows a batch.
    """
    expected, other = take(make(), steps), take(make(seed=1), steps)
    assert any(a.question_ids != b.question_ids for a, b in zip(expected, other, strict=True))
    with make(workers=workers) as again:
        for a in expected:
            assert_equal(next(again), a)
    for hosts in ([[0, 1], [2, 3]], [[0], [1], [2], [3]]):
        loaded = [take(make(rows=rows), steps) for rows in hosts]
        for whole, *parts in zip(expected, *loaded, strict=True):
            assert_equal(whole, _joined(parts))
    for step in range(1, steps, every):
        begun = make()
        take(begun, step)
        state = json.loads(json.dumps(begun.get_state()))
        with make(workers=workers) as resumed:
            resumed.set_state(state)
            for a in expected[step:]:
                assert_equal(next(resumed), a)
        dealt = make(rows=[1, 3])  # as a mesh may deal them out
        dealt.set_state(state)
        assert next(dealt).question_ids == expected[step].question_ids[1::2]
    return expected


def _joined(parts) -> LoadedBatch:
    """The batches of hosts as one."""
    batch = jax.tree.map(lambda *arrays: np.concatenate(arrays), *(part.batch for part in parts))
    ids, problems = ([x for part in parts for x in part[n]] for n in (1, 2))
    unvaried = sum((Counter(part.unvaried) for part in parts), Counter())
    (given,) = {tuple(part.images_by_source.items()) for part in parts}
    return LoadedBatch(batch, ids, problems, dict(given), unvaried)


def written(boxes) -> list[str]:
    return ["<loc_" + "_".join(map(str, box)) + ">" for box in boxes]


def make_record(text="No.", boxes=(), **changes) -> QARecord:
    """A record of image `a`, whose one answer has the text and the boxes in pixels."""
    image = changes.get("image_id", "a")
    answer = Answer(text=text, boxes_by_image={image: [list(map(float, box)) for box in boxes]})
    fields = {
        **{"dataset": "custom", "split": "train", "image_id": "a", "image_path": "a.png"},
        **{"image_hw": (300, 200), "question_id": "q1", "question_type": "Where"},
        **{"question": "Where is the Cardiomegaly?", "variables": {"finding": "Cardiomegaly"}},
    }
    return QARecord(**fields | {"answers": [answer]} | changes)


def question(image: int, number: int, size: tuple[int, int], boxes: list) -> QARecord:
    """A record whose answer shows the boxes, pixels, or says no where there are none."""
    finding = FINDINGS[(image + number) % len(FINDINGS)]
    text = f"Yes, there is {finding} at {' '.join(written(boxes))}."
    record = make_record(
        text if boxes else f"No, there is no {finding}.",
        boxes,
        dataset="synthetic",
        image_id=f"image{image}",
        image_path=f"images/{image}.png",
        image_hw=size,
        question_id=f"i{image}q{number}",
        question=f"Is there any {finding}?",
        question_type="Is_there",
        variables={"finding": finding},
    )
    answer = {"labels": [finding], "polarity": "pos" if boxes else "neg"}
    return record.model_copy(update={"answers": [record.answers[0].model_copy(update=answer)]})


@pytest.fixture
def make_records():
    """The records of `IMAGES`, interleaved so that no image's questions stand together."""

    def make() -> list[QARecord]:
        rng = np.random.default_rng(7)
        records = []
        for number in range(max(count for _, count in IMAGES)):
            for image, ((height, width), count) in enumerate(IMAGES):
                if number < count:
                    boxes = []
                    for _ in range(number % 4):
                        x, y = int(rng.integers(0, width - 12)), int(rng.integers(0, height - 12))
                        w, h = rng.integers(4, 12, 2)
                        boxes.append((x, y, x + int(w), y + int(h)))
                    records.append(question(image, number, (height, width), boxes))
        return records

    return make


@pytest.fixture
def records_file(tmp_path, make_records):
    """`DIR/records/train.jsonl` with the images beside it; returns the path."""
    (tmp_path / "images").mkdir()
    for image, ((height, width), _) in enumerate(IMAGES):
        pixels = np.full((height, width), 40 * (image + 1), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"images/{image}.png")
    path = tmp_path / "records/train.jsonl"
    write_records(path, make_records())
    return path
