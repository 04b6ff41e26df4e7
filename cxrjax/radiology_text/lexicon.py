"""Words of radiology English as indices: findings, places, organs' states, cues, spelling."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from cxrjax.files import read_packaged
from cxrjax.radiology_text.assertions import Outcome, Time
from cxrjax.radiology_text.definitions import (
    Definitions,
    Language,
    OrganStatement,
    load_definitions,
    load_language,
)
from cxrjax.radiology_text.english import Match, PhraseIndex, Word, Words, lemma, lemmas

Payload = TypeVar("Payload")

_DATA = "reference/cues_en.toml"
_MARKED = frozenset("[(✓✔☑✅✗✘☒❌☐✖✕🚫⛔")
_MARKS = {"✗": "no", "⊞": "yes", "=": ":", "[": "(", "]": ")", "#": "fracture", "⊕": "but"}
# "Isn't" is read as two words.
_CONTRACTED = re.compile(r"(?<=[a-z])n't\b")
_GROUP = re.compile(r"\{([a-z]\w*)\}")
_LONGEST_SENTENCE = 1_000  # characters; models ramble, and the work grows with the square
_SHORTEST_MENDED, _LONGEST_MENDED = 8, 40  # letters of a word whose spelling is mended
_SHORTEST_CUE = 6
_DENIAL = frozenset(("no", "not", "without", "absent"))
# Before a word these turn it round.
_REVERSING = ("a", "ab", "an", "de", "dis", "im", "in", "ir", "non", "un")


@functools.cache
def _read_data() -> Mapping[str, Any]:
    data = read_packaged(str(__package__), _DATA)
    return _expanded(data | data["plain"], data["groups"])


def _expanded(data: Any, groups: Mapping[str, Sequence[str]]) -> Any:
    """The data with each phrase that names groups in braces written out."""
    if isinstance(data, Mapping):
        return {key: _expanded(value, groups) for key, value in data.items()}
    if isinstance(data, str):
        return data
    return [
        said
        for part in data
        for said in (
            _written_out(part, groups) if isinstance(part, str) else [_expanded(part, groups)]
        )
    ]


def _written_out(phrase: str, groups: Mapping[str, Sequence[str]]) -> list[str]:
    name = _GROUP.search(phrase)
    if name is None:
        return [_CONTRACTED.sub(" not", phrase)]
    words = (phrase.replace(name.group(), word, 1) for word in groups[name.group(1)])
    return [said for filled in words for said in _written_out(filled, groups)]


@functools.cache
def word_set(name: str) -> frozenset[str]:
    """Small words by what they do, from the data file."""
    return frozenset(_read_data()["words"][name])


@functools.cache
def grades(name: str) -> Mapping[str, float]:
    """Words of degree with their rank, from the data file."""
    ranks = enumerate(_read_data()["words"][name])
    return {word: float(rank) for rank, words in ranks for word in words}


def pattern(name: str, flags: int = 0) -> re.Pattern[str]:
    """A pattern of answers from the data file, of its alternatives."""
    return re.compile("|".join(_read_data()["answer_patterns"][name]), flags)


_TOKEN, _SENTENCE_END, _NOTATION, _STOPS, _SLASHED = map(
    pattern, ("token", "sentence_end", "notation", "stops", "slashed")
)
_YEAR, _VALUES, _WITH, _ARROW, _ROW = map(pattern, ("year", "values", "with", "arrow", "row"))
_BOX, _TICKED, _LEADING_PLUS, _LEADING, _LEADING_BOXES, _TRAILING = map(
    pattern, ("box", "ticked", "leading_plus", "leading", "leading_boxes", "trailing")
)


class Cue(NamedTuple):
    """Effect of a phrase on the words after it and on those before it; "" for none."""

    after: str = ""
    before: str = ""


class Sentence(NamedTuple):
    """A sentence's words and marks, and whether it asks."""

    start: int
    text: str
    tokens: Words
    asks: bool


def plain_text(text: str) -> str:
    """Lower case without box notation, every character at its place."""
    lower = text.lower()
    if len(lower) != len(text):  # a few capitals lower to two characters
        lower = "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
    lower = lower.replace("’", "'")
    return _NOTATION.sub(lambda match: " " * len(match.group()), lower)


def split_sentences(text: str, ends: re.Pattern[str] = _SENTENCE_END) -> Iterator[tuple[int, int]]:
    """Start and end of each sentence; a long one is cut at a blank."""
    begin = 0
    for end in [*(match.end() for match in ends.finditer(text)), len(text)]:
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
        # "Not completely resolved" says something else than "not resolved".
        self._exact = PhraseIndex(
            (p, what) for p, what in phrases.items() if fillers & {*lemmas(p)}
        )
        self._fillers = fillers

    def phrases(self) -> Iterator[tuple[tuple[str, ...], Payload]]:
        """Every phrase, as dictionary forms, with what it stands for."""
        return self._index.items()

    def find(self, tokens: Words, taken: frozenset[int]) -> list[Match[Payload]]:
        """Phrases among the tokens that are not taken; none reaches over one that is."""
        exact = [m for m in self._exact.find(tokens) if not taken & {*range(m.first, m.last)}]
        if not self._index.begins_in(tokens.forms):
            return exact
        taken = taken.union(*(range(m.first, m.last) for m in exact)) if exact else taken
        found: list[Match[Payload]] = []
        last = len(tokens)
        run: list[int] = []
        for place, form in enumerate([*tokens.forms, ""]):
            if place != last and place not in taken:
                if form not in self._fillers:
                    run.append(place)
            elif run:
                forms = [tokens.forms[index] for index in run]
                for match in self._index.find_forms(forms):
                    first, end = run[match.first], run[match.last - 1] + 1
                    found.append(Match(first, end, match.payload))
                run = []
        return sorted([*found, *exact], key=lambda match: match.first) if exact else found


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
        denied_findings: phrases that deny a finding as a whole, each with whether it is gone.
        subjects: organs, and parts of the lungs, whose state is told.
        spelling: a word of findings with a letter left out, or whole -> the word.
        short: abbreviations and slips -> the word that they stand for.
    """

    definitions: Definitions
    language: Language
    findings: PhraseIndex[str]
    cues: FillerIndex[Cue]
    times: FillerIndex[Time]
    answers: PhraseIndex[Outcome]
    not_findings: PhraseIndex[str]
    borderline_states: PhraseIndex[str]
    denied_findings: PhraseIndex[tuple[str, bool]]
    subjects: PhraseIndex[OrganStatement]
    spelling: Mapping[str, str]
    short: Mapping[str, str]
    known: frozenset[str]

    def with_findings(self, names: Mapping[str, str]) -> "English":
        """The lexicon with further wordings of findings; they go before those that it has.

        Args:
            names: wording -> finding, which need not be one of the definitions.
        """
        usable = [(phrase, name) for phrase, name in names.items() if lemmas(phrase)]
        words = {word for phrase, _ in usable for word in lemmas(phrase)}
        return dataclasses.replace(
            self, findings=self.findings.with_first(usable), known=self.known | words
        )

    def read_tokens(self, text: str, start: int, end: int) -> Sentence:
        """A sentence of a plain text (`plain_text`), its long words mended."""
        part = said = text[start:end].replace("ø", "0")
        if "/" in said:
            said = _WITH.sub("w ", said.replace("b/l", "bl "))
        said = with_ticks(
            _VALUES.sub(lambda m: ("neg" if m[1] == "-" else "pos").ljust(len(m[0])), said)
            if "ve" in said
            else said
        )
        part = _SLASHED.sub(lambda m: m.group().replace("/", " "), said) if "/" in said else said
        part = _STOPS.sub(" ", part)
        tokens: list[Word] = []
        form_of, new_word = self._form_of, tuple.__new__
        for match in _TOKEN.finditer(part):
            word = match.group()
            first, last = match.span()
            form = form_of(word)
            if word == "?" and part[last:].strip():
                form = "possible"  # "?consolidation"
            elif word in self.short and _is_alone(said, first, last):
                form = self.short[word]
            tokens.append(new_word(Word, (form, first, last)))  # faster than the constructor
        if tokens and tokens[0].lemma == "should":
            tokens[0] = tokens[0]._replace(lemma="if")  # "should pneumonia be suspected, ..."
        elif [token.lemma for token in tokens[:2]] == ["were", "there"] and part[-1:] != "?":
            tokens[0] = tokens[0]._replace(lemma="if")
            tokens[1] = tokens[1]._replace(lemma="possible")  # "were there a pneumothorax, ..."
        if tokens and tokens[-1].lemma == ";":
            tokens.pop()  # it parts sentences, and says nothing
        return Sentence(start, part, Words(tokens), part.rstrip().endswith("?"))

    @functools.cached_property
    def _form_of(self) -> Callable[[str], str]:
        return functools.lru_cache(maxsize=1 << 14)(self._read_form)

    def _read_form(self, said: str) -> str:
        """The form of a word or mark, wherever it stands."""
        word = said.strip()
        if word == "n't":
            return "not"
        if _YEAR.fullmatch(word):
            return "year"
        if not word[0].isalnum():
            return ":" if word[0] in "-–—" else _MARKS.get(word, word)
        form = self._mended(lemma(word))
        if form == word[:-1] and form not in self.known:
            return lemma(self._mended(word))  # "granulomatuos" is no plural
        return form

    def _mended(self, word: str) -> str:
        if (
            not _SHORTEST_CUE - 1 <= len(word) <= _LONGEST_MENDED
            or word in self.known
            or not word.isalpha()
        ):
            return word
        for form in {word, *_without_one(word)}:
            right = self.spelling.get(form)
            if right is not None and abs(len(right) - len(word)) <= 1 and _one_apart(word, right):
                longer, shorter = sorted((word, right), key=len, reverse=True)
                if longer.removesuffix(shorter) not in _REVERSING:
                    return right
        return word


# What a column stands for whose heading is a value or a side, and marks in it.
_COLUMNS, _CHECKED = _read_data()["columns"], word_set("checked")
# "Effusion... no", and the key of a form that only holds a value: {"present": false}.
_TRAILED = pattern("trailed", re.I)
_KEY = pattern("value_key", re.I)


def with_table_rows(text: str) -> str:
    """The text with rows of tables as "name: value, remark.", every character at its place; their
    headings say nothing but where they are values or sides."""
    if "..." in text or "…" in text:
        text = _TRAILED.sub(lambda match: ":".ljust(len(match[0])), text)
    if "{" in text:
        text = _KEY.sub(lambda m: (":" if m[0][0] == "," else "").ljust(len(m[0])), text).replace(
            "],", "];"
        )
    columns: list[str] = []
    return _ROW.sub(lambda row: _as_statement(row, columns), text) if "|" in text else text


def _as_statement(row: re.Match[str], columns: list[str]) -> str:
    cells, end = row["cells"], row["heads"] or ""
    if end or not any(map(str.isalnum, cells)):
        if end:
            columns[:] = [_COLUMNS.get(c.strip(" *?:").lower(), "") for c in cells.split("|")]
        return " " * (len(cells) + 2) + end
    if len(set(columns[1:]) - {""}) < 2:
        return " " + cells.replace("|", ":", 1).replace("|", ",") + "." + end
    first, *others = cells.split("|")
    said = [" " + first]
    for meant, cell in zip([*columns[1:], *[""] * len(others)], others, strict=False):
        mark = ":" if len(said) == 1 else ","
        if meant and meant in "01":  # a mark in the column "present" or "absent"
            value = meant if cell.strip().lower() in _CHECKED else ""
            said.append((f":{value}" if value else "").ljust(len(cell) + 1))
        elif meant:
            said.append(f"{mark}{meant} {cell.strip()}".ljust(len(cell) + 1)[: len(cell) + 1])
        else:
            said.append(mark + cell)
    return "".join(said) + "." + end


def with_ticks(text: str) -> str:
    """The text with the boxes and marks of a form as values, every character at its place."""
    if "+" in text or "-" in text or "→" in text:
        text = _with_signs(text)
    return text if _MARKED.isdisjoint(text) else _BOX.sub(_ticked, text)


def _with_signs(text: str) -> str:
    """The text with the signs of "+ effusion, - edema", "effusion +, edema -" as marks."""
    text = _ARROW.sub(lambda m: ":".rjust(len(m[0])), text)
    if _LEADING_PLUS.search(text) or _LEADING_BOXES.match(text):
        return _LEADING.sub(lambda m: ("✗" if "-" in m[0] else "⊕").ljust(len(m[0])), text)
    return _TRAILING.sub(
        lambda m: m[0].replace("-", "✗").replace("+", "⊞", 1).replace("+", " "), text
    )


def _ticked(box: re.Match[str]) -> str:
    """A box or mark of a form as what it says, before what it is of or behind, at its length."""
    is_true = _TICKED.search(box["box"]) is not None or box["said"] is not None
    leads, behind, room = box["open"] or "", box["end"] or "", len(box["box"])
    if room < 3 or (box["open"] is not None and box["end"] is None):
        return leads + (" " if is_true else "✗").ljust(room) + behind
    return leads + (":1," if is_true else ":0,").rjust(room) + behind


def _is_alone(text: str, start: int, end: int) -> bool:
    """Returns whether a letter is not a part of "r/o", "2 l" or "l's"."""
    return (
        text[max(0, start - 1) : start] not in ("/", "'")
        and text[end : end + 1] not in ("/", "'")
        and not text[max(0, start - 2) : start].strip().isdigit()
    )


@functools.cache
def load_english() -> English:
    """The lexicon in the package."""
    data = _read_data()
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
            *(language.not_sides, language.ignored_sentences),
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
        for word in sorted({w for w in findings if len(w) >= _SHORTEST_MENDED} | {*data["mended"]})
        if word.isalpha()
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
        PhraseIndex(
            (said, (name, group == "gone_findings"))
            for group in ("denied_findings", "gone_findings")
            for name, words in data[group].items()
            for said in words
        ),
        _subjects(language, data["lung_parts"]),
        spelling,
        data["short"],
        frozenset(known),
    )


def _cues(data: Mapping, times: Mapping[str, str]) -> dict[str, Cue]:
    after: dict[str, str] = {}
    before: dict[str, str] = {}
    for group in ("query", "past"):
        before.update({phrase: group for phrase in data[f"{group}_behind"]["words"]})
    for group, said, places in (
        ("hedges", "hedged", after),
        ("denies", "denied", after),
        ("hedged", "hedged", before),
        ("denied", "denied", before),
        ("affirmed", "affirmed", before),
    ):
        for level, phrases in data[group].items():
            for phrase in phrases:
                places.setdefault(phrase, f"{said} {level}")
    for said, level in (("denied", "certain"), ("hedged", "possible")):
        for phrase in data["value"][said]:
            before.setdefault(phrase, f"value {said} {level}")
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
    """Returns whether two words differ by one letter, or by two neighbours that are swapped."""
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
