"""Rating questions by a language model: contexts, verdicts, failures."""

import importlib.util
import re
from pathlib import Path

import pytest

from cxrjax.papers.cxr_qba.construct import language_model_rater as rating
from cxrjax.papers.cxr_qba.construct.construction import construct_questions
from cxrjax.papers.cxr_qba.construct.language_model_rater import LanguageModelRater, verdict_form
from cxrjax.papers.cxr_qba.construct.ratings import (
    ANSWER_CRITERIA,
    QUESTION_CRITERIA,
    overall_grade,
)
from cxrjax.papers.cxr_qba.construct.sampling import MentionCounts
from cxrjax.records_io.quality import QualityLog

_path = Path(__file__).with_name("scripted_model.py")
_spec = importlib.util.spec_from_file_location("scripted_model", _path)
scripted = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(scripted)


@pytest.fixture
def some(graph_of, how):
    """A graph and four of its questions, one with several answers."""
    graph = graph_of("Small left effusion. Heart size is normal.", indication="Fever.")
    made = construct_questions(graph, MentionCounts(), how)
    made.questions = (
        sorted(made.questions, key=lambda q: -len(list(q.all_answers())))[:2]
        + [q for q in made.questions if len(list(q.all_answers())) == 1][:2]
    )
    assert len(list(made.questions[0].all_answers())) > 2
    return graph, made


def test_each_criterion_is_asked_with_its_context(chat, client, some):
    graph, made = some
    with chat.Server(scripted.judge(chat)) as where:
        quality = QualityLog()
        LanguageModelRater(client(where)).rate(graph, made, quality)
    # A question is asked about its wording once, wherever it stands.
    assert quality.examined["verdicts of a language model"] == 5 * len(made.questions)
    contexts = {}
    for body in where.bodies:
        text = scripted.asked(body)
        contexts[scripted.stage_of(body)] = (
            "FINDINGS: Small left effusion. Heart size is normal." in text,
            "Question: " in text,
            bool(scripted.numbers(text)),
        )
    assert contexts == {
        "entailment": (True, True, True),
        "relevance": (False, True, True),
        "completeness": (False, True, True),
        "question_clarity": (False, True, False),
        "answer_clarity": (False, False, True),
    }
    for question in made.questions:
        assert {c: question.question_quality[c] for c in QUESTION_CRITERIA} == {
            "completeness": "FULLY_COMPLETE",
            "question_clarity": "OPTIMAL",
        }
        assert all(
            answer.answer_quality
            == {
                "entailment": "ALIGNED_MENTIONED",
                "relevance": "RELEVANT_MAIN_ANSWER",
                "answer_clarity": "OPTIMAL",
            }
            for answer in question.all_answers()
        )
        assert overall_grade(question) != "unrated"
    assert not quality.warnings


def test_verdicts_go_to_their_answers(chat, client, some):
    graph, made = some
    target = made.questions[0]

    def one_bad(stage, text, turns):
        if stage == "entailment" and target.question in text:
            rows = [
                {
                    "number": n,
                    "verdict": "NON_ALIGNED_CONTRADICTING" if n == 2 else "ALIGNED_MENTIONED",
                }
                for n in scripted.numbers(text)
            ]
            return {"verdicts": rows}

    with chat.Server(scripted.judge(chat, one_bad)) as where:
        LanguageModelRater(client(where)).rate(graph, made, QualityLog())
    found = [a.answer_quality["entailment"] for a in target.all_answers()]
    assert [n for n, verdict in enumerate(found) if "CONTRADICTING" in verdict] == [1]
    assert overall_grade(target) == "D"


@pytest.mark.parametrize(
    "wrong",
    [
        {"verdicts": []},
        {"verdicts": [{"number": 1, "verdict": "ALIGNED_MENTIONED"}] * 2},
        {"verdicts": [{"number": 1, "verdict": "FINE"}]},
        {"verdict": "ALIGNED_MENTIONED"},
        '{"verdicts": [{"number": 1, "verd',
    ],
)
def test_wrong_verdicts_are_asked_for_again(chat, client, some, wrong):
    graph, made = some
    made.questions = made.questions[:1]
    first = 2 + 2 * len(scripted.RATE["entailment"]["demonstrations"])

    def once(stage, text, turns):
        return wrong if stage == "entailment" and turns == first else None

    with chat.Server(scripted.judge(chat, once)) as where:
        quality = QualityLog()
        LanguageModelRater(client(where)).rate(graph, made, quality)
    assert len(where.bodies) == 6 and not quality.warnings
    assert overall_grade(made.questions[0]) != "unrated"


def test_failures_are_counted_and_leave_the_question_unrated(chat, client, some):
    graph, made = some
    made.questions = made.questions[:1]

    def failing(stage, text, turns):
        if stage == "relevance":
            return chat.Text(None, refusal="no")
        return "never json" if stage == "question_clarity" else None

    with chat.Server(scripted.judge(chat, failing)) as where:
        quality = QualityLog()
        LanguageModelRater(client(where)).rate(graph, made, quality)
    (question,) = made.questions
    assert quality.warnings == {
        "relevance left unrated: refusal": 1,
        "question_clarity left unrated: invalid_json": 1,
    }
    assert overall_grade(question) == "unrated"
    assert "completeness" in question.question_quality
    assert all("relevance" not in answer.answer_quality for answer in question.all_answers())


@pytest.mark.parametrize("criterion", list(rating.CRITERIA))
def test_criteria_name_all_verdicts_and_show_valid_ones(criterion):
    stage = scripted.RATE[criterion]
    named = re.findall(r"^- ([A-Z_]+):", stage["system"], re.M)
    assert named == list(rating.CRITERIA[criterion])
    for shown in stage["demonstrations"]:
        read = verdict_form(criterion).model_validate_json(shown["assistant"])
        if criterion in ANSWER_CRITERIA:
            assert [one.number for one in read.verdicts] == scripted.numbers(shown["user"])
