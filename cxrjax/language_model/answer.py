"""A server's answer: what is believed of it, before anything is kept."""

import math
import threading
from typing import Annotated, Any

import pydantic

from cxrjax.errors import ForeignError
from cxrjax.untrusted.json_text import parse_json

# 65,000 tokens of text. Longer ones are no answers, and slow to read.
MOST_CHARACTERS = 2**18
# No model reads or writes so many at once; a count beyond that is a slip or a lie.
_MOST_TOKENS = 10_000_000
# Of a body: what the protocol adds once, and to each token, log-probabilities included.
_BODY_BYTES, _TOKEN_BYTES, _MOST_BODY_BYTES = 2**20, 2**9, 2**24

_Text = Annotated[str, pydantic.Field(max_length=MOST_CHARACTERS)]
_Name = Annotated[str, pydantic.Field(max_length=1000)]
_Count = Annotated[int, pydantic.Field(ge=0, le=_MOST_TOKENS)]
_FiniteNumber = Annotated[float, pydantic.Field(allow_inf_nan=False)]
_STRICT = pydantic.ConfigDict(strict=True)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


@pydantic.dataclasses.dataclass(frozen=True, config=_STRICT)
class Completion:
    """A server's answer. Whatever can be made can be kept, and read again.

    Raises:
        pydantic.ValidationError: a value of another type, out of range, or half a character.
    """

    text: _Text
    # "stop", "length" (the token limit), "content_filter", or the server's own.
    finish_reason: _Name
    refusal: _Text | None  # the model's words where it declines in a field of its own
    model: _Name  # the name that the server gives itself
    # `input_tokens`, `output_tokens`: as the server counts them; None where it doesn't, or not
    # believably.
    input_tokens: _Count | None
    output_tokens: _Count | None
    # Sum over the answer's tokens, where it was asked for and the server told it in finite numbers.
    logprob: Annotated[float | None, pydantic.BeforeValidator(_finite)] = None
    # `token_texts`, `token_logprobs`: the same token by token, where the texts make the answer.
    token_texts: list[_Text] | None = None
    token_logprobs: list[_FiniteNumber] | None = None


class _Message(pydantic.BaseModel):
    model_config = _STRICT
    content: _Text | None = None
    refusal: _Text | None = None


class _Choice(pydantic.BaseModel):
    model_config = _STRICT
    message: _Message
    finish_reason: _Name | None = None
    logprobs: Any = None


class _Answer(pydantic.BaseModel):
    model_config = _STRICT
    choices: Annotated[list[Any], pydantic.Field(min_length=1)]
    model: _Name | None = None
    usage: Any = None


class _Usage(pydantic.BaseModel):
    """No question has no tokens at all: who says so does not count."""

    model_config = _STRICT
    prompt_tokens: Annotated[int, pydantic.Field(ge=1, le=_MOST_TOKENS)]
    completion_tokens: _Count | None = None
    total_tokens: _Count | None = None


class _Token(pydantic.BaseModel):
    model_config = _STRICT
    logprob: float
    token: Any = None


class _Logprobs(pydantic.BaseModel):
    model_config = _STRICT
    content: list[_Token] | None = None


_one_at_a_time = threading.Lock()


def most_bytes(output_tokens: int) -> int:
    """Bytes that the body of an answer of so many tokens can have."""
    return min(_BODY_BYTES + _TOKEN_BYTES * output_tokens, _MOST_BODY_BYTES)


def read_completion(body: bytes, model: str) -> Completion:
    """The completion in a server's body.

    Args:
        model: its name, where the server tells none.

    Raises:
        ForeignError: it is none; says what is wrong with it.
    """
    with _one_at_a_time:  # parsed, a body takes up to thirty times its bytes
        content = parse_json(body)
        try:
            answer = _Answer.model_validate(content)
            choice = _Choice.model_validate(answer.choices[0])
            text = choice.message.content or ""
            refusal = choice.message.refusal
            input_tokens, output_tokens = _tokens(answer.usage, bool(text or refusal))
            tokens = _tokens_of(choice.logprobs)
            texts, logprobs = _spelled(tokens, text)
            return Completion(
                text=text,
                finish_reason=choice.finish_reason or "stop",
                refusal=refusal,
                model=answer.model or model,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                logprob=sum(token.logprob for token in tokens) if tokens else None,
                token_texts=texts,
                token_logprobs=logprobs,
            )
        except pydantic.ValidationError as error:
            wrong = error.errors(include_url=False, include_context=False, include_input=False)[0]
            place = ".".join(map(str, wrong["loc"])) or "the answer"
            told = f"{place}: {wrong['msg']}"
    raise ForeignError(told)


def _tokens(usage: Any, said_something: bool) -> tuple[int | None, int | None]:
    """Input and output tokens; None for both where what the server says cannot be."""
    try:
        told = _Usage.model_validate(usage)
    except pydantic.ValidationError:
        return None, None
    # Gemini counts thinking in the total alone; it is billed as output.
    thinking_too = (told.total_tokens or 0) - told.prompt_tokens
    output = max(told.completion_tokens or 0, thinking_too)
    counted = told.completion_tokens is not None or told.total_tokens is not None
    less = told.total_tokens is not None and output > thinking_too
    if not counted or less or output > _MOST_TOKENS or (said_something and output < 1):
        return None, None
    return told.prompt_tokens, output


def _tokens_of(logprobs: Any) -> list[_Token] | None:
    """The answer's tokens; None where the server tells none, or no numbers."""
    try:
        return _Logprobs.model_validate(logprobs).content
    except pydantic.ValidationError:
        return None


def _spelled(
    tokens: list[_Token] | None, text: str
) -> tuple[list[str], list[float]] | tuple[None, None]:
    """Texts of the tokens and their log-probabilities; None where they do not make the text."""
    if not tokens or not text or not all(math.isfinite(token.logprob) for token in tokens):
        return None, None
    texts = [token.token for token in tokens]
    # One more than the text has is the token that ends it, which servers tell or do not.
    if isinstance(texts[-1], str) and texts[:-1] and "".join(map(str, texts[:-1])) == text:
        texts[-1] = ""
    if not all(isinstance(each, str) for each in texts) or "".join(texts) != text:
        return None, None
    return texts, [token.logprob for token in tokens]
