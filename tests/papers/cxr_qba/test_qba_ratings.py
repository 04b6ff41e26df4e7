"""Ratings, the minimum rule and export filters."""

import itertools

import pytest

from cxrjax.papers.cxr_qba.construct import ratings
from cxrjax.papers.cxr_qba.construct.ratings import (
    GRADES,
    UNRATED,
    localization_quality,
    overall_grade,
    rate_by_rules,
    rate_observation,
    rating,
)
from cxrjax.papers.cxr_qba.native import (
    NativeAnswer,
    NativeLocalization,
    NativeObservation,
    NativeQuestion,
    ObservedRegion,
)

GOOD = {
    "entailment": "ALIGNED_MENTIONED",
    "relevance": "RELEVANT_MAIN_ANSWER",
    "answer_clarity": "OPTIMAL",
}


def question(depth=0, quality=None, extraction=None, **changes):
    """A question with one answer and `depth` levels below it; the lowest one is changed."""
    parts = []
    for level in range(depth, -1, -1):
        lowest = level == depth
        parts = [
            NativeAnswer(
                answer_id=f"a{level}",
                answer_type="details" if level else "main_answer",
                text="Text.",
                answer_quality={**GOOD, **(quality or {})} if lowest else dict(GOOD),
                extraction_quality=(extraction or {}) if lowest else {},
                sub_answers=parts,
            )
        ]
    rated = {"completeness": "FULLY_COMPLETE", "question_clarity": "OPTIMAL", **changes}
    return NativeQuestion(
        question_id="q", question_type="B01_describe_all", question_strategy="abnormal",
        question="What?", answers=parts, question_quality=rated,
    )  # fmt: skip


def test_order_of_grades():
    assert GRADES == ("A++", "A+", "A", "B", "C", "D")
    assert ratings.lowest(["A", "A++", "C", "B"]) == "C"
    assert ratings.lowest([]) is None


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_the_lowest_rating_decides_at_any_depth(depth):
    assert overall_grade(question(depth)) == "A++"
    for value, expected in ratings.ANSWER_CRITERIA["entailment"].items():
        assert overall_grade(question(depth, {"entailment": value})) == expected
    assert overall_grade(question(depth, extraction={"region_quality": "NO_REGIONS"})) == "B"


def test_questions_own_criteria():
    for criterion, table in ratings.QUESTION_CRITERIA.items():
        for value, expected in table.items():
            assert overall_grade(question(**{criterion: value})) == expected


def test_relevance_depends_on_the_kind_of_answer():
    kinds = ("main_answer", "details", "related_information")
    own = [rating("relevance", "RELEVANT_MAIN_ANSWER", kind) for kind in kinds]
    related = [rating("relevance", "RELATED_INFO", kind) for kind in kinds]
    assert own == ["A++", "A++", "A"]
    assert related == ["A+", "A+", "A++"]


@pytest.mark.parametrize("depth", [0, 2])
def test_a_missing_verdict_leaves_it_unrated(depth):
    assert overall_grade(question(depth, {"entailment": None})) == UNRATED
    assert overall_grade(question(completeness="FAILED")) == UNRATED
    assert not ratings.at_least(UNRATED, "D")


def test_the_literal_reading_counts_the_whole_graph():
    study = {"entity_quality": "NO_ENTITIES"}
    assert overall_grade(question()) == "A++"
    assert overall_grade(question(), study) == "B"


def test_boxes_on_images_count():
    made = question()
    made.question_img_localization_quality = {"i": "FALLBACK_LOCALIZATION"}
    assert overall_grade(made) == "B"


@pytest.mark.parametrize(("grade", "least"), itertools.product((*GRADES, UNRATED), ("B", "A")))
def test_grades_are_ordered(grade, least):
    passes = grade in {"B": ("A++", "A+", "A", "B"), "A": ("A++", "A+", "A")}[least]
    assert ratings.at_least(grade, least) is passes


def observation(**fields):
    given = {
        "regions": [ObservedRegion(region="left lung")],
        "obs_entities": ["lung opacity"],
        "name": "Lung opacity",
        "summary_sentence": "There is a lung opacity.",
    }
    return NativeObservation(obs_id="O01", **{**given, **fields})


@pytest.mark.parametrize(
    ("criterion", "value", "fields"),
    [
        ("region_quality", "RESOLVED_REGIONS_ONLY", {}),
        ("region_quality", "NO_REGIONS", {"regions": []}),
        ("region_quality", "DEFAULT_REGIONS_ONLY", {"default_regions": ["left lung"]}),
        ("region_quality", "CONTAINS_NON_RESOLVED_REGIONS", {"non_resolved_regions": ["x"]}),
        ("region_quality", "CONTAINS_DEFAULT_REGIONS", {"default_regions": ["lingula"]}),
        ("entity_quality", "RESOLVED_ENTITIES_ONLY", {}),
        ("entity_quality", "NO_ENTITIES", {"obs_entities": []}),
        ("entity_quality", "CONTAINS_NON_RESOLVED_ENTITIES", {"non_resolved_obs_entities": ["x"]}),
        ("sentence_name_quality", "NO_ISSUES", {}),
        ("sentence_name_quality", "CHANGE_IN_SENTENCE_OR_NAME", {"name": "Stable opacity"}),
        ("sentence_name_quality", "UNDERSCORES_IN_SENTENCE_OR_NAME", {"name": "Seen by ___"}),
        ("change_quality", "NO_ISSUES", {}),
        ("change_quality", "CHANGE_SENTENCE_REMOVED", {"changes": ["new"]}),
        (
            "change_quality",
            "CONTAINS_NON_RESOLVED_CHANGES",
            {"changes": ["odd"], "change_sentence": "It is odd."},
        ),
        ("change_quality", "UNDERSCORES_IN_CHANGE_SENTENCE", {"change_sentence": "Since ___."}),
        ("issue_level", "NO_ISSUES", {}),
        ("issue_level", "NON_INTERPRETABLE", {"obs_entities": []}),
        ("issue_level", "DISCARDED", {"name": "", "summary_sentence": ""}),
        (
            "issue_level",
            "MOSTLY_INTERPRETABLE",
            {"obs_entities": [], "non_resolved_obs_entities": ["x"]},
        ),
    ],
)
def test_criteria_of_an_observation(criterion, value, fields):
    assert rate_observation(observation(**fields))[criterion] == value
    assert value in ratings.SCENE_GRAPH_CRITERIA[criterion]


def place(**fields):
    given = {"image_id": "i", "bboxes": [[0, 0, 9, 9]], "localization_reference_ids": ["left lung"]}
    return NativeLocalization(**{**given, **fields})


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({}, "BBOX_LOCALIZATION"),
        ({"instance_mask_ids": ["m"]}, "BBOX_AND_MASK_LOCALIZATION"),
        ({"missing_localization": ["lingula"]}, "INCOMPLETE_LOCALIZATION"),
        ({"is_fallback": True}, "FALLBACK_LOCALIZATION"),
        ({"bboxes": []}, "NO_LOCALIZATION"),
    ],
)
def test_localization_quality(fields, value):
    assert localization_quality([place(**fields)]) == value
    assert localization_quality([place(instance_mask_ids=["m"]), place(**fields)]) == value
    assert localization_quality([place(**fields), None]) == "NO_LOCALIZATION"


def test_the_surrogate_stays_apart():
    made = question(1)
    made.question_quality = {}
    for answer in made.all_answers():
        answer.answer_quality = {}
    grade = rate_by_rules(made)
    assert grade in GRADES
    assert overall_grade(made) == UNRATED
    assert made.question_quality["surrogate"]["grade"] == grade
    assert "surrogate" in made.question_quality["surrogate"]["rater"]
    assert all(set(answer.answer_quality) == {"surrogate"} for answer in made.all_answers())
