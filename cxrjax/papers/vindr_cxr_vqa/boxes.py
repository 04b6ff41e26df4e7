"""Counts a system's boxes on VinDr-CXR-VQA, as columns with a number for every image.

An image may have several truths (one per reader): each is a view of it, and an image's number is
the sum over its views.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from cxrjax.evaluation.figure_lines import area, harmonic_mean
from cxrjax.metrics.bootstrap import Sums
from cxrjax.metrics.classification import sums_at
from cxrjax.metrics.detection import (
    SWEEP,
    TOLERANCE,
    ImageBoxes,
    Overlaps,
    find_overlaps,
    match_one_to_one,
)
from cxrjax.metrics.localization import localize
from cxrjax.metrics.packed import Packed, PackedParts
from cxrjax.papers.vindr_cxr_vqa.truth import (
    Labelled,
    VindrImage,
    VindrReferences,
    join_lists,
)

# Section 3.2 of the paper: a predicted box counts where its IoU is above this.
IOU = 0.3

# Thresholds of a question's boxes by themselves.
GROUNDED = (0.3, 0.5)

# Pairs of boxes and what is made of them take ten times as much memory as what is counted, so that
# they are there for some images at a time.
_IMAGES_AT_ONCE = 1 << 14

Columns = dict[str, Float[np.ndarray, " images"]]
PackedColumns = dict[str, Packed]


@dataclass(frozen=True, eq=False)
class Views:
    """Every (image, truth) of the references."""

    image: Int[np.ndarray, " views"]  # the image of each view, never falling
    # `truth`, `paper_truth`, `answered`: the true boxes, by view, those under the protocol `paper`,
    # and those of the reference answers.
    truth: ImageBoxes
    paper_truth: ImageBoxes
    answered: ImageBoxes
    images: int

    def per_image(
        self, boxes: ImageBoxes, amount: Float[np.ndarray, " n"] | Bool[np.ndarray, " n"]
    ) -> Float[np.ndarray, " images"]:
        """Sums over the boxes of each image, one amount a box of some view."""
        return sums_at(self.image[boxes.image], self.images, amount)

    def sum_views(self, amount: np.ndarray) -> Float[np.ndarray, " images"]:
        """Sums over the views of each image, one amount a view."""
        return sums_at(self.image, self.images, amount)

    def predicted(self, of_image: Sequence[Sequence[Labelled]]) -> ImageBoxes:
        """An image's boxes once for each of its views."""
        return join_lists(of_image[image] for image in self.image.tolist())

    def parts(self, groups: "BoxGroups") -> Iterator[tuple[slice, "Views", "BoxGroups"]]:
        """Yields some images at a time, with their views and the groups of their true boxes."""
        true = 0
        for start in range(0, self.images, _IMAGES_AT_ONCE):
            images = slice(start, min(start + _IMAGES_AT_ONCE, self.images))
            first, last = np.searchsorted(self.image, [images.start, images.stop]).tolist()
            truth = self.truth.cut(first, last)
            papers, answered = (
                truth if boxes is self.truth else boxes.cut(first, last)
                for boxes in (self.paper_truth, self.answered)
            )
            here = slice(true, true + len(truth))
            members = {name: member[here] for name, member in groups.members.items()}
            count = images.stop - start
            views = Views(self.image[first:last] - start, truth, papers, answered, count)
            yield images, views, replace(groups, members=members)
            true = here.stop


def make_views(references: VindrReferences) -> Views:
    """The views of the references."""
    sets = references.truth, references.paper_truth, references.answered
    return Views(references.image_of_truth, *sets, len(references.images))


def strict_columns(
    views: Views,
    overlaps: Overlaps,
    classes: Sequence[str],
    thresholds: tuple[float, ...] = SWEEP,
) -> tuple[Columns, dict[float, Bool[np.ndarray, " pairs"]]]:
    """One-to-one counts of the union of an image's predicted boxes.

    Returns:
        `one_to_one@T/{tp,iou}` and `agnostic@T/{tp,iou}` at every threshold T,
        `one_to_one/class/NAME/{tp,iou,predicted,truth}` at IoU 0.3, `strict/{predicted,truth}`; and
        threshold -> which pairs are true positives, with classes.
    """
    columns = {
        "strict/predicted": views.sum_views(overlaps.predicted.per_image),
        "strict/truth": views.sum_views(views.truth.per_image),
    }
    matched = {
        name: dict(
            zip(thresholds, match_one_to_one(overlaps, thresholds, with_classes), strict=True)
        )
        for name, with_classes in (("one_to_one", True), ("agnostic", False))
    }
    for name, by_threshold in matched.items():
        for threshold, pairs in by_threshold.items():
            columns |= _of_pairs(views, overlaps, pairs, f"{name}@{threshold}")
    columns |= _by_class(views, overlaps, matched["one_to_one"][IOU], classes)
    return columns, matched["one_to_one"]


def _of_pairs(
    views: Views, overlaps: Overlaps, pairs: Bool[np.ndarray, " pairs"], prefix: str
) -> Columns:
    image, iou = views.image[overlaps.image[pairs]], overlaps.iou[pairs]
    return {
        f"{prefix}/tp": sums_at(image, views.images),
        f"{prefix}/iou": sums_at(image, views.images, iou),
    }


def _by_class(
    views: Views, overlaps: Overlaps, pairs: Bool[np.ndarray, " pairs"], classes: Sequence[str]
) -> Columns:
    columns: Columns = {}
    of_pair = overlaps.truth.classes[overlaps.columns]
    for number, name in enumerate(classes):
        prefix = f"one_to_one/class/{name}"
        columns |= _of_pairs(views, overlaps, pairs & (of_pair == number), prefix)
        for side, boxes in (("predicted", overlaps.predicted), ("truth", overlaps.truth)):
            columns[f"{prefix}/{side}"] = views.per_image(boxes, boxes.classes == number)
        columns[f"{prefix}/images"] = (columns[f"{prefix}/truth"] > 0).astype(float)
    return columns


def paper_columns(
    views: Views, overlaps: Overlaps, thresholds: tuple[float, ...] = SWEEP
) -> Columns:
    """Any-overlap counts of all predicted boxes of an image: `any@T/{hits,found,iou}` at every
    threshold T, `paper/{predicted,truth}`."""
    predicted, truth = overlaps.predicted, overlaps.truth
    columns = {
        "paper/predicted": views.sum_views(predicted.per_image),
        "paper/truth": views.sum_views(truth.per_image),
    }
    best = overlaps.best_of_predicted
    for threshold in thresholds:
        hits = best > threshold + TOLERANCE
        found = overlaps.best_of_truth > threshold + TOLERANCE
        columns[f"any@{threshold}/hits"] = views.per_image(predicted, hits)
        columns[f"any@{threshold}/found"] = views.per_image(truth, found)
        columns[f"any@{threshold}/iou"] = views.per_image(predicted, np.where(hits, best, 0))
    return columns


def localization_columns(views: Views, paper: Overlaps, strict: Overlaps) -> Columns:
    """Table 6 of all boxes (`paper/...`), of their union (`strict/...`), and of the latter where
    there are true boxes (`lesion/...`); boxes on views without any (`normal/...`)."""
    columns: Columns = {}
    lesion = views.truth.per_image > 0
    for prefix, overlaps, kept in (
        ("paper", paper, np.ones_like(lesion)),
        ("strict", strict, np.ones_like(lesion)),
        ("lesion", strict, lesion),
    ):
        placed = localize(overlaps)
        for name, amount in zip(("good", "acceptable", "iou", "boxes"), placed, strict=True):
            columns[f"{prefix}/{name}"] = views.sum_views(np.where(kept, amount, 0))
    boxes = strict.predicted.per_image
    for name, kept in (("lesion", lesion), ("normal", ~lesion)):
        columns[f"{name}/views"] = views.sum_views(kept)
        columns[f"{name}/images"] = (columns[f"{name}/views"] > 0).astype(float)
    return columns | {
        "views": views.sum_views(np.ones_like(lesion)),
        "normal/boxes": views.sum_views(np.where(lesion, 0, boxes)),
        "normal/clean": views.sum_views(~lesion & (boxes == 0)),
    }


def join_columns(parts: Sequence[PackedColumns]) -> PackedColumns:
    """Columns of some images after those of others."""
    return {name: PackedParts([part[name] for part in parts]) for name in parts[0]}


def packed(columns: Columns) -> PackedColumns:
    """Columns in the memory that they need."""
    return {name: Packed(column) for name, column in columns.items()}


def ceiling_columns(
    references: VindrReferences, views: Views, groups: "BoxGroups"
) -> PackedColumns:
    """Columns of the reference answers themselves: the ceiling for whoever answers perfectly.

    `ceiling/found` (one to one, with classes), `ceiling_any/found` (any overlap), and
    `ceiling_one_box/found`: true boxes within reach of one box per question; all of `strict/truth`.
    """
    parts = views.parts(groups)
    return join_columns([packed(_ceiling(references.images[i], v)) for i, v, _ in parts])


def _ceiling(images: Sequence[VindrImage], views: Views) -> Columns:
    overlaps = papers = find_overlaps(views.answered, views.truth)
    (pairs,) = match_one_to_one(overlaps, (IOU,))
    if views.paper_truth is not views.truth:
        papers = find_overlaps(views.answered, views.paper_truth)
    found = papers.best_of_truth > IOU + TOLERANCE
    asked = np.array([image.box_questions for image in images])[views.image]
    return {
        "ceiling/found": _of_pairs(views, overlaps, pairs, "")["/tp"],
        "ceiling_any/found": views.per_image(views.paper_truth, found),
        "ceiling_one_box/found": views.sum_views(np.minimum(asked, views.truth.per_image)),
    }


def any_f1_area(sums: Sums, kind: str, boxes: str) -> Float[np.ndarray, " sums"]:
    """Area under F1 of boxes that overlap any true one: hits and found boxes differ in number."""
    sides = [(f"{kind}@{t}/hits", f"{kind}@{t}/found") for t in SWEEP]
    whole = f"{boxes}/predicted", f"{boxes}/truth"
    return area([harmonic_mean(sums, hits, whole[0], found, whole[1]) for hits, found in sides])


_TENTHS = 10
_THIRDS, _HALVES = ("upper", "middle", "lower"), ("left", "right")
BOX_SIZES = tuple(f"tenth {number}" for number in range(1, _TENTHS + 1))
BOX_PLACES = tuple(f"{third} {half}" for third in _THIRDS for half in _HALVES)


@dataclass(frozen=True, eq=False)
class BoxGroups:
    """The groups of the references' true boxes."""

    names: Mapping[str, tuple[str, ...]]  # what is grouped by -> the groups' names
    # What is grouped by -> the group of each true box, as an index.
    members: Mapping[str, Int[np.ndarray, " boxes"]]
    size_limits: tuple[float, ...]  # shares of the image between the tenths by size, rising


def group_true_boxes(truth: ImageBoxes) -> BoxGroups:
    """Size and place of true boxes, which are fractions of their images."""
    x0, y0, x1, y1 = truth.boxes.T
    areas = (x1 - x0) * (y1 - y0)
    limits = np.quantile(areas, np.arange(1, _TENTHS) / _TENTHS) if len(areas) else np.zeros(0)
    third = np.clip((y0 + y1) / 2 * len(_THIRDS), 0, len(_THIRDS) - 1).astype(int)
    half = np.clip((x0 + x1) / 2 * len(_HALVES), 0, len(_HALVES) - 1).astype(int)
    return BoxGroups(
        names={"box_size": BOX_SIZES, "box_place": BOX_PLACES},
        members={
            "box_size": np.searchsorted(limits, areas).astype(np.int8),
            "box_place": (third * len(_HALVES) + half).astype(np.int8),
        },
        size_limits=tuple(limits.tolist()),
    )


def box_group_columns(
    views: Views, overlaps: Overlaps, pairs: Bool[np.ndarray, " pairs"], groups: BoxGroups
) -> Columns:
    """`GROUPING/GROUP/{tp,iou,truth,images}` for every group of true boxes.

    Args:
        pairs: the true positives at IoU 0.3, one to one, with classes.
    """
    columns: Columns = {}
    rows, matched, iou = overlaps.image[pairs], overlaps.columns[pairs], overlaps.iou[pairs]
    for grouping, names in groups.names.items():
        member = groups.members[grouping]
        for number, name in enumerate(names):
            here = member[matched] == number
            image = views.image[rows[here]]
            truth = views.per_image(views.truth, member == number)
            columns |= {
                f"{grouping}/{name}/tp": sums_at(image, views.images),
                f"{grouping}/{name}/iou": sums_at(image, views.images, iou[here]),
                f"{grouping}/{name}/truth": truth,
                f"{grouping}/{name}/images": (truth > 0).astype(float),
            }
    return columns
