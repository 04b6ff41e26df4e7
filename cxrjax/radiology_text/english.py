"""English of chest radiograph reports: words and phrases, vocabulary, lists, comparing words."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from cxrjax.files import read_packaged
from cxrjax.records import QARecord

Payload = TypeVar("Payload")

_WORD = re.compile(r"\d+(?:\.\d+)+|[a-z0-9]+")
_SPELLING = read_packaged(str(__package__), "reference/spelling_en.toml")
_BRITISH = re.compile(_SPELLING["british"])
_AMERICAN, _IRREGULAR = _SPELLING["american"], _SPELLING["singular"]


class Word(NamedTuple):
    """A word's dictionary form, and the characters it takes in the text."""

    lemma: str
    start: int
    end: int


def forms_of(words: Sequence[Word]) -> list[str]:
    """The dictionary forms of some words."""
    return [word.lemma for word in words]


class Words(list[Word]):
    """Words that many indices look through, which nobody changes; their dictionary forms kept."""

    def __init__(self, words: Iterable[Word] = ()) -> None:
        super().__init__(words)
        self.forms = forms_of(self)
        self.found: dict[PhraseIndex, list[Match]] = {}  # what each index finds, looked up once

    def form(self, place: int) -> str:
        """The dictionary form at a place; "" beyond the ends."""
        return self.forms[place] if 0 <= place < len(self.forms) else ""


class Match(NamedTuple, Generic[Payload]):
    """A phrase found: its words `first` to `last` (exclusive), and what it stands for."""

    first: int
    last: int
    payload: Payload


@functools.lru_cache(maxsize=1 << 16)
def lemma(word: str) -> str:
    """A lower-case word in the singular, by rule; the same word for every way to write it."""
    if len(word) > 4:
        word = _BRITISH.sub(lambda m: _AMERICAN[m.group()], word)
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


@dataclasses.dataclass(slots=True, eq=False)
class _Node(Generic[Payload]):
    """The payload of a phrase that ends here, and the words that go on."""

    payload: Payload | None
    further: dict[str, "_Node[Payload]"]


class PhraseIndex(Generic[Payload]):
    """Phrases and what they stand for; found greedily from the left, the longest first.

    Args:
        split: takes a phrase apart into the forms that its words have in a text.
    """

    def __init__(
        self,
        phrases: Mapping[str, Payload] | Iterable[tuple[str, Payload]],
        split: Callable[[str], tuple[str, ...]] = lemmas,
    ) -> None:
        pairs = phrases.items() if isinstance(phrases, Mapping) else phrases
        self._split = split
        self._exact: dict[tuple[str, ...], Payload] = {}
        for phrase, payload in pairs:
            self._exact.setdefault(split(phrase), payload)

    @functools.cached_property
    def _starts(self) -> dict[str, "_Node[Payload]"]:
        """The first word of each phrase, from which the others are reached word by word."""
        root: _Node[Payload] = _Node(None, {})
        for key, payload in self._exact.items():
            node = root
            for form in key:
                node = node.further.setdefault(form, _Node(None, {}))
            node.payload = payload
        return root.further

    def with_first(self, phrases: Iterable[tuple[str, Payload]]) -> "PhraseIndex[Payload]":
        """The index with further phrases, which go before those that it has."""
        added: dict[tuple[str, ...], Payload] = {}
        for phrase, payload in phrases:
            added.setdefault(self._split(phrase), payload)
        index: PhraseIndex[Payload] = PhraseIndex((), self._split)
        index._exact = {**self._exact, **added}
        return index

    def get(self, phrase: str) -> Payload | None:
        """Returns what this phrase stands for, as a whole."""
        return self._exact.get(self._split(phrase))

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        """Every phrase, as dictionary forms."""
        return iter(self._exact)

    def items(self) -> Iterator[tuple[tuple[str, ...], Payload]]:
        """Every phrase with what it stands for."""
        return iter(self._exact.items())

    def find(self, words: Sequence[Word]) -> list[Match[Payload]]:
        """Phrases in the text, in order, none overlapping another."""
        if not isinstance(words, Words):
            return self.find_forms(forms_of(words))
        found = words.found.get(self)
        if found is None:
            found = words.found[self] = self.find_forms(words.forms)
        return found

    def begins_in(self, forms: Sequence[str]) -> bool:
        """Returns whether a phrase's first word is among these."""
        return not self._starts.keys().isdisjoint(forms)

    def find_forms(self, forms: Sequence[str]) -> list[Match[Payload]]:
        """Finds phrases in words that are in their dictionary forms."""
        starts = self._starts
        if starts.keys().isdisjoint(forms):
            return []
        places = [n for n, form in enumerate(forms) if form in starts]
        found: list[Match[Payload]] = []
        begin, end = 0, len(forms)
        for position in places:
            if position < begin:
                continue
            node: _Node[Payload] | None = starts[forms[position]]
            ahead = position
            while node is not None:
                ahead += 1
                if node.payload is not None:
                    payload, begin = node.payload, ahead
                node = node.further.get(forms[ahead]) if ahead < end else None
            if begin > position:
                found.append(Match(position, begin, payload))
        return found


VERSION = "1"


@dataclasses.dataclass(frozen=True)
class FindingWords:
    """One finding; the data file's `about` tells the fields."""

    name: str
    noun: str
    article: str
    plural: str
    kind: str
    region: str | None
    class_name: str | None
    group: str
    graded: bool
    sized: bool
    implication: str
    names: Sequence[str]
    within: str | None


@dataclasses.dataclass(frozen=True)
class StructureWords:
    """A part of the body whose normality is stated."""

    name: str
    region: str | None
    subject: str
    verb: str
    condition: str
    names: Sequence[str]


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
    """Findings and structures by name, in the file's order.

    Attributes:
        cues: kind of cue ("longitudinal", "view", ...) -> one pattern for all of them.
        severities: severity -> pattern.
    """

    findings: Mapping[str, FindingWords]
    structures: Mapping[str, StructureWords]
    cues: Mapping[str, re.Pattern[str]]
    severities: Mapping[str, re.Pattern[str]]


_CUES = ("cause", "longitudinal", "droppable", "view")


@functools.cache
def load_vocabulary(version: str = VERSION) -> Vocabulary:
    """The words of a version, from the package's data file."""
    data = read_packaged(str(__package__), f"vocabulary_v{version}.json")
    findings, structures = data["findings"], data["structures"]
    return Vocabulary(
        findings={
            name: FindingWords(name, class_name=words["class"], **_without(words, "class"))
            for name, words in findings.items()
        },
        structures={name: StructureWords(name, **words) for name, words in structures.items()},
        cues={name: _any(data[name]) for name in _CUES},
        severities={name: _any(words, whole=True) for name, words in data["severity"].items()},
    )


def _without(words: Mapping, left_out: str) -> dict:
    return {key: value for key, value in words.items() if key != left_out}


def _any(patterns: Sequence[str], whole: bool = False) -> re.Pattern[str]:
    joined = "|".join(f"(?:{pattern})" for pattern in patterns)
    return re.compile(rf"\b(?:{joined})(?!\w)" if whole else joined)


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
    """Counts records, and those whose question or answer speaks of change over time.

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
