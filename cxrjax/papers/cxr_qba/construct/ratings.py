"""Rates observations, questions and answers by criteria and grades of the release's page.

The rules' verdicts on questions and answers are a surrogate for a language model's, and named so:
they are under `surrogate`, never in the fields that hold a model's. What was read out of a report
is read back against its sentences by another reader (read_back.py), and a disagreement is D.
"""

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cxrjax.files import read_packaged
from cxrjax.papers.cxr_qba import native
from cxrjax.papers.cxr_qba.construct.phrases import NOT_MENTIONED
from cxrjax.radiology_text.definitions import load_language
from cxrjax.radiology_text.english import split_words

Places = Mapping[str, native.NativeLocalization]  # by image
ReadBack = Callable[[native.NativeAnswer], Mapping[str, str]]

GRADES = ("A++", "A+", "A", "B", "C", "D")
UNRATED = "unrated"
PRETRAINING = "B"
FINETUNING = "A"

# Criterion -> value -> the best grade that it allows, of observations, answers and questions.
_CRITERIA = read_packaged(str(__package__), "reference/criteria.toml")
SCENE_GRAPH_CRITERIA: dict[str, dict[str, str]] = _CRITERIA["scene_graph"]
ANSWER_CRITERIA: dict[str, dict[str, str]] = _CRITERIA["answer"]
QUESTION_CRITERIA: dict[str, dict[str, str]] = _CRITERIA["question"]
_EVERY = {**SCENE_GRAPH_CRITERIA, **ANSWER_CRITERIA, **QUESTION_CRITERIA, **_CRITERIA["surrogate"]}


def rating(criterion: str, value: str, answer_type: str = "main_answer") -> str:
    """Returns the best grade that a criterion's value allows.

    Args:
        answer_type: relevance depends on it: a main answer's verdict on related information caps it
            at A, related information's verdict on the rest at A+.

    Raises:
        KeyError: criterion or value is unknown.
    """
    related = answer_type == "related_information"
    if criterion == "relevance" and (value, related) == ("RELEVANT_MAIN_ANSWER", True):
        return "A"
    if criterion == "relevance" and (value, related) == ("RELATED_INFO", False):
        return "A+"
    return _EVERY[criterion][value]


def lowest(grades: Iterable[str]) -> str | None:
    """Returns the worst of some grades; None where there are none."""
    return max(grades, key=GRADES.index, default=None)


def at_least(grade: str | None, least: str) -> bool:
    """Returns true for a grade that is `least` or better; an unrated one is not."""
    return grade in GRADES and GRADES.index(grade) <= GRADES.index(least)


def ratings_of(values: Mapping[str, Any], answer_type: str = "main_answer") -> list[str]:
    """Returns the grades that the known criteria among these values allow."""
    return [
        rating(criterion, value, answer_type)
        for criterion, value in values.items()
        if value in _EVERY.get(criterion, ())
    ]


def worst_values(sources: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Returns, per criterion of the scene graph, the worst value among some observations."""
    found: dict[str, str] = {}
    for values in sources:
        for criterion, table in SCENE_GRAPH_CRITERIA.items():
            if (value := values.get(criterion)) in table:
                held = found.setdefault(criterion, value)
                if GRADES.index(table[value]) > GRADES.index(table[held]):
                    found[criterion] = value
    return found


# Criteria of where something is, which are no fault of words where no image has boxes.
_PLACES = ("region_quality", "localization_quality")


def extraction_grade(question: native.NativeQuestion, placed: bool = True) -> str:
    """Returns the worst rating among criteria of the scene graph: of the question, of every answer
    and its sub-answers (the release's page leaves these open), and of boxes on every image.

    The observations count that answers are made from, not "the full scene graph" of that page.

    Args:
        placed: False leaves out the criteria of regions and boxes.
    """
    every = [(question.extraction_quality, "main_answer")]
    every += [(one.extraction_quality, one.answer_type) for one in native.walk(question.answers)]
    grades = [
        grade
        for values, answer_type in every
        for grade in ratings_of(
            {name: one for name, one in values.items() if placed or name not in _PLACES},
            answer_type,
        )
    ]
    for value in question.question_img_localization_quality.values():
        grades += ratings_of({"localization_quality": value})
    return lowest(grades) or GRADES[0]


def overall_grade(question: native.NativeQuestion) -> str:
    """Returns the grade by the minimum rule; `unrated` without all of a language model's verdicts.

    Every answer and sub-answer needs its three verdicts and the question its two: a failed
    evaluation leaves the question unrated, which says nothing about its quality.
    """
    grades = [extraction_grade(question)]
    rated = [(question.question_quality, QUESTION_CRITERIA, "main_answer")]
    every = native.walk(question.answers)
    rated += [(one.answer_quality, ANSWER_CRITERIA, one.answer_type) for one in every]
    for values, criteria, answer_type in rated:
        if any(values.get(criterion) not in table for criterion, table in criteria.items()):
            return UNRATED
        grades += ratings_of(values, answer_type)
    return lowest(grades) or UNRATED


_KNOWN_CHANGES = ("no change", "new", "increased", "decreased", "resolved")
# From worst to best, as the criteria's table on the release's page has them.
_LOCALIZATION = list(SCENE_GRAPH_CRITERIA["localization_quality"])


def _first(*cases: tuple[object, str]) -> str:
    """Returns the value of the first case that holds."""
    return next(value for holds, value in cases if holds)


def rate_observation(node: native.NativeObservation) -> dict[str, str]:
    """Rates an observation by all criteria but localization, which depends on images."""
    names, defaults, entities = node.region_names, node.default_regions, node.obs_entities
    text, change = f"{node.name} {node.summary_sentence}", node.change_sentence or ""
    return {
        "region_quality": _first(
            (not names, "NO_REGIONS"),
            ({*names} <= {*defaults}, "DEFAULT_REGIONS_ONLY"),
            (node.non_resolved_regions, "CONTAINS_NON_RESOLVED_REGIONS"),
            (defaults, "CONTAINS_DEFAULT_REGIONS"),
            (True, "RESOLVED_REGIONS_ONLY"),
        ),
        "entity_quality": _first(
            (not entities, "NO_ENTITIES"),
            (node.non_resolved_obs_entities, "CONTAINS_NON_RESOLVED_ENTITIES"),
            (True, "RESOLVED_ENTITIES_ONLY"),
        ),
        # De-identified reports have underscores (MIMIC) or a run of X (OpenI) for removed words.
        "sentence_name_quality": _first(
            (mentions_change(text), "CHANGE_IN_SENTENCE_OR_NAME"),
            ("_" in text or "XXX" in text, "UNDERSCORES_IN_SENTENCE_OR_NAME"),
            (True, "NO_ISSUES"),
        ),
        "change_quality": _first(
            (node.changes and not change, "CHANGE_SENTENCE_REMOVED"),
            ("_" in change, "UNDERSCORES_IN_CHANGE_SENTENCE"),
            ({*node.changes} - {*_KNOWN_CHANGES}, "CONTAINS_NON_RESOLVED_CHANGES"),
            (True, "NO_ISSUES"),
        ),
        "issue_level": _first(
            (not node.name and not node.summary_sentence, "DISCARDED"),
            (not entities and not node.non_resolved_obs_entities, "NON_INTERPRETABLE"),
            (not entities, "MOSTLY_INTERPRETABLE"),
            (True, "NO_ISSUES"),
        ),
    }


@functools.lru_cache(maxsize=1 << 15)
def mentions_change(text: str) -> bool:
    """Returns true for words that compare with an earlier study."""
    language = load_language()
    words = split_words(text.lower())
    if any(word.lemma == "new" for word in words):
        return True
    return bool(language.change.find(words) or language.change_context.find(words))


def localization_quality(places: Sequence[native.NativeLocalization | None]) -> str:
    """Returns the worst of some localizations on one image; None is one that is not there."""

    def value(place: native.NativeLocalization | None) -> str:
        if place is None or not place.bboxes:
            return "NO_LOCALIZATION"
        masked = len(place.instance_mask_ids) == len(place.localization_reference_ids)
        return _first(
            (place.is_fallback, "FALLBACK_LOCALIZATION"),
            (place.missing_localization, "INCOMPLETE_LOCALIZATION"),
            (masked, "BBOX_AND_MASK_LOCALIZATION"),
            (True, "BBOX_LOCALIZATION"),
        )

    return min(map(value, places), key=_LOCALIZATION.index, default="NO_LOCALIZATION")


def merged(places: Sequence[Places]) -> dict[str, native.NativeLocalization]:
    """Joins several localizations: image id -> localization."""
    found = {}
    for image_id in dict.fromkeys(image_id for place in places for image_id in place):
        own = [place[image_id] for place in places if image_id in place]
        boxes: dict[tuple, list] = {tuple(box): box for place in own for box in place.bboxes}

        def union(name: str, own: list[native.NativeLocalization] = own) -> list:
            return list(dict.fromkeys(value for place in own for value in getattr(place, name)))

        found[image_id] = native.NativeLocalization(
            image_id=image_id,
            localization_reference_ids=union("localization_reference_ids"),
            bboxes=list(boxes.values()),
            instance_mask_ids=union("instance_mask_ids"),
            missing_localization=union("missing_localization"),
            is_fallback=any(place.is_fallback for place in own),
            localization_quality=localization_quality(own),
        )
    return found


SURROGATE = "surrogate"
RATER = "cxrjax-rules-surrogate-4"
_SENTENCE = re.compile(r"[A-Z].*[.!]$", re.DOTALL)


def rate_by_rules(question: native.NativeQuestion, read_back: ReadBack = lambda answer: {}) -> str:
    """Writes verdicts into the question and its answers, and returns the surrogate grade.

    Args:
        read_back: verdicts on an answer by its sentences, none where no sentence made it.
    """
    texts: set[str] = set()
    grades = [extraction_grade(question, bool(question.question_img_localization_quality))]
    for answer in native.walk(question.answers):
        if answer.certainty == NOT_MENTIONED and answer.answer_type == "related_information":
            continue  # of the report, and exported by request alone
        # Details are what an answer follows from, and may have its words.
        repeated = answer.text in texts and answer.answer_type != "details"
        verdicts = {**_answer_verdicts(answer, repeated), **read_back(answer)}
        texts.add(answer.text)
        answer.answer_quality = {**answer.answer_quality, SURROGATE: {"rater": RATER, **verdicts}}
        grades += ratings_of(verdicts, answer.answer_type)
    has_main = any(answer.answer_type == "main_answer" for answer in question.answers)
    whole = question.question.endswith(("?", "."))
    verdicts = {
        "completeness": "FULLY_COMPLETE" if has_main else "NOT_ANSWERED",
        "question_clarity": "OPTIMAL" if whole else "UNUSUAL_SENTENCE_STRUCTURE",
    }
    grade = lowest([*grades, *ratings_of(verdicts)]) or "D"
    rated = {"rater": RATER, **verdicts, "grade": grade}
    question.question_quality = {**question.question_quality, SURROGATE: rated}
    return grade


def _answer_verdicts(answer: native.NativeAnswer, repeated: bool) -> dict[str, str]:
    related = answer.answer_type == "related_information"
    whole = _SENTENCE.match(answer.text)
    return {
        "entailment": _entailment(answer),
        "relevance": _first(
            (repeated, "REDUNDANT_INFO"), (related, "RELATED_INFO"), (True, "RELEVANT_MAIN_ANSWER")
        ),
        "answer_clarity": "OPTIMAL" if whole else "UNUSUAL_SENTENCE_STRUCTURE",
    }


def _entailment(answer: native.NativeAnswer) -> str:
    parts, opened = answer.sub_answers, answer.text.split(",")[0]
    # All that it follows from is denied, or nothing is said.
    silent = all(part.positiveness == "neg" for part in parts) and (
        bool(parts) or answer.positiveness == "neg"
    )
    mentioned = any(part.from_report for part in native.walk(parts))
    by_template = answer.name_tag is None and opened in ("Yes", "No")
    agrees = (opened == "Yes") == (answer.positiveness == "pos")
    unsaid = answer.certainty == "not_mentioned"
    return _first(
        (by_template and (unsaid or not agrees), "NON_ALIGNED_CONTRADICTING"),
        (answer.from_report, "ALIGNED_MENTIONED"),
        (silent and not mentioned, "ALIGNED_NEGATIVE_NOT_MENTIONED"),
        (True, "ALIGNED_INFERABLE"),
    )
