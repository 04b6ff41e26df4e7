"""Draws the questions to review (the paper: 100 of 17,597); writes and reads their sheet."""

import collections
import csv
import dataclasses
import io
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from cxrjax.apps.review.wording import boxes_in_words, has_reason, in_words
from cxrjax.errors import UserError
from cxrjax.files import cell, reading
from cxrjax.records import QARecord
from cxrjax.untrusted.foreign_files import read_text

OPEN = "several or none"
MOST_SAMPLED = 100  # questions, unless --sample says how many


def finding_of(record: QARecord) -> str:
    """Returns the finding that a question is about, or `OPEN` unless there is exactly one."""
    labels = {label for answer in record.answers for label in answer.labels}
    if record.gt_finding:
        return record.gt_finding
    return labels.pop() if len(labels) == 1 else OPEN


def stratified_sample(records: Iterable[QARecord], count: int, seed: int) -> list[QARecord]:
    """Questions with every type and every finding at about its own share, and at least once.

    One question after the other is taken from the stratum (type, finding) whose type and finding
    lack most of their share, from images not drawn yet where there are any.

    Args:
        count: how many; more than there are is an error.
        seed: decides among questions of a stratum, and the order of the sample.

    Raises:
        UserError: fewer questions than `count`.
    """
    strata: dict[tuple[str, str], list[QARecord]] = collections.defaultdict(list)
    total = 0
    for record in records:
        strata[record.question_type, finding_of(record)].append(record)
        total += 1
    if not 0 < count <= total:
        raise UserError(f"a sample of {count} from {total} questions: expected 1 to {total}")
    targets: collections.Counter[tuple[int, str]] = collections.Counter()
    for stratum, members in strata.items():
        members.sort(key=lambda r: random.Random(f"{seed}/{r.question_id}/review").random())
        for side in enumerate(stratum):
            targets[side] += len(members)
    shares = {side: max(count * have / total, 1.0) for side, have in targets.items()}
    taken: collections.Counter[tuple[int, str]] = collections.Counter()
    images: set[str] = set()
    chosen: list[QARecord] = []
    # Equal needs are settled by chance, not by the alphabet.
    order = random.Random(f"{seed}/strata/review")
    queue = sorted(strata)
    order.shuffle(queue)
    while len(chosen) < count:

        def need(stratum: tuple[str, str]) -> float:
            return sum(1 - taken[side] / shares[side] for side in enumerate(stratum))

        best = max((stratum for stratum in queue if strata[stratum]), key=need)
        members = strata[best]
        fresh = next((i for i, r in enumerate(members) if r.image_id not in images), 0)
        record = members.pop(fresh)
        images.add(record.image_id)
        taken.update(enumerate(best))
        chosen.append(record)
    random.Random(f"{seed}/order/review").shuffle(chosen)
    return chosen


DIMENSIONS = {
    "reasoning_accuracy": "Reasoning accuracy: is the reason medically right, and does it lead to "
    "the answer?",
    "answer_appropriateness": "Answer appropriateness: does the answer fit question and image?",
    "spatial_reference": "Spatial reference correctness: is the box where the finding is?",
}
LEVELS = ("acceptable", "minor", "major")  # in order of severity
# For the spatial dimension of an answer without a box, and the reasoning of one without a reason.
NOT_APPLICABLE = "not applicable"
# Files beside the sheets of readers, which have their names.
RESERVED = ("sheet", "consensus")
COLUMNS = (
    "item",
    "question_id",
    "image_id",
    "question_type",
    "finding",
    "question",
    "answer",
    "reason",
    "has_box",
    "boxes",
    *DIMENSIONS,
    "comment",
    "correction",
)


@dataclasses.dataclass(frozen=True)
class Ratings:
    """A filled sheet (its stem is the reader): question id -> levels, comments."""

    reader: str
    levels: dict[str, dict[str, int]]
    comments: dict[str, str]


def asked(record: QARecord) -> str:
    """The question as whoever answers sees it: after earlier turns, with its options, by lines."""
    before = [f"Before: {turn.question} {turn.answer or ''}" for turn in record.history or ()]
    return in_words("\n".join([*before, record.question, *(record.choices or ())]), record)


def answered(record: QARecord) -> str:
    """The answer in words: the options that its letters name; boxes by number, without notation."""
    if record.answer_key is None:
        return in_words(record.answer_text, record)
    keys = [record.answer_key] if isinstance(record.answer_key, str) else record.answer_key
    options = {choice.partition(":")[0]: choice for choice in record.choices or ()}
    return "\n".join(options.get(key, key) for key in keys)


def sheet_rows(sample: Sequence[QARecord]) -> list[dict[str, str]]:
    """The sheet with empty ratings; `not applicable` where there is no box or reason to rate."""
    rows = []
    for number, record in enumerate(sample, start=1):
        row = dict.fromkeys(COLUMNS, "")
        row |= {
            "item": str(number),
            "question_id": record.question_id,
            "image_id": record.image_id,
            "question_type": record.question_type,
            "finding": finding_of(record),
            "question": asked(record),
            "answer": answered(record),
            "reason": in_words(record.reason or "", record) if has_reason(record) else "",
            "has_box": "yes" if record.boxes else "no",
            "boxes": boxes_in_words(record),
        }
        if not row["reason"]:
            row["reasoning_accuracy"] = NOT_APPLICABLE
        if not record.boxes:
            row["spatial_reference"] = NOT_APPLICABLE
        rows.append(row)
    return rows


def format_csv(columns: Sequence[str], rows: Iterable[dict[str, str]]) -> str:
    """CSV text with a header."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[dict[str, str], str]]:
    """(cells, file and line) of a CSV; what spreadsheets make of one is understood (BOM, `;`).

    Raises:
        UserError: the file cannot be read, or lacks one of the columns.
    """
    with reading(path, "the sheet", "save the sheet as 'CSV UTF-8'"):
        text = read_text(path)
    header = text.partition("\n")[0]
    delimiter = ";" if header.count(";") > header.count(",") else ","
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            expected = ", ".join(columns)
            raise UserError(f"{path}:1: column {missing[0]} is missing; expected {expected}")
        for cells in reader:
            where = f"{path}:{reader.line_num}"
            if None in cells or None in cells.values():
                raise UserError(f"{where}: another number of cells than the header has")
            if any(value.strip() for value in cells.values()):
                yield {name: value.strip() for name, value in cells.items()}, where
    except csv.Error as error:
        at = f"{path}:{reader.line_num + 1}"
        raise UserError(f"{at}: {error}; is a quote not closed?") from None


def read_sheet(path: Path) -> Ratings:
    """A sheet that a reader has filled in.

    Raises:
        UserError: it cannot be read, a rating is missing or none of the levels, or a question
            occurs twice; names file and line.
    """
    levels: dict[str, dict[str, int]] = {}
    comments = {}
    needed = ("question_id", "has_box", *DIMENSIONS)
    for cells, where in read_rows(path, needed):
        question_id = cells["question_id"]
        if question_id in levels:
            raise UserError(f"{where}: question_id {question_id!r} occurs twice")
        levels[question_id] = {
            dimension: level
            for dimension in DIMENSIONS
            if (level := _level(cells, dimension, where)) is not None
        }
        if cells.get("comment"):
            comments[question_id] = cells["comment"]
    if not levels:
        raise UserError(f"{path}: no question in the sheet")
    return Ratings(path.stem, levels, comments)


def read_corrections(path: Path, sample: Sequence[QARecord]) -> dict[str, dict[str, str]]:
    """Question id -> field -> value of a sheet that the page has saved, filled in or not.

    Raises:
        UserError: it cannot be read, or has a question that is none of the sample's.
    """
    asked = {record.question_id for record in sample}
    found = {}
    for cells, where in read_rows(path, ("question_id", *DIMENSIONS, "correction")):
        question_id = cells["question_id"]
        if question_id not in asked:
            raise UserError(
                f"{where}: question {question_id!r} is not in this sample: expected the same "
                "--records, --sample and --seed as when the sheet was drawn"
            )
        kept = {name: cells[name] for name in (*DIMENSIONS, "correction") if cells[name]}
        found[question_id] = {
            name: value for name, value in kept.items() if value != NOT_APPLICABLE
        }
    return found


def _level(cells: dict[str, str], dimension: str, where: str) -> int | None:
    rating = cells[dimension].lower()
    absent = {
        "spatial_reference": cells["has_box"].lower() == "no",
        "reasoning_accuracy": cells.get("reason") == "",
    }
    if rating == NOT_APPLICABLE and absent.get(dimension):
        return None
    return parse_level(rating, f"{where}: {cells['question_id']}: {dimension}")


def parse_level(rating: str, what: str) -> int:
    """The index of a level in `LEVELS`.

    Raises:
        UserError: empty, or none of the levels; the message begins with `what`.
    """
    if rating.lower() not in LEVELS:
        found = f"is {rating!r}" if rating else "is not filled in"
        raise UserError(f"{what} {found}; expected one of {', '.join(LEVELS)}")
    return LEVELS.index(rating.lower())
