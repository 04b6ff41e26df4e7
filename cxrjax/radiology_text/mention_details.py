"""Reads findings from text in detail: there or not, how sure, on which side, how severe.

Rules and word lists, no model. English has the vocabulary of CXR-QBA's reference definitions
(`reference/`). Vietnamese is read by `vietnamese_mentions.py` into the same form.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from cxrjax.radiology_text.clause_reading import Spot, read_clause
from cxrjax.radiology_text.definitions import Definitions, Language, load_definitions, load_language
from cxrjax.radiology_text.english import Word, split_words
from cxrjax.radiology_text.mentions import plain_text
from cxrjax.radiology_text.negation import SENTENCE, clauses

CERTAIN, LIKELY, UNCERTAIN = "certain", "likely", "uncertain"
BOTH = "both"
# Models answer in templates, and reports repeat themselves.
_KEPT_SENTENCES = 1 << 14
_HEART = "cardiac silhouette"


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
        self._definitions = load_definitions()
        self._language = load_language()
        self._in_sentence = functools.lru_cache(maxsize=_KEPT_SENTENCES)(self._read_sentence)

    def read(self, text: str) -> list[DetailedMention]:
        """Every finding named, in order; questions and box notation are passed over."""
        plain = plain_text(text)
        found = []
        for sentence in SENTENCE.finditer(plain):
            if sentence.group().rstrip().endswith("?"):
                continue
            found += [
                mention._replace(
                    start=mention.start + sentence.start(), end=mention.end + sentence.start()
                )
                for mention in self._in_sentence(sentence.group())
            ]
        return found

    def _read_sentence(self, sentence: str) -> tuple[DetailedMention, ...]:
        mentions = [
            mention
            for spots, own in self._spots_by_clause(sentence)
            for spot in spots
            for mention in _mentions(spot, own, self._definitions, self._language)
        ]
        return tuple(sorted(mentions, key=lambda mention: mention.start))

    def _spots_by_clause(self, sentence: str) -> Iterator[tuple[list[Spot], list[Word]]]:
        """Yields what each clause names, with the clause's words."""
        words = split_words(sentence)
        if self._language.ignored_sentences.find(words):
            return
        ignored = self._language.ignored_after.find(words)
        limit = words[ignored[0].first].start if ignored else len(sentence)
        for start, end in clauses(sentence, 0, len(sentence)):
            own = [word for word in words if start <= word.start < min(end, limit)]
            if own:
                yield (
                    read_clause(sentence, start, end, own, self._language, self._definitions),
                    own,
                )


def _mentions(
    spot: Spot, words: Sequence[Word], definitions: Definitions, language: Language
) -> Iterator[DetailedMention]:
    """A mention for each finding that a spot names; a normal organ denies several."""
    named = [*spot.regions]
    if spot.statement is not None and not named:
        named = list(spot.statement.regions)
    regions, _ = definitions.resolve_regions(named, spot.side)
    # A ventricle is left whatever the side of what is said.
    sides = {
        definitions.regions[region].side
        for region in regions
        if region in definitions.regions and _HEART not in definitions.region_ancestors(region)
    }
    resolved = any(
        match.payload == "resolved" and match.first in spot.own
        for match in language.change.find(words)
    )
    severity = next((value for kind, value in spot.modifiers if kind == "severity"), "")
    for name in spot.names:
        yield DetailedMention(
            name,
            words[spot.first].start,
            words[spot.last - 1].end,
            not spot.positive or resolved,
            spot.certainty,
            joined_side([spot.side, *sides]),
            severity,
            tuple(regions),
            tuple(spot.modifiers),
        )


def joined_side(sides: Iterable[str]) -> str:
    """One side out of several: `both` where they differ; "" where none is named."""
    named = {side for side in sides if side}
    if len(named) > 1 or BOTH in named:
        return BOTH
    return named.pop() if named else ""
