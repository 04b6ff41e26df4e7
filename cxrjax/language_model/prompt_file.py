"""Prompts with demonstrations, and the requests that they make.

A file holds stages, each with `system` (the instruction) and `demonstrations` (turns of `user` and
`assistant`), and a `version`. A changed prompt is a new version in a new file.
"""

import functools
import importlib.resources
import tomllib
from collections.abc import Mapping
from typing import Any, TypeVar

import pydantic

from cxrjax.language_model.request import Message, Request

Form = TypeVar("Form", bound=pydantic.BaseModel)


class Strict(pydantic.BaseModel):
    """All fields required and no others, as servers that hold a model to a schema want it."""

    model_config = pydantic.ConfigDict(extra="forbid")


@functools.cache
def load_prompt(package: str, name: str) -> dict[str, Any]:
    """The prompt file `name`.toml of a package."""
    file = importlib.resources.files(package).joinpath(f"{name}.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def make_request(
    stage: Mapping[str, Any],
    user: str,
    form: type[Form],
    usual_output_tokens: int,
    max_output_tokens: int,
) -> Request[Form]:
    """The stage's instruction, its demonstrations as turns, and what is asked now."""
    messages = [Message("system", (stage["system"].strip(),))]
    for shown in stage["demonstrations"]:
        messages.append(Message("user", (shown["user"].strip(),)))
        messages.append(Message("assistant", (shown["assistant"].strip(),)))
    messages.append(Message("user", (user,)))
    return Request(tuple(messages), form, max_output_tokens, usual_output_tokens)
