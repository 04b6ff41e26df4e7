"""Checksums of a checkpoint's files, so that a damaged one is noticed before it is used."""

import json
from collections.abc import Iterable
from pathlib import Path

from cxrjax.errors import UserError
from cxrjax.files import file_sha256

FILE_NAME = "checksums.json"
# Not of the content: Orbax writes to them when the checksums are made.
_WRITTEN_LATER = ("_CHECKPOINT_METADATA", "commit_success.txt")


def write_checksums(directory: Path) -> None:
    """Writes `checksums.json`: the SHA-256 of every file by relative path."""
    files = {name: file_sha256(directory / name) for name in _files(directory)}
    content = json.dumps({"sha256": files}, indent=1)
    (directory / FILE_NAME).write_text(content + "\n", encoding="utf-8")


def find_damage(directory: Path, parts: Iterable[str] | None = None) -> str | None:
    """What is wrong with the files of a directory that `write_checksums` has seen; None: nothing.

    Args:
        parts: look only at what lies in these of its folders.
    """
    path = directory / FILE_NAME
    try:
        expected = json.loads(path.read_text(encoding="utf-8"))["sha256"]
        items = [(str(name), str(checksum)) for name, checksum in expected.items()]
    except FileNotFoundError:
        return f"{path} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{path} cannot be read"
    if not items:
        return f"{path} names no file"
    for name, checksum in items:
        if parts is not None and Path(name).parts[0] not in parts:
            continue
        file = directory / name
        if not file.exists():
            return f"{file} is missing"
        try:
            if file_sha256(file) != checksum:
                return f"{file} is not what was written"
        except (UserError, ValueError) as error:
            return str(error)
    return None


def _files(directory: Path) -> list[str]:
    found = (path for path in directory.rglob("*") if path.is_file())
    names = (path.relative_to(directory).as_posix() for path in found)
    return sorted(name for name in names if name not in (FILE_NAME, *_WRITTEN_LATER))
