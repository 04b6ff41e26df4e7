"""Questions out of refined reports: what they claim, how many, and the filters they go through."""

import collections
import dataclasses
import itertools
import json
import random
import re
from importlib import resources

import pytest

from cxrjax.papers.gemex.construct import questions
from cxrjax.papers.gemex.construct.facts import find_facts
from cxrjax.papers.gemex.construct.pool import pool_of
from cxrjax.papers.gemex.construct.questions import QUESTIONS_PER_REPORT, check
from cxrjax.papers.gemex.construct.refine import RuleRefiner
from cxrjax.papers.gemex.construct.template_generator import TemplateGenerator, may_touch
from cxrjax.papers.gemex.dialogue import LETTERS
from cxrjax.papers.gemex.statistics import PAPER
from cxrjax.papers.sources import report as reports
from cxrjax.papers.sources.regions import load_regions
from cxrjax.papers.sources.report import ReportSentence, split_sentences
from cxrjax.radiology_text.english import load_vocabulary
from cxrjax.records_io.quality import Unusable
from tests.papers.cases import cases, data

ABNORMAL, DOUBTFUL = data(__file__)["reports"]


def test_a_part_may_be_called_normal_in_any_region():
    """A language model may give a sentence another region than the rules would."""
    sentence = "The cardiomediastinal silhouette is normal."
    pool = pool_of([reports.RefinedSentence(sentence, "bilateral lung", 0)])
    assert pool.normal == {"bilateral lung": "The cardiac and mediastinal silhouette is normal."}


def refine(text, report_id="r1"):
    sentences = tuple(ReportSentence(one) for one in split_sentences(text))
    report = reports.ImageReport(report_id, report_id, "", sentences, {})
    return questions.RefinedReport(*next(iter(RuleRefiner().refine([report]))))


# Finding -> it is there, in a place; every report has it or denies it.
SAID = {
    "Cardiomegaly": "There is {degree} cardiomegaly.",
    "Pleural effusion": "There is a {side} pleural effusion.",
    "Atelectasis": "There is atelectasis in the {side} lower lung zone.",
    "Pneumothorax": "There is a {side} pneumothorax.",
    "Nodule": "There is a nodule in the {side} upper lung zone.",
}


@pytest.fixture(scope="module")
def batch():
    """Reports, and the findings that each has."""
    rng = random.Random(0)
    made = []
    for number in range(120):
        there = rng.sample(sorted(SAID), rng.choice((0, 1, 1, 2, 2, 3)))
        terms = {"side": rng.choice(("left", "right"))}
        terms["degree"] = rng.choice(("mild", "moderate", "severe"))
        texts = [SAID[name].format(**terms) for name in there]
        texts += [f"There is no {name.lower()}." for name in SAID if name not in there]
        lungs = set(there) - {"Cardiomegaly"}
        texts += ["The lungs are clear."] * (not lungs) + ["The trachea is midline."]
        made.append((refine(" ".join(texts), f"r{number}"), set(there)))
    return made


def asked_of(batch, seed=0):
    """(draft, findings of its report), one report after the other."""
    made = TemplateGenerator(seed).generate(refined for refined, _ in batch)
    return [
        (draft, there)
        for (_, drafts), (_, there) in zip(made, batch, strict=True)
        for draft in drafts
    ]


@pytest.fixture(scope="module")
def asked(batch):
    return asked_of(batch)


def test_questions_are_of_the_papers_types_and_contents(batch, asked):
    for _, drafts in TemplateGenerator().generate(refined for refined, _ in batch):
        counts = collections.Counter(d.question_type for d in drafts)
        assert all(counts[kind] <= most for kind, most in QUESTIONS_PER_REPORT.items())
        assert len({(d.question, d.choices) for d in drafts}) == len(drafts)
    assert sum(QUESTIONS_PER_REPORT.values()) == 11
    contents = collections.Counter(draft.content_type for draft, _ in asked)
    assert set(contents) <= set(questions.CONTENT_TYPES) and len(asked) > 400
    for name in ("abnormality", "disease"):
        printed = PAPER[f"train_content_percent/{name}"].value
        assert 100 * contents[name] / len(asked) == pytest.approx(printed, abs=5)
    regions = {region for draft, _ in asked for region in draft.regions}
    assert regions <= set(load_regions().regions)


def test_the_same_for_a_seed_and_another_for_others(batch, asked):
    assert asked_of(batch) == asked
    assert asked_of(batch, seed=1) != asked


def test_pool():
    pool = pool_of(refine(ABNORMAL).refinement.sentences)
    assert set(pool.present) == {"cardiomegaly", "pleural_effusion", "opacity"}
    assert pool.present["opacity"].cause == "pneumonia"
    assert set(pool.absent) == {"pneumothorax", "hiatal_hernia"}
    assert set(pool.normal) == {"trachea", "spine"}
    doubtful = pool_of(refine(DOUBTFUL).refinement.sentences)
    assert set(doubtful.doubtful) == {"pneumonia"} - {*doubtful.absent}
    text = (
        "The heart is large. A right effusion blunts the angle. Effusion at the costophrenic angle."
    )
    text = f"{text} Nodular densities. No infiltrate. Scar."
    pool = pool_of(refine(text).refinement.sentences, (), ["Left scar."])
    heart, fluid, nodule, scar, *_ = pool.present.values()
    assert (heart.severity, fluid.regions, nodule.several) == (None, ("right lung",), True)
    assert not (scar.located or pool.absent or may_touch(fluid, find_facts("Left effusion.")[0]))


def test_answers_follow_from_the_report(asked):
    """Every finding in an option or a yes/no question is judged as the report states it."""
    seen = collections.Counter()
    for draft, there in asked:
        named = [name for name in SAID if name.lower() in draft.question.lower()]
        if "closed_ended/presence" in draft.template_id:
            assert draft.answer == ("Yes." if named[0] in there else "No.")
            seen["closed"] += 1
        for letter, option in zip(LETTERS, draft.choices, strict=False):
            denied, name = "no " in option, option.removeprefix("There is ")
            name = name.removeprefix("no ").removeprefix("a ").capitalize()
            if name in SAID and draft.content_type != "location":
                holds = (name in there) != (denied or "/absence/" in draft.template_id)
                assert (letter in draft.answer) == holds
                seen[draft.template_id.split("/")[1]] += 1
    assert min(seen[k] for k in ("closed", "single_choice", "multi_choice")) > 40


def test_what_is_doubtful_is_neither_asked_nor_offered(batch):
    for draft, there in asked_of([(refine(DOUBTFUL, "d"), None), *batch]):
        if there is None:
            said = " ".join([draft.question, *draft.choices, *draft.answer_words])
            assert not re.search("pneumonia|opacity|atelectasis|consolidation", said, re.I)


def test_options_exclude_one_another(asked):
    regions = load_regions()
    for draft, _ in asked:
        named = filter(None, map(regions.name, draft.choices))
        assert not any(itertools.starmap(regions.overlap, itertools.combinations(named, 2)))
        assert len(set(draft.choices)) == len(draft.choices)


def test_nothing_but_the_image_tells_the_answer(asked):
    """Of the same words in the same question each option is right as often as a guess is."""
    options = collections.defaultdict(list)
    for draft, _ in asked:
        kind, form = draft.question_type, draft.question
        if kind == "closed_ended":
            options[kind, form, ""].append((draft.answer == "Yes.", 1 / 2))
        chance = 1 / 2 if kind == "multi_choice" else 1 / max(1, len(draft.choices))
        for letter, option in zip(LETTERS, draft.choices, strict=False):
            options[kind, form, option].append((letter in draft.answer, chance))
    assert {kind for kind, _, _ in options} == QUESTIONS_PER_REPORT.keys() - {"open_ended"}
    for found in options.values():
        assert sum(right for right, _ in found) == pytest.approx(sum(share for _, share in found))
    normal = [d.answer for d, _ in asked if "open_ended/condition" in d.template_id]
    assert len(normal) == 2 * sum(answer in ("Clear.", "Normal.") for answer in normal) > 0
    letters = collections.Counter(
        draft.answer for draft, _ in asked if draft.question_type == "single_choice"
    )
    assert letters["D"] and max(letters.values()) < 2 * min(letters[one] for one in "ABC")


def test_an_option_is_right_where_its_report_has_it(asked):
    held = 0
    for draft, there in asked:
        is_asked_for_absent = re.search(r"\b(?:not|cannot|absent)\b", draft.question) is not None
        for letter, option in zip(LETTERS, draft.choices, strict=False):
            name = next((name for name in SAID if name.lower() in option.lower()), None)
            if draft.question_type == "multi_choice" and name:
                denies = (" no " in option) != is_asked_for_absent
                assert (letter in draft.answer) == ((name in there) != denies), (draft, there)
                held += 1
    assert held > 100


def test_implications_follow_from_the_image(asked):
    told = [(d, there) for d, there in asked if d.content_type == "implication"]
    answers = {draft.answer for draft, _ in told}
    assert len(told) > 20 and len(answers) > 8
    for draft, there in told:
        beside = re.search(" as (.*) (?:is|are) seen besides", draft.answer)
        if beside:
            named = [name for name in SAID if name.lower() in beside[1]]
            assert named and set(named) <= there
            assert all(name.lower() in draft.reason.lower() for name in named)


def test_no_question_passes_with_comparing_words(asked):
    assert len(asked) > 100
    for draft, _ in asked:
        check(draft)  # raises Unusable


@cases("change, reason")
def test_filters(change, reason):
    change = {name: tuple(v) if isinstance(v, list) else v for name, v in change.items()}
    choices = ("Effusion", "Cardiomegaly", "Nodule")
    asked = ("single_choice", "abnormality", "Which is present?", "B", "The heart is large.")
    good = questions.Draft(*asked, ("cardiac silhouette",), choices)
    check(good)
    with pytest.raises(Unusable) as caught:
        check(dataclasses.replace(good, **change))
    assert caught.value.reason == reason


def test_templates_have_at_least_six_phrasings():
    file = resources.files("cxrjax.papers.gemex.construct").joinpath("wordings_v4.json")
    wordings = json.loads(file.read_text())
    for kind, contents in wordings["questions"].items():
        for content, phrasings in contents.items():
            assert len(set(phrasings)) >= 6, (kind, content)
    for name, phrasings in wordings["reasons"].items():
        assert len(set(phrasings)) >= (2 if name.startswith("several") else 6), name
    signs = wordings["signs"]
    assert all(len(set(signs[polarity])) >= 6 for polarity in ("present", "absent"))
    assert signs["finding"].keys() < load_vocabulary().findings.keys()
