"""Answers that decline to answer."""

import re

# Someone who declines speaks of themselves and of the task; a report that says "unable to exclude
# pneumonia" or "I cannot see an effusion" answers.
_TASK = (
    r"(?:help|assist|comply|answer|respond|interpret|diagnose|analy[sz]e|process|provide|offer"
    r"|give|perform|view|open|access|see (?:the|this|any|an|your) (?:image|x-?ray|radiograph))\b"
)
_REFUSAL = re.compile(
    rf"\b(?:i|we) (?:cannot|can't|can not|won't|will not|do not|don't) {_TASK}"
    rf"|\b(?:i'm|i am|we're|we are) (?:unable|not able) to {_TASK}"
    r"|\b(?:i'm|i am) (?:very )?sorry\b"
    r"|\bas an? (?:ai|(?:large )?language model)\b",
    re.IGNORECASE,
)


def declines(text: str) -> bool:
    """Whether a model says that it will not, or cannot, do what it was asked."""
    return _REFUSAL.search(" ".join(text.replace("’", "'").split())) is not None
