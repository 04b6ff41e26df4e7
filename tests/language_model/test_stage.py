"""A stage: inputs, answers, failures, permission, and where content may go."""

import dataclasses
import json

import pytest

from cxrjax.errors import UserError
from cxrjax.language_model.account import AnswerCache
from cxrjax.language_model.client import Client
from cxrjax.language_model.request import EncodedImage, Message, NoAnswer
from cxrjax.language_model.settings import Settings
from cxrjax.language_model.stage import Stage, Strict, make_request
from tests.language_model.conftest import CASES, HUE, KEY, request
from tests.language_model.hostile import HostileServer, reply

PROMPT = {
    "system": "\nName a city.\n",
    "demonstrations": [{"user": "Japan?\n", "assistant": '{"city": "Kobe"}'}],
}


class City(Strict):
    city: str


class Cities(Stage[str, City]):
    """Cities of countries: not "Nowhere", and the shorter the name the better."""

    content = "names of countries"

    def __init__(self, client):
        super().__init__(client, "7")

    def request(self, item):
        return make_request(PROMPT, item, City, 10)

    def check(self, item, answer):
        if answer.city == "Nowhere":
            raise ValueError(f"{answer.city} is no city of {item}")

    def shortcoming(self, item, answer):
        return max(len(answer.city) - 4, 0), "Shorter, please."


def _answers(chat, *cities):
    """These cities in turn; None is a refusal."""

    said = [json.dumps({"city": city}) for city in cities]
    refused = chat.Text(None, refusal="no")
    return lambda _, n: refused if cities[n] is None else chat.Text(said[n])


def test_prompts_and_failures_stand_at_their_items(chat, client):
    with chat.Server(_answers(chat, "Hue")) as there:
        stage = Cities(client(there))
        assert stage.ask("Annam?").city == "Hue"
    assert (stage.name, stage.version) == ("m", "prompt 7")
    turns = [f"{turn['role']}: {turn['content']}" for turn in there.bodies[0]["messages"]]
    example = ["user: Japan?", 'assistant: {"city": "Kobe"}']
    assert turns == ["system: Name a city.", *example, "user: Annam?"]
    with chat.Server(_answers(chat, "Hue", None, "Nowhere", "Bern")) as there:
        stage = Cities(client(there, concurrency=1))
        found = list(stage.answers(iter(["Vietnam?", "Japan?", "Swiss?"])))
    assert [item for item, _ in found] == ["Vietnam?", "Japan?", "Swiss?"]
    assert [getattr(one, "city", None) for _, one in found] == ["Hue", None, "Bern"]
    assert isinstance(found[1][1], NoAnswer) and found[1][1].category == "refusal"
    assert "Nowhere is no city of Swiss?" in there.bodies[3]["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("second", "taken"), [("Hue", "Hue"), ("Ho Chi Minh City", "Hanoi"), (None, "Hanoi")]
)
def test_the_better_of_two_answers_is_taken(chat, client, second, taken):
    with chat.Server(_answers(chat, "Hanoi", second)) as there:
        assert Cities(client(there)).ask("Vietnam?").city == taken
    assert there.bodies[1]["messages"][-1]["content"] == "Shorter, please."


def test_an_estimate_passes_over_images_that_cannot_be_read(chat, client):
    def unreadable():
        raise NoAnswer("unreadable_image", "cut short")

    class Pictured(Cities):
        def request(self, item):
            image = EncodedImage(unreadable if item == "broken" else lambda: b"1", "image/png")
            return make_request(PROMPT, (image, item), City, 10)

    with chat.Server(_answers(chat, "Hue")) as there:
        stage = Pictured(client(there))
        assert stage.ask("whole").city == "Hue"
        estimate = stage.estimate(["whole", "broken", "another"])
    assert (estimate.from_cache, estimate.requests) == (1, 1)


def test_content_leaves_the_machine_only_when_told(tmp_path):
    settings = Settings("http://model.invalid/v1", "m", attempts=1)
    asked = Client(settings, AnswerCache(tmp_path / "a.jsonl"))
    picture = EncodedImage(lambda: b"", "image/png")
    look = dataclasses.replace(request(), messages=(Message("user", ("look", picture)),))
    requests = [request(), look]
    with pytest.raises(UserError) as error:
        asked.require_permission("notes of readers", requests)
    for part in ("2 requests", "pixels", "1 in all", "notes of readers", "model.invalid"):
        assert part in str(error.value)
    assert "unencrypted" in str(error.value) and "--allow_sending" in str(error.value)
    with pytest.raises(UserError, match="not allowed"):
        asked.ask(request())
    assert asked.account.to_json()["requests"] == 0
    allowed = dataclasses.replace(settings, allow_sending=True)
    free = Client(allowed, AnswerCache(tmp_path / "b.jsonl"))
    free.require_permission("notes of readers", requests)
    with pytest.raises(NoAnswer, match="connection"):
        free.ask(request())


def test_neither_proxies_nor_redirections_are_followed(chat, client, monkeypatch):
    with chat.Server(chat.Text(HUE)) as there, chat.Server(chat.Text(HUE)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
        monkeypatch.setenv("ALL_PROXY", proxy.url.removesuffix("/v1"))
        assert client(there).ask(request()).city == "Hue"
    assert proxy.bodies == []
    with chat.Server(chat.Text(HUE)) as elsewhere:
        moved = chat.Status(307, headers=(("Location", elsewhere.url + "/chat/completions"),))
        with chat.Server(moved) as there, pytest.raises(NoAnswer):
            client(there).ask(request("another"))
    assert elsewhere.bodies == []


def test_a_proxy_of_the_environment_sees_no_content(client, monkeypatch):
    """With https it is asked for a tunnel, with http it is not used."""
    with HostileServer(reply(b"", status="403 F")) as proxy:
        monkeypatch.setenv("ALL_PROXY", proxy.url.removesuffix("/v1"))
        for url in ("http://model.invalid/v1", "https://model.invalid/v1"):
            terms = {"base_url": url, "allow_sending": True, "attempts": 1}
            asked = client(proxy, **terms, api_key="" if url[:5] == "http:" else KEY)
            with pytest.raises(NoAnswer, match="connection"):
                asked.ask(request())
    ((head, body),) = proxy.requests
    assert head.startswith(b"CONNECT model.invalid:443 ") and not body
    assert KEY.encode() not in head


def test_unusable_settings_and_what_counts_as_this_machine(subtests, tmp_path):
    for settings, message in CASES["unusable_settings"]:
        with subtests.test(**settings):
            with pytest.raises(UserError, match=message) as error:
                Settings(**{"base_url": "http://127.0.0.1/v1", "model": "m"} | settings)
            assert KEY not in str(error.value)
            assert "pw" not in str(error.value) and "secret" not in str(error.value)
    for local, urls in CASES["this_machine"].items():
        for url in urls:
            assert Settings(url, "m").is_local is (local == "yes"), url
    away = Client(Settings("https://model.invalid/v1", "m"), AnswerCache(tmp_path / "a.jsonl"))
    with pytest.raises(UserError, match=r"2 requests with names of countries to model\.invalid"):
        list(Cities(away).answers(iter(["Vietnam?", "Japan?"])))
    assert away.account.to_json()["requests"] == 0
