"""Serves HTTP to few people on uvicorn: what stands before every server of the project.

    listen, link  a socket, and the address to open
    Guard         asks of each request: our Host, no other site's page, a token, a body of bounds
    serve         answers until Ctrl-C; connections have limits of number and time

A token is the first part of a path. A cookie would be sent to every port of this host.
"""

import asyncio
import dataclasses
import functools
import hmac
import ipaddress
import logging
import re
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import uvicorn
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from cxrjax.errors import UserError, first_line

MIB = 2**20
OTHER_LINK = "Open the link that the program printed for you, as a whole."
_HEADERS = {
    "Cache-Control": "no-store",
    # The address holds a token.
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)
_SLOWEST = 1_000  # bytes a second that a reader of an answer must take
_STALL_SECONDS = 30.0
# Connections that the kernel keeps for us. All may be taken at once and count as open files then.
_WAITING = 512
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one client."""

    connections: int = 128  # open at a time; beyond, the oldest idle one is closed
    requests: int = 32  # answered at a time; beyond, a client gets status 503 and may retry
    head_bytes: int = 32 * 1024
    body_bytes: int = MIB
    # From the connection, or the last answer, to the end of a request's headers.
    head_seconds: float = 10.0
    body_seconds: float = 30.0  # from there to the end of its body
    answer_seconds: float = 120.0  # from the headers to the end of the answer
    stream_seconds: float = 3600.0  # the same for an answer that is a stream of events


def listen(host: str, port: int) -> socket.socket:
    """A socket to serve at; port 0 takes any free one. Says so where others reach it.

    Raises:
        UserError: the address is in use or not this machine's.
    """
    try:
        listening = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except (OSError, OverflowError, UnicodeError) as error:
        raise UserError(
            f"{host}:{port}: cannot serve there: {first_line(error)}; choose another --port or "
            "--host"
        ) from None
    if not ipaddress.ip_address(listening.getsockname()[0]).is_loopback:
        print(
            f"warning: --host={host} lets other machines in, and nothing is encrypted: who reads "
            "along reads links and pictures. Put a reverse proxy with TLS before it that hands on "
            "Host, and name it by --allowed_host (docs/try_it.md)",
            file=sys.stderr,
        )
    return listening


def link(listening: socket.socket, host: str, token: str) -> str:
    """The address to open in a browser, on a host of this name."""
    port = listening.getsockname()[1]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/{token}/"


def _one_line(record: logging.LogRecord) -> bool:
    """A filter that puts the name of an error in place of its traceback."""
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        record.msg = f"{record.getMessage().strip()}: {type(error).__name__}: {first_line(error)}"
        record.args, record.exc_info = (), None
    return True


def serve(
    app: ASGIApp,
    listening: socket.socket,
    limits: Limits,
    drain_seconds: int = 1,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Answers until Ctrl-C (KeyboardInterrupt) or SIGTERM.

    Args:
        app: a `Guard`.
        drain_seconds: that answers which are on their way have then.
        is_over: asked again and again; ends it too.
    """
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(_one_line)
    config = uvicorn.Config(
        app,
        http=functools.partial(_Connection, limits),  # type: ignore[arg-type]
        loop="asyncio",
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,  # its lines would hold tokens
        server_header=False,
        # Nobody is believed who says that he speaks for another address.
        proxy_headers=False,
        backlog=_WAITING,
        h11_max_incomplete_event_size=limits.head_bytes,
        timeout_graceful_shutdown=drain_seconds,
    )
    _Server(config, is_over).run(sockets=[listening])


class _Server(uvicorn.Server):
    """Looks after its connections twice a second."""

    def __init__(self, config: uvicorn.Config, is_over: Callable[[], bool]) -> None:
        super().__init__(config)
        self._is_over = is_over

    async def on_tick(self, counter: int) -> bool:
        if counter % 5 == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, _Connection) and connection.is_overdue(now):
                    connection.transport.abort()
        return await super().on_tick(counter) or self._is_over()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for connection in list(self.server_state.connections):
            # Who has not sent all of a request would hold up the end until its timeout.
            if isinstance(connection, _Connection) and connection.is_sending():
                connection.transport.abort()
        await super().shutdown(sockets)


class _Connection(H11Protocol):
    """One connection. uvicorn itself waits for ever for the end of a request."""

    def __init__(self, limits: Limits, **settings: Any) -> None:
        super().__init__(**settings)
        self._limits = limits
        self._opened = self._since = self.loop.time()
        self._phase: tuple[object, ...] = ()
        self._unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        if len(self.connections) >= self._limits.connections and not self._make_room():
            transport.write(_FULL)
            transport.close()
            return
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except Exception as error:  # of h11: uvicorn refuses also where an answer has begun
            _LOG.warning("a request that cannot be read: %s", first_line(error))
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        if self._is_answering():  # its body breaks rules: to the app the client is gone
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        super().send_400_response(msg)

    def _should_upgrade(self) -> bool:
        return False  # nothing here speaks WebSocket, and uvicorn would log three lines

    def _make_room(self) -> bool:
        others = (one for one in self.connections if isinstance(one, _Connection))
        idle = [one for one in others if not one._is_answering() and not one._to_send()]
        if not idle:
            return False
        oldest = min(idle, key=lambda one: one._opened)
        self.connections.discard(oldest)
        oldest.transport.abort()
        return True

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _to_send(self) -> int:
        return self.transport.get_write_buffer_size()

    def is_sending(self) -> bool:
        """Returns whether a request has begun and its body has not ended."""
        return self._is_answering() and self.cycle.more_body

    def is_overdue(self, now: float) -> bool:
        """Returns whether the client has exceeded the timeout of its current phase."""
        unsent = self._to_send()
        if unsent:
            phase, seconds = "reads", _STALL_SECONDS
        elif not self._is_answering():
            phase, seconds = "asks", self._limits.head_seconds
        elif self.is_sending():
            phase, seconds = "sends", self._limits.body_seconds
        else:
            return False  # the Guard's to end
        took_some = unsent < self._unsent - _SLOWEST * _STALL_SECONDS
        if (phase, self.cycle) != self._phase or (unsent and took_some):
            self._phase, self._since, self._unsent = (phase, self.cycle), now, unsent
        return now - self._since > seconds


class Guard:
    """An app behind checks; what it answers has headers that keep browsers to it.

    The app finds who has the token as `scope["state"]["who"]`, and its paths below the token.

    Args:
        tokens: name of each who may ask -> their token.
        hosts: names by which the server is known, beside the address that it was reached at.
        policy: the Content-Security-Policy of its pages.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        tokens: Mapping[str, str],
        hosts: Sequence[str] = (),
        policy: str = "",
    ) -> None:
        self._app, self._limits, self._tokens = app, limits, dict(tokens)
        self._hosts = {host.lower() for host in hosts}
        headers = _HEADERS | ({"Content-Security-Policy": policy} if policy else {})
        self._headers = [(k.lower().encode(), v.encode()) for k, v in headers.items()]
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request; the life of the app (`lifespan`) is handed on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False
        deadline = asyncio.timeout(self._limits.answer_seconds)

        async def send_guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = [(name.lower(), value) for name, value in message["headers"]]
                if (b"content-type", b"text/event-stream; charset=utf-8") in headers:
                    now = asyncio.get_running_loop().time()
                    deadline.reschedule(now + self._limits.stream_seconds)
                own = {name for name, _ in self._headers}
                kept = [(name, value) for name, value in headers if name not in own]
                message = {**message, "headers": [*kept, *self._headers]}
            await send(message)

        async def tell(status: int, text: str) -> None:
            if not begun:
                await self._refusal(status, text)(scope, receive, send_guarded)

        self._running += 1
        try:
            self._check(scope)
            async with deadline:
                await self._app(scope, self._bounded(receive), send_guarded)
        except HTTPException as refused:
            await tell(refused.status_code, refused.detail)
        except ClientDisconnect:
            pass
        except TimeoutError:
            _LOG.warning("%s: took too long", _place(scope))
            await tell(503, "That took too long; try again later.")
        except Exception as error:
            _LOG.error("%s: %s: %s", _place(scope), type(error).__name__, first_line(error))
            await tell(500, "Internal error; see the program's output.")
        except asyncio.CancelledError:
            pass  # the server ends
        finally:
            self._running -= 1

    def _refusal(self, status: int, text: str) -> Response:
        """Returns the response that replaces the app's."""
        retry = {"Retry-After": "5"} if status == 503 else None
        return PlainTextResponse(text, status, retry)

    def _check(self, scope: Scope) -> None:
        """Finds who asks.

        Raises:
            HTTPException: the request is not answered.
        """
        headers = Headers(scope=scope)
        host = self._host(scope, headers)
        if self._is_from_elsewhere(scope, headers, host):
            raise HTTPException(403, "Only the server's own pages may ask this.")
        who = self._who(scope, headers)
        if self._running > self._limits.requests:
            raise HTTPException(503, "Too many requests; try again in a moment.")
        if "transfer-encoding" in headers and "content-length" in headers:
            raise HTTPException(400, "A body has Content-Length or Transfer-Encoding, not both.")
        length = headers.get("content-length", "0")[:20]  # digits alone: h11 has seen to it
        if int(length) > self._limits.body_bytes:
            raise HTTPException(413, self._too_long(f"{int(length):,} bytes"))
        scope["state"] = {**scope.get("state", {}), "who": who}

    def _who(self, scope: Scope, headers: Headers) -> str:
        """Name of who has the token of the path, which the app's paths are below.

        Raises:
            HTTPException: nobody has it.
        """
        if scope["path"] == "/favicon.ico":  # browsers ask for it without the token
            raise HTTPException(204, "")
        first, slash, _ = scope["path"].lstrip("/").partition("/")
        found = self._holder(first)
        if found is None or not slash or not scope["path"].startswith(f"/{first}/"):
            raise HTTPException(404, OTHER_LINK)
        scope["root_path"] = f"/{first}"
        return found

    def _holder(self, told: str) -> str | None:
        """Name of who has a token; all are compared, so that the time tells nothing."""
        sent, tokens = told.encode(errors="replace"), self._tokens.items()
        found = [name for name, token in tokens if hmac.compare_digest(token.encode(), sent)]
        return found[0] if found else None

    def _host(self, scope: Scope, headers: Headers) -> str:
        """Returns the request's host with its port; refuses foreign names (DNS rebinding)."""
        told = headers.getlist("host")
        match = _HOST.fullmatch(told[0].lower()) if len(told) == 1 else None
        name = match[1].strip("[]") if match else ""
        reached_at = scope["server"][0]
        allowed = self._hosts | {reached_at}
        if ipaddress.ip_address(reached_at).is_loopback:
            allowed |= {"localhost"}
        if name not in allowed:
            raise HTTPException(
                400, "Host: not a name of this server; its operator can add it with --allowed_host"
            )
        return told[0].lower()

    def _is_from_elsewhere(self, scope: Scope, headers: Headers, host: str) -> bool:
        """Returns whether, by the browser's headers, a page of another origin sent the request.

        Links may be followed from anywhere: without a token they lead nowhere.
        """
        own = {f"http://{host}", f"https://{host}"}  # the second behind a proxy
        if any(origin.lower() not in own for origin in headers.getlist("origin")):
            return True
        follows = scope["method"] in ("GET", "HEAD") and (
            headers.get("sec-fetch-mode") == "navigate"
        )
        sites = headers.getlist("sec-fetch-site")
        return any(site not in ("same-origin", "none") for site in sites) and not follows

    def _bounded(self, receive: Receive) -> Receive:
        taken = 0

        async def receive_some() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._limits.body_bytes:
                raise HTTPException(413, self._too_long("more"))
            return message

        return receive_some

    def _too_long(self, found: str) -> str:
        return f"A body of {found}; at most {self._limits.body_bytes:,} bytes are read."


def _place(scope: Scope) -> str:
    """Method and path for a line of log, without the token."""
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    return ascii(f"{scope['method'][:10]} {path[:60]}")
