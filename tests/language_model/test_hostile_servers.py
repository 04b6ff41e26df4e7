"""Servers that lie, stall, flood and echo: each attempt ends in time, in bounds, in one line."""

import base64
import gzip
import html
import itertools
import json
import logging
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import zlib

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.errors import ForeignError, UserError
from cxrjax.language_model import AnswerCache, Completion, Message, NoAnswer, Prices, Request
from cxrjax.language_model import completion as completion_module
from cxrjax.language_model.account import Account
from cxrjax.language_model.answer import MOST_CHARACTERS, most_bytes, read_completion
from tests.language_model.hostile import (
    USAGE,
    HostileServer,
    chunked,
    completion,
    reply,
    slowly,
)

KEY = "sk-very-secret-0123456789"
GOOD = completion()


class City(pydantic.BaseModel):
    city: str


def _request(text="Which city?", room=100) -> Request[City]:
    return Request((Message("user", (text,)),), City, room)


def _flood(head: bytes, piece: bytes, times: int = 10**6, every: float = 0.0):
    """A script of the server's own `pour`, bound when the test runs."""
    return lambda server: lambda to, _: (to.sendall(head), server.pour(to, piece, times, every))


_HEAD = b"HTTP/1.1 200 OK\r\n"
_MIB = b" " * 2**20
_LONG = b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n"
_ENDLESS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def _broken(body: bytes, cut: int = 10) -> bytes:
    return reply(body)[:-cut]


def _json(text: str) -> bytes:
    return reply(text.encode())


def _said(content: str) -> bytes:
    """A completion whose content is this JSON, as it stands."""
    return reply(GOOD.replace(rb'"{\"city\": \"Hue\"}"', content.encode()))


def _encoded(name: str, content: bytes) -> bytes:
    return reply(content, f"Content-Encoding: {name}")


# Name: what it sends (bytes, a script, or what makes one of the server), and what comes of it: a
# category of NoAnswer, words of a UserError, or "Hue" where the answer can be used all the same.
SERVERS = {
    # Time.
    "a byte of the head every 50 ms": (slowly(reply(GOOD), 0.05), "timeout"),
    "a byte of the body every 50 ms": (slowly(reply(GOOD), 0.02), "timeout"),
    "a header line every 20 ms": (_flood(_HEAD, b"X: y\r\n", every=0.02), "timeout"),
    "a chunk every 20 ms": (_flood(_ENDLESS, b"1\r\n \r\n", every=0.02), "timeout"),
    "100 Continue for ever": (_flood(b"", b"HTTP/1.1 100 C\r\n\r\n"), "timeout"),
    "102 every 20 ms": (_flood(b"", b"HTTP/1.1 102 P\r\n\r\n", every=0.02), "timeout"),
    "events as if streaming": (_flood(_ENDLESS, b"9\r\ndata: {}\n\r\n", every=0.02), "timeout"),
    "silence": (lambda to, _: time.sleep(1.5), "timeout"),
    "a head and silence": (lambda to, _: (to.sendall(_LONG), time.sleep(1.5)), "timeout"),
    "an error's body for ever": (
        _flood(b"HTTP/1.1 500 E\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n", every=0.02),
        "timeout",
    ),
    # Size.
    "a gigabyte, said before": (_flood(_LONG, _MIB, 1024), "http_error"),
    "a gigabyte in chunks": (_flood(_ENDLESS, b"100000\r\n" + _MIB + b"\r\n"), "http_error"),
    "a gigabyte of HTTP/1.0": (_flood(b"HTTP/1.0 200 OK\r\n\r\n", _MIB, 1024), "http_error"),
    "a gigabyte of an error": (
        _flood(b"HTTP/1.1 500 E\r\nContent-Length: 1073741824\r\n\r\n", _MIB, 1024),
        "http_error",
    ),
    "chunks of a byte": (_flood(_ENDLESS, b"1\r\n \r\n" * 10_000), "timeout"),
    "a chunk of 2^80": (_ENDLESS + b"100000000000000000000\r\nx", "connection"),
    "a chunk of -1": (_ENDLESS + b"-1\r\nx\r\n", "connection"),
    "a chunk's extension for ever": (_flood(_ENDLESS + b"1;", b"a" * 2**16), "connection"),
    "trailers for ever": (_flood(_ENDLESS + b"0\r\n", b"X: y\r\n" * 9999), "connection"),
    "headers for ever": (_flood(_HEAD, b"X: y\r\n" * 9999), "connection"),
    "a header for ever": (_flood(_HEAD + b"X: ", b"y" * 2**16), "connection"),
    "a status line for ever": (_flood(b"HTTP/1.1 200 ", b"O" * 2**16), "connection"),
    "2,000 cookies": (reply(GOOD, *(f"Set-Cookie: a{n}=b" for n in range(2000))), "Hue"),
    "a gzip bomb": (_encoded("gzip", gzip.compress(_MIB * 100, 9)), "http_error"),
    "a deflate bomb": (_encoded("deflate", zlib.compress(_MIB * 100)), "http_error"),
    "a br body": (_encoded("br", b"\x1b\xff\xff"), "http_error"),
    "a zstd body": (_encoded("zstd", b"\x28\xb5\x2f\xfd"), "http_error"),
    "gzip four times": (_encoded("gzip, gzip, gzip, gzip", b"x"), "http_error"),
    "an encoding of its own": (_encoded("x-mine", GOOD), "http_error"),
    "an error as gzip": (
        reply(gzip.compress(b"x"), "Content-Encoding: gzip", status="500 E"),
        "http_error",
    ),
    "identity, said": (_encoded("identity", GOOD), "Hue"),
    "a transfer encoding of its own": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "connection",
    ),
    # The protocol.
    "nothing": (b"", "connection"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n", "connection"),
    "HTTP/9.9": (b"HTTP/9.9 200 OK\r\n\r\n", "http_error"),
    "zeros": (b"\0" * 4096, "connection"),
    "half a head": (b"HTTP/1.1 200 OK\r\nContent-Le", "connection"),
    "half a body": (_broken(GOOD), "connection"),
    "half of the chunks": (chunked(GOOD)[:-8], "connection"),
    "a length below zero": (_HEAD + b"Content-Length: -1\r\n\r\n{}", "connection"),
    "a length of 10^400": (_HEAD + b"Content-Length: 1" + b"0" * 400 + b"\r\n\r\n", "connection"),
    "a length that is none": (_HEAD + b"Content-Length: many\r\n\r\n", "connection"),
    "two lengths": (reply(GOOD, "Content-Length: 5"), "connection"),
    "a header without a name": (_HEAD + b": x\r\n\r\n", "connection"),
    "a NUL in a header": (_HEAD + b"X: \0\r\n\r\n", "connection"),
    "a second answer at once": (reply(GOOD) + reply(completion(content="another")), "Hue"),
    "HTTP/1.0 without a length": (b"HTTP/1.0 200 OK\r\n\r\n" + GOOD, "Hue"),
    "100 before the answer": (b"HTTP/1.1 100 Continue\r\n\r\n" + reply(GOOD), "Hue"),
    "101": (b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\n\r\n", "connection"),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", "http_error"),
    "302 to itself": (reply(b"", "Location: /v1/chat/completions", status="302 F"), "http_error"),
    "302 to a bad address": (reply(b"", "Location: http://[::1", status="302 F"), "http_error"),
    "307 to a file": (reply(b"", "Location: file:///etc/passwd", status="307 T"), "http_error"),
    "304": (b"HTTP/1.1 304 N\r\n\r\n", "http_error"),
    "418": (reply(b"\x1b[2J\x07", status="418 T"), "http_error"),
    "600": (reply(b"", status="600 X"), "http_error"),
    "999": (reply(b"", status="999 X"), "http_error"),
    "000": (reply(b"", status="000 X"), ("connection", "http_error")),
    "an error of deep JSON": (reply(b'{"error":' * 10_000, status="400 B"), "http_error"),
    "an error that is a list": (reply(b'{"error": [1]}', status="400 B"), "http_error"),
    "an error without words": (reply(b'{"error": {"message": 5}}', status="400 B"), "http_error"),
    # When to come again.
    "again in -5": (reply(b"", "Retry-After: -5", status="429 B"), "http_error"),
    "again in nan": (reply(b"", "Retry-After: nan", status="429 B"), "http_error"),
    "again in inf": (reply(b"", "Retry-After: inf", status="429 B"), "inf s of rest"),
    "again in 10^400": (reply(b"", "Retry-After: 1" + "0" * 400, status="503 B"), "s of rest"),
    "again in 9999": (
        reply(b"", "Retry-After: Fri, 31 Dec 9999 23:59:59 GMT", status="503 B"),
        "s of rest",
    ),
    "again out of range": (
        reply(b"", "Retry-After: Fri, 31 Dec 9999 23:59:59 -2359", status="503 B"),
        ("http_error", "s of rest"),
    ),
    "again in the year 0": (
        reply(b"", "Retry-After: Fri, 31 Dec 0000 23:59:59 GMT", status="503 B"),
        "http_error",
    ),
    "again tomorrow, in words": (reply(b"", "Retry-After: morgen", status="503 B"), "http_error"),
    # JSON.
    "an empty body": (reply(b""), "http_error"),
    "a page": (_json("<html>proxy</html>"), "http_error"),
    "null": (_json("null"), "http_error"),
    "a list": (_json("[]"), "http_error"),
    "a number of 401 digits": (_json("1" + "0" * 400), "http_error"),
    "deep lists": (_json("[" * 100_000), "http_error"),
    "deep objects": (_json('{"a":' * 100_000), "http_error"),
    "wide lists": (_json("[" + "{}," * 300_000 + "{}]"), "http_error"),
    "UTF-16": (reply(GOOD.decode().encode("utf-16")), "http_error"),
    "Latin 1": (_said('"\xe9"').replace(b"\xc3\xa9", b"\xe9\xe9"), "http_error"),
    "half a pair": (_said(r'"\ud800"'), "http_error"),
    "no choices": (reply(completion(choices=[])), "http_error"),
    "choices that are none": (reply(completion(choices=None)), "http_error"),
    "choices of text": (reply(completion(choices=["x"])), "http_error"),
    "choices that are an object": (reply(completion(choices={"0": 1})), "http_error"),
    "100,000 choices": (
        reply(completion(choices=[json.loads(GOOD)["choices"][0]] + [0] * 100_000)),
        "Hue",
    ),
    "no message": (reply(completion(choice={"message": None})), "http_error"),
    "a message of text": (reply(completion(choice={"message": "Hue"})), "http_error"),
    "content that is a list": (_said('["Hue"]'), "http_error"),
    "content that is a number": (_said("5"), "http_error"),
    "content that is an object": (_said('{"city": "Hue"}'), "http_error"),
    "content that is true": (_said("true"), "http_error"),
    "content of a million letters": (_said('"' + "a" * 2**20 + '"'), "http_error"),
    "content of deep JSON": (_said(json.dumps('{"city":' * 20_000 + "}")), "invalid_json"),
    "content of many keys": (
        _said(json.dumps(json.dumps({str(n): n for n in range(15_000)}))),
        "invalid_content",
    ),
    "content of a huge number": (
        _said(json.dumps('{"city": 1' + "0" * 5000 + "}")),
        "invalid_json",
    ),
    "content of half a pair": (_said(json.dumps(r'{"city": "\ud800"}')), "invalid_json"),
    "a reason that is a number": (reply(completion(choice={"finish_reason": 5})), "http_error"),
    "a reason that is a list": (reply(completion(choice={"finish_reason": []})), "http_error"),
    "a long reason": (reply(completion(choice={"finish_reason": "x" * 10_000})), "http_error"),
    "a refusal that is true": (reply(completion(message={"refusal": True})), "http_error"),
    "a refusal that is a list": (reply(completion(message={"refusal": ["no"]})), "http_error"),
    "a model that is a number": (reply(completion(model=5)), "http_error"),
    "a model's long name": (reply(completion(model="m" * 10_000)), "http_error"),
    "log-probabilities of NaN": (
        reply(completion(choice={"logprobs": {"content": [{"logprob": float("nan")}]}})),
        "Hue",
    ),
    "log-probabilities of text": (reply(completion(choice={"logprobs": "many"})), "Hue"),
    # The key, echoed.
    "the key as an answer": (reply(completion(content=json.dumps({"city": KEY}))), "http_error"),
    "the key as a model": (reply(completion(model=KEY)), "http_error"),
    "the key as a status": (reply(b"", status=f"401 {KEY}"), "HTTP 401"),
    "the key as a header": (f"HTTP/1.1 200 {KEY}\0\r\nX{KEY} {KEY}\r\n\r\n".encode(), "connection"),
}


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    monkeypatch.setattr(completion_module, "MAX_RETRY_AFTER", 1.0)


@pytest.mark.parametrize("name", SERVERS)
def test_each_attempt_ends_in_time_in_bounds_and_in_one_line(client, name, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    sends, outcome = SERVERS[name]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    there = HostileServer(b"")
    if not isinstance(sends, bytes):
        made = sends.__code__.co_argcount == 1
        there._script = sends(there) if made else sends
    else:
        there = HostileServer(sends)
    with there:
        timeout = 0.2 if outcome == "timeout" else 10.0  # the others end long before
        asked = client(there, timeout=timeout, attempts=2, answers=1, prices=Prices(1, 1))
        began = time.monotonic()
        try:
            found = asked.ask(_request()).city
        except NoAnswer as failure:
            error, found = failure, failure.category
            told = failure.detail
        except UserError as failure:
            error = failure
            found = told = str(failure)
        took = time.monotonic() - began
    kept = (tmp_path / "answers.jsonl").read_text()
    if found != "Hue":
        assert "\n" not in told and len(told) < 700 and told.isprintable()
        assert any(one in found for one in ([outcome] if isinstance(outcome, str) else outcome))
        while error is not None:  # nor is it anywhere in the chain
            assert KEY not in repr(error) + str(error)
            error = error.__cause__ or error.__context__
        assert not kept or outcome.startswith("invalid")
    else:
        assert outcome == "Hue"
        assert asked.ask(_request()).city == "Hue" and len(there.requests) == 1
    assert KEY not in kept + caplog.text
    assert took < 2.0  # two attempts of 0.2 s, and a pause
    assert there.sent < 64 * 2**20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024
    account = asked.account.to_json()
    assert account["requests"] == len(there.requests)  # each was sent, and counted
    assert 0 <= account["cost"] < 1 and 0 <= account["unmetered_cost_at_most"] < 1


@pytest.mark.parametrize("stall", ["in TLS", "in sending"])
def test_a_stall_before_the_answer_ends_in_time(client, stall):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and reads nothing
        scheme = "https" if stall == "in TLS" else "http"
        url = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/v1"
        asked = client(silent, base_url=url, timeout=0.3, attempts=1, prices=Prices(1, 1))
        began = time.monotonic()
        with pytest.raises(NoAnswer, match="timeout"):
            asked.ask(_request("x" * 2**24))
        assert time.monotonic() - began < 2.0


def test_a_body_has_a_limit_whatever_room_is_asked_for():
    assert most_bytes(100) < 2 * 2**20 and most_bytes(10**12) == 2**24


def test_there_are_enough_of_them():
    assert len(SERVERS) >= 60


def test_each_answer_has_a_connection_of_its_own(client):
    """What a server sends too much is no answer to the next question."""
    two = reply(GOOD) + reply(completion(content='{"city": "Saigon"}'))
    with HostileServer(two) as there:
        asked = client(there)
        assert [asked.ask(_request(str(n))).city for n in range(3)] == ["Hue"] * 3


def test_rests_add_up_until_the_server_answers(client, monkeypatch):
    busy = reply(b"", "Retry-After: 0.4", status="429 B")
    with HostileServer(busy) as there:
        asked = client(there, attempts=9)
        with pytest.raises(UserError, match="s of rest"):
            asked.ask(_request())
    assert len(there.requests) == 3  # 0.4 s, 0.8 s, and 1.2 s would be more than 1
    turns = itertools.cycle([busy, reply(GOOD)])
    with HostileServer(lambda to, _: to.sendall(next(turns))) as there:
        asked = client(there)
        assert [asked.ask(_request(str(n))).city for n in range(4)] == ["Hue"] * 4


# Stopping.


@pytest.mark.parametrize("how", ["interrupt", "drop"])
def test_a_stop_ends_what_is_under_way(client, how):
    def items():
        yield from range(2)
        while len(there.requests) < 2:
            time.sleep(0.01)
        raise KeyboardInterrupt

    stall = slowly(reply(GOOD), 1.0)
    with HostileServer(lambda to, n: to.sendall(reply(GOOD)) if n == 0 else stall(to, n)) as there:
        asked = client(there, timeout=60, concurrency=1, prices=Prices(1, 1))
        began = time.monotonic()
        if how == "interrupt":
            with pytest.raises(KeyboardInterrupt):
                list(asked.map(lambda n: asked.ask(_request(str(n))), items()))
        else:
            results = asked.map(lambda n: asked.ask(_request(str(n))), range(9))
            next(results)
            results.close()
        assert time.monotonic() - began < 3.5
        account = asked.account.to_json()
        assert account["answers"] == 1 and account["unmetered_requests"] == 1
    with HostileServer(reply(GOOD)) as there:  # and it can be asked again
        assert client(there).ask(_request("again")).city == "Hue"


_RUN = """
import sys
from pathlib import Path
import pydantic
from cxrjax.language_model import AnswerCache, Client, Message, Request, Settings

class City(pydantic.BaseModel):
    city: str

client = Client(Settings(sys.argv[1], "m", timeout=60), AnswerCache(Path(sys.argv[2])))
ask = [Request((Message("user", (str(n),)),), City) for n in range(9)]
print(list(client.map(client.ask, ask)) if sys.argv[3] == "map" else client.ask(ask[0]))
"""


@pytest.mark.parametrize(("how", "within"), [("map", 6.0), ("map twice", 1.9), ("ask", 6.0)])
def test_ctrl_c_ends_a_process_that_a_server_holds(tmp_path, how, within):
    with HostileServer(slowly(reply(GOOD), 1.0)) as there:
        command = [sys.executable, "-c", _RUN, there.url, str(tmp_path / "a"), how.split()[0]]
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        while not there.requests:
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(0.1)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        if how == "map twice":
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in process.communicate(timeout=30)[1]
        assert time.monotonic() - began < within


# Usage.

_LIES = {
    "none": None,
    "text": "many",
    "a list": [1, 2, 3],
    "empty": {},
    "below zero": {"prompt_tokens": -100, "completion_tokens": -20, "total_tokens": -120},
    "output below zero": USAGE | {"completion_tokens": -(10**6), "total_tokens": -(10**6)},
    "input below zero": USAGE | {"prompt_tokens": -(10**6)},
    "total below zero": USAGE | {"total_tokens": -1},
    "total below its parts": USAGE | {"total_tokens": 100},
    "zero": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    "no output": USAGE | {"completion_tokens": 0, "total_tokens": 100},
    "no input": {"completion_tokens": 20, "total_tokens": 20},
    "input alone": {"prompt_tokens": 100},
    "floats": {"prompt_tokens": 1.5, "completion_tokens": 0.1, "total_tokens": 1.6},
    "infinite": USAGE | {"completion_tokens": float("-inf")},
    "NaN": {"prompt_tokens": float("nan"), "completion_tokens": float("nan")},
    "text of numbers": {"prompt_tokens": "100", "completion_tokens": "20", "total_tokens": "120"},
    "booleans": {"prompt_tokens": True, "completion_tokens": True, "total_tokens": True},
    "nulls": {"prompt_tokens": None, "completion_tokens": None, "total_tokens": None},
    "10^300": {"prompt_tokens": 10**300, "completion_tokens": 1, "total_tokens": 1},
    "2^63": USAGE | {"completion_tokens": 2**63, "total_tokens": 2**64},
}


@pytest.mark.parametrize("lie", _LIES)
def test_usage_that_cannot_be_is_booked_at_its_most(client, lie):
    bound = (_request().text_bytes() + 100) / 1e6
    with HostileServer(reply(completion(usage=_LIES[lie]))) as there:
        asked = client(there, prices=Prices(1, 1), max_cost=3.5 * bound)
        for number in range(3):
            assert asked.ask(_request(f"Which city{number}")).city == "Hue"
            account = asked.account.to_json()
            assert account["unmetered_requests"] == number + 1 and account["cost"] == 0
            assert account["unmetered_cost_at_most"] == pytest.approx(bound * (number + 1))
        with pytest.raises(UserError, match="stopped before --max_cost"):
            asked.ask(_request("Which city4"))
    assert len(there.requests) == 3  # no answer was thrown away, and none booked twice


@pytest.mark.parametrize("lie", _LIES)
def test_nor_is_it_believed_of_an_answer_without_words(lie):
    found = read_completion(completion(content=None, usage=_LIES[lie]), "m")
    told = (found.input_tokens, found.output_tokens)
    assert told == ((100, 0) if lie == "no output" else (None, None))


@pytest.mark.parametrize(
    ("usage", "booked"),
    [
        (USAGE, (100, 20)),
        ({"prompt_tokens": 100, "completion_tokens": 20}, (100, 20)),
        (USAGE | {"total_tokens": None}, (100, 20)),
        ({"prompt_tokens": 100, "total_tokens": 150}, (100, 50)),
        (USAGE | {"completion_tokens": 9_000, "total_tokens": 9_100}, (100, 9_000)),
    ],
)
def test_usage_that_can_be_is_booked_as_told(client, usage, booked):
    with HostileServer(reply(completion(usage=usage))) as there:
        asked = client(there)
        asked.ask(_request())
    account = asked.account.to_json()
    assert (account["input_tokens"], account["output_tokens"]) == booked
    assert account["unmetered_requests"] == 0 and len(there.requests) == 1


def test_a_count_above_the_reservation_ends_the_run(client):
    usage = {"prompt_tokens": 100, "completion_tokens": 10**6, "total_tokens": 10**6 + 100}
    with HostileServer(reply(completion(usage=usage))) as there:
        asked = client(there, prices=Prices(1, 1), max_cost=0.5)
        assert asked.ask(_request()).city == "Hue"
        with pytest.raises(UserError, match=r"stopped before --max_cost=0\.5: spent 1\.0001"):
            asked.ask(_request("another"))


# What is kept.

_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([-1, 0, 1, 10**400, 10**8, "stop", "length"])
)
_anything = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


def _fields(usual, **strategies):
    """An object of these fields, each usual, of the strategy, or missing."""
    return st.fixed_dictionaries(
        {}, optional={k: st.just(usual.get(k)) | s for k, s in strategies.items()}
    )


_usages = _fields(USAGE, **dict.fromkeys(USAGE, _anything)) | _anything
_message = _fields({"content": "Hue"}, content=_anything, refusal=_anything)
_tokens = _fields({"content": [{"logprob": -0.5}]}, content=_anything)
_choice = _fields(
    {"message": {"content": "Hue"}, "finish_reason": "stop"},
    message=_message | _anything,
    finish_reason=_anything,
    logprobs=_tokens | _anything,
)
_answers = _fields(
    {"choices": [{"message": {"content": "Hue"}}], "usage": USAGE},
    choices=st.lists(_choice | _anything, max_size=2) | _anything,
    model=_anything,
    usage=_usages,
)


@settings(max_examples=300, deadline=None)
@given(answer=_answers)
def test_what_is_kept_can_be_read_again_and_cost_never_falls(answer, tmp_path_factory):
    body = json.dumps(answer).encode()
    try:
        found = read_completion(body, "m")
    except ForeignError:
        return
    path = tmp_path_factory.getbasetemp() / "random.jsonl"
    path.unlink(missing_ok=True)
    for _ in range(2):
        cache = AnswerCache(path)
        cache.put("a", found)
        cache.close()
    cache = AnswerCache(path)
    assert cache.get("a") == found and "a" in cache
    cache.close()
    account = Account(Prices(1, 1), None)
    reserved = account.reserve(100, 50)
    account.settle(reserved, found)
    account.replay(found)
    spent = account.to_json()
    costs = (spent["cost"], spent["unmetered_cost_at_most"], spent["cached_cost"])
    assert all(0 <= cost < 100 for cost in costs) and sum(costs) > 0


def test_the_longest_answer_fits_the_cache(tmp_path):
    cache = AnswerCache(tmp_path / "a")
    longest = Completion("\U0001f600" * MOST_CHARACTERS, "stop", None, "m", 1, 1)
    cache.put("a", longest)
    cache.close()
    cache = AnswerCache(tmp_path / "a")
    assert cache.get("a") == longest
    cache.close()


_KEPT = {
    "text": "x",
    "finish_reason": "stop",
    "refusal": None,
    "model": "m",
    "input_tokens": 1,
    "output_tokens": 2,
    "logprob": None,
}


@pytest.mark.parametrize(
    "poison",
    [
        {"text": ["x"]},
        {"text": 5},
        {"text": None},
        {"finish_reason": []},
        {"refusal": True},
        {"model": {}},
        {"input_tokens": -5},
        {"output_tokens": "many"},
        {"output_tokens": 1e400},
        {"output_tokens": 10**300},
        {"input_tokens": True},
        {"text": "x" * (MOST_CHARACTERS + 1)},
    ],
)
def test_a_poisoned_line_of_an_old_cache_counts_as_not_there(client, tmp_path, capsys, poison):
    path = tmp_path / "answers.jsonl"
    with HostileServer(reply(GOOD)) as there:
        asked = client(there)
        asked.ask(_request())
        asked.ask(_request("another"))
        asked.close()
        first, second = (json.loads(line) for line in path.read_text().splitlines())
        lines = (_KEPT | {"key": first["key"]} | poison, second)
        path.write_text("".join(json.dumps({"key": one["key"]} | one) + "\n" for one in lines))
        capsys.readouterr()
        again = client(there)
        told = capsys.readouterr().err
        assert (
            told.count("\n") == 1 and "answers.jsonl: 1 lines, each a cached answer, cannot" in told
        )
        assert again.ask(_request("another")).city == "Hue" and len(there.requests) == 2
        assert again.estimate([_request()]).requests == 1
        assert again.ask(_request()).city == "Hue" and len(there.requests) == 3
        assert client(there).ask(_request()).city == "Hue" and len(there.requests) == 3
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("text", ['"\\ud800"', "[" * 10_000, "1" + "0" * 5000])
def test_a_line_of_a_cache_that_is_no_json_is_named(tmp_path, text):
    path = tmp_path / "a.jsonl"
    path.write_text('{"key": "a", "text": ' + text + "}\n")
    with pytest.raises(UserError, match=r"a\.jsonl:1: no cached answer"):
        AnswerCache(path)


# The key.

_ECHOES = {
    "whole": KEY,
    "in capitals": KEY.upper(),
    "over two lines": KEY[:9] + "\n" + KEY[9:],
    "over four lines": "\r\n  ".join(KEY[at : at + 7] for at in range(0, len(KEY), 7)),
    "letter by letter": " ".join(KEY),
    "its end": "..." + KEY[-10:],
    "its beginning": KEY[:12] + "***",
    "for an address": urllib.parse.quote(KEY, safe="").replace("-", "%2D"),
    "for an address, whole": "".join(f"%{ord(one):02x}" for one in KEY),
    "JSON": "".join(f"\\u{ord(one):04x}" for one in KEY),
    "JSON of JSON": json.dumps(json.dumps(KEY)),
    "HTML": html.escape(KEY).replace("-", "&#45;"),
    "HTML, whole": "".join(f"&#{ord(one)};" for one in KEY),
    "HTML, hexadecimal": "".join(f"&#x{ord(one):x};" for one in KEY),
    "hexadecimal": KEY.encode().hex(),
    "base64": base64.b64encode(KEY.encode()).decode(),
    "basic": base64.b64encode(f"user:{KEY}".encode()).decode(),
    "basic of another": base64.b64encode(f"u:{KEY}:x".encode()).decode(),
    "base64 for addresses": base64.urlsafe_b64encode(f"ab{KEY}".encode()).decode(),
    "repr": repr(KEY.encode()),
}


@pytest.mark.parametrize("echo", _ECHOES)
@pytest.mark.parametrize("status", ["401 U", "400 B", "500 E", "200 OK"])
def test_an_echo_of_the_key_is_nowhere(client, tmp_path, caplog, echo, status):
    caplog.set_level(logging.DEBUG)
    said = _ECHOES[echo]
    error = json.dumps({"error": {"message": f"no such key: {said}, sorry"}}).encode()
    there = HostileServer(reply(error, status=status))
    with there, pytest.raises((UserError, NoAnswer)) as failure:
        client(there, attempts=1).ask(_request())
    written = str(failure.value) + caplog.text + (tmp_path / "answers.jsonl").read_text()
    for text in (said, " ".join(said.split()), KEY, KEY[-10:], KEY[:12]):
        assert text not in written and json.dumps(text)[1:-1] not in written
    assert "they repeat the key" in str(failure.value)


def test_ordinary_words_are_shown(client):
    error = json.dumps({"error": {"message": "the prompt is too long, very long"}}).encode()
    there = HostileServer(reply(error, status="400 B"))
    with there, pytest.raises(NoAnswer, match="the prompt is too long, very long"):
        client(there, attempts=1).ask(_request())
    with HostileServer(reply(completion(content='{"city": "Very secret"}'))) as there:
        assert client(there).ask(_request("another")).city == "Very secret"
