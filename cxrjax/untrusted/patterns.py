"""Regular expressions of others, which may take hours: matched in a child process."""

import re
from collections.abc import Iterable

from cxrjax.untrusted.child import run_in_child
from cxrjax.untrusted.foreign_files import MIB


def full_matches(pattern: str, names: Iterable[str]) -> set[str]:
    """The names that a pattern matches from end to end.

    Raises:
        ForeignError: no regular expression, or one that takes longer than 2 s.
    """
    given = {"pattern": pattern, "names": list(names)}
    found, _ = run_in_child(_matching, b"", given, seconds=2, memory=64 * MIB, most=0)
    return set(found["names"])


def _matching(content: bytes, pattern: str, names: list[str]) -> tuple[dict[str, list[str]], bytes]:
    """The child's part."""
    del content
    compiled = re.compile(pattern)
    return {"names": [name for name in names if compiled.fullmatch(name)]}, b""
