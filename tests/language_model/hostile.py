"""A server on loopback that answers with whatever bytes it is told to, at whatever pace.

    with HostileServer(lambda connection, number: connection.sendall(b"...")) as there:
        ... there.url ... there.requests

The script gets the connection, after the request was read, and how many came before it.
"""

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Flood(NamedTuple):
    """A script: a head, and then a piece again and again, until the client or the test ends."""

    head: bytes
    piece: bytes
    times: int = 10**6
    every: float = 0.0


class HostileServer:
    """The server, a thread for each connection, while the context lasts.

    Attributes:
        requests: head and body of every request, in the order they came.
        sent: bytes of floods.
    """

    def __init__(self, script: Callable[[socket.socket, int], Any] | Flood | bytes) -> None:
        self.script = script
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._ended = threading.Event()
        self.requests: list[tuple[bytes, bytes]] = []
        self.sent = 0
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    def __enter__(self) -> "HostileServer":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._ended.set()
        self._listener.close()

    def _answer(self, to: socket.socket, number: int) -> None:
        if isinstance(self.script, bytes):
            to.sendall(self.script)
        elif not isinstance(self.script, Flood):
            self.script(to, number)
        else:
            head, piece, times, every = self.script
            to.sendall(head)
            for _ in range(times):
                if self._ended.wait(every) if every else self._ended.is_set():
                    return
                to.sendall(piece)
                self.sent += len(piece)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                head = b""
                while b"\r\n\r\n" not in head:
                    if not (more := connection.recv(2**16)):
                        return
                    head += more
                head, _, body = head.partition(b"\r\n\r\n")
                said = head.lower().partition(b"content-length:")[2]
                length = int(said.split(b"\r\n")[0] or 0)
                while len(body) < length:
                    body += connection.recv(2**16)
                self.requests.append((head, body))
                self._answer(connection, len(self.requests) - 1)
            except OSError:  # the client went
                pass


def reply(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """An answer of HTTP/1.1 with its length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def chunked(*chunks: bytes) -> bytes:
    """The same in chunks."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


def completion(**changes: Any) -> bytes:
    """A completion's JSON, whose `content`, `choice`, `message` or other fields are changed."""
    message = {"role": "assistant", "content": changes.pop("content", '{"city": "Hue"}')}
    message |= changes.pop("message", {})
    choice = {"index": 0, "message": message, "finish_reason": "stop"} | changes.pop("choice", {})
    answer = {"id": "1", "choices": [choice], "model": "served", "usage": USAGE} | changes
    return json.dumps(answer).encode()


def slowly(content: bytes, every: float) -> Callable[[socket.socket, int], None]:
    """A script: byte after byte."""

    def script(to: socket.socket, _: int) -> None:
        for byte in content:
            to.sendall(bytes((byte,)))
            time.sleep(every)

    return script
