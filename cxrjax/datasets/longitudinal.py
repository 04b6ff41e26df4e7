"""Wording that compares with an earlier examination, which one image cannot show."""

from collections.abc import Iterable

from cxrjax.datasets.gemex.vocabulary import load_vocabulary
from cxrjax.records import QARecord


def comparing_word(record: QARecord) -> str | None:
    """The first word of question, options, answer or reason that compares with another
    examination."""
    said = " ".join(
        [record.question, *(record.choices or ()), record.answer_text, record.reason or ""]
    )
    found = load_vocabulary().cues["longitudinal"].search(said.lower())
    return found[0] if found else None


def longitudinal_wording(records: Iterable[QARecord]) -> dict[str, int]:
    """How many records there are, and in how many question or answer speaks of change over time.

    The words are English ("unchanged", "compared", "again", ...): other languages count as free of
    them.
    """
    cue = load_vocabulary().cues["longitudinal"]
    counts = {"records": 0, "questions": 0, "answers": 0}
    for record in records:
        counts["records"] += 1
        counts["questions"] += bool(cue.search(record.question.lower()))
        said = " ".join([record.answer_text, record.reason or ""])
        counts["answers"] += bool(cue.search(said.lower()))
    return counts
