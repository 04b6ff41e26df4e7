"""Findings under a word that nothing here knows, which are not asserted.

An unknown verb, adjective or noun may turn round what is said ("the nodule evaporates", "a dearth
of nodules"), so that whatever stands under one is left open.
"""

import functools
from collections.abc import Sequence

from cxrjax.radiology_text.english import Words
from cxrjax.radiology_text.items import NamedItem
from cxrjax.radiology_text.lexicon import English, word_set

_AUXILIARIES, _GOVERNORS, _PREPOSITIONS, _TRACES = map(
    word_set, ("auxiliaries", "governors", "prepositions", "traces")
)
_NEGATORS = frozenset(("not", "never", "cannot", "nothing", "nobody", "none"))
_DENIALS = _NEGATORS | {"no", "without"}
_DOUBTFUL = word_set("left_open")
_ELLIPTIC = frozenset(("do", "doe", "did", "will", "would", "could", "can"))
# Behind a verb that governs the rest of its clause.
_COMPLEMENTS = word_set("complements")
# Behind the plural of a noun, rather than a verb.
_BEHIND_NOUNS = _AUXILIARIES | _PREPOSITIONS | word_set("behind_nouns")
_MARKS = frozenset(",;:()/")
_STOPS = _AUXILIARIES | _MARKS
_ADJECTIVES = ("ic", "ous", "al", "ed", "ar")
# Verbs that something there may do to another thing, but that do not say it is there.
_ACTING = word_set("acting")
_JOINED = frozenset((",", "or", "nor", "and", "/", ":"))
# May stand between a negator and what it denies.
_ADVERBS = word_set("adverbs")
_CLAUSAL = frozenset(("that", "whether", "if", "than", "because"))
_ARTICLES = frozenset(("a", "an", "the"))
_BEFORE_NOUN = _ARTICLES | {"any", "this", "that", "left", "right", "bilateral", "small", "large"}
_OF = frozenset(("of", "for", "against", "from", "to", "before"))
_ADVERBIAL = _OF | _PREPOSITIONS | {"after", "following", "with", "by", "since"}


@functools.cache
def _known(english: English) -> frozenset[str]:
    """Words that may be said of a finding which is there."""
    language, definitions = english.language, english.definitions
    phrases = (
        *language.modifiers, *language.sides, *language.change, *language.linked,
        *definitions.region_names, *definitions.finding_names, *language.subjects,
    )  # fmt: skip
    times = {word for phrase, _ in english.times.phrases() for word in phrase}
    words = {word for phrase in phrases for word in phrase}
    named = map(word_set, ["properties", "affirming", "grades", "amounts", "showing", "acting"])
    return frozenset(words | times | _PREPOSITIONS | _AUXILIARIES | _MARKS).union(*named)


class UnreadWords:
    """The words of a sentence that neither its cues and items nor the vocabulary account for.

    Args:
        read: places that cues, items and words of change take.
        text: the sentence's.
    """

    def __init__(self, tokens: Words, read: frozenset[int], english: English, text: str) -> None:
        self._tokens, self._read, self._text = tokens, read, text
        self._known = _known(english)

    def _is_new(self, place: int) -> bool:
        form = self._tokens.form(place)
        return not (
            place in self._read or form in self._known or not form.isalpha() or form.endswith("ly")
        )

    def over(self, item: NamedItem, begin: int, end: int) -> tuple[int, int] | None:
        """Words of a predicate over an item between two places that nothing here knows."""
        first = min(item.own)
        return (
            self._governor(begin, first)
            or self._denied(begin, end)
            or self._before(begin, first - 1)
            or self._behind(begin, item.last, end)
        )

    def _governor(self, begin: int, first: int) -> tuple[int, int] | None:
        """A verb with its subject: "I dispute a nodule", "the film argues against a nodule"."""
        forms = self._tokens.forms
        for place in range(begin, first - 1):
            ahead = place + 1
            while ahead < first and forms[ahead].endswith("ly"):
                ahead += 1
            governs = forms[place] in _GOVERNORS and place not in self._read
            if place > begin and ahead == place + 1 and forms[ahead] in _COMPLEMENTS:
                governs, ahead = governs or self._acts(place), place
            if governs and ahead < first and self._is_new(ahead):
                return place, ahead + 1
        return None

    def _denied(self, begin: int, end: int) -> tuple[int, int] | None:
        """A denial of a new word, or of nothing: "not suited for", "it does not"."""
        forms = self._tokens.forms
        for place in range(begin, end):
            if forms[place] in _DOUBTFUL and place not in self._read:
                return place, place + 1
            if forms[place] not in _NEGATORS:
                continue
            ahead = place + 1
            while ahead < end and (forms[ahead] in _ADVERBS or forms[ahead].endswith("ly")):
                ahead += 1
            stops = ahead == len(forms) and place > begin and forms[place - 1] in _ELLIPTIC
            if stops or (ahead < end and self._is_new(ahead)):
                return place, ahead + 1
        return None

    def _before(self, begin: int, last: int) -> tuple[int, int] | None:
        """A noun or verb right before an item: "a dearth of nodules", "has shed the nodule"."""
        forms, front = self._tokens.forms, last
        while front > begin and forms[front] in _BEFORE_NOUN:
            front -= 1
        if front <= begin or front in self._read:
            return None
        if forms[front] == ":":  # "blarg: nodule"
            return (begin, front + 1) if front == 1 and self._is_new(begin) else None
        if forms[front] in _OF:
            return (front - 1, front + 1) if self._is_new(front - 1) else None
        acts = self._acts(front) if front == last else forms[front + 1] in _ARTICLES
        apart = front - 1 in self._read or _ADVERBIAL & {*forms[max(begin, front - 3) : front]}
        return (front, front + 1) if acts and not apart and self._is_new(front) else None

    def _behind(self, begin: int, place: int, end: int) -> tuple[int, int] | None:
        """A predicate, value or noun behind an item: "nodule evaporates", "nodule clinic"."""
        forms = self._tokens.forms
        value = self._tokens.form(place) == ":" and place not in self._read
        said = self._tokens.form(place + value)
        # "Fibrotic strands", "effusion tracking upwards", "beyond a nodule I find"
        goes_on = said in ("i", "we") and begin in self._read
        goes_on |= said.endswith("ing") or self._tokens.form(place - 1).endswith(_ADJECTIVES)
        if place + value < end and self._is_new(place + value) and not goes_on:
            return place, place + value + 1
        while place < end and not self._is_new(place) and forms[place] not in _STOPS:
            place += 1
        first = place
        while place < end and forms[place] in _AUXILIARIES:
            place += 1
        if place >= end or not self._is_new(place):
            return None
        acts = self._acts(place) and (
            self._tokens.form(place + 1) not in _BEHIND_NOUNS or place + 1 == end
        )
        return (first, place + 1) if first < place or acts else None

    def _acts(self, place: int) -> bool:
        """Returns whether a word has the ending of "awaits"."""
        word = self._tokens[place]
        return self._text[word.start : word.end] == f"{word.lemma}s"

    def is_denied(self, item: NamedItem, cue: tuple[int, int]) -> bool:
        """Returns whether a bare negation before an item denies a new word, and so maybe not the
        item: "does not hide an effusion", "no drainage of the effusion"."""
        forms, (first, last) = self._tokens.forms, cue
        gap = range(last, min(item.own))
        if last - first > 1 or forms[first] not in _DENIALS or _JOINED & {*forms[last : gap.stop]}:
            return False
        if any(forms[p] in _CLAUSAL and forms[p + 1] not in _AUXILIARIES for p in gap):
            return True  # "no proof that there is a nodule"
        new = [p for p in gap if self._is_new(p) and forms[p] not in _TRACES]
        if forms[first] not in ("no", "without"):
            verb = next((p for p in gap if forms[p] not in _ADVERBS), gap.stop)
            acts = forms[verb] in _ACTING and verb not in self._read
            return bool(new) or acts
        return any(
            forms[p + 1] in _OF or (forms[p].endswith("ing") and forms[p + 1] == "the") for p in new
        )


def unread_items(
    words: UnreadWords,
    items: Sequence[NamedItem],
    plain: Sequence[int],
    clauses: Sequence[tuple[int, int]],
) -> dict[int, tuple[int, int]]:
    """Index of each item of `plain` under unread words -> those words."""
    found = {}
    for n in plain:
        item = items[n]
        begin, end = next(c for c in clauses if c[0] <= item.first < c[1])
        others = [one.first for one in items if one.first >= item.last and one is not item]
        over = words.over(item, begin, min([end, *others]))
        if over is not None:
            found[n] = over
    return found
