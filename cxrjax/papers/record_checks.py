"""Contradictions within records of any data set, by each one's own rules."""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cxrjax.papers.cxr_qba import record_checks as cxr_qba
from cxrjax.papers.gemex import record_checks as gemex
from cxrjax.papers.lungs import record_checks as lungs
from cxrjax.papers.vindr_cxr_vqa import record_checks as vindr
from cxrjax.papers.vix_ray import record_checks as vix_ray
from cxrjax.records import QARecord

# Data set -> what is found in one record; those that are not here are written as VinDr's are.
_CHECKS: Mapping[str, Callable[[QARecord], list[str]]] = {
    "gemex": gemex.check_record,
    "cxr_qba": cxr_qba.check_record,
    "vix_ray": vix_ray.check_record,
    "lungs": lungs.check_record,
    "ms_cxr": lambda record: [],  # labels and boxes as published, no words of ours
}
# Those whose records of one image may contradict each other as well.
_STUDY_CHECKS: Mapping[str, Callable[[Sequence[QARecord]], list[str]]] = {
    "cxr_qba": cxr_qba.check_study,
    "vix_ray": vix_ray.check_study,
}


def contradictions(records: Sequence[QARecord], most: int = 2_000) -> dict[str, Any]:
    """Contradictions in records, or in those of one image.

    Args:
        most: how many are read by themselves, evenly spaced; where records of one image are
            compared, all of the images that these are of.

    Returns:
        `read`: how many records were read; `contradictory`: in how many something
        was found; `found`: what, by question id, or by image id of what two records say.
    """
    some = records[:: max(-(-len(records) // most), 1)]
    found = {r.question_id: told for r in some if (told := _check(r))}
    images = {(record.dataset, record.image_id) for record in some}
    together: dict[tuple[str, str], list[QARecord]] = collections.defaultdict(list)
    for record in records:
        key = (record.dataset, record.image_id)
        if record.dataset in _STUDY_CHECKS and key in images:
            together[key].append(record)
    for (dataset, image_id), own in together.items():
        of_one = {one for record in own for one in _check(record)}
        if told := [one for one in _STUDY_CHECKS[dataset](own) if one not in of_one]:
            found[image_id] = told
    return {"read": len(some), "contradictory": len(found), "found": found}


def _check(record: QARecord) -> list[str]:
    return _CHECKS.get(record.dataset, vindr.check_record)(record)
