"""What came of one question of VinDr-CXR-VQA, for people who look at single answers."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from cxrjax.benchmarks.outcomes import Outcome
from cxrjax.benchmarks.predictions import Prediction, read_boxes
from cxrjax.benchmarks.vindr_counts import read_classes
from cxrjax.benchmarks.vindr_truth import Question, read_question
from cxrjax.boxes import pairwise_iou
from cxrjax.codecs import Codec
from cxrjax.metrics.mentions import Reading
from cxrjax.records import QARecord


def outcome(record: QARecord, prediction: Prediction, codec: Codec | None) -> Outcome:
    """Right: the answer's set of classes is, as `vqa/exact_set` counts it.

    The IoU is that of the boxes of this one question, classes aside: `mean_best_iou`. Of records
    with classes of their own, only this record's are known.

    Raises:
        UserError: a record that cannot be scored, or a prediction without boxes and no codec.
    """
    if not record.answers or record.image_hw is None:
        return Outcome(None, None, "no reference answer")
    question, reader = read_question(record, record.question_id)
    height, width = record.image_hw
    given = read_boxes(prediction, codec, height, width, record.question_id)
    true = np.array(record.boxes, np.float64).reshape(-1, 4) / [width, height, width, height]
    reading = read_classes(reader, question, prediction, given)
    right = reading.answered and reading.present == question.present
    return Outcome(right, mean_best_iou(true, given.boxes), _note(question, reading))


def mean_best_iou(
    true: Float[np.ndarray, "n 4"], predicted: Float[np.ndarray, "m 4"]
) -> float | None:
    """How well two sets of boxes cover each other, in [0, 1]; None where both are empty.

    The mean, over the boxes of both sides, of the highest IoU with a box of the other. It orders
    pictures; it is no metric of the benchmark.
    """
    if not len(true) and not len(predicted):
        return None
    if not len(true) or not len(predicted):
        return 0.0
    overlaps = np.asarray(pairwise_iou(true, predicted))
    return float(np.concatenate([overlaps.max(axis=1), overlaps.max(axis=0)]).mean())


def _note(question: Question, reading: Reading) -> str:
    if not reading.answered:
        return "no answer"
    missed, added = question.present - reading.present, reading.present - question.present
    if question.asked is not None and not (missed | added) - {question.asked}:
        there = question.asked in question.present
        if question.asked in missed | added:
            return "said absent; it is there" if there else "said there; it is absent"
        return "there, as said" if there else "absent, as said"
    notes = [f"missed: {_list(missed)}"] if missed else []
    notes += [f"not there: {_list(added)}"] if added else []
    return "; ".join(notes) or "all classes right"


def _list(names: Sequence[str] | frozenset[str]) -> str:
    return ", ".join(sorted(names))
