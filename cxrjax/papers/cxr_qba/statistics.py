"""Counts of what was built, in the release's layout, beside its own figures.

On the release's page the numbers of QA pairs of validation and test are swapped: sums of ratings
and of strategies show it. Here they are right.
"""

import collections
from collections.abc import Mapping
from typing import Any

from cxrjax.papers.cxr_qba.construct.ratings import (
    FINETUNING,
    GRADES,
    PRETRAINING,
    UNRATED,
    at_least,
    overall_grade,
)
from cxrjax.papers.cxr_qba.native import QUESTION_TYPES, StudyQuestions
from cxrjax.records_io.statistics import Published, ratio

SPLITS = ("train", "validation", "test", "total")
# Row -> train, validation, test, total. Ratings count QA pairs of all views.
RELEASE: dict[str, tuple[int, int, int, int]] = {
    "patients": (64_524, 500, 293, 65_317),
    "studies": (222_180, 1_805, 3_254, 227_239),
    "questions": (41_239_042, 333_022, 600_763, 42_172_827),
    "finetuning_questions": (7_378_344, 58_486, 95_451, 7_532_281),
    "pretraining_questions": (30_542_190, 246_233, 442_483, 31_230_906),
    "grade/A++": (1_338_959, 10_267, 18_775, 1_368_001),
    "grade/A+": (1_092_771, 8_610, 14_408, 1_115_789),
    "grade/A": (5_237_408, 41_758, 68_414, 5_347_580),
    "grade/B": (24_241_667, 197_103, 373_911, 24_812_681),
    "grade/C": (683_310, 5_848, 11_589, 700_747),
    "grade/D": (534_169, 4_326, 9_268, 547_763),
    "grade/unrated": (8_110_758, 65_110, 104_398, 8_280_266),
    "sub_answers": (88_876_344, 717_117, 1_321_739, 90_915_200),
    "strategy/indication": (213_506, 1_741, 3_047, 218_294),
    "strategy/abnormal": (11_652_463, 94_095, 168_826, 11_915_384),
    "strategy/region_abnormal": (20_169_684, 162_217, 288_807, 20_620_708),
    "strategy/finding": (9_203_389, 74_969, 140_083, 9_418_441),
}
# Question type -> QA pairs of the whole release.
RELEASE_TYPES: dict[str, int] = {
    "A_indication": 218_294,
    "B01_describe_all": 208_433,
    "B02_describe_abnormal": 208_433,
    "B03_is_abnormal": 208_433,
    "B04_is_normal": 208_433,
    "B08_describe_subcat": 2_360_329,
    "B09_describe_abnormal_subcat": 2_360_329,
    "B10_is_abnormal_subcat": 2_360_329,
    "B11_is_normal_subcat": 1_667_464,
    "B12_describe_device": 954_659,
    "B13_has_devices": 954_659,
    "B14_describe_acquisition": 7_017,
    "B15_describe_imaging_artifacts": 208_433,
    "B16_has_imaging_artifacts": 208_433,
    "C01_describe_region": 2_827_147,
    "C02_describe_abnormal_region": 2_827_177,
    "C03_is_abnormal_region": 2_832_066,
    "C04_is_normal_region": 2_831_838,
    "C07_describe_region_device": 4_650_283,
    "C08_has_region_device": 4_652_197,
    "D01_describe_finding": 2_550_098,
    "D02_has_finding": 2_551_216,
    "D03_where_is_finding": 2_021_152,
    "D04_how_severe_is_finding": 1_325_613,
    "D05_describe_device": 326_628,
    "D06_has_device": 321_678,
    "D07_where_is_device": 322_056,
}
_PAGE = "the release's page, MIMIC-CXR"
_NOTES = {
    "questions": "validation and test are swapped on the page; right here by every other sum",
    "finetuning_questions": "A and better, studies with a frontal image",
    "pretraining_questions": "B and better, studies with a frontal image; of all views 32,644,051",
}


def published() -> dict[str, Published]:
    """The release's figures under the names that `StudyStatistics.values` uses."""
    table = {}
    for row, values in RELEASE.items():
        note = _NOTES.get(row, _PAGE)
        for split, value in zip(SPLITS, values, strict=True):
            table[_name(split, row)] = Published(value, note)
    for kind, total in RELEASE_TYPES.items():
        table[f"question_type/{kind}"] = Published(total, _PAGE)
        share = ratio(100 * total, RELEASE["questions"][3])
        table[f"question_type_percent/{kind}"] = Published(share, _PAGE)
    return table


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
        return {**values, **dict(sorted(self._extra.items()))}


def markdown(values: Mapping[str, float | None]) -> str:
    """The table of the release's page with ours above theirs, as Markdown."""
    lines = ["| | | train | validation | test | total |", "|---|---|---|---|---|---|"]

    def row(label: str, who: str, numbers: list[str]) -> str:
        return f"| {label} | {who} | " + " | ".join(numbers) + " |"

    for name, release in RELEASE.items():
        ours = [values.get(_name(split, name)) for split in SPLITS]
        lines.append(row(name, "ours", ["-" if v is None else f"{v:,}" for v in ours]))
        lines.append(row("", "release", [f"{v:,}" for v in release]))
    lines += ["", "| question type | ours | release |", "|---|---|---|"]
    for kind, total in RELEASE_TYPES.items():
        lines.append(f"| {kind} | {values.get(f'question_type/{kind}') or 0:,} | {total:,} |")
    lines += ["", f"Grade `{UNRATED}`: a language model's verdict is missing; grades {GRADES}."]
    return "\n".join(lines) + "\n"


def _name(split: str, row: str) -> str:
    return row if split == "total" else f"{split}_{row}"
