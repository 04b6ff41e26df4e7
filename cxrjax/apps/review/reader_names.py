"""Names of the readers of a review, which become names of files."""

import re
from collections.abc import Sequence


def find_fault(names: Sequence[str]) -> str | None:
    """Returns why two readers cannot have these names; None where they can."""
    if len({name.lower() for name in names}) != 2 or len(names) != 2:
        return f"{len(names)} --reader: expected two different names"
    for name in names:
        if not re.fullmatch(r"\w[\w.-]*", name) or name.lower() in ("sheet", "consensus"):
            return (
                f"--reader={name}: expected letters, digits, '.', '_' and '-', and neither 'sheet' "
                "nor 'consensus'"
            )
    return None
