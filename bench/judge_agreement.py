"""Compares a judge with people, or with another judge, on the answers that both rated.

    python -m bench.judge_agreement --marks=DIR/judgements.jsonl --marks=people.csv

Each --marks is a judgements.jsonl as `score` writes it (the mark of the answer, its mean over both
orders), or a CSV file of people's marks with the columns question_id, system (if there are several)
and mark, 1 to 10. Prints Spearman's and Kendall's correlation, Cohen's kappa with quadratic weights
of rounded marks with its 95 % interval, the intraclass correlation ICC(2,1) of the marks as they
are, how much higher the second marks, and what was left out.
"""

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cxrjax.apps.review.sheet import read_rows
from cxrjax.cli import run
from cxrjax.errors import UserError
from cxrjax.files import read_json_lines, reading, replace_text
from cxrjax.language_model.judges.judge import HIGHEST, LOWEST
from cxrjax.metrics.agreement import RaterAgreement, rater_agreement

# (system or "" where the file names none, question)
Key = tuple[str, str]


class MarksFile(NamedTuple):
    """Marks of one rater.

    Attributes:
        failed: answers that the judge failed at.
    """

    marks: dict[Key, float]
    failed: int


def compare(first: MarksFile, second: MarksFile) -> tuple[RaterAgreement, dict[str, int]]:
    """(agreement on what both rated, how many answers only one did or a judge failed at).

    Raises:
        UserError: one file names systems, several of them, and the other none; or no answer is in
            both.
    """
    one, two = _joined(first.marks, second.marks)
    common = [key for key in one if key in two]
    if not common:
        raise UserError("the two --marks have no answer in common: same question_id and system?")
    left_out = {
        "only_first": len(one) - len(common),
        "only_second": len(two) - len(common),
        "failed_first": first.failed,
        "failed_second": second.failed,
    }
    return rater_agreement([one[key] for key in common], [two[key] for key in common]), left_out


def read_marks(path: Path) -> MarksFile:
    """Marks from judgements.jsonl or a CSV file.

    Raises:
        UserError: the file is unusable; names the line.
    """
    marks: dict[Key, float] = {}
    failed = 0
    read = _csv_marks if path.suffix.lower() == ".csv" else _judged_marks
    with reading(path):
        for where, key, mark in read(path):
            if mark is None:
                failed += 1
                continue
            if key in marks:
                raise UserError(f"{where}: question {key[1]} is rated twice; expected one mark")
            if not LOWEST <= mark <= HIGHEST:
                raise UserError(f"{where}: mark {mark:g}, expected {LOWEST} to {HIGHEST}")
            marks[key] = mark
    return MarksFile(marks, failed)


def _csv_marks(path: Path) -> Iterator[tuple[str, Key, float | None]]:
    for row, where in read_rows(path, ("question_id", "mark")):
        text = row["mark"]
        try:
            mark = float(text)
        except ValueError:
            mark = math.nan
        if math.isnan(mark):
            raise UserError(f"{where}: mark {text!r} is no number; expected 1 to 10")
        yield where, (row.get("system", ""), row["question_id"]), mark


def _judged_marks(path: Path) -> Iterator[tuple[str, Key, float | None]]:
    hint = "expected a judgements.jsonl that score wrote"
    for where, fields in read_json_lines(path, "judgements", hint):
        try:
            if fields["task"] != "relative_score":
                continue
            mark = fields["answer"]
            key = str(fields["system"]), str(fields["question_id"])
            yield where, key, None if mark is None else float(mark)
        except (ValueError, TypeError, KeyError):
            raise UserError(f"{where}: no judgement; {hint}") from None


def _joined(
    first: Mapping[Key, float], second: Mapping[Key, float]
) -> tuple[Mapping[Key, float], Mapping[Key, float]]:
    """Both with systems, or both without where one names none and the other one alone."""
    systems = [{system for system, _ in marks} for marks in (first, second)]
    if ("" in systems[0]) == ("" in systems[1]):
        return first, second
    if max(map(len, systems)) > 1:
        raise UserError(
            "one --marks names several systems and the other none: add a column system to it"
        )
    return _without_system(first), _without_system(second)


def _without_system(marks: Mapping[Key, float]) -> dict[Key, float]:
    return {("", question): mark for (_, question), mark in marks.items()}


def main(argv: Sequence[str] | None = None) -> None:
    """Compares what the flags name, prints it and writes it where --out says."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.judge_agreement",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--marks", required=True, type=Path, action="append", metavar="FILE", help="give two")
    add("--out", type=Path, metavar="FILE", help="the figures as JSON")
    flags = parser.parse_args(argv)
    if len(flags.marks) != 2:
        parser.error(f"{len(flags.marks)} --marks, expected two")
    agreement, left_out = compare(*map(read_marks, flags.marks))
    figures = {
        name: None if math.isnan(value) else value for name, value in agreement._asdict().items()
    }
    content = json.dumps({**figures, "left_out": left_out}, indent=1)
    print(content)
    if flags.out:
        try:
            replace_text(flags.out, content + "\n")
        except OSError as error:
            raise UserError(f"{flags.out}: cannot be written: {error.strerror}") from None


if __name__ == "__main__":
    run(main)
