"""A page of CXR-QBA's records for a radiologist, and what a filled sheet tells of grades."""

import collections
import csv
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cxrjax.errors import ForeignError, UserError
from cxrjax.evaluation.overlays import COLOURS, TRUTH, jpeg_data_uri, overlay
from cxrjax.evaluation.text_tables import template
from cxrjax.files import replace_text, writing
from cxrjax.images.decode import read_image
from cxrjax.metrics.agreement import cohen_kappa
from cxrjax.papers.cxr_qba.build import NATIVE
from cxrjax.papers.cxr_qba.construct.ratings import GRADES, UNRATED
from cxrjax.papers.cxr_qba.record_checks import check_record
from cxrjax.papers.cxr_qba.study_files import StudyFiles
from cxrjax.records import QARecord, read_records
from cxrjax.records_io.builder import records_files
from cxrjax.records_io.csv_table import read_table
from cxrjax.records_io.quality import QualityLog

PAGE, SHEET = "page.html", "sheet.csv"
RIGHT = ("yes", "no", "unsure")
_COLUMNS = ("number", "question_id", "graded", "of_grade", "question", "answer", "right", "grade")
_Z = 1.959964


def grade_of(record: QARecord) -> str:
    """The record's grade: a language model's, else the rules'."""
    return record.grade or record.quality.get("surrogate_grade") or UNRATED


def draw(
    build: Path, count: int, by_grade: bool, seed: int
) -> tuple[list[QARecord], Mapping[str, int]]:
    """Records at random, and how many of each grade there are.

    Args:
        by_grade: as many of each grade as there are, as far as possible; else any as likely.

    Raises:
        UserError: the build has no records.
    """
    # Reservoirs: a build may hold millions.
    rng = random.Random(f"{seed}/audit")
    kept: dict[str, list[QARecord]] = collections.defaultdict(list)
    seen: collections.Counter[str] = collections.Counter()
    grades: collections.Counter[str] = collections.Counter()
    for file in records_files(build):
        for record in read_records(file):
            grade = grade_of(record)
            grades[grade] += 1
            group = grade if by_grade else ""
            seen[group] += 1
            if len(kept[group]) < count:
                kept[group].append(record)
            elif (place := rng.randrange(seen[group])) < count:
                kept[group][place] = record
    drawn: list[QARecord] = []
    groups = sorted(kept, key=lambda group: len(kept[group]))
    for number, group in enumerate(groups):
        share = (count - len(drawn)) // (len(groups) - number)
        drawn += rng.sample(kept[group], min(share, len(kept[group])))
    rng.shuffle(drawn)
    return drawn, grades


def write_audit(
    build: Path, out: Path, count: int, by_grade: bool, seed: int, image_root: Path | None
) -> tuple[int, int]:
    """Writes the page and the sheet.

    Returns:
        records; those in which `check_record` finds a fault.

    Raises:
        UserError: the build cannot be read or the folder not be written.
    """
    drawn, grades = draw(build, count, by_grade, seed)
    with StudyFiles(build / NATIVE, QualityLog()) as files:
        shown = [_view(record, files, image_root) for record in drawn]
    page = template(str(__package__), "audit.html.j2").render(
        records=shown, name=build.name, of=sum(grades.values()), seed=seed, by_grade=by_grade
    )
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        replace_text(out / PAGE, page)
        with (out / SHEET).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(_COLUMNS)
            for number, record in enumerate(drawn, start=1):
                grade = grade_of(record)
                row = (number, record.question_id, grade, grades[grade])
                writer.writerow((*row, record.question, record.answer_text, "", ""))
    return len(shown), sum(bool(one["faults"]) for one in shown)


def _view(record: QARecord, files: StudyFiles, image_root: Path | None) -> dict[str, Any]:
    """The template's view of a record."""
    key = (record.patient_id or "", record.study_id or "")
    graph = files.read(key)[0] if key in files.members else None
    return {
        "record": record,
        "grade": grade_of(record),
        "faults": check_record(record),
        "picture": _picture(record, image_root),
        "sentences": [
            one.sentence
            for one in (graph.sentences.values() if graph else ())
            if one.section != "indication"
        ],
    }


def _picture(record: QARecord, image_root: Path | None) -> str:
    """The image with boxes of all main answers, as a data address; boxes alone without a file."""
    if record.image_hw is None:
        return ""
    height, width = record.image_hw
    pixels = np.full((256, max(round(256 * width / height), 1)), 40, np.uint8)
    if image_root is not None:
        try:
            pixels = read_image(image_root / record.image_path, (512, 512))
        except (OSError, UserError, ForeignError):
            return ""
    boxes = np.asarray(record.boxes, np.float64).reshape(-1, 4) / [width, height, width, height]
    return jpeg_data_uri(overlay(pixels, {COLOURS[TRUTH]: boxes}), 384)


def agreement(sheet: Path) -> str:
    """Evaluates the grades by a filled sheet; returns Markdown.

    Raises:
        UserError: the sheet is unreadable, a cell has an unexpected value, or none is filled.
    """
    rows = list(_filled(sheet))
    if not rows:
        raise UserError(f"{sheet}: no line has anything in its column `right`; fill it in first")
    lines = ["| grade | judged | right | share right, % (95 %) |", "|---|---|---|---|"]
    shares, weights = [], []
    for grade in (*GRADES, UNRATED):
        own = [row for row in rows if row["graded"] == grade and row["right"] != "unsure"]
        if not own:
            continue
        right = sum(row["right"] == "yes" for row in own)
        low, high = wilson(right, len(own))
        shares.append(right / len(own))
        weights.append(int(own[0]["of_grade"]))
        lines.append(
            f"| {grade} | {len(own)} | {right} | {100 * right / len(own):.1f} "
            f"({100 * low:.1f} to {100 * high:.1f}) |"
        )
    if shares:
        whole = 100 * float(np.average(shares, weights=weights))
        lines += ["", f"Of the whole build, by the grades' shares: {whole:.1f} % right."]
    unsure = sum(row["right"] == "unsure" for row in rows)
    lines += [f"Unsure: {unsure} of {len(rows)}."]
    both = [row for row in rows if row["grade"] and row["graded"] in GRADES]
    if both:
        ours, theirs = ([GRADES.index(row[n]) for row in both] for n in ("graded", "grade"))
        kappa = cohen_kappa(ours, theirs, len(GRADES), "linear")
        same = sum(a == b for a, b in zip(ours, theirs, strict=True))
        lines.append(
            f"Grades given by both: {len(both)}, the same in {same}; linearly weighted kappa "
            f"{kappa.value:.2f}."
        )
    return "\n".join(lines)


def _filled(sheet: Path) -> Any:
    for row in read_table(sheet, ("question_id", "graded", "of_grade", "right", "grade")):
        if row.fault:
            raise UserError(f"{row.where}: {row.fault.found}")
        cells = {name: text.strip() for name, text in row.cells.items()}
        cells["right"] = cells["right"].lower()
        if not cells["right"]:
            continue
        if cells["right"] not in RIGHT:
            raise UserError(f"{row.where}: right is {cells['right']!r}; expected one of {RIGHT}")
        if cells["grade"] not in ("", *GRADES):
            raise UserError(f"{row.where}: grade is {cells['grade']!r}; expected one of {GRADES}")
        if not cells["of_grade"].isdecimal():
            raise UserError(f"{row.where}: of_grade is {cells['of_grade']!r}; leave it as it was")
        yield cells


def wilson(right: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    share, z2 = right / total, _Z * _Z
    centre = (share + z2 / (2 * total)) / (1 + z2 / total)
    spread = _Z * np.sqrt(share * (1 - share) / total + z2 / (4 * total**2)) / (1 + z2 / total)
    return float(max(centre - spread, 0.0)), float(min(centre + spread, 1.0))
