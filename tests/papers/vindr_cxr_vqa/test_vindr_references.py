"""References of VinDr-CXR-VQA: what is refused by its question, and what a record says is there."""

import pytest

from cxrjax.errors import UserError
from cxrjax.papers.vindr_cxr_vqa.truth import read_references
from tests.evaluation import made
from tests.evaluation.made import BOX

CASES = made.cases_of(__file__)
READERS = {"R1": [{"label": "ILD", "box": BOX}]}


def _record(number=0, boxes=(), labels=("ILD",), **fields):
    return made.record_of("i0", number, boxes=boxes, labels=list(labels), **fields)


@pytest.mark.parametrize(("change", "says"), CASES["bad_references"])
def test_bad_references_are_refused_by_their_question(change, says):
    record = _record(boxes=[change.pop("box", BOX)], readers=READERS)
    if "labels" in change:
        record.answers[0].labels = change.pop("labels")
    broken = record.model_copy(update=change)
    with pytest.raises(UserError, match="r.jsonl: question 'i0-0' .*" + says):
        read_references([broken], "raw", "r.jsonl")


def test_bad_references_and_records_of_ones_own():
    record = _record(boxes=[BOX])
    with pytest.raises(UserError, match="'i0-0' stands there twice"):
        read_references([record, record], "exact", "r.jsonl")
    with pytest.raises(UserError, match="holds no records"):
        read_references([], "exact", "r.jsonl")
    other = _record(1, [BOX], image_hw=(100, 300))
    with pytest.raises(UserError, match=r"\(100, 200\) and \(100, 300\)"):
        read_references([record, other], "exact", "r.jsonl")
    several = _record(1, [BOX], ["ILD", "Atelectasis"], variables=None, kind="What")
    with pytest.raises(UserError, match="several classes"):
        read_references([several], "exact", "r.jsonl")
    readers = {"R1": [{"label": "Scoliosis", "box": BOX}]}
    record = _record(dataset="custom", boxes=[BOX], labels=[" Pacer "], readers=readers)
    record = record.model_copy(update={"variables": {"finding": "Pacer"}})
    references = read_references([record], "raw", "r.jsonl")
    assert {"Pacer", "Scoliosis"} <= set(references.classes)
    assert references.questions["i0-0"].present == {"Pacer"}


def test_references_without_labels_speak_by_polarity_and_text():
    def present(**answer):
        record = _record(negative_kind=answer.pop("kind", None))
        base = {"text": "", "labels": [], "polarity": "unk", "boxes_by_image": {}}
        record = record.model_copy(
            update={"answers": [record.answers[0].model_copy(update={**base, **answer})]}
        )
        (question,) = read_references([record], "exact", "r").questions.values()
        return question.present

    assert present(polarity="pos") == {"ILD"}
    assert present(polarity="neg") == set()
    assert present(text="Yes, it is there.") == {"ILD"}
    assert present(text="There is no ILD.") == set()
    assert present(boxes_by_image={"i0": [BOX]}) == {"ILD"}
    assert present(labels=["ILD"]) == {"ILD"}
    assert present(labels=["ILD"], kind="absent_class") == set()
