"""Where content may go: to this machine, and elsewhere only when told."""

import dataclasses

import pytest

from cxrjax.errors import UserError
from cxrjax.language_model.account import AnswerCache
from cxrjax.language_model.client import Client
from cxrjax.language_model.request import EncodedImage, Message, NoAnswer
from cxrjax.language_model.settings import Settings
from tests.language_model.conftest import CASES, HUE, KEY, request
from tests.language_model.hostile import HostileServer, reply


def test_what_counts_as_this_machine():
    for local, urls in CASES["this_machine"].items():
        for url in urls:
            assert Settings(url, "m").is_local is (local == "yes"), url


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


def test_a_proxy_of_the_environment_does_not_see_local_requests(chat, client, monkeypatch):
    with chat.Server(chat.Text(HUE)) as there, chat.Server(chat.Text(HUE)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
        monkeypatch.setenv("ALL_PROXY", proxy.url.removesuffix("/v1"))
        assert client(there).ask(request()).city == "Hue"
    assert proxy.bodies == []


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


def test_redirections_are_not_followed(chat, client):
    with chat.Server(chat.Text(HUE)) as elsewhere:
        moved = chat.Status(307, headers=(("Location", elsewhere.url + "/chat/completions"),))
        with chat.Server(moved) as there, pytest.raises(NoAnswer):
            client(there).ask(request())
    assert elsewhere.bodies == []


def test_unusable_settings(subtests):
    for settings, message in CASES["unusable_settings"]:
        with subtests.test(**settings):
            with pytest.raises(UserError, match=message) as error:
                Settings(**{"base_url": "http://127.0.0.1/v1", "model": "m"} | settings)
            assert KEY not in str(error.value)
            assert "pw" not in str(error.value) and "secret" not in str(error.value)
