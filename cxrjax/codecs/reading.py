"""Shared by several conventions' readers: four numbers, boxes one by one, lists of boxes."""

import abc
import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

from cxrjax.codecs.base import Candidate, Codec, FailureCategory

# The sign is for `out_of_range`: -3 is a number that is off the image, not a broken one.
WHOLE = r"(?:0|-?[1-9][0-9]{0,8})"
# Longer ones are no coordinates, and parsing them would take more than linear time.
_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})")
SEPARATOR = re.compile(r"[,;\s]+")
_BETWEEN = re.compile(r"\s{0,60},\s{0,60}")


def four_numbers(
    body: str, separator: re.Pattern[str] = SEPARATOR
) -> list[float] | FailureCategory:
    """The numbers of a box in the text's order, or why they are not four."""
    parts = [part for part in separator.split(body) if part]
    if not parts or not all(map(_NUMBER.fullmatch, parts)):
        return "malformed"
    return [float(part) for part in parts] if len(parts) == 4 else "wrong_arity"


def four_or_failure(
    start: int,
    end: int,
    body: str,
    exact: bool,
    label: str | None = None,
    separator: re.Pattern[str] = SEPARATOR,
    scale: float = 1,
) -> Candidate:
    """The box at `text[start:end]` whose numbers, times `scale`, are in `body`.

    Fractions of 1 are `ambiguous_scale` where the scale is 1: the notation counts to more.
    """
    numbers = four_numbers(body, separator)
    if isinstance(numbers, str):
        return Candidate(start, end, numbers)
    if scale == 1 and are_fractions(numbers):
        return Candidate(start, end, "ambiguous_scale", numbers)
    return Candidate(start, end, None, [number * scale for number in numbers], exact, label)


def are_fractions(numbers: list[float]) -> bool:
    """Returns whether numbers must be fractions of the image, up to a little beyond its edge.

    Corners that are all 0 or 1 can be anything.
    """
    return max(map(abs, numbers)) < 2 and not all(number.is_integer() for number in numbers)


def label_of(item: re.Match[str]) -> str | None:
    """The name that a match gives its boxes, in its group `label`."""
    return (item["label"] or "").strip() or None


def lenient_tag(tag: str) -> str:
    """A pattern of a tag such as <|box|> or </box>, with spaces, and with or without its bars."""
    name = tag.strip("<|>")
    slash = r"/\s{0,3}" if name.startswith("/") else ""
    return rf"<\s{{0,3}}\|?{slash}{re.escape(name.removeprefix('/'))}\|?\s{{0,3}}>"


def cut_tag(tag: str) -> str:
    """A pattern of what the end of a text may have left of a tag."""
    rest = ""
    for character in reversed(tag[1:-1]):
        rest = f"(?:{re.escape(character)}{rest})?"
    return rf"<\s{{0,3}}{rest}\Z"


def unclosed(text: str, start: int, end: int) -> Candidate:
    """A box that was begun at `text[start:end]` and has no end."""
    return Candidate(start, end, "truncated" if end == len(text) else "malformed")


# MedGemma's thinking, decoded without the tokens around it; its answer begins where the last of
# these ends: what announces it, a sentence without a blank after its full stop (where the token
# was), an empty line, a line.
_BARE_THOUGHT = re.compile(r"\s{0,9}thought\s{0,9}\n", re.IGNORECASE)
_ANSWER_STARTS = tuple(
    map(
        re.compile,
        (
            r"(?i:final\s{1,9}answer\**\s{0,9}:\**)\s{0,9}(?=\S)",
            r"(?<=[a-z0-9)\]*\"'][.!?])(?=[A-Z`{\[<])|(?<=[.!?][*)\"'])(?=[A-Z`{\[<])",
            r"\n[ \t]{0,9}\n(?!```)(?=\s{0,9}\S)",
            r"\n(?=[^\n])",
        ),
    )
)


# What models put around their thinking, "" where nothing opens it.
_THOUGHTS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel>thought", "<channel|>"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
)
_THINKING = re.compile(
    "|".join(rf"{re.escape(start)}.*?(?:{re.escape(end)}|\Z)" for start, end in _THOUGHTS)
    + r"|<unused94>.*?(?:<unused95>|(?P<endless>\Z))",
    re.DOTALL | re.IGNORECASE,
)
# The prompt may have opened it already.
_CLOSES = re.compile("|".join(re.escape(end) for _, end in _THOUGHTS), re.IGNORECASE)


def without_thinking(text: str) -> str:
    """Returns an answer without the thinking that marks enclose; "" where the answer never came."""
    if _CLOSES.search(text) or _THINKING.search(text):
        # MedGemma's that has no end is told by its codec.
        left = _THINKING.sub(lambda one: "" if one["endless"] is None else one[0], text)
        ends = [found.end() for found in _CLOSES.finditer(left)]
        text = left[ends[-1] :].strip() if ends else left.strip()
    return without_bare_thought(text)


def without_bare_thought(text: str) -> str:
    """Returns an answer without the thinking before it that no token separates from it.

    A text that is thinking only is returned as "".
    """
    opening = _BARE_THOUGHT.match(text)
    if opening is None:
        return text
    for start in _ANSWER_STARTS:
        ends = [found.end() for found in start.finditer(text, opening.end())]
        if ends:
            return text[ends[-1] :].strip()
    return ""


def lists_of(text: str, items: Iterable[re.Match[str]]) -> Iterator[list[re.Match[str]]]:
    """Matches by the list that they stand in, where boxes are shared out among the matches.

    Args:
        items: with groups `open` and `close`, what opens a list before its first box and closes it
            behind its last one. Within a list there is a comma between two boxes and no more.
    """
    listed: list[re.Match[str]] = []
    for item in items:
        if listed and (
            listed[-1]["close"] is not None
            or item["open"] is not None
            or _BETWEEN.fullmatch(text, listed[-1].end(), item.start()) is None
        ):
            yield listed
            listed = []
        listed.append(item)
    if listed:
        yield listed


class OneByOne(Codec):
    """Boxes that stand alone, each found by one match.

    `item` has groups `box`, `body` (its numbers) and `end` (what closes it), and may have `label`;
    `exact` matches a whole box as it should be; `between` separates numbers. Where there is a group
    `bare`, it has the numbers of a box that is whole without what should enclose it.
    """

    item: ClassVar[re.Pattern[str]]
    exact: ClassVar[re.Pattern[str]]
    between: ClassVar[re.Pattern[str]] = SEPARATOR
    # Whether four numbers with % behind them are hundredths of those without.
    percents: ClassVar[bool] = False

    def _candidates(self, text: str) -> Iterator[Candidate]:
        groups = self.item.groupindex
        for item in self.item.finditer(text):
            start, end = item.span("box")
            body = item["bare"] if "bare" in groups else None
            if body is None and not item["end"]:
                yield unclosed(text, start, end)
                continue
            if body is None:
                body = item["body"]
            exact = self.exact.fullmatch(text, start, end) is not None
            label = label_of(item) if "label" in groups else None
            scale = self.scale
            if self.percents and body.count("%") == 4:
                body, scale = body.replace("%", " "), self.scale / 100
            yield four_or_failure(start, end, body, exact, label, self.between, scale)


class Listed(Codec):
    """Boxes in brackets, listed between an opening and a closing; `item` is that of `lists_of`."""

    item: ClassVar[re.Pattern[str]]
    # Between the boxes of one list.
    separator: ClassVar[str] = ", "

    def _write(self, grid: list[int]) -> str:
        return "[" + ", ".join(map(str, grid)) + "]"

    def _candidates(self, text: str) -> Iterator[Candidate]:
        for listed in lists_of(text, self.item.finditer(text)):
            yield from self._read_list(text, listed)

    @abc.abstractmethod
    def _read_list(self, text: str, items: list[re.Match[str]]) -> Iterator[Candidate]:
        """The boxes of one list."""
