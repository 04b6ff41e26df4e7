"""Counts a system's boxes on VinDr-CXR-VQA, as columns with a number for every image.

An image may have several truths (one per reader): each is a view of it, and an image's number is
the sum over its views.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from cxrjax.metrics.detection import SWEEP, match_one_to_one
from cxrjax.metrics.localization import localize
from cxrjax.metrics.overlaps import TOLERANCE, ImageBoxes, Overlaps, find_overlaps, join_images
from cxrjax.papers.vindr_cxr_vqa.truth import Labelled, LabelledBoxes, VindrReferences

# Section 3.2 of the paper: a predicted box counts where its IoU is above this.
IOU = 0.3

Columns = dict[str, Float[np.ndarray, " images"]]


@dataclass(frozen=True)
class Views:
    """Every (image, truth) of the references.

    Attributes:
        image: the image of each view, never falling.
        truth: the true boxes, by view.
    """

    image: Int[np.ndarray, " views"]
    truth: ImageBoxes
    images: int

    def per_image(
        self, boxes: ImageBoxes, amount: Float[np.ndarray, " n"] | Bool[np.ndarray, " n"]
    ) -> Float[np.ndarray, " images"]:
        """Sums over the boxes of each image, one amount a box of some view."""
        return np.bincount(
            self.image[boxes.image], weights=amount.astype(np.float64), minlength=self.images
        )

    def sum_views(self, amount: np.ndarray) -> Float[np.ndarray, " images"]:
        """Sums over the views of each image, one amount a view."""
        return np.bincount(self.image, weights=amount.astype(np.float64), minlength=self.images)

    def predicted(self, of_image: Sequence[Iterable[Labelled]]) -> ImageBoxes:
        """An image's boxes once for each of its views."""
        return join_lists(of_image[image] for image in self.image.tolist())


def make_views(references: VindrReferences) -> Views:
    """The views of the references."""
    truths = [image.truths for image in references.images]
    return Views(
        image=np.repeat(np.arange(len(truths)), [len(one) for one in truths]),
        truth=join(truth for one in truths for truth in one),
        images=len(truths),
    )


def join(boxes: Iterable[LabelledBoxes]) -> ImageBoxes:
    """Boxes of one image (or view) after another in one array."""
    return join_images((one.boxes, one.classes) for one in boxes)


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
        f"{prefix}/tp": np.bincount(image, minlength=views.images).astype(np.float64),
        f"{prefix}/iou": np.bincount(image, weights=iou, minlength=views.images),
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
    return columns


def paper_columns(
    views: Views, overlaps: Overlaps, thresholds: tuple[float, ...] = SWEEP
) -> Columns:
    """Any-overlap counts of all predicted boxes of an image: `any@T/{hits,found,iou}` at every
    threshold T, `paper/{predicted,truth}`."""
    predicted, truth = overlaps.predicted, views.truth
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
    return columns | {
        "views": views.sum_views(np.ones_like(lesion)),
        "lesion/views": views.sum_views(lesion),
        "normal/views": views.sum_views(~lesion),
        "normal/boxes": views.sum_views(np.where(lesion, 0, boxes)),
        "normal/clean": views.sum_views(~lesion & (boxes == 0)),
    }


def ceiling_columns(references: VindrReferences, views: Views) -> Columns:
    """What the reference answers themselves reach: the ceiling for whoever answers perfectly.

    `ceiling/found` (one to one, with classes), `ceiling_any/found` (any overlap), and
    `ceiling_one_box/found`: true boxes within reach of one box per question; all of `strict/truth`.
    """
    answered = [references.images[image].answered for image in views.image.tolist()]
    overlaps = find_overlaps(join(answered), views.truth)
    (pairs,) = match_one_to_one(overlaps, (IOU,))
    found = overlaps.best_of_truth > IOU + TOLERANCE
    asked = np.array([image.box_questions for image in references.images])[views.image]
    return {
        "ceiling/found": _of_pairs(views, overlaps, pairs, "")["/tp"],
        "ceiling_any/found": views.per_image(views.truth, found),
        "ceiling_one_box/found": views.sum_views(np.minimum(asked, views.truth.per_image)),
    }
