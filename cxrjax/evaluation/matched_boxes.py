"""Figures of boxes matched one to one, for every benchmark that has boxes, at any IoU threshold.

Columns are sums over units, images or questions: `<prefix>@T/{tp,iou}` of the matched pairs, and
`<boxes>/{predicted,truth}` of all boxes. Of boxes that are counted question by question
(`question_columns`) there are also those without which a figure cannot be read: how many there
are, how many repeat another of their answer, how many are given where there is nothing to find,
and how many true ones are within reach of one box a question. (Of a reference answer's own boxes
all are within its reach: that ceiling is 1.)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from cxrjax.evaluation import ranked_boxes
from cxrjax.evaluation.counted import STRICT
from cxrjax.evaluation.figure_lines import FigureLine, make_figures, shared_lines
from cxrjax.metrics.bootstrap import Bootstrap, Estimate, Figure
from cxrjax.metrics.bootstrap import Columns as Counts
from cxrjax.metrics.classification import sums_at
from cxrjax.metrics.detection import (
    SWEEP,
    ImageBoxes,
    find_duplicates,
    find_overlaps,
    join_images,
    match_one_to_one,
)

_METRICS = {
    "precision": "precision",
    "recall": "recall",
    "f1": "F1",
    "miou_tp": "mean IoU of true positives",
}

Columns = dict[str, Float[np.ndarray, " units"]]


def sweep_curves(
    title: str, lines: Iterable[FigureLine], prefix: str, protocol: str, columns: Counts
) -> ranked_boxes.Curves:
    """Curves `sweep/<title>/<metric>` over the threshold; null where a figure is undefined.

    Args:
        lines: those called `<prefix>/<metric>@{thresholds}` among them.
    """
    sums = {name: np.array([np.asarray(column).sum()]) for name, column in columns.items()}
    curves: dict[str, dict[str, Any]] = {}
    for metric, label in _METRICS.items():
        name = f"{prefix}/{metric}@"
        line = next(one for one in lines if one.name.startswith(f"{name}{{"))
        swept = FigureLine(f"{name}{{{','.join(map(str, SWEEP))}}}", line.value)
        figures = make_figures([swept], protocols=[protocol])[protocol].values()
        values = [float(f.formula(sums)[0]) for f in figures if isinstance(f, Figure)]
        curves[f"sweep/{title}/{metric}"] = {
            "x": list(SWEEP),
            "y": [None if np.isnan(value) else value for value in values],
            "x_label": "IoU threshold",
            "y_label": label,
        }
    return curves


def question_columns(
    prefix: str, predicted: ImageBoxes, truth: ImageBoxes, thresholds: Sequence[float] = SWEEP
) -> Columns:
    """Each question's boxes against those of its own reference answer.

    Two right answers about one finding are right both, though their boxes differ by a little.

    Args:
        predicted, truth: by question.

    Returns:
        `<prefix>@T/{tp,iou}` at each threshold; and of each question, as `<prefix>/...`, its
        `predicted` and `truth`, whether it has any (`questions`), `duplicates`, how many true ones
        one box can find (`reach`), and where it has no true one that (`empty`), its boxes
        (`empty/boxes`) and whether there are none (`empty/left`).
    """
    overlaps = find_overlaps(predicted, truth)
    empty = truth.per_image == 0
    counts = {
        "predicted": predicted.per_image,
        "truth": truth.per_image,
        "questions": predicted.per_image + truth.per_image > 0,
        "duplicates": sums_at(predicted.image[find_duplicates(predicted)], predicted.images),
        "reach": np.minimum(truth.per_image, 1),
        "empty": empty,
        "empty/boxes": np.where(empty, predicted.per_image, 0),
        "empty/left": empty & (predicted.per_image == 0),
    }
    columns = {f"{prefix}/{name}": count.astype(float) for name, count in counts.items()}
    matched = match_one_to_one(overlaps, tuple(thresholds))
    for threshold, pairs in zip(thresholds, matched, strict=True):
        question = overlaps.image[pairs]
        columns[f"{prefix}@{threshold}/tp"] = sums_at(question, overlaps.images)
        columns[f"{prefix}@{threshold}/iou"] = sums_at(
            question, overlaps.images, overlaps.iou[pairs]
        )
    return columns


@dataclass
class ScoredAnswers:
    """Boxes without classes, by question: what a benchmark notes while it counts answers."""

    # `predicted`, `truth`: xyxy fractions, those of one question in one unit.
    predicted: list[Float[np.ndarray, "_ 4"]] = field(default_factory=list)
    truth: list[Float[np.ndarray, "_ 4"]] = field(default_factory=list)
    # Of each predicted box, NaN where it has none.
    scores: list[Float[np.ndarray, " _"]] = field(default_factory=list)

    def add(
        self,
        predicted: Float[np.ndarray, "n 4"],
        scores: Float[np.ndarray, " n"],
        truth: Float[np.ndarray, "m 4"],
    ) -> None:
        """Notes a question; a system without an answer has no boxes."""
        self.predicted.append(predicted)
        self.scores.append(scores)
        self.truth.append(truth)

    def counted(self, clusters: ranked_boxes.Clusters, bootstrap: Bootstrap) -> "CountedBoxes":
        """Columns, figures and curves, those of AP and FROC too.

        Args:
            clusters: of each question.
        """
        predicted, truth = (
            join_images((boxes, np.zeros(len(boxes), np.int64)) for boxes in side)
            for side in (self.predicted, self.truth)
        )
        scores = np.concatenate([np.zeros(0), *self.scores])
        columns = question_columns("boxes", predicted, truth)
        figures, curves, ranked = ranked_boxes.ranked_figures(
            find_overlaps(predicted, truth), scores, clusters, len(clusters), bootstrap
        )
        several = [ranked_boxes.is_constant(one) for one in self.scores if len(one) > 1]
        constant = ranked_boxes.constant_within_answers(several, len(clusters))
        return CountedBoxes(
            columns,
            {**figures, "ap/constant_within_answers": constant},
            sweep_curves("boxes", shared_lines("boxes"), "boxes", STRICT, columns) | curves,
            ranked,
        )


class CountedBoxes(NamedTuple):
    """Counts and figures of a system's boxes; `figures` lacks those of `question_figures`."""

    columns: Columns
    figures: dict[str, Estimate]
    curves: ranked_boxes.Curves
    ranked: ranked_boxes.RankedBoxes | None
