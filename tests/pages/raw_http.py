"""What no browser sends: bytes over a socket, requests that break rules, and a server's state."""

import contextlib
import random
import re
import socket
from pathlib import Path


def ask_raw(port: int, *parts: bytes, seconds: float = 10) -> bytes:
    """All that the server answers until it closes or says nothing for so long."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        with contextlib.suppress(OSError):  # refused before all was sent
            for part in parts:
                connection.sendall(part)
        with contextlib.suppress(OSError):
            while more := connection.recv(65536):
                answer += more
    return answer


def status_of(answer: bytes) -> int | None:
    """The first answer's status; None where the connection was closed without one."""
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    return int(found[1]) if found else None


def request(method: str, path: str, *headers: str, body: bytes = b"", host="127.0.0.1") -> bytes:
    """A request after which the connection ends; the body has its length unless headers say."""
    lines = [f"{method} {path} HTTP/1.1", *([f"Host: {host}"] if host else [])]
    if body and not any("transfer-encoding" in line.lower() for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    lines += [*headers, "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def broken_requests(token: str, place: str) -> dict[str, tuple[bytes, set[int | None]]]:
    """Name -> bytes and the statuses that are right; None: closed without an answer.

    Args:
        place: below the token, of something that a GET gives.
    """
    path = f"/{token}/{place}"
    both = request(
        "POST", path, "Transfer-Encoding: chunked", "Content-Length: 5", body=b"0\r\n\r\n"
    )
    return {
        "HTTP/0.9": (f"GET {path}\r\n\r\n".encode(), {400}),
        "HTTP/1.0 without Host": (f"GET {path} HTTP/1.0\r\n\r\n".encode(), {400}),
        "no Host": (request("GET", path, host=""), {400}),
        "two Hosts": (request("GET", path, "Host: localhost"), {400}),
        "Host of others": (request("GET", path, host="attacker.example"), {400}),
        "Host with our name in it": (request("GET", path, host="127.0.0.1.evil.example"), {400}),
        "Host with a path": (request("GET", path, host="127.0.0.1/x"), {400}),
        "empty Host": (request("GET", path, "Host:", host=""), {400}),
        "Host with a dot": (request("GET", path, host="localhost."), {400}),
        "Origin of others": (request("POST", path, "Origin: http://evil.example"), {403}),
        "Origin null": (request("POST", path, "Origin: null"), {403}),
        "Origin on another port": (request("POST", path, "Origin: http://127.0.0.1:1"), {403}),
        "a GET with Origin": (request("GET", path, "Origin: http://evil.example"), {403}),
        "from another site": (request("GET", path, "Sec-Fetch-Site: cross-site"), {403}),
        "from another port": (request("GET", path, "Sec-Fetch-Site: same-site"), {403}),
        "a form of another site": (
            request("POST", path, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"),
            {403},
        ),
        "no token": (request("GET", f"/{place}"), {404}),
        "wrong token": (request("GET", f"/{token[:-1]}_/{place}"), {404}),
        "token and more": (request("GET", f"/{token}x/{place}"), {404}),
        "token twice": (request("GET", f"/{token}{path}"), {404}),
        "two slashes": (request("GET", f"/{path}"), {404}),
        "absolute": (request("GET", f"http://evil.example{path}"), {404}),
        "CONNECT": (request("CONNECT", "evil.example:443"), {404}),
        "climbing": (request("GET", f"/{token}/%2e%2e/%2e%2e/etc/passwd"), {404}),
        "climbing in the open": (request("GET", f"/{token}/../../etc/passwd"), {404}),
        "NUL in the path": (request("GET", f"{path}%00"), {404}),
        "half a character in the path": (request("GET", f"{path}%ED%A0%80"), {404}),
        "percent": (request("GET", f"{path}%%%zz"), {404}),
        "unknown method": (request("BREW", path), {404, 405}),
        "lengths both ways": (both, {400}),
        "two lengths": (request("POST", path, "Content-Length: 1", body=b"12"), {400}),
        "no length": (request("POST", path, "Content-Length: x"), {400}),
        "negative length": (request("POST", path, "Content-Length: -1"), {400}),
        "a length of 5,000 digits": (request("POST", path, f"Content-Length: {'9' * 5000}"), {400}),
        "a length of 20 digits": (request("POST", path, f"Content-Length: {'9' * 20}"), {413}),
        "a chunk without a number": (
            request("POST", path, "Transfer-Encoding: chunked", body=b"zz\r\nab\r\n"),
            {None, 400, 404, 405},
        ),
        "a chunk of 2^70": (
            request("POST", path, "Transfer-Encoding: chunked", body=b"4" + b"0" * 17 + b"\r\nab"),
            {None, 400, 404, 405, 413},
        ),
        "a coding that nobody knows": (
            request("POST", path, "Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"),
            {400, 501},
        ),
        "a header of 10 MB": (request("GET", path, f"X: {'a' * 10_000_000}"), {None, 400}),
        "a path of 1 MB": (request("GET", path + "a" * 1_000_000), {None, 400}),
        "100,000 headers": (request("GET", path, *["X: y"] * 100_000), {None, 400}),
        "a folded header": (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\r\n b\r\n\r\n", {400, 404}),
        "NUL in a header": (request("GET", path, "X: a\0b"), {400}),
        "only line ends": (b"\r\n" * 100_000, {None, 400}),
        "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)), {None, 400}),
        "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400}),
        "WebSocket": (
            request("GET", f"/{token}/no", "Upgrade: websocket", "Connection: upgrade"),
            {404},
        ),
    }


def random_requests(seed: int, count: int, token: str):
    """So many requests: the words of requests in any order, and bytes changed in them."""
    draw = random.Random(seed)
    words = [b"GET ", b"POST ", b" HTTP/1.1\r\n", b"Host: 127.0.0.1\r\n", b"\r\n", b"\r\n\r\n"]
    words += [f"/{token}/".encode(), b"ratings", b"hand_in", b"upload", b"gradio_api/queue/join"]
    words += [b"Content-Length: 7\r\n", b"Transfer-Encoding: chunked\r\n", b"5\r\nabcde\r\n", b"0"]
    words += [
        b'{"a": ',
        b"[" * 300,
        b"Expect: 100-continue\r\n",
        b"Origin: null\r\n",
        b"\0",
        b"%00",
    ]
    words += [
        b"Connection: keep-alive\r\n",
        b"Range: bytes=0-,5-2\r\n",
        b"\xed\xa0\x80",
        b"?x=" * 9,
    ]
    good = request("POST", f"/{token}/ratings", body=b'{"question_id": "q0"}')
    for _ in range(count):
        if draw.random() < 0.5:
            yield b"".join(draw.choices(words, k=draw.randrange(1, 14)))
            continue
        damaged = bytearray(good * draw.choice((1, 1, 3)))
        for _ in range(draw.randrange(1, 6)):
            at = draw.randrange(len(damaged))
            damaged[at : at + draw.choice((0, 1, 1, 5))] = draw.randbytes(draw.choice((0, 1, 4)))
        yield bytes(damaged)


def state_of(process: int) -> tuple[int, int, int]:
    """Memory in MiB, threads and open files of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    memory = int(re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)[1]) // 1024
    threads = int(re.search(r"^Threads:\s+(\d+)", status, re.MULTILINE)[1])
    return memory, threads, len(list(Path(f"/proc/{process}/fd").iterdir()))
