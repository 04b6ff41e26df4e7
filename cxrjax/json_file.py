"""JSON objects and lists out of files."""

import json
from pathlib import Path
from typing import Any

from cxrjax.errors import UserError


def read_json_object(path: Path) -> dict[str, Any]:
    """The object that a file holds.

    Raises:
        UserError: it cannot be read, is not JSON, or holds something else than an object.
    """
    content = _read(path)
    if not isinstance(content, dict):
        found = type(content).__name__
        raise UserError(f"{path}: expected a JSON object, found {found}")
    return content


def read_json_list(path: Path) -> list[Any]:
    """The list that a file holds.

    Raises:
        UserError: it cannot be read, is not JSON, or holds something else than a list.
    """
    content = _read(path)
    if not isinstance(content, list):
        found = type(content).__name__
        raise UserError(f"{path}: expected a JSON list, found {found}")
    return content


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); write or fetch it again") from None
