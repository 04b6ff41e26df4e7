"""Scores radiologists against each other: the ceiling of a model's figures.

Every reader of an image is scored like a model against the image's other readers (leave one out),
by the benchmark's own definitions and at its IoU. What the others say is taken in several ways:

* `raw`: all their boxes, unmerged;
* `per_reader`: each of them alone, counts summed;
* the merged modes of `cxrjax.records_io.readers`.

Beside it: how many boxes each mode leaves of each class, and how the readers agree on whether a
class is there at all.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cxrjax.errors import UserError, optional
from cxrjax.evaluation.counted import PAPER, STRICT
from cxrjax.evaluation.figure_lines import make_figures, under
from cxrjax.evaluation.tables import PLAIN, with_interval
from cxrjax.evaluation.text_tables import UNDEFINED, grid
from cxrjax.metrics.agreement import fleiss_kappa, krippendorff_alpha
from cxrjax.metrics.bootstrap import Bootstrap, Estimate, Figure, Formula, estimate_all, resample
from cxrjax.metrics.detection import find_overlaps, join_images
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES
from cxrjax.papers.vindr_cxr_vqa.boxes import (
    IOU,
    Views,
    paper_columns,
    strict_columns,
)
from cxrjax.papers.vindr_cxr_vqa.figures import LAYOUT
from cxrjax.papers.vindr_cxr_vqa.truth import LabelledBoxes, stack
from cxrjax.progress import progress_bar
from cxrjax.records_io.readers import LabelledBox, Readers, merge_readers, parse_mode

MERGED = ("majority", "lesion_majority", "wbf", "nms", "components")
TRUTHS = ("raw", "per_reader", *MERGED)
_WAYS, _METRICS = ("detection", "detection_agnostic"), ("precision", "recall", "f1", "miou_tp")
_NUMBERS = {name: number for number, name in enumerate(CLASSES)}


@dataclass(frozen=True)
class ReaderCeiling:
    """Readers against readers."""

    # Truth of `TRUTHS` -> protocol -> metric -> figure; n is images with boxes.
    figures: dict[str, dict[str, dict[str, Estimate]]]
    # Truth -> class -> strict F1; n is images with a box of the class.
    by_class: dict[str, dict[str, Estimate]]
    boxes: dict[str, dict[str, int]]  # mode -> class -> boxes that it leaves, all readers together
    # Class -> images that some reader marked it on, Fleiss' kappa and Krippendorff's alpha over
    # `images_read`.
    presence: dict[str, dict[str, float | int | None]]
    images: int  # with at least one box and two readers
    images_read: int  # all with the same number of readers as most have
    readers_per_image: dict[int, int]  # number of readers -> images

    def to_json(self) -> dict[str, Any]:
        """The content of readers.json."""
        return {
            "iou_threshold": IOU,
            "images": self.images,
            "images_read": self.images_read,
            "readers_per_image": {str(k): n for k, n in sorted(self.readers_per_image.items())},
            "ceiling": {
                truth: {
                    protocol: {name: figure.to_json() for name, figure in named.items()}
                    for protocol, named in protocols.items()
                }
                for truth, protocols in self.figures.items()
            },
            "ceiling_by_class": {
                truth: {name: figure.to_json() for name, figure in named.items()}
                for truth, named in self.by_class.items()
            },
            "boxes": self.boxes,
            "presence": self.presence,
        }


def reader_ceiling(
    images: Mapping[str, Readers], bootstrap: Bootstrap | None = None
) -> ReaderCeiling:
    """Scores every reader against the others.

    Args:
        images: image id -> what each reader marked (nothing for "No finding").
        bootstrap: of images; the default is 1,000 resamples from seed 0.

    Raises:
        UserError: no image with boxes has two readers, or a class is none of the 14.
    """
    for image_id, readers in images.items():
        for mark in (mark for marks in readers.values() for mark in marks):
            if mark.label not in _NUMBERS:
                raise UserError(
                    f"image {image_id}: a reader's class {mark.label!r}; expected one of the 14 of "
                    "VinDr-CXR-VQA"
                )
    marked = {
        key: readers
        for key, readers in images.items()
        if len(readers) > 1 and any(readers.values())
    }
    if not marked:
        raise UserError("no image with boxes was read by two readers: there is nothing to compare")
    columns, boxes = _count(list(marked.values()))
    sums = resample(columns, list(marked), bootstrap or Bootstrap())
    having = Counter(
        label
        for readers in marked.values()
        for label in {mark.label for marks in readers.values() for mark in marks}
    )
    readers_per_image = Counter(len(readers) for readers in images.values())
    formulas = _formulas()
    presence, read = _presence(list(images.values()), readers_per_image.most_common(1)[0][0])
    return ReaderCeiling(
        figures={
            truth: estimate_all(
                sums,
                {
                    protocol: {
                        name: Figure(under(f"{truth}/", formula), len(marked))
                        for name, formula in named.items()
                        if name.endswith(f"@{IOU}")
                    }
                    for protocol, named in formulas.items()
                },
            )
            for truth in TRUTHS
        },
        by_class=estimate_all(
            sums,
            {
                truth: {
                    name: Figure(
                        under(f"{truth}/", formulas[STRICT][f"{_F1}/{name}"]), having[name]
                    )
                    for name in CLASSES
                }
                for truth in TRUTHS
            },
        ),
        boxes=boxes,
        presence=presence,
        images=len(marked),
        images_read=read,
        readers_per_image=dict(readers_per_image),
    )


def _count(
    images: Sequence[Readers],
) -> tuple[dict[str, np.ndarray], dict[str, dict[str, int]]]:
    """Columns with a number for every image, and boxes by mode and class."""
    modes = {name: parse_mode(name) for name in ("raw", *MERGED)}
    left: dict[str, Counter[str]] = {name: Counter() for name in modes}
    # Of each truth: (image, a reader's boxes, the truth's).
    pairs: dict[str, list[tuple[int, LabelledBoxes, LabelledBoxes]]] = {t: [] for t in TRUTHS}
    for index, readers in enumerate(
        progress_bar(images, desc="readers against readers", unit="image")
    ):
        for name, mode in modes.items():
            left[name].update(label for label, _ in merge_readers(readers, mode))
        for rad_id in readers:
            others = {other: marks for other, marks in readers.items() if other != rad_id}
            given = _stacked(merge_readers({rad_id: readers[rad_id]}, modes["raw"]))
            for truth, true in _truths(others, modes):
                pairs[truth].append((index, given, true))
    columns: dict[str, np.ndarray] = {}
    for truth, found in pairs.items():
        others_boxes = join_images(t for _, _, t in found)
        of_image = np.array([index for index, _, _ in found])
        views = Views(of_image, others_boxes, others_boxes, others_boxes, len(images))
        overlaps = find_overlaps(join_images(given for _, given, _ in found), views.truth)
        counted, _ = strict_columns(views, overlaps, CLASSES, (IOU,))
        counted |= paper_columns(views, overlaps, (IOU,))
        columns |= {f"{truth}/{name}": column for name, column in counted.items()}
    boxes = {name: {label: counts[label] for label in CLASSES} for name, counts in left.items()}
    return columns, boxes


def _truths(others: Readers, modes: Mapping[str, Any]) -> Iterator[tuple[str, LabelledBoxes]]:
    for name, mode in modes.items():
        yield name, _stacked(merge_readers(others, mode))
    for rad_id, marks in others.items():
        yield "per_reader", _stacked(merge_readers({rad_id: marks}, modes["raw"]))


def _stacked(boxes: Iterable[LabelledBox]) -> LabelledBoxes:
    return stack((_NUMBERS[label], box) for label, box in boxes)


_F1 = f"by_class/detection/f1@{IOU}"


def _formulas() -> dict[str, dict[str, Formula]]:
    """{protocol: {metric: formula}} of boxes, together and by class."""
    starts = (*(f"{p}/{m}@" for p in _WAYS for m in _METRICS), f"{_F1}/")
    lines = [line for line in LAYOUT.lines if line.name.startswith(starts)]
    made = make_figures([line._replace(by="") for line in lines], names={"class": CLASSES})
    return {
        protocol: {name: f.formula for name, f in named.items() if isinstance(f, Figure)}
        for protocol, named in made.items()
    }


def _presence(
    images: Sequence[Readers], count: int
) -> tuple[dict[str, dict[str, float | int | None]], int]:
    """Agreement on whether a class is there, over images with `count` readers."""
    optional("krippendorff", "agreement")
    read = [list(readers.values()) for readers in images if len(readers) == count]
    rows: dict[str, dict[str, float | int | None]] = {}
    for label in CLASSES:
        seen = np.array(
            [[any(m.label == label for m in marks) for marks in r] for r in read], float
        )
        votes = seen.sum(axis=1)
        kappa = fleiss_kappa(np.stack([votes, count - votes], axis=1)) if count > 1 else np.nan
        alpha = krippendorff_alpha(seen.T, "nominal")
        rows[label] = {
            "images": int((votes > 0).sum()),
            "fleiss_kappa": None if np.isnan(kappa) else kappa,
            "krippendorff_alpha": None if np.isnan(alpha) else alpha,
        }
    return rows, len(read)


def markdown(ceiling: ReaderCeiling) -> str:
    """readers.md."""
    figures = [["Truth: the others' boxes", "Protocol", "Prec.", "Recall", "F1", "mIoU (TP)"]]
    for truth in TRUTHS:
        for title, protocol, prefix in (
            ("strict", STRICT, "detection"),
            ("strict, without classes", STRICT, "detection_agnostic"),
            ("paper", PAPER, "detection"),
        ):
            named = ceiling.figures[truth][protocol]
            metrics = ("precision", "recall", "f1", "miou_tp")
            cells = [with_interval(PLAIN, named[f"{prefix}/{metric}@{IOU}"]) for metric in metrics]
            figures.append([f"`{truth}`", title, *cells])
    boxes = [["Class", *(f"`{mode}`" for mode in ceiling.boxes)]]
    for label in CLASSES:
        boxes.append([label, *(f"{counts[label]:,}" for counts in ceiling.boxes.values())])
    boxes.append(["all", *(f"{sum(counts.values()):,}" for counts in ceiling.boxes.values())])
    shown = ("raw", "per_reader", "wbf", "components")
    by_class = [["Class", *(f"`{truth}`" for truth in shown), "n", "Fleiss' kappa", "alpha"]]
    for label in CLASSES:
        row = [ceiling.by_class[truth][label] for truth in shown]
        there = ceiling.presence[label]
        agreed = (there["fleiss_kappa"], there["krippendorff_alpha"])
        kappas = [UNDEFINED if value is None else f"{value:.3f}" for value in agreed]
        by_class.append(
            [label, *(with_interval(PLAIN, figure) for figure in row), f"{row[0].n:,}", *kappas]
        )
    return "\n".join(
        [
            "# Readers against readers\n",
            f"Each reader scored against the image's other readers, IoU > {IOU}, "
            f"{ceiling.images:,} images with boxes. In brackets: 95 % intervals (bootstrap of "
            "images).\n",
            grid(figures),
            "## Boxes that each mode leaves\n",
            grid(boxes),
            "## By class\n",
            "Strict F1 against the others' boxes (n = images with the class), and agreement on "
            f"whether the class is there ({ceiling.images_read:,} images).\n",
            grid(by_class),
        ]
    )
