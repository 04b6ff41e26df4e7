"""The lists of a data set's YAML (`data.yaml`): names of classes, folders of splits.

Of YAML no more than these files have: keys, each with a text, a list or a mapping from numbers, on
its line or below it.
"""

import re

from cxrjax.errors import ForeignError

_QUOTED = r"""(?:"(?:[^"\\]|\\.)*+"|'(?:[^']|'')*+')"""
_ITEM = re.compile(rf"(\s*+(?:\d++\s*+:\s*+)?{_QUOTED}\s*+|[^,]*)(?:,|$)")
_BEFORE_COMMENT = re.compile(rf"(?:(?<=[\s\[{{,]){_QUOTED}|(?!(?<=\s)#).)*+")
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|(.))", re.IGNORECASE)
_ENDS = {"[": "]", "{": "}"}
Items = list[tuple[str | None, str]]


def lists_of(text: str) -> dict[str, Items]:
    """Returns the items by key, of a repeated key the first: (number in a mapping or None, text).

    Raises:
        ForeignError: a list has no end.
    """
    found: dict[str, Items] = {}
    items: Items = []
    opened: list[str] = []  # lines of a list that goes on
    key, start = "", 1
    for number, line in enumerate(text.splitlines(), 1):
        before = _BEFORE_COMMENT.match(f" {line}")
        bare, is_below = before[0].strip() if before else "", line.startswith((" ", "\t"))
        if bare and not opened and not is_below and not line.startswith("-"):
            (key, _, bare), start = bare.partition(":"), number
            items, bare = [], bare.strip()
            found.setdefault(key, items)
        if opened or (bare and bare[0] in _ENDS):
            opened.append(bare)
        if opened and bare.endswith(_ENDS[opened[0][0]]):
            inside, is_mapping = " ".join(opened)[1:-1], opened[0][0] == "{"
            texts = [one.strip() for one in _ITEM.findall(inside)]
            items += [_item(one, is_mapping) for one in texts if one]
            opened = []
        elif bare and not opened:
            is_mapping = is_below and not bare.startswith("-")
            items.append(_item(bare.removeprefix("-").strip(), is_mapping))
    if opened:
        raise ForeignError(f"{key}: a list without an end", start)
    return found


def _item(text: str, is_mapping: bool) -> tuple[str | None, str]:
    number, sign, name = text.partition(":") if is_mapping else ("", "", text)
    name = (name if sign else text).strip()
    if len(name) > 1 and name[0] == name[-1] == "'":
        name = name[1:-1].replace("''", "'")
    elif len(name) > 1 and name[0] == name[-1] == '"':
        name = _ESCAPE.sub(lambda of: of[3] or chr(int(of[1] or of[2], 16)), name[1:-1])
    return number.strip() if sign else None, name
