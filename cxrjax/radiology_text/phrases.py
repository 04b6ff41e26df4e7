"""Finding known phrases in English text, by words and not by characters."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

Payload = TypeVar("Payload")

_WORD = re.compile(r"[a-z0-9]+")
_IRREGULAR = {
    "apices": "apex",
    "apexes": "apex",
    "hila": "hilum",
    "bases": "base",
    "atelectases": "atelectasis",
    "metastases": "metastasis",
    "pneumothoraces": "pneumothorax",
    "hemothoraces": "hemothorax",
    "thrombi": "thrombus",
    "emboli": "embolus",
    "bronchi": "bronchus",
    "bullae": "bulla",
    "vertebrae": "vertebra",
    "pleurae": "pleura",
    "scapulae": "scapula",
    "calcifications": "calcification",
    "lenses": "lens",
    "lungs": "lung",
}


class Word(NamedTuple):
    """A word's dictionary form, and the characters it takes in the text."""

    lemma: str
    start: int
    end: int


class Match(NamedTuple, Generic[Payload]):
    """A phrase found: its words `first` to `last` (exclusive), and what it stands for."""

    first: int
    last: int
    payload: Payload


def lemma(word: str) -> str:
    """A lower-case word in the singular, by rule; the same word for every way to write it."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and word.endswith(("sses", "shes", "ches", "xes")):
        return word[:-2]
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def split_words(text: str) -> list[Word]:
    """The words of a lower-case text; hyphens and slashes part words."""
    return [Word(lemma(m.group()), m.start(), m.end()) for m in _WORD.finditer(text)]


def lemmas(text: str) -> tuple[str, ...]:
    """The dictionary forms of a text's words."""
    return tuple(word.lemma for word in split_words(text.lower()))


class PhraseIndex(Generic[Payload]):
    """Phrases and what they stand for; found greedily from the left, the longest first."""

    def __init__(self, phrases: Mapping[str, Payload] | Iterable[tuple[str, Payload]]) -> None:
        pairs = phrases.items() if isinstance(phrases, Mapping) else phrases
        self._exact: dict[tuple[str, ...], Payload] = {}
        for phrase, payload in pairs:
            self._exact.setdefault(lemmas(phrase), payload)
        self._lengths: dict[str, list[int]] = {}
        for key in self._exact:
            lengths = self._lengths.setdefault(key[0], [])
            if len(key) not in lengths:
                lengths.append(len(key))
        for lengths in self._lengths.values():
            lengths.sort(reverse=True)

    def get(self, phrase: str) -> Payload | None:
        """What this phrase stands for, as a whole."""
        return self._exact.get(lemmas(phrase))

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        """Every phrase, as dictionary forms."""
        return iter(self._exact)

    def find(self, words: Sequence[Word]) -> list[Match[Payload]]:
        """Phrases in the text, in order, none overlapping another."""
        forms = tuple(word.lemma for word in words)
        found = []
        position = 0
        while position < len(forms):
            for length in self._lengths.get(forms[position], ()):
                payload = self._exact.get(forms[position : position + length])
                if payload is not None and position + length <= len(forms):
                    found.append(Match(position, position + length, payload))
                    position += length
                    break
            else:
                position += 1
        return found
