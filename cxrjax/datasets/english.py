"""What several data sets' wordings have in common."""

import re
from collections.abc import Sequence


def join(parts: Sequence[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    return f" {last} ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def plain_words(text: str) -> str:
    """Words and numbers in lower case, with single blanks, to compare texts by."""
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))
