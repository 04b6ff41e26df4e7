"""Pairs of answers for preference tuning, and the best of several answers as records."""

import collections
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cxrjax.codecs import get_codec, transcode
from cxrjax.codecs.resize_rules import padded_to
from cxrjax.errors import UserError
from cxrjax.evaluation.predictions import Prediction
from cxrjax.records import ANSWER_FIELDS, Answer, GeneratorInfo, QARecord
from cxrjax.training.rl.rewards import Rewarder, RewardWeights

# Of boxes, of what is said, of the form; those of `rl` by default.
WEIGHTS = RewardWeights(1.0, 0.5, 0.1, "mean_iou")
# Who wrote the answers of --best, in its records.
BEST_OF_N = GeneratorInfo(name="best of n predictions", version="1")


def make_pairs(
    records: dict[str, QARecord],
    predictions: Sequence[Sequence[Prediction]],
    codec: str,
    least: float,
    prefers_record: bool,
    grids: Sequence[tuple[int, int]] = (),
) -> tuple[list[dict[str, str | float]], collections.Counter[str]]:
    """The lines of --out, and how many questions make none, by reason.

    Args:
        grids: (height, width) of the model's inputs, to which images are padded; empty: stretched.
    """
    rewarder = Rewarder(get_codec(codec), WEIGHTS)
    lines: list[dict[str, str | float]] = []
    without: collections.Counter[str] = collections.Counter()
    for record, truth, answers in _answered(records, predictions, codec, grids, without):
        said = [*answers, *([truth] if prefers_record else [])]
        worth = [rewarder(record.question, truth, text, ended=True).total for text in said]
        best = len(said) - 1 if prefers_record else worth.index(max(worth))
        worst = worth.index(min(worth))
        difference = worth[best] - worth[worst]
        if difference < least or said[best] == said[worst]:
            without[f"they differ by less than {least:g}"] += 1
            continue
        lines.append(
            {
                "question_id": record.question_id,
                "better": said[best],
                "worse": said[worst],
                "difference": round(difference, 4),
            }
        )
    return lines, without


def best_records(
    records: dict[str, QARecord],
    predictions: Sequence[Sequence[Prediction]],
    codec: str,
    grids: Sequence[tuple[int, int]] = (),
) -> tuple[list[QARecord], collections.Counter[str]]:
    """The records of --best, and how many questions give none, by reason; `grids` as above."""
    rewarder = Rewarder(get_codec(codec), WEIGHTS)
    found: list[QARecord] = []
    without: collections.Counter[str] = collections.Counter()
    for record, truth, answers in _answered(records, predictions, codec, grids, without):
        readable = [(text, _with_answer(record, text, codec, grids)) for text in answers]
        worth = [
            (rewarder(record.question, truth, text, ended=True).total, answered)
            for text, answered in readable
            if answered is not None
        ]
        if worth:
            found.append(max(worth, key=lambda each: each[0])[1])
        else:
            without["no prediction's boxes can be read"] += 1
    return found, without


def _answered(
    records: dict[str, QARecord],
    predictions: Sequence[Sequence[Prediction]],
    codec: str,
    grids: Sequence[tuple[int, int]],
    without: collections.Counter[str],
) -> Iterator[tuple[QARecord, str, list[str]]]:
    """Records, their own answers in the codec, and what the files say, in the files' order.

    Args:
        without: receives how many are left out, by reason.

    Raises:
        UserError: a prediction's question is none of the records'; it names the line.
    """
    answers: dict[str, list[str]] = {}
    for one in (each for file in predictions for each in file):
        if one.question_id not in records:
            raise UserError(f"{one.where}: question {one.question_id} is none of the records'")
        answers.setdefault(one.question_id, []).append(one.text)
    for name, record in records.items():
        if name not in answers:
            without["no prediction"] += 1
        elif record.image_hw is None:
            without["the image's size is unknown"] += 1
        else:
            own, geometry = record.codec, padded_to(grids, record.image_hw)
            truth = transcode(record.answer_text, own, codec, *record.image_hw, geometry)
            yield record, truth, answers[name]


def _with_answer(
    record: QARecord, text: str, codec: str, grids: Sequence[tuple[int, int]]
) -> QARecord | None:
    """The question with this answer, boxes in the records' notation; None where one is no box."""
    assert record.image_hw is not None
    height, width = record.image_hw
    own, reader = record.codec, get_codec(codec)
    placed = (height, width, padded_to(grids, record.image_hw))
    if any(any(span.swapped) for span in reader.read_as_written(text, *placed).spans):
        return None
    try:
        said = transcode(text, codec, own, *placed)
        transcode(said, own, codec, *placed)  # as training reads it
    except UserError:
        return None
    boxes = get_codec(own).decode(said, height, width, strict=True).boxes
    # A float32 fraction of a border may lie a hair beyond it.
    scale = np.array([width, height, width, height], np.float64)
    pixels = np.round(boxes * scale, 3).tolist()
    update: dict[str, Any] = {
        name: QARecord.model_fields[name].get_default() for name in ANSWER_FIELDS
    }
    answer = Answer(text=said, boxes_by_image={record.image_id: pixels} if pixels else {})
    update |= {"answers": [answer], "generator": BEST_OF_N}
    return record.model_copy(update=update)
