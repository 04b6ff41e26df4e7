"""Boxes of three readers as one, and what the page prints of a question's outcome."""

import numpy as np
import pytest
from ensemble_boxes import nms, weighted_boxes_fusion
from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.boxes import pairwise_iou
from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.evaluation.counted import STRICT
from cxrjax.evaluation.scores import ScoreOptions
from cxrjax.paper import load_benchmark
from cxrjax.papers.vindr_cxr_vqa.counts import mean_best_iou, outcome
from cxrjax.records import ReaderBox, write_records
from cxrjax.records_io.readers import merge_readers, parse_mode
from tests.evaluation import made

CASES = made.cases_of(__file__)

HEART = "Cardiomegaly"
FLUID = "Pleural effusion"


def _mark(label, *box):
    return ReaderBox(label=label, box=list(box))


# R1 and R2 box the same heart; R2 boxes it twice; R3 sees fluid that R1 sees elsewhere.
READERS = {
    "R1": [_mark(HEART, 100, 100, 200, 200), _mark(FLUID, 500, 500, 600, 600)],
    "R2": [_mark(HEART, 110, 100, 210, 200), _mark(HEART, 111, 100, 211, 200)],
    "R3": [_mark(FLUID, 0, 500, 100, 600)],
}


def _merged(mode, readers=READERS):
    return merge_readers(readers, parse_mode(mode))


def test_each_mode_by_hand():
    assert len(_merged("raw")) == 5
    assert _merged("reader:R3") == [(FLUID, (0, 500, 100, 600))]
    # Two of three marked the heart and two the fluid: classes are agreed on, the fluid's place not.
    assert sorted(_merged("majority")) == sorted(_merged("raw"))
    heart = (HEART, (105.0, 100.0, 205.0, 200.0))  # R2's second box is a copy of the first
    fluids = [(FLUID, (0.0, 500.0, 100.0, 600.0)), (FLUID, (500.0, 500.0, 600.0, 600.0))]
    assert _merged("components") == [heart, *fluids]
    assert _merged("lesion_majority") == [heart]
    assert _merged("wbf") == [(HEART, (107.0, 100.0, 207.0, 200.0)), *fluids]
    # R2's first box overlaps R1's more than the second does.
    assert _merged("nms") == [(HEART, (100.0, 100.0, 200.0, 200.0)), *fluids]


def test_votes_and_links_of_readers():
    readers = {"R1": READERS["R1"], "R2": [], "R3": []}
    assert _merged("majority", readers) == _merged("lesion_majority", readers) == []
    assert len(_merged("components", readers)) == 2
    # Of two readers, one is no majority.
    assert _merged("majority", {"R1": READERS["R1"], "R2": []}) == []
    for mode in ("raw", "majority", "lesion_majority", "wbf", "nms", "components"):
        assert _merged(mode, {"R1": [], "R2": [], "R3": []}) == []
    one = [_mark(HEART, 0, 0, 100, 100), _mark(HEART, 60, 0, 160, 100)]  # IoU 0.25 with each other
    assert len(_merged("components", {"R1": one})) == 2
    between = [_mark(HEART, 30, 0, 130, 100)]  # IoU 0.54 with both
    assert _merged("components", {"R1": one, "R2": between}) == [(HEART, (30.0, 0.0, 130.0, 100.0))]
    readers = {"R1": [_mark(HEART, 0, 0, 100, 100)], "R2": [_mark(HEART, 40, 0, 140, 100)]}  # 0.43
    assert len(_merged("wbf", readers)) == 2 and len(_merged("wbf:0.4", readers)) == 1
    assert len(_merged("nms:0.4", readers)) == 1
    assert len(_merged("components:0.5", readers)) == 2


@pytest.mark.parametrize(("text", "says"), CASES["bad_modes"])
def test_bad_modes_are_refused(text, says):
    with pytest.raises(UserError, match=says):
        parse_mode(text)


def _box(values):
    x, y, width, height = values
    return _mark(HEART, x, y, x + width, y + height)


sides = st.integers(20, 300)
marks = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 500), sides, sides).map(_box), max_size=4
)
panels = st.fixed_dictionaries({"R1": marks, "R2": marks, "R3": marks})
MERGING = ("wbf", "nms", "components", "lesion_majority")


@given(panels, st.sampled_from(MERGING))
@settings(max_examples=80)
def test_order_of_readers_and_scale_do_not_matter(readers, mode):
    merged = _merged(mode, readers)
    assert _merged(mode, dict(reversed(readers.items()))) == merged
    doubled = {
        rad_id: [_mark(HEART, *(2 * v for v in mark.box)) for mark in given_]
        for rad_id, given_ in readers.items()
    }
    boxes = np.array([box for _, box in merged]).reshape(-1, 4)
    twice = np.array([box for _, box in _merged(mode, doubled)]).reshape(-1, 4)
    np.testing.assert_allclose(twice, 2 * boxes, atol=0.03)
    raw = np.array([box for _, box in _merged("raw", readers)]).reshape(-1, 4)
    assert len(boxes) <= len(raw)
    if len(raw):
        # A merged edge lies between the outermost ones that were drawn.
        assert (boxes >= raw.min(axis=0) - 0.02).all() and (boxes <= raw.max(axis=0) + 0.02).all()


@given(panels)
@settings(max_examples=60)
def test_wbf_gives_the_packages_boxes_one_list_per_reader(readers):
    lists = [[[v / 1000 for v in m.box] for m in readers[r]] for r in sorted(readers)]
    scores = iter(np.linspace(1, 0.99999, 12))
    given_scores = [[next(scores) for _ in boxes] for boxes in lists]
    labels = [[0] * len(boxes) for boxes in lists]
    theirs, _, _ = weighted_boxes_fusion(lists, given_scores, labels, iou_thr=0.55)
    ours = [box for _, box in _merged("wbf", readers)]
    np.testing.assert_allclose(
        np.sort(np.array(ours).reshape(-1, 4), axis=0), np.sort(theirs * 1000, axis=0), atol=0.1
    )


@pytest.mark.slow  # the package compiles for some seconds
@given(panels)
@settings(max_examples=60)
def test_nms_keeps_what_the_package_keeps(readers):
    lists = [[m.box for m in readers[r]] for r in sorted(readers)]
    boxes = np.array([box for one in lists for box in one], float).reshape(-1, 4)
    if not len(boxes):
        return
    owners = np.repeat(np.arange(3), [len(one) for one in lists])
    overlaps = pairwise_iou(boxes, boxes)
    scores = [
        sum(overlaps[i, owners == r].max(initial=0) for r in set(owners.tolist()) - {owners[i]})
        for i in range(len(boxes))
    ]
    if len({round(s, 6) for s in scores}) < len(scores):
        return  # the package breaks ties in its own way
    theirs, _, _ = nms(
        [(boxes / 1000).tolist()], [[s / 3 for s in scores]], [[0] * len(boxes)], iou_thr=0.5
    )
    ours = sorted(tuple(np.round(box, 1)) for _, box in _merged("nms", readers))
    assert ours == sorted(tuple(np.round(box * 1000, 1)) for box in theirs)


def _record(present=True, image="i", **fields):
    boxes, labels = ([made.BOX], ["ILD"]) if present else ([], [])
    return made.record_of(image, boxes=boxes, labels=labels, **fields)


def _prediction(text, boxes=(), **fields):
    (line,) = made.predictions_of([made.line_of(_record(), text, boxes, **fields)])
    return line


@pytest.mark.parametrize(
    ("present", "text", "boxes", "right", "iou", "note"), CASES["right_or_wrong"]
)
def test_right_or_wrong_and_why(present, text, boxes, right, iou, note):
    found = outcome(_record(present), _prediction(text, boxes), None)
    assert (found.right, found.note) == (right, note)
    assert found.iou == (iou if iou is None else pytest.approx(iou, abs=1e-6))


def test_open_questions_name_what_was_missed_if_there_is_a_reference():
    record = _record(kind="What", question="What is seen?", variables=None)
    found = outcome(record, _prediction("Cardiomegaly."), None)
    assert found.right is False and found.note == "missed: ILD; not there: Cardiomegaly"
    assert outcome(record, _prediction("ILD."), None).note == "all classes right"
    assert outcome(_record(answers=[]), _prediction("ILD."), None).right is None


def test_boxes_and_refusals_are_read_by_the_codec():
    text = "ILD at " + CODECS["paligemma"].encode(np.array([[0.1, 0.1, 0.5, 0.5]]), 100, 200)
    (line,) = made.predictions_of([{"question_id": "q", "text": text}])
    with pytest.raises(UserError, match="--codec"):
        outcome(_record(), line, None)
    assert outcome(_record(), line, CODECS["paligemma"]).iou > 0.95
    absent, text = _record(present=False), "I cannot answer this question."
    told = _prediction(text, parse="refusal")
    (found,) = made.predictions_of([{"question_id": "q", "text": text}])
    for line, codec in ((told, None), (found, CODECS["vindr_px"])):
        assert outcome(absent, line, codec).note == "no answer"


def test_the_share_of_right_answers_is_the_benchmarks_exact_set(tmp_path):
    records = [_record(n % 3 > 0, f"i{n}") for n in range(30)]
    texts = ["Yes.", "No.", "", "ILD, cardiomegaly.", "no ILD"] * 6
    lines = list(map(made.line_of, records, texts))
    write_records(tmp_path / "r.jsonl", records)
    made.write_lines(tmp_path / "p.jsonl", lines)
    scores = load_benchmark("vindr_cxr_vqa").score_files(
        tmp_path / "r.jsonl",
        {"p": tmp_path / "p.jsonl"},
        ScoreOptions(gt_mode="exact", bootstrap=made.NO),
    )
    predictions = made.predictions_of(lines)
    right = [outcome(r, p, None).right for r, p in zip(records, predictions, strict=True)]
    assert sum(right) / 30 == pytest.approx(scores.figures["p"][STRICT]["vqa/exact_set"].value)


def test_iou_of_two_sets_of_boxes():
    left, half = np.array([[0.0, 0.0, 0.5, 1.0]]), np.array([[0.0, 0.0, 0.25, 1.0]])
    none = np.zeros((0, 4))
    far = np.array([[0.8, 0.8, 0.9, 0.9]])
    assert mean_best_iou(none, none) is None
    assert mean_best_iou(left, none) == mean_best_iou(none, left) == 0
    assert mean_best_iou(left, left) == 1
    assert mean_best_iou(left, half) == pytest.approx(0.5)
    # .5 for each of the pair, nothing for the box that is far from all.
    assert mean_best_iou(left, np.concatenate([half, far])) == pytest.approx(1 / 3)
