"""Servers that lie, stall, flood and echo: each attempt ends in time, in bounds, in one line."""

import base64
import dataclasses
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
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.errors import ForeignError, UserError
from cxrjax.language_model import completion as completion_module
from cxrjax.language_model.account import Account, AnswerCache
from cxrjax.language_model.answer import MOST_CHARACTERS, Completion, most_bytes, read_completion
from cxrjax.language_model.request import NoAnswer
from cxrjax.language_model.settings import Prices
from tests.language_model.conftest import KEY, request
from tests.language_model.hostile import (
    USAGE,
    Flood,
    HostileServer,
    chunked,
    completion,
    reply,
    slowly,
)

GOOD = completion()
_HERE = Path(__file__).parent


def _said(content: str) -> bytes:
    """A completion whose content is this JSON, as it stands."""
    return reply(GOOD.replace(rb'"{\"city\": \"Hue\"}"', content.encode()))


def _written(row):
    """What a server of hostile_servers.jsonl sends."""
    size = row.get("size", 1)
    if "piece" in row:
        piece = row["piece"].encode() * size
        return Flood(row["head"].encode(), piece, row.get("times", 10**6), row.get("every", 0.0))
    if "raw" in row:
        return row["raw"].encode("latin-1") * size
    if "said" in row:
        return _said(row["said"])
    if "completion" in row:
        body = completion(**row["completion"])
    else:
        body = row.get("body", "").encode("latin-1") * size
    return reply(body, *row.get("headers", ()), status=row.get("status", "200 OK"))


# Name: what it sends (bytes or a script), and what comes of it: a category of NoAnswer, words of a
# UserError, or "Hue" where the answer can be used all the same.
_ROWS = map(json.loads, (_HERE / "hostile_servers.jsonl").read_text().splitlines())
SERVERS = {row["name"]: (_written(row), row["outcome"]) for row in _ROWS}
_MIB = b" " * 2**20
_CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_LONG = b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n"
_ZIPPED = "Content-Encoding: gzip"
_DEFLATED = "Content-Encoding: deflate"
_KEYS = json.dumps({str(n): n for n in range(15_000)})
_CHOICES = [json.loads(GOOD)["choices"][0]] + [0] * 100_000
_LONG_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1" + b"0" * 400 + b"\r\n\r\n"
SERVERS |= {
    "a byte of the head every 50 ms": (slowly(reply(GOOD), 0.05), "timeout"),
    "a byte of the body every 50 ms": (slowly(reply(GOOD), 0.02), "timeout"),
    "silence": (lambda to, _: time.sleep(1.5), "timeout"),
    "a head and silence": (lambda to, _: (to.sendall(_LONG), time.sleep(1.5)), "timeout"),
    "a gigabyte in chunks": (Flood(_CHUNKS, b"100000\r\n" + _MIB + b"\r\n"), "http_error"),
    "2,000 cookies": (reply(GOOD, *(f"Set-Cookie: a{n}=b" for n in range(2000))), "Hue"),
    "a gzip bomb": (reply(gzip.compress(_MIB * 100, 9), _ZIPPED), "http_error"),
    "a deflate bomb": (reply(zlib.compress(_MIB * 100), _DEFLATED), "http_error"),
    "an error as gzip": (reply(gzip.compress(b"x"), _ZIPPED, status="500 E"), "http_error"),
    "half a body": (reply(GOOD)[:-10], "connection"),
    "half of the chunks": (chunked(GOOD)[:-8], "connection"),
    "a length of 10^400": (_LONG_HEAD, "connection"),
    "a second answer at once": (reply(GOOD) + reply(completion(content="another")), "Hue"),
    "HTTP/1.0 without a length": (b"HTTP/1.0 200 OK\r\n\r\n" + GOOD, "Hue"),
    "100 before the answer": (b"HTTP/1.1 100 Continue\r\n\r\n" + reply(GOOD), "Hue"),
    "again in 10^400": (reply(b"", "Retry-After: 1" + "0" * 400, status="503 B"), "s of rest"),
    "a number of 401 digits": (reply(b"1" + b"0" * 400), "http_error"),
    "wide lists": (reply(b"[" + b"{}," * 300_000 + b"{}]"), "http_error"),
    "UTF-16": (reply(GOOD.decode().encode("utf-16")), "http_error"),
    "Latin 1": (_said('"\xe9"').replace(b"\xc3\xa9", b"\xe9\xe9"), "http_error"),
    "100,000 choices": (reply(completion(choices=_CHOICES)), "Hue"),
    "content of a million letters": (_said('"' + "a" * 2**20 + '"'), "http_error"),
    "content of deep JSON": (_said(json.dumps('{"city":' * 20_000 + "}")), "invalid_json"),
    "content of many keys": (_said(json.dumps(_KEYS)), "invalid_content"),
    "content of a huge number": (_said('"{\\"city\\": 1' + "0" * 5000 + '}"'), "invalid_json"),
    "a long reason": (reply(completion(choice={"finish_reason": "x" * 10_000})), "http_error"),
    "a model's long name": (reply(completion(model="m" * 10_000)), "http_error"),
    # The key, echoed.
    "the key as an answer": (reply(completion(content=json.dumps({"city": KEY}))), "http_error"),
    "the key as a model": (reply(completion(model=KEY)), "http_error"),
    "the key as a status": (reply(b"", status=f"401 {KEY}"), "HTTP 401"),
    "the key as a header": (f"HTTP/1.1 200 {KEY}\0\r\nX{KEY} {KEY}\r\n\r\n".encode(), "connection"),
}


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    monkeypatch.setattr(completion_module, "MAX_RETRY_AFTER", 1.0)


def test_each_attempt_ends_in_time_in_bounds_and_in_one_line(alone, tmp_path, caplog, subtests):
    assert len(SERVERS) >= 109
    for name, (sends, outcome) in SERVERS.items():
        caplog.clear()
        with subtests.test(name), caplog.at_level(logging.DEBUG):
            _check(sends, outcome, alone, tmp_path / "answers.jsonl", caplog)


def _check(sends, outcome, alone, cache, caplog):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = None
    with HostileServer(sends) as there:
        timeout = 0.2 if outcome == "timeout" else 10.0  # the others end long before
        asked = alone(there, timeout=timeout, attempts=2, answers=1, prices=Prices(1, 1))
        began = time.monotonic()
        try:
            found = asked.ask(request()).city
        except NoAnswer as failure:
            error, found, told = failure, failure.category, failure.detail
        except UserError as failure:
            error, found, told = failure, str(failure), str(failure)
        took = time.monotonic() - began
    kept = cache.read_text()
    if error is not None:
        assert "\n" not in told and len(told) < 700 and told.isprintable()
        assert any(one in found for one in ([outcome] if isinstance(outcome, str) else outcome))
        while error is not None:  # nor is it anywhere in the chain
            assert KEY not in repr(error) + str(error)
            error = error.__cause__ or error.__context__
        assert not kept or outcome.startswith("invalid")
    else:
        assert found == outcome == "Hue"
        assert asked.ask(request()).city == "Hue" and len(there.requests) == 1
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
            asked.ask(request("x" * 2**24))
        assert time.monotonic() - began < 2.0


def test_a_body_has_a_limit_whatever_room_is_asked_for_and_the_longest_answer_fits_the_cache(
    tmp_path,
):
    assert most_bytes(100) < 2 * 2**20 and most_bytes(10**12) == 2**24
    cache = AnswerCache(tmp_path / "a")
    longest = Completion("\U0001f600" * MOST_CHARACTERS, "stop", None, "m", 1, 1)
    cache.put("a", longest)
    cache.close()
    cache = AnswerCache(tmp_path / "a")
    assert cache.get("a") == longest
    cache.close()


def test_each_answer_has_a_connection_and_ordinary_words_are_shown(client):
    """What a server sends too much is no answer to the next question."""
    two = reply(GOOD) + reply(completion(content='{"city": "Saigon"}'))
    with HostileServer(two) as there:
        asked = client(there)
        assert [asked.ask(request(str(n))).city for n in range(3)] == ["Hue"] * 3
    error = json.dumps({"error": {"message": "the prompt is too long, very long"}}).encode()
    there = HostileServer(reply(error, status="400 B"))
    with there, pytest.raises(NoAnswer, match="the prompt is too long, very long"):
        client(there, attempts=1).ask(request())
    with HostileServer(reply(completion(content='{"city": "Very secret"}'))) as there:
        assert client(there).ask(request("another")).city == "Very secret"


def test_rests_add_up_until_the_server_answers(client, monkeypatch):
    busy = reply(b"", "Retry-After: 0.4", status="429 B")
    with HostileServer(busy) as there:
        asked = client(there, attempts=9)
        with pytest.raises(UserError, match="s of rest"):
            asked.ask(request())
    assert len(there.requests) == 3  # 0.4 s, 0.8 s, and 1.2 s would be more than 1
    turns = itertools.cycle([busy, reply(GOOD)])
    with HostileServer(lambda to, _: to.sendall(next(turns))) as there:
        asked = client(there)
        assert [asked.ask(request(str(n))).city for n in range(4)] == ["Hue"] * 4


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
                list(asked.map(lambda n: asked.ask(request(str(n))), items()))
        else:
            results = asked.map(lambda n: asked.ask(request(str(n))), range(9))
            next(results)
            results.close()
        assert time.monotonic() - began < 3.5
        account = asked.account.to_json()
        assert account["answers"] == 1 and account["unmetered_requests"] == 1
    with HostileServer(reply(GOOD)) as there:  # and it can be asked again
        assert client(there).ask(request("again")).city == "Hue"


_STOPS = [pytest.param("map", 12.0, marks=pytest.mark.slow), ("map twice", 4.0)]
_STOPS += [pytest.param("ask", 12.0, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("how", "within"), _STOPS)
def test_ctrl_c_ends_a_process_that_a_server_holds(tmp_path, how, within):
    with HostileServer(slowly(reply(GOOD), 1.0)) as there:
        command = [sys.executable, _HERE / "asker.py", there.url, tmp_path / "a", how.split()[0]]
        command.append("9")
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


# Usage: what cannot be (`lies`), and what can with (input, output) tokens as they are booked.

_USAGE = json.loads((_HERE / "usage.json").read_text())
_LIES = _USAGE["lies"]


def test_usage_that_cannot_be_is_booked_at_its_most(alone, subtests):
    bound = (request().text_bytes() + 100) / 1e6
    for lie, usage in _LIES.items():
        with subtests.test(lie), HostileServer(reply(completion(usage=usage))) as there:
            asked = alone(there, prices=Prices(1, 1), max_cost=3.5 * bound)
            for number in range(3):
                assert asked.ask(request(f"Which city{number}")).city == "Hue"
                account = asked.account.to_json()
                assert account["unmetered_requests"] == number + 1 and account["cost"] == 0
                assert account["unmetered_cost_at_most"] == pytest.approx(bound * (number + 1))
            with pytest.raises(UserError, match="stopped before --max_cost"):
                asked.ask(request("Which city4"))
            assert len(there.requests) == 3  # no answer was thrown away, and none booked twice


def test_usage_is_booked_as_told_where_it_can_be(alone, subtests):
    for usage, booked in _USAGE["true"]:
        with subtests.test(usage), HostileServer(reply(completion(usage=usage))) as there:
            asked = alone(there)
            asked.ask(request())
            account = asked.account.to_json()
            assert [account["input_tokens"], account["output_tokens"]] == booked
            assert account["unmetered_requests"] == 0 and len(there.requests) == 1
    for lie, usage in _LIES.items():
        with subtests.test(lie):
            found = read_completion(completion(content=None, usage=usage), "m")
            told = (found.input_tokens, found.output_tokens)
            assert told == ((100, 0) if lie == "no output" else (None, None))


def test_a_count_above_the_reservation_ends_the_run(client):
    usage = {"prompt_tokens": 100, "completion_tokens": 10**6, "total_tokens": 10**6 + 100}
    with HostileServer(reply(completion(usage=usage))) as there:
        asked = client(there, prices=Prices(1, 1), max_cost=0.5)
        assert asked.ask(request()).city == "Hue"
        with pytest.raises(UserError, match=r"stopped before --max_cost=0\.5: spent 1\.0001"):
            asked.ask(request("another"))


# What is kept.

_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
_scalars |= st.sampled_from([-1, 0, 1, 10**400, 10**8, "stop", "length"])
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


@settings(max_examples=300)
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


_KEPT = dataclasses.asdict(Completion("x", "stop", None, "m", 1, 2))
_POISON = [("text", ["x"]), ("text", 5), ("text", None), ("finish_reason", []), ("refusal", True)]
_POISON += [("model", {}), ("input_tokens", -5), ("output_tokens", "many"), ("input_tokens", True)]
_POISON += [("output_tokens", 1e400), ("output_tokens", 10**300)]
_POISON += [("text", "x" * (MOST_CHARACTERS + 1))]


def test_a_poisoned_line_of_an_old_cache_counts_as_not_there(
    alone, client, tmp_path, capsys, subtests
):
    path = tmp_path / "answers.jsonl"
    for field, poison in _POISON:
        with subtests.test(field, found=str(poison)[:20]), HostileServer(reply(GOOD)) as there:
            asked = alone(there)
            asked.ask(request())
            asked.ask(request("another"))
            asked.close()
            first, second = (json.loads(line) for line in path.read_text().splitlines())
            lines = (_KEPT | {"key": first["key"], field: poison}, second)
            path.write_text("".join(json.dumps({"key": one["key"]} | one) + "\n" for one in lines))
            capsys.readouterr()
            again = client(there)
            told = capsys.readouterr().err
            assert told.count("\n") == 1
            assert "answers.jsonl: 1 lines, each a cached answer, cannot" in told
            assert again.ask(request("another")).city == "Hue" and len(there.requests) == 2
            assert again.estimate([request()]).requests == 1
            assert again.ask(request()).city == "Hue" and len(there.requests) == 3
            assert client(there).ask(request()).city == "Hue" and len(there.requests) == 3
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
_STATUSES = ("401 U", "400 B", "500 E", "200 OK")


def test_an_echo_of_the_key_is_nowhere(client, tmp_path, caplog, subtests):
    with HostileServer(b"") as there:
        for (echo, said), status in itertools.product(_ECHOES.items(), _STATUSES):
            error = json.dumps({"error": {"message": f"no such key: {said}, sorry"}}).encode()
            there.script = reply(error, status=status)
            caplog.clear()
            with subtests.test(echo, status=status), caplog.at_level(logging.DEBUG):
                with pytest.raises((UserError, NoAnswer)) as failure:
                    client(there, attempts=1).ask(request())
                written = str(failure.value) + caplog.text
                written += (tmp_path / "answers.jsonl").read_text()
                for text in (said, " ".join(said.split()), KEY, KEY[-10:], KEY[:12]):
                    assert text not in written and json.dumps(text)[1:-1] not in written
                assert "they repeat the key" in str(failure.value)
