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

import numpy as np
import scipy.stats
from jaxtyping import Float

from cxrjax.apps.review.sheet import read_rows
from cxrjax.cli import run
from cxrjax.errors import UserError
from cxrjax.files import read_json_lines, reading, replace_text
from cxrjax.language_model.judges.judge import HIGHEST, LOWEST
from cxrjax.metrics.agreement import cohen_kappa

# (system or "" where the file names none, question)
Key = tuple[str, str]


class MarksFile(NamedTuple):
    """Marks of one rater.

    Attributes:
        failed: answers that the judge failed at.
    """

    marks: dict[Key, float]
    failed: int


class RaterAgreement(NamedTuple):
    """NaN where undefined: fewer than two items, or a rater who gives all the same."""

    n: int  # items that both rated
    spearman: float
    kendall: float
    kappa: float  # Cohen's with quadratic weights, of marks rounded to whole ones
    # `kappa_low`, `kappa_high`: its large-sample 95 % interval.
    kappa_low: float
    kappa_high: float
    icc: float  # of the marks themselves, see `intraclass_correlation`
    mean_difference: float  # second minus first


def rater_agreement(first: Sequence[float], second: Sequence[float]) -> RaterAgreement:
    """Computes the agreement on marks of the same items, in the same order.

    Kendall's tau is tau-b, which allows for ties.
    """
    one, two = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if len(one) == 0:
        return RaterAgreement(0, *[math.nan] * 7)
    spearman = kendall = math.nan
    if len(one) > 1 and np.ptp(one) > 0 and np.ptp(two) > 0:
        spearman = float(scipy.stats.spearmanr(one, two).statistic)
        kendall = float(scipy.stats.kendalltau(one, two).statistic)
    marks = np.rint(np.stack([one, two])).astype(np.int64)
    marks -= marks.min()
    kappa = cohen_kappa(marks[0], marks[1], int(marks.max()) + 1, "quadratic")
    difference = float((two - one).mean())
    icc = intraclass_correlation(np.stack([one, two]))
    return RaterAgreement(
        len(one), spearman, kendall, kappa.value, *kappa.interval, icc, difference
    )


def intraclass_correlation(ratings: Float[np.ndarray, "readers items"]) -> float:
    """Computes ICC(2,1): absolute agreement of single readers, a random sample as the items are.

    Shrout and Fleiss, Psychological Bulletin 86 (1979). NaN with fewer than two items or readers,
    or where nothing varies.
    """
    readers, items = ratings.shape
    if min(readers, items) < 2:
        return math.nan
    by_item, by_reader, mean = ratings.mean(axis=0), ratings.mean(axis=1), ratings.mean()
    between_items = readers * float(((by_item - mean) ** 2).sum()) / (items - 1)
    between_readers = items * float(((by_reader - mean) ** 2).sum()) / (readers - 1)
    rest = ratings - by_item[None, :] - by_reader[:, None] + mean
    residual = float((rest**2).sum()) / ((items - 1) * (readers - 1))
    total = between_items + (readers - 1) * residual
    total += readers * (between_readers - residual) / items
    return (between_items - residual) / total if total > 0 else math.nan


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
