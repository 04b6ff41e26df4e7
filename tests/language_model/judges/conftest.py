"""Judges at a scripted server, and samples to judge."""

import json
import re

import pytest

from cxrjax.language_model.account import AnswerCache
from cxrjax.language_model.client import Client
from cxrjax.language_model.judges.asked import LanguageModelJudge, VerdictStore, judge_name
from cxrjax.language_model.judges.judge import Sample
from cxrjax.language_model.settings import Settings


@pytest.fixture
def sample():
    """`sample(n, answer)`: an answer of system "s" to question n."""

    def make(number, answer, system="s", **changes):
        fields = {
            "question": f"Question {number}?",
            "reference": f"There is an effusion, number {number}.",
            "context": "Small right effusion.",
        }
        return Sample(system, f"q{number}", answer=answer, **(fields | changes))

    return make


@pytest.fixture
def judge(tmp_path):
    """`judge(server or None, **settings)`: a language model's judge, or the replay of it."""
    opened = []

    def close():
        while opened:
            opened.pop().close()

    def make(where, dry_run=False, name="m", **settings):
        close()
        store = VerdictStore(tmp_path / "verdicts.jsonl", replay=where is None)
        opened.append(store)
        if where is None:
            return LanguageModelJudge(name, store, None)
        terms = {"base_url": where.url, "model": name, "timeout": 30.0, "attempts": 2} | settings
        cache = AnswerCache(tmp_path / "answers.jsonl")
        opened.append(cache)
        client = Client(Settings(**terms), cache)
        return LanguageModelJudge(judge_name(client), store, client, dry_run)

    yield make
    close()


@pytest.fixture
def marks():
    """`marks(overall)`: one answer's rating as a judge writes it."""
    return _marks


@pytest.fixture
def reply(chat):
    """`reply(body)`: what a judge of simple rules answers to a request of any of the three tasks.

    Marks are 8 for the answer that comes first and 6 for the other, and 1 for an empty one: it
    favours what it reads first. Facts are sentences; facts of the same words are the same.
    """
    return lambda body, number=0: chat.Text(_reply(body))


def _reply(body):
    asked = body["messages"][-1]["content"]
    if "<answer_1>" in asked:
        first, second = re.findall(r"<answer_\d>(.*?)</answer_\d>", asked, re.DOTALL)
        return json.dumps(
            {"first": _marks(8 if first else 1), "second": _marks(6 if second else 1)}
        )
    if asked.startswith("<text>"):
        text = asked.removeprefix("<text>").removesuffix("</text>")
        return json.dumps({"facts": [part.strip() for part in text.split(".") if part.strip()]})
    facts = dict(re.findall(r"^([AB]\d+): (.*)$", asked, re.MULTILINE))
    same = [
        {"a": int(a[1:]), "b": int(b[1:])}
        for a in facts
        for b in facts
        if a[0] == "A" and b[0] == "B" and facts[a].lower() == facts[b].lower()
    ]
    return json.dumps({"same": same})


def _marks(overall):
    return {"accuracy": overall, "relevance": 5, "helpfulness": 5, "overall": overall}
