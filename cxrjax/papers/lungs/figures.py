"""Agreement of boxes of lungs with those of masks that people annotated.

* mean IoU, IoU > 0.75: over the true boxes of questions about one lung; those about both have their
  own, which floors of one box per answer cannot reach. Boxes of an answer and true ones are matched
  one to one for the largest sum of IoU; of an answer with more boxes than are true, each counts so
  much less.
* border slivers: of predicted boxes, the share that lies at an edge of the image with less than 5 %
  of its width or height, as coordinates do that have collapsed.
* same box: of images asked for both lungs in two questions (or of answers about both), the share
  whose two boxes overlap with IoU > 0.75.
* other side: of boxes for one lung, the share that overlaps the other lung more.
* calibration error of boxes' scores: the IoU that is expected of a box against its highest one with
  a true box of the question.

`paper`: of the questions that the system gave boxes for; `strict`: of all, 0 without. Answers to
whether an image is normal are read as yes or no; neither counts as wrong.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from cxrjax.boxes import iou, pairwise_iou
from cxrjax.errors import UserError
from cxrjax.evaluation import benchmark
from cxrjax.evaluation.counted import STRICT, Counted
from cxrjax.evaluation.figure_lines import make_figures
from cxrjax.evaluation.figures import box_calibration
from cxrjax.evaluation.layout import load_layout
from cxrjax.evaluation.predictions import PROBLEMS, Prediction
from cxrjax.evaluation.scores import ScoreOptions
from cxrjax.radiology_text.answers import EnglishReader
from cxrjax.records import QARecord

LAYOUT = load_layout(str(__package__))
SIDES = ("right lung", "left lung")
FINDINGS = (*SIDES, "lungs")
# Suffix of a metric -> what the questions that it is over ask about.
_GROUPS = {"": SIDES, **{f"/{finding}": (finding,) for finding in FINDINGS}}
_GOOD, _TIGHT = 0.75, 0.9
# Of the image's side: how near to an edge a box lies at it, and how thin it is a sliver.
_AT_EDGE, _THIN = 0.005, 0.05
_NORMAL = "normal"
_COLUMNS = "iou above tight answered predicted slivers pairs same sided other_side boxes "
_COLUMNS += "normal normal/right abnormal abnormal/right"


@dataclass(frozen=True)
class LungQuestion:
    """A question with its truth: boxes as fractions of the image, or whether it is normal."""

    question_id: str
    image_id: str
    cluster: tuple[str, str]
    question: str
    finding: str
    boxes: Float[np.ndarray, "n 4"]
    image_hw: tuple[int, int]
    is_normal: bool | None


def read_question(record: QARecord, source: str) -> LungQuestion:
    """The truth of one record.

    Raises:
        UserError: it is about something else than lungs, or lacks boxes, answer or size.
    """
    finding = (record.finding or "").lower()
    polarity = next((answer.polarity for answer in record.answers), "unk")
    boxes = np.array(record.boxes, np.float64).reshape(-1, 4)
    asked_of = 2 if finding == "lungs" else 1
    fits = polarity != "unk" if finding == _NORMAL else finding in FINDINGS and len(boxes)
    if not fits or not record.image_hw or (finding in FINDINGS and len(boxes) != asked_of):
        raise UserError(
            f"{source}: question {record.question_id} asks about {record.finding!r} with "
            f"{len(boxes)} boxes, image_hw {record.image_hw}; expected one of {FINDINGS} with a "
            f"box for each lung, or {_NORMAL!r}: give records/<split>.jsonl of --dataset=lungs"
        )
    height, width = record.image_hw
    return LungQuestion(
        record.question_id,
        record.image_id,
        benchmark.cluster_of(record),
        record.question,
        finding,
        boxes / [width, height, width, height],
        record.image_hw,
        polarity == "pos" if finding == _NORMAL else None,
    )


class LungReferences(benchmark.References[LungQuestion]):
    """Questions about lungs."""

    def asked(self, question_id: str) -> str | None:
        """Returns the lung asked about; "is it normal?" is a plain yes or no."""
        finding = self.questions[question_id].finding
        return None if finding == _NORMAL else finding


def read_references(records: Iterable[QARecord], source: str, gt_mode: str) -> LungReferences:
    """Returns the questions of the records."""
    del gt_mode
    return LungReferences(**vars(benchmark.read_references(records, source, read_question)))


def matched_iou(
    predicted: Float[np.ndarray, "n 4"], true: Float[np.ndarray, "m 4"]
) -> Float[np.ndarray, " m"]:
    """IoU of each true box with the box that it is matched with, one to one; 0 without one."""
    from scipy.optimize import linear_sum_assignment

    found = np.zeros(len(true))
    if len(predicted) and len(true):
        overlaps = np.asarray(pairwise_iou(predicted, true))
        rows, columns = linear_sum_assignment(-overlaps)
        found[columns] = overlaps[rows, columns]
    return found


def is_sliver(boxes: Float[np.ndarray, "n 4"]) -> Float[np.ndarray, " n"]:
    """1 of each box that lies at an edge of the image and is thin across it, else 0."""
    low, high = boxes[:, :2], boxes[:, 2:]
    at_edge = (low <= _AT_EDGE) | (high >= 1 - _AT_EDGE)
    return (at_edge & (high - low < _THIN)).any(axis=1).astype(np.float64)


def _count(
    references: benchmark.References[LungQuestion],
    answers: benchmark.Answers,
    options: ScoreOptions,
) -> Counted:
    questions = references.questions.values()
    true = {(q.image_id, q.finding): q.boxes for q in questions if q.finding in SIDES}
    given: dict[tuple[str, str], Float[np.ndarray, "n 4"]] = {}
    reader = EnglishReader()
    scored: list[tuple[float, float, str]] = []  # score of a box, its highest IoU, its question

    def of_question(
        question: LungQuestion, prediction: Prediction | None, counts: benchmark.SystemCounts
    ) -> Mapping[str, float]:
        row = {"questions": 1.0, "parse_failures": float(prediction is None)}
        if question.is_normal is not None:
            said = reader.read(prediction.text, question.question).outcome if prediction else None
            right = said == ("yes" if question.is_normal else "no")
            of = "normal" if question.is_normal else "abnormal"
            return row | {of: 1.0, f"{of}/right": float(right)}
        row["boxes"] = float(len(question.boxes))
        if prediction is None:
            return row
        how = options.box_codec, question.image_hw, answers.source
        read = counts.read_boxes(prediction, *how)
        row["parse_failures"] = float(read.parse != "ok")
        found = matched_iou(read.boxes, question.boxes)
        best = np.asarray(pairwise_iou(read.boxes, question.boxes)).max(axis=1, initial=0.0)
        scored.extend((*one, question.question_id) for one in zip(read.scores, best, strict=True))
        found_share = len(question.boxes) / max(len(read.boxes), len(question.boxes))
        row |= {
            "iou": found.sum() * found_share,
            "above": (found > _GOOD).sum() * found_share,
            "tight": (found > _TIGHT).sum() * found_share,
            "answered": float(len(question.boxes) if len(read.boxes) else 0),
            "predicted": float(len(read.boxes)),
            "slivers": is_sliver(read.boxes).sum(),
        }
        given[question.image_id, question.finding] = read.boxes
        return row | _sides(question, read.boxes, true, given)

    counts = benchmark.count_answers(
        references.questions,
        answers,
        of_question,
        PROBLEMS,
        columns=_COLUMNS.split(),
    )
    rows = {name: row for row, name in enumerate(references.questions)}
    by_score, placed, curves = box_calibration(
        [score for score, _, _ in scored],
        [best for _, best, _ in scored],
        [rows[name] for _, _, name in scored],
        len(rows),
    )
    columns = {**counts.columns, **by_score}
    for suffix, findings in _GROUPS.items():
        here = np.array([question.finding in findings for question in questions])
        for name in ("iou", "above", "tight", "answered", "boxes"):
            columns[name + suffix] = counts.columns[name] * here
    figures = make_figures(LAYOUT.lines, names={"finding": FINDINGS})
    for named in figures.values():
        named |= counts.figures()
    figures[STRICT] |= placed
    return Counted(columns, figures, dict(counts.problems), curves)


def _sides(
    question: LungQuestion,
    boxes: Float[np.ndarray, "n 4"],
    true: Mapping[tuple[str, str], Float[np.ndarray, "1 4"]],
    given: Mapping[tuple[str, str], Float[np.ndarray, "n 4"]],
) -> dict[str, float]:
    """Columns about which lung is which, of a question whose answer has these boxes."""
    row: dict[str, float] = {}
    if question.finding == "lungs":
        pair = boxes[:2]
    else:
        (other,) = (side for side in SIDES if side != question.finding)
        pair = np.concatenate([boxes[:1], given.get((question.image_id, other), boxes[:0])[:1]])
        if len(boxes) and (question.image_id, other) in true:
            opposite = iou(boxes[0], true[question.image_id, other][0])
            row = {"sided": 1.0, "other_side": float(opposite > iou(boxes[0], question.boxes[0]))}
    if len(pair) == 2:
        row |= {"pairs": 1.0, "same": float(iou(pair[0], pair[1]) > _GOOD)}
    return row


LUNGS = benchmark.Benchmark("lungs", LAYOUT, read_references, benchmark.count_each(_count))
