"""What answers say, counted: five outcomes, numbers, places, votes, and every pair."""

import pytest

from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES
from cxrjax.radiology_text.answer_details import count_said
from tests.evaluation import made

CASES = made.cases_of(__file__)


def _record(number, text, asked="ILD", there=True, kind="Is_there", boxes=(), **fields):
    labels = [asked] if asked else []
    answer = {"text": text, "labels": labels, "polarity": "pos" if there else "neg"}
    if there:
        fields["negative_kind"] = None
    return made.record_of(
        "i", number, asked, boxes, labels, kind, answer, image_hw=(100, 100), **fields
    )


def _strict(records, texts, boxes=()):
    lines = [made.line_of(r, text, boxes) for r, text in zip(records, texts, strict=True)]
    return made.values_of(records, lines)


BOTH = [
    _record(0, "Yes, ILD.", "ILD"),
    _record(1, "There is no Cardiomegaly.", "Cardiomegaly", there=False),
]


@pytest.mark.parametrize(("text", "rate"), CASES["neither"])
def test_neither_yes_nor_no_is_wrong_for_either_truth(text, rate):
    strict = _strict(BOTH, [text] * 2)
    assert strict[f"vqa/{rate}"] == strict["vqa/most_common_answer_share"] == 1
    rates = ("contentless_rate", "undecided_rate", "off_topic_rate")
    assert sum(strict[f"vqa/{name}"] for name in rates) == 1
    for name in ("accuracy", "balanced_accuracy", "sensitivity", "specificity", "exact_set"):
        assert strict[f"vqa/{name}"] == 0, name


def test_what_says_nothing_denies_nothing_and_a_measure_is_no_count():
    line = {"question_id": "i-0", "text": "Yes."}
    strict = made.values_of(BOTH, [line], codec="vindr_px")
    assert strict["vqa/contentless_rate"] == strict["vqa/accuracy"] == 0.5
    assert count_said("<loc_1_2_3_4> 4 mm, 50 %, 1.5, 2 nodules") == 2
    assert count_said("ILD") is None


def test_normal_images_have_to_be_denied_and_all_pairs_count():
    normal = [_record(0, "There is no finding.", "", there=False, kind="What")]
    assert _strict(normal, ["No abnormality."])["vqa/exact_set"] == 1
    for text in ("The", "", "banana", "Unclear.", "Cardiomegaly."):
        strict = _strict(normal, [text])
        assert strict["vqa/exact_set"] == strict["vqa/what_by_votes"] == 0, text
    # ILD is there; Cardiomegaly is asked about and absent; of 12 others nothing is asked.
    assert _strict(BOTH, ["Yes.", "No."])["vqa/accuracy_all_pairs"] == 1
    strict = _strict(BOTH, ["Yes.", "Yes."])
    assert strict["vqa/accuracy"] == 1 / 2
    assert strict["vqa/accuracy_all_pairs"] == pytest.approx(1 - 1 / len(CLASSES))
    strict = _strict(BOTH, ["There is ILD and pneumothorax.", "The"])
    assert strict["vqa/accuracy_all_pairs"] == pytest.approx(1 - 2 / len(CLASSES))
    assert _strict(BOTH, ["The", "The"])["vqa/accuracy_all_pairs"] == 0


def _readers(*marked):
    """R1, R2 and R3, who marked these classes."""
    return {
        f"R{number}": [{"label": label, "box": [1, 1, 9, 9]} for label in labels]
        for number, labels in enumerate(marked, 1)
    }


HOW_MANY = _record(
    0,
    "There are 2 areas of ILD: <loc_1_1_9_9> <loc_20_20_30_30>",
    kind="How_many",
    boxes=[[1, 1, 9, 9], [20, 20, 30, 30]],
    readers=_readers(["ILD"] * 3, ["ILD"], []),
)


@pytest.mark.parametrize(("text", "boxes", "exact", "in_range"), CASES["how_many"])
def test_how_many_is_scored_by_its_number(text, boxes, exact, in_range):
    strict = _strict([HOW_MANY], [text], [[0.1, 0.1, 0.2, 0.2]] * boxes)
    assert strict["vqa/how_many_exact"] == exact
    assert strict["vqa/how_many_in_range"] == in_range


LEFT = [[60.0, 10.0, 90.0, 40.0]]  # as displayed: the patient's left is on the right


@pytest.mark.parametrize(("truth", "text", "boxes", "side", "region"), CASES["which"])
def test_which_is_scored_by_side_and_region(truth, text, boxes, side, region):
    record = _record(0, truth, kind="Which", boxes=LEFT)
    strict = _strict([record], [text], boxes)
    assert strict["vqa/which_side"] == side
    assert strict["vqa/which_region"] == region


READERS = _readers(["Cardiomegaly", "ILD"], ["Cardiomegaly"], ["Cardiomegaly"])
WHAT = _record(0, "ILD.", "", kind="What", readers=READERS)


@pytest.mark.parametrize(("text", "votes", "made_up"), CASES["what"])
def test_what_is_scored_by_any_readers_votes(text, votes, made_up):
    strict = _strict([WHAT], [text])
    assert strict["vqa/what_by_votes"] == pytest.approx(votes)
    assert strict["vqa/hallucination_rate"] == made_up
