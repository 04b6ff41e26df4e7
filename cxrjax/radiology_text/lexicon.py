"""Words of radiology English as indices: findings, places, organs' states, cues, spelling."""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from cxrjax.files import read_packaged
from cxrjax.radiology_text.assertions import Outcome, Time
from cxrjax.radiology_text.definitions import (
    Definitions,
    Language,
    OrganStatement,
    load_definitions,
    load_language,
)
from cxrjax.radiology_text.english import Match, PhraseIndex, Word, lemma, lemmas

Payload = TypeVar("Payload")

_TOKEN = re.compile(r"\d+(?:\.\d+)+|[a-z0-9]+|\s[-–—]+\s|[,:;()/=?<>]")
_DATA = "reference/cues_en.toml"
_MARKS = {"=": ":", "[": "(", "]": ")"}
# Abbreviations with a slash become two words; places in the text stay.
_SLASHED = re.compile(r"\b([a-z])/([a-z])\b|\b(and)/(or)\b")
_STOPS = re.compile(r"(?<=\bvs)\.|(?<=\be)\.(?=g)|(?<=\be\.g)\.|(?<=\bi)\.(?=e)|(?<=\bi\.e)\.")
_SENTENCE_END = re.compile(
    r"(?<=[.!?])(?<!\b[Vv]s\.)(?<!\b[Dd]r\.)(?<!e\.g\.)(?<!i\.e\.)(?=\s|$)|(?<=[a-z]\.)(?=[A-Z])"
    r"|;|\n(?=[^\S\n]*(?:[-*•\d]|[A-Z]|\n))"
)
_NOTATION = re.compile(r"<[^<>\n]{0,200}>")
_LONGEST_SENTENCE = 1_000  # characters; models ramble, and the work grows with the square
_SHORTEST_MENDED = 8  # letters of a word whose spelling is mended
_DENIAL = frozenset(("no", "not", "without"))
# Before a word these turn it round.
_REVERSING = ("a", "ab", "an", "de", "dis", "im", "in", "ir", "non", "un")


class Cue(NamedTuple):
    """What a phrase says of what follows it, and of what stands before it; "" where nothing."""

    after: str = ""
    before: str = ""


class Sentence(NamedTuple):
    """A sentence's words and marks, and whether it asks."""

    start: int
    text: str
    tokens: list[Word]
    asks: bool


def plain_text(text: str) -> str:
    """Lower case without box notation, every character at its place."""
    lower = text.lower()
    if len(lower) != len(text):  # a few capitals lower to two characters
        lower = "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
    lower = lower.replace("’", "'")
    return _NOTATION.sub(lambda match: " " * len(match.group()), lower)


def split_sentences(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each sentence; a long one is cut at a blank."""
    begin = 0
    for end in [*(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]:
        while end - begin > _LONGEST_SENTENCE:
            cut = text.rfind(" ", begin + 1, begin + _LONGEST_SENTENCE)
            cut = cut if cut > begin else begin + _LONGEST_SENTENCE
            yield begin, cut
            begin = cut
        if end > begin:
            yield begin, end
            begin = end


class FillerIndex(Generic[Payload]):
    """A `PhraseIndex` that looks past words which change nothing."""

    def __init__(self, phrases: Mapping[str, Payload], fillers: frozenset[str]) -> None:
        self._index = PhraseIndex(phrases)
        self._fillers = fillers

    def find(
        self, tokens: Sequence[Word], taken: frozenset[int] | set[int]
    ) -> list[Match[Payload]]:
        """Phrases among the tokens that are not taken; none reaches over one that is."""
        found: list[Match[Payload]] = []
        run: list[int] = []
        for place in range(len(tokens) + 1):
            if place == len(tokens) or place in taken:
                words = [tokens[index] for index in run]
                found += [
                    Match(run[match.first], run[match.last - 1] + 1, match.payload)
                    for match in self._index.find(words)
                ]
                run = []
            elif tokens[place].lemma not in self._fillers:
                run.append(place)
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class English:
    """Everything that the reader of English looks up.

    Attributes:
        findings: wording -> finding's name.
        cues: phrase -> what it says. `after` and `before` are "denied certain", "hedged possible",
            "affirmed", "except", "contrast", "past", "query", "neutral".
        times: phrase -> time of an assertion.
        answers: how an answer opens -> yes, no, undecided.
        not_findings: phrases with a finding's word in them that name none.
        borderline_states: of an organ that is neither normal nor clearly not.
        subjects: organs, and parts of the lungs, whose state is told.
    """

    definitions: Definitions
    language: Language
    findings: PhraseIndex[str]
    cues: FillerIndex[Cue]
    times: FillerIndex[Time]
    answers: PhraseIndex[Outcome]
    not_findings: PhraseIndex[str]
    borderline_states: PhraseIndex[str]
    subjects: PhraseIndex[OrganStatement]
    spelling: Mapping[str, str]
    known: frozenset[str]

    def with_findings(self, names: Mapping[str, str]) -> "English":
        """The lexicon with further wordings of findings; they go before those that it has.

        Args:
            names: wording -> finding, which need not be one of the definitions.
        """
        known = [(" ".join(phrase), name) for phrase, name in self.findings.items()]
        usable = [(phrase, name) for phrase, name in names.items() if lemmas(phrase)]
        words = {word for phrase, _ in usable for word in lemmas(phrase)}
        return dataclasses.replace(
            self, findings=PhraseIndex([*usable, *known]), known=self.known | words
        )

    def read_tokens(self, text: str, start: int, end: int) -> Sentence:
        """A sentence of a plain text (`plain_text`), its long words mended."""
        part = _SLASHED.sub(lambda m: m.group().replace("/", " "), text[start:end])
        part = _STOPS.sub(" ", part)
        tokens = []
        for match in _TOKEN.finditer(part):
            word = match.group().strip()
            if not word[0].isalnum():
                form = ":" if word[0] in "-–—" else _MARKS.get(word, word)
            else:
                form = self._mended(lemma(word))
            tokens.append(Word(form, match.start(), match.end()))
        return Sentence(start, part, tokens, part.rstrip().endswith("?"))

    def _mended(self, word: str) -> str:
        if len(word) < _SHORTEST_MENDED - 1 or word in self.known or not word.isalpha():
            return word
        for form in {word, *_without_one(word)}:
            right = self.spelling.get(form)
            if right is not None and abs(len(right) - len(word)) <= 1 and _one_apart(word, right):
                longer, shorter = sorted((word, right), key=len, reverse=True)
                if longer.removesuffix(shorter) not in _REVERSING:
                    return right
        return word


@functools.cache
def word_set(name: str) -> frozenset[str]:
    """Small words by what they do, from the data file."""
    return frozenset(read_packaged(str(__package__), _DATA)["words"][name])


@functools.cache
def load_english() -> English:
    """The lexicon in the package."""
    data = read_packaged(str(__package__), _DATA)
    definitions, language = load_definitions(), load_language()
    fillers = frozenset(lemma(word) for word in data["fillers"])
    times = {phrase: time for time, phrases in data["time"].items() for phrase in phrases}
    answers = {phrase: verdict for verdict, said in data["answers"].items() for phrase in said}
    cues = _cues(data, times)
    findings = {word for phrase in definitions.finding_names for word in phrase}
    known = findings | {
        word
        for phrases in (
            *(definitions.region_names, language.modifiers, language.subjects),
            *(language.normal_states, language.linked, language.change, language.sides),
            *(language.not_sides, language.ignored_sentences, language.ignored_after),
        )
        for phrase in phrases
        for word in phrase
    }
    known |= {word for phrase in (*cues, *times, *answers) for word in lemmas(phrase)}
    known |= {
        word
        for statement in (what for _, what in language.subjects.items())
        for p in statement.states
        for word in p
    }
    known |= {lemma(word) for word in data["not_misspelt"]}
    spelling = {
        form: word
        for word in sorted(findings)
        if len(word) >= _SHORTEST_MENDED and word.isalpha()
        for form in (word, *_without_one(word))
    }
    return English(
        definitions,
        language,
        _findings(definitions, data["synonyms"]),
        FillerIndex(cues, fillers),
        FillerIndex(times, fillers),
        PhraseIndex(answers),
        PhraseIndex((phrase, phrase) for phrase in data["not_findings"]),
        PhraseIndex((phrase, phrase) for phrase in data["borderline_states"]),
        _subjects(language, data["lung_parts"]),
        spelling,
        frozenset(known),
    )


def _cues(data: Mapping, times: Mapping[str, str]) -> dict[str, Cue]:
    after: dict[str, str] = {}
    before: dict[str, str] = {}
    for group, said, places in (
        ("hedges", "hedged", after),
        ("denies", "denied", after),
        ("hedged", "hedged", before),
        ("denied", "denied", before),
    ):
        for level, phrases in data[group].items():
            for phrase in phrases:
                places.setdefault(phrase, f"{said} {level}")
    for group in ("affirms", "except", "contrast", "past", "query", "neutral"):
        for phrase in data[group]["words"]:
            after.setdefault(phrase, group)
    for phrase in times:  # "no change" denies nothing
        if _DENIAL & set(phrase.split()):
            after.setdefault(phrase, "neutral")
    cues: dict[tuple[str, ...], tuple[str, Cue]] = {}
    for phrase in (*after, *before):
        cue = Cue(after.get(phrase, ""), before.get(phrase, ""))
        cues.setdefault(lemmas(phrase), (phrase, cue))
    return {phrase: cue for phrase, cue in cues.values()}


def _findings(definitions: Definitions, synonyms: Mapping[str, Sequence[str]]) -> PhraseIndex[str]:
    named = [(" ".join(phrase), name) for phrase, name in definitions.finding_names.items()]
    added = [(phrase, name) for name, phrases in synonyms.items() for phrase in phrases]
    return PhraseIndex([*named, *added])


def _subjects(language: Language, lung_parts: Sequence[str]) -> PhraseIndex[OrganStatement]:
    lungs = language.subjects.get("lungs")
    assert lungs is not None
    named = [
        (" ".join(phrase), what)
        for phrase, what in language.subjects.items()
        if "xxxx" not in phrase  # OpenI's blank stands for anything
    ]
    return PhraseIndex([*named, *((part, lungs) for part in lung_parts)])


def _without_one(word: str) -> Iterator[str]:
    """The word with each of its letters left out in turn, the first one excepted."""
    for place in range(1, len(word)):
        yield word[:place] + word[place + 1 :]


def _one_apart(one: str, other: str) -> bool:
    """Whether a letter added, left out, replaced, or two neighbours swapped, makes them one."""
    if len(one) > len(other):
        one, other = other, one
    pairs = enumerate(zip(one, other, strict=False))
    same = next((place for place, (a, b) in pairs if a != b), len(one))
    if len(one) < len(other):
        return one[same:] == other[same + 1 :]
    return one[same + 1 :] == other[same + 1 :] or (
        one[same : same + 2] == other[same : same + 2][::-1]
        and one[same + 2 :] == other[same + 2 :]
    )
