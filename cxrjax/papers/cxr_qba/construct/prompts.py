"""The package's prompt files, and the requests that they make."""

from collections.abc import Mapping
from typing import Any

from cxrjax.language_model import Request, request
from cxrjax.language_model.request import Form, Strict

__all__ = ["CACHE_NAME", "CONTENT", "Strict", "load_prompt", "make_request"]

CACHE_NAME = "language_model_answers.jsonl"
CONTENT = "text of radiology reports"
MAX_OUTPUT_TOKENS = 8192


def load_prompt(name: str) -> dict[str, Any]:
    """A prompt file such as `extraction_prompt_v1`."""
    return request.load_prompt(str(__package__), name)


def make_request(
    stage: Mapping[str, Any], user: str, form: type[Form], usual_output_tokens: int
) -> Request[Form]:
    """The stage's instruction, its demonstrations as turns, and what is asked now."""
    return request.make_request(stage, user, form, usual_output_tokens, MAX_OUTPUT_TOKENS)
