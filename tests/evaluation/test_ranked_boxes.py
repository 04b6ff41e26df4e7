"""AP, FROC and constant scores of benchmarks that count boxes question by question."""

import numpy as np
import pytest

from cxrjax.evaluation.matched_boxes import ScoredAnswers
from cxrjax.evaluation.ranked_boxes import constant_within_answers, is_constant
from cxrjax.paper import load_benchmark
from tests.evaluation import made
from tests.papers.cases import cases

HERE, THERE = [0.1, 0.1, 0.5, 0.5], [0.6, 0.6, 0.9, 0.9]


def _scored(*questions):
    scored = ScoredAnswers()
    for predicted, scores, truth in questions:
        boxes, true = (np.array(some, float).reshape(-1, 4) for some in (predicted, truth))
        scored.add(boxes, np.array(scores, float), true)
    clusters = [("image", str(number)) for number in range(len(questions))]
    found = scored.counted(clusters, made.NO).figures
    return {name: e.value for name, e in found.items()}


def test_ap_and_froc_by_hand_and_answers_of_one_score():
    # The surest box is right, the next wrong, the third right: precision 1 up to half the recall.
    found = _scored(([HERE, THERE], [0.9, 0.5], [HERE]), ([THERE], [0.2], [THERE]))
    assert found["ap/voc@0.4"] == pytest.approx(0.5 + 0.5 * 2 / 3)
    assert found["froc/sensitivity@0.5"] == 1
    assert found["froc/sensitivity@0.25"] == 0.5
    assert found["ap/constant_within_answers"] == 0
    assert not any(name.startswith("by_class") for name in found)
    # Boxes of another question are no hits; no boxes find nothing.
    found = _scored(([THERE], [0.9], [HERE]), ([HERE], [0.9], [THERE]))
    assert found["ap/coco"] == found["froc/mean_sensitivity"] == 0
    found = _scored(([], [], [HERE]))
    assert found["ap/coco"] == 0
    assert found["ap/constant_scores"] is None and found["ap/constant_within_answers"] is None
    nan = np.nan
    answers = [np.array(scores) for scores in ([0.5, 0.5], [nan, nan], [0.5, 0.6], [0.5], [])]
    several = [is_constant(scores) for scores in answers if len(scores) > 1]
    assert constant_within_answers(several, 5).value == pytest.approx(2 / 3)
    assert constant_within_answers([], 2).value is None


@cases("benchmark, fields")
def test_every_benchmark_with_boxes_ranks_them(benchmark, fields):
    known = load_benchmark(benchmark)
    answer = {"answer_id": "a", "level": 0}
    fields = {"dataset": benchmark, "kind": "phrase_grounding", "image_hw": (100, 100)} | fields
    one, two = (
        made.record_of(name, boxes=[[100 * x for x in box]], answer=answer, **fields)
        for name, box in (("i1", HERE), ("i2", THERE))
    )
    lines = [
        made.line_of(one, "a", [HERE, THERE], box_scores=[0.9, 0.5]),
        made.line_of(two, "a", [THERE], box_scores=[0.2]),
    ]
    scores = made.scores_of([one, two], lines, gt_mode=known.gt_modes[0], benchmark=known)
    strict = {name: figure.value for name, figure in scores.figures["s"]["strict"].items()}
    assert strict["ap/voc@0.4"] == pytest.approx(0.5 + 0.5 * 2 / 3)
    assert strict["froc/sensitivity@0.5"] == 1
    assert "FROC: sensitivity at one false box per question" in known.markdown(scores)
