"""How asking a language model can fail."""

from typing import Literal

Category = Literal[
    "refusal",  # the model, or a filter behind it, declines
    "truncated",  # the answer ended at its token limit
    "invalid_json",  # no JSON object in it
    "invalid_content",  # JSON, and not what was asked for
    "http_error",  # the server answered with an error, or with something that is no completion
    "timeout",
    "connection",
]

# Failures of the service rather than of an answer: nothing came that could be kept.
SERVICE_FAILURES = ("http_error", "timeout", "connection")


class NoAnswer(Exception):  # noqa: N818 - an outcome that callers count, no error of the program
    """A request that got no usable answer, after all retries.

    Attributes:
        category: what went wrong last.
        detail: one line; never holds the key.
    """

    def __init__(self, category: Category, detail: str) -> None:
        super().__init__(category, detail)
        self.category: Category = category
        self.detail = detail
