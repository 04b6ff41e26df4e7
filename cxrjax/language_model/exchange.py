"""One HTTP request and its answer, within limits that hold whatever the server does.

An event loop in a thread of its own does the work: there a deadline covers name look-up,
connection, sending and reading together, and what is abandoned ends at once. Each request has a
connection of its own, so that nothing of one answer can reach the next.
"""

import asyncio
import concurrent.futures
import dataclasses
import functools
import json
import logging
import threading
from typing import Any, Literal

from cxrjax.errors import optional
from cxrjax.language_model.settings import Settings

# Of an answer that is none: enough to tell what is wrong. (Headers: 100 KiB, the library's limit.)
_MOST_ERROR_BYTES = 2**16


class Abandoned(Exception):  # noqa: N818 - an order, no error
    """Nobody waits for the answer any more."""


@dataclasses.dataclass(frozen=True)
class Reply:
    """Reply of the server; `retry_after` is the header of that name. An error's body may be cut."""

    status: int
    retry_after: str
    body: bytes

    @property
    def is_success(self) -> bool:
        """Returns whether the status is 2xx."""
        return 200 <= self.status < 300


@dataclasses.dataclass(frozen=True)
class Broken:
    """No reply; `detail` may hold words of the server, `sent` says whether it can have worked."""

    category: Literal["timeout", "connection", "http_error"]
    detail: str
    sent: bool = True


class Exchange:
    """The way to the server of the settings; threads share it.

    No redirection is followed, no cookie kept, no compression taken. A proxy of the environment is
    used for `https` alone, where it sees the server's name and no content.
    """

    def __init__(self, settings: Settings) -> None:
        # Not at the top: only those who ask a model need it.
        self._httpx = optional("httpx2", "language_model")
        for name in ("httpx2", "httpcore2"):  # they would log headers, which may echo the key
            logging.getLogger(name).setLevel(logging.WARNING)
        self._timeout = settings.timeout
        self._url = settings.base_url.rstrip("/") + "/chat/completions"
        encrypted = self._url.lower().startswith("https:")
        self._proxied = encrypted and not settings.is_local
        self._tls = self._httpx.create_ssl_context(trust_env=self._proxied) if encrypted else False
        self._headers = {
            "Authorization": f"Bearer {settings.api_key or 'none'}",
            "Content-Type": "application/json",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Connection": "close",
        }
        self._loop = _event_loop()
        self._lock = threading.Lock()
        self._under_way: set[concurrent.futures.Future[Reply | Broken]] = set()
        self._abandoned = False

    def post(self, body: dict[str, Any], most_bytes: int) -> Reply | Broken:
        """The reply to this JSON.

        Args:
            most_bytes: of a reply's body.

        Raises:
            Abandoned: `abandon` was called.
        """
        # In the order that the protocol's own library sends.
        ordered = {name: body[name] for name in ("model", "messages", *sorted(body))}
        content = json.dumps(ordered, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        work = self._exchange(content.encode(), most_bytes)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        with self._lock:
            self._under_way.add(future)
            if self._abandoned:
                future.cancel()
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Abandoned from None
        finally:
            future.cancel()  # Ctrl-C in this thread
            with self._lock:
                self._under_way.discard(future)

    def abandon(self, all_of_them: bool = True) -> None:
        """Ends what is under way and whatever is begun, until called with False."""
        with self._lock:
            self._abandoned = all_of_them
            for future in self._under_way if all_of_them else ():
                future.cancel()

    async def _exchange(self, content: bytes, most_bytes: int) -> Reply | Broken:
        httpx = self._httpx
        try:
            async with (
                asyncio.timeout(self._timeout),
                httpx.AsyncClient(
                    verify=self._tls,
                    trust_env=self._proxied,
                    follow_redirects=False,
                    timeout=None,  # the one above is of all together
                ) as client,
                client.stream(
                    "POST", self._url, content=content, headers=self._headers
                ) as response,
            ):
                return await _read(response, most_bytes)
        except TimeoutError:
            return Broken("timeout", f"no answer in {self._timeout:g} s")
        # Of any class: what a library makes of a hostile answer is the server's failure. Told in
        # words, since the exception holds the request, and so the key.
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            return Broken("connection", told, sent=not isinstance(error, httpx.ConnectError))


async def _read(response: Any, most_bytes: int) -> Reply | Broken:
    reply = Reply(response.status_code, response.headers.get("retry-after", ""), b"")
    most = most_bytes if reply.is_success else _MOST_ERROR_BYTES
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        told = f"a body compressed by {encoding}, which was not requested"
        return Broken("http_error", told) if reply.is_success else reply
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > most:
            if reply.is_success:
                return Broken("http_error", f"a body of more than {most:,} bytes")
            break
    return dataclasses.replace(reply, body=bytes(body[:most]))


@functools.cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """The loop, running until the process ends."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="exchange", daemon=True).start()
    return loop
