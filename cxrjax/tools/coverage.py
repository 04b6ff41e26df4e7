"""Tells how many true boxes lie within predicted ones, such as `predict --conformal` widened.

    python -m cxrjax.tools.coverage --predictions=FILE --references=FILE --out=FILE

A true box is covered if one predicted box of its question holds all of it, whatever else is
predicted: several boxes of an answer count each. Large boxes cover easily, so that the mean area of
predicted boxes, as a multiple of true ones', stands beside it. Written is JSON: the share with its
interval (bootstrap of patients), and the same by what is asked about; `asked`: the share that the
predictions were widened for, as FILE.run.json says, null where it does not. Without --out it is
printed alone.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from cxrjax import cli
from cxrjax.cli import command_parser
from cxrjax.errors import UserError
from cxrjax.evaluation.conformal import read_answered
from cxrjax.evaluation.run_record import side_file
from cxrjax.files import read_json_object, replace_text
from cxrjax.metrics.bootstrap import Bootstrap, estimate_reweighted
from cxrjax.metrics.classification import ratio
from cxrjax.records import read_records, what_is_made
from cxrjax.training.workdir import storage_errors


def coverage(predictions: Path, references: Path, bootstrap: Bootstrap) -> dict[str, Any]:
    """The content of --out.

    Raises:
        UserError: unusable files, a question with boxes that has no prediction, or no true box.
    """
    records = {record.question_id: record for record in read_records(references)}
    found, _ = read_answered(predictions, records, widened=True)
    if not found:
        raise UserError(f"{references}: no question with boxes; expected records with answers")
    asked = np.array([one.finding for one in found])
    boxes = np.array([len(one.truth) for one in found], np.float64)
    covered = np.array([one.covered().sum() for one in found], np.float64)
    given = np.array([len(one.boxes) for one in found], np.float64)
    groups = ["", *sorted({*asked.tolist()} - {""})]
    of_group = {group: (asked == group) | (not group) for group in groups}

    def shares(weights: Float[np.ndarray, "draws questions"]) -> dict[str, np.ndarray]:
        return {
            group: ratio(weights @ (covered * here), weights @ (boxes * here))
            for group, here in of_group.items()
        }

    counts = {group: int(boxes[here].sum()) for group, here in of_group.items()}
    figures = estimate_reweighted(shares, [one.patient for one in found], counts, bootstrap)
    true_area = np.concatenate([_areas(one.truth) for one in found]).mean()
    area = np.concatenate([_areas(one.boxes) for one in found]) / true_area
    made = what_is_made(sorted({record.dataset for record in records.values()}))
    told = side_file(predictions)
    settings = read_json_object(told).get("settings", {}) if told.is_file() else {}
    return {
        "asked": settings.get("cover"),
        "covered": figures[""].to_json(),
        "patients": len({one.patient for one in found}),
        "boxes_a_question": round(float(given.mean()), 3),
        "area_of_true_boxes": round(float(area.mean()), 3) if len(area) else None,
        "by_finding": {group: figures[group].to_json() for group in groups[1:]},
        **({"made": made} if made else {}),
    }


def _areas(boxes: Float[np.ndarray, "n 4"]) -> Float[np.ndarray, " n"]:
    return np.asarray(np.prod(boxes[:, 2:] - boxes[:, :2], axis=1))


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Flags of the command; leaves with code 2 where they are unusable."""
    parser = command_parser("tools.coverage", __doc__)
    add = parser.add_argument
    add("--predictions", type=Path, required=True, metavar="FILE", help="lines with boxes")
    add("--references", type=Path, required=True, metavar="FILE", help="records with answers")
    add("--out", type=Path, metavar="FILE", help="JSON to write")
    add("--resamples", type=int, default=1000, help="bootstrap resamples (default 1000)")
    flags = parser.parse_args(argv)
    if flags.resamples < 0:
        parser.error("--resamples must not be negative")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the shares and prints them."""
    flags = parse_arguments(argv)
    found = coverage(flags.predictions, flags.references, Bootstrap(resamples=flags.resamples))
    text = json.dumps(found, indent=2) + "\n"
    if flags.out:
        with storage_errors(str(flags.out)):
            replace_text(flags.out, text)
    print(text, end="")


if __name__ == "__main__":
    cli.run(main)
