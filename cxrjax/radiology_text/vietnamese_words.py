"""Words of radiology Vietnamese, with their tones or without."""

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cxrjax.files import read_packaged
from cxrjax.radiology_text.definitions import OrganStatement, load_definitions
from cxrjax.radiology_text.english import Payload, PhraseIndex, Word
from cxrjax.radiology_text.lexicon import Cue

_TOKEN = re.compile(
    r"\d+(?:[.,]\d+)+|[^\W_]+|(?<=\s)[-–—](?=\s)|(?<=\()[-+](?=\))|[,:;()/=?<>≤≥✗⊕]"
)
_CHOICE = re.compile(r"\(([^()]*\|[^()]*)\)")


class VietnameseWords:
    """Everything that is looked up.

    Args:
        bare: without diacritics.

    Attributes:
        sets: syllables by what they do; `phrases`: wordings by what they do.
    """

    def __init__(self, bare: bool) -> None:
        cues = read_packaged(str(__package__), "reference/cues_vi.toml")
        named = read_packaged(str(__package__), "reference/findings_vi.toml")
        self._spelling: Mapping[str, str] = cues["spelling"]
        self._tones: Mapping[str, str] = cues["tones"]
        self._bare = bare
        self._known: set[str] = set()
        self._mended: dict[str, str] = {}
        if not bare:
            self._known = self._syllables((cues, named))
            parts = (named["findings"], named["organs"], named["regions"])
            self._mended = _by_bare_form(self._syllables(parts))
        self.form = functools.lru_cache(maxsize=1 << 14)(self._form)
        self.definitions = load_definitions()
        functions: Mapping[str, Sequence[str]] = cues["functions"]
        left_out = functions["accented"] if bare else ()
        self.findings = self._index(
            (one, tuple(names.split("; ")))
            for one, names in _flat(named["findings"])
            if one not in left_out
        )
        self.organs = self._index(
            (phrase, self._organ(organ)) for organ in named["organs"] for phrase in organ["subject"]
        )
        self.regions = self._index(_flat(named["regions"]))
        self.times = self._index(_flat(cues["time"]))
        self.severity = self._index(_flat(cues["severity"]))
        self.answers = self._index(_flat(cues["answers"]))
        self.cues = self._cues(cues, (named["findings"], named["regions"]))
        self.sets = {
            name: frozenset(form for word in words for form in self.forms(word))
            for name, words in {**functions, "passed": named["passed"]["words"]}.items()
        }
        groups = {name: named[name]["words"] for name in ("not_findings", "well", "borderline")}
        self.phrases = {
            name: self._set_index(phrases)
            for name, phrases in {**cues["phrases"], **groups}.items()
        }
        self.degrees = {
            self.form(word): float(rank)
            for rank, words in enumerate(cues["degrees"]["ranks"])
            for word in words
        }
        numbers = {self.form(word): n for n, word in enumerate(functions["number"], start=1)}
        self.numbers = {**numbers, **{str(n): n for n in range(1, 21)}}
        self.sides, self.letters, self.relations = (
            {self.form(word): meaning for word, meaning in cues[name].items()}
            for name in ("sides", "side_letters", "relations")
        )

    def split(self, text: str) -> list[Word]:
        """The tokens of a plain text."""
        words = [Word(self.form(m.group()), m.start(), m.end()) for m in _TOKEN.finditer(text)]
        # A dash that opens a line is none.
        return list(itertools.dropwhile(lambda word: word.lemma == "-", words))

    def forms(self, text: str) -> tuple[str, ...]:
        """The tokens of a phrase, without their positions."""
        return tuple(word.lemma for word in self.split(text))

    def _syllables(self, data: object) -> set[str]:
        return {self._plain_form(m.group()) for s in _strings(data) for m in _TOKEN.finditer(s)}

    def _form(self, token: str) -> str:
        form = self._plain_form(token)
        if self._bare or form in self._known or not form.isalpha() or len(form) < 3:
            return form
        # A wrong tone, or none: of a syllable that only one of those known can be.
        return self._mended.get(without_diacritics(form), form)

    def _plain_form(self, token: str) -> str:
        if token[0].isdigit():
            return token.replace(",", ".")
        if token in "–—":
            return "-"
        token = token[:-2] + self._tones.get(token[-2:], token[-2:])
        token = self._spelling.get(token, token)
        return without_diacritics(token) if self._bare else token

    def _index(self, phrases: Iterable[tuple[str, Payload]]) -> PhraseIndex[Payload]:
        expanded = ((one, payload) for phrase, payload in phrases for one in _expanded(phrase))
        return PhraseIndex(expanded, self.forms)

    def _set_index(self, phrases: Sequence[str]) -> PhraseIndex[str]:
        return self._index((phrase, phrase) for phrase in phrases)

    def _organ(self, organ: Mapping) -> tuple[OrganStatement, PhraseIndex[str]]:
        states = self._index(_flat(organ["states"]))
        regions, normal = tuple(organ["regions"]), tuple(organ["normal"])
        return OrganStatement(organ["name"], regions, normal, states), self._set_index(
            organ["well"]
        )

    def _cues(self, data: Mapping, named: Sequence[Mapping]) -> PhraseIndex[Cue]:
        # No change denies nothing.
        times = (one for one, _ in _flat(data["time"]) if not one.startswith("không còn"))
        after = dict([*_flat(data["after"])][::-1])
        after = {**dict.fromkeys(times, "neutral"), **after}
        before = dict([*_flat(data["before"])][::-1])
        # "Tìm" without its tone is a heart.
        syllables = {one for part in named for phrase, _ in _flat(part) for one in phrase.split()}
        mistaken = {without_diacritics(one) for one in syllables} if self._bare else set()
        return PhraseIndex(
            (
                (phrase, Cue(after.get(phrase, ""), before.get(phrase, "")))
                for phrase in (*before, *after)
                if phrase in syllables or without_diacritics(phrase) not in mistaken
            ),
            self.forms,
        )


def _strings(data) -> Iterator[str]:
    """Every text in a data file's values and keys."""
    if isinstance(data, str):
        yield data
        return
    for part in itertools.chain(*data.items()) if isinstance(data, Mapping) else data:
        yield from _strings(part)


def _by_bare_form(syllables: Iterable[str]) -> dict[str, str]:
    """Form without diacritics -> the one syllable that it can be."""
    found: dict[str, set[str]] = {}
    for syllable in syllables:
        found.setdefault(without_diacritics(syllable), set()).add(syllable)
    return {bare: forms.pop() for bare, forms in found.items() if len(forms) == 1}


@functools.cache
def load_words(bare: bool) -> VietnameseWords:
    return VietnameseWords(bare)


def _flat(groups: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Any]]:
    """Each phrase, written out, with the name of its group."""
    for name, phrases in groups.items():
        for phrase in phrases:
            yield from ((one, name) for one in _expanded(phrase))


@functools.cache
def _expanded(pattern: str) -> tuple[str, ...]:
    """Every phrase that a pattern with "(a|b|)" stands for."""
    choice = _CHOICE.search(pattern)
    if choice is None:
        return (" ".join(pattern.split()),)
    before, after = pattern[: choice.start()], pattern[choice.end() :]
    options = (_expanded(before + option + after) for option in choice[1].split("|"))
    return tuple(phrase for phrase in itertools.chain(*options) if phrase)


def without_diacritics(text: str) -> str:
    """Vietnamese in plain Latin letters."""
    plain = unicodedata.normalize("NFD", text.replace("đ", "d"))
    return "".join(c for c in plain if not unicodedata.combining(c))


def composed(text: str) -> tuple[str, Sequence[int]]:
    """The text in Unicode's form NFC, and the place in the text of each of its characters."""
    if unicodedata.is_normalized("NFC", text):
        return text, range(len(text) + 1)
    starts = [n for n, c in enumerate(text) if n and not unicodedata.combining(c)]
    pieces: list[str] = []
    places: list[int] = []
    for begin, end in itertools.pairwise([0, *starts, len(text)]):
        pieces.append(unicodedata.normalize("NFC", text[begin:end]))
        places += [begin] * len(pieces[-1])
    return "".join(pieces), [*places, len(text)]
