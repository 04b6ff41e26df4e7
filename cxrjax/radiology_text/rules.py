"""CueGrammar of cues: patterns over a sentence's words, from a data file."""

import bisect
import functools
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from cxrjax.files import read_packaged
from cxrjax.radiology_text.assertions import Time
from cxrjax.radiology_text.english import Match
from cxrjax.radiology_text.lexicon import Cue

FINDING = "¤"
_CLASS = re.compile(r"\{(\w+)\}")
_ADVERBS = "(?:{adv} )*"
_LOOKAROUND = re.compile(r"\(\?<?[=!]")
_DOUBLED = re.compile(r"\(\?:\(\?:([^()]*)\)\)")
_GROUP = re.compile(r"\([^()]*\)[?*]?")
_COMMON = frozenset(("is", "are", "was", "no", "not", "of", "to", "in", "on", "that", "has", "be"))
_FIRST = re.compile(r"(?P<word>[a-z]+)(?:\(\?:(?P<ends>[a-z|]+)\)(?P<may>\?)?)?(?=\Z| |\(\?: )")


class Found(NamedTuple):
    """Matches of a grammar's rules in a sentence; `inside` is said of the findings in the words."""

    cues: list[Match[Cue]]
    inside: list[Match[str]]
    times: list[Match[Time]]

    def taken(self) -> set[int]:
        """Words that no other cue takes."""
        spans = [(m.first, m.last) for m in self.cues] + [(m.first, m.last) for m in self.inside]
        return {place for first, last in spans for place in range(first, last)}


class _Rule(NamedTuple):
    """One pattern; `needs` are sets of words, of each of which a sentence has one if it fits."""

    cue: Cue
    inside: str
    time: Time | None
    pattern: re.Pattern[str]
    needs: tuple[frozenset[str], ...]


class CueGrammar:
    """The rules of a language, in their order of precedence.

    Args:
        data: the file's `classes` and `rule` tables.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        classes = {name: f"(?:{words})" for name, words in data["classes"].items()}
        self._rules = []
        for rule in data["rule"]:
            cue = Cue(rule.get("after", ""), rule.get("before", ""))
            for words in rule["words"]:
                words = words.replace("~", _ADVERBS)
                while _CLASS.search(words):
                    words = _CLASS.sub(lambda m: classes[m[1]], words)
                pattern = re.compile(f"(?<= )(?:{words})(?= )")
                one = (cue, rule.get("inside", ""), rule.get("time"), pattern, _needs(words))
                self._rules.append(_Rule(*one))
        # A rule is tried where a word is of its rarest need.
        self._led_by: dict[str, list[int]] = {}
        self._always: list[int] = []
        for n, rule in enumerate(self._rules):
            if not rule.needs:
                self._always.append(n)
            rarest = min(rule.needs, key=lambda words: len(words & _COMMON), default=frozenset())
            for word in rarest:
                self._led_by.setdefault(word, []).append(n)
            others = [words for words in rule.needs if words is not rarest]
            others.sort(key=lambda words: (len(words & _COMMON), len(words)))
            self._rules[n] = rule._replace(needs=tuple(others))

    def find(self, forms: Sequence[str], named: Collection[int]) -> Found:
        """Finds what rules say; of two that overlap the earlier rule counts.

        Args:
            forms: the words.
            named: places of words of findings and organs' states.
        """
        found = Found([], [], [])
        here = frozenset(forms)
        led = {n for form in here & self._led_by.keys() for n in self._led_by[form]}
        rules = [
            self._rules[n]
            for n in sorted(led.union(self._always))
            if not any(words.isdisjoint(here) for words in self._rules[n].needs)
        ]
        if not rules:
            return found
        masked = [FINDING if place in named else form for place, form in enumerate(forms)]
        text = f" {' '.join(masked)} "
        starts = list(itertools.accumulate((len(word) + 1 for word in masked), initial=1))
        taken: dict[bool, set[int]] = {True: set(), False: set()}
        for rule in rules:
            for match in rule.pattern.finditer(text):
                first = bisect.bisect_right(starts, match.start()) - 1
                last = bisect.bisect_left(starts, match.end())
                words = {*range(first, last)}
                if not words or not words.isdisjoint(taken[rule.time is None]):
                    continue
                taken[rule.time is None] |= words
                if rule.time is not None:
                    found.times.append(Match(first, last, rule.time))
                elif rule.inside:
                    found.inside.append(Match(first, last, rule.inside))
                else:
                    found.cues.append(Match(first, last, rule.cue))
        return found


def _needs(pattern: str) -> tuple[frozenset[str], ...]:
    """The words without which a pattern fits nothing, as far as they are plain in it."""
    found: list[frozenset[str]] = []
    pattern = _without_lookarounds(pattern.replace(r"\(", "⟨").replace(r"\)", "⟩"))
    while (plain := _DOUBLED.sub(r"(?:\1)", pattern)) != pattern:
        pattern = plain
    depth = start = 0
    for place, mark in enumerate(pattern):
        if mark == "(":
            depth += 1
            start = place if depth == 1 else start
        elif mark == ")":
            depth -= 1
            behind = pattern[place + 1 : place + 5]
            alone = behind[:1] in ("", " ") or behind == "(?: "
            required = (
                depth == 0 and alone and pattern[start - 1 : start] in ("", " ", "?", "*", "+")
            )
            if required and pattern[start : start + 3] == "(?:":
                words = _first_words(pattern[start + 3 : place])
                found += [words] * bool(words)
    bare = _GROUP.sub(" ¤ ", _GROUP.sub("¤", _GROUP.sub("¤", _GROUP.sub("¤", pattern))))
    found += [frozenset((word,)) for word in bare.split(" ") if word.isascii() and word.isalpha()]
    return tuple(found)


def _without_lookarounds(pattern: str) -> str:
    """The pattern without what it only looks at."""
    while (start := _LOOKAROUND.search(pattern)) is not None:
        depth, end = 1, start.end()
        while depth:
            depth += (pattern[end] == "(") - (pattern[end] == ")")
            end += 1
        pattern = pattern[: start.start()] + pattern[end:]
    return pattern


def _first_words(alternatives: str) -> frozenset[str]:
    """The words that alternatives begin with, "identif(?:y|ied)" with both; none where one of them
    begins otherwise."""
    parts, depth = [""], 0
    for mark in alternatives:
        depth += (mark == "(") - (mark == ")")
        if mark == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += mark
    found: set[str] = set()
    for part in parts:
        first = _FIRST.match(part)
        if first is None:
            return frozenset()
        ends = (first["ends"] or "").split("|")
        found.update(first["word"] + end for end in (*ends, *[""] * bool(first["may"])))
    return frozenset(found)


@functools.cache
def load_grammar(language: str) -> CueGrammar:
    """The grammar of a language, from the package's data file."""
    return CueGrammar(read_packaged(str(__package__), f"reference/rules_{language}.toml"))
