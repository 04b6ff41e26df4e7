"""Reasoning that a model writes before its answer."""

import re

from cxrjax.radiology_text import lexicon

_THOUGHT = lexicon.pattern("thought", re.IGNORECASE)
_END = lexicon.pattern("thought_end", re.IGNORECASE)


def thought_length(text: str) -> int:
    """Returns the length of the reasoning before an answer; all of the text if it does not end."""
    ends = [match.end() for match in _END.finditer(text)]
    return ends[-1] if ends else len(text) if _THOUGHT.match(text) else 0
