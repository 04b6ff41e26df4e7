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
    """The box at `text[start:end]` whose numbers, times `scale`, are in `body`."""
    numbers = four_numbers(body, separator)
    if isinstance(numbers, str):
        return Candidate(start, end, numbers)
    return Candidate(start, end, None, [number * scale for number in numbers], exact, label)


def label_of(item: re.Match[str]) -> str | None:
    """The name that a match gives its boxes, in its group `label`."""
    return (item["label"] or "").strip() or None


def unclosed(text: str, start: int, end: int) -> Candidate:
    """A box that was begun at `text[start:end]` and has no end."""
    return Candidate(start, end, "truncated" if end == len(text) else "malformed")


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
    `exact` matches a whole box as it should be; `between` separates numbers; `scale` times a number
    in the text is one on the grid.
    """

    item: ClassVar[re.Pattern[str]]
    exact: ClassVar[re.Pattern[str]]
    between: ClassVar[re.Pattern[str]] = SEPARATOR
    scale: ClassVar[float] = 1

    def _candidates(self, text: str) -> Iterator[Candidate]:
        named = "label" in self.item.groupindex
        for item in self.item.finditer(text):
            start, end = item.span("box")
            if not item["end"]:
                yield unclosed(text, start, end)
                continue
            exact = self.exact.fullmatch(text, start, end) is not None
            label = label_of(item) if named else None
            yield four_or_failure(start, end, item["body"], exact, label, self.between, self.scale)


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
