"""Counts on each image what is scored of one system's answers to ViX-Ray.

Columns are called `<kind>/<part>`; text parts on words of a segmenter `<kind>/words/<part>`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from cxrjax.errors import UserError
from cxrjax.language_model.judges import FactMatch, FactPair, Judge, compare_facts
from cxrjax.metrics import text
from cxrjax.radiology_text.facts import VIETNAMESE, FactLabel, align, fact_ratio, is_refusal
from cxrjax.records import QARecord
from cxrjax.scoring.judge_failures import count_judge_failures
from cxrjax.scoring.predictions import Prediction, check_known

# What is asked for: stage/text.
KINDS = ("stage1/findings", "stage2/impression", "stage3/findings", "stage3/impression")
HISTORY_KIND = KINDS[-1]
# What stage 3's texts are compared with (Table 5).
EARLIER = {"stage3/findings": "stage1/findings", "stage3/impression": "stage2/impression"}

# How a problem is counted in score.json.
MISSING, BLANK = "missing_prediction", "blank_answer"

Column = Float[np.ndarray, "images"]


@dataclass(frozen=True)
class Reference:
    """One question with its true text.

    Attributes:
        cluster: what is resampled together: the patient, where known, else the image.
    """

    image_id: str
    kind: str
    text: str
    cluster: tuple[str, str]


@dataclass(frozen=True)
class SystemCounts:
    """One system's.

    Attributes:
        kinds: what it answered at least one question of.
        history: what stage 3's second turns were asked on, "gold" (the radiologist's findings) or
            "self" (its own); None where it has none or does not say.
    """

    columns: Mapping[str, Column]
    kinds: frozenset[str]
    problems: Mapping[str, int]
    history: str | None


def count_system(
    name: str,
    references: Mapping[str, Reference],
    predictions: Iterable[Prediction],
    tokenizers: Mapping[str, text.Tokenize],
    judge: Judge | None,
    where: str,
) -> SystemCounts:
    """Counts one system's answers.

    Args:
        name: of the system, for what is judged.
        references: question id -> its reference.
        tokenizers: prefix of the parts' names -> words that they are counted on.
        where: names the predictions in error messages.

    Raises:
        UserError: a prediction for an unknown question, second turns on different histories, or a
            judge that cannot be asked.
    """
    by_id = {prediction.question_id: prediction for prediction in predictions}
    check_known(by_id.values(), references, where)
    kinds = frozenset(references[question_id].kind for question_id in by_id)
    asked = {q: reference for q, reference in references.items() if reference.kind in kinds}
    texts = {q: by_id[q].text if q in by_id else "" for q in asked}
    counts = _Columns(references)
    for question_id, reference in asked.items():
        predicted = texts[question_id]
        add = counts.adder(reference)
        add("questions", 1.0)
        add("blank", float(not predicted.strip()))
        add("refusals", float(is_refusal(predicted)))
        for prefix, tokenize in tokenizers.items():
            for part, value in text.rouge(predicted, reference.text, tokenize).items():
                add(prefix + part, value)
            for part, total in text.bleu_statistics(predicted, reference.text, tokenize).items():
                add(prefix + part, total)
    problems = {
        MISSING: sum(q not in by_id for q in asked),
        BLANK: sum(q in by_id and not texts[q].strip() for q in asked),
    }
    if judge is not None:
        pairs = [FactPair(name, q, texts[q], r.text, VIETNAMESE) for q, r in asked.items()]
        matches = compare_facts(judge, pairs)
        problems |= count_judge_failures(match.failure for match in matches)
        for reference, match in zip(asked.values(), matches, strict=True):
            _add_facts(counts.adder(reference), match)
        if judge.surrogate:
            for question_id, reference in asked.items():
                _add_errors(counts.adder(reference), texts[question_id], reference.text)
    history = _history(references, by_id, where)
    return SystemCounts(counts.columns, kinds, problems, history)


def read_references(records: Iterable[QARecord], where: str) -> dict[str, Reference]:
    """Question id -> true text, of records of any stages.

    Raises:
        UserError: a record without an answer or of no stage, or none at all.
    """
    true = {}
    for record in records:
        kind = kind_of(record)
        if kind not in KINDS:
            raise UserError(
                f"{where}: question {record.question_id} is of {kind}, expected question_strategy "
                f"and question_type among {', '.join(KINDS)}"
            )
        if not record.answers:
            raise UserError(
                f"{where}: question {record.question_id} has no answer; give a file of records/"
            )
        if record.question_id in true:
            raise UserError(f"{where}: question_id {record.question_id} stands there twice")
        cluster = (
            ("patient", record.patient_id) if record.patient_id else ("image", record.image_id)
        )
        true[record.question_id] = Reference(record.image_id, kind, record.answer_text, cluster)
    if not true:
        raise UserError(f"{where}: no records")
    return true


def kind_of(record: QARecord) -> str:
    """Stage and text of a record, such as `stage1/findings`."""
    return f"{record.question_strategy}/{record.question_type}"


class _Columns:
    """Sums image by image, in the order in which the references name images."""

    def __init__(self, references: Mapping[str, Reference]) -> None:
        self._rows = {
            image: row
            for row, image in enumerate(dict.fromkeys(r.image_id for r in references.values()))
        }
        self.columns: dict[str, Column] = {}

    def adder(self, reference: Reference) -> Callable[[str, float], None]:
        """Adds to parts of this question."""
        row = self._rows[reference.image_id]

        def add(part: str, value: float) -> None:
            key = f"{reference.kind}/{part}"
            if key not in self.columns:
                self.columns[key] = np.zeros(len(self._rows))
            self.columns[key][row] += value

        return add


def _add_facts(add: Callable[[str, float], None], match: FactMatch) -> None:
    """Facts in common; where the judge failed nothing but that."""
    judged = match.failure is None
    matched = len(match.pairs) if judged else 0
    predicted, true = (len(f.items) if judged else 0 for f in (match.predicted, match.true))
    add("judged", float(judged))
    add("facts_matched", matched)
    add("facts_predicted", predicted)
    add("facts_true", true)
    add("fact_precision", fact_ratio(matched, predicted, true) if judged else 0.0)
    add("fact_recall", fact_ratio(matched, true, predicted) if judged else 0.0)


def _add_errors(add: Callable[[str, float], None], predicted: str, reference: str) -> None:
    """Facts by what is wrong with them, guessed by rules."""
    labels = [part.label for part in align(predicted, reference, VIETNAMESE)]
    for label in FactLabel:
        add(f"errors/{label}", labels.count(label))
    missing = labels.count(FactLabel.MISSING)
    unmatched = labels.count(FactLabel.HALLUCINATED) + labels.count(FactLabel.REDUNDANT)
    add("errors/said", len(labels) - missing)
    add("errors/true", len(labels) - unmatched)


def _history(
    references: Mapping[str, Reference], predictions: Mapping[str, Prediction], where: str
) -> str | None:
    said: dict[str | None, str] = {}
    for question_id, prediction in predictions.items():
        if references[question_id].kind == HISTORY_KIND:
            said.setdefault(prediction.history, question_id)
    if len(said) > 1:
        found = ", ".join(f"{history} ({question_id})" for history, question_id in said.items())
        raise UserError(
            f"{where}: second turns of stage 3 on several histories, {found}: score them as two "
            "systems, a file each"
        )
    return next(iter(said), None)
