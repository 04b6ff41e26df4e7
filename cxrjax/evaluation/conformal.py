"""Conformal boxes: predicted boxes made wider, so that they cover true ones as often as is asked.

Split conformal prediction (Papadopoulos et al., ECML 2002; Lei et al., JASA 2018): on patients whom
the model was not trained on, each true box says by how much some box predicted for its question
would have to be wider to hold it; the margin is a quantile of that. It covers boxes of other
patients, if those are exchangeable with these: of the same people, asked the same questions.

Patients are what is exchangeable, not boxes: a patient's boxes are alike. The box to come is of a
patient who has boxes of their own, which are as unknown, and a box is the likelier of a patient the
more boxes they have: sum n^2 / sum n of them on average, for n boxes a patient. So many are counted
as not covered (weighted conformal prediction, Tibshirani et al., NeurIPS 2019). With one box a
patient that is the well-known (boxes + 1) * cover.

Margins go by the model's own spread of each coordinate where it tells them, so that they are wide
where it is unsure; else they are the same for all boxes.
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from cxrjax.boxes import canonical
from cxrjax.errors import UserError
from cxrjax.evaluation.benchmark import cluster_of
from cxrjax.evaluation.predictions import parse_prediction
from cxrjax.files import read_json_lines
from cxrjax.records import QARecord, read_records

PREDICTIONS, RECORDS = "predictions.jsonl", "records.jsonl"
# Added to spreads, in fractions of the image: a model that is certain is wrong by something.
_LEAST_SPREAD = 0.01
# Of a box that has none among others that have: that of a coordinate of which nothing is known.
_UNKNOWN_SPREAD = 1 / math.sqrt(12)
# Outwards: what a margin does to x_min, y_min, x_max, y_max.
_OUTWARDS = np.array([-1.0, -1.0, 1.0, 1.0])


@dataclass(frozen=True)
class AnsweredBoxes:
    """Predicted and reference boxes of a question."""

    patient: Hashable  # the cluster
    truth: Float[np.ndarray, "t 4"]  # fractions of the image
    boxes: Float[np.ndarray, "n 4"]  # the same, corners in order
    # Length of a margin of 1 for each side of each box, in fractions of the image.
    scale: Float[np.ndarray, "n 4"]

    def needed(self) -> Float[np.ndarray, " t"]:
        """The margin from which on each true box is within a predicted one; infinite if none is."""
        if not len(self.boxes):
            return np.full(len(self.truth), np.inf)
        beyond = (self.truth[:, None] - self.boxes) * _OUTWARDS / self.scale
        return np.min(np.max(beyond, axis=-1), axis=1)


@dataclass(frozen=True)
class Margins:
    """Margins by which boxes are widened."""

    margin: float  # in multiples of a box's spread plus 0.01, or in fractions of the image
    scaled: bool  # which of the two
    cover: float  # the share of reference boxes to be covered
    # `boxes`, `patients`: number of those that the margin was calibrated on.
    boxes: int
    patients: int

    def describe(self) -> str:
        """One line for people."""
        what = f"{self.margin:.4f} of the image's sides"
        if self.scaled:
            what = f"{self.margin:.3f} x (the coordinate's spread + {_LEAST_SPREAD})"
        return (
            f"every side of a box is moved outwards by {what}: covers {self.cover:.0%} of true "
            f"boxes, by {self.boxes:,} boxes of {self.patients:,} other patients"
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the fields for the run's record."""
        return asdict(self)

    def widen(self, lines: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Predictions with wider `boxes`, and `margins`: how far each side was moved, outwards.

        Corners come out in order, no box leaves the image, and none is turned inside out.
        """
        for line in lines:
            boxes, scale = _predicted(line, self.scaled, f"question {line['question_id']}")
            moved = boxes + _OUTWARDS * self.margin * scale
            middle = np.tile((moved[:, :2] + moved[:, 2:]) / 2, 2)
            inverted = np.tile(moved[:, :2] > moved[:, 2:], 2)
            moved = np.where(inverted, middle, moved)
            moved = np.clip(moved, np.minimum(boxes, 0), np.maximum(boxes, 1))
            yield {
                **line,
                "boxes": moved.round(6).tolist(),
                "margins": ((moved - boxes) * _OUTWARDS).round(6).tolist(),
            }


@dataclass(frozen=True)
class Coverage:
    """Coverage by margins on patients that they were not calibrated on."""

    cover: float  # the requested share
    covered: float  # the mean share of reference boxes within predicted ones, over splits
    # `low`, `high`: its 5th and 95th percentile over splits.
    low: float
    high: float
    margin: float  # the mean margin


def calibrate(
    folder: Path, cover: float, asked: Iterable[QARecord]
) -> tuple[Margins, list[AnsweredBoxes]]:
    """The margins of a folder's predictions against its records, and what they were found on.

    Args:
        folder: has `predictions.jsonl`, of the model whose boxes are to be made wider and made as
            those are, and `records.jsonl`, with the answers.
        asked: the questions whose boxes are to be made wider.

    Raises:
        UserError: unusable files, a patient of whom both have questions, or too few boxes.
    """
    if not 0 < cover < 1:
        raise UserError(f"--cover={cover}: expected a share above 0 and below 1, such as 0.9")
    records = {record.question_id: record for record in read_records(folder / RECORDS)}
    both = sorted(set(map(cluster_of, records.values())) & set(map(cluster_of, asked)))
    if both:
        raise UserError(
            f"{folder / RECORDS}: {len(both):,} of its patients are asked about too, such as "
            f"{both[0][1]}: margins are found on other patients than they are used for"
        )
    found, scaled = read_answered(folder / PREDICTIONS, records)
    return find_margins(found, cover, scaled, str(folder)), found


def read_answered(path: Path, records: Mapping[str, QARecord]) -> tuple[list[AnsweredBoxes], bool]:
    """The questions that have true boxes, with what was predicted, and whether it tells spreads.

    Raises:
        UserError: unusable predictions, a question without a line, or a record without a size.
    """
    lines = {
        line.get("question_id"): (line, where)
        for where, line in read_json_lines(path, "predictions", "expected what predict writes")
    }
    scaled = any(line.get("box_spreads") for line, _ in lines.values())
    found = []
    for name, record in records.items():
        if not record.boxes:
            continue
        if name not in lines:
            raise UserError(f"{path}: no prediction for {name}; predict all of the records")
        if record.image_hw is None:
            raise UserError(f"{name}: its record has no image_hw, which boxes are fractions of")
        height, width = record.image_hw
        truth = canonical(np.array(record.boxes) / [width, height, width, height])
        line, where = lines[name]
        predicted = _predicted(line, scaled, where)
        found.append(AnsweredBoxes(cluster_of(record), truth, *predicted))
    return found, scaled


def check_coverage(
    found: Sequence[AnsweredBoxes],
    margins: Margins,
    covers: Sequence[float] = (0.8, 0.9, 0.95),
    splits: int = 200,
) -> list[Coverage]:
    """Coverage of one half of the patients by margins of the other one, over random halves.

    Shares that no margin of a half covers are left out.
    """
    rng = np.random.default_rng(0)
    patients = sorted({one.patient for one in found}, key=str)
    needed = {
        patient: np.concatenate([one.needed() for one in found if one.patient == patient])
        for patient in patients
    }
    halves = [rng.permutation(len(patients)) for _ in range(splits)]
    rows = []
    for cover in sorted({*covers, margins.cover}):
        tried = []
        for order in halves:
            ours, theirs = (
                [needed[patients[i]] for i in half] for half in np.array_split(order, 2)
            )
            if ours and theirs and (margin := _margin(ours, cover)) is not None:
                tried.append((np.mean(np.concatenate(theirs) <= margin), margin))
        if len(tried) == splits:
            shares, used = np.array(tried).T
            low, high = np.quantile(shares, [0.05, 0.95])
            rows.append(
                Coverage(cover, float(shares.mean()), float(low), float(high), float(used.mean()))
            )
    return rows


def coverage_table(rows: Sequence[Coverage]) -> str:
    """Markdown for people: what was asked for, and what was covered."""
    return "\n".join(
        [
            "| asked | covered | 5 to 95 % of splits | margin |",
            "|---|---|---|---|",
            *(
                f"| {row.cover:.1%} | {row.covered:.1%} | {row.low:.1%} to {row.high:.1%} "
                f"| {row.margin:.3f} |"
                for row in rows
            ),
        ]
    )


def find_margins(
    found: Sequence[AnsweredBoxes], cover: float, scaled: bool, source: str
) -> Margins:
    """The least margins with which so many boxes to come are covered.

    Raises:
        UserError: no margins do; it names the largest share that can be covered.
    """
    by_patient: dict[Hashable, list[Float[np.ndarray, " t"]]] = {}
    for one in found:
        by_patient.setdefault(one.patient, []).append(one.needed())
    needed = [np.concatenate(boxes) for boxes in by_patient.values()]
    count = sum(map(len, needed))
    margin = _margin(needed, cover)
    if margin is None:
        usable = sum(int(np.isfinite(boxes).sum()) for boxes in needed)
        most = usable / max(1.0, count + _to_come(needed))
        raise UserError(
            f"{source}: no margins cover {cover:.0%}: of {count:,} true boxes of "
            f"{len(needed):,} patients {count - usable:,} have no predicted box at all; "
            f"give --cover of at most {math.floor(most * 100) / 100:.2f}, or more patients"
        )
    return Margins(margin, scaled, cover, count, len(needed))


def _to_come(needed: Sequence[Float[np.ndarray, " t"]]) -> float:
    """Estimates the number of boxes of the next box's patient, as a mean over boxes."""
    return sum(len(boxes) ** 2 for boxes in needed) / max(1, sum(map(len, needed)))


def _margin(needed: Sequence[Float[np.ndarray, " t"]], cover: float) -> float | None:
    """The least margin that covers so many boxes to come; None: no finite one does.

    Args:
        needed: by each of a patient's boxes, for each patient.
    """
    boxes = np.sort(np.concatenate([np.zeros(0), *needed]))
    rank = math.ceil(cover * (len(boxes) + _to_come(needed)) - 1e-9)
    if rank > np.isfinite(boxes).sum():
        return None
    return float(boxes[rank - 1])


def _predicted(
    line: Mapping[str, Any], scaled: bool, where: str
) -> tuple[Float[np.ndarray, "n 4"], Float[np.ndarray, "n 4"]]:
    """A line's boxes, corners in order, and what a margin of 1 is for each of their sides."""
    boxes = parse_prediction(line, where).boxes
    if boxes is None or not np.isfinite(boxes).all():
        raise UserError(f"{where}: no boxes of finite numbers: expected what predict writes")
    if "margins" in line:
        raise UserError(f"{where}: its boxes have margins already; give those without --conformal")
    scale = np.ones_like(boxes)
    if scaled and len(boxes):
        told = line.get("box_spreads") or [None] * len(boxes)
        try:
            spreads = np.array(
                [[_UNKNOWN_SPREAD] * 4 if one is None else one for one in told], np.float64
            ).reshape(boxes.shape)
        except (TypeError, ValueError):
            spreads = np.full(boxes.shape, np.nan)
        if not (np.isfinite(spreads) & (spreads >= 0)).all():
            raise UserError(
                f"{where}: its box_spreads are not four numbers from 0, or null, for each box: "
                "expected what predict writes"
            )
        scale = spreads + _LEAST_SPREAD
    return canonical(boxes), scale
