"""Answers that were paid for stay in use: what is asked, and so its key, has not changed.

A request's key is of the prompt, the schema with its docstrings, and the wording of the item. Where
one is to change, say in CHANGELOG.md that answers of it are asked for again.
"""

import hashlib

import pytest

from cxrjax.files import read_packaged
from cxrjax.language_model.account import AnswerCache
from cxrjax.language_model.client import Client
from cxrjax.language_model.judges import asked
from cxrjax.language_model.settings import Settings
from cxrjax.papers.cxr_qba.construct import construction
from cxrjax.papers.cxr_qba.construct import language_model_answers as reading
from cxrjax.papers.cxr_qba.construct.extraction import ReportSections, SourceStudy
from cxrjax.papers.cxr_qba.construct.language_model_rater import LanguageModelRater
from cxrjax.papers.cxr_qba.construct.rule_extractor import split_report
from cxrjax.papers.cxr_qba.construct.sampling import MentionCounts
from cxrjax.papers.gemex.construct import language_model
from cxrjax.papers.gemex.construct.questions import RefinedReport
from cxrjax.papers.gemex.construct.refine import RuleRefiner
from cxrjax.papers.sources.report import ImageReport, ReportSentence
from cxrjax.papers.vindr_cxr_vqa.annotation import FindingBox, ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.construct.language_model_writer import LanguageModelWriter
from cxrjax.papers.vindr_cxr_vqa.construct.plan import PlannedQuestion
from cxrjax.records_io.quality import QualityLog

SECTIONS = {"indication": "Fever.", "findings": "Small left effusion. Heart is normal."}
SECTIONS = ReportSections({**SECTIONS, "impression": "Effusion."})


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    cache = AnswerCache(tmp_path_factory.mktemp("cache") / "answers.jsonl")
    yield Client(Settings("http://127.0.0.1:9/v1", "m"), cache)
    cache.close()


def _refining(client):
    sentences = (ReportSentence("Heart is normal."), ReportSentence("Small left effusion."))
    report = ImageReport("r", "i", "", sentences, {})
    yield language_model.LanguageModelRefiner(client, QualityLog()).request(report)
    ((_, refinement),) = RuleRefiner().refine([report])
    generator = language_model.LanguageModelGenerator(client, QualityLog())
    yield generator.request(RefinedReport(report, refinement))


def _reading(client):
    yield reading.SentenceStage(client).request(SECTIONS)
    yield reading.IndicationStage(client).request(split_report(SECTIONS))
    yield reading.ObservationStage(client).request("Small left effusion.")


def _rating(client):
    how = construction.CxrQbaConstruction()
    graph = construction.construct_graph(SourceStudy("p1", "s1", SECTIONS), how, QualityLog())
    made = construction.construct_questions(graph, MentionCounts(), how)
    return LanguageModelRater(client).planned_requests(graph, made)


def _judging(client):
    samples = {
        asked.RELATIVE_SCORE: {"question": "q", "first": "a", "second": "b", "context": "c"},
        asked.FACTS: {"text": "No effusion."},
        asked.FACT_MATCHING: {"a": ["x"], "b": ["y", "z"]},
    }
    return _verdicts(client, samples)


def _entailing(client):
    return _verdicts(client, {asked.ENTAILMENT: {"fact": "x", "known": ["y", "z"]}})


def _verdicts(client, samples):
    prompts = read_packaged("cxrjax.language_model.judges", f"{asked.PROMPT}.toml")
    for task, sample in samples.items():
        stage = asked._JudgeStage(client, task, prompts[task], store=None)  # nothing is asked
        yield stage.request(("key", sample))


def _wording(client):
    heart = (691.0, 1375.0, 1653.0, 1831.0)
    findings = [FindingBox("Cardiomegaly", heart)]
    image = ImageAnnotation("img", "i.png", (2400, 2000), findings, {"R1": findings, "R2": []})
    asked = {"question_id": "img-0", "kind": "Where", "style": "lesions", "count": 1}
    known = {"labels": ("Cardiomegaly",), "boxes": {"Cardiomegaly": (heart,)}}
    plan = PlannedQuestion(image=image, **asked, **known)
    yield LanguageModelWriter(client, QualityLog()).request(plan)


@pytest.mark.parametrize(
    ("requests", "digest"),
    [
        (_refining, "0f039b8be380da00"),
        (_reading, "f910dc11be896cd8"),
        (_rating, "8728bf35353535ae"),
        (_judging, "69d9ac2776522f33"),
        (_entailing, "9835e06afb6a390e"),
        (_wording, "cb083902b2c84f32"),
    ],
)
def test_keys_of_paid_answers_stay(client, requests, digest):
    keys = "".join(request.key(client.settings) for request in requests(client))
    assert hashlib.sha256(keys.encode()).hexdigest()[:16] == digest
