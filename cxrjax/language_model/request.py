"""Requests to a language model: messages, images, and the form of the answer."""

import base64
import dataclasses
import functools
import hashlib
import json
import threading
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

import pydantic

from cxrjax.language_model.settings import Settings

Category = Literal[
    "refusal",  # the model, or a filter behind it, declines
    "truncated",  # the answer ended at its token limit
    "invalid_json",  # no JSON object in it
    "invalid_content",  # JSON, and not what was asked for
    "http_error",  # the server answered with an error, or with something that is no completion
    "timeout",
    "connection",
    "unreadable_image",  # its loader's; nothing was sent
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


T = TypeVar("T", bound=pydantic.BaseModel)
_KEY_VERSION = 1  # a change of how keys are made forgets the old answers
_JSON_INSTRUCTION = "Answer with one JSON object and nothing else. It must fit this JSON schema:\n"


class EncodedImage:
    """An encoded image, loaded when it is first needed; requests about one image share it.

    Attributes:
        media_type: such as `image/jpeg`.
    """

    def __init__(self, load: Callable[[], bytes], media_type: str) -> None:
        self.media_type = media_type
        self._load = load
        self._content: bytes | None = None
        self._lock = threading.Lock()

    @property
    def content(self) -> bytes:
        """The file's bytes; raises what `load` raises."""
        with self._lock:
            if self._content is None:
                self._content = self._load()
            return self._content


@dataclasses.dataclass(frozen=True)
class Message:
    """One turn: texts and images in order."""

    role: Literal["system", "user", "assistant"]
    parts: tuple[str | EncodedImage, ...]


@dataclasses.dataclass(frozen=True)
class Request(Generic[T]):
    """A conversation to be continued by a JSON object, or by text."""

    messages: tuple[Message, ...]
    # The object's form. For servers that hold a model to a schema all fields must be required and
    # others forbidden (`extra="forbid"`). None: text, as the model likes.
    answer: type[T] | None
    max_output_tokens: int = 4096  # of the answer, a model's thinking included where it has any
    usual_output_tokens: int = 500  # of a good answer without thinking, for estimates
    seed: int | None = None  # of sampling, for servers that know the parameter; None leaves it out
    logprobs: bool = False  # ask for the answer's log-probability (`Completion.logprob`)

    def then(self, said: str, user: str) -> "Request[T]":
        """Returns the request continued by the model's answer and a further message of the user."""
        turns = (Message("assistant", (said,)), Message("user", (user,)))
        return dataclasses.replace(self, messages=self.messages + turns)

    @property
    def images(self) -> list[EncodedImage]:
        """All images of the conversation."""
        return [
            part for turn in self.messages for part in turn.parts if isinstance(part, EncodedImage)
        ]

    def text_bytes(self) -> int:
        """UTF-8 bytes of all texts and the schema. No byte-level tokenizer makes more tokens."""
        texts = [part for turn in self.messages for part in turn.parts if isinstance(part, str)]
        if self.answer is not None:
            texts.append(json.dumps(_schema(self.answer)) + _JSON_INSTRUCTION)
        # Chat templates put a few tokens around each turn.
        return sum(len(text.encode()) for text in texts) + 16 * len(self.messages)

    def body(
        self, settings: Settings, image_url: Callable[[EncodedImage], str] | None = None
    ) -> dict[str, Any]:
        """The body of a chat completion request.

        Args:
            image_url: how an image is written (default: as a data URL).
        """
        url = image_url or _data_url
        body: dict[str, Any] = {
            "model": settings.model,
            "messages": [
                {"role": turn.role, "content": _content(turn.parts, url)} for turn in self.messages
            ],
            settings.token_limit_field: self.max_output_tokens,
        }
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if self.seed is not None:
            body["seed"] = self.seed
        if self.logprobs:
            body["logprobs"] = True
        if self.answer is None:
            return body
        schema = _schema(self.answer)
        if settings.structured_output == "json_schema":
            form = {"name": self.answer.__name__, "schema": schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
            return body
        if settings.structured_output == "json_object":
            body["response_format"] = {"type": "json_object"}
        instruction = _JSON_INSTRUCTION + json.dumps(schema)
        if body["messages"][0]["role"] == "system":
            body["messages"][0]["content"] += "\n\n" + instruction
        else:
            body["messages"].insert(0, {"role": "system", "content": instruction})
        return body

    def key(self, settings: Settings) -> str:
        """SHA-256 of all that decides the answer: model, messages, images, parameters, schema.

        The server's address is not part of it: a model of this name answers for itself wherever it
        runs. Nor are limits, prices and the key.
        """
        content = {"version": _KEY_VERSION, "body": self.body(settings, _hash_url)}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


@functools.cache  # milliseconds each time
def _schema(form: type[pydantic.BaseModel]) -> dict[str, Any]:
    return form.model_json_schema()


def _content(parts: tuple[str | EncodedImage, ...], url: Callable[[EncodedImage], str]) -> Any:
    if all(isinstance(part, str) for part in parts):
        return "\n".join(str(part) for part in parts)
    return [
        {"type": "image_url", "image_url": {"url": url(part)}}
        if isinstance(part, EncodedImage)
        else {"type": "text", "text": part}
        for part in parts
    ]


def _data_url(image: EncodedImage) -> str:
    return f"data:{image.media_type};base64,{base64.b64encode(image.content).decode('ascii')}"


def _hash_url(image: EncodedImage) -> str:
    return f"sha256:{image.media_type}:{hashlib.sha256(image.content).hexdigest()}"
