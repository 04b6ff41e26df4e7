"""One system's answers against GEMeX's references: what is counted of each question.

Everything that a figure of GEMeX needs is a sum over questions of the columns made here.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from jaxtyping import Float

from cxrjax.codecs import CODECS, FAILURE_CATEGORIES, Codec
from cxrjax.codecs.prose import SIDE
from cxrjax.errors import UserError
from cxrjax.evaluation.benchmark import CLASSLESS_PROBLEMS, Answers, SystemCounts, count_answers
from cxrjax.evaluation.counted import DECISION, Outcome, code
from cxrjax.evaluation.figures import count_judge_failures
from cxrjax.evaluation.matched_boxes import ScoredAnswers
from cxrjax.evaluation.predictions import Prediction, ReadBoxes, read_boxes
from cxrjax.evaluation.text_scores.assertion_errors import COLUMNS, count_said
from cxrjax.evaluation.text_scores.bert_score import BertScore
from cxrjax.language_model.judges.judge import Judge, Sample
from cxrjax.metrics.classification import set_counts
from cxrjax.metrics.localization import v_score
from cxrjax.metrics.text import bleu_statistics, rouge
from cxrjax.papers.gemex.choices import NamedOptions, chance, jaccard, named_options
from cxrjax.papers.gemex.dialogue import AnswerFailure, parse_answer
from cxrjax.papers.gemex.truth import GemexQuestion, GemexReferences, read_question
from cxrjax.radiology_text.facts import said_of
from cxrjax.records import QARecord

# A reason or location without its tag is a matter of form (`in_form`), not of reading.
CATEGORIES: tuple[str, ...] = (
    *(name for name in get_args(AnswerFailure) if name not in ("no_reason", "no_location")),
    *FAILURE_CATEGORIES,
)
BLEU_1 = ("predicted", "reference", "match1", "total1")
# Columns of ratings: the marks of the paper's order, and those of both orders together.
REFERENCE_FIRST, BOTH_ORDERS = "reference_first", "both_orders"

Columns = dict[str, Float[np.ndarray, " questions"]]
Score = Callable[[Sequence[tuple[str, str]]], list[BertScore]]


@dataclass(frozen=True)
class ReadAnswer:
    """A prediction (or none) as it is scored."""

    named: NamedOptions | None  # of a closed or choice question, what it names
    text: str  # answer and reason without tags and boxes
    boxes: ReadBoxes
    failures: tuple[str, ...]  # categories, none where everything due could be read
    # Whether answer and reason stand behind their tags, and a location too, in GEMeX's own boxes or
    # in another codec's.
    in_form: bool
    missing: bool = False  # whether there is no prediction


# Of the codecs `paligemma` and `vindr_px`, in which our models may write GEMeX's boxes.
_LOCATION_TOKENS = re.compile(r"<loc[0-9_]{1,40}>")

_NOTHING = ReadAnswer(
    named=None,
    text="",
    boxes=ReadBoxes(np.zeros((0, 4)), None, "ok", ()),
    failures=(),
    in_form=False,
    missing=True,
)


def read_answer(
    question: GemexQuestion, prediction: Prediction, codec: Codec | None, source: str
) -> ReadAnswer:
    """Reads an answer.

    Args:
        codec: reads boxes from the text of lines without boxes; None: GEMeX's own.
        source: names the predictions, for error messages.

    Raises:
        UserError: the codec needs the image's size, and the reference has none.
    """
    if question.image_hw is None and codec is not None and codec.name != "gemex":
        raise UserError(
            f"{source}: question {question.question_id!r}: --codec={codec.name} needs the image's "
            "size, and the references have none (image_hw): join it"
        )
    height, width = question.image_hw or (SIDE, SIDE)
    boxes = read_boxes(prediction, codec or CODECS["gemex"], height, width, source)
    parsed = parse_answer(prediction.text, question.kind, question.choices)
    tagged = parsed.answer and parsed.reason and (parsed.location or len(boxes.boxes))
    failures: list[str] = []
    named = None
    if question.kind != "open_ended":
        named = named_options(prediction.text, question.kind, question.choices, question.words)
        if named.failure is not None:
            failures.append(named.failure)
    elif not parsed.answer:
        failures.append("no_answer")
    if boxes.parse not in ("ok", "no_box"):
        failures.append(boxes.parse)
    elif not len(boxes.boxes) and len(question.boxes):
        failures.append("no_box")
    return ReadAnswer(
        named=named,
        text=without_boxes(" ".join(filter(None, (parsed.answer, parsed.reason)))),
        boxes=boxes,
        failures=tuple(dict.fromkeys(failures)),
        in_form=bool(tagged) and "<answer" in prediction.text.lower(),
    )


def without_boxes(text: str) -> str:
    """The text without location tokens and without the boxes that the codec `gemex` reads in it."""
    text = _LOCATION_TOKENS.sub(" ", text)
    if "[" not in text:
        return " ".join(text.split())
    pieces, at = [], 0
    for span in CODECS["gemex"].find(text, SIDE, SIDE):
        pieces.append(text[at : span.start])
        at = span.end
    return " ".join("".join([*pieces, text[at:]]).split())


def count_system(
    references: GemexReferences,
    answers: Answers,
    codec: Codec | None,
    *,
    system: str,
    judge: Judge | None = None,
    bert_score: Score | None = None,
    scored: ScoredAnswers | None = None,
) -> SystemCounts:
    """Counts one system.

    Args:
        codec: as of `read_answer`.
        judge, bert_score: asked where given.
        scored: is given each question's boxes, where there is one.

    Raises:
        UserError: a prediction is for an unknown question, or cannot be read without a size; the
            judge cannot be asked.
    """
    pairs: list[tuple[str, str]] = []

    def count(
        question: GemexQuestion, prediction: Prediction | None, counts: SystemCounts
    ) -> Mapping[str, float]:
        answer = _NOTHING
        if prediction is not None:
            answer = read_answer(question, prediction, codec, answers.source)
            said = answer.text.strip() or len(answer.boxes.boxes)
            counts.problems["blank_answer"] += not said
        counts.problems.update(n for n in answer.boxes.problems if n in CLASSLESS_PROBLEMS)
        counts.failures.update(answer.failures)
        pairs.append((answer.text, question.text))
        if scored is not None:
            scored.add(answer.boxes.boxes, answer.boxes.scores, question.boxes)
        return _counts(question, answer)

    counts = count_answers(references.questions, answers, count, CLASSLESS_PROBLEMS, CATEGORIES)
    if bert_score is not None:
        counts.columns["bert_score"] = np.array([score.f1 for score in bert_score(pairs)])
    if judge is not None:
        asked = list(references.questions.values())
        ratings, judge_problems = _ratings(judge, asked, pairs, system)
        counts.columns.update(ratings)
        counts.problems.update(judge_problems)
    return counts


def ceiling_columns(references: GemexReferences) -> Columns:
    """Column `ceiling/right`: questions whose reference is read as it means by the rules by which
    answers are."""
    right = [
        question.key is not None
        and named_options(question.written, question.kind, question.choices, question.words).options
        == question.key
        for question in references.questions.values()
    ]
    return {"ceiling/right": np.array(right, np.float64)}


def _facts(text: str) -> frozenset[tuple[str, str]]:
    """Returns what a text says of findings now: (finding, present, absent or uncertain)."""
    return frozenset((one.finding, one.status) for one in said_of(text, "en"))


def _counts(question: GemexQuestion, answer: ReadAnswer) -> Mapping[str, float]:
    """The columns of one question."""
    named = answer.named.options if answer.named else None
    key = question.key
    options = 2 if question.kind == "closed_ended" else len(question.choices or ())
    placed = v_score(answer.boxes.boxes, question.boxes)
    silent = answer.missing or placed.both_empty
    found, wrong, missed = set_counts(named or frozenset(), key or frozenset()) if key else (0,) * 3
    words = bleu_statistics(answer.text, question.text)
    facts, compared = (0, 0, 0), dict.fromkeys(COLUMNS, 0.0)
    if question.kind == "open_ended":
        compared = count_said(said_of(answer.text, "en"), said_of(question.text, "en"))
        if stated := _facts(question.text):
            facts = set_counts(_facts(answer.text), stated)
    said = "+".join(sorted(named or ())).lower()
    counted = {
        DECISION: code(said) if answer.named else 0.0,
        "questions": 1,
        "in_form": answer.in_form,
        "parse_failures": bool(answer.failures),
        "keyed": key is not None,
        "named": key is not None and named is not None,
        "right": key is not None and named == key,
        "jaccard": jaccard(named, key) if key and named else 0.0,
        "found": found,
        "wrong": wrong,
        "missed": missed,
        **compared,
        "facts/asked": any(facts),
        **{f"facts/{name}": n for name, n in zip(("tp", "fp", "fn"), facts, strict=True)},
        "chance": chance(question.kind, options) if key else 0.0,
        "boxed": len(answer.boxes.boxes) > 0,
        "no_boxes_at_all": placed.both_empty,
        "v_boxed": len(question.boxes) > 0,
        "v_strict": 0.0 if silent else placed.strict,
        "v_due": not placed.both_empty,
        "v_strict_due": 0.0 if silent else placed.strict,
        "v_lenient": 0.0 if silent else placed.lenient,
        "v_truth": 0.0 if silent else placed.truth,
        "rouge_l": rouge(answer.text, question.text, names=("rougeL",))["rougeL"],
        **{name: words[name] for name in BLEU_1},
    }
    return {name: float(amount) for name, amount in counted.items()}


def _ratings(
    judge: Judge, asked: Sequence[GemexQuestion], pairs: Sequence[tuple[str, str]], system: str
) -> tuple[Columns, dict[str, int]]:
    """Asks the judge, by question type: the average over types needs them side by side.

    Returns:
        Columns `asked/<type>` and, of each rating, `<rating>/judged`, the same by type, and
        `<rating>/{ratio,capped}/<type>`, 0 where the judge failed; and what it failed at.
    """
    samples = [
        Sample(
            system=system,
            question_id=question.question_id,
            question=question.asked,
            reference=question.text,
            answer=answer,
            context=question.report,
        )
        for question, (answer, _) in zip(asked, pairs, strict=True)
    ]
    scores = judge.relative_scores(samples)
    columns: Columns = {}
    kinds = dict.fromkeys(question.kind for question in asked)
    for kind in kinds:
        columns[f"asked/{kind}"] = np.array([question.kind == kind for question in asked], float)
    for rating, ratios in (
        (REFERENCE_FIRST, [score.ratio_reference_first for score in scores]),
        (BOTH_ORDERS, [score.ratio for score in scores]),
    ):
        found = np.array([np.nan if ratio is None else ratio for ratio in ratios])
        judged = np.isfinite(found)
        ratio = np.where(judged, found, 0.0)
        columns[f"{rating}/judged"] = judged.astype(float)
        for kind in kinds:
            here = columns[f"asked/{kind}"]
            columns |= {
                f"{rating}/judged/{kind}": judged * here,
                f"{rating}/ratio/{kind}": ratio * here,
                f"{rating}/capped/{kind}": np.minimum(ratio, 1.0) * here,
            }
    return columns, count_judge_failures(score.failure for score in scores)


def outcome(record: QARecord, prediction: Prediction, codec: Codec | None) -> Outcome:
    """Returns the outcome of one question."""
    question = read_question(record, record.question_id)
    answer = read_answer(question, prediction, codec, record.question_id)
    iou = None
    if len(question.boxes) or len(answer.boxes.boxes):
        iou = v_score(answer.boxes.boxes, question.boxes).strict
    if question.key is None:
        return Outcome(None, iou, ", ".join(answer.failures))
    true = ", ".join(sorted(question.key))
    if answer.named is None or answer.named.options is None:
        return Outcome(False, iou, f"answer could not be matched to an option; it is {true}")
    said = ", ".join(sorted(answer.named.options))
    right = answer.named.options == question.key
    return Outcome(right, iou, f"said {said}" if right else f"said {said}; it is {true}")
