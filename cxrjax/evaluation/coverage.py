"""Share of the reference boxes that lie within predicted ones."""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from cxrjax.errors import UserError
from cxrjax.evaluation.conformal import read_answered
from cxrjax.evaluation.run_record import side_file
from cxrjax.files import read_json_object
from cxrjax.metrics.bootstrap import Bootstrap, estimate_reweighted
from cxrjax.metrics.classification import ratio
from cxrjax.paper import what_is_made
from cxrjax.records import read_records


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
