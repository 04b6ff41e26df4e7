"""Noun phrases of ViX-Ray's reports, counted: body parts in findings, diagnoses in impressions.

The paper reads them off Stanza's parse trees and filters the anatomical ones (section 3.2); Stanza
needs PyTorch and models that no registry has. Here a phrase is a run of nouns and what qualifies
them, by pyvi's part-of-speech tags, corrected by a list of terms (`vix_ray_terms.json`): the tags
were trained on news. Both are approximations; figures of the two are not comparable one by one.
"""

import collections
import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator

from cxrjax.errors import optional
from cxrjax.files import read_packaged
from cxrjax.papers.vix_ray.segmenters import normal

_NOUN_TAGS = ("N", "Np", "Nc", "Nu", "Ny", "Nb")
_QUALIFYING_TAGS = ("A", "M")
_PIECE = re.compile(r"[\w/]+|[^\w\s/]")
# Kinds of a token within a phrase.
_NOUN, _QUALITY, _BREAK = "noun", "quality", "break"


@dataclasses.dataclass(frozen=True)
class Terms:
    """A list of terms: syllables in lower case -> kind."""

    kinds: dict[tuple[str, ...], str]

    @functools.cached_property
    def longest(self) -> int:
        """Syllables of the longest."""
        return max(map(len, self.kinds))


@functools.cache
def _terms(*names: str) -> Terms:
    """The terms under these names, from the data file."""
    data = read_packaged("bench", "vix_ray_terms.json")
    kinds = {"qualities": _QUALITY, "breaks": _BREAK}
    return Terms(
        {tuple(term.split()): kinds.get(name, _NOUN) for name in names for term in data[name]}
    )


def body_parts(texts: Iterable[str]) -> collections.Counter[str]:
    """Anatomical terms in the noun phrases of findings -> how often."""
    terms, anatomy = _terms("anatomy", "qualities", "breaks"), _terms("anatomy").kinds
    return collections.Counter(
        " ".join(part)
        for text in texts
        for phrase in _phrases(text, terms)
        for part in phrase
        if part in anatomy
    )


def diagnoses(texts: Iterable[str]) -> collections.Counter[str]:
    """Noun phrases of impressions, whole -> how often."""
    terms = _terms("anatomy", "findings", "qualities", "breaks")
    return collections.Counter(
        " ".join(syllable for part in phrase for syllable in part)
        for text in texts
        for phrase in _phrases(text, terms)
    )


def _phrases(text: str, terms: Terms) -> Iterator[list[tuple[str, ...]]]:
    """The noun phrases of a text: their terms and words, as syllables in lower case."""
    phrase: list[tuple[str, ...]] = []
    for syllables, kind in [*_tokens(normal(text).lower(), terms), ((), _BREAK)]:
        if kind == _NOUN or (kind == _QUALITY and phrase):
            phrase.append(syllables)
        elif phrase:
            yield phrase
            phrase = []


def _tokens(text: str, terms: Terms) -> Iterator[tuple[tuple[str, ...], str]]:
    """Terms, the longest first, and between them words as the tagger sees them."""
    pieces = _PIECE.findall(text)
    between: list[str] = []
    start = 0
    while start < len(pieces):
        for length in range(min(terms.longest, len(pieces) - start), 0, -1):
            term = tuple(pieces[start : start + length])
            if term in terms.kinds:
                yield from _tagged(" ".join(between))
                between = []
                yield term, terms.kinds[term]
                start += length
                break
        else:
            between.append(pieces[start])
            start += 1
    yield from _tagged(" ".join(between))


@functools.lru_cache(maxsize=100_000)
def _tagged(text: str) -> tuple[tuple[tuple[str, ...], str], ...]:
    """The words of a stretch without terms, each with its kind by the tag it gets."""
    if not text:
        return ()
    # Not at the top: seconds to import.
    tokenizer = optional("pyvi.ViTokenizer", "vietnamese")
    tagger = optional("pyvi.ViPosTagger", "vietnamese")
    words, tags = tagger.postagging(tokenizer.tokenize(text))
    kinds = dict.fromkeys(_NOUN_TAGS, _NOUN) | dict.fromkeys(_QUALIFYING_TAGS, _QUALITY)
    return tuple(
        (tuple(word.split("_")), kinds.get(str(tag), _BREAK))
        for word, tag in zip(words, tags, strict=True)
    )
