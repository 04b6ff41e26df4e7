"""The guard of all servers, on a small app of its own: raw sockets, slow clients, many of them."""

import contextlib
import json
import socket
import time

import pytest

from cxrjax.apps import page_server
from cxrjax.errors import UserError
from tests.apps import raw_http, servers
from tests.apps.raw_http import ask_raw, comes, half_open, request, state_of, status_of

TOKEN, OTHER = "t0ken-of-anna", "t0ken-of-bao"
APP = f"""
import asyncio, json, sys
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from cxrjax.apps.page_server import Guard, Limits, listen, serve

def plain(request):
    return PlainTextResponse(request.state.who)
async def size(request):
    return PlainTextResponse(str(len(await request.body())))
async def broken(request):
    raise RuntimeError("secret {TOKEN[:3]}\\nsecond line")
async def slow(request):
    await asyncio.sleep(60)
async def events(request):
    async def count():
        for number in range(1000):
            yield f"data: {{number}}\\n\\n"
            await asyncio.sleep(0.2)
    return StreamingResponse(count(), media_type="text/event-stream")
async def large(request):
    return PlainTextResponse("x" * 30_000_000)

routes = [Route("/plain", plain), Route("/size", size, methods=["POST"]), Route("/broken", broken),
          Route("/slow", slow), Route("/events", events), Route("/large", large)]
limits = Limits(**json.loads(sys.argv[1]))
with listen("127.0.0.1", 0) as listening:
    print(f"http://127.0.0.1:{{listening.getsockname()[1]}}/", flush=True)
    guard = Guard(Starlette(routes=routes), limits, {{"anna": "{TOKEN}", "bao": "{OTHER}"}},
                  ["review.example"], "default-src 'self'")
    serve(guard, listening, limits)
"""
PLAIN, SIZE = f"/{TOKEN}/plain", f"/{TOKEN}/size"
KEPT = request("GET", PLAIN).replace(b"Connection: close\r\n", b"")  # the connection
QUICK = {"connections": 40, "requests": 8, "body_bytes": 100_000, "head_seconds": 1.5}
QUICK |= {"body_seconds": 1.5, "answer_seconds": 1.0, "stream_seconds": 2.5}


class Server(servers.Server):
    def __init__(self, folder, before="", **limits):
        words = json.dumps(QUICK | limits)
        super().__init__(folder, "-c", before + APP, words, until="http://")

    def asked(self, path: str, *headers: str, method="GET", body=b"", **more) -> bytes:
        return ask_raw(self.port, request(method, path, *headers, body=body, **more))

    def plain(self) -> bytes:
        return self.asked(PLAIN)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    one = Server(tmp_path_factory.mktemp("server"))
    yield one
    assert "Traceback" not in one.said
    assert TOKEN not in one.said and OTHER not in one.said
    one.stop()
    assert "Traceback" not in one.said


def test_who_has_a_token_is_answered_with_headers_that_keep_browsers_to_it(server):
    answer = server.plain()
    assert status_of(answer) == 200 and answer.endswith(b"anna")
    for line in (
        b"content-security-policy: default-src 'self'\r\n",
        b"referrer-policy: no-referrer\r\n",
        b"x-content-type-options: nosniff\r\n",
        b"cache-control: no-store\r\n",
    ):
        assert answer.count(line) == 1
    assert b"server:" not in answer.lower().split(b"\r\n\r\n")[0]
    assert server.asked(f"/{OTHER}/plain").endswith(b"bao")
    for host in ("127.0.0.1:8000", "LOCALHOST", f"localhost:{server.port}", "review.example"):
        assert status_of(server.asked(PLAIN, host=host)) == 200
    for headers in (
        ("Origin: http://127.0.0.1", "Sec-Fetch-Site: same-origin"),
        ("Origin: https://127.0.0.1",),  # a proxy with TLS before it
        ("Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate"),
    ):
        assert server.asked(SIZE, *headers, method="POST", body=b"12345").endswith(b"5")
    assert status_of(server.asked("/favicon.ico")) == 204
    followed = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate")
    assert status_of(server.asked(PLAIN, *followed)) == 200


def test_requests_that_break_rules_are_refused(server, subtests):
    for name, (sent, right) in raw_http.broken_requests(TOKEN, "plain").items():
        with subtests.test(name):
            before = server.said
            assert status_of(ask_raw(server.port, sent, seconds=3)) in right
            assert server.said.removeprefix(before).count("\n") <= 1
            assert server.plain().endswith(b"anna")


def test_a_body_has_a_limit_however_it_comes(server):
    most = QUICK["body_bytes"]
    assert server.asked(SIZE, method="POST", body=b"x" * most).endswith(b"%d" % most)
    assert status_of(server.asked(SIZE, method="POST", body=b"x" * (most + 1))) == 413
    chunked = request("POST", SIZE, "Transfer-Encoding: chunked", body=b" ").rstrip(b" ")
    chunk = b"2710\r\n" + b"x" * 10_000 + b"\r\n"
    whole = ask_raw(server.port, chunked, *[chunk] * 10, b"0\r\n\r\n")
    assert whole.endswith(b"%d" % most)
    assert status_of(ask_raw(server.port, chunked, *[chunk] * 11, b"0\r\n\r\n")) == 413
    # Without a token nothing of it is read before the answer.
    refused = f"POST /x/size HTTP/1.1\r\nHost: localhost\r\nContent-Length: {10**9}\r\n\r\n"
    assert status_of(ask_raw(server.port, refused.encode(), seconds=1)) == 404


def test_requests_one_after_the_other_and_faults_of_the_app(server):
    post = request("POST", SIZE, body=b"12345").replace(b"Connection: close\r\n", b"")
    answer = ask_raw(server.port, (KEPT + post) * 20 + request("GET", f"/{OTHER}/plain"))
    assert answer.count(b"HTTP/1.1 200 OK") == 41 and answer.endswith(b"bao")
    before = server.said
    answer = server.asked(f"/{TOKEN}/broken")
    assert status_of(answer) == 500 and b"secret" not in answer and b"Traceback" not in answer
    (line,) = server.said.removeprefix(before).splitlines()
    assert line == f"'GET /broken': RuntimeError: secret {TOKEN[:3]}"


def test_what_takes_too_long_ends(server):
    for path, status, least in (("slow", 503, 0.9), ("events", 200, 2.4)):
        start = time.monotonic()
        answer = server.asked(f"/{TOKEN}/{path}")
        assert status_of(answer) == status
        assert least < time.monotonic() - start < least + 10
    assert b"data: 9\n" in answer


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"GET /",
        request("POST", SIZE, "Content-Length: 90000"),
        request("POST", SIZE, "Transfer-Encoding: chunked"),
        KEPT,
    ],
    ids=["nothing", "half a line", "half a body", "half a chunk", "after an answer"],
)
def test_a_byte_now_and_then_does_not_hold_a_connection(server, first):
    start = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as slow:
        slow.sendall(first)
        slow.settimeout(0.2)
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - start < 20:
                with contextlib.suppress(TimeoutError):
                    if not slow.recv(65536):
                        break
                slow.sendall(b"a")
    assert time.monotonic() - start < 15


def test_400_half_open_connections_shut_nobody_out(server):
    before = server.said
    threads = state_of(server.process.pid)[1]
    with (
        half_open(server.port, 200, b""),
        half_open(server.port, 200, b"POST / HTTP/1.1\r\nHost: "),
    ):
        assert server.plain().endswith(b"anna")
        _, now, files = state_of(server.process.pid)
        assert files < QUICK["connections"] + 30 and now <= threads + 2
    assert server.said == before
    assert server.plain().endswith(b"anna")


def test_too_many_requests_at_a_time_are_told_to_come_again(server):
    with contextlib.ExitStack() as stack:
        for _ in range(QUICK["requests"]):
            asking = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            asking.sendall(request("GET", f"/{TOKEN}/events"))
            assert status_of(asking.recv(65536)) == 200
        answer = server.plain()
        assert status_of(answer) == 503 and b"retry-after: 5\r\n" in answer.lower()
    assert comes(lambda: server.plain().endswith(b"anna"))


def test_who_does_not_read_the_answer_is_left(tmp_path):
    # Half a minute in life; the same code with less patience.
    patience = "from cxrjax.apps import page_server\npage_server._STALL_SECONDS = 2.0\n"
    server = Server(tmp_path, patience, answer_seconds=60)
    assert server.plain().endswith(b"anna")

    def files():
        return state_of(server.process.pid)[2]

    start = files()
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            idle.sendall(request("GET", f"/{TOKEN}/large"))
        assert comes(lambda: files() == start + 3)
        assert comes(lambda: files() == start)
    # One who reads gets all of it.
    assert len(server.asked(f"/{TOKEN}/large")) > 30_000_000
    server.stop()
    assert "Traceback" not in server.said


def test_random_requests_leave_memory_threads_and_files_flat(server):
    raw_http.attack(server.port, 0, 200, TOKEN)  # warm
    before = state_of(server.process.pid)
    raw_http.attack(server.port, 1, 3000, TOKEN)
    memory, threads, files = state_of(server.process.pid)
    assert memory <= before[0] + 10 and threads <= before[1] + 2 and files <= before[2] + 2
    assert server.plain().endswith(b"anna")


def test_other_machines_are_warned_of(capsys):
    with page_server.listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        assert capsys.readouterr().err == ""
        assert page_server.link(listening, "127.0.0.1", "t") == f"http://127.0.0.1:{port}/t/"
        assert page_server.link(listening, "::1", "t") == f"http://[::1]:{port}/t/"
        with pytest.raises(UserError, match=rf"127\.0\.0\.1:{port}: cannot serve there: .*--port"):
            page_server.listen("127.0.0.1", port)
    with page_server.listen("0.0.0.0", 0):
        (line,) = capsys.readouterr().err.splitlines()
    assert "lets other machines in" in line and "TLS" in line and "--allowed_host" in line
    for host, port in (("127.0.0.1", 70_000), ("no.such.host.invalid", 0), ("a" * 100, 0)):
        with pytest.raises(UserError, match="cannot serve there"):
            page_server.listen(host, port)


def test_a_request_that_is_half_sent_does_not_hold_up_the_end(tmp_path):
    one = Server(tmp_path, body_seconds=60.0)
    with socket.create_connection(("127.0.0.1", one.port), timeout=10) as slow:
        slow.sendall(request("POST", SIZE, "Content-Length: 90000"))
        time.sleep(0.3)
        start = time.monotonic()
        one.stop()
    assert time.monotonic() - start < 5
