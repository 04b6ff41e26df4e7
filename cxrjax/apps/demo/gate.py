"""Filter for Gradio's hundred routes: only those that the page needs, with validated input.

Gradio opens any path that a request names unless it has launched the page itself; it proxies, edits
code, and reveals its state. So requests are parsed and rewritten here: a path is that of an upload
or absent, and an event has only the inputs of its function.
"""

import asyncio
import dataclasses
import json
import re
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cxrjax.apps.demo.answers import LONGEST_QUESTION
from cxrjax.errors import ForeignError
from cxrjax.untrusted.json_text import parse_object

GONE = "the image is not here (any more): choose a file or an example"
_JOIN, _UPLOAD, _FILE = "/gradio_api/queue/join", "/gradio_api/upload", "/gradio_api/file="
# What a GET may name, and the one word of its query that is handed on.
_GETS = (
    (re.compile(r"/"), ""),
    (re.compile(r"/theme\.css"), ""),
    (re.compile(r"/assets/\w[\w-]*(\.[\w-]+)+"), ""),
    (re.compile(r"/static/(js|fonts|img)/\w[\w-]*(\.[\w-]+)+"), ""),
    (re.compile(r"/gradio_api/queue/data"), "session_hash"),
    (re.compile(r"/gradio_api/upload_progress"), "upload_id"),
)
_WORD = re.compile(r"[a-z0-9]{1,40}")
_HEADERS = {b"host", b"content-type", b"content-length", b"accept", b"x-forwarded-proto"}
_LONGEST_EVENT = 20_000  # bytes
_MOST_SESSIONS = 64
_MOST_UNREAD = 50  # messages of a session
_MOST_FILES = 500


def upload_at(folder: Path, told: object, most_bytes: int) -> Path | None:
    """The file at this path, links followed; None where it is no upload, whatever else it may be.

    Args:
        folder: of the uploads.
        most_bytes: that the file may have.
    """
    if not isinstance(told, str):
        return None
    try:
        path = Path(told).resolve(strict=True)
        inside = path.is_relative_to(folder.resolve())
        return path if inside and path.is_file() and path.stat().st_size <= most_bytes else None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, a circle of links
        return None


@dataclasses.dataclass
class Gate:
    """Stands before Gradio, behind a `Guard`."""

    app: ASGIApp
    blocks: Any
    uploads: Path  # folder of what Gradio keeps
    most_bytes: int  # of an upload; all together may have ten times that
    _coming: int = 0

    def __post_init__(self) -> None:
        queue = self.blocks._queue
        queue.pending_messages_per_session = _Latest(asyncio.Queue)
        queue.pending_event_ids_session = _Latest(set)
        self.blocks.state_holder.capacity = _MOST_SESSIONS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands on what the page may ask.

        Raises:
            HTTPException: it is anything else.
        """
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope["root_path"])
        words = _words(scope)
        scope = dict(scope)
        scope["headers"] = [pair for pair in scope["headers"] if pair[0] in _HEADERS]
        if scope["method"] == "POST" and path == _JOIN:
            body = json.dumps(self._event(await _body(scope, receive))).encode()
            _set_length(scope, len(body))
            await self.app(_asking(scope), _once(body, receive), send)
        elif scope["method"] == "POST" and path == _UPLOAD:
            await self._upload(_asking(scope, "upload_id", words), receive, send)
        elif scope["method"] in ("GET", "HEAD"):
            await self.app(self._get(scope, path, words), receive, send)
        else:
            raise HTTPException(404, "no such page")

    def _get(self, scope: Scope, path: str, words: Mapping[str, Sequence[str]]) -> Scope:
        if path.startswith(_FILE):
            if upload_at(self.uploads, path.removeprefix(_FILE), self.most_bytes) is None:
                raise HTTPException(404, GONE)
            return _asking(scope)
        for pattern, word in _GETS:
            if pattern.fullmatch(path):
                return _asking(scope, word, words)
        raise HTTPException(404, "no such page")

    def _event(self, body: bytes) -> dict[str, Any]:
        """Validates and rebuilds the body of a click, with nothing else in it."""
        try:
            told = parse_object(body)
        except ForeignError as error:
            raise HTTPException(400, str(error)) from None
        session, function, trigger = (
            told.get(name) for name in ("session_hash", "fn_index", "trigger_id")
        )
        known = self.blocks.fns.get(function) if type(function) is int else None
        if (
            known is None
            or not isinstance(session, str)
            or not _WORD.fullmatch(session)
            or not (trigger is None or type(trigger) is int)
        ):
            raise HTTPException(400, "no event of this page")
        data = told.get("data")
        inputs = [type(one).__name__ for one in known.inputs]
        if not isinstance(data, list) or len(data) != len(inputs):
            raise HTTPException(400, f"expected {len(inputs)} inputs")
        self._admit(session)
        return {
            "data": [self._input(kind, one) for kind, one in zip(inputs, data, strict=True)],
            "fn_index": function,
            "trigger_id": trigger,
            "session_hash": session,
        }

    def _input(self, kind: str, told: object) -> object:
        if kind == "Textbox" and isinstance(told, str) and len(told) <= 10 * LONGEST_QUESTION:
            return told
        if kind == "File" and told is None:
            return None
        path = upload_at(
            self.uploads, told.get("path") if isinstance(told, dict) else None, self.most_bytes
        )
        if kind != "File" or path is None:
            raise HTTPException(404, GONE)
        return {"path": str(path), "orig_name": path.name, "meta": {"_type": "gradio.FileData"}}

    def _admit(self, session: str) -> None:
        unread = self.blocks._queue.pending_messages_per_session.get(session)
        if unread is not None and unread.qsize() > _MOST_UNREAD:
            raise HTTPException(429, "too many events: read their answers first")

    async def _upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = int(Headers(scope=scope).get("content-length", "0")[:20])
        if not length:
            raise HTTPException(411, "Content-Length is missing")
        if not self._coming:
            self._sweep()
        files = [path for path in self.uploads.rglob("*") if path.is_file()]
        kept = sum(path.stat().st_size for path in files)
        if kept + self._coming + length > 10 * self.most_bytes or len(files) > _MOST_FILES:
            raise HTTPException(507, "too many images for now: each is removed within two hours")
        self._coming += length
        try:
            await self.app(scope, receive, send)
        finally:
            self._coming -= length

    def _sweep(self) -> None:
        """Removes what uploads that broke off have left, and Gradio's empty files."""
        for path in self.uploads.glob("tmp*"):
            if path.is_file():
                path.unlink(missing_ok=True)


class _Latest(dict[str, Any]):
    """Gradio's values by session, restricted to the latest sessions.

    Its queue would stop for good on a message for a session that has just gone.

    Args:
        empty: makes the value of a session that is missing.
    """

    def __init__(self, empty: Callable[[], Any]) -> None:
        super().__init__()
        self._empty = empty

    def __missing__(self, session: str) -> Any:
        return self._empty()

    def __delitem__(self, session: str) -> None:
        self.pop(session, None)

    def __setitem__(self, session: str, kept: Any) -> None:
        self.pop(session, None)
        super().__setitem__(session, kept)
        if len(self) > _MOST_SESSIONS:
            self.pop(next(iter(self)))


def _words(scope: Scope) -> dict[str, list[str]]:
    try:
        return urllib.parse.parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=9)
    except ValueError:
        raise HTTPException(400, "no query of this page") from None


def _asking(
    scope: Scope, word: str = "", words: Mapping[str, Sequence[str]] | None = None
) -> Scope:
    """The request with one word of its query at most."""
    told = (words or {}).get(word, [""])[0]
    if told and not _WORD.fullmatch(told):
        raise HTTPException(400, f"no {word}")
    return {**scope, "query_string": f"{word}={told}".encode() if told else b""}


async def _body(scope: Scope, receive: Receive) -> bytes:
    body = b""
    async for part in Request(scope, receive).stream():
        body += part
        if len(body) > _LONGEST_EVENT:
            raise HTTPException(413, f"an event of more than {_LONGEST_EVENT:,} bytes")
    return body


def _set_length(scope: Scope, length: int) -> None:
    kept = [
        pair for pair in scope["headers"] if pair[0] not in (b"content-length", b"content-type")
    ]
    own = [(b"content-type", b"application/json"), (b"content-length", str(length).encode())]
    scope["headers"] = kept + own


def _once(body: bytes, receive: Receive) -> Receive:
    """Gives the body, and then what the client does."""
    given = False

    async def give() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return give
