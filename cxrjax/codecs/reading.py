"""Shared by several conventions' readers: four numbers, unclosed lists, lists of lists."""

import re
from collections.abc import Iterable, Iterator

from cxrjax.codecs.base import Candidate, FailureCategory

# The sign is for `out_of_range`: -3 is a number that is off the image, not a broken one.
WHOLE = r"(?:0|-?[1-9][0-9]{0,8})"
# Longer ones are no coordinates, and parsing them would take more than linear time.
_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})")
_SEPARATOR = re.compile(r"[,;\s]+")
_BETWEEN = re.compile(r"\s{0,60},\s{0,60}")


def four_numbers(
    body: str, separator: re.Pattern[str] = _SEPARATOR
) -> list[float] | FailureCategory:
    """The numbers of a box in the text's order, or why they are not four."""
    parts = [part for part in separator.split(body) if part]
    if not parts or not all(map(_NUMBER.fullmatch, parts)):
        return "malformed"
    return [float(part) for part in parts] if len(parts) == 4 else "wrong_arity"


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
