"""Reads what an answer says of options by their words: affirmed, denied or left open."""

import dataclasses
import functools
import re
import unicodedata
from collections.abc import Mapping

from cxrjax.papers.gemex.option_letters import pattern, regex
from cxrjax.radiology_text.assertions import Assertion
from cxrjax.radiology_text.english import lemmas
from cxrjax.radiology_text.lexicon import load_english, plain_text, split_sentences
from cxrjax.radiology_text.reader import ReportReader

# Of more than 1,000 characters no option is repeated word by word.
_LONGEST_OPTION = 1_000
_SHORT = 12  # words of an answer that may have an option's words in any order
_NONE_OF = regex("none_of")


@dataclasses.dataclass
class SaidOf:
    """Letters of the options that a text affirms, denies and leaves open."""

    affirmed: set[str]
    denied: set[str]
    left_open: set[str]

    @property
    def anything(self) -> bool:
        """Returns whether the text mentions any option."""
        return bool(self.affirmed | self.denied | self.left_open)


def plain_words(text: str) -> str:
    """Letters and digits of a text in lower case, in its words."""
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))


def without_article(words: str) -> str:
    """Plain words without "a", "an" or "the" before them."""
    return re.sub(r"\A(?:an?|the) (?=.)", "", words)


class OptionReader:
    """Reads texts beside options: their words are findings to the reader of reports, and what they
    mean is read by it too ("Enlarged heart" is cardiomegaly).

    Args:
        options: letter -> its words.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.words: dict[str, str] = {}
        for letter, said in options.items():
            if len(said) <= _LONGEST_OPTION and plain_words(said):
                self.words.setdefault(plain_words(said), letter)
        english = load_english()
        self._reader = ReportReader(english.with_findings(self.words))
        self._meanings: dict[str, Assertion] = {}
        for said, letter in self.words.items():
            meant = _plain_reader().read(said)
            if len({one.finding for one in meant}) == 1:
                self._meanings[letter] = meant[0]
        self.none = next((x for said, x in self.words.items() if _NONE_OF.search(said)), None)
        self.every = next(
            (x for said, x in self.words.items() if re.match(r"all (?:of|the)\b", said)), None
        )

    def listed(self, text: str) -> set[str] | None:
        """The letters of a text that is nothing but words of options; None where it is more."""
        whole = self.words.get(plain_words(text))
        if whole is not None:
            return {whole}
        parts = [plain_words(part) for part in re.split(r"[,;\n•✓、]|\band\b", text)]
        found = [self.words.get(without_article(part)) for part in parts if part]
        letters = {letter for letter in found if letter}
        return letters if found and len(letters) and None not in found else None

    def read(self, text: str) -> SaidOf:
        """Reads which options a text affirms, denies or leaves open, by their words, at present."""
        said = SaidOf(set(), set(), set())
        text, of_others = _OTHERS_DENIED.subn("", text)
        for start, end in split_sentences(text):
            sentence = text[start:end]
            for one in self._reader.read(sentence):
                if one.is_now:
                    self._note(said, sentence, one)
        either = said.affirmed & said.denied
        said.left_open |= either
        said.affirmed -= either
        said.denied -= either
        if not said.anything and len(text.split()) <= _SHORT and not _DENIAL.search(text.lower()):
            here = set(lemmas(text))
            scattered = {
                x
                for words, x in self.words.items()
                if words and set(lemmas(words)) <= here and lemmas(words)
            }
            (said.affirmed if len(scattered) == 1 else said.left_open).update(scattered)
        if of_others and said.affirmed:
            said.denied |= set(self.words.values()) - said.affirmed - said.left_open
        denied_rest = said.denied >= set(self.words.values()) - {self.none}
        if self.none and not said.affirmed and (_NONE_OF.search(text.lower()) or denied_rest):
            return SaidOf({self.none}, said.denied, set())
        return said

    def _note(self, said: SaidOf, sentence: str, one: Assertion) -> None:
        absent = one.status == "absent" or one.time == "resolved" or one.certainty == "unlikely"
        hedged = one.status == "uncertain" and one.certainty == "possible" and not absent
        if one.finding in self.words.values():
            letters = {one.finding}
            plain = plain_text(sentence)
            absent = (
                absent
                or _SPARED.match(plain[one.span[1] :]) is not None
                or _SPARING.search(plain[: one.span[0]]) is not None
            )
        else:
            letters = {x for x, meant in self._meanings.items() if meant.finding == one.finding}
            for letter in [x for x in letters if self._meanings[x].status == "absent"]:
                # "No effusion" as an option is borne out by its denial.
                if (
                    one.organ == self._meanings[letter].organ
                    or not self._meanings[letter].organ
                    or not absent
                ):
                    group = said.left_open if hedged else said.affirmed if absent else said.denied
                    group.add(letter)
                letters.discard(letter)
            spoken = set(lemmas(sentence))
            told = {
                x
                for x in letters
                if {w for words, y in self.words.items() if y == x for w in lemmas(words)} <= spoken
            }
            if len(letters) > 1 and not absent:
                if len(told) != 1:
                    said.left_open |= letters
                    return
                letters = told
            elif len(letters) == 1 and not absent:
                meant = self._meanings[next(iter(letters))]
                asked = (meant.side, meant.severity)
                if asked != (None, None) and not told and asked != (one.side, one.severity):
                    said.left_open |= letters
                    return
        (said.left_open if hedged else said.denied if absent else said.affirmed).update(letters)


_OTHERS_DENIED = regex("others_denied")
_SPARED = pattern(r"\s(?:is|are|was|were|appears?|remains?)\s(?:\w+ly\s)?{spared}")
_SPARING = re.compile(r"\bspar(?:es|ing)\s(?:the\s)?\Z")
_DENIAL = re.compile(r"\b(?:no|not|without|neither|nor|never)\b|n't\b")


@functools.cache
def _plain_reader() -> ReportReader:
    return ReportReader()


@functools.lru_cache(maxsize=1024)
def option_reader(options: tuple[tuple[str, str], ...]) -> OptionReader:
    """The reader beside these (letter, words); data sets repeat their options."""
    return OptionReader(dict(options))
