"""What a scripted server answers on CXR-QBA's prompts; the texts are in `cases.toml`."""

import collections
import copy
import json
import re

from cxrjax.papers.cxr_qba.construct import language_model_answers as answers
from cxrjax.papers.cxr_qba.construct import language_model_rater as rating
from cxrjax.papers.cxr_qba.construct.extraction import ReportSections
from cxrjax.papers.cxr_qba.construct.ratings import ANSWER_CRITERIA, QUESTION_CRITERIA
from cxrjax.papers.cxr_qba.construct.rule_extractor import RuleExtractor, split_text
from tests.papers.cases import data

_SAID = data(__file__)
REPORT = ReportSections(_SAID["report"])
GOOD_INDICATION = _SAID["indication"]
EXTRACT = answers.load_prompt(answers.PROMPT)
RATE = answers.load_prompt(rating.PROMPT)


def stage_of(body):
    """Which prompt of ours a request begins with."""
    system = body["messages"][0]["content"]
    stages = {name: stage for name, stage in {**EXTRACT, **RATE}.items() if name != "version"}
    (found,) = (name for name, stage in stages.items() if stage["system"].strip() in system)
    return found


def asked(body):
    return body["messages"][-1]["content"]


def sentences(*rows):
    keys = ("section", "sentence", "same")
    return {"sentences": [dict(zip(keys, row, strict=True)) for row in rows]}


GOOD_SENTENCES = sentences(*_SAID["sentences"])


def observation(**changes):
    """A small left pleural effusion, or what the changes make of it."""
    return copy.deepcopy(_SAID["effusion"]) | changes


NORMAL_HEART = observation(**_SAID["heart"])


def reader(chat, wrong=None):
    """Answers on REPORT; `wrong(stage, text, how often asked)` may give another first."""
    often = collections.Counter()

    def script(body, number):
        stage = stage_of(body)
        said = wrong and wrong(stage, asked(body), often[stage])
        often[stage] += 1
        if said is not None:
            return said if not isinstance(said, str | dict) else text_of(chat, said)
        if stage == "sentences":
            return text_of(chat, GOOD_SENTENCES)
        if stage == "indication":
            return text_of(chat, GOOD_INDICATION)
        told = [m["content"] for m in body["messages"]]
        if "Stable small left effusion." in told:
            return text_of(chat, {"observations": [observation()]})
        normal = "Heart size is normal." in told
        return text_of(chat, {"observations": [NORMAL_HEART] if normal else []})

    return script


def text_of(chat, content):
    return chat.Text(content if isinstance(content, str) else json.dumps(content))


def numbers(text):
    return [int(n) for n in re.findall(r"^(\d+) \(", text, re.MULTILINE)]


def judge(chat, wrong=None):
    """The best verdict on everything; `wrong(stage, text)` may give another."""

    def script(body, number):
        stage, text = stage_of(body), asked(body)
        said = wrong and wrong(stage, text, len(body["messages"]))
        if said is not None:
            return said if not isinstance(said, str | dict) else text_of(chat, said)
        if stage in QUESTION_CRITERIA:
            return text_of(chat, {"verdict": next(iter(QUESTION_CRITERIA[stage]))})
        listed = next(m["content"] for m in reversed(body["messages"]) if numbers(m["content"]))
        best = next(iter(ANSWER_CRITERIA[stage]))
        # In another order: numbers decide.
        rows = [{"number": n, "verdict": best} for n in reversed(numbers(listed))]
        return text_of(chat, {"verdicts": rows})

    return script


class Rules:
    """A server's script that reads as the rules do, in the form that is asked for."""

    def __init__(self, chat):
        self.chat = chat
        self.extractor = RuleExtractor()
        self.judge = judge(chat)

    def __call__(self, body, number):
        stage, text = stage_of(body), asked(body)
        if stage in RATE:
            return self.judge(body, number)
        return text_of(self.chat, getattr(self, stage)(text))

    def sentences(self, text):
        rows = []
        for part in re.split(r"\n\n(?=[A-Z]+:\n)", text):
            heading, _, content = part.partition(":\n")
            rows += [(heading.lower(), one, []) for one in split_text(content)]
        return sentences(*rows)

    def indication(self, text):
        return GOOD_INDICATION | {"answer_sentence_ids": [], "answer_for_indication": ""}

    def observations(self, text):
        return {"observations": [self._one(o) for o in self.extractor.read_sentence(text)]}

    def _one(self, found):
        kinds = ("temporal", "severity", "texture", "spread")
        sure = {"certain": 1.0, "likely": 0.8, "unlikely": 0.7, "uncertain": 0.5}[found.certainty]
        same = ("name", "summary_sentence", "side", "change_sentence")
        lists = ("entity", "regions", "change")
        return observation(
            **{name: getattr(found, name) for name in same},
            **{name: list(getattr(found, name)) for name in lists},
            probability=sure if found.positive else 1 - sure,
            modifiers={kind: [v for k, v in found.modifiers if k == kind] for kind in kinds},
            children=[self._one(child) for child in found.children],
        )
