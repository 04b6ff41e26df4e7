"""One system's answers to CXR-QBA's questions: what is counted of each question.

Every figure of the benchmark is a function of sums, over questions, of the columns made here.
"""

import functools
from collections import Counter

import numpy as np
from jaxtyping import Float

from cxrjax.codecs import Codec
from cxrjax.evaluation.benchmark import CLASSLESS_PROBLEMS, Answers, SystemCounts, count_answers
from cxrjax.evaluation.counted import DECISION, code
from cxrjax.evaluation.matched_boxes import ScoredAnswers
from cxrjax.evaluation.predictions import Prediction
from cxrjax.evaluation.text_scores.assertion_errors import COLUMNS, count_said
from cxrjax.metrics import text
from cxrjax.metrics.localization import region_areas
from cxrjax.papers.cxr_qba.answers import (
    CLAIMS,
    STATEMENTS,
    SUPPORTED,
    AnswerReader,
    PredictedAnswer,
    Verdict,
)
from cxrjax.papers.cxr_qba.truth import CxrQbaQuestion, CxrQbaReferences

# Pairs of sentences whose likeness is kept: most answers are in the words of a few templates.
_KEPT_TEXTS = 1 << 14

Column = Float[np.ndarray, "questions"]


def count_system(
    references: CxrQbaReferences,
    answers: Answers,
    codec: Codec | None,
    scored: ScoredAnswers,
) -> SystemCounts:
    """Counts one system.

    Args:
        codec: reads boxes from the text of lines without boxes.
        scored: is given each question's boxes.

    Raises:
        UserError: a prediction is for an unknown question, or has no boxes and there is no codec.
    """
    reader = AnswerReader(codec, answers.source)

    def count(
        question: CxrQbaQuestion, prediction: Prediction | None, counts: SystemCounts
    ) -> dict[str, float]:
        answer = reader.read(question, prediction)
        counts.problems.update(answer.problems)
        if failed := _parse_failed(question, answer):
            counts.failures[str(answer.parse)] += 1
        scored.add(answer.boxes, answer.box_scores, question.boxes)
        return {
            "questions": 1.0,
            "parse_failures": float(failed),
            "contentless": float(answer.says_nothing),
            "off_topic": float(answer.off_topic),
            **_count_findings(question, answer, verdict := reader.judge(question, answer)),
            **_count_yes_no(question, answer, verdict),
            **_count_boxes(question, answer),
            **_count_text(answer.text, question.text),
            **count_said(answer.said, reader.stated(question), question.present),
        }

    return count_answers(
        references.questions, answers, count, CLASSLESS_PROBLEMS, columns=_column_names()
    )


def _parse_failed(question: CxrQbaQuestion, answer: PredictedAnswer) -> bool:
    """Returns whether an answer is unreadable. A missing box is a failure only if the reference has
    boxes; a missing answer is a problem of its own (`missing_prediction`)."""
    if answer.parse == "no_box":
        return len(question.boxes) > 0
    return answer.parse not in ("ok", None)


def ceiling_columns(references: CxrQbaReferences) -> dict[str, Column]:
    """Columns `ceiling/...` of the reference's own answers: what the reader of mentions costs.

    The main answers' text and yes or no, read and judged as a system's would be.
    """
    reader = AnswerReader(None, "references")
    names = ("claims", "supported", "stated", "found", *(f"yes_no/{c}" for c in _DECISIONS))
    columns = {f"ceiling/{name}": np.zeros(len(references.questions)) for name in names}
    for number, question in enumerate(references.questions.values()):
        own = Prediction(question.question_id, question.text, question.boxes, None, "ok")
        answer = reader.read(question, own)
        counted = {
            **_count_findings(question, answer, verdict := reader.judge(question, answer)),
            **_count_yes_no(question, answer, verdict),
        }
        for name in names:
            columns[f"ceiling/{name}"][number] = counted.get(name, 0.0)
    return columns


_DECISIONS = ("tp", "fp", "fn", "tn")
_REGION_SUMS = ("iou", "iop", "iot")


def _column_names() -> list[str]:
    """Every column, so that what never happened is a zero."""
    return [
        *(
            "questions",
            "parse_failures",
            "contentless",
            "off_topic",
            "claims",
            "supported",
            "stated",
            "found",
        ),
        *(f"claim/{name}" for name in CLAIMS),
        *(f"statement/{name}" for name in STATEMENTS),
        *("sides/compared", "sides/swapped", "sides/partial"),
        *("denied/stated", "denied/right"),
        *("severity/compared", "severity/right", "certainty/compared", "certainty/right"),
        *("normal/questions", "normal/hallucinated", "normal/claims"),
        *(f"yes_no/{name}" for name in (*_DECISIONS, "undecided", "questions")),
        *(f"region/{name}{part}" for name in _REGION_SUMS for part in ("", "@0.3", "/n")),
        *("texts", *text.likeness("", "")),
        *COLUMNS,
    ]


def _count_findings(
    question: CxrQbaQuestion, answer: PredictedAnswer, verdict: Verdict
) -> dict[str, float]:
    claims = Counter(category for _, category in verdict.claims)
    statements = Counter(category for _, category in verdict.statements)
    supported = sum(claims[name] for name in SUPPORTED)
    claimed = {claim.name: claim for claim, _ in verdict.claims}
    both = [(claimed[n], true) for n, true in question.present.items() if n in claimed]
    severities = [(c.severity, t.severity) for c, t in both if c.severity and t.severity]
    said_absent = {one.finding for one in answer.said if one.denies} - claimed.keys()
    counted = {
        "claims": len(verdict.claims),
        "supported": supported,
        "stated": len(question.stated),
        "found": statements["found"],
        # Denials that the reference has too, of those that the answer makes.
        "denied/stated": len(said_absent & (question.absent | question.present.keys())),
        "denied/right": len(said_absent & question.absent),
        "sides/compared": verdict.sides.compared,
        "sides/swapped": verdict.sides.swapped,
        "sides/partial": verdict.sides.partial,
        "severity/compared": len(severities),
        "severity/right": sum(one == two for one, two in severities),
        "certainty/compared": len(both),
        "certainty/right": sum(claim.certain == true.certain for claim, true in both),
        **{f"claim/{name}": claims[name] for name in CLAIMS},
        **{f"statement/{name}": statements[name] for name in STATEMENTS},
    }
    if not question.present:
        counted |= {
            "normal/questions": 1,
            "normal/hallucinated": bool(verdict.claims),
            "normal/claims": len(verdict.claims),
        }
    return {name: float(amount) for name, amount in counted.items()}


def _count_yes_no(
    question: CxrQbaQuestion, answer: PredictedAnswer, verdict: Verdict
) -> dict[str, float]:
    """The decision; who says neither yes nor no is wrong either way.

    So is who is asked for any abnormality and names only what the reference does not bear out.
    """
    if question.yes is None:
        return {}
    unfounded = question.asked is None and bool(verdict.claims) and bool(question.present)
    unfounded &= not any(category in SUPPORTED for _, category in verdict.claims)
    says = not question.yes if answer.yes is None or unfounded else answer.yes
    decision = ("tp" if says else "fn") if question.yes else ("fp" if says else "tn")
    return {
        "yes_no/questions": 1.0,
        DECISION: code({True: "yes", False: "no", None: "neither"}[answer.yes]),
        "yes_no/undecided": float(answer.yes is None),
        f"yes_no/{decision}": 1.0,
    }


def _count_boxes(question: CxrQbaQuestion, answer: PredictedAnswer) -> dict[str, float]:
    counted: dict[str, float] = {}
    boxes, truth = answer.boxes, question.boxes
    if len(boxes) or len(truth):
        for name, share in region_areas(boxes, truth).shares().items():
            counted |= {
                f"region/{name}": share,
                f"region/{name}@0.3": float(share > 0.3),
                f"region/{name}/n": 1.0,
            }
    return counted


@functools.lru_cache(maxsize=_KEPT_TEXTS)
def _count_text(predicted: str, reference: str) -> dict[str, float]:
    return {"texts": 1.0, **text.likeness(predicted, reference)}
