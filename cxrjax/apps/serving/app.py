"""The server's addresses.

GET  /v1/models            what can be asked, by name
POST /v1/chat/completions  one question in OpenAI's form (chat.py)
POST /v1/responses         the same in the form of OpenAI's Responses (responses.py)
POST /v1/ground            one image, many questions: the lines that `predict` writes
GET  /health, /ready       whether it lives, whether it answers; without a token
GET  /metrics              for Prometheus
"""

import asyncio
import contextlib
import dataclasses
import functools
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any

import anyio
import anyio.to_thread
import pydantic
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from cxrjax.apps.serving.answering import Answering, AskedQuestion, Wish, check_question
from cxrjax.apps.serving.chat import ChatRequest, ChatResponse, Form, checked, read_request
from cxrjax.apps.serving.engine import Engine, SeenImages
from cxrjax.apps.serving.fair_queue import QueueFullError
from cxrjax.apps.serving.metrics import ServerMetrics
from cxrjax.apps.serving.named_models import NamedModel
from cxrjax.apps.serving.refusals import RefusedError, error_body, invalid
from cxrjax.apps.serving.responses import ModelResponse, as_chat
from cxrjax.apps.serving.uploads import UploadedImage, Uploads, data_of, seen_images
from cxrjax.errors import ForeignError
from cxrjax.input_pipeline.examples import ExampleConfig
from cxrjax.untrusted.json_text import parse_object

MOST_QUESTIONS = 64
_DECODERS = 2  # images that are decoded at a time, of up to 200 MB each
_LOG = logging.getLogger("cxrjax.apps.serving")


class _GroundQuestion(Form):
    question: str
    question_id: str | None = pydantic.Field(None, max_length=200)
    finding: str | None = pydantic.Field(None, max_length=200)
    type_prompt: str | None = pydantic.Field(None, max_length=2000)
    choices: list[str] | None = pydantic.Field(None, max_length=26)


def _as_question(told: Any) -> Any:
    """A text as the object that it stands for."""
    return {"question": told} if isinstance(told, str) else told


class GroundRequest(Form):
    """The body of /v1/ground."""

    image: str
    questions: list[Annotated[_GroundQuestion, pydantic.BeforeValidator(_as_question)]] = (
        pydantic.Field(min_length=1, max_length=MOST_QUESTIONS)
    )
    earlier_image: str | None = None
    model: str | None = None


@dataclasses.dataclass
class ModelServer:
    """Application that answers requests, by default by the first model."""

    engine: Engine
    models: Mapping[str, NamedModel]
    uploads: Uploads
    metrics: ServerMetrics
    seconds: float  # timeout of an answer

    most_bytes: int  # limit of the bodies held in memory at a time

    def __post_init__(self) -> None:
        self._decoders = anyio.CapacityLimiter(_DECODERS)
        self._held = 0

    def app(self) -> Starlette:
        """The routes, to be put behind an `ApiGuard`."""
        routes = [
            Route("/v1/models", self._counted("models", self._list)),
            Route("/v1/models/{name:path}", self._counted("models", self._show)),
            Route("/v1/chat/completions", self._counted("chat", self._chat), methods=["POST"]),
            Route("/v1/responses", self._counted("responses", self._respond), methods=["POST"]),
            Route("/v1/ground", self._counted("ground", self._ground), methods=["POST"]),
            Route("/health", self._health),
            Route("/ready", self._ready),
            Route("/metrics", self._metrics),
        ]
        app = Starlette(routes=routes, exception_handlers={HTTPException: _refuse})
        app.router.redirect_slashes = False
        return app

    def _counted(
        self, route: str, answer: Callable[[Request, dict[str, Any]], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Counts and logs a route's requests, and answers what is refused."""

        async def endpoint(request: Request) -> Response:
            begun, about = time.monotonic(), dict[str, Any](id=secrets.token_hex(8))
            request.state.held = 0
            try:
                response = await answer(request, about)
            except RefusedError as refused:
                about |= {"refused": refused.code}
                response = JSONResponse(refused.body(), refused.status, refused.headers)
            except (ClientDisconnect, asyncio.CancelledError):
                self._note(route, request, 499, begun, about)
                raise
            finally:
                self._held -= request.state.held
            if isinstance(response, StreamingResponse):
                response.body_iterator = self._noted(
                    response.body_iterator, route, request, begun, about
                )
            else:
                self._note(route, request, response.status_code, begun, about)
            response.headers["X-Request-Id"] = about["id"]
            return response

        return endpoint

    async def _noted(
        self, body: Any, route: str, request: Request, begun: float, about: dict[str, Any]
    ) -> AsyncIterator[Any]:
        status = 499
        try:
            async for part in body:
                yield part
            status = 200
        finally:
            await body.aclose()
            self._note(route, request, status, begun, about)

    def _note(
        self, route: str, request: Request, status: int, begun: float, about: Mapping[str, Any]
    ) -> None:
        """A line of log: no text and no pixel of anybody."""
        seconds = time.monotonic() - begun
        self.metrics.requests.labels(route, str(status)).inc()
        self.metrics.request_seconds.labels(route).observe(seconds)
        line = {"event": "request", "route": route, "status": status, **about}
        line |= {"seconds": round(seconds, 4), "client": request.state.who}
        _LOG.info("%s", json.dumps(line))

    async def _list(self, request: Request, about: dict[str, Any]) -> Response:
        return JSONResponse({"object": "list", "data": [_card(m) for m in self.models.values()]})

    async def _show(self, request: Request, about: dict[str, Any]) -> Response:
        return JSONResponse(_card(self._model(request.path_params["name"])))

    async def _health(self, request: Request) -> Response:
        alive = self.engine.failure is None
        return JSONResponse({"alive": alive}, 200 if alive else 500)

    async def _ready(self, request: Request) -> Response:
        ready = self.engine.is_ready
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def _metrics(self, request: Request) -> Response:
        return Response(self.metrics.page(), media_type="text/plain; version=0.0.4")

    def _model(self, name: str | None) -> NamedModel:
        if name is None:
            return next(iter(self.models.values()))
        found = self.models.get(name)
        if found is None:
            raise RefusedError(
                404, f"the model {name[:100]!r} does not exist", "model_not_found", "model"
            )
        return found

    async def _body(self, request: Request) -> dict[str, Any]:
        if not self.engine.is_ready:
            raise RefusedError(503, "not ready: see /ready", "not_ready")
        body = bytearray()
        async for part in request.stream():
            self._held += len(part)
            request.state.held += len(part)
            if self._held > self.most_bytes:
                raise RefusedError(503, "too much is sent at a time: try again", "too_busy")
            body += part
        try:
            return await anyio.to_thread.run_sync(parse_object, bytes(body))
        except ForeignError as error:
            raise RefusedError(400, str(error), "invalid_json") from None

    async def _see(
        self, model: NamedModel, uris: Sequence[str], who: str, questions: Sequence[AskedQuestion]
    ) -> tuple[list[UploadedImage], SeenImages]:
        """The images of a request, which are decoded once its questions can be put."""
        most = 2 if model.examples.earlier_images else 1
        if not 1 <= len(uris) <= most:
            known = "1" if most == 1 else "1, or 2: the one asked about and an earlier one"
            told = f"{len(uris)} images: this model is asked about {known}"
            raise invalid("messages", told, "invalid_image_count")
        for question in questions:
            check_question(model, question, len(uris))

        def read(uri: str, number: int, examples: ExampleConfig) -> UploadedImage:
            return self.uploads.read(data_of(uri, f"image {number}"), examples, who)

        examples = model.examples
        pictures: list[UploadedImage] = []
        for number, uri in enumerate(uris, 1):
            pictures.append(
                await anyio.to_thread.run_sync(read, uri, number, examples, limiter=self._decoders)
            )
            examples = examples.on_grid_of(pictures[0].size)  # for both
        return pictures, seen_images(pictures, model.examples, who, model.adapter)

    def _submit(self, client: object, answers: Sequence[Answering]) -> None:
        try:
            self.engine.submit(client, [answer.job for answer in answers])
        except QueueFullError:
            raise RefusedError(
                429, "too many questions wait: try again in a moment", "queue_full"
            ) from None

    async def _ground(self, request: Request, about: dict[str, Any]) -> Response:
        told: GroundRequest = checked(GroundRequest, await self._body(request))
        model = self._model(told.model)
        uris = [told.image, *([told.earlier_image] if told.earlier_image else [])]
        questions = [
            _question(each, each.question_id or f"q{number}")
            for number, each in enumerate(told.questions)
        ]
        pictures, images = await self._see(model, uris, request.state.who, questions)
        client = _client(request)
        answers = [
            Answering(model, asked, pictures, images, Wish(), client, self.seconds)
            for asked in questions
        ]
        self._submit(client, answers)
        said = await _unless_gone(request, answers, _all_said(answers))
        about |= {"model": model.name, "questions": len(answers), "images": len(pictures)}
        about["completion_tokens"] = sum(one.completion_tokens for one in said)
        return JSONResponse({"model": model.name, "predictions": [one.line for one in said]})

    async def _chat(self, request: Request, about: dict[str, Any]) -> Response:
        told = read_request(await self._body(request))
        return await self._write(request, about, told, ChatResponse)

    async def _respond(self, request: Request, about: dict[str, Any]) -> Response:
        body = await self._body(request)
        frame = functools.partial(ModelResponse, body)
        return await self._write(request, about, as_chat(body), frame)

    async def _write(
        self,
        request: Request,
        about: dict[str, Any],
        told: ChatRequest,
        frame: Callable[..., ChatResponse | ModelResponse],
    ) -> Response:
        """Answers a chat completion's request in a frame."""
        model, wish, question = self._model(told.model), told.wish(), told.question()
        pictures, images = await self._see(model, told.images(), request.state.who, [question])
        client = _client(request)
        answers = [
            Answering(model, question, pictures, images, wish, client, self.seconds, sample)
            for sample in range(told.n or 1)
        ]
        about |= {"model": model.name, "questions": len(answers), "images": len(pictures)}
        completion = frame(told, model.tokenizer.piece_of)
        self._submit(client, answers)
        if told.stream:
            events = _events(told, completion, answers, about)
            return StreamingResponse(events, media_type="text/event-stream")
        said = await _unless_gone(request, answers, _all_said(answers))
        about["completion_tokens"] = sum(one.completion_tokens for one in said)
        return JSONResponse(completion.whole(said))


async def _refuse(request: Request, error: Exception) -> Response:
    """Formats errors of Starlette and of the guard like all other errors."""
    assert isinstance(error, HTTPException)
    return JSONResponse(error_body(error.status_code, error.detail), error.status_code)


async def _all_said(answers: Sequence[Answering]) -> list[Any]:
    return [await answer.said() for answer in answers]


async def _unless_gone(request: Request, answers: Sequence[Answering], result: Any) -> Any:
    """The result; where the client leaves before, all jobs end."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.ensure_future(result), asyncio.ensure_future(gone())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientDisconnect
        return tasks[0].result()
    finally:
        for answer in answers:
            answer.job.cancel()  # of those that have ended it changes nothing
        for task in tasks:
            task.cancel()


async def _events(
    told: ChatRequest,
    completion: ChatResponse | ModelResponse,
    answers: Sequence[Answering],
    about: dict[str, Any],
) -> AsyncIterator[str]:
    """Server-sent events of all choices, mixed as they come."""
    chunks: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def follow(index: int, answer: Answering) -> None:
        try:
            for chunk in completion.begin(index):
                chunks.put_nowait(chunk)
            async for text, events in answer.pieces():
                if not told.wants_json:
                    chunks.put_nowait(completion.piece(index, text, events))
            for chunk in completion.end(index, await answer.said()):
                chunks.put_nowait(chunk)
        except RefusedError as refused:
            about["refused"] = refused.code
            chunks.put_nowait(completion.refused(refused))
        finally:
            chunks.put_nowait(None)

    tasks = [asyncio.ensure_future(follow(*each)) for each in enumerate(answers)]
    try:
        open_ones = len(tasks)
        while open_ones:
            chunk = await chunks.get()
            if chunk is None:
                open_ones -= 1
                continue
            head = f"event: {chunk['type']}\n" if "type" in chunk else ""
            yield f"{head}data: {json.dumps(chunk)}\n\n"
        if "refused" not in about:
            said = [await answer.said() for answer in answers]
            about["completion_tokens"] = sum(one.completion_tokens for one in said)
            wants = told.stream_options is not None and told.stream_options.include_usage
            if wants and isinstance(completion, ChatResponse):
                yield f"data: {json.dumps(completion.usage(said))}\n\n"
        yield "data: [DONE]\n\n"
    finally:
        for answer in answers:
            answer.job.cancel()
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


def _client(request: Request) -> tuple[str, str]:
    """Returns the client that slots are shared between: a token and a machine that uses it."""
    return request.state.who, request.client.host if request.client else ""


def _question(told: _GroundQuestion, name: str) -> AskedQuestion:
    return AskedQuestion(
        told.question,
        finding=told.finding,
        type_prompt=told.type_prompt,
        choices=None if told.choices is None else tuple(told.choices),
        name=name,
    )


def _card(model: NamedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "cxrjax",
        "images": 2 if model.examples.earlier_images else 1,
        "max_answer_tokens": model.strategy.max_answer_tokens,
        "prompt": model.examples.prompt,
        "needs_finding": model.needs_finding,
    }
