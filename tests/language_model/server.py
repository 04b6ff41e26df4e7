"""A server on loopback that speaks the chat completion protocol and fails as it is told to.

    with Server(Status(500), Text('{"city": "Hue"}')) as server:
        ... server.url ... server.bodies

It does what it is told in turn, the last for ever. In place of that one function may stand, which
gets a request's body and how many came before it, and returns what to do.
"""

import dataclasses
import http.server
import json
import threading
import time
from typing import Any


@dataclasses.dataclass(frozen=True)
class Text:
    """A completion; `usage` is (prompt, completion, total) tokens, `logprobs` one a token.

    `tokens`: their texts; all of them "t" where they are not said.
    """

    text: str | None
    finish_reason: str = "stop"
    refusal: str | None = None
    usage: tuple[int, int, int] | None = (100, 20, 120)
    logprobs: tuple[float, ...] | None = None
    tokens: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Status:
    """An error status with a body as OpenAI writes them."""

    status: int
    message: str = "scripted fault"
    headers: tuple[tuple[str, str], ...] = ()
    code: str | None = None


@dataclasses.dataclass(frozen=True)
class Silence:
    """No answer for so many seconds, then the end of the connection."""

    seconds: float


@dataclasses.dataclass(frozen=True)
class Raw:
    """A body of status 200; `cut` closes the connection before it is all there."""

    body: bytes
    cut: bool = False


class Server:
    """The server, running in a thread while the context lasts.

    Attributes:
        bodies, headers, times: of every request, in the order they came.
        busiest: most requests under way at once.
    """

    def __init__(self, *told: Any, delay: float = 0.0) -> None:
        script = told[0] if callable(told[0]) else lambda _, n: told[min(n, len(told) - 1)]
        self.bodies: list[dict] = []
        self.headers: list = []
        self.times: list[float] = []
        self.busiest = 0
        self._now = 0
        self._lock = threading.Lock()
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else each answer waits for a delayed acknowledgement

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with owner._lock:
                    number = len(owner.bodies)
                    owner.bodies.append(body)
                    owner.headers.append(self.headers)
                    owner.times.append(time.monotonic())
                    owner._now += 1
                    owner.busiest = max(owner.busiest, owner._now)
                try:
                    assert self.path == "/v1/chat/completions", self.path
                    time.sleep(delay)
                    _answer(self, script(body, number), body["model"])
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True
                finally:
                    with owner._lock:
                        owner._now -= 1

            def log_message(self, *_):
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def __enter__(self) -> "Server":
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._http.shutdown()
        self._http.server_close()


def _answer(handler, action, model: str) -> None:
    status, headers, cut = 200, [], False
    if isinstance(action, Silence):
        time.sleep(action.seconds)
        handler.close_connection = True
        return
    if isinstance(action, Raw):
        content, cut = action.body, action.cut
    elif isinstance(action, Status):
        status, headers = action.status, list(action.headers)
        error = {"message": action.message, "code": action.code, "type": "scripted"}
        content = json.dumps({"error": error}).encode()
    else:
        content = json.dumps(_completion(action, model)).encode()
    handler.send_response(status)
    for name, value in headers:
        handler.send_header(name, value)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(content) + 50 * cut))
    handler.end_headers()
    handler.wfile.write(content)
    if cut:
        handler.wfile.flush()
        handler.close_connection = True


def _completion(answer: Text, model: str) -> dict:
    message = {"role": "assistant", "content": answer.text, "refusal": answer.refusal}
    choice = {"index": 0, "message": message, "finish_reason": answer.finish_reason}
    if answer.logprobs is not None:
        texts = answer.tokens or ("t",) * len(answer.logprobs)
        tokens = [
            {"token": text, "bytes": None, "logprob": p, "top_logprobs": []}
            for text, p in zip(texts, answer.logprobs, strict=True)
        ]
        choice["logprobs"] = {"content": tokens, "refusal": None}
    content = {"id": "1", "object": "chat.completion", "created": 0, "model": f"{model}-served"}
    content["choices"] = [choice]
    if answer.usage is not None:
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        content["usage"] = dict(zip(names, answer.usage, strict=True))
    return content
