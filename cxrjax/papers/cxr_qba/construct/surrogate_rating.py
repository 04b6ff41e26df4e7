"""Verdicts on questions and answers by rules, in place of a language model's.

A surrogate, and named so: its verdicts and its grade stand under `surrogate` and never in the
fields that hold a model's. They know how an answer was made, not whether the report bears it out.
"""

import re

from cxrjax.papers.cxr_qba.construct.ratings import extraction_grade, lowest, ratings_of
from cxrjax.papers.cxr_qba.native import NativeAnswer, NativeQuestion, walk

KEY = "surrogate"
RATER = "cxrjax-rules-surrogate-1"
_SENTENCE = re.compile(r"[A-Z].*[.!]$", re.DOTALL)


def rate(question: NativeQuestion) -> str:
    """Writes verdicts into the question and its answers, and returns the surrogate grade."""
    answers = list(walk(question.answers))
    texts: set[str] = set()
    grades = [extraction_grade(question)]
    for answer in answers:
        verdicts = _answer_verdicts(answer, repeated=answer.text in texts)
        texts.add(answer.text)
        answer.answer_quality = {**answer.answer_quality, KEY: {"rater": RATER, **verdicts}}
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
        KEY: {"rater": RATER, **verdicts, "grade": grade},
    }
    return grade


def _answer_verdicts(answer: NativeAnswer, repeated: bool) -> dict[str, str]:
    if answer.from_report:
        entailment = "ALIGNED_MENTIONED"
    elif answer.positiveness == "neg" and not any(a.from_report for a in walk(answer.sub_answers)):
        entailment = "ALIGNED_NEGATIVE_NOT_MENTIONED"
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
