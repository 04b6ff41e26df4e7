"""Outcomes of questions and labelled boxes of images, as columns that can be joined."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from cxrjax.metrics.overlaps import ImageBoxes


@dataclass(frozen=True)
class Outcome:
    """One prediction against its reference.

    Attributes:
        right: None where that is not decidable.
        iou: how well its boxes lie on the true ones, 0 to 1; None without true and predicted boxes.
        note: one short line for people, such as "said absent; it is there".
    """

    right: bool | None
    iou: float | None
    note: str


Labelled = tuple[int, tuple[float, ...]]  # class number, box xyxy


@dataclass(frozen=True)
class LabelledBoxes:
    """Boxes as float64 [n, 4] fractions of the original image, and the class number of each."""

    boxes: Float[np.ndarray, "n 4"]
    classes: Int[np.ndarray, " n"]


def union(lists: Iterable[Iterable[Labelled]]) -> list[Labelled]:
    """Boxes of several answers about one image as one list.

    A box given in several answers (the same class, the same four numbers) is one box. Copies within
    one answer stay copies: whoever repeats a box in one breath has predicted it that often.
    """
    counts: dict[Labelled, int] = {}
    for items in lists:
        here: dict[Labelled, int] = {}
        for item in items:
            here[item] = here.get(item, 0) + 1
        for item, count in here.items():
            counts[item] = max(count, counts.get(item, 0))
    return [item for item, count in counts.items() for _ in range(count)]


def stack(items: Iterable[Labelled], height: int = 1, width: int = 1) -> LabelledBoxes:
    """(class, box) pairs as arrays, divided by the image's size."""
    pairs = list(items)
    boxes = np.array([box for _, box in pairs], np.float64).reshape(-1, 4)
    return LabelledBoxes(
        boxes / np.array([width, height, width, height], np.float64),
        np.array([number for number, _ in pairs], np.int64),
    )


def join_lists(lists: Iterable[Iterable[Labelled]]) -> ImageBoxes:
    """The (class, box) pairs of one image after another, boxes as they are."""
    kept = [list(pairs) for pairs in lists]
    flat = [pair for pairs in kept for pair in pairs]
    return ImageBoxes(
        np.array([box for _, box in flat], np.float64).reshape(-1, 4),
        np.array([number for number, _ in flat], np.int64),
        np.repeat(np.arange(len(kept)), [len(pairs) for pairs in kept]),
        len(kept),
    )
