"""What no browser sends: bytes over a socket, requests that break rules, and a server's state."""

import contextlib
import random
import re
import socket
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.apps.rows import ROWS

BROKEN = Path(__file__).with_name("broken_requests.toml")


def ask_raw(port: int, *parts: bytes, seconds: float = 10) -> bytes:
    """All that the server answers until it closes or says nothing for so long."""
    answer = []
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        with contextlib.suppress(OSError):  # refused before all was sent
            for part in parts:
                connection.sendall(part)
        with contextlib.suppress(OSError):
            while more := connection.recv(65536):
                answer.append(more)
    return b"".join(answer)


def status_of(answer: bytes) -> int:
    """The first answer's status; 0 where the connection was closed without one."""
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    return int(found[1]) if found else 0


def request(method: str, path: str, *headers: str, body: bytes = b"", host="127.0.0.1") -> bytes:
    """A request after which the connection ends; the body has its length unless headers say."""
    lines = [f"{method} {path} HTTP/1.1", *([f"Host: {host}"] if host else [])]
    if body and not any("transfer-encoding" in line.lower() for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    lines += [*headers, "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def broken_requests(token: str, place: str) -> dict[str, tuple[bytes, list[int]]]:
    """Name -> bytes and the statuses that are right; 0: closed without an answer.

    Args:
        place: below the token, of something that a GET gives.
    """
    path = f"/{token}/{place}"
    words = {"token": token, "place": place, "path": path, "wrong": f"{token[:-1]}_"}
    found = {
        "a length of 5,000 digits": (request("POST", path, f"Content-Length: {'9' * 5000}"), [400]),
        "a header of 10 MB": (request("GET", path, f"X: {'a' * 10_000_000}"), [0, 400]),
        "a path of 1 MB": (request("GET", path + "a" * 1_000_000), [0, 400]),
        "100,000 headers": (request("GET", path, *["X: y"] * 100_000), [0, 400]),
        "only line ends": (b"\r\n" * 100_000, [0, 400]),
        "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)), [0, 400]),
    }
    for name, told in tomllib.loads(BROKEN.read_text()).items():
        right = told.pop("statuses")
        sent = told["raw"].format(**words).encode() if "raw" in told else _told(words, **told)
        found[name] = sent, right
    return found


def _told(words, method="GET", path="{path}", headers=(), body="", host="127.0.0.1") -> bytes:
    return request(method, path.format(**words), *headers, body=body.encode(), host=host)


def random_requests(seed: int, count: int, token: str):
    """So many requests: the words of requests in any order, and bytes changed in them."""
    draw = random.Random(seed)
    words = [word.format(token=token).encode("latin-1") for word in ROWS["words_of_requests"]]
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


def attack(port: int, seed: int, count: int, token: str) -> None:
    """Sends random requests, one a connection, and reads what is answered."""
    for sent in random_requests(seed, count, token):
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), timeout=5) as connection,
        ):
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass


@contextlib.contextmanager
def half_open(port: int, number: int, sent: bytes) -> Iterator[None]:
    """So many connections with the beginning of a request; some the server may close at once."""
    with contextlib.ExitStack() as stack:
        for _ in range(number):
            half = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            with contextlib.suppress(ConnectionError):
                half.sendall(sent)
        yield


def comes(condition: Callable[[], object], seconds: float = 60) -> bool:
    """Whether it does, within so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def state_of(process: int) -> tuple[int, int, int]:
    """Memory in MiB, threads and open files of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    memory = int(re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)[1]) // 1024
    threads = int(re.search(r"^Threads:\s+(\d+)", status, re.MULTILINE)[1])
    return memory, threads, len(list(Path(f"/proc/{process}/fd").iterdir()))
