"""Ratings, the minimum rule, export filters, and answers read back against their sentences."""

import pytest

from cxrjax.papers.cxr_qba import native
from cxrjax.papers.cxr_qba.construct import ratings
from cxrjax.papers.cxr_qba.construct.generation import generate_questions
from cxrjax.papers.cxr_qba.construct.ratings import (
    GRADES,
    UNRATED,
    overall_grade,
    rate_by_rules,
    rating,
)
from cxrjax.papers.cxr_qba.construct.read_back import ReadBack
from cxrjax.papers.cxr_qba.construct.sampling import MentionCounts
from tests.papers.cases import cases, data

GOOD = {"entailment": "ALIGNED_MENTIONED", "relevance": "RELEVANT_MAIN_ANSWER"}
GOOD["answer_clarity"] = "OPTIMAL"


def question(depth=0, quality=None, extraction=None, **changes):
    """A question with one answer and `depth` levels below it; the lowest one is changed."""
    parts, quality, extraction = [], GOOD | (quality or {}), extraction or {}
    for level in range(depth, -1, -1):
        kind = "details" if level else "main_answer"
        told = {"answer_id": f"a{level}", "answer_type": kind, "text": "Text."}
        told |= {"answer_quality": quality, "extraction_quality": extraction}
        parts = [native.NativeAnswer(**told, sub_answers=parts)]
        quality, extraction = dict(GOOD), {}
    rated = {"completeness": "FULLY_COMPLETE", "question_clarity": "OPTIMAL", **changes}
    return native.NativeQuestion(
        question_id="q", question_type="B01_describe_all", question_strategy="abnormal",
        question="What?", answers=parts, question_quality=rated,
    )  # fmt: skip


def test_grades_are_those_of_the_questions_own_criteria():
    assert GRADES == ("A++", "A+", "A", "B", "C", "D")
    assert ratings.lowest(["A", "A++", "C", "B"]) == "C"
    assert ratings.lowest([]) is None
    for least, passing in (("B", GRADES[:4]), ("A", GRADES[:3])):
        assert tuple(g for g in (*GRADES, UNRATED) if ratings.at_least(g, least)) == passing
    for criterion, table in ratings.QUESTION_CRITERIA.items():
        for value, expected in table.items():
            assert overall_grade(question(**{criterion: value})) == expected
    kinds = ("main_answer", "details", "related_information")
    own = [rating("relevance", "RELEVANT_MAIN_ANSWER", kind) for kind in kinds]
    related = [rating("relevance", "RELATED_INFO", kind) for kind in kinds]
    assert own == ["A++", "A++", "A"]
    assert related == ["A+", "A+", "A++"]
    made = question()
    assert overall_grade(made) == "A++"
    made.question_img_localization_quality = {"i": "FALLBACK_LOCALIZATION"}
    assert overall_grade(made) == "B"


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_the_lowest_rating_decides_at_any_depth(depth):
    assert overall_grade(question(depth)) == "A++"
    for value, expected in ratings.ANSWER_CRITERIA["entailment"].items():
        assert overall_grade(question(depth, {"entailment": value})) == expected
    assert overall_grade(question(depth, extraction={"region_quality": "NO_REGIONS"})) == "B"


@pytest.mark.parametrize("depth", [0, 2])
def test_a_missing_verdict_leaves_it_unrated(depth):
    assert overall_grade(question(depth, {"entailment": None})) == UNRATED
    assert overall_grade(question(completeness="FAILED")) == UNRATED
    assert not ratings.at_least(UNRATED, "D")


def observation(**fields):
    given = {"obs_entities": ["lung opacity"], "name": "Lung opacity"}
    given["regions"] = [native.ObservedRegion(region="left lung")]
    given["summary_sentence"] = "There is a lung opacity."
    return native.NativeObservation(obs_id="O01", **{**given, **fields})


@cases("criterion, value, fields")
def test_criteria_of_an_observation(criterion, value, fields):
    assert ratings.rate_observation(observation(**fields))[criterion] == value
    assert value in ratings.SCENE_GRAPH_CRITERIA[criterion]


def place(**fields):
    given = {"image_id": "i", "bboxes": [[0, 0, 9, 9]], "localization_reference_ids": ["left lung"]}
    return native.NativeLocalization(**{**given, **fields})


@cases("fields, value")
def test_localization_quality(fields, value):
    masked, quality = place(instance_mask_ids=["m"]), ratings.localization_quality
    assert quality([place(**fields)]) == quality([masked, place(**fields)]) == value
    assert quality([place(**fields), None]) == "NO_LOCALIZATION"


def test_the_surrogate_stays_apart():
    made = question(1)
    made.question_quality = {}
    for answer in made.all_answers():
        answer.answer_quality = {}
    grade = ratings.rate_by_rules(made)
    assert grade in GRADES
    assert overall_grade(made) == UNRATED
    assert made.question_quality["surrogate"]["grade"] == grade
    assert "surrogate" in made.question_quality["surrogate"]["rater"]
    assert all(set(answer.answer_quality) == {"surrogate"} for answer in made.all_answers())


REPORT = data(__file__)["report"]


def graded(graph):
    """(grade, questions) of all questions of a graph."""
    read_back = ReadBack(graph)
    questions = generate_questions(graph, MentionCounts()).questions
    return [(rate_by_rules(question, read_back.verdicts), question) for question in questions]


def test_readings_are_borne_out_and_silence_contradicts(graph_of):
    assert not [q.question for grade, q in graded(graph_of(REPORT)) if grade in ("C", "D")]
    graph = graph_of("Clear lungs. No pneumothorax.")
    (node,) = [o for o in graph.observations.values() if o.obs_entities == ["pneumothorax"]]
    silent = native.NativeAnswer(
        answer_id="a", answer_type="main_answer", text="-", certainty="not_mentioned",
        obs_entities=node.obs_entities,
    )  # fmt: skip
    assert ReadBack(graph).verdicts(silent)["entailment"] == "NON_ALIGNED_CONTRADICTING"


@cases("finding, changes")
def test_what_the_sentence_does_not_say_is_graded_d(graph_of, finding, changes):
    graph = graph_of(REPORT)
    (node,) = [o for o in graph.observations.values() if finding in o.obs_entities]
    for name, value in changes.items():
        setattr(node, name, value)
    named = lambda question: {answer.name_tag for answer in question.all_answers()}  # noqa: E731
    assert {grade for grade, question in graded(graph) if node.name in named(question)} == {"D"}


@cases("text, finding, changes")
def test_what_misleads_is_graded_c(graph_of, text, finding, changes):
    """A doubt that was lost, a word that tells of less, a place where it cannot be."""
    graph = graph_of(text)
    (node,) = [o for o in graph.observations.values() if finding in o.obs_entities]
    for name, value in changes.items():
        setattr(node, name, value)
    assert {g for g, q in graded(graph) if q.variables.get("finding") == finding} == {"C"}


@pytest.mark.parametrize(
    "text, grade",
    [
        ("There is cardiomegaly.", "A++"),
        ("There is probably cardiomegaly.", "A+"),
        ("There is XXXX cardiomegaly.", "A+"),
        ("There is probably XXXX cardiomegaly.", "A"),
    ],
)
def test_each_inference_beyond_the_sentence_costs_a_grade(graph_of, text, grade):
    found = [g for g, q in graded(graph_of(text)) if q.variables.get("finding") == "cardiomegaly"]
    assert found and {*found} == {grade}
