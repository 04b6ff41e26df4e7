"""English wording that several data sets share: lists, capitals, comparing words."""

import re
from collections.abc import Iterable, Sequence

from cxrjax.radiology_text.vocabulary import load_vocabulary
from cxrjax.records import QARecord


def join(parts: Sequence[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    return f" {last} ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def plain_words(text: str) -> str:
    """Words and numbers in lower case, with single blanks, to compare texts by."""
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


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
