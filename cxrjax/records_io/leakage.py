"""Finds what training could know of the images and answers it is tested on.

Leaks are identities that no two splits may share: patients, studies, images, question ids, and
pictures that are the same but for size, compression or contrast. Text that splits share is counted
and is no leak: templates ask and answer the same about different images.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cxrjax.errors import UserError
from cxrjax.records import QARecord
from cxrjax.records_io.near_duplicates import (
    close_pairs,
    hash_images,
    near_duplicate_texts,
    normalise,
    overlapping_texts,
)

IDENTITIES = ("patient_id", "study_id", "image_id", "question_id")
# Answers share a run of this many words with training: long enough not to be a finding's name.
_WORDS = 8


@dataclasses.dataclass(frozen=True)
class Leak:
    """One thing that two splits share. `kind`: an identity of `IDENTITIES`, or "image_content"."""

    kind: str
    splits: tuple[str, str]
    items: tuple[str, str]
    found: str


@dataclasses.dataclass(frozen=True)
class Leakage:
    """What the splits share.

    Attributes:
        leaks: none is allowed.
        known: identity -> records that state it: what is not stated cannot be checked.
        images_hashed: pictures compared by content; `not_hashed` says why others were not.
        text: "first/second" -> how much of the second split's text the first one has.
    """

    leaks: list[Leak]
    known: dict[str, int]
    images_hashed: int
    not_hashed: list[str]
    text: dict[str, dict[str, float | int]]

    def to_json(self) -> dict[str, Any]:
        return {
            "leaks": [dataclasses.asdict(leak) for leak in self.leaks],
            "counts": dict(collections.Counter(leak.kind for leak in self.leaks)),
            "records_that_state": self.known,
            "images_hashed": self.images_hashed,
            "images_not_hashed": self.not_hashed,
            "shared_text": self.text,
        }


def find_leakage(
    splits: Mapping[str, Iterable[QARecord]],
    image_root: Path | None,
    processes: int = 1,
) -> Leakage:
    """Compares every two splits.

    Args:
        splits: name -> records.
        image_root: what `image_path` is relative to; None: pictures are not compared.
        processes: for decoding images.

    Raises:
        UserError: there are no two splits.
    """
    records = {name: list(of_split) for name, of_split in splits.items()}
    if len(records) < 2:
        raise UserError(f"leakage is between splits, and there is only {', '.join(records)!r}")
    pairs = list(itertools.combinations(records, 2))
    leaks = [leak for pair in pairs for leak in _shared_identities(records, pair)]
    by_image = {
        name: {r.image_id: image_root / r.image_path for r in of_split} if image_root else {}
        for name, of_split in records.items()
    }
    files = {path for paths in by_image.values() for path in paths.values()}
    there = {path for path in files if path.is_file()}
    hashes, failures = hash_images(there, processes)
    if missing := len(files) - len(there):
        failures.append(f"{missing} of {len(files)} files are not there")
    for first, second in pairs:
        sides = [
            [(i, hashes[path]) for i, path in by_image[name].items() if path in hashes]
            for name in (first, second)
        ]
        for i, j, bits in close_pairs([h for _, h in sides[0]], [h for _, h in sides[1]]):
            items = (sides[0][i][0], sides[1][j][0])
            if items[0] != items[1]:  # equal ids are leaks by id already
                found = f"pictures that differ in {bits} of 256 bits of their perceptual hash"
                leaks.append(Leak("image_content", (first, second), items, found))
    return Leakage(
        leaks=leaks,
        known={
            field: sum(getattr(r, field) is not None for one in records.values() for r in one)
            for field in IDENTITIES
        },
        images_hashed=len(hashes),
        not_hashed=failures,
        text={f"{a}/{b}": _shared_text(records[a], records[b]) for a, b in pairs},
    )


def _shared_identities(records: Mapping[str, list[QARecord]], pair: tuple[str, str]) -> list[Leak]:
    leaks = []
    for field in IDENTITIES:
        sides = [{getattr(record, field) for record in records[name]} for name in pair]
        for value in sorted(sides[0] & sides[1] - {None}):
            leaks.append(Leak(field, pair, (value, value), f"{field} {value} is in both"))
    return leaks


def _shared_text(first: list[QARecord], second: list[QARecord]) -> dict[str, float | int]:
    """How many of the second split's questions and answers the first one has word for word."""

    def texts(records: list[QARecord], field: str) -> dict[str, str]:
        return {record.question_id: getattr(record, field) for record in records}

    runs = {run for record in first for run in _runs(record.answer_text)}
    shares = [
        sum(run in runs for run in own) / len(own)
        for record in second
        if (own := _runs(record.answer_text))
    ]
    distinct, alike, _ = near_duplicate_texts(
        (record.question for record in first), (record.question for record in second)
    )
    boxed = {record.question_id: record.answer_text for record in second if record.boxes}
    return {
        "questions": len(second),
        "same_question": len(
            overlapping_texts(texts(first, "question"), texts(second, "question"))
        ),
        "distinct_questions": distinct,
        "distinct_questions_nearly_the_same": alike,
        "answers": sum(bool(record.answer_text) for record in second),
        "same_answer": len(
            overlapping_texts(texts(first, "answer_text"), texts(second, "answer_text"))
        ),
        "answers_with_boxes": len(boxed),
        "same_answer_with_boxes": len(overlapping_texts(texts(first, "answer_text"), boxed)),
        f"mean_share_of_{_WORDS}_word_runs": sum(shares) / len(shares) if shares else 0.0,
    }


def _runs(text: str) -> set[str]:
    words = normalise(text).split()
    return {" ".join(words[i : i + _WORDS]) for i in range(len(words) - _WORDS + 1)}
