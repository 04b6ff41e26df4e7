"""Criteria, verdicts and grades of observations, questions and answers, and their ratings by rules.

The rules' verdicts on questions and answers are a surrogate for a language model's, and named so:
they stand under `surrogate`, never in the fields that hold a model's. What was read out of a report
is read back against its sentences by another reader (read_back.py), and a disagreement is D.
"""

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cxrjax.files import read_packaged
from cxrjax.papers.cxr_qba.native import (
    NativeAnswer,
    NativeLocalization,
    NativeObservation,
    NativeQuestion,
    walk,
)
from cxrjax.radiology_text.definitions import load_language
from cxrjax.radiology_text.english import split_words

GRADES = ("A++", "A+", "A", "B", "C", "D")
UNRATED = "unrated"
PRETRAINING = "B"
FINETUNING = "A"

# Criterion -> value -> the best grade that it allows, of observations, answers and questions.
_CRITERIA = read_packaged(str(__package__), "reference/criteria.toml")
SCENE_GRAPH_CRITERIA: dict[str, dict[str, str]] = _CRITERIA["scene_graph"]
ANSWER_CRITERIA: dict[str, dict[str, str]] = _CRITERIA["answer"]
QUESTION_CRITERIA: dict[str, dict[str, str]] = _CRITERIA["question"]


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
    """Returns whether a grade is `least` or better; an unrated one is not."""
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


def extraction_grade(
    question: NativeQuestion, study_quality: Mapping[str, Any] | None = None
) -> str:
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


def overall_grade(question: NativeQuestion, study_quality: Mapping[str, Any] | None = None) -> str:
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


_KNOWN_CHANGES = ("no change", "new", "increased", "decreased", "resolved")
# From worst to best, as the criteria's table on the release's page has them.
_LOCALIZATION = list(SCENE_GRAPH_CRITERIA["localization_quality"])


def rate_observation(observation: NativeObservation) -> dict[str, str]:
    """All criteria but localization, which depends on images."""
    return {
        "region_quality": _regions(observation),
        "entity_quality": _entities(observation),
        "sentence_name_quality": _sentence(observation),
        "change_quality": _change(observation),
        "issue_level": _issues(observation),
    }


def localization_quality(places: Sequence[NativeLocalization | None]) -> str:
    """The worst of some localizations on one image; None stands for one that is not there."""

    def value(place: NativeLocalization | None) -> str:
        if place is None or not place.bboxes:
            return "NO_LOCALIZATION"
        if place.is_fallback:
            return "FALLBACK_LOCALIZATION"
        if place.missing_localization:
            return "INCOMPLETE_LOCALIZATION"
        masked = len(place.instance_mask_ids) == len(place.localization_reference_ids)
        return "BBOX_AND_MASK_LOCALIZATION" if masked else "BBOX_LOCALIZATION"

    return min(map(value, places), key=_LOCALIZATION.index, default="NO_LOCALIZATION")


def merged(places: Sequence[Mapping[str, NativeLocalization]]) -> dict[str, NativeLocalization]:
    """Joins several localizations: image id -> localization."""
    found = {}
    for image_id in dict.fromkeys(image_id for place in places for image_id in place):
        own = [place[image_id] for place in places if image_id in place]
        boxes: dict[tuple, list] = {tuple(box): box for place in own for box in place.bboxes}

        def union(name: str, own: list[NativeLocalization] = own) -> list:
            return list(dict.fromkeys(value for place in own for value in getattr(place, name)))

        found[image_id] = NativeLocalization(
            image_id=image_id,
            localization_reference_ids=union("localization_reference_ids"),
            bboxes=list(boxes.values()),
            instance_mask_ids=union("instance_mask_ids"),
            missing_localization=union("missing_localization"),
            is_fallback=any(place.is_fallback for place in own),
            localization_quality=localization_quality(own),
        )
    return found


def _regions(observation: NativeObservation) -> str:
    names = observation.region_names
    if not names:
        return "NO_REGIONS"
    if set(names) <= set(observation.default_regions):
        return "DEFAULT_REGIONS_ONLY"
    if observation.non_resolved_regions:
        return "CONTAINS_NON_RESOLVED_REGIONS"
    if observation.default_regions:
        return "CONTAINS_DEFAULT_REGIONS"
    return "RESOLVED_REGIONS_ONLY"


def _entities(observation: NativeObservation) -> str:
    if not observation.obs_entities:
        return "NO_ENTITIES"
    if observation.non_resolved_obs_entities:
        return "CONTAINS_NON_RESOLVED_ENTITIES"
    return "RESOLVED_ENTITIES_ONLY"


def _sentence(observation: NativeObservation) -> str:
    text = f"{observation.name} {observation.summary_sentence}"
    if mentions_change(text):
        return "CHANGE_IN_SENTENCE_OR_NAME"
    # De-identified reports have underscores (MIMIC) or a run of X (OpenI) for what was taken out.
    if "_" in text or "XXX" in text:
        return "UNDERSCORES_IN_SENTENCE_OR_NAME"
    return "NO_ISSUES"


@functools.lru_cache(maxsize=1 << 15)
def mentions_change(text: str) -> bool:
    """Returns whether a text compares with an earlier study."""
    language = load_language()
    words = split_words(text.lower())
    if any(word.lemma == "new" for word in words):
        return True
    return bool(language.change.find(words) or language.change_context.find(words))


def _change(observation: NativeObservation) -> str:
    if observation.changes and not observation.change_sentence:
        return "CHANGE_SENTENCE_REMOVED"
    if "_" in (observation.change_sentence or ""):
        return "UNDERSCORES_IN_CHANGE_SENTENCE"
    if any(change not in _KNOWN_CHANGES for change in observation.changes):
        return "CONTAINS_NON_RESOLVED_CHANGES"
    return "NO_ISSUES"


def _issues(observation: NativeObservation) -> str:
    if not observation.name and not observation.summary_sentence:
        return "DISCARDED"
    if not observation.obs_entities and not observation.non_resolved_obs_entities:
        return "NON_INTERPRETABLE"
    if not observation.obs_entities:
        return "MOSTLY_INTERPRETABLE"
    return "NO_ISSUES"


SURROGATE = "surrogate"
RATER = "cxrjax-rules-surrogate-2"
_SENTENCE = re.compile(r"[A-Z].*[.!]$", re.DOTALL)


def rate_by_rules(
    question: NativeQuestion, read_back: Callable[[NativeAnswer], str | None] = lambda answer: None
) -> str:
    """Writes verdicts into the question and its answers, and returns the surrogate grade.

    Args:
        read_back: verdict on an answer's entailment by its sentences, None where it has none.
    """
    answers = list(walk(question.answers))
    texts: set[str] = set()
    grades = [extraction_grade(question)]
    for answer in answers:
        verdicts = _answer_verdicts(answer, answer.text in texts, read_back(answer))
        texts.add(answer.text)
        answer.answer_quality = {**answer.answer_quality, SURROGATE: {"rater": RATER, **verdicts}}
        grades += ratings_of(verdicts, answer.answer_type)
    has_main = any(answer.answer_type == "main_answer" for answer in question.answers)
    verdicts = {
        "completeness": "FULLY_COMPLETE" if has_main else "NOT_ANSWERED",
        "question_clarity": "OPTIMAL"
        if question.question.endswith(("?", "."))
        else "UNUSUAL_SENTENCE_STRUCTURE",
    }
    grades += ratings_of(verdicts)
    grade = lowest(grades) or "D"
    question.question_quality = {
        **question.question_quality,
        SURROGATE: {"rater": RATER, **verdicts, "grade": grade},
    }
    return grade


def _rests_on_denials(answer: NativeAnswer) -> bool:
    """Returns whether an answer follows from denials only, or from nothing."""
    parts = answer.sub_answers
    return all(part.positiveness == "neg" for part in parts) and (
        bool(parts) or answer.positiveness == "neg"
    )


def _contradicts_parts(answer: NativeAnswer) -> bool:
    """Returns whether a template's yes or no contradicts its parts."""
    opened = answer.text.split(",")[0]
    if answer.name_tag is not None or opened not in ("Yes", "No"):
        return False
    agrees = (opened == "Yes") == (answer.positiveness == "pos")
    return not agrees or (answer.certainty == "not_mentioned")


def _answer_verdicts(answer: NativeAnswer, repeated: bool, by_source: str | None) -> dict[str, str]:
    if by_source is not None:
        entailment = by_source
    elif _contradicts_parts(answer):
        entailment = "NON_ALIGNED_CONTRADICTING"
    elif answer.from_report:
        entailment = "ALIGNED_MENTIONED"
    elif _rests_on_denials(answer):
        mentioned = any(part.from_report for part in walk(answer.sub_answers))
        entailment = "ALIGNED_INFERABLE" if mentioned else "ALIGNED_NEGATIVE_NOT_MENTIONED"
        if mentioned and answer.certainty != "certain":
            entailment = "ALIGNED_GENERAL_STATEMENT"
    else:
        entailment = "ALIGNED_INFERABLE"
    relevance = "RELEVANT_MAIN_ANSWER"
    if repeated:
        relevance = "REDUNDANT_INFO"
    elif answer.answer_type == "related_information":
        relevance = "RELATED_INFO"
    whole = _SENTENCE.match(answer.text) is not None
    return {
        "entailment": entailment,
        "relevance": relevance,
        "answer_clarity": "OPTIMAL" if whole else "UNUSUAL_SENTENCE_STRUCTURE",
    }
