"""Names of the readers of a review, which become names of files."""

import re
from collections.abc import Sequence

MOST_READERS = 10


def find_fault(names: Sequence[str]) -> str | None:
    """Returns why readers cannot have these names; None where they can."""
    if not 0 < len({name.lower() for name in names}) == len(names) <= MOST_READERS:
        return f"{len(names)} --reader: expected 1 to {MOST_READERS} different names"
    for name in names:
        if not re.fullmatch(r"\w[\w.-]*", name) or name.lower() in ("sheet", "consensus"):
            return (
                f"--reader={name}: expected letters, digits, '.', '_' and '-', and neither 'sheet' "
                "nor 'consensus'"
            )
    return None
