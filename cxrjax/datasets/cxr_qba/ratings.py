"""Quality criteria, their ratings, and the grade of a question.

Criteria of the scene graph are computed by construction. Those of questions and answers are
verdicts of a language model (language_model_rater.py); without one they are `unrated`, or rated by
rules under names that say surrogate (surrogate_rating.py). The two never meet in one field.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from cxrjax.datasets.cxr_qba.questions import Question, walk

GRADES = ("A++", "A+", "A", "B", "C", "D")
UNRATED = "unrated"
PRETRAINING = "B"
FINETUNING = "A"

SCENE_GRAPH_CRITERIA: dict[str, dict[str, str]] = {
    "region_quality": {
        "NO_REGIONS": "B",
        "DEFAULT_REGIONS_ONLY": "B",
        "CONTAINS_DEFAULT_REGIONS": "A",
        "CONTAINS_NON_RESOLVED_REGIONS": "A",
        "RESOLVED_REGIONS_ONLY": "A++",
    },
    "entity_quality": {
        "NO_ENTITIES": "B",
        "CONTAINS_NON_RESOLVED_ENTITIES": "A",
        "RESOLVED_ENTITIES_ONLY": "A++",
    },
    "sentence_name_quality": {
        "CHANGE_IN_SENTENCE_OR_NAME": "B",
        "UNDERSCORES_IN_SENTENCE_OR_NAME": "A",
        "NO_ISSUES": "A++",
    },
    "change_quality": {
        "CHANGE_SENTENCE_REMOVED": "B",
        "UNDERSCORES_IN_CHANGE_SENTENCE": "A",
        "CONTAINS_NON_RESOLVED_CHANGES": "A",
        "NO_ISSUES": "A++",
    },
    "issue_level": {
        "DISCARDED": "D",
        "NON_INTERPRETABLE": "C",
        "MOSTLY_INTERPRETABLE": "B",
        "IGNORABLE": "A",
        "FIXABLE": "A+",
        "NO_ISSUES": "A++",
    },
    "localization_quality": {
        "NO_LOCALIZATION": "B",
        "FALLBACK_LOCALIZATION": "B",
        "INCOMPLETE_LOCALIZATION": "A",
        "BBOX_LOCALIZATION": "A++",
        "BBOX_AND_MASK_LOCALIZATION": "A++",
    },
}

# On each answer and sub-answer.
ANSWER_CRITERIA: dict[str, dict[str, str]] = {
    "entailment": {
        "ALIGNED_MENTIONED": "A++",
        "ALIGNED_INFERABLE": "A++",
        "ALIGNED_NEGATIVE_NOT_MENTIONED": "A",
        "ALIGNED_GENERAL_STATEMENT": "A",
        "NON_ALIGNED_NON_INFERABLE": "B",
        "NON_ALIGNED_MISLEADING": "C",
        "NON_ALIGNED_CONTRADICTING": "D",
    },
    "relevance": {
        "RELEVANT_MAIN_ANSWER": "A++",
        "RELATED_INFO": "A++",
        "REDUNDANT_INFO": "A",
        "IRRELEVANT_INFO": "A",
    },
    "answer_clarity": {
        "OPTIMAL": "A++",
        "UNUSUAL_SENTENCE_STRUCTURE": "A",
        "GRAMMATICAL_ERRORS": "A",
        "UNCLEAR_ANSWER": "B",
        "NOT_UNDERSTANDABLE": "C",
    },
}

# On the question, or the whole answer.
QUESTION_CRITERIA: dict[str, dict[str, str]] = {
    "completeness": {
        "FULLY_COMPLETE": "A++",
        "DETAILS_MISSING": "A+",
        "NOT_ANSWERED": "B",
        "INCOMPLETE_NON_MISLEADING": "B",
        "INCOMPLETE_MISLEADING": "C",
    },
    "question_clarity": {
        "OPTIMAL": "A++",
        "UNUSUAL_SENTENCE_STRUCTURE": "A",
        "GRAMMATICAL_ERRORS": "A",
        "UNCLEAR_QUESTION": "B",
        "UNRELATED_TO_CHEST_XRAY": "B",
        "UNANSWERABLE": "C",
    },
}


def rating(criterion: str, value: str, answer_type: str = "main_answer") -> str:
    """The best grade that a criterion's value allows.

    Args:
        answer_type: relevance depends on it: a main answer's verdict on related information caps it
            at A, related information's verdict on the rest at A+.

    Raises:
        KeyError: criterion or value is unknown.
    """
    if criterion == "relevance":
        if value == "RELEVANT_MAIN_ANSWER" and answer_type == "related_information":
            return "A"
        if value == "RELATED_INFO" and answer_type != "related_information":
            return "A+"
    for table in (SCENE_GRAPH_CRITERIA, ANSWER_CRITERIA, QUESTION_CRITERIA):
        if criterion in table:
            return table[criterion][value]
    raise KeyError(criterion)


def lowest(grades: Iterable[str]) -> str | None:
    """The worst of some grades; None where there are none."""
    return max(grades, key=GRADES.index, default=None)


def at_least(grade: str | None, least: str) -> bool:
    """Whether a grade is `least` or better; an unrated one is not."""
    return grade in GRADES and GRADES.index(grade) <= GRADES.index(least)


def ratings_of(values: Mapping[str, Any], answer_type: str = "main_answer") -> list[str]:
    """Grades that the known criteria among these values allow."""
    known = {**SCENE_GRAPH_CRITERIA, **ANSWER_CRITERIA, **QUESTION_CRITERIA}
    return [
        rating(criterion, value, answer_type)
        for criterion, value in values.items()
        if criterion in known and value in known[criterion]
    ]


def worst_values(sources: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Per criterion of the scene graph, the worst value among some observations."""
    found: dict[str, str] = {}
    for values in sources:
        for criterion, table in SCENE_GRAPH_CRITERIA.items():
            value = values.get(criterion)
            if value not in table:
                continue
            held = found.get(criterion)
            if held is None or GRADES.index(table[value]) > GRADES.index(table[held]):
                found[criterion] = value
    return found


def extraction_grade(question: Question, study_quality: Mapping[str, Any] | None = None) -> str:
    """The worst rating among criteria of the scene graph: of the question, of every answer and its
    sub-answers (the release's page leaves these open), and of boxes on every image.

    Args:
        study_quality: of the whole scene graph, for the literal reading of "the full scene graph"
            on the release's page; without it, the observations count that answers are made from.
    """
    grades = ratings_of(question.extraction_quality)
    for answer in walk(question.answers):
        grades += ratings_of(answer.extraction_quality, answer.answer_type)
    for value in question.question_img_localization_quality.values():
        grades += ratings_of({"localization_quality": value})
    grades += ratings_of(study_quality or {})
    return lowest(grades) or GRADES[0]


def overall_grade(question: Question, study_quality: Mapping[str, Any] | None = None) -> str:
    """The grade by the minimum rule; `unrated` where a language model's verdict is missing.

    Every answer and sub-answer needs its three verdicts and the question its two: a failed
    evaluation leaves the question unrated, which says nothing about its quality.
    """
    grades = [extraction_grade(question, study_quality)]
    for criterion, table in QUESTION_CRITERIA.items():
        if question.question_quality.get(criterion) not in table:
            return UNRATED
    grades += ratings_of(question.question_quality)
    for answer in walk(question.answers):
        for criterion, table in ANSWER_CRITERIA.items():
            if answer.answer_quality.get(criterion) not in table:
                return UNRATED
        grades += ratings_of(answer.answer_quality, answer.answer_type)
    return lowest(grades) or UNRATED
