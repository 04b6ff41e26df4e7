"""Makes a page of CXR-QBA's records for a radiologist to inspect, or to judge grades by.

    python -m bench.cxr_qba_audit --build=BUILD --out=DIR [--image_root=IMAGES]
    python -m bench.cxr_qba_audit --build=BUILD --out=DIR --count=200 --by_grade
    python -m bench.cxr_qba_audit --sheet=DIR/sheet.csv

DIR/page.html shows each record as it is asked and answered, with its boxes, the report's sentences
and what `record_checks` finds. DIR/sheet.csv has a line for each: `right` is filled in with yes, no
or unsure, `grade` with A++ to D where the radiologist cares to. With --sheet, the filled sheet says
how many answers of each grade are right, and how grades agree. The page holds what reports say:
their terms hold for it.
"""

import argparse
import collections
import csv
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

from cxrjax.cli import run
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
from cxrjax.paths import in_path, out_path
from cxrjax.records import QARecord, read_records
from cxrjax.records_io.builder import records_files
from cxrjax.records_io.csv_table import read_table
from cxrjax.records_io.quality import QualityLog

PAGE, SHEET = "page.html", "sheet.csv"
RIGHT = ("yes", "no", "unsure")
_COLUMNS = ("number", "question_id", "graded", "of_grade", "question", "answer", "right", "grade")


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
    page = template("bench", "cxr_qba_audit.html.j2").render(
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
        low, high = binomtest(right, len(own)).proportion_ci(method="wilson")
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


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the page and the sheet, or reads a filled one."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.cxr_qba_audit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--build", type=in_path, help="folder of a build of cxr_qba")
    add("--out", type=out_path, help="folder to write to")
    add("--sheet", type=in_path, help="a filled sheet, to be read")
    add("--count", type=int, default=60, help="records (default 60)")
    add("--by_grade", action="store_true", help="as many of each grade, as far as there are")
    add("--image_root", type=in_path, help="folder of the images (default: boxes alone)")
    add("--seed", type=int, default=0, help="decides which (default 0)")
    flags = parser.parse_args(argv)
    if flags.sheet:
        print(agreement(flags.sheet))
        return
    if not flags.build or not flags.out or flags.count < 1:
        parser.error("expected --build and --out, and --count of at least 1; or --sheet")
    count, faulty = write_audit(
        flags.build, flags.out, flags.count, flags.by_grade, flags.seed, flags.image_root
    )
    print(f"{flags.out / PAGE}: {count} records, {faulty} with a contradiction")


if __name__ == "__main__":
    run(main)
