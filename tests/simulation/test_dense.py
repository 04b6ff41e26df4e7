"""Dense questions about phantoms: every class that is there, all its boxes, balance."""

import collections
import hashlib
import json
import re

import pytest

from cxrjax.codecs import CODECS
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES
from cxrjax.papers.vindr_cxr_vqa.construct import asking
from cxrjax.papers.vindr_cxr_vqa.construct.asking import MAX_BOXES
from cxrjax.papers.vindr_cxr_vqa.construct.plan import Assembly
from cxrjax.papers.vindr_cxr_vqa.construct.templates import format_box
from cxrjax.records import format_record
from cxrjax.simulation.dense import DenseWriter, deal_negatives, plan_dense
from tests.papers.vindr_cxr_vqa.test_construct import annotated, annotation

# Of dense records as they were when the checkpoint in data/demo_base was trained.
DENSE_SHA256 = "1312ecc89d7186e489ccf4a0abb3fb1cecf582a302150e3e30d389937e6b8f48"
LOC = re.compile(r"<loc[^>]*>")


def dense(images, split="train", seed=0):
    return Assembly("synthetic", DenseWriter(seed)).records(plan_dense(images, seed), split)


def test_dense_records_are_what_the_shipped_checkpoint_was_trained_on():
    """Reasons, which it never saw, aside."""
    lines = [json.loads(format_record(record)) for record in dense(annotated(40))]
    unseen = ("reason", "template_id", "generator")
    seen = [{name: line[name] for name in line.keys() - unseen} for line in lines]
    text = "\n".join(json.dumps(line, sort_keys=True) for line in seen)
    assert hashlib.sha256(text.encode()).hexdigest() == DENSE_SHA256


def test_dense_asks_every_present_class_once_with_all_boxes_in_reading_order():
    for image in annotated(30):
        records = list(dense([image]))
        about = [r.variables["finding"] for r in records if r.variables]
        assert len(about) == len(set(about))
        positive = {r.variables["finding"]: r for r in records[1:] if r.gt_finding}
        assert sorted(positive) == image.present
        for label, record in positive.items():
            boxes = [f.box for f in image.findings if f.label == label]
            expected = sorted(boxes, key=lambda b: (b[1], b[0], b[3], b[2]))
            assert record.answers[0].boxes_by_image == {image.image_id: [list(b) for b in expected]}
            assert LOC.findall(record.answer_text) == [format_box(b) for b in expected]
            assert record.gt_finding == label
            assert record.gt_location == " ".join(format_box(b) for b in expected)
            assert record.answers[0].labels == [label] and record.answers[0].polarity == "pos"


def test_dense_what_names_the_findings_without_boxes_and_carries_the_readers():
    normal, ill = annotation(1, []), annotation(2, ["ILD", "Cardiomegaly"], 2)
    # Each has one "What", and it comes first.
    records = list(dense([normal, ill]))
    what = [r for r in records if r.question_type == "What"]
    assert [r.image_id for r in what] == ["image-1", "image-2"]
    assert what[0].answer_text == "There is no finding."
    assert (what[0].answers[0].polarity, what[0].negative_kind) == ("neg", "no_finding_image")
    assert what[1].answer_text == "The findings are Cardiomegaly and ILD."
    assert what[1].answers[0].labels == ["Cardiomegaly", "ILD"]
    assert all(not r.boxes and "<loc" not in r.answer_text for r in what)
    assert [len(marked) for marked in what[1].readers.values()] == [4, 1, 0]
    assert [r.readers for r in records if r.question_type != "What"] == [None] * (len(records) - 2)


def test_dense_questions_are_balanced_and_spread_evenly_over_images():
    records = list(dense(annotated(300)))
    polarity = collections.Counter(r.answers[0].polarity for r in records)
    assert polarity["neg"] == round(polarity["pos"] * 7 / 5)
    for record in records:
        kinds = {"pos": {None}, "neg": {"absent_class", "no_finding_image"}}
        assert record.negative_kind in kinds[record.answers[0].polarity]
        if record.answers[0].polarity == "neg":
            assert not record.boxes and record.gt_finding is None and record.gt_location is None
    images = annotated(200)
    counts = collections.Counter(r.image_id for r in dense(images))
    slack = {i.image_id for i in images if len(i.present) + 1 < max(counts.values()) - 1}
    assert max(counts[i] for i in slack) - min(counts[i] for i in slack) <= 1


def test_dense_records_are_easy_limited_and_the_same_for_a_seed():
    images = [annotation(i, list(CLASSES[:13])) for i in range(3)]
    assert deal_negatives(images, 0) == [1, 1, 1]
    with pytest.raises(ValueError, match="7 boxes of ILD"):
        list(dense([annotation(1, ["ILD"], MAX_BOXES + 1)]))
    for record in dense([annotation(3, ["ILD"], 2), *annotated(20)]):
        asks = record.question_type in ("Where", "Is_there", "Yes_No")
        easy = asks and len(record.boxes) <= 1
        assert record.difficulty == ("Easy" if easy else "Medium")
    images = annotated(20)
    assert list(dense(images)) == list(dense(images))
    assert list(dense(images)) != list(dense(images, seed=1))


@pytest.mark.parametrize("polarity", ["pos", "neg"])
def test_dense_types_rotate_evenly(polarity):
    records = dense(annotated(400))
    counts = collections.Counter(
        r.question_type for r in records if r.variables and r.answers[0].polarity == polarity
    )
    assert set(counts) == set(asking.CLASS_QUESTION_TYPES)
    mean = counts.total() / 5
    assert all(abs(count - mean) < 0.1 * mean for count in counts.values()), counts


def test_dense_answers_are_short_and_parse():
    images = [annotation(i, list(CLASSES[i % 8 : i % 8 + 5]), 1 + i % MAX_BOXES) for i in range(48)]
    for record in dense(images):
        text = record.answer_text
        words = LOC.sub("", text).split()
        assert len(words) <= 12 + 2 * (record.question_type == "What"), text
        assert "{" not in text + record.question + record.reason
        decoded = CODECS["vindr_px"].decode(text, *record.image_hw, strict=True)
        assert len(decoded.boxes) == len(record.boxes) <= MAX_BOXES
        if record.question_type in ("Is_there", "Yes_No"):
            assert text.startswith("Yes" if record.boxes else "No")
        if record.question_type == "How_many" and record.boxes:
            assert f" {len(record.boxes)} area{'s' if len(record.boxes) > 1 else ''} of " in text
            assert text.startswith("There are" if len(record.boxes) > 1 else "There is 1")
