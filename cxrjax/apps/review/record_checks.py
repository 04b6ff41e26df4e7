"""Checks of records by the rules of their data sets, and of their form where one has no rules."""

import collections
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from cxrjax.paper import find_paper, load_part
from cxrjax.records import QARecord
from cxrjax.records_io import gate
from cxrjax.records_io.quality import QualityLog, Unusable, check_box

_REASON_WORDS = 150, 250  # words of a reason in VinDr-CXR-VQA (Table 2)


def check_file(records: Sequence[QARecord], log: QualityLog, where: str) -> None:
    """Logs faults of the records of a file: as their data sets check it, else ids and boxes."""
    by_check: dict[str, list[QARecord]] = collections.defaultdict(list)
    for record in records:
        by_check[find_paper(record.dataset).check_file].append(record)
    for check, own in by_check.items():
        (load_part(check) if check else _check_form)(own, log, where)


def _check_form(records: Iterable[QARecord], log: QualityLog, where: str) -> None:
    seen: set[str] = set()
    for record in records:
        log.examined["questions"] += 1
        if record.question_id in seen:
            log.set_aside("duplicate_id", record.question_id, where, "a question_id used before")
        seen.add(record.question_id)
        for x_min, y_min, x_max, y_max in record.boxes:
            try:
                check_box((x_min, y_min, x_max, y_max), record.image_hw)
            except Unusable as fault:
                log.set_aside(fault.reason, record.question_id, where, fault.found)


def contradictions(records: Sequence[QARecord], most: int = 2_000) -> dict[str, Any]:
    """Contradictions in records, or in those of one image.

    Args:
        most: number of records that are read, evenly spaced; where records of one image are
            compared, all those of the same images.

    Returns:
        `read`: number of records read; `contradictory`: number of them with contradictions;
        `found`: contradictions by question id, those between records by image id.
    """
    some = records[:: max(-(-len(records) // most), 1)]
    found = {r.question_id: told for r in some if (told := _check(r))}
    images = {(record.dataset, record.image_id) for record in some}
    together: dict[tuple[str, str], list[QARecord]] = collections.defaultdict(list)
    for record in records:
        key = (record.dataset, record.image_id)
        if find_paper(record.dataset).check_study and key in images:
            together[key].append(record)
    for (dataset, image_id), own in together.items():
        of_one = {one for record in own for one in _check(record)}
        found_together = find_paper(dataset).part("check_study")(own)
        if told := [one for one in found_together if one not in of_one]:
            found[image_id] = told
    return {"read": len(some), "contradictory": len(found), "found": found}


def _check(record: QARecord) -> list[str]:
    check = find_paper(record.dataset).part("check_record")
    found = check(record) if check else []
    try:
        gate.check(record, {mark.label for own in (record.readers or {}).values() for mark in own})
    except Unusable as fault:
        found.append(f"{fault.reason}: {fault.found}")
    return found


def reason_words(records: Iterable[QARecord]) -> dict[str, Any]:
    """Counts words of reasons, beside Table 2's 150 to 250."""
    counts = np.array([len(re.findall(r"\S+", record.reason or "")) for record in records])
    low, high = _REASON_WORDS
    if not len(counts):
        return {"reasons": 0}
    edges = (0, 1, 50, 100, low, high + 1, 2**31)
    names = ("none", "1-49", "50-99", f"100-{low - 1}", f"{low}-{high}", f"over {high}")
    histogram, _ = np.histogram(counts, edges)
    quantiles = np.quantile(counts, (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1))
    return {
        "reasons": len(counts),
        "mean": float(counts.mean()),
        "quantiles": dict(
            zip(("min", "5%", "25%", "50%", "75%", "95%", "max"), quantiles.tolist(), strict=True)
        ),
        "share_within_150_to_250": float(((counts >= low) & (counts <= high)).mean()),
        "distribution": dict(zip(names, histogram.tolist(), strict=True)),
    }
