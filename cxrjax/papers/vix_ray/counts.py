"""Counts on each question what is scored of one system's answers to ViX-Ray.

Columns are called `<kind>/<part>`; text parts on words of a segmenter `<kind>/words/<part>`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cxrjax.errors import UserError
from cxrjax.evaluation.benchmark import Answers, SystemCounts, cluster_of, count_answers
from cxrjax.evaluation.figures import count_judge_failures, named
from cxrjax.evaluation.predictions import Prediction, check_known
from cxrjax.evaluation.text_scores.assertion_errors import count_said
from cxrjax.language_model.judges.judge import FactMatch, Judge, Sample, compare_facts
from cxrjax.metrics import text
from cxrjax.radiology_text.facts import (
    VIETNAMESE,
    FactLabel,
    align,
    fact_ratio,
    is_refusal,
    said_of,
)
from cxrjax.records import QARecord

# What is asked for: stage/text.
KINDS = ("stage1/findings", "stage2/impression", "stage3/findings", "stage3/impression")
HISTORY_KIND = KINDS[-1]
# What stage 3's texts are compared with (Table 5).
EARLIER = {"stage3/findings": "stage1/findings", "stage3/impression": "stage2/impression"}

# How a problem is counted in score.json.
MISSING, BLANK = "missing_prediction", "blank_answer"


@dataclass(frozen=True)
class VixRayQuestion:
    """One question with its true text; `cluster` is what is resampled together."""

    question_id: str
    kind: str
    text: str
    cluster: tuple[str, str]


@dataclass(frozen=True)
class VixRayCounts:
    """One system's."""

    answers: SystemCounts  # columns are called `<kind>/<part>`
    kinds: frozenset[str]  # what it answered at least one question of
    # What stage 3's second turns were asked on, "gold" (the radiologist's findings) or "self" (its
    # own); None where it has none or does not say.
    history: str | None


def count_system(
    name: str,
    references: Mapping[str, VixRayQuestion],
    answers: Answers,
    tokenizers: Mapping[str, text.Tokenize],
    judge: Judge | None,
) -> VixRayCounts:
    """Counts one system's answers.

    Args:
        name: of the system, for what is judged.
        tokenizers: prefix of the parts' names -> words that they are counted on.

    Raises:
        UserError: a prediction for an unknown question, second turns on different histories, or a
            judge that cannot be asked.
    """
    lines = list(answers.predictions)
    check_known(lines, references, answers.source)
    kinds = frozenset(references[line.question_id].kind for line in lines)
    texts: dict[str, str] = {}

    def count(
        question: VixRayQuestion, prediction: Prediction | None, counts: SystemCounts
    ) -> Mapping[str, float] | None:
        if question.kind not in kinds:
            return None
        predicted = texts[question.question_id] = prediction.text if prediction else ""
        blank = not predicted.strip()
        counts.problems[BLANK] += blank and prediction is not None
        parts = {"questions": 1.0, "blank": float(blank), "refusals": float(is_refusal(predicted))}
        for prefix, tokenize in tokenizers.items():
            counted = {
                **text.rouge(predicted, question.text, tokenize),
                **text.bleu_statistics(predicted, question.text, tokenize),
            }
            parts |= {prefix + part: value for part, value in counted.items()}
        said, true = (said_of(content, VIETNAMESE) for content in (predicted, question.text))
        parts |= count_said(said, true) | {"contentless": float(not said)}
        return {**named(question.kind, parts), "questions": 1.0, "parse_failures": float(blank)}

    counts = count_answers(references, answers._replace(predictions=lines), count, (MISSING, BLANK))
    if judge is not None:
        asked = [references[question_id] for question_id in texts]
        pairs = [
            Sample(name, q.question_id, "", q.text, texts[q.question_id], lang=VIETNAMESE)
            for q in asked
        ]
        matches = compare_facts(judge, pairs)
        counts.problems.update(count_judge_failures(match.failure for match in matches))
        rows = {question_id: row for row, question_id in enumerate(references)}
        for question, match in zip(asked, matches, strict=True):
            parts = _facts(match)
            if judge.surrogate:
                parts |= _errors(texts[question.question_id], question.text)
            counts.add(rows[question.question_id], named(question.kind, parts))
    return VixRayCounts(counts, kinds, _history(references, lines, answers.source))


def read_question(record: QARecord, source: str) -> VixRayQuestion:
    """The true text of a record of any stage.

    Raises:
        UserError: a record without an answer or of no stage.
    """
    kind = kind_of(record)
    if kind not in KINDS:
        raise UserError(
            f"{source}: question {record.question_id} is of {kind}, expected question_strategy "
            f"and question_type among {', '.join(KINDS)}"
        )
    if not record.answers:
        raise UserError(
            f"{source}: question {record.question_id} has no answer; give a file of records/"
        )
    return VixRayQuestion(record.question_id, kind, record.answer_text, cluster_of(record))


def kind_of(record: QARecord) -> str:
    """Stage and text of a record, such as `stage1/findings`."""
    return f"{record.question_strategy}/{record.question_type}"


def _facts(match: FactMatch) -> dict[str, float]:
    """Facts in common; where the judge failed nothing but that."""
    matched, predicted, true = len(match.pairs), len(match.predicted.items), len(match.true.items)
    found = {
        "judged": 1.0,
        "facts_matched": matched,
        "facts_predicted": predicted,
        "facts_true": true,
        "fact_precision": fact_ratio(matched, predicted, true),
        "fact_recall": fact_ratio(matched, true, predicted),
    }
    return found if match.failure is None else dict.fromkeys(found, 0.0)


def _errors(predicted: str, reference: str) -> dict[str, float]:
    """Facts by what is wrong with them, guessed by rules."""
    labels = [part.label for part in align(predicted, reference, VIETNAMESE)]
    counts = {label: labels.count(label) for label in FactLabel}
    unmatched = counts[FactLabel.HALLUCINATED] + counts[FactLabel.REDUNDANT]
    return {
        **{f"errors/{label}": count for label, count in counts.items()},
        "errors/said": len(labels) - counts[FactLabel.MISSING],
        "errors/true": len(labels) - unmatched,
    }


def _history(
    references: Mapping[str, VixRayQuestion], lines: Iterable[Prediction], where: str
) -> str | None:
    said: dict[str | None, str] = {}
    for line in lines:
        if references[line.question_id].kind == HISTORY_KIND:
            said.setdefault(line.history, line.question_id)
    if len(said) > 1:
        found = ", ".join(f"{history} ({question_id})" for history, question_id in said.items())
        raise UserError(
            f"{where}: second turns of stage 3 on several histories, {found}: score them as two "
            "systems, a file each"
        )
    return next(iter(said), None)
