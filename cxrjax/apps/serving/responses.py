"""OpenAI's Responses: their requests as chat completions, and chat's answers as responses."""

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

from cxrjax.apps.serving.answering import WholeAnswer
from cxrjax.apps.serving.chat import (
    IGNORED,
    NEUTRAL,
    ChatRequest,
    checked,
    content,
    grounding,
    logprobs_of,
    without_others,
)
from cxrjax.apps.serving.engine import TokenEvent
from cxrjax.apps.serving.refusals import RefusedError, invalid

_IGNORED = (*IGNORED, "truncation", "reasoning")
# The latter are chat's own.
_UNKNOWN = (
    *("previous_response_id", "prompt", "conversation", "max_tool_calls"),
    *("messages", "response_format", "max_tokens", "max_completion_tokens", "logprobs"),
)
_NEUTRAL = NEUTRAL | dict.fromkeys(_UNKNOWN, (None,))
_NEUTRAL |= {"background": (None, False), "n": (None, 1)}
_LOGPROBS = "message.output_text.logprobs"
_TEXTS = ("input_text", "output_text")


def as_chat(body: dict[str, Any]) -> ChatRequest:
    """A body of a request as a chat completion's; `seed`, `finding` and the like are as there.

    Raises:
        RefusedError: a field is not as it must be; says which.
    """
    told = without_others(body, _IGNORED, _NEUTRAL)
    said = told.pop("input", None)
    said = [{"role": "user", "content": said}] if isinstance(said, str) else said
    if not isinstance(said, list):
        raise invalid("input", "input: expected a text, or a list of messages")
    said = [_message(one) if isinstance(one, dict) else one for one in said]
    if instructions := told.pop("instructions", None):
        said.insert(0, {"role": "system", "content": instructions})
    text = told.pop("text", None) or {}
    form = text.get("format") if isinstance(text, dict) else text
    if isinstance(form, dict) and form.get("type") == "json_schema":
        form = {
            "type": "json_schema",
            "json_schema": {n: v for n, v in form.items() if n != "type"},
        }
    wanted = told.pop("include", None) or []
    if wanted not in ([], [_LOGPROBS]):
        raise invalid("include", f"include: expected {_LOGPROBS}", "unsupported_value")
    told |= {"messages": said, "response_format": form}
    told["logprobs"] = bool(wanted or told.get("top_logprobs"))
    told["max_completion_tokens"] = told.pop("max_output_tokens", None)
    return checked(ChatRequest, told)


def _message(told: dict[str, Any]) -> dict[str, Any]:
    message = {name: value for name, value in told.items() if name not in ("type", "id", "status")}
    if isinstance(told.get("content"), list):
        message["content"] = [
            _part(one) if isinstance(one, dict) else one for one in told["content"]
        ]
    return message


def _part(told: dict[str, Any]) -> dict[str, Any]:
    if told.get("type") == "input_image":
        return {"type": "image_url", "image_url": {"url": told.get("image_url")}}
    if told.get("type") in _TEXTS:
        return {"type": "text", "text": told.get("text")}
    return told


class ModelResponse:
    """The frame of one response; its methods are those of `ChatResponse`."""

    def __init__(self, body: dict[str, Any], chat: ChatRequest, piece_of: Any) -> None:
        self._id, self._item = f"resp_{secrets.token_hex(12)}", f"msg_{secrets.token_hex(12)}"
        self._body, self._chat, self._piece_of = body, chat, piece_of
        self._created, self._number, self._text = int(time.time()), 0, ""

    def _frame(self, status: str, output: list[Any], **more: Any) -> dict[str, Any]:
        told = self._body
        names = ("instructions", "temperature", "top_p", "max_output_tokens")
        return {
            **{"id": self._id, "object": "response", "created_at": self._created},
            **{"status": status, "model": self._chat.model, "output": output, "error": None},
            **{"incomplete_details": None, "metadata": {}, "previous_response_id": None},
            **{"parallel_tool_calls": False, "tool_choice": "auto", "tools": [], "usage": None},
            **{name: told.get(name) for name in names},
            "text": told.get("text") or {"format": {"type": "text"}},
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
