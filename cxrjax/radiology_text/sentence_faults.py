"""Plain faults of written English, by rules: marks, capitals, articles, doubled words, number.

They read what programs and language models word for records. They know no grammar beyond short
phrases: what they find is wrong, what they pass over may be.
"""

import functools
import itertools
import re
from collections.abc import Iterator

from cxrjax.files import read_packaged

_DATA = read_packaged(str(__package__), "reference/sentence_faults.toml")
_WORDS = {name: frozenset(words.split()) for name, words in _DATA["words"].items()}
_VERBS = {verb: kind == "are_verbs" for kind in ("is_verbs", "are_verbs") for verb in _WORDS[kind]}
_MARK, _SENTENCE, _STRAY, _AS_ONE, _WORD, _THERE, _ASKED, _VOWEL_SOUND = map(
    re.compile, _DATA["patterns"].values()
)


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
        if first.lower() in _WORDS["articles"] and second[0].isalnum():
            vowel = _VOWEL_SOUND.match(second.lower()) or second == "X"
            if (first.lower() == "an") != bool(vowel) and not second.isdigit():
                yield f"{first} {second}"
    for n, word in enumerate(words):
        phrase = _phrase(words[n + 1 :])
        if word.lower() in _WORDS["singular"] and phrase and is_plural(phrase[-1]):
            yield f"{word} ... {phrase[-1]}"
        if word.lower() in _WORDS["plural"] and phrase and not any(map(is_plural, phrase)):
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
        if (
            not before
            or before[0].lower() in _WORDS["not_first"]
            or _WORDS["aside"] & set(map(str.lower, before))
        ):
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
        if (
            low in _WORDS["ends"]
            or not word[0].isalpha()
            or (n and low in {"the", *_WORDS["articles"]})
        ):
            break
        phrase.append(word)
    return (
        [] if not phrase or len(phrase) > 7 or phrase[-1].lower() in _WORDS["no_nouns"] else phrase
    )


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
    regular = low.endswith("s") and len(low) > 3 and not _AS_ONE.search(low)
    return not low.endswith("'s") and (low in _WORDS["irregular"] or regular)
