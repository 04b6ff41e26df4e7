"""Names of others that become names of files: splits, images, systems, shards."""

import re
import unicodedata
from pathlib import Path, PurePosixPath
from typing import Any

from cxrjax.errors import ForeignError

# Unicode's categories Cc and Cs.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_LONGEST_NAME = 200  # bytes; file systems take 255, and endings are added
_LONGEST_PATH = 2_000  # bytes; Linux takes 4,096 with the folder before it
_LONGEST_PART = 255  # bytes, of file systems
_SHOWN = 60  # characters of a name in a message


def file_name(name: str) -> str:
    """The name, where it can be one of a file in the folder that is meant, and of nothing else.

    Raises:
        ForeignError: it is empty, too long, `.` or `..`, or holds a slash, a control character or
            half of a surrogate pair.
    """
    if name in (".", "..") or "/" in name or "\\" in name:
        raise ForeignError(f"{shown(name)} cannot name a file: it would be in another folder")
    return plain_name(name)


def path_inside(folder: Path, name: str) -> Path:
    """The file of this name in a folder or below it. Links within the folder are followed.

    Raises:
        ForeignError: the name is empty, absolute, climbs out (`..`), too long, or holds a control
            character or half of a surrogate pair.
    """
    plain_name(name, _LONGEST_PATH)
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts:
        raise ForeignError(f"{shown(name)} is not inside of {folder}")
    if any(len(part.encode()) > _LONGEST_NAME for part in path.parts):
        raise ForeignError(f"{shown(name)} is not a path: a part is too long")
    return folder / path


def path_anywhere(name: str) -> str:
    """The name, where it can be one of a file, in whatever folder; one's own lists hold such.

    Raises:
        ForeignError: it is too long, or has a control character or half of a surrogate pair.
    """
    if name:
        plain_name(name, _LONGEST_PATH)
    if any(len(part.encode()) > _LONGEST_PART for part in name.split("/")):
        raise ForeignError(f"{shown(name)} is not a path: a part is too long")
    return name


def shown(name: str) -> str:
    """A name as messages show it: quoted, escaped, and cut where it is long."""
    return ascii(name[:_SHOWN] + "..." * (len(name) > _SHOWN))


def shown_value(value: Any) -> str:
    """A value as messages show it: as Python writes it, escaped, and cut where it is long."""
    text = ascii(value)
    return text[:_SHOWN] + "..." * (len(text) > _SHOWN)


def system_name(name: str) -> str:
    """The name, where tables, pages and files can have it as it is; it may hold slashes.

    Raises:
        ForeignError: as `plain_name`, or it holds markup, a link or a character that turns the
            direction of writing, or leads out of a folder.
    """
    plain_name(name)
    if any(mark in name for mark in ("<", ">", "](")):
        raise ForeignError(f"{shown(name)} contains markup; it would change its page")
    if any(unicodedata.category(character) == "Cf" for character in name):
        raise ForeignError(f"{shown(name)} contains an invisible character")
    if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/"):
        raise ForeignError(f"{shown(name)} would lead out of a folder")
    return name


def plain_name(name: str, longest: int = _LONGEST_NAME) -> str:
    """The name, where it can be shown and written; it may hold slashes.

    Raises:
        ForeignError: it is empty, too long, or contains a control character or half of a surrogate
            pair.
    """
    if not name:
        raise ForeignError("the name is empty")
    if _UNPRINTABLE.search(name):
        raise ForeignError(f"{shown(name)} has a control character or half of a surrogate pair")
    if len(name.encode()) > longest:
        raise ForeignError(f"{shown(name)} has {len(name.encode()):,} bytes, at most {longest:,}")
    return name
