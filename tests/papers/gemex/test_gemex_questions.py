"""Questions out of refined reports: what they claim, how many, and the filters they go through."""

import collections
import dataclasses
import itertools
import json
import re
from importlib import resources

import pytest

from cxrjax.papers.gemex.construct import questions
from cxrjax.papers.gemex.construct.pool import pool_of
from cxrjax.papers.gemex.construct.questions import QUESTIONS_PER_REPORT, check
from cxrjax.papers.gemex.construct.refine import RuleRefiner
from cxrjax.papers.gemex.construct.template_generator import TemplateGenerator
from cxrjax.papers.gemex.dialogue import LETTERS
from cxrjax.papers.sources import report as reports
from cxrjax.papers.sources.regions import load_regions
from cxrjax.papers.sources.report import ReportSentence, split_sentences
from cxrjax.radiology_text.english import load_vocabulary
from cxrjax.records_io.quality import Unusable
from tests.papers.cases import cases, data

ABNORMAL, NORMAL, DOUBTFUL = data(__file__)["reports"]


def test_a_part_may_be_called_normal_in_any_region():
    """A language model may give a sentence another region than the rules would."""
    sentence = "The cardiomediastinal silhouette is normal."
    pool = pool_of([reports.RefinedSentence(sentence, "bilateral lung", 0)])
    assert pool.normal == {"bilateral lung": "The cardiac and mediastinal silhouette is normal."}


def refine(text, report_id="r1"):
    sentences = tuple(ReportSentence(one) for one in split_sentences(text))
    report = reports.ImageReport(report_id, report_id, "", sentences, {})
    return questions.RefinedReport(*next(iter(RuleRefiner().refine([report]))))


def drafts_of(text, seed=0, report_id="r1"):
    ((_, drafts),) = TemplateGenerator(seed).generate([refine(text, report_id)])
    return drafts


def test_eleven_questions_of_the_papers_mix():
    drafts = drafts_of(ABNORMAL)
    assert collections.Counter(d.question_type for d in drafts) == QUESTIONS_PER_REPORT
    assert sum(QUESTIONS_PER_REPORT.values()) == 11
    assert len({d.question for d in drafts}) > 8
    for draft in drafts:
        assert draft.content_type in questions.CONTENT_TYPES
        assert set(draft.regions) <= set(load_regions().regions)


def test_the_same_for_a_seed_and_a_report_and_another_for_others():
    assert drafts_of(ABNORMAL) == drafts_of(ABNORMAL)
    assert drafts_of(ABNORMAL) != drafts_of(ABNORMAL, seed=1)
    assert drafts_of(ABNORMAL) != drafts_of(ABNORMAL, report_id="r2")


def test_pool():
    pool = pool_of(refine(ABNORMAL).refinement.sentences)
    assert set(pool.present) == {"cardiomegaly", "pleural_effusion", "opacity"}
    assert pool.present["opacity"].cause == "pneumonia"
    assert set(pool.absent) == {"pneumothorax", "hiatal_hernia"}
    assert set(pool.normal) == {"trachea", "spine"}
    doubtful = pool_of(refine(DOUBTFUL).refinement.sentences)
    assert set(doubtful.doubtful) == {"pneumonia"}
    assert "pneumonia" not in doubtful.absent


def claims(text, seeds=range(30)):
    return [draft for seed in seeds for draft in drafts_of(text, seed)]


def test_answers_follow_from_the_report():
    """Every finding in an option or a yes/no question is judged as the report states it."""
    present = {"Cardiomegaly", "Pleural effusion", "Opacity"}
    absent = {"Pneumothorax", "Hiatal hernia"}
    seen = collections.Counter()
    for draft in claims(ABNORMAL):
        template = draft.template_id or ""
        for kind, right in (("presence", present), ("absence", absent)):
            if f"_choice/{kind}/" in template:
                for letter, option in zip(LETTERS, draft.choices, strict=False):
                    chosen = letter in draft.answer
                    assert not chosen or option in right | {"All of the above"}
                    if option in present | absent:
                        seen[kind] += 1
                        multi = draft.question_type == "multi_choice"
                        assert chosen == (option in right) or (option in right and not multi)
        if "closed_ended/presence" in template:
            named = [n for n in present | absent if n.lower() in draft.question.lower()]
            assert len(named) == 1
            assert draft.answer == ("Yes." if named[0] in present else "No.")
            seen["closed"] += 1
    assert min(seen[k] for k in ("presence", "absence", "closed")) > 10


def test_what_is_doubtful_is_neither_asked_nor_offered():
    for draft in claims(DOUBTFUL):
        said = " ".join([draft.question, *draft.choices, *draft.answer_words])
        assert not re.search("pneumonia|opacity|atelectasis|consolidation", said, re.IGNORECASE)


def test_options_exclude_one_another():
    regions = load_regions()
    for draft in claims(ABNORMAL):
        named = filter(None, map(regions.name, draft.choices))
        assert not any(itertools.starmap(regions.overlap, itertools.combinations(named, 2)))
        assert len(set(draft.choices)) == len(draft.choices)


def test_letters_and_yes_are_balanced():
    letters, answers = collections.Counter(), collections.Counter()
    for draft in claims(ABNORMAL, range(120)) + claims(NORMAL, range(120)):
        if draft.question_type == "single_choice" and len(draft.choices) == 4:
            letters[draft.answer] += 1
        if draft.question_type == "closed_ended":
            answers[draft.answer] += 1
    shares = [count / letters.total() for count in letters.values()]
    assert len(shares) == 4 and min(shares) > 0.17 and max(shares) < 0.33
    assert max(answers.values()) < 2 * min(answers.values())


def test_no_question_passes_with_comparing_words():
    for draft in claims(ABNORMAL) + claims(NORMAL):
        try:
            check(draft)
        except Unusable as verdict:
            assert verdict.reason == "answer_leakage"


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
    file = resources.files("cxrjax.papers.gemex.construct").joinpath("wordings_v3.json")
    wordings = json.loads(file.read_text())
    for kind, contents in wordings["questions"].items():
        for content, phrasings in contents.items():
            assert len(set(phrasings)) >= 6, (kind, content)
    for name, phrasings in wordings["reasons"].items():
        assert len(set(phrasings)) >= (2 if name.startswith("several") else 6), name
    signs = wordings["signs"]
    assert all(len(set(signs[polarity])) >= 6 for polarity in ("present", "absent"))
    assert signs["finding"].keys() < load_vocabulary().findings.keys()
