"""Frame doctor: says in which frame a system's boxes would fit the truth, where it is another one.

The numbers of a system's boxes are read in every frame that people write: fractions, hundredths,
thousandths, pixels of the image or of a model's input; of the image, of the square that it is
padded to, of the square cut out of its middle, or of its long side; x or y first; two corners, a
corner and an extent, or a middle and an extent; or of the image mirrored left to right. What fits
much better than what was scored is reported; nothing is applied.

A frame's fit is, over questions with true boxes, the boxes' highest IoU with one of the other side,
counted from 0 at IoU 0.3 to 1 at IoU 1, divided by the number of boxes of both sides (a soft F1).
It is better when it gains `_GAIN`, on far more images than it loses on (fewer will do where it
gains nearly all that was missing); when that is much of what was missing, the more so the less it
moves boxes, since boxes that are a little too large or too low fit many a frame better; and not by
what any boxes would gain: those of other images, read alike, must gain less than half of it.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from cxrjax.boxes import iou
from cxrjax.codecs import CODECS, Codec
from cxrjax.codecs.frames import ImageSteps, smart_resize
from cxrjax.evaluation.predictions import Prediction, read_predictions
from cxrjax.metrics.classification import sums_at
from cxrjax.metrics.detection import Overlaps, find_overlaps, join_images, match_one_to_one
from cxrjax.records import QARecord, read_records

# IoU above which a box counts, as in the tables.
IOU = 0.3
_GAIN = 0.05
# Of a gain as large as this nothing but the frame can be the reason.
_LARGE_GAIN = 0.3
# Of what a frame that moves no box would have to gain.
_SHARE_OF_MISSING = 0.3
# Of what was missing: a gain as large as this leaves nothing for another reason to explain.
_NEARLY_ALL = 0.75
# Of `_surety`: for large gains and those of nearly all, for others, and for one frame that fits
# better than another.
_FEW_IMAGES, _SURE, _CLEAR = 2.2, 4.0, 3.0
_PERMUTATIONS = 5
# Questions that are looked at; more would not make it surer.
_MOST_QUESTIONS = 1000
# Of more questions some are looked at first, to find the best ways to read.
_FIRST_QUESTIONS, _FINALISTS = 150, 30

Boxes = Float[np.ndarray, "n 4"]
Sizes = Float[np.ndarray, "n 2"]


@dataclass(frozen=True)
class Numbers:
    """Boxes of some questions as a system wrote them, beside the true ones."""

    # The four numbers of each box, x before y where the system's notation says which.
    written: Boxes
    as_read: Boxes  # the boxes that scoring makes of them, fractions of the original image
    question: Int[np.ndarray, " n"]  # of each box, from 0, never falling
    truth: list[Boxes]  # true boxes of each question
    sizes: Sizes  # (width, height) of each question's image, pixels
    images: Int[np.ndarray, " questions"]  # the image of each question, as a number
    y_first: bool = False  # whether the notation writes y first, and `written` has been turned
    divided: bool = False  # whether someone may have divided the numbers by something already

    def first(self, questions: int) -> "Numbers":
        """The first questions alone."""
        boxes = self.question < questions
        return replace(
            self,
            written=self.written[boxes],
            as_read=self.as_read[boxes],
            question=self.question[boxes],
            truth=self.truth[:questions],
            sizes=self.sizes[:questions],
            images=self.images[:questions],
        )


@dataclass(frozen=True)
class BetterFrame:
    """The frame that fits better."""

    frame: str  # in words
    # `f1`, `miou`: at IoU 0.3, one to one, and mean highest IoU of the predicted boxes: as scored,
    # and in that frame.
    f1: tuple[float, float]
    miou: tuple[float, float]
    questions: int  # how many with true and predicted boxes were looked at

    def __str__(self) -> str:
        (f1, better), (miou, best) = self.f1, self.miou
        return (
            f"boxes fit {self.frame}: F1 {f1:.2f} -> {better:.2f} (IoU > {IOU}, of "
            f"{self.questions:,} questions; mean IoU {miou:.2f} -> {best:.2f}); nothing was changed"
        )


def diagnose(numbers: Numbers) -> BetterFrame | None:
    """The frame in which boxes fit much better than as they were read; None where there is none."""
    if not len(numbers.written):
        return None
    before = _fit(numbers, numbers.as_read)
    readings = _readings(numbers.y_first, numbers.divided)
    if len(numbers.truth) > 2 * _FIRST_QUESTIONS:
        readings = _best(numbers.first(_FIRST_QUESTIONS), readings)[: 2 * _FINALISTS]
    reading = _simplest(numbers, _best(numbers, readings)[:_FINALISTS])
    boxes = reading.read(numbers)
    if not _is_better(numbers, before, boxes):
        return None
    return BetterFrame(
        " ".join(reading.names),
        (_f1(numbers, numbers.as_read), _f1(numbers, boxes)),
        (_mean_iou(numbers, numbers.as_read), _mean_iou(numbers, boxes)),
        len(np.unique(numbers.question)),
    )


def diagnose_files(
    references: Path, predictions: Mapping[str, Path], codec: Codec | None
) -> dict[str, BetterFrame]:
    """System -> the frame in which its boxes fit much better; systems without one left out.

    Args:
        references: records with answers.
        codec: reads boxes from the text of lines without boxes.

    Raises:
        UserError: a file cannot be read.
    """
    true = {record.question_id: record for record in read_records(references)}
    found = {}
    for system, path in predictions.items():
        finding = diagnose(gather(true, read_predictions(path), codec))
        if finding is not None:
            found[system] = finding
    return found


def gather(
    records: Mapping[str, QARecord], predictions: Iterable[Prediction], codec: Codec | None
) -> Numbers:
    """A system's numbers on questions that have true boxes and an image of known size."""
    written: list[list[float]] = []
    as_read: list[Boxes] = [np.zeros((0, 4))]
    question, sizes, images = [], [], []
    truth: list[Boxes] = []
    names: dict[str, int] = {}
    from_text = False
    for line in predictions:
        record = records.get(line.question_id)
        if record is None or len(truth) == _MOST_QUESTIONS:
            continue
        true = _true_boxes(record)
        height, width = record.image_hw or (1, 1)
        read, numbers = _boxes(line, codec, height, width)
        if not len(true) or not len(numbers):
            continue
        from_text |= line.boxes is None
        written += numbers
        as_read.append(read)
        question += [len(truth)] * len(numbers)
        sizes.append((float(width), float(height)))
        images.append(names.setdefault(record.image_id, len(names)))
        truth.append(true)
    return Numbers(
        written=np.array(written, np.float64).reshape(-1, 4),
        as_read=np.concatenate(as_read),
        question=np.array(question, np.int64),
        truth=truth,
        sizes=np.array(sizes, np.float64).reshape(-1, 2),
        images=np.array(images, np.int64),
        y_first=from_text and codec is not None and codec.y_first,
        divided=not from_text,
    )


def _true_boxes(record: QARecord) -> Boxes:
    if record.boxes and record.image_hw:
        height, width = record.image_hw
        return np.array(record.boxes, np.float64) / [width, height, width, height]
    codec = CODECS[record.codec]
    if not record.boxes and isinstance(codec.frame, ImageSteps):  # which needs no size
        found = codec.find(record.answer_text, 1, 1)
        return np.array([span.box for span in found], np.float64).reshape(-1, 4)
    return np.zeros((0, 4))


def _boxes(
    line: Prediction, codec: Codec | None, height: int, width: int
) -> tuple[Boxes, list[list[float]]]:
    """A line's boxes as they are scored, beside their numbers."""
    if line.boxes is not None:
        usable = line.boxes[(np.abs(line.boxes) <= 1e6).all(axis=1)]
        return usable, usable.tolist()
    if codec is None:
        return np.zeros((0, 4)), []
    return codec.read_numbers(line.text, height, width, codec.makers_geometry(height, width))


@dataclass(frozen=True)
class _Fit:
    """The soft F1, and each question's part of it."""

    total: float
    parts: Float[np.ndarray, " questions"]


def _overlaps(numbers: Numbers, boxes: Boxes) -> Overlaps:
    by_question = np.split(boxes, np.cumsum(np.bincount(numbers.question))[:-1])
    predicted = join_images((rows, np.zeros(len(rows), np.int64)) for rows in by_question)
    truth = join_images((rows, np.zeros(len(rows), np.int64)) for rows in numbers.truth)
    return find_overlaps(predicted, truth)


def _fit(numbers: Numbers, boxes: Boxes) -> _Fit:
    pairs = _overlaps(numbers, boxes)
    parts = np.zeros(pairs.images)
    for best, side in (
        (pairs.best_of_predicted, pairs.predicted),
        (pairs.best_of_truth, pairs.truth),
    ):
        parts += sums_at(side.image, pairs.images, np.clip((best - IOU) / (1 - IOU), 0, 1))
    parts /= len(pairs.predicted) + len(pairs.truth)
    return _Fit(float(parts.sum()), parts)


def _is_better(numbers: Numbers, before: _Fit, boxes: Boxes) -> bool:
    after = _fit(numbers, boxes)
    gain = after.total - before.total
    by_image = sums_at(numbers.images, int(numbers.images.max()) + 1, after.parts - before.parts)
    surety = _surety(by_image)
    moved = 1 - float(iou(numbers.as_read, boxes).mean())
    if gain < _SHARE_OF_MISSING * (1 - moved) * (1 - before.total):
        return False
    if gain >= _LARGE_GAIN:
        return bool(surety >= _FEW_IMAGES)
    needed = _FEW_IMAGES if gain >= _NEARLY_ALL * (1 - before.total) else _SURE
    if gain < _GAIN or surety < needed:
        return False
    # Boxes that are larger, or nearer to the middle, fit anything better.
    random = np.random.default_rng(0)
    others = []
    for _ in range(_PERMUTATIONS):
        order = random.permutation(len(numbers.truth)).tolist()
        shuffled = replace(numbers, truth=[numbers.truth[index] for index in order])
        others.append(_fit(shuffled, boxes).total - _fit(shuffled, numbers.as_read).total)
    return bool(gain - np.mean(others) >= max(_GAIN, gain / 2))


def _f1(numbers: Numbers, boxes: Boxes) -> float:
    pairs = _overlaps(numbers, boxes)
    (matched,) = match_one_to_one(pairs, (IOU,), with_classes=False)
    return 2 * int(matched.sum()) / (len(pairs.predicted) + len(pairs.truth))


def _mean_iou(numbers: Numbers, boxes: Boxes) -> float:
    return float(_overlaps(numbers, boxes).best_of_predicted.mean())


# Ways to read.

# What a whole side counts, by name, the more usual before the less; None: its pixels.
_SCALES: dict[str, float | None] = {
    "": 1.0,
    "0-100": 100.0,
    "0-1000": 1000.0,
    "pixels of the image": None,
    "0-999": 999.0,
    "0-1023": 1023.0,
    **{
        f"pixels of a {side} x {side} input": float(side)
        for side in (224, 336, 384, 448, 512, 518, 640, 768, 896, 1024, 1344)
    },
}
# Name -> the most pixels of an input.
_SMART = {
    f"pixels of Qwen2.5-VL's input of at most {most:,} pixels": most
    for most in (12_845_056, 1_003_520)
}


def _xywh(n: Boxes) -> Boxes:
    return np.concatenate([n[:, :2], n[:, :2] + n[:, 2:]], axis=1)


def _middle(n: Boxes) -> Boxes:
    return np.concatenate([n[:, :2] - n[:, 2:] / 2, n[:, :2] + n[:, 2:] / 2], axis=1)


_EXTENTS: dict[str, Callable[[Boxes], Boxes]] = {
    "": lambda n: n,
    "xywh": _xywh,
    "with middle and extent": _middle,
}
_TURNED = [1, 0, 3, 2]


def _whole(size: Sizes) -> tuple[Sizes, Sizes]:
    return size, np.zeros_like(size)


def _padded(size: Sizes) -> tuple[Sizes, Sizes]:
    side = np.repeat(size.max(axis=1, keepdims=True), 2, axis=1)
    return side, (side - size) // 2


def _cropped(size: Sizes) -> tuple[Sizes, Sizes]:
    side = np.repeat(size.min(axis=1, keepdims=True), 2, axis=1)
    return side, -((size - side) // 2)


def _long_side(size: Sizes) -> tuple[Sizes, Sizes]:
    return np.repeat(size.max(axis=1, keepdims=True), 2, axis=1), np.zeros_like(size)


# What boxes are of -> its sides in the image's pixels, and where the image begins in it.
_WHOLES: dict[str, Callable[[Sizes], tuple[Sizes, Sizes]]] = {
    "": _whole,
    "of the padded square": _padded,
    "of the centre crop": _cropped,
    "of the long side, along x and y": _long_side,
}

# What numbers may have been divided by on their way, and what they are then again.
_DIVIDED: dict[str, Callable[[Sizes], Any]] = {
    "": lambda size: 1.0,
    "(they were divided by the image's size)": lambda size: np.tile(size, 2),
    "(they were divided by 1000)": lambda size: 1000.0,
}


_MIRRORED = "of the image mirrored left to right"


@dataclass(frozen=True)
class _Reading:
    """A way to read numbers; keys of the tables above, "" where it is the plain one."""

    turned: bool
    first_axis: str
    extent: str
    scale: str
    whole: str
    divided: str
    mirrored: str = ""

    @property
    def names(self) -> list[str]:
        """The parts that are not the plain ones, in words."""
        turned = self.first_axis if self.turned else ""
        parts = (turned, self.extent, self.scale, self.whole, self.divided, self.mirrored)
        return list(filter(None, parts))

    def read(self, numbers: Numbers) -> Boxes:
        """Boxes as fractions of the original image; in any order, of any size."""
        size = numbers.sizes[numbers.question]
        written = numbers.written * _DIVIDED[self.divided](size)
        boxes = _EXTENTS[self.extent](written[:, _TURNED] if self.turned else written)
        side, offset = _WHOLES[self.whole](size)
        if steps := _SCALES.get(self.scale):
            boxes = boxes / steps * np.tile(side, 2)
        elif self.scale in _SMART:
            resized = [smart_resize(h, w, _SMART[self.scale]) for w, h in numbers.sizes.tolist()]
            height, width = np.array(resized, np.float64)[numbers.question].T
            boxes = boxes / np.stack([width, height] * 2, axis=1) * np.tile(side, 2)
        boxes = (boxes - np.tile(offset, 2)) / np.tile(size, 2)
        if self.mirrored:
            boxes = np.stack([1 - boxes[:, 2], boxes[:, 1], 1 - boxes[:, 0], boxes[:, 3]], axis=1)
        return boxes


def _readings(y_first: bool, divided: bool) -> list[_Reading]:
    """All ways to read, the plain ones first."""
    scales = [*_SCALES, *_SMART]
    axis = "x-first" if y_first else "y-first"
    return [
        _Reading(turned, axis, extent, scale, whole, by, mirrored)
        for mirrored, by, whole, extent, turned, scale in itertools.product(
            ("", _MIRRORED), _DIVIDED if divided else [""], _WHOLES, _EXTENTS, (False, True), scales
        )
        if not (scale in _SMART and whole)
        and not (by and extent)
        # Of mirrored images the plain ways only: each of them doubles what is tried.
        and not (mirrored and (by or extent or turned))
    ]


def _best(numbers: Numbers, readings: Sequence[_Reading]) -> list[_Reading]:
    """The ways to read by falling fit."""
    return sorted(readings, key=lambda one: _fit(numbers, one.read(numbers)).total, reverse=True)


def _simplest(numbers: Numbers, readings: Sequence[_Reading]) -> _Reading:
    """The simplest of the ways that fit as well as the first, as far as one can tell."""
    best, *others = ((one, _fit(numbers, one.read(numbers)).parts) for one in readings)
    equal = [best[0], *(one for one, parts in others if _surety(best[1] - parts) < _CLEAR)]
    scales = [*_SCALES, *_SMART]
    return min(equal, key=lambda one: (len(one.names), scales.index(one.scale)))


def _surety(gains: Float[np.ndarray, " _"]) -> float:
    """The sum of gains by the root of their squares' sum: with k equal ones, the root of k."""
    return float(gains.sum() / max(np.sqrt((gains**2).sum()), 1e-12))
