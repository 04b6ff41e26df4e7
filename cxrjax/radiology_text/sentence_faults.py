"""Plain faults of written English, by rules: marks, capitals, articles, doubled words, number.

They read what programs and language models word for records. They know no grammar beyond short
phrases: what they find is wrong, what they pass over may be.
"""

import functools
import itertools
import re
from collections.abc import Iterator


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MARK = re.compile(r"<[^<>]*>")  # a box within a text
_SENTENCE = re.compile(r"(?<=[.?!]) (?=[A-Z<])")
_STRAY = re.compile(r"[{}_]|  | [,.;:?]|\.\.|,,|\bnan\b")
# A phrase ends before these, besides at marks.
_ENDS = _words(
    """
    in of at on to for with without from by under over above below behind beside between along
    inside within than as that which who whose where when while if and or but nor so is are was
    were has have had do does did can could may might would will should must shows show appears
    appear looks look lies lie seems seem marks mark marked seen visible present absent normal
    abnormal clear located found due needs need bends bulges winds takes take keep keeps stand
    stands draw draws hide hides taper tapers point points come comes mean means give gives hold
    holds press presses make makes overlap overlaps reach reaches there not about around wider
    larger denser broader higher whiter covers cover agrees agree differs differ be been often
    usually typically also free unremarkable affect affects results follows describes describe
    near alone rarely crowds names tends tend involved produces produce rests rest
    """
)
_ARTICLES = ("a", "an")
_SINGULAR = (*_ARTICLES, "one", "each", "every", "another")
_PLURAL = ("both", "two", "three", "four", "five", "six", "several", "many")
_VERBS = {"is": False, "are": True, "was": False, "were": True, "does": False, "do": True,
          "has": False, "have": True, "shows": False, "show": True, "appears": False,
          "appear": True, "looks": False, "look": True}  # fmt: skip
_IRREGULAR = ("hila", "vertebrae", "apices", "bronchi", "septa", "bullae")
_AS_ONE = re.compile(r"(?:ss|us|is|thorax|lens)$")
# Words before a verb that is not of the sentence's own subject.
_NOT_FIRST = _words(
    """
    what which who where when why how to in on at of as if for select
    """
)
_ASIDE = _words(
    """
    that which who there to would can could may might will should must
    """
)
_NO_NOUNS = _words(
    """
    the a an no any some this that these those it they he she both each one two three four five
    six all none neither either every another only probably possibly likely few many x largely
    mostly nearly more most
    """
)
_WORD = re.compile(r"[A-Za-z][\w'-]*|\d+|[^\w\s]")
_THERE = re.compile(r"\bthere (is|are|was|were)\b|\b(is|are|was|were) there\b", re.IGNORECASE)
_ASKED = re.compile(
    r"(?:^|^(?:what|why|where|how|when|to what|in which \w+|which \w+)(?: \w+)?? )"
    r"(is|are|was|were|does|do|has|have) (?=(?:the|a|an|both|this|these)\b)",
    re.IGNORECASE,
)
_VOWEL_SOUND = re.compile(r"(?!one\b|once\b|uni|use|usual|eu)[aeiou]|hour|honest|x-|mri\b|ild\b")


@functools.lru_cache(maxsize=1 << 14)  # records say the same in the same words
def sentence_faults(text: str) -> tuple[str, ...]:
    """The faults of a text of whole sentences, each in a few words; empty where none is known.

    Marks of boxes (`<...>`) stand for a noun.
    """
    return tuple(_faults(_MARK.sub("X", text)))


def _faults(text: str) -> Iterator[str]:
    if not text.strip():
        yield "no words"
        return
    if found := _STRAY.search(text):
        yield f"stray marks: {found[0]!r}"
    for sentence in _SENTENCE.split(text.strip()):
        if not (sentence[0].isupper() or sentence[0].isdigit()):
            yield f"{sentence!r} begins without a capital"
        if sentence[-1] not in ".?!":
            yield f"{sentence!r} ends without a mark"
        yield from phrase_faults(sentence)


def phrase_faults(text: str) -> Iterator[str]:
    """Faults of articles, doubled words and number, in a sentence or a part of one."""
    words = _WORD.findall(text)
    for first, second in itertools.pairwise(words):
        if first.lower() == second.lower() and first.isalpha():
            yield f"{first} {second}"
        if first.lower() in _ARTICLES and second[0].isalnum():
            vowel = _VOWEL_SOUND.match(second.lower()) or second == "X"
            if (first.lower() == "an") != bool(vowel) and not second.isdigit():
                yield f"{first} {second}"
    for n, word in enumerate(words):
        phrase = _phrase(words[n + 1 :])
        if word.lower() in _SINGULAR and phrase and is_plural(phrase[-1]):
            yield f"{word} ... {phrase[-1]}"
        if word.lower() in _PLURAL and phrase and not any(map(is_plural, phrase)):
            yield f"{word} ... {phrase[-1]}"
    yield from _disagreements(text)


def _disagreements(text: str) -> Iterator[str]:
    """Verbs in another number than what they are said of."""
    for found in _THERE.finditer(text):
        many = _VERBS[(found[1] or found[2]).lower()]
        words = _WORD.findall(text[found.end() :])
        phrase = _phrase(words)
        if phrase and is_plural(phrase[-1]) != many and not (many and _is_list(words)):
            yield f"{found[0]} ... {phrase[-1]}"
    if asked := _ASKED.search(text):
        words = _WORD.findall(text[asked.end() :])
        phrase = _phrase(words)
        many = words[0].lower() == "both" or any(map(is_plural, phrase))
        if phrase and not _is_list(words) and many != _VERBS[asked[1].lower()]:
            yield f"{asked[1]} ... {phrase[-1]}"
        return
    for part in re.split(r"[:;] |, (?:and|but) ", text):
        words = _WORD.findall(part)
        verb = next((n for n, word in enumerate(words) if word in _VERBS), 0)
        before = words[:verb]
        if not before or before[0].lower() in _NOT_FIRST or _ASIDE & set(map(str.lower, before)):
            continue
        pronoun = {"they": True, "it": False, "each": False}.get(before[0].lower())
        many = bool(pronoun)
        if pronoun is None:
            phrase = _phrase(before)
            if not phrase or _is_list(before):
                continue
            many = is_plural(phrase[-1])
        if many != _VERBS[words[verb]]:
            yield f"{' '.join(before)} {words[verb]}"


def _phrase(words: list[str]) -> list[str]:
    """The words of a noun and what stands before it, its noun last; none where it is not known."""
    phrase: list[str] = []
    for n, word in enumerate(words):
        low = word.lower()
        if low in _ENDS or not word[0].isalpha() or (n and low in ("the", *_ARTICLES)):
            break
        phrase.append(word)
    return [] if not phrase or len(phrase) > 7 or phrase[-1].lower() in _NO_NOUNS else phrase


def _is_list(words: list[str]) -> bool:
    """Returns whether a phrase continues with `and`, `or` or a comma before its verb."""
    for word in words:
        if word in (",", "and", "or", "nor"):
            return True
        if word.lower() in _VERBS or word in (".", "?", ":", ";"):
            return False
    return False


def is_plural(noun: str) -> bool:
    """Returns whether a noun has a plural form."""
    low = noun.lower()
    if low.endswith("'s"):
        return False
    return low in _IRREGULAR or (low.endswith("s") and len(low) > 3 and not _AS_ONE.search(low))
