"""Reads findings from text in detail: there or not, how sure, on which side, how severe.

English through `reader.py`; Vietnamese is read by `vietnamese_mentions.py` into the same form.
"""

from collections.abc import Iterable
from typing import NamedTuple

from cxrjax.radiology_text.reader import ReportReader

CERTAIN, LIKELY, UNCERTAIN = "certain", "likely", "uncertain"
BOTH = "both"
# "Unlikely" is a denial that is likely.
_CERTAINTIES = {
    "certain": CERTAIN,
    "likely": LIKELY,
    "possible": UNCERTAIN,
    "unlikely": LIKELY,
}


class DetailedMention(NamedTuple):
    """A finding named in a text.

    Attributes:
        name: the finding, in the reader's vocabulary.
        start, end: characters of the text (in Vietnamese, of its NFC form).
        negated: said to be absent ("unlikely" too: then `certainty` is `likely`).
        certainty: `certain`, `likely` or `uncertain`, of what is said.
        side: `left`, `right`, `both`, or "" where the text names none.
        severity: `mild`, `moderate`, `severe`, `small`, `large`, or "".
        regions: names of the reference definitions; English only.
        modifiers: (type, value) pairs of all kinds, severity among them; English only.
    """

    name: str
    start: int
    end: int
    negated: bool
    certainty: str = CERTAIN
    side: str = ""
    severity: str = ""
    regions: tuple[str, ...] = ()
    modifiers: tuple[tuple[str, str], ...] = ()


class DetailedReader:
    """Reads English text. Organs' states are read too: "the heart is enlarged", "clear lungs"."""

    def __init__(self) -> None:
        self._reader = ReportReader()

    def read(self, text: str) -> list[DetailedMention]:
        """Every finding of which something is said of now, in order."""
        return [
            DetailedMention(
                one.finding,
                *one.span,
                one.status == "absent" or one.certainty == "unlikely",
                _CERTAINTIES[one.certainty],
                BOTH if one.side == "bilateral" else one.side or "",
                one.severity or "",
                one.regions,
                one.modifiers,
            )
            for one in self._reader.read(text)
            if one.is_now
        ]


def joined_side(sides: Iterable[str]) -> str:
    """One side out of several: `both` where they differ; "" where none is named."""
    named = {side for side in sides if side}
    if len(named) > 1 or BOTH in named:
        return BOTH
    return named.pop() if named else ""
