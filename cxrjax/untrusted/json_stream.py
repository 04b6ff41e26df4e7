"""JSON arrays of others that are larger than memory, an item at a time."""

import io
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cxrjax.errors import ForeignError
from cxrjax.untrusted.foreign_files import MIB, open_foreign
from cxrjax.untrusted.json_text import parse_json

# What stands before an item, or the array's end.
_FIRST = re.compile(r"[ \t\r\n]*\[[ \t\r\n]*(\])?")
_NEXT = re.compile(r"[ \t\r\n]*(?:,[ \t\r\n]*|(\]))")


def read_items(path: str | Path, longest: int = MIB) -> Iterator[Any]:
    """The items of the array that a file holds, each as `parse_json` reads it.

    Args:
        longest: characters that an item may have.

    Raises:
        OSError: the file cannot be read.
        ForeignError: it is not a JSON array, or an item is too long or not as `parse_json` wants.
    """
    decoder = json.JSONDecoder()
    with open_foreign(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        rest, place = "", 0
        for number in itertools.count():
            if len(rest) - place < longest:
                rest, place = rest[place:] + _read(text, 2 * longest), 0
            before = (_NEXT if number else _FIRST).match(rest, place)
            if before is None:
                what = f"cut off after item {number - 1}" if number else "expected a JSON list"
                raise ForeignError(f"not a whole JSON array: {what}; fetch it")
            if before[1]:
                if (rest[before.end() :] + _read(text, longest)).strip():
                    raise ForeignError("not a whole JSON array: more comes after its end")
                return
            try:
                # Finds the end; C code that stops at the depth of Python's own recursion.
                place = decoder.raw_decode(rest, before.end())[1]
            except (ValueError, RecursionError) as error:
                said = "too deep" if isinstance(error, RecursionError) else str(error)
                raise ForeignError(
                    f"not a whole JSON array: item {number} ({said}), or it has more than "
                    f"{longest:,} characters; fetch it"
                ) from None
            if place - before.end() > longest:
                raise ForeignError(f"item {number} has more than {longest:,} characters")
            try:
                item = parse_json(rest[before.end() : place])
            except ForeignError as error:
                raise ForeignError(f"item {number}: {error}") from None
            yield item


def _read(text: io.TextIOWrapper, size: int) -> str:
    try:
        return text.read(size)
    except UnicodeDecodeError:
        raise ForeignError("not a whole JSON array: no UTF-8 text; fetch it") from None
