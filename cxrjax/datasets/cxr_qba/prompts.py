"""Prompts with demonstrations from the package's files, and the requests that they make."""

import functools
import importlib.resources
import tomllib
from collections.abc import Mapping
from typing import Any, TypeVar

import pydantic

from cxrjax.language_model import Message, Request

CACHE_NAME = "language_model_answers.jsonl"
CONTENT = "text of radiology reports"
MAX_OUTPUT_TOKENS = 8192

Form = TypeVar("Form", bound=pydantic.BaseModel)


class Strict(pydantic.BaseModel):
    """All fields required and no others, as servers that hold a model to a schema want it."""

    model_config = pydantic.ConfigDict(extra="forbid")


@functools.cache
def load_prompt(name: str) -> dict[str, Any]:
    """A prompt file such as `extraction_prompt_v1`."""
    file = importlib.resources.files(__package__).joinpath(f"{name}.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def make_request(
    stage: Mapping[str, Any], user: str, form: type[Form], usual_output_tokens: int
) -> Request[Form]:
    """The stage's instruction, its demonstrations as turns, and what is asked now."""
    messages = [Message("system", (stage["system"].strip(),))]
    for shown in stage["demonstrations"]:
        messages.append(Message("user", (shown["user"].strip(),)))
        messages.append(Message("assistant", (shown["assistant"].strip(),)))
    messages.append(Message("user", (user,)))
    return Request(tuple(messages), form, MAX_OUTPUT_TOKENS, usual_output_tokens)
