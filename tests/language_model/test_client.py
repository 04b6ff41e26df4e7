"""The client against a real server on loopback: answers checked, counted, cached, in order."""

import dataclasses
import json
import threading
import time
import unittest.mock
from typing import Literal

import pydantic
import pytest

from cxrjax.errors import UserError
from cxrjax.language_model.request import EncodedImage, Message, NoAnswer, Request
from cxrjax.language_model.settings import Prices, Settings
from tests.language_model.conftest import CASES, KEY


class City(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    city: str
    size: Literal["small", "large"]


HUE = '{"city": "Hue", "size": "small"}'


def _request(text="Which city?", room=100) -> Request[City]:
    return Request((Message("system", ("Answer.",)), Message("user", (text,))), City, room)


def test_answer_is_checked_counted_and_asked_for_once(chat, client, tmp_path):
    with chat.Server(chat.Text(HUE, usage=(100, 20, 120))) as there:
        asked = client(there, prices=Prices(2.0, 10.0))
        assert asked.ask(_request()) == City(city="Hue", size="small")
        assert asked.ask(_request()).city == "Hue"
        account = asked.account.to_json()
        assert account["requests"] == account["answers"] == 1
        assert (account["input_tokens"], account["output_tokens"]) == (100, 20)
        assert account["cost"] == pytest.approx((100 * 2 + 20 * 10) / 1e6)
        assert account["answers_from_cache"] == 1
        assert account["cached_cost"] == account["cost"]
        # Another process later, without prices: nothing is sent, no cost is made up.
        again = client(there)
        assert again.ask(_request()).city == "Hue"
        assert again.account.to_json()["requests"] == 0
        assert again.account.to_json()["cost"] is None
    assert len(there.bodies) == 1
    assert there.headers[0]["Authorization"] == f"Bearer {KEY}"
    schema = there.bodies[0]["response_format"]["json_schema"]["schema"]
    assert schema["required"] == ["city", "size"]
    assert there.bodies[0]["max_completion_tokens"] == 100
    assert KEY not in (tmp_path / "answers.jsonl").read_text()
    assert KEY not in repr(again.settings) + json.dumps(again.settings.to_json())


def test_usage_is_billed_by_the_total_and_at_its_most_where_untold(chat, client):
    with chat.Server(chat.Text(HUE, usage=(20, 198, 623))) as there:
        asked = client(there)
        asked.ask(_request())
        assert asked.account.to_json()["output_tokens"] == 603
    other = _request("Another city?")
    with chat.Server(chat.Text(HUE, usage=None)) as there:
        asked = client(there, prices=Prices(1, 1))
        asked.ask(other)
    account = asked.account.to_json()
    assert account["cost"] == 0 and account["unmetered_requests"] == 1
    assert account["unmetered_cost_at_most"] == (other.text_bytes() + 100) / 1e6


def test_every_part_of_a_request_changes_its_key():
    settings = Settings("http://127.0.0.1/v1", "m")
    picture = EncodedImage(lambda: b"one", "image/png")
    base = Request((Message("user", ("look", picture)),), City)
    other = EncodedImage(lambda: b"two", "image/png")
    changed = [
        {"messages": (Message("user", ("look", other)),)},
        {"messages": (Message("user", ("see", picture)),)},
        {"max_output_tokens": 5},
        {"answer": pydantic.create_model("City", city=(str, ...))},
    ]
    keys = [dataclasses.replace(base, **change).key(settings) for change in changed]
    for change in ({"model": "n"}, {"temperature": 0.0}, {"structured_output": "prompt"}):
        keys.append(base.key(dataclasses.replace(settings, **change)))
    assert len({*keys, base.key(settings)}) == len(keys) + 1
    elsewhere = {"base_url": "https://elsewhere/v1", "api_key": KEY}
    same = dataclasses.replace(settings, **elsewhere, concurrency=9, timeout=1.0)
    assert base.key(same) == base.key(settings)


def test_the_same_image_and_request_are_sent_once(chat, client):
    load = unittest.mock.Mock(return_value=b"\x89PNG bytes")
    request = Request((Message("user", (EncodedImage(load, "image/png"), "look")),), City)
    with chat.Server(chat.Text(HUE)) as there:
        client(there).ask(request)
    content = there.bodies[0]["messages"][0]["content"]
    assert content[0]["image_url"]["url"] == "data:image/png;base64,iVBORyBieXRlcw=="
    assert content[1] == {"type": "text", "text": "look"}
    load.assert_called_once_with()
    with chat.Server(chat.Text(HUE), delay=0.1) as there:
        asked = client(there, concurrency=4)
        told = [city for _, city in asked.map(lambda _: asked.ask(_request()), range(4))]
    assert told == [City(city="Hue", size="small")] * 4
    assert len(there.bodies) == 1
    assert asked.account.to_json()["answers_from_cache"] == 3


@pytest.mark.parametrize("mode", ["json_object", "prompt"])
def test_without_schema_support_the_prompt_holds_the_schema(chat, client, mode):
    text = f"Sure!\n```json\n{HUE}\n```"
    with chat.Server(chat.Text(text)) as there:
        asked = client(there, structured_output=mode, token_limit_field="max_tokens")
        assert asked.ask(_request()).city == "Hue"
    body = there.bodies[0]
    assert '"enum": ["small", "large"]' in body["messages"][0]["content"]
    assert body.get("response_format") == ({"type": mode} if mode == "json_object" else None)
    assert body["max_tokens"] == 100


@pytest.mark.parametrize(("bad", "category", "told"), CASES["wrong_answers"])
def test_wrong_answers_are_asked_for_again_with_what_was_wrong(chat, client, bad, category, told):
    def check(answer):
        if answer.city == "Rome":
            raise ValueError("Rome is not in Vietnam")

    with chat.Server(chat.Text(bad), chat.Text(HUE)) as there:
        assert client(there).ask(_request(), check).city == "Hue"
        again = there.bodies[1]["messages"]
        assert [turn["role"] for turn in again] == ["system", "user", "assistant", "user"]
        assert told in again[-1]["content"]
    with chat.Server(chat.Text(bad)) as there, pytest.raises(NoAnswer) as failure:
        client(there).ask(_request("another"), check)
    assert failure.value.category == category
    assert len(there.bodies) == 3


def test_truncated_answers_get_twice_the_room_or_come_back_as_they_are(chat, client):
    cut = chat.Text('{"city": "H', finish_reason="length")
    with chat.Server(cut, chat.Text(HUE)) as there:
        assert client(there).ask(_request(room=50)).city == "Hue"
        assert [body["max_completion_tokens"] for body in there.bodies] == [50, 100]
    with chat.Server(cut) as there, pytest.raises(NoAnswer) as failure:
        client(there).ask(_request("another"))
    assert failure.value.category == "truncated"
    cut = chat.Text("The heart is", finish_reason="length")
    declined = chat.Text(None, refusal="I can't.")
    with chat.Server(cut, declined, chat.Status(400)) as server:
        there = client(server)
        assert there.complete(TEXT).finish_reason == "length"
        assert there.complete(dataclasses.replace(TEXT, seed=1)).refusal == "I can't."
        with pytest.raises(NoAnswer, match="http_error"):
            there.complete(dataclasses.replace(TEXT, seed=2))


def test_failures_are_replayed_and_refusals_final(chat, client, alone):
    with chat.Server(chat.Text("nonsense")) as there:
        for _ in range(2):
            with pytest.raises(NoAnswer, match="invalid_json"):
                client(there).ask(_request())
    assert len(there.bodies) == 3
    declined = chat.Text(None, refusal="I can't help with that.")
    for answer in (declined, chat.Text("", finish_reason="content_filter")):
        with chat.Server(answer) as there, pytest.raises(NoAnswer) as failure:
            alone(there).ask(_request())
        assert failure.value.category == "refusal"
        assert len(there.bodies) == 1


def test_map_keeps_the_order_and_the_concurrency(chat, client):
    def script(body, number):
        text = body["messages"][-1]["content"]
        time.sleep(0.05 if int(text) % 3 == 0 else 0.0)
        return chat.Text(json.dumps({"city": text, "size": "large"}))

    taken = []

    def items():
        for number in range(40):
            taken.append(number)
            yield number

    with chat.Server(script, delay=0.02) as there:
        asked = client(there, concurrency=5)
        results = asked.map(lambda n: asked.ask(_request(str(n))).city, items())
        first = next(results)
        assert first == (0, "0") and len(taken) <= 20  # taken as needed, not all at once
        assert [first, *results] == [(n, str(n)) for n in range(40)]
    assert 2 <= there.busiest <= 5


def test_dropping_the_iterator_stops_sending(chat, client):
    with chat.Server(chat.Text(HUE), delay=0.02) as there:
        asked = client(there, concurrency=2)
        results = asked.map(lambda n: asked.ask(_request(str(n))), range(1000))
        next(results)
        results.close()
        sent = len(there.bodies)
        assert sent <= 20
        time.sleep(0.2)
        assert len(there.bodies) == sent
        assert asked.account.to_json()["answers"] == sent  # what was under way is kept
        assert asked.ask(_request("afterwards")).city == "Hue"


def test_max_cost_is_never_passed_and_what_was_paid_for_stays(chat, client):
    # Each answer costs (100 + 20) / 1e6 = 0.00012; at most, a request costs its bytes + 100.
    with chat.Server(chat.Text(HUE), delay=0.005) as there:
        asked = client(there, prices=Prices(1, 1), max_cost=0.003, concurrency=4)
        done = []
        with pytest.raises(UserError, match=r"stopped before --max_cost=0\.003"):
            for number, _ in asked.map(lambda n: asked.ask(_request(str(n))), range(100)):
                done.append(number)
        spent = asked.account.to_json()["cost"]
        bound = (_request("99").text_bytes() + 100) / 1e6
        assert 0.003 - bound - 0.00012 <= spent <= 0.003
        sent = len(there.bodies)
        assert sent == round(spent / 0.00012) and done == list(range(len(done)))
        again = client(there, prices=Prices(1, 1), max_cost=1.0)
        assert len(list(again.map(lambda n: again.ask(_request(str(n))), range(100)))) == 100
    assert len(there.bodies) == 100  # the second run sent only what the first had not


def test_estimate_sends_nothing_and_knows_the_cache(chat, client):
    with chat.Server(chat.Text(HUE)) as there:
        asked = client(there, prices=Prices(1, 2))
        asked.ask(_request("0"))
        estimate = asked.estimate(_request(str(n)) for n in range(5))
    assert len(there.bodies) == 1
    assert (estimate.requests, estimate.from_cache) == (4, 1)
    assert estimate.output_tokens_at_most == 400 and estimate.output_tokens == 4 * 500
    assert estimate.cost == (estimate.input_tokens + 2 * 2000) / 1e6
    assert estimate.cost_at_most >= 400 * 2 / 1e6
    assert "4 requests to send" in str(estimate)


def test_ctrl_c_keeps_what_is_under_way(chat, client):
    with chat.Server(chat.Text(HUE), delay=0.05) as there:
        asked = client(there, concurrency=2)

        def items():
            yield from range(3)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            list(asked.map(lambda n: asked.ask(_request(str(n))), items()))
        assert asked.account.to_json()["answers"] == len(there.bodies) <= 3
    assert not [t for t in threading.enumerate() if t.name.startswith("language_model")]


# Answers that are text of any form.


PICTURE = EncodedImage(lambda: b"pixels", "image/png")
TEXT = Request((Message("user", (PICTURE, "What is it?")),), None)


def test_text_is_asked_for_without_a_form_and_kept(chat, client):
    with chat.Server(chat.Text("Pleural effusion.")) as server:
        there = client(server, temperature=0.0)
        assert there.complete(TEXT).text == "Pleural effusion."
        assert there.complete(TEXT).text == "Pleural effusion."
    (body,) = server.bodies
    assert "response_format" not in body and "seed" not in body and "logprobs" not in body
    assert body["temperature"] == 0.0
    assert [message["role"] for message in body["messages"]] == ["user"]
    image, text = body["messages"][0]["content"]
    assert image["image_url"]["url"] == "data:image/png;base64,cGl4ZWxz"
    assert text["text"] == "What is it?"


def test_seeds_are_other_requests_and_log_probabilities_kept(chat, client):
    with chat.Server(lambda body, number: chat.Text(f"sample {body['seed']}")) as server:
        there = client(server, temperature=1.0)
        asked = [dataclasses.replace(TEXT, seed=seed) for seed in (0, 1, 0)]
        texts = [there.complete(request).text for request in asked]
    assert texts == ["sample 0", "sample 1", "sample 0"]
    assert len(server.bodies) == 2
    answer = chat.Text("no", logprobs=(-0.5, -0.25))
    with chat.Server(answer) as server:
        asked = dataclasses.replace(TEXT, logprobs=True)
        assert client(server).complete(asked).logprob == pytest.approx(-0.75)
        assert client(server).complete(asked).logprob == pytest.approx(-0.75)
    assert len(server.bodies) == 1 and server.bodies[0]["logprobs"] is True
