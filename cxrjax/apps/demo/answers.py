"""Asks a server's models one question about one image, and reads everything that a page shows.

The server (cxrjax/apps/serving/) answers as `predict` does, so that the page shows what a
predictions file would have.
"""

import base64
import dataclasses
import http.client
import io
import json
import math
import re
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pydantic

from cxrjax.boxes import canonical
from cxrjax.errors import ForeignError, UserError
from cxrjax.images.decode import image_size
from cxrjax.images.files import StoredFile
from cxrjax.input_pipeline.wording import says_unknown
from cxrjax.language_model.settings import Settings
from cxrjax.untrusted.foreign_files import open_foreign
from cxrjax.untrusted.json_text import parse_object

LONGEST_QUESTION = 500  # characters
END = "end"  # the piece of the token that ends an answer, which servers do not spell
_LOCATION = re.compile(r"<loc[0-9]{4}>")
_MOST_ANSWER_BYTES = 4 * 2**20
_SECONDS_TO_ANSWER = 300.0
_SECONDS_BETWEEN_LOOKS = 0.2


@dataclasses.dataclass(frozen=True)
class NamedFile:
    """A file that messages call by the name that its owner knows it by."""

    path: Path
    name: str

    def __str__(self) -> str:
        return self.name

    def open(self) -> io.BufferedReader:
        return open_foreign(self.path)


class Token(NamedTuple):
    """A token of an answer, and its probability before the grammar ruled any out."""

    piece: str
    probability: float
    kind: Literal["word", "location", "end"]


class AnswerBox(NamedTuple):
    """A box (xyxy) in rounded pixels of the original image, and as fractions of it."""

    pixels: tuple[int, int, int, int]
    fractions: tuple[float, float, float, float]
    confidence: float


@dataclasses.dataclass(frozen=True)
class Answered:
    """A model's answer as generated."""

    text: str
    reason: str  # what a format that gives reasons has after the answer
    boxes: tuple[AnswerBox, ...]
    tokens: tuple[Token, ...]
    probability: float  # of the whole answer, the product of its tokens'
    token_probability: float  # their geometric mean
    parse: str  # `ok`, or a failure category of cxrjax/codecs/base.py

    @property
    def words_probability(self) -> float:
        """The product of the probabilities of all tokens but coordinates, which share theirs with
        their neighbours."""
        return math.prod(one.probability for one in self.tokens if one.kind != "location")

    @property
    def is_unknown(self) -> bool:
        """True where the model says that it was not taught what is asked about."""
        return says_unknown(self.text)

    @property
    def ended(self) -> bool:
        """False where the model was cut off."""
        return bool(self.tokens) and self.tokens[-1].kind == "end"


class _SaidToken(pydantic.BaseModel):
    token: str
    logprob: float = pydantic.Field(le=1e-3)


class _Logprobs(pydantic.BaseModel):
    content: list[_SaidToken]


class _Grounding(pydantic.BaseModel):
    text: str
    boxes: list[tuple[float, float, float, float]]
    box_scores: list[float]
    parse: str
    reason: str = ""
    end_logprob: float | None


class _Choice(pydantic.BaseModel):
    """The part of a chat completion's choice that is read."""

    logprobs: _Logprobs
    grounding: _Grounding


class _Completion(pydantic.BaseModel):
    choices: list[_Choice] = pydantic.Field(min_length=1)


class _Card(pydantic.BaseModel):
    id: str = pydantic.Field(max_length=200)
    needs_finding: bool
    images: int


class _Cards(pydantic.BaseModel):
    data: list[_Card]


class ServerAddress:
    """A server of cxrjax.serve.

    Args:
        url: `http(s)://HOST:PORT`, with `/v1` behind it or not.
        token: that it wants; empty: none.
        allow_sending: whether images may leave this machine.

    Raises:
        UserError: no such address, a token that would go unencrypted over a network, or pictures.
    """

    def __init__(self, url: str, token: str = "", allow_sending: bool = False) -> None:
        settings = Settings(url, "any", token, allow_sending=allow_sending)
        if not settings.may_send:
            raise UserError(
                f"--server={url}: images would leave this machine; add --allow_sending if they may"
            )
        parts = urlsplit(url)
        self.is_local, self.host = settings.is_local, settings.host
        self._secure, self._name, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def __repr__(self) -> str:
        return self.host

    def is_ready(self) -> bool:
        """Returns whether the server answers questions now.

        Raises:
            UserError: it cannot be reached.
        """
        return self._ask("GET", "/ready")[0] == 200

    def models(self) -> list[str]:
        """Names of the models that can be asked about one image in free words.

        Raises:
            UserError: it cannot be reached, or is no such server.
        """
        cards = self._read(_Cards, *self._ask("GET", "/v1/models"))
        return [one.id for one in cards.data if not one.needs_finding and one.images == 1]

    def complete(self, body: Mapping[str, Any]) -> _Choice:
        """The answer to a chat completion.

        Raises:
            UserError: it is refused, or cannot be read.
        """
        told = self._ask("POST", "/v1/chat/completions", json.dumps(body))
        return self._read(_Completion, *told).choices[0]

    def _ask(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        assert self._name is not None
        connection = kind(self._name, self._port, timeout=_SECONDS_TO_ANSWER)
        try:
            connection.request(method, self._path + path, body, self._headers)
            answer = connection.getresponse()
            content = answer.read(_MOST_ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise UserError(
                f"the server at {self.host} does not answer: {type(error).__name__}: start it, or "
                "leave --server out"
            ) from None
        finally:
            connection.close()
        return answer.status, content

    def _read(self, form: Any, status: int, content: bytes) -> Any:
        try:
            told = parse_object(content[:_MOST_ANSWER_BYTES])
            if status == 200:
                return form.model_validate(told)
        except (ForeignError, pydantic.ValidationError):
            raise UserError(
                f"the server at {self.host} answers {status} and nothing that can be read: "
                "expected one of `python -m cxrjax.serve`"
            ) from None
        error = told.get("error")
        message = error.get("message") if isinstance(error, dict) else None
        raise UserError(str(message or f"the server at {self.host} answers {status}")[:500])


class AskedModel(NamedTuple):
    """A model as it is asked: where, and by which name."""

    server: ServerAddress
    model: str


class Models:
    """Models by name, asked the same question one after the other.

    Args:
        asked: at least one.
    """

    def __init__(self, asked: Mapping[str, AskedModel]) -> None:
        self._asked = dict(asked)
        self._ready = threading.Event()
        self._failure: BaseException | None = None

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """Other machines that images go to."""
        return tuple({one.server.host for one in self._asked.values() if not one.server.is_local})

    def watch(self) -> None:
        """Returns when all servers are ready, or one is gone; for a thread of its own."""
        try:
            while not all(server.is_ready() for server, _ in self._asked.values()):
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        except UserError as error:
            self._failure = error  # told to whoever asks: also where the servers end before this
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._ready.set()

    @property
    def progress(self) -> str:
        """The names of what is being compiled; empty when nothing is any more."""
        return "" if self._ready.is_set() else " and ".join(self._asked)

    def wait(self, seconds: float) -> bool:
        """Waits for `watch`; True once it has ended.

        Raises:
            UserError: it failed.
        """
        ended = self._ready.wait(seconds)
        if self._failure is not None:
            raise UserError(f"the models cannot be asked: {self._failure}")
        return ended

    def ask(self, image: StoredFile, question: str) -> dict[str, Answered]:
        """Each model's answer.

        Args:
            image: PNG, JPEG or DICOM.

        Raises:
            UserError: the image cannot be read, there is no question, or it is too long.
        """
        question = " ".join(question.split())
        if not question:
            raise UserError("no question: write one, such as 'Where is the Cardiomegaly?'")
        if len(question) > LONGEST_QUESTION:
            raise UserError(
                f"a question of {len(question)} characters: expected at most {LONGEST_QUESTION}"
            )
        size = image_size(image)
        with image.open() as file:
            coded = base64.b64encode(file.read()).decode()
        uri = f"data:application/octet-stream;base64,{coded}"  # the server looks what it is
        try:
            return {
                name: _answered(server.complete(_body(model, uri, question)), size)
                for name, (server, model) in self._asked.items()
            }
        except UserError as error:
            raise UserError(str(error).replace("image 1", str(image), 1)) from None


def models_of(server: ServerAddress, names: Sequence[str]) -> Models:
    """A server's models.

    Args:
        names: of those to ask; none: the first two.

    Raises:
        UserError: it has none of the name, or none at all that can be asked.
    """
    found = server.models()
    if missing := [name for name in names if name not in found]:
        raise UserError(
            f"--models={','.join(names)}: {missing[0]!r} is none of the server's models that can "
            f"be asked in free words ({', '.join(found) or 'it has none'})"
        )
    chosen = list(names) or found[:2]
    if not chosen:
        raise UserError(f"the server at {server.host} has no model that can be asked in free words")
    return Models({name: AskedModel(server, name) for name in chosen})


def _body(model: str, uri: str, question: str) -> dict[str, Any]:
    content = [{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": question}]
    return {"model": model, "messages": [{"role": "user", "content": content}], "logprobs": True}


def _answered(choice: _Choice, size: tuple[int, int]) -> Answered:
    told, (height, width) = choice.grounding, size
    tokens = [
        Token(
            one.token,
            math.exp(min(0.0, one.logprob)),
            "location" if _LOCATION.fullmatch(one.token) else "word",
        )
        for one in choice.logprobs.content
    ]
    if told.end_logprob is not None:
        tokens.append(Token(END, math.exp(min(0.0, told.end_logprob)), "end"))
    probability = math.prod(one.probability for one in tokens)
    return Answered(
        text=told.text,
        reason=told.reason,
        boxes=tuple(
            _box(box, score, width, height)
            for box, score in zip(told.boxes, told.box_scores, strict=False)
        ),
        tokens=tuple(tokens),
        probability=probability,
        token_probability=probability ** (1 / max(1, len(tokens))),
        parse=told.parse,
    )


def _box(written: Sequence[float], score: float, width: int, height: int) -> AnswerBox:
    """A box that an image can show: a line has corners as the model wrote them."""
    x0, y0, x1, y1 = canonical(np.array(written)).tolist()
    pixels = (round(x0 * width), round(y0 * height), round(x1 * width), round(y1 * height))
    return AnswerBox(pixels, (x0, y0, x1, y1), score)
