"""A client of the scripted server, which does not wait long between attempts."""

import os
import tomllib
from pathlib import Path

import pydantic
import pytest
import tenacity

from cxrjax.language_model import completion as server
from cxrjax.language_model.account import AnswerCache
from cxrjax.language_model.client import Client
from cxrjax.language_model.request import Message, Request
from cxrjax.language_model.settings import Settings

KEY = "sk-very-secret-0123456789"
HUE = '{"city": "Hue"}'
CASES = tomllib.loads(Path(__file__).with_name("cases.toml").read_text())


class City(pydantic.BaseModel):
    city: str


def request(text="Which city?", room=100) -> Request[City]:
    return Request((Message("user", (text,)),), City, room)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    """Nor does a cache wait for the disk: what is killed here is a process, not a machine."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setattr(server, "_backoff", tenacity.wait_exponential_jitter(0.01, 0.05, jitter=0))


@pytest.fixture
def client(tmp_path):
    """`client(server, **settings)`: a client of it, with a key; all share one cache file."""
    caches = []

    def make(where, **settings):
        for cache in caches:
            cache.close()
        caches.append(AnswerCache(tmp_path / "answers.jsonl"))
        terms = {"model": "m", "api_key": KEY, "timeout": 30.0} | settings
        terms.setdefault("base_url", getattr(where, "url", None))
        return Client(Settings(**terms), caches[-1])

    yield make
    for cache in caches:
        cache.close()


@pytest.fixture
def alone(client, tmp_path):
    """`alone(server, **settings)`: a client whose cache starts empty."""

    def make(where, **settings):
        (tmp_path / "answers.jsonl").unlink(missing_ok=True)
        return client(where, **settings)

    return make
