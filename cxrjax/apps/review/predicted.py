"""A model's answers to review: each in place of the record's own, the least certain first.

How uncertain an answer is, 0 to 1, is the largest of what its line allows:

    coordinates   entropy of its least certain box's coordinates, as a share of that of a uniform
                  one of 1,024 places: of normal distributions with the line's `box_spreads`, else
                  from its `coordinate_logprob`
    confidence    1 - |2 p - 1| of the decision's probability, and of box scores where there are no
                  coordinates: 1 at a half
    disagreement  of two systems: 1 - mean IoU of their matched boxes, or what their words differ in
    parse         1 where the line says that no answer could be read
"""

import difflib
import functools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from cxrjax.apps.review.correction import CorrectedBox, Correction
from cxrjax.apps.review.export import corrected_record
from cxrjax.apps.review.options import chosen_letters
from cxrjax.apps.review.wording import in_words
from cxrjax.boxes import pairwise_iou
from cxrjax.codecs import get_codec
from cxrjax.codecs.resize_rules import padded_to
from cxrjax.errors import UserError
from cxrjax.evaluation.predictions import Prediction, ReadBoxes, read_boxes, read_predictions
from cxrjax.files import read_json_lines
from cxrjax.images.decode import image_size
from cxrjax.images.files import ImageError
from cxrjax.radiology_text.answers import EnglishReader
from cxrjax.records import Answer, GeneratorInfo, QARecord, strip_answers

_PLACES = 1024
_NORMAL = math.sqrt(2 * math.pi * math.e)  # exp of the entropy of a normal of spread 1
_NO_SIZE = (1_000_000, 1_000_000)


class PredictedLine(NamedTuple):
    """A prediction, and the fields of its line as they are."""

    read: Prediction
    fields: Mapping[str, Any]


class Queue(NamedTuple):
    """Questions to review, with the model's answers, the least certain first."""

    sample: list[QARecord]
    about: dict[str, str]  # question id -> its uncertainty in words
    without: int  # number of questions that have no prediction
    strange: int  # number of predictions for questions that are not in the records


def read_lines(path: Path) -> dict[str, PredictedLine]:
    """Question id -> prediction of a file.

    Raises:
        UserError: the file cannot be read, or has no predictions.
    """
    read = {one.question_id: one for one in read_predictions(path)}
    fields = (one for _, one in read_json_lines(path, "predictions", ""))
    return {one["question_id"]: PredictedLine(read[one["question_id"]], one) for one in fields}


def least_certain(
    records: Sequence[QARecord],
    systems: Sequence[Mapping[str, PredictedLine]],
    image_root: Path,
    codec: str,
    grids: Sequence[tuple[int, int]],
    count: int | None,
) -> Queue:
    """The questions whose answers a person should see first.

    Args:
        systems: predictions of one or two; the first one's are shown.
        codec: the box format of predictions' texts.
        grids: (height, width) of the model's inputs, to which images are padded; empty: stretched.
        count: how many; None: at most 100.

    Raises:
        UserError: no question has a prediction, or fewer than `count` have one.
    """
    asked = [one for one in records if one.question_id in systems[0]]
    if not asked or (count or 0) > len(asked):
        raise UserError(
            f"{len(asked):,} of {len(records):,} questions have a prediction, --sample={count}: "
            "expected predictions of these questions, and a sample of at most as many"
            if asked
            else f"no prediction is for one of the {len(records):,} questions: expected those of "
            "the same --records"
        )
    ranked = []
    for record in asked:
        lines = [one[record.question_id] for one in systems if record.question_id in one]
        why = uncertainty(record, lines, codec)
        name = max(why, key=lambda key: (why[key], key)) if why else "confidence"
        ranked.append((-why.get(name, 0.0), record.question_id, name, record, lines[0].read))
    ranked.sort(key=lambda one: one[:2])
    chosen = ranked[: count or 100]
    return Queue(
        [with_answer(record, line, image_root, codec, grids) for *_, record, line in chosen],
        {name: f"uncertainty {-least:.2f} ({why})" for least, name, why, *_ in chosen},
        len(records) - len(asked),
        len(systems[0].keys() - {one.question_id for one in records}),
    )


def uncertainty(record: QARecord, lines: Sequence[PredictedLine], codec: str) -> dict[str, float]:
    """Measures of an answer's uncertainty, by name, each 0 to 1.

    Args:
        lines: of one system or two.
    """
    read = [_boxes(record, one.read, codec) for one in lines]
    found = {}
    if read[0].parse != "ok":
        found["parse"] = 1.0
    coordinates = _coordinates(lines[0], len(read[0].boxes))
    if coordinates is not None:
        found["coordinates"] = coordinates
    sure = [lines[0].read.decision_probability]
    if coordinates is None:
        sure += [score for score in read[0].scores.tolist() if 0 <= score <= 1]
    if told := [1 - abs(2 * one - 1) for one in sure if one is not None]:
        found["confidence"] = max(told)
    if len(lines) > 1:
        found["disagreement"] = _disagreement(record, lines, read)
    return found


def _coordinates(line: PredictedLine, boxes: int) -> float | None:
    """Mean entropy of the coordinates of the least certain box."""
    try:
        spreads = [one for one in line.fields.get("box_spreads") or () if one]
        values = np.nan_to_num(np.array(spreads, np.float64).reshape(-1, 4), nan=1.0)
    except (ValueError, TypeError):
        raise UserError(
            f"{line.read.where}: its box_spreads are not four numbers, or null, for each box"
        ) from None
    if len(values):
        bits = np.log(np.maximum(values * _NORMAL * _PLACES, 1)) / math.log(_PLACES)
        return float(np.minimum(bits, 1).mean(axis=1).max())
    logprob = line.fields.get("coordinate_logprob")
    if not boxes or not isinstance(logprob, int | float) or not math.isfinite(logprob):
        return None
    return min(max(-logprob, 0.0) / (4 * boxes) / math.log(_PLACES), 1.0)


def _disagreement(
    record: QARecord, lines: Sequence[PredictedLine], read: Sequence[ReadBoxes]
) -> float:
    first, second = (one.boxes for one in read[:2])
    if len(first) or len(second):
        overlap = np.asarray(pairwise_iou(first, second)).reshape(len(first), len(second))
        pairs = linear_sum_assignment(-overlap)
        return 1 - float(overlap[pairs].sum()) / max(overlap.shape)
    said = {_outcome(record, one.read.text, False) for one in lines}
    if said == {"yes", "no"}:
        return 1.0
    one, two = (re.findall(r"\w+", one.read.text.lower()) for one in lines[:2])
    return 1 - difflib.SequenceMatcher(None, one, two, autojunk=False).ratio()


def _outcome(record: QARecord, text: str, has_box: bool) -> str | None:
    return _english().read(text, record.question, has_box).outcome if record.lang == "en" else None


@functools.cache
def _english() -> EnglishReader:
    return EnglishReader()


def with_answer(
    record: QARecord,
    line: Prediction,
    image_root: Path,
    codec: str,
    grids: Sequence[tuple[int, int]] = (),
) -> QARecord:
    """The record with a model's answer in place of its own, boxes as its data set writes them.

    Args and errors are those of `least_certain`.
    """
    size = record.image_hw or _size(image_root / record.image_path)
    height, width = size or _NO_SIZE
    update = {"history": record.history, "image_hw": (height, width)}
    bare = strip_answers(record).model_copy(update=update)
    read = _boxes(bare, line, codec)
    corners = np.round(np.clip(read.boxes, 0, 1) * [width, height, width, height], 2)
    boxes = [box for box in corners.tolist() if box[0] < box[2] and box[1] < box[3]]
    shown = Answer(text=line.text, boxes_by_image={record.image_id: boxes})
    placed = codec, padded_to(grids, (height, width))
    words = in_words(line.text, bare.model_copy(update={"answers": [shown]}), *placed)
    words = re.sub(r"\s*\[another place\]", "", words)
    # Unchecked: how many boxes and words a reader may correct to is no limit of what a model says.
    said = Correction.model_construct(
        boxes=[CorrectedBox(box=box) for box in boxes], answer=words, choice=None
    )
    found = corrected_record(bare, said)
    labels = [record.finding] if record.finding else [*(read.labels or read.named)]
    outcome = "yes" if boxes else _outcome(record, line.text, False)
    answer = (found.answers or [shown])[0].model_copy(
        update={
            "labels": [*dict.fromkeys(filter(None, labels))],
            "polarity": {"yes": "pos", "no": "neg"}.get(outcome or "", "unk"),
        }
    )
    changes: dict[str, Any] = {
        "answers": [answer],
        "answer_key": chosen_letters(line.text, record),
        "generator": GeneratorInfo(name="prediction", version="1"),
        "image_hw": size,
    }
    return found.model_copy(update=changes)


def _boxes(record: QARecord, line: Prediction, codec: str) -> ReadBoxes:
    return read_boxes(line, get_codec(codec), *(record.image_hw or _NO_SIZE), line.where)


def _size(path: Path) -> tuple[int, int] | None:
    try:
        return image_size(path)
    except (ImageError, OSError):
        return None
