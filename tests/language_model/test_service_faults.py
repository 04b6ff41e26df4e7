"""What servers do wrong, and what is tried again: a real one on loopback, scripted."""

import contextlib
import email.utils
import itertools
import time

import pytest

from cxrjax.errors import UserError
from cxrjax.language_model.client import MAX_SERVICE_FAILURES
from cxrjax.language_model.request import NoAnswer
from cxrjax.language_model.settings import Prices
from tests.language_model.conftest import HUE, KEY, request


def test_servers_are_asked_again_unless_that_helps_nothing(chat, alone, client):
    busy = chat.Status(429, headers=(("Retry-After", "86400"),))
    with chat.Server(busy) as there, pytest.raises(UserError, match="86400 s of rest"):
        client(there).ask(request())
    assert len(there.bodies) == 1
    fault = chat.Status(429, code="insufficient_quota")
    with chat.Server(fault) as there, pytest.raises(UserError, match="with credit"):
        client(there).ask(request())
    assert len(there.bodies) == 1
    for fault in map(chat.Status, (408, 429, 500, 502, 503, 529)):
        with chat.Server(fault, fault, chat.Text(HUE)) as there:
            asked = alone(there, prices=Prices(1, 1))
            assert asked.ask(request()).city == "Hue"
        account = asked.account.to_json()
        assert (account["requests"], account["answers"]) == (3, 1), fault
        assert account["unmetered_requests"] == 0


def test_retry_after_is_obeyed_by_every_thread_as_seconds_or_a_date(chat, client):
    def script(body, number):
        time.sleep(0.3 * min(number, 2))  # the others are under way while the first is told to wait
        return chat.Status(429, headers=(("Retry-After", "1"),)) if number == 0 else chat.Text(HUE)

    with chat.Server(script) as there:
        asked = client(there, concurrency=3)
        answers = asked.map(lambda n: asked.ask(request(str(n))).city, range(6))
        assert [city for _, city in answers] == ["Hue"] * 6
    assert len(there.times) == 7
    assert min(there.times[3:]) - there.times[0] >= 1.0
    until = int(time.time()) + 2
    busy = chat.Status(503, headers=(("Retry-After", email.utils.formatdate(until, usegmt=True)),))
    with chat.Server(busy, chat.Text(HUE)) as there:
        client(there).ask(request())
    assert len(there.bodies) == 2 and time.time() >= until


def test_silence_is_perhaps_charged_and_no_server_is_not(chat, client):
    with chat.Server(chat.Silence(1.0)) as there, pytest.raises(NoAnswer) as failure:
        asked = client(there, timeout=0.2, attempts=2, prices=Prices(1, 1))
        asked.ask(request())
    assert failure.value.category == "timeout"
    account = asked.account.to_json()
    assert (account["requests"], account["answers"], account["unmetered_requests"]) == (2, 0, 2)
    assert account["unmetered_cost_at_most"] > 0
    with chat.Server(chat.Text(HUE)) as gone:
        pass
    asked = client(gone, attempts=2, prices=Prices(1, 1))
    with pytest.raises(NoAnswer) as failure:
        asked.ask(request())
    assert failure.value.category == "connection"
    assert asked.account.to_json()["unmetered_requests"] == 0  # nothing was sent


def test_bodies_that_are_no_completion(chat, alone):
    bodies = [b'{"id": "1", "choices": [', b"<html>proxy</html>", b'{"choices": []}']
    bodies = [chat.Raw(body) for body in (*bodies, b'{"object": "list", "data": []}')]
    for body in (*bodies, cut := chat.Raw(bodies[0].body, cut=True)):
        with chat.Server(body) as there, pytest.raises(NoAnswer) as failure:
            alone(there, attempts=2).ask(request())
        assert failure.value.category == ("connection" if body is cut else "http_error")
        assert len(there.bodies) == 2
        with chat.Server(body, chat.Text(HUE)) as there:
            assert alone(there).ask(request()).city == "Hue"


def test_refused_requests_fail_alone_and_wrong_keys_end_the_run(chat, client):
    for status in (401, 403, 404):
        fault = chat.Status(status, message=f"bad key {KEY}")
        with chat.Server(fault) as there, pytest.raises(UserError) as error:
            client(there).ask(request())
        assert len(there.bodies) == 1
        assert f"HTTP {status}" in str(error.value) and "CXRJAX_LM_API_KEY" in str(error.value)
        assert KEY not in str(error.value)
    with chat.Server(chat.Status(400, "too long"), chat.Text(HUE)) as there:
        asked = client(there)
        with pytest.raises(NoAnswer) as failure:
            asked.ask(request())
        assert asked.ask(request("another")).city == "Hue"
        assert asked.ask(request()).city == "Hue"  # not cached: nothing had been paid for
    assert failure.value.category == "http_error" and "too long" in failure.value.detail


def test_a_service_that_stays_down_ends_the_run(chat, client):
    def ask(asked, number):
        with contextlib.suppress(NoAnswer):
            asked.ask(request(str(number)))

    with chat.Server(chat.Status(500)) as there:
        asked = client(there, attempts=1)
        with pytest.raises(UserError, match="requests in a row failed"):
            for _ in asked.map(lambda number: ask(asked, number), itertools.count()):
                pass
    assert MAX_SERVICE_FAILURES <= len(there.bodies) <= MAX_SERVICE_FAILURES + 16


def test_requests_a_minute(chat, client):
    with chat.Server(chat.Text(HUE)) as there:
        asked = client(there, concurrency=4, requests_per_minute=1200)
        start = time.monotonic()
        list(asked.map(lambda n: asked.ask(request(str(n))), range(21)))
    # Arrivals may bunch on a busy machine, but none can be early: 50 ms for each one before it.
    assert all(when - start >= 0.05 * number for number, when in enumerate(there.times))
