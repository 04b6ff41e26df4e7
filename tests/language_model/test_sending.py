"""Where content may go: to this machine, and elsewhere only when told."""

import dataclasses

import pydantic
import pytest

from cxrjax.errors import UserError
from cxrjax.language_model import (
    AnswerCache,
    Client,
    EncodedImage,
    Message,
    NoAnswer,
    Request,
    Settings,
)
from tests.language_model.hostile import HostileServer, reply

KEY = "sk-very-secret-0123456789"


class City(pydantic.BaseModel):
    city: str


HUE = '{"city": "Hue"}'


def _request(text="Which city?") -> Request[City]:
    return Request((Message("user", (text,)),), City)


def _script(*actions):
    """These actions in turn, the last one for ever."""
    return lambda body, number: actions[min(number, len(actions) - 1)]


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:8000/v1", True),
        ("http://127.9.9.9/v1", True),
        ("http://localhost:1/v1", True),
        ("http://[::1]:8000/v1", True),
        ("https://api.openai.com/v1", False),
        ("http://10.0.0.7:8000/v1", False),
        ("http://0.0.0.0:8000/v1", False),
        ("http://localhost.example.org/v1", False),
        ("http://127.0.0.1.example.org/v1", False),
    ],
)
def test_what_counts_as_this_machine(url, local):
    assert Settings(url, "m").is_local is local


def test_content_leaves_the_machine_only_when_told(tmp_path):
    settings = Settings("http://model.invalid/v1", "m", attempts=1)
    asked = Client(settings, AnswerCache(tmp_path / "a.jsonl"))
    picture = EncodedImage(lambda: b"", "image/png")
    requests = [_request(), Request((Message("user", ("look", picture)),), City)]
    with pytest.raises(UserError) as error:
        asked.require_permission("notes of readers", requests)
    for part in ("2 requests", "pixels", "1 in all", "notes of readers", "model.invalid"):
        assert part in str(error.value)
    assert "unencrypted" in str(error.value) and "--allow_sending" in str(error.value)
    with pytest.raises(UserError, match="not allowed"):
        asked.ask(_request())
    assert asked.account.to_json()["requests"] == 0
    allowed = dataclasses.replace(settings, allow_sending=True)
    free = Client(allowed, AnswerCache(tmp_path / "b.jsonl"))
    free.require_permission("notes of readers", requests)
    with pytest.raises(NoAnswer, match="connection"):
        free.ask(_request())


def test_a_proxy_of_the_environment_does_not_see_local_requests(chat, client, monkeypatch):
    with chat.Server(_script(chat.Text(HUE))) as there, chat.Server(_script()) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
        monkeypatch.setenv("ALL_PROXY", proxy.url.removesuffix("/v1"))
        assert client(there).ask(_request()).city == "Hue"
    assert proxy.bodies == []


def test_a_proxy_of_the_environment_sees_no_content(client, monkeypatch):
    """With https it is asked for a tunnel, with http it is not used."""
    with HostileServer(reply(b"", status="403 F")) as proxy:
        monkeypatch.setenv("ALL_PROXY", proxy.url.removesuffix("/v1"))
        for url in ("http://model.invalid/v1", "https://model.invalid/v1"):
            terms = {"base_url": url, "allow_sending": True, "attempts": 1}
            asked = client(proxy, **terms, api_key="" if url[:5] == "http:" else KEY)
            with pytest.raises(NoAnswer, match="connection"):
                asked.ask(_request())
    ((head, body),) = proxy.requests
    assert head.startswith(b"CONNECT model.invalid:443 ") and not body
    assert KEY.encode() not in head


def test_redirections_are_not_followed(chat, client):
    with chat.Server(_script(chat.Text(HUE))) as elsewhere:
        moved = chat.Status(307, headers=(("Location", elsewhere.url + "/chat/completions"),))
        with chat.Server(_script(moved)) as there, pytest.raises(NoAnswer):
            client(there).ask(_request())
    assert elsewhere.bodies == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_url": "api.openai.com/v1"}, "expected http"),
        ({"base_url": "http://[::1/v1"}, "expected http"),
        ({"base_url": "http://127.0.0.1:port/v1"}, "expected http"),
        ({"base_url": "http://127.0.0.1:99999/v1"}, "expected http"),
        ({"base_url": "https://user:pw@host/v1"}, "holds a password"),
        ({"base_url": "https://user@host/v1"}, "holds a password"),
        ({"base_url": "https://host/v1?key=secret"}, "expected http"),
        ({"base_url": "https://host/v1#part"}, "expected http"),
        ({"base_url": "https://user:pw@host:port/v1?pw"}, "expected http"),
        ({"base_url": "https://ho\nst/v1"}, "expected http"),
        ({"base_url": "http://10.0.0.7/v1", "api_key": KEY}, "unencrypted"),
        ({"base_url": "http://host/v1", "api_key": KEY, "allow_sending": True}, "unencrypted"),
        ({"api_key": KEY + "\n"}, "CXRJAX_LM_API_KEY holds"),
        ({"api_key": KEY + " " + KEY}, "CXRJAX_LM_API_KEY holds"),
        ({"api_key": KEY + "\u00e9"}, "CXRJAX_LM_API_KEY holds"),
        ({"model": ""}, "no language model named"),
        ({"max_cost": 1.0}, "--price_in"),
    ],
)
def test_unusable_settings(settings, message):
    with pytest.raises(UserError, match=message) as error:
        Settings(**{"base_url": "http://127.0.0.1/v1", "model": "m"} | settings)
    assert KEY not in str(error.value)
    assert "pw" not in str(error.value) and "secret" not in str(error.value)
