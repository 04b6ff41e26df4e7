"""A client of the scripted server, which does not wait long between attempts."""

import pytest
import tenacity

from cxrjax.language_model import AnswerCache, Client, Settings
from cxrjax.language_model import completion as server

KEY = "sk-very-secret-0123456789"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(server, "_backoff", tenacity.wait_exponential_jitter(0.01, 0.05, jitter=0))


@pytest.fixture
def client(tmp_path):
    """`client(server, **settings)`: a client of it, with a key; all share one cache file."""
    caches = []

    def make(where, **settings):
        for cache in caches:
            cache.close()
        caches.append(AnswerCache(tmp_path / "answers.jsonl"))
        terms = {"model": "m", "api_key": KEY, "timeout": 5.0} | settings
        terms.setdefault("base_url", getattr(where, "url", None))
        return Client(Settings(**terms), caches[-1])

    yield make
    for cache in caches:
        cache.close()
