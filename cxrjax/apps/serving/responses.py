"""OpenAI's Responses: their requests as chat completions, and chat's answers as responses."""

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import pydantic

from cxrjax.apps.serving.answering import WholeAnswer
from cxrjax.apps.serving.chat import (
    IGNORED,
    NEUTRAL,
    ChatRequest,
    Form,
    checked,
    content,
    grounding,
    logprobs_of,
    without_others,
)
from cxrjax.apps.serving.engine import TokenEvent
from cxrjax.apps.serving.refusals import RefusedError

_IGNORED = (*IGNORED, "truncation", "reasoning")
_NEUTRAL = {
    name: NEUTRAL.get(name, values)
    for name, values in {
        **{"tools": (), "tool_choice": (), "previous_response_id": (None,), "prompt": (None,)},
        **{"conversation": (None,), "background": (None, False), "max_tool_calls": (None,)},
    }.items()
}
_LOGPROBS = "message.output_text.logprobs"


class _TextPart(Form):
    type: Literal["input_text", "output_text"]
    text: str
    annotations: Any = None
    logprobs: Any = None

    def as_chat(self) -> dict[str, Any]:
        return {"type": "text", "text": self.text}


class _ImagePart(Form):
    type: Literal["input_image"]
    image_url: str
    detail: Literal["auto", "low", "high"] | None = None

    def as_chat(self) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": self.image_url}}


class _Message(Form):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Annotated[_TextPart | _ImagePart, pydantic.Field(discriminator="type")]]
    id: str | None = None
    status: str | None = None

    def as_chat(self) -> dict[str, Any]:
        told = self.content
        parts = told if isinstance(told, str) else [part.as_chat() for part in told]
        return {"role": self.role, "content": parts}


class _TextFormat(Form):
    type: Literal["text", "json_object", "json_schema", "answer_form"]
    form: str | None = None
    name: str | None = None
    description: str | None = None
    definition: Any = pydantic.Field(None, alias="schema")
    strict: bool | None = None

    def as_chat(self) -> dict[str, Any]:
        told: dict[str, Any] = {"type": self.type, "form": self.form}
        if self.type == "json_schema":
            told["json_schema"] = {"name": self.name, "schema": self.definition}
        return told


class _TextSettings(Form):
    format: _TextFormat | None = None
    verbosity: Any = None


class ResponsesRequest(Form):
    """The body of a request; `seed`, `finding`, `type_prompt` and `choices` are ours."""

    model: str
    input: str | list[_Message]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    stream_options: Any = None
    text: _TextSettings | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    top_logprobs: int | None = None
    seed: int | None = None
    finding: str | None = None
    type_prompt: str | None = None
    choices: list[str] | None = None

    def chat(self) -> ChatRequest:
        """The same as a chat completion's request.

        Raises:
            RefusedError: a value is not allowed.
        """
        told = self.input
        said = (
            [{"role": "user", "content": told}]
            if isinstance(told, str)
            else [one.as_chat() for one in told]
        )
        if self.instructions:
            said.insert(0, {"role": "system", "content": self.instructions})
        same = ("model", "temperature", "top_p", "stream", "top_logprobs", "seed")
        ours = ("finding", "type_prompt", "choices")
        body = {name: getattr(self, name) for name in (*same, *ours)}
        form = self.text and self.text.format
        body |= {"messages": said, "max_completion_tokens": self.max_output_tokens}
        body |= {"response_format": form and form.as_chat()}
        body["logprobs"] = _LOGPROBS in (self.include or ()) or bool(self.top_logprobs)
        return checked(ChatRequest, body)


def read_responses(body: dict[str, Any]) -> ResponsesRequest:
    """A request of a body.

    Raises:
        RefusedError: a field is not as it must be; says which.
    """
    return checked(ResponsesRequest, without_others(body, _IGNORED, _NEUTRAL))


class ModelResponse:
    """The frame of one response; its methods are those of `ChatResponse`."""

    def __init__(self, request: ResponsesRequest, chat: ChatRequest, piece_of: Any) -> None:
        self._id, self._item = f"resp_{secrets.token_hex(12)}", f"msg_{secrets.token_hex(12)}"
        self._request, self._chat, self._piece_of = request, chat, piece_of
        self._created, self._number, self._text = int(time.time()), 0, ""

    def _frame(self, status: str, output: list[Any], **more: Any) -> dict[str, Any]:
        told = self._request
        form = told.text and told.text.format
        return {
            **{"id": self._id, "object": "response", "created_at": self._created},
            **{"status": status, "model": told.model, "output": output, "error": None},
            **{"instructions": told.instructions, "incomplete_details": None, "metadata": {}},
            **{"parallel_tool_calls": False, "tool_choice": "auto", "tools": []},
            **{"temperature": told.temperature, "top_p": told.top_p, "usage": None},
            **{"max_output_tokens": told.max_output_tokens, "previous_response_id": None},
            "text": {"format": form.model_dump(by_alias=True) if form else {"type": "text"}},
            **more,
        }

    def _message(self, text: str | None, listed: Any = None, status: str = "completed") -> Any:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": listed or []}
        return {
            **{"type": "message", "id": self._item, "role": "assistant", "status": status},
            "content": [] if text is None else [part],
        }

    def _logprobs(self, texts: Sequence[str], events: Sequence[TokenEvent]) -> list[Any]:
        if not self._chat.logprobs:
            return []
        top = self._chat.top_logprobs or 0
        return logprobs_of(texts, events, top, self._piece_of)["content"]

    def whole(self, answers: Sequence[WholeAnswer]) -> dict[str, Any]:
        """The response."""
        (said,) = answers
        cut = said.finish == "length"
        status = "incomplete" if cut else "completed"
        listed = self._logprobs(said.texts, said.events)
        message = self._message(content(said, self._chat), listed, status)
        asked, spoken = said.prompt_tokens, said.completion_tokens
        used: dict[str, Any] = {
            "input_tokens": asked,
            "output_tokens": spoken,
            "total_tokens": asked + spoken,
        }
        used |= {"input_tokens_details": {"cached_tokens": 0}}
        used |= {"output_tokens_details": {"reasoning_tokens": 0}}
        details = {"reason": "max_output_tokens"} if cut else None
        grounded = message | {"grounding": grounding(said)}
        return self._frame(status, [grounded], usage=used, incomplete_details=details)

    def _event(self, kind: str, **more: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **more}

    def _at(self) -> dict[str, Any]:
        return {"item_id": self._item, "output_index": 0, "content_index": 0}

    def begin(self, index: int) -> Iterator[dict[str, Any]]:
        """The first events of a stream."""
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self._frame("in_progress", []))
        message = self._message(None, status="in_progress")
        yield self._event("response.output_item.added", output_index=0, item=message)
        part = self._message("")["content"][0]
        yield self._event("response.content_part.added", **self._at(), part=part)

    def piece(self, index: int, text: str, events: Sequence[TokenEvent]) -> dict[str, Any]:
        """An event of more text, with the tokens that it came with."""
        self._text += text
        listed = self._logprobs([text, *("" for _ in events[1:])], events) if events else []
        return self._event("response.output_text.delta", **self._at(), delta=text, logprobs=listed)

    def end(self, index: int, said: WholeAnswer) -> Iterator[dict[str, Any]]:
        """The last events."""
        whole = self.whole([said])
        (item,) = whole["output"]
        (part,) = item["content"]
        if part["text"].startswith(self._text) and part["text"] != self._text:
            yield self.piece(index, part["text"][len(self._text) :], ())
        done = {"text": part["text"], "logprobs": part["logprobs"]}
        yield self._event("response.output_text.done", **self._at(), **done)
        yield self._event("response.content_part.done", **self._at(), part=part)
        yield self._event("response.output_item.done", output_index=0, item=item)
        yield self._event(f"response.{whole['status']}", response=whole)

    def refused(self, error: RefusedError) -> dict[str, Any]:
        """The event of an answer that was broken off."""
        told = {"code": error.code, "message": str(error), "param": error.param}
        return self._event("error", **told)
