"""Several readers' boxes as one truth.

Each image of VinDr-CXR was read by three radiologists who worked apart, so that one lesion has up
to three boxes, and most classes rest on a single vote for most of their images. A mode says which
boxes are taken for true; nothing here needs the image's size, since IoU does not change with scale.

| mode | boxes |
|---|---|
| `raw` | every reader's, unmerged |
| `reader:ID` | of one reader |
| `majority` | every box of the classes that more than half of the image's readers marked |
| `unanimous` | every box of the classes that all of the image's readers marked |
| `lesion_majority` | as `components`, of lesions that more than half of the readers boxed |
| `wbf`, `wbf:IOU` | weighted boxes fusion (arXiv 1910.13302), one list per reader |
| `nms`, `nms:IOU` | of overlapping boxes, the one that agrees best with the other readers' |
| `components`, `components:IOU` | the mean box of each group that overlaps links across readers |
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from cxrjax.boxes import pairwise_iou
from cxrjax.errors import UserError
from cxrjax.records import ReaderBox
from cxrjax.records_io.quality import PixelBox

Readers = Mapping[str, Sequence[ReaderBox]]
LabelledBox = tuple[str, PixelBox]

# IoU at which boxes are of one lesion: the defaults of the ensemble_boxes package, and for groups a
# value in use on this table.
DEFAULT_IOU = {"wbf": 0.55, "nms": 0.5, "components": 0.25, "lesion_majority": 0.25}
MODES = ("raw", "reader", "majority", "unanimous", *DEFAULT_IOU)
# A reader's box that overlaps an earlier one of the same reader and class this much is a copy.
COPY_IOU = 0.9
_DECIMALS = 2  # of a pixel: tables need no more


@dataclasses.dataclass(frozen=True)
class MergeMode:
    """A mode with its argument."""

    name: str
    # Where boxes count as one lesion's; None where the mode does not merge.
    iou: float | None = None
    rad_id: str | None = None  # whose boxes, for `reader`


def parse_mode(text: str) -> MergeMode:
    """A mode as a flag gives it, such as `majority`, `wbf:0.4` or `reader:R8`.

    Raises:
        UserError: no such mode, or an argument that does not fit it.
    """
    name, colon, argument = text.partition(":")
    if name not in MODES:
        raise UserError(f"no mode {text!r} of readers' boxes: expected one of {', '.join(MODES)}")
    if name == "reader":
        if not argument:
            raise UserError("mode 'reader' needs a reader's id, as in reader:R8")
        return MergeMode(name, rad_id=argument)
    if not colon:
        return MergeMode(name, DEFAULT_IOU.get(name))
    try:
        iou = float(argument)
    except ValueError:
        iou = -1.0
    if name not in DEFAULT_IOU or not 0 < iou < 1:
        expected = "an IoU between 0 and 1" if name in DEFAULT_IOU else f"{name!r} alone"
        raise UserError(f"mode {text!r}: {argument!r} does not fit; expected {expected}")
    return MergeMode(name, iou)


def merge_readers(readers: Readers, mode: MergeMode) -> list[LabelledBox]:
    """The boxes that are true in a mode.

    Args:
        readers: reader id -> what this reader marked on the image; nothing for "No finding".
        mode: of `parse_mode`.

    Returns:
        (class, box in pixels) by class, then by reader (unmerged boxes) or from the top (merged
        ones). The order of `readers` makes no difference.

    Raises:
        KeyError: `reader` with someone who did not read this image.
    """
    if mode.name == "reader":
        assert mode.rad_id is not None
        return [(mark.label, _pixels(mark)) for mark in readers[mode.rad_id]]
    by_class: dict[str, dict[str, list[PixelBox]]] = {}
    for rad_id, marks in readers.items():
        for mark in marks:
            by_class.setdefault(mark.label, {}).setdefault(rad_id, []).append(_pixels(mark))
    merged: list[LabelledBox] = []
    for label, of in sorted(by_class.items()):
        lists = [of.get(rad_id, []) for rad_id in sorted(readers)]
        merged += [(label, box) for box in _merge_class(lists, mode)]
    return merged


def _pixels(mark: ReaderBox) -> PixelBox:
    x_min, y_min, x_max, y_max = mark.box
    return x_min, y_min, x_max, y_max


def _merge_class(lists: list[list[PixelBox]], mode: MergeMode) -> list[PixelBox]:
    """Boxes of one class; `lists` has an entry for every reader of the image, empty ones too."""
    if mode.name == "raw":
        return [box for boxes in lists for box in boxes]
    if mode.name == "majority":
        votes = sum(bool(boxes) for boxes in lists)
        return [box for boxes in lists for box in boxes] if 2 * votes > len(lists) else []
    if mode.name == "unanimous":
        return [box for boxes in lists for box in boxes] if all(lists) else []
    assert mode.iou is not None
    if mode.name == "wbf":
        merged = _weighted_fusion(lists, mode.iou)
    elif mode.name == "nms":
        merged = _suppress(lists, mode.iou)
    else:
        least = len(lists) // 2 + 1 if mode.name == "lesion_majority" else 1
        merged = _components(lists, mode.iou, least)
    boxes = [tuple(round(float(value), _DECIMALS) for value in box) for box in merged]
    return sorted(
        [(x0, y0, x1, y1) for x0, y0, x1, y1 in boxes], key=lambda b: (b[1], b[0], b[3], b[2])
    )


def _weighted_fusion(lists: list[list[PixelBox]], iou: float) -> np.ndarray:
    """Weighted boxes fusion (arXiv 1910.13302) of readers, whose boxes all weigh the same.

    Box after box joins the group whose mean it overlaps most, above `iou`, else begins one.
    Written out: the package brings 290 MB of compilers and tables for it.
    """
    boxes, _ = _stacked(lists)
    groups: list[list[int]] = []
    means = np.empty_like(boxes)
    for index in range(len(boxes)):
        overlaps = np.asarray(pairwise_iou(boxes[index : index + 1], means[: len(groups)]))[0]
        number = int(overlaps.argmax()) if groups and overlaps.max() > iou else len(groups)
        if number == len(groups):
            groups.append([])
        groups[number].append(index)
        means[number] = boxes[groups[number]].mean(axis=0)
    return means[: len(groups)]


def _suppress(lists: list[list[PixelBox]], iou: float) -> np.ndarray:
    """Non-maximum suppression; a box's score is the sum of its best IoU with each other reader's.

    Written out: the package's needs seconds to compile before its first use.
    """
    boxes, owners = _stacked(lists)
    overlaps = np.asarray(pairwise_iou(boxes, boxes), np.float64)
    scores = np.zeros(len(boxes))
    for owner in range(len(lists)):
        theirs = owners == owner
        if theirs.any():
            scores += np.where(theirs, 0, overlaps[:, theirs].max(axis=1))
    kept: list[int] = []
    for index in np.argsort(-scores, kind="stable").tolist():
        if not any(overlaps[index, other] > iou for other in kept):
            kept.append(index)
    return boxes[kept]


def _components(lists: list[list[PixelBox]], iou: float, least_readers: int) -> np.ndarray:
    """Mean boxes of the groups in which at least so many readers take part."""
    boxes, owners = _stacked(lists)
    overlaps = np.asarray(pairwise_iou(boxes, boxes), np.float64)
    same_reader = owners[:, None] == owners[None, :]
    kept: list[int] = []
    for index in range(len(boxes)):
        if not any(same_reader[index, k] and overlaps[index, k] >= COPY_IOU for k in kept):
            kept.append(index)
    boxes, owners = boxes[kept], owners[kept]
    linked = ((overlaps >= iou) & ~same_reader)[np.ix_(kept, kept)]
    count, group = connected_components(csr_array(linked), directed=False)
    members = [group == number for number in range(count)]
    chosen = [one for one in members if len(set(owners[one].tolist())) >= least_readers]
    return np.array([boxes[one].mean(axis=0) for one in chosen]).reshape(-1, 4)


def _stacked(
    lists: list[list[PixelBox]],
) -> tuple[Float[np.ndarray, "n 4"], np.ndarray]:
    """All boxes, and the number of the reader of each."""
    boxes = np.array([box for boxes in lists for box in boxes], np.float64).reshape(-1, 4)
    return boxes, np.repeat(np.arange(len(lists)), [len(boxes) for boxes in lists])
