"""What a scripted server answers on CXR-QBA's prompts."""

import collections
import json
import re

from cxrjax.papers.cxr_qba.construct import language_model_answers as answers
from cxrjax.papers.cxr_qba.construct import language_model_rater as rating
from cxrjax.papers.cxr_qba.construct.extraction import ReportSections
from cxrjax.papers.cxr_qba.construct.ratings import ANSWER_CRITERIA, QUESTION_CRITERIA
from cxrjax.papers.cxr_qba.construct.rule_extractor import RuleExtractor, split_text

REPORT = ReportSections(
    {
        "indication": "Fever, evaluate for pneumonia.",
        "findings": "Stable small left effusion. Heart size is normal. PA view.",
        "impression": "1. Left effusion. 2. The XXXX is unchanged.",
    }
)
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


GOOD_SENTENCES = sentences(
    ("indication", "Fever, evaluate for pneumonia.", []),
    ("impression", "The XXXX is unchanged.", []),
    ("findings", "Stable small left effusion.", ["Left effusion."]),
    ("findings", "Heart size is normal.", []),
)
GOOD_INDICATION = {
    "indication_summary": "Fever; pneumonia is looked for.",
    "patient_info": "",
    "indication": "fever",
    "evaluation": "pneumonia",
    "answer_sentence_ids": ["S02"],
    "answer_for_indication": "There is a small left pleural effusion.",
}


def observation(**changes):
    return {
        "name": "Small left pleural effusion",
        "summary_sentence": "There is a small left pleural effusion.",
        "entity": ["Pleural Effusion"],
        "regions": ["the left pleural space"],
        "side": "left",
        "probability": 1.0,
        "modifiers": {"temporal": [], "severity": ["small"], "texture": [], "spread": []},
        "change": ["no change"],
        "change_sentence": "The effusion is unchanged.",
        "children": [],
    } | changes


NORMAL_HEART = observation(
    name="Normal heart",
    summary_sentence="The heart is normal.",
    entity=["cardiac enlargement"],
    regions=["heart"],
    side="",
    probability=0,
    modifiers={"temporal": [], "severity": [], "texture": [], "spread": []},
    change=[],
    change_sentence="",
)


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
        found = []
        if "Stable small left effusion." in told:
            found = [observation()]
        elif "Heart size is normal." in told:
            found = [NORMAL_HEART]
        return text_of(chat, {"observations": found})

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
        return observation(
            name=found.name,
            summary_sentence=found.summary_sentence,
            entity=list(found.entity),
            regions=list(found.regions),
            side=found.side,
            probability=sure if found.positive else 1 - sure,
            modifiers={kind: [v for k, v in found.modifiers if k == kind] for kind in kinds},
            change=list(found.change),
            change_sentence=found.change_sentence,
            children=[self._one(child) for child in found.children],
        )
