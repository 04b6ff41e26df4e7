"""Rewrites what a model wrote in other signs into those of the formats, each character in place."""

import re
from collections.abc import Sequence
from typing import Any

_SIGNS = str.maketrans("“”„«»‘’：，；［］（）｛｝", '"""""\'\':,;[](){}')
_S = r"\s{0,60}"
_NUMBER = r"-?[0-9]{1,5}(?:\.[0-9]{0,6})?%?"
# A number of a list in quotes, JSON within a string, and four numbers in parentheses behind a key.
_QUOTED = re.compile(rf"([\[,]\s{{0,9}})[\"']({_NUMBER})[\"'](?=\s{{0,9}}[,\]])")
_ESCAPED = re.compile(r'\\"(\w{1,20})\\"(?=\s{0,9}:)')
_TUPLE = re.compile(rf"([:=]{_S})\(({_S}{_NUMBER}(?:{_S},{_S}{_NUMBER}){{3}}{_S})\)")
# Edges by name: {"x1": 100, "y1": 200, "x2": 500, "y2": 700}.
_EDGE = (
    r"[\"']?\b(?P<k%d>[xy]_?(?:[012]|min|max)?|left|top|right|bottom|w(?:idth)?|h(?:eight)?)[\"']?"
    rf"{_S}[:=]{_S}[\"']?(?P<v%d>-?\d{{1,5}}(?:\.\d{{1,6}})?)[\"']?"
)
_EDGES = re.compile(
    rf"(?P<held>[:=]{_S}\{{{_S})?"
    + rf"{_S},{_S}".join(_EDGE % (k, k) for k in range(4))
    + rf"(?(held){_S}\}})",
    re.IGNORECASE,
)
_EDGE_NAMES = (
    ("x0", "y0", "x1", "y1"), ("x1", "y1", "x2", "y2"), ("xmin", "ymin", "xmax", "ymax"),
    ("left", "top", "right", "bottom"), ("x", "y", "width", "height"), ("x", "y", "w", "h"),
)  # fmt: skip


def plain(text: str, edges: str | None, y_first: bool) -> str:
    """Returns the text with as many characters, boxes written as lists of numbers.

    Args:
        edges: what goes before a list made of named edges; None where edges have no list.
        y_first: whether y goes before x in such a list.
    """
    text = text.translate(_SIGNS)
    if _ESCAPED.search(text):
        text = _ESCAPED.sub(r' "\1" ', text).replace('\\"', ' "')
    text = _TUPLE.sub(r"\1[\2]", _QUOTED.sub(r"\1 \2 ", text))
    if edges is None:
        return text
    return _EDGES.sub(lambda found: _as_list(found, edges, y_first), text)


def x_or_y_first(numbers: Sequence[Any], y_first: bool) -> Sequence[Any]:
    """Swaps x and y where a format writes y first; the function is its own inverse."""
    return [numbers[k] for k in (1, 0, 3, 2)] if y_first else numbers


def _as_list(edges: re.Match[str], before: str, y_first: bool) -> str:
    """Returns named edges as a list of the same length; what is none stays."""
    named = {edges[f"k{k}"].lower().replace("_", ""): edges[f"v{k}"] for k in range(4)}
    names = next((one for one in _EDGE_NAMES if named.keys() == {*one}), None)
    if names is None:
        return edges[0]
    values = [named[name] for name in names]
    if "x" in names:
        values[2:] = [f"{float(a) + float(b):g}" for a, b in zip(values, values[2:], strict=False)]
    listed = "[" + ",".join(x_or_y_first(values, y_first)) + "]"
    whole = f": {listed}" if edges["held"] else f"{before}{listed}"
    return whole.ljust(len(edges[0])) if len(whole) <= len(edges[0]) else edges[0]
