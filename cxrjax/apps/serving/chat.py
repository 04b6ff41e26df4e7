"""Chat completions: what a request may say (OpenAI's names), and how answers are written.

Fields that OpenAI knows and that change nothing here are ignored, others that it knows are refused
where they ask for something, and so is every field that nobody knows (docs/serving.md lists them).
"""

import functools
import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import pydantic

from cxrjax.apps.serving.answering import AskedQuestion, WholeAnswer, Wish
from cxrjax.apps.serving.engine import TokenEvent
from cxrjax.apps.serving.named_models import FORMS
from cxrjax.apps.serving.refusals import RefusedError, invalid
from cxrjax.apps.serving.schemas import AnswerSchema

MOST_CHOICES = 8
# Known to OpenAI, and nothing to us whatever they say.
IGNORED = (
    *("user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier"),
    *("prompt_cache_key", "prompt_cache_retention", "verbosity", "reasoning_effort"),
)
# Known to OpenAI: refused, but for values that ask for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "logit_bias": (None, {}),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "web_search_options": (None,),
}


class Form(pydantic.BaseModel):
    """Fields of a request; others are refused, and values of another type."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)


class _ImageURL(Form):
    url: str
    detail: Literal["auto", "low", "high"] | None = None


class _TextPart(Form):
    type: Literal["text"]
    text: str


class _ImagePart(Form):
    type: Literal["image_url"]
    image_url: _ImageURL


_Part = Annotated[_TextPart | _ImagePart, pydantic.Field(discriminator="type")]


def _as_parts(content: Any) -> Any:
    """A text as the one part that it is."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class _Message(Form):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[_Part], pydantic.BeforeValidator(_as_parts)]
    name: str | None = None
    refusal: None = None


class _JSONSchema(Form):
    name: str | None = None
    definition: Any = pydantic.Field(None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class _ResponseFormat(Form):
    type: Literal["text", "json_object", "json_schema", "answer_form"]
    form: str | None = None
    json_schema: _JSONSchema | None = None


class _StreamOptions(Form):
    include_usage: bool = False
    include_obfuscation: bool = False


class ChatRequest(Form):
    """The body of a request; `finding`, `type_prompt` and `choices` are ours."""

    model: str
    messages: list[_Message] = pydantic.Field(min_length=1, max_length=100)
    max_tokens: int | None = pydantic.Field(None, ge=1)
    max_completion_tokens: int | None = pydantic.Field(None, ge=1)
    temperature: float | None = pydantic.Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = pydantic.Field(None, gt=0, le=1, allow_inf_nan=False)
    seed: int | None = None
    n: int | None = pydantic.Field(None, ge=1, le=MOST_CHOICES)
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = pydantic.Field(None, ge=0, le=20)
    response_format: _ResponseFormat | None = None
    finding: str | None = pydantic.Field(None, max_length=200)
    type_prompt: str | None = pydantic.Field(None, max_length=2000)
    choices: list[str] | None = pydantic.Field(None, max_length=26)

    def images(self) -> list[str]:
        """Addresses of all images, in order."""
        return [
            part.image_url.url
            for message in self.messages
            for part in message.content
            if isinstance(part, _ImagePart)
        ]

    def question(self) -> AskedQuestion:
        """The last turn, behind the earlier ones; system messages are read before the first.

        Raises:
            RefusedError: it is no conversation that the models know.
        """
        said = [(message.role, _text_of(message)) for message in self.messages]
        turns = [(role, text) for role, text in said if role in ("user", "assistant")]
        system = [text for role, text in said if role not in ("user", "assistant") and text.strip()]
        if system and turns:
            turns[0] = (turns[0][0], "\n".join([*system, turns[0][1]]))
        roles = [role for role, _ in turns]
        if roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
            told = "messages: expected the user's and the assistant's in turn, the user's last"
            raise invalid("messages", told)
        texts = [text for _, text in turns]
        if not texts[-1].strip():
            raise invalid("messages", "messages: no question")
        return AskedQuestion(
            texts[-1],
            tuple(zip(texts[:-1:2], texts[1::2], strict=True)),
            self.finding,
            self.type_prompt,
            None if self.choices is None else tuple(self.choices),
        )

    @property
    def wants_json(self) -> bool:
        """Returns whether the answer is requested as a JSON object, which is whole at its end."""
        told = self.response_format
        return told is not None and told.type in ("json_object", "json_schema")

    @functools.cached_property
    def schema_of_answer(self) -> AnswerSchema | None:
        """The schema that the answer is to have; None for another format.

        Raises:
            RefusedError: it cannot be filled.
        """
        told = self.response_format
        if told is None or told.type != "json_schema":
            return None
        return AnswerSchema(told.json_schema and told.json_schema.definition)

    def wish(self) -> Wish:
        """Returns the requested properties of the answer.

        Raises:
            RefusedError: one of them is not supported.
        """
        form = None
        told = self.response_format
        if self.schema_of_answer is not None:
            form = self.schema_of_answer.form
        if told is not None and told.type == "answer_form":
            if told.form not in FORMS:
                forms = ", ".join(FORMS)
                raise invalid("response_format", f"response_format.form: expected one of {forms}")
            form = told.form
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stops) > 4 or not all(0 < len(stop) <= 100 for stop in stops):
            raise invalid("stop", "stop: expected up to 4 texts of 1 to 100 characters")
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs", "top_logprobs needs logprobs=true")
        limits = (self.max_tokens, self.max_completion_tokens)
        return Wish(
            min((limit for limit in limits if limit is not None), default=None),
            self.temperature,
            1.0 if self.top_p is None else self.top_p,
            secrets.randbits(32) if self.seed is None else self.seed % 2**32,
            form,
            tuple(stops),
            self.top_logprobs or 0,
            bool(self.stream),
        )


def read_request(body: dict[str, Any]) -> ChatRequest:
    """A request of a body.

    Raises:
        RefusedError: a field is not as it must be; says which.
    """
    return checked(ChatRequest, without_others(body, IGNORED, NEUTRAL))


def without_others(
    body: dict[str, Any], ignored: Sequence[str], neutral: Mapping[str, tuple[Any, ...]]
) -> dict[str, Any]:
    """A body without the fields that are ignored, or refused unless they ask for nothing.

    Raises:
        RefusedError: one of the latter asks for something.
    """
    told = {name: value for name, value in body.items() if name not in ignored}
    for name, values in neutral.items():
        if name in told and told.pop(name) not in values:
            raise invalid(name, f"{name}: not supported", "unsupported_parameter")
    return told


def checked(form: Any, told: dict[str, Any]) -> Any:
    """A body in the form that it must have.

    Raises:
        RefusedError: it has not; says where.
    """
    try:
        return form.model_validate(told)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = [str(part) for part in first["loc"]]
        param = ".".join(place)[:100]
        if first["type"] == "extra_forbidden":
            message, code = f"Unrecognized request argument supplied: {param}", "unknown_parameter"
        else:
            message, code = f"{param}: {first['msg'][:300]}", "invalid_value"
        raise RefusedError(400, message, code, place[0] if place else None) from None


def _text_of(message: _Message) -> str:
    return "\n".join(part.text for part in message.content if isinstance(part, _TextPart))


def grounding(said: WholeAnswer) -> dict[str, Any]:
    """Returns the parts of an answer that have no place in OpenAI's format.

    It is the line that `predict` writes, and the log-probability of the answer's end.
    """
    line = {name: value for name, value in said.line.items() if name != "question_id"}
    return {**line, "end_logprob": said.end_logprob}


def content(said: WholeAnswer, request: ChatRequest) -> str:
    """The answer's text, or the object that is requested."""
    if request.schema_of_answer is not None:
        return json.dumps(request.schema_of_answer.fill(said.line, said.image_hw))
    if not request.wants_json:
        return said.text
    names = ("text", "boxes", "labels", "box_scores", "margins", "parse")
    return json.dumps({name: said.line[name] for name in names if name in said.line})


def logprobs_of(
    texts: Sequence[str], events: Sequence[TokenEvent], top: int, piece_of: Any
) -> dict[str, Any]:
    """Log-probabilities as OpenAI writes them."""

    def entry(text: str, logprob: float) -> dict[str, Any]:
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    listed = []
    for text, event in zip(texts, events, strict=True):
        # Pieces have their spaces as the tokenizer writes them.
        likely = [
            entry(piece_of(token).replace("\u2581", " "), logprob)
            for token, logprob in event.top[:top]
        ]
        listed.append({**entry(text, event.logprob), "top_logprobs": likely})
    return {"content": listed, "refusal": None}


class ChatResponse:
    """The frame of one response.

    Args:
        request: what is answered.
        piece_of: id of a token -> how it is written.
    """

    def __init__(self, request: ChatRequest, piece_of: Any) -> None:
        self.id = f"chatcmpl-{secrets.token_hex(12)}"
        self._request, self._piece_of = request, piece_of
        self._created = int(time.time())

    def _frame(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self._created,
            "model": self._request.model,
            "system_fingerprint": "cxrjax",
            "choices": choices,
        }

    def _logprobs(
        self, texts: Sequence[str], events: Sequence[TokenEvent]
    ) -> dict[str, Any] | None:
        if not self._request.logprobs:
            return None
        return logprobs_of(texts, events, self._request.top_logprobs or 0, self._piece_of)

    def whole(self, answers: Sequence[WholeAnswer]) -> dict[str, Any]:
        """The response with all choices."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": content(said, self._request)}
                | {"refusal": None},
                "logprobs": self._logprobs(said.texts, said.events),
                "finish_reason": said.finish,
                "grounding": grounding(said),
            }
            for index, said in enumerate(answers)
        ]
        return self._frame("chat.completion", choices) | {"usage": usage(answers)}

    def piece(self, index: int, text: str, events: Sequence[TokenEvent]) -> dict[str, Any]:
        """A chunk of a stream: text with the tokens that it came with.

        The first of them has the text, if there are several.
        """
        logprobs = None
        if events:
            logprobs = self._logprobs([text, *("" for _ in events[1:])], events)
        return self._chunk(index, {"content": text}, logprobs)

    def begin(self, index: int) -> Iterator[dict[str, Any]]:
        """The first chunk of a choice."""
        yield self._chunk(index, {"role": "assistant", "content": ""})

    def refused(self, error: RefusedError) -> dict[str, Any]:
        """The chunk of an answer that was broken off."""
        return error.body()

    def end(self, index: int, said: WholeAnswer) -> Iterator[dict[str, Any]]:
        """The last chunks of a choice."""
        if self._request.wants_json:
            yield self._chunk(index, {"content": content(said, self._request)})
        last = self._chunk(index, {}, finish=said.finish)
        last["choices"][0]["grounding"] = grounding(said)
        yield last

    def usage(self, answers: Sequence[WholeAnswer]) -> dict[str, Any]:
        """The chunk behind all, for who has asked for it."""
        return self._frame("chat.completion.chunk", []) | {"usage": usage(answers)}

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish: str | None = None,
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return self._frame("chat.completion.chunk", [choice])


def usage(answers: Sequence[WholeAnswer]) -> dict[str, int]:
    """Tokens as OpenAI counts them: the prompt once, whatever the number of choices."""
    asked = answers[0].prompt_tokens if answers else 0
    said = sum(said.completion_tokens for said in answers)
    return {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}
