"""Finds the letters of options in an answer, and what is said of each."""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from cxrjax.files import read_packaged

Stance = Literal["chosen", "named", "denied", "not seen", "hedged", "considered"]


@functools.cache
def _data() -> Mapping[str, Any]:
    return read_packaged(str(__package__), "choices.toml")


@functools.cache
def phrases(name: str) -> tuple[str, ...]:
    """A list of words of `choices.toml`."""
    return tuple(_data()[name])


def regex(name: str) -> re.Pattern[str]:
    """A pattern of `choices.toml`."""
    return re.compile(_data()["regex"][name])


def any_of(words: Iterable[str]) -> str:
    """A pattern for any of the words or phrases, the longest first; blanks stand for any run."""
    return "|".join(
        (r"\b" if word[0].isascii() and word[0].isalnum() else "")
        + r"\s{1,3}".join(map(re.escape, word.split()))
        + (r"\b" if word[-1].isalpha() and word[-1].isascii() else "")
        for word in sorted(words, key=len, reverse=True)
    )


@functools.cache
def pattern(template: str) -> re.Pattern[str]:
    """A pattern with `{name}` for the words of each list, case ignored."""
    parts = _data()["parts"]
    template = re.sub(r"<([a-z]+)>", lambda m: parts.get(m[1], m[0]), template)
    filled = re.sub(r"\{([a-z]\w+)\}", lambda m: f"(?:{any_of(phrases(m[1]))})", template)
    return re.compile(filled, re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Group:
    """Letters named together."""

    letters: frozenset[str]
    # `start`, `end`: its place in the text.
    start: int
    end: int
    alternatives: bool
    is_item: bool  # whether it begins an item of a list, as `B: Atelectasis` does
    rank: int  # 2 behind a concluding word, 1 behind another decisive one, else 0
    stance: Stance


# Letters of words in Latin or Cyrillic script go with a letter; those of other scripts do not.
_IN_WORD = r"A-Za-z0-9_À-ɏЀ-ӿẠ-ỹ"
_MENTION = regex("mention")
_GLUED = re.compile(r"\W{0,5}([A-Ha-h]{2,8})\W{0,5}\Z")
_RANGE = re.compile(r"\b[A-H][^\S\n]?(?:[-–—]|\bto\b|\bthrough\b)[^\S\n]?[A-H]\b")
_PREFERENCE = re.compile(r"\b[A-H]\s?[<>≥≤]\s?[A-H]\b")
_SMALL_LIST = re.compile(r"\W{0,5}\b[a-h]\b\W{0,5}(?:(?:and|or)?\W{0,5}\b[a-h]\b\W{0,5}){0,7}\Z")
_SMALL = (
    re.compile(r"(?<![\w'’])\(([a-h])\)"),
    re.compile(r"(?m)^[^\S\n]{0,9}(?:[-*•]\s)?([a-h])[.:)]\s"),
    re.compile(
        r"(?i:\b(?:options?|choices?|answers?|ans|letters?)\b(?:\s?(?:is|are|[:=]|correct|the|option|"
        r"choice)){0,4}\s?)(?:[\"'(]?)([a-h])(?=[\"')]?\s{0,3}(?:[.,:;)]|and\b|or\b|is\b|\Z|\n))"
    ),
    re.compile(r"(?<=[A-H])(?:,| and|, and) ([a-h])(?=\W|\Z)"),
)
_ORDINAL = r"(?:{ordinals}|\d(?:st|nd|rd|th))"


def has_letters(text: str) -> bool:
    """Returns whether a text mentions an option's letter."""
    return _MENTION.search(text) is not None


def with_capital_letters(text: str, offered: Iterable[str]) -> str:
    """The text with the letters of options as capitals that stand apart, where it is clear that
    they are meant: `bc`, `answer: b`, `(b) atelectasis`, `the second option`."""
    letters = sorted(offered)
    glued = _GLUED.fullmatch(text)
    if glued is None:
        label = re.fullmatch(
            r"(?is)(?P<label>\W{0,5}answers?\W{1,5}(?:is\W|are\W)?\W{0,5})(?P<rest>\S{2,12})\W*",
            text,
        )
        glued = _GLUED.fullmatch(label["rest"]) if label else None
    if glued is not None:
        word = glued[1].upper()
        same_case = glued[1].isupper() or glued[1].islower()
        if same_case and list(word) == sorted(set(word)) and set(word) <= set(letters):
            return ", ".join(word)
    if _SMALL_LIST.fullmatch(text):
        return text.upper().replace("AND", "and").replace("OR", "or")
    for small in _SMALL:
        text = small.sub(
            lambda m: m[0][: m.start(1) - m.start()] + m[1].upper() + m[0][m.end(1) - m.start() :],
            text,
        )
    return _with_ordinals(text, letters)


def _with_ordinals(text: str, letters: Sequence[str]) -> str:
    """`the first and the third option` as `option A, C`."""

    def replace(match: re.Match[str]) -> str:
        places = []
        for word in re.findall(r"[a-z]+|\d", match[0].lower()):
            if word in phrases("ordinals"):
                places.append(phrases("ordinals").index(word))
            elif word.isdigit():
                places.append(int(word) - 1)
        if not all(0 <= place < len(letters) for place in places):
            return match[0]
        return "option " + ", ".join(letters[place] for place in places)

    each = pattern(
        rf"\b(?:the\s)?{_ORDINAL}(?:(?:,|\sand|,\sand)\s(?:the\s)?{_ORDINAL}){{0,6}}\s"
        r"(?:options?|choices?|answers?|ones?)\b"
    )
    return each.sub(replace, text)


def stray_letters(text: str, groups: Sequence[Group]) -> frozenset[str]:
    """Capitals that stand alone and in no group, "A" of a sentence excepted: what they are for is
    not read."""
    return frozenset(
        m["letter"]
        for m in _MENTION.finditer(text)
        if not any(group.start <= m.start() < group.end for group in groups)
        and not (m["letter"] == "A" and re.match(r"\s[a-z]", text[m.end() : m.end() + 2]))
    )


def is_irresolute(text: str) -> bool:
    """Returns whether letters form a range or an order of preference, so that none is chosen."""
    return bool(_RANGE.search(text) or _PREFERENCE.search(text))


def find_groups(text: str, options: Mapping[str, str]) -> list[Group]:
    """The groups of letters in a text, in order.

    Args:
        options: letter -> its words in lower case.
    """
    mentions = [m for m in _MENTION.finditer(text) if _is_name(text, m, options)]
    runs: list[list[re.Match[str]]] = []
    alternatives: list[bool] = []
    for mention in mentions:
        gap = text[runs[-1][-1].end() : mention.start()] if runs else None
        joined = None if gap is None else _joined(gap, runs[-1][-1], mention)
        if joined is None:
            runs.append([mention])
            alternatives.append(False)
        else:
            runs[-1].append(mention)
            alternatives[-1] |= joined
    marks = [place for place in (text.find("✓"), text.find("✗")) if place >= 0]
    marks_first = bool(marks and runs) and min(marks) < runs[0][0].start()
    groups = []
    for n, (run, either) in enumerate(zip(runs, alternatives, strict=True)):
        begin = runs[n - 1][-1].end() if n else 0
        stop = runs[n + 1][0].start() if n + 1 < len(runs) else len(text)
        is_item = _ITEM_START.search(text, begin, run[0].start()) is not None
        ahead, after = text[begin : run[0].start()], text[run[-1].end() : stop]
        if stop < len(text):
            # "C, not B": the denial is B's.
            after = pattern(r",\s(?:and\s|but\s)?{denied_before}[\s(\"']{1,4}\Z").sub("", after)
        rank, stance = _stance(
            _SENTENCE_START.split(ahead)[-1],
            after,
            ahead,
            options.get(run[-1]["letter"], ""),
            marks_first,
        )
        if either and stance in ("named", "chosen") and rank == 0:
            stance = "hedged"
        groups.append(
            Group(
                frozenset(m["letter"] for m in run),
                run[0].start(),
                run[-1].end(),
                either,
                is_item,
                rank,
                stance,
            )
        )
    return groups


_ITEM_START = regex("item_start")
_SENTENCE_START = re.compile(r"(?<=[.!?;])\s|\n")


def _is_name(text: str, mention: re.Match[str], options: Mapping[str, str]) -> bool:
    """Returns whether a capital names an option, and is not the word "A" or a part of a name."""
    after = text[mention.end() : mention.end() + 200]
    if after_own_words(after, options.get(mention["letter"], "")) != after:
        return True
    word = re.search(
        rf"([{_IN_WORD}'’.:]+)[^\S\n]{{1,3}}\Z",
        text[max(0, mention.start() - 40) : mention.start()],
    )
    if (
        word
        and not mention["open"]
        and word[1][-1] not in ".:"
        and word[1].lower() not in phrases("before")
    ):
        previous = _MENTION.search(text, max(0, mention.start() - 5), mention.start())
        if previous is None and not re.fullmatch(r"\d+", word[1]):
            return False
    if mention["close"] and not (
        mention["letter"] == "A" and set(mention["close"]) <= set("\"'’”")
    ):
        return True
    if re.match(r"\s{0,9}(?:[.:;,!?&/+|<>=✓✗、，。：；（]|[-–—(\[\"']|\Z)|[^\S\n]{0,9}\n", after):
        return True
    if pattern(r"\s{1,3}{behind}").match(after) or re.match(r"\s{1,3}[A-H](?![\w'’])", after):
        return True
    return re.match(r"\s{0,3}[^\x00-ɏ]", after) is not None


def _joined(gap: str, one: re.Match[str], other: re.Match[str]) -> bool | None:
    """Returns whether letters separated by `gap` are alternatives; None if they are no list."""
    inner = pattern(
        r"\s{0,3}(?:\([^()\n]{0,120}\))?\s{0,3}(?P<join>,\s?(?:{joins}|{alternatives})|[,;、，&/+]|{joins}|{alternatives}|"
        r"\n\s{0,3}[-*•]?|[.])?\s{0,3}(?:also\s|the\s|options?\s|both\s)?"
    ).fullmatch(gap)
    if inner is None or (inner["join"] == "." and gap != "."):
        return None
    if not gap and not (one["close"] and other["open"]):
        return None
    return (
        bool(inner["join"])
        and pattern(r"[,\s]{0,3}{alternatives}").fullmatch(inner["join"]) is not None
    )


def _stance(
    before: str, after: str, whole_before: str, words: str, marks_first: bool
) -> tuple[int, Stance]:
    """Rank and stance of a group by the words around it."""
    behind = after_own_words(after, words)
    if marks_first:
        mark = re.search(r"([✓✗])\s{0,3}(?i:options?)?\s{0,3}\Z", before)
    else:
        mark = re.match(r"\s{0,3}[.:)\-–—]{0,2}\s{0,3}([✓✗])", behind)
    if mark:
        return 0, "chosen" if mark[1] == "✓" else "denied"
    named = before.rstrip().lower()
    parts = {
        "before": before,
        "words before": named.removesuffix(words) if words and named.endswith(words) else "",
        "behind": _SENTENCE_START.split(behind)[0][:120],
        "all before": whole_before,
    }
    for row in _data()["stance"]:
        said = pattern(row["words"]).search(parts[row["where"]])
        also = "also" not in row or pattern(row["also"]).search(before)
        unless = "unless" in row and pattern(row["unless"]).search(before)
        if said and also and not unless:
            return row.get("rank", 0), row["says"]
    return 0, "named"


def after_own_words(after: str, words: str) -> str:
    """Returns the text behind a letter and the words of its option."""
    if words:
        inner = r"[\W_]{1,4}".join(map(re.escape, re.findall(r"\w+", words)))
        own = re.match(
            rf"\s{{0,3}}[.:)\]\-–—]{{0,2}}\s{{0,3}}[\"'(*]{{0,2}}{inner}\b[\"')*]{{0,2}}",
            after,
            re.IGNORECASE,
        )
        if own:
            return after[own.end() :]
    return after
