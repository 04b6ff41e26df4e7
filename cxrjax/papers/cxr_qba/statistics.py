"""Counts of what was built, in the release's layout, beside its own figures."""

import collections
import re
from collections.abc import Mapping
from typing import Any

from cxrjax.papers.cxr_qba.construct.phrases import NOT_MENTIONED
from cxrjax.papers.cxr_qba.construct.ratings import (
    FINETUNING,
    GRADES,
    PRETRAINING,
    UNRATED,
    at_least,
    overall_grade,
)
from cxrjax.papers.cxr_qba.native import QUESTION_TYPES, StudyQuestions
from cxrjax.radiology_text.definitions import Definitions
from cxrjax.radiology_text.error_rates import about_reading
from cxrjax.records_io.statistics import Published, load_statistics, ratio, tables_markdown

SPLITS = ("train", "validation", "test", "total")
_PRINTED = load_statistics(str(__package__))
# Row -> train, validation, test, total; question type -> QA pairs of the whole release.
RELEASE: dict[str, list[int]] = _PRINTED["release"]
RELEASE_TYPES: dict[str, int] = _PRINTED["types"]
_NOTES: dict[str, str] = _PRINTED["notes"]
_PAGE = _NOTES["page"]
# Of the reference definitions: the release's number, and why ours is another.
RELEASE_DEFINITIONS: dict[str, tuple[int, str]] = {
    name: (count, why) for name, (count, why) in _PRINTED["definitions"].items()
}
# Of devices as such, and of devices in a region.
DEVICE_TYPES = (
    "B12_describe_device",
    "B13_has_devices",
    "C07_describe_region_device",
    "C08_has_region_device",
)
_YES_NO = re.compile(r"^[A-Z]\d\d_(?:is|has)_")
_OUTCOMES = {"pos": "yes", "neg": "no"}


def published() -> dict[str, Published]:
    """The release's figures under the names that `StudyStatistics.values` uses."""
    table = {}
    for row, values in RELEASE.items():
        note = _NOTES.get(row, _PAGE)
        for split, value in zip(SPLITS, values, strict=True):
            table[_name(split, row)] = Published(value, note)
    for name, (count, why) in RELEASE_DEFINITIONS.items():
        table[f"definitions/{name}"] = Published(count, why)
    for kind, total in RELEASE_TYPES.items():
        table[f"question_type/{kind}"] = Published(total, _PAGE)
        share = ratio(100 * total, RELEASE["questions"][3])
        table[f"question_type_percent/{kind}"] = Published(share, _PAGE)
    devices = sum(RELEASE_TYPES[kind] for kind in DEVICE_TYPES)
    share = ratio(100 * devices, RELEASE["questions"][3])
    table["device_questions_percent"] = Published(share, f"{_PAGE}: B12, B13, C07, C08")
    rated = {grade: RELEASE[f"grade/{grade}"][3] for grade in GRADES}
    for grade, count in rated.items():
        share = ratio(100 * count, sum(rated.values()))
        table[f"surrogate_grade_percent/{grade}"] = Published(share, f"{_PAGE}: of those rated")
    return table


def definition_counts(definitions: Definitions) -> dict[str, int]:
    """Counts of what reports are read into, by the names of `RELEASE_DEFINITIONS`."""
    localized = sum(region.localized for region in definitions.regions.values())
    return {
        "regions": len(definitions.regions),
        "localized_regions": localized,
        "other_regions": len(definitions.regions) - localized,
        "findings": len(definitions.findings),
    }


class StudyStatistics:
    """Counts over studies that are added one by one."""

    def __init__(self) -> None:
        self._counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self._patients: dict[str, set[str]] = collections.defaultdict(set)
        self._types: collections.Counter[str] = collections.Counter()
        self._extra: collections.Counter[str] = collections.Counter()
        # Of parts that were merged; no patient is in two of them.
        self._merged_patients: collections.Counter[str] = collections.Counter()

    def add(self, study: StudyQuestions, split: str, frontal_images: int) -> None:
        """Counts a study."""
        self._patients[split].add(study.patient_id)
        self._count(split, "studies")
        for question in study.questions:
            self._count(split, "questions")
            self._count(split, f"strategy/{question.question_strategy}")
            self._types[question.question_type] += 1
            grade = overall_grade(question)
            self._count(split, f"grade/{grade}")
            for least, row in (
                (FINETUNING, "finetuning_questions"),
                (PRETRAINING, "pretraining_questions"),
            ):
                if frontal_images and at_least(grade, least):
                    self._count(split, row)
            for _ in question.all_answers():
                self._count(split, "sub_answers")
            held = question.question_quality
            if extraction := held.get("extraction_grade"):
                self._extra[f"extraction_grade/{extraction}"] += 1
            if surrogate := held.get("surrogate"):
                self._extra[f"surrogate_grade/{surrogate['grade']}"] += 1
                for answer in question.all_answers():
                    verdict = answer.answer_quality.get("surrogate", {}).get("entailment")
                    self._extra[f"surrogate_entailment/{verdict}"] += 1
            main = question.answers[0] if question.answers else None
            if main and _YES_NO.match(question.question_type):
                outcome = _OUTCOMES.get(main.positiveness or "", NOT_MENTIONED)
                self._extra[f"outcome/{question.question_type}/{outcome}"] += 1

    def _count(self, split: str, row: str) -> None:
        self._counts[split, row] += 1
        self._counts["total", row] += 1

    def _patient_counts(self) -> collections.Counter[str]:
        counts = {split: len(ids) for split, ids in self._patients.items()}
        counts["total"] = len(set().union(*self._patients.values()))
        return self._merged_patients + collections.Counter(counts)

    def to_json(self) -> dict[str, Any]:
        """The counts, for `merge`."""
        return {
            "patients": self._patient_counts(),
            "counts": [[*key, count] for key, count in sorted(self._counts.items())],
            "types": self._types,
            "extra": self._extra,
        }

    def merge(self, content: Mapping[str, Any]) -> None:
        """Adds what `to_json` gave of other patients."""
        self._merged_patients.update(content["patients"])
        self._counts.update({(split, row): n for split, row, n in content["counts"]})
        self._types.update(content["types"])
        self._extra.update(content["extra"])

    def values(self) -> dict[str, float | None]:
        """Name -> count; shares of question types in percent, None without questions."""
        patients = self._patient_counts()
        splits = [split for split in SPLITS[:-1] if split in patients]
        values: dict[str, float | None] = {}
        for row in RELEASE:
            if row == "patients":
                for split in (*splits, "total"):
                    values[_name(split, row)] = patients[split]
            else:
                for split in (*splits, "total"):
                    values[_name(split, row)] = self._counts[split, row]
        for kind in QUESTION_TYPES:
            values[f"question_type/{kind}"] = self._types[kind]
            share = ratio(100 * self._types[kind], self._types.total())
            values[f"question_type_percent/{kind}"] = share
        devices = sum(self._types[kind] for kind in DEVICE_TYPES)
        values["device_questions_percent"] = ratio(100 * devices, self._types.total())
        graded = {grade: self._extra[f"surrogate_grade/{grade}"] for grade in GRADES}
        if any(graded.values()):
            for grade, count in graded.items():
                share = ratio(100 * count, sum(graded.values()))
                values[f"surrogate_grade_percent/{grade}"] = share
        return {**values, **dict(sorted((+self._extra).items()))}


def markdown(comparison: Mapping[str, Mapping[str, Any]], by_rules: bool) -> str:
    """tables.md: the tables of the release's page with ours beside theirs.

    Args:
        by_rules: whether rules read the reports that it was made from; then how well they read.
    """
    release = {name: name for row in RELEASE for name in (_name(split, row) for split in SPLITS)}
    types = {kind: f"question_type/{kind}" for kind in RELEASE_TYPES}
    shares = {"questions on devices (B12, B13, C07, C08), %": "device_questions_percent"}
    shares |= {
        f"grade {g}, ours by rules, % of rated": f"surrogate_grade_percent/{g}" for g in GRADES
    }
    outcomes = {
        f"{kind}: {outcome}": f"outcome/{kind}/{outcome}"
        for kind in filter(_YES_NO.match, QUESTION_TYPES)
        for outcome in ("yes", "no", NOT_MENTIONED)
    }
    about = [f"Grade `{UNRATED}`: a language model's verdict is missing; grades {GRADES}."]
    about += [about_reading("openi_en")] if by_rules else []
    tables = {"The release": release, "Question types": types, "Shares": shares}
    return tables_markdown("CXR-QBA", about, comparison, {**tables, "Yes or no": outcomes})


def _name(split: str, row: str) -> str:
    return row if split == "total" else f"{split}_{row}"
