"""One question on its way: from the request's words to a job, and from its tokens to an answer."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Hashable, Sequence
from typing import Any

import numpy as np

from cxrjax.apps.serving.engine import Ending, Job, SeenImages, TokenEvent
from cxrjax.apps.serving.named_models import NamedModel
from cxrjax.apps.serving.programs import SlotRequest
from cxrjax.apps.serving.refusals import RefusedError, invalid
from cxrjax.apps.serving.uploads import UploadedImage
from cxrjax.decoding.confidence import spell
from cxrjax.decoding.predictor import TokenAnswer, prediction
from cxrjax.errors import UserError
from cxrjax.records import EarlierImage, QARecord, Turn

# Of a question and what was said before it. A tokenizer takes a second for a megabyte.
_LONGEST_TEXT = 20_000


@dataclasses.dataclass(frozen=True)
class AskedQuestion:
    """Question of a request; `history` has (question, answer) of earlier turns."""

    text: str
    history: tuple[tuple[str, str], ...] = ()
    finding: str | None = None
    type_prompt: str | None = None
    choices: tuple[str, ...] | None = None
    name: str = "asked"

    def record(self, pictures: Sequence[UploadedImage]) -> QARecord:
        """Returns the question as a record, as from a line of a questions file."""
        earlier = None
        if len(pictures) > 1:
            size = pictures[1].size
            earlier = EarlierImage(image_id="earlier", image_path="earlier", image_hw=size)
        turns = [
            Turn(question_id=f"turn{number}", question=asked, answer=said)
            for number, (asked, said) in enumerate(self.history)
        ]
        return QARecord(
            dataset="custom",
            split="asked",
            image_id="image",
            image_path="image",
            image_hw=pictures[0].size,
            earlier=earlier,
            question_id=self.name,
            question=self.text,
            question_type="free",
            type_prompt=self.type_prompt,
            choices=None if self.choices is None else list(self.choices),
            history=turns,
            variables=None if self.finding is None else {"finding": self.finding},
        )


@dataclasses.dataclass(frozen=True)
class Wish:
    """Requested properties of an answer."""

    limit: int | None = None  # at most so many tokens; None: the model's limit
    temperature: float | None = None
    top_p: float = 1.0
    seed: int = 0
    form: str | None = None  # one of `FORMS`; None: the model's own
    stop: tuple[str, ...] = ()  # texts at which an answer ends; they are not part of it
    top: int = 0  # number of the likeliest tokens to return at each position
    watched: bool = False  # tokens are streamed to the client


@dataclasses.dataclass(frozen=True)
class WholeAnswer:
    """A whole answer.

    Attributes:
        texts: of its tokens, side by side; the one that ends it left out.
        line: as `predict` writes it, with `margins` where the model has them.
        end_logprob: of the token that ended it; None: it was broken off.
        prompt_tokens, completion_tokens: as clients count them.
        image_hw: (height, width) of the image that was asked about.
    """

    text: str
    texts: tuple[str, ...]
    events: tuple[TokenEvent, ...]
    finish: str
    line: dict[str, Any]
    end_logprob: float | None
    prompt_tokens: int
    completion_tokens: int
    image_hw: tuple[int, int]


class Answering:
    """One answer that is being written. To be made and used in the event loop's thread.

    Args:
        seconds: that it may take, the queue included.
        sample: of `n`, which.

    Raises:
        RefusedError: the question cannot be put to the model.
    """

    def __init__(
        self,
        model: NamedModel,
        question: AskedQuestion,
        pictures: Sequence[UploadedImage],
        images: SeenImages,
        wish: Wish,
        client: Hashable,
        seconds: float,
        sample: int = 0,
    ) -> None:
        self._model, self._wish = model, wish
        self._record = question.record(pictures)
        tokens = _prompt(model, self._record)
        self.prompt_tokens = len(tokens) + model.image_tokens(images.pixels)
        self._heard: asyncio.Queue[TokenEvent | Ending] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._events: list[TokenEvent] = []
        self._text, self._told, self._ended = "", "", False
        start, shortest = model.start, model.shortest
        if wish.form is not None:
            if wish.form not in model.forms:
                told = "response_format: this model has no location tokens to hold boxes to"
                raise invalid("response_format", told, "unsupported_value")
            start, shortest = model.forms[wish.form]
        most = model.strategy.max_answer_tokens
        limit = min(wish.limit or most, most)
        if limit <= shortest:
            told = f"max_tokens of {limit}: the shortest answer takes {shortest + 1}"
            raise invalid("max_tokens", told, "max_tokens_too_small")
        temperature = wish.temperature
        asked = SlotRequest(
            tokens,
            start,
            model.free and wish.form is None,
            limit,
            model.strategy.temperature if temperature is None else temperature,
            wish.top_p,
            wish.seed,
            sample,
            model.adapter,
            wish.top > 0,
        )
        deadline = time.monotonic() + seconds
        self.job = Job(client, images, asked, deadline, self._hear, watched=wish.watched)

    def _hear(self, event: TokenEvent | Ending) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended before the engine
            self._loop.call_soon_threadsafe(self._heard.put_nowait, event)

    async def pieces(self) -> AsyncIterator[tuple[str, list[TokenEvent]]]:
        """New text with the tokens that it came with; `said()` when they end.

        Raises:
            RefusedError: it was broken off.
        """
        unsent: list[TokenEvent] = []
        async for event in self._tokens():
            unsent.append(event)
            if new := self._new_text():
                yield new, unsent
                unsent = []
        self._new_text()
        rest = self._text[len(self._told) :]
        self._told = self._text
        if rest or unsent:
            yield rest, unsent

    async def said(self) -> WholeAnswer:
        """The whole answer.

        Raises:
            RefusedError: it was broken off.
        """
        async for _ in self._tokens():
            if self._wish.stop:
                self._new_text()
        model, ids = self._model, [event.token for event in self._events]
        ended = bool(ids) and ids[-1] in model.strategy.stop_ids
        written = ids[:-1] if ended else ids
        text = model.tokenizer.decode(written)
        logprobs = np.array([event.logprob for event in self._events])
        texts = spell(written, model.tokenizer.decode, logprobs).texts[: len(written)]
        stopped = _first_stop(text, self._wish.stop)
        line = prediction(
            TokenAnswer(
                self._record,
                np.array(ids, np.int64),
                logprobs,
                np.array([event.words for event in self._events]),
                np.array([event.quantiles for event in self._events]),
            ),
            model.tokenizer,
            model.examples,
            model.strategy.stop_ids,
        )
        if model.margins is not None:
            (line,) = model.margins.widen([line])
        finish = "stop" if ended or stopped is not None else "length"
        if stopped is not None and line["parse"] == "truncated":
            line = {**line, "parse": "ok"}
        return WholeAnswer(
            text[:stopped],
            tuple(_within(texts, len(text) if stopped is None else stopped)),
            tuple(self._events[: len(written)]),
            finish,
            line,
            self._events[-1].logprob if ended else None,
            self.prompt_tokens,
            len(ids),
            self._record.image_hw or (1, 1),
        )

    async def _tokens(self) -> AsyncIterator[TokenEvent]:
        """Tokens as they come; the rest of them where some were taken before."""
        while not self._ended:
            event = await self._heard.get()
            if isinstance(event, TokenEvent):
                self._events.append(event)
                yield event
                if self._wish.stop and _first_stop(self._so_far(), self._wish.stop) is not None:
                    self.job.cancel()
                    self._ended = True
                continue
            self._ended = True
            if event == "timeout":
                raise RefusedError(504, "that took too long; try again later", "timeout")
            if event in ("failed", "cancelled"):
                raise RefusedError(503, "the server is about to end", "unavailable")

    def _so_far(self) -> str:
        ids = [event.token for event in self._events]
        if ids and ids[-1] in self._model.strategy.stop_ids:
            ids = ids[:-1]
        return self._model.tokenizer.decode(ids)

    def _new_text(self) -> str:
        """Returns text that is final: no half character, and no start of a possible stop text."""
        text = self._so_far()
        stopped = _first_stop(text, self._wish.stop)
        self._text = text if stopped is None else text[:stopped]
        sure = self._text.rstrip("\ufffd")
        if stopped is None:
            sure = sure[: len(sure) - _maybe_stop(sure, self._wish.stop)]
        if not sure.startswith(self._told) or len(sure) == len(self._told):
            return ""
        new, self._told = sure[len(self._told) :], sure
        return new


def check_question(model: NamedModel, question: AskedQuestion, images: int) -> None:
    """Refuses what no answer can be given to, before the request's images are decoded.

    Raises:
        RefusedError: the question cannot be put to the model.
    """
    stand_in = UploadedImage(b"", (64, 64), np.zeros(0))
    _prompt(model, question.record([stand_in] * images))


def _prompt(model: NamedModel, record: QARecord) -> np.ndarray:
    said = sum(len(turn.question) + len(turn.answer or "") for turn in record.history)
    if len(record.question) + said > _LONGEST_TEXT:
        raise invalid(
            "messages",
            f"a question of {len(record.question) + said:,} characters with what was said before "
            f"it: at most {_LONGEST_TEXT:,}",
            "context_length_exceeded",
        )
    if model.needs_finding and not record.finding:
        raise invalid(
            "finding",
            f"the model is asked about one finding by its name (prompt format "
            f"{model.examples.prompt!r}); set the field finding",
            "finding_missing",
        )
    try:
        return model.encoder().encode(record, with_answer=False).prefix
    except UserError as error:
        too_long = getattr(error, "reason", "") == "prefix_too_long"
        message = str(error).removeprefix(f"question {record.question_id}: ").partition(";")[0]
        code = "context_length_exceeded" if too_long else "unusable_question"
        raise invalid("messages", message, code) from None


def _first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Returns the position of the first stop text, or None."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return min(places, default=None)


def _maybe_stop(text: str, stops: Sequence[str]) -> int:
    """Characters at the end that are the beginning of a stop."""
    longest = max(map(len, stops), default=1) - 1
    for count in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-count:]) for stop in stops):
            return count
    return 0


def _within(texts: Sequence[str], length: int) -> list[str]:
    """Texts of tokens as far as so many characters go; of what lies beyond, none."""
    kept = []
    for text in texts:
        kept.append(text[:length])
        length -= len(kept[-1])
    return kept
