"""Questions from annotations: copied truth, correct wording, balance, determinism."""

import collections
import random
import re

import pytest

from cxrjax.codecs import CODECS
from cxrjax.datasets.vindr_cxr_vqa import CLASSES, Finding, ImageAnnotation
from cxrjax.datasets.vindr_cxr_vqa.construct import (
    CLASS_QUESTION_TYPES,
    MAX_BOXES,
    Construction,
    construct_dense,
    construct_vqa,
    deal_negatives,
)
from cxrjax.datasets.vindr_cxr_vqa.templates import (
    QUESTION_TYPES,
    format_box,
    join,
    load_templates,
)

BUILD = Construction(seed=0, dataset="synthetic")
LOC = re.compile(r"<loc[^>]*>")


def _image(number: int, labels: list[str], boxes_per_class: int = 1) -> ImageAnnotation:
    rng = random.Random(number)
    findings = []
    for label in labels:
        for _ in range(boxes_per_class):
            x, y = rng.randrange(100), rng.randrange(80)
            findings.append(Finding(label, (x, y, x + 5 + rng.randrange(20), y + 9)))
    return ImageAnnotation(
        f"image-{number}",
        f"images/{number}.png",
        (120, 130),
        findings,
        {"P1": findings, "P2": findings[:1], "P3": []},
    )


def _images(count: int) -> list[ImageAnnotation]:
    rng = random.Random(7)
    return [
        _image(i, rng.sample(CLASSES, 0 if i % 10 == 9 else rng.randint(1, 7)), rng.randint(1, 3))
        for i in range(count)
    ]


def test_templates_have_eight_distinct_phrasings_per_category():
    templates = load_templates()
    assert set(templates.questions) == {*QUESTION_TYPES, "What_one"}
    for category, phrasings in templates.questions.items():
        assert len(set(phrasings)) == len(phrasings) >= 8, category
        for phrasing in phrasings:
            assert phrasing.count("{finding}") == int(not category.startswith("What"))
    for kind in QUESTION_TYPES:
        assert set(templates.answers["dense"][kind]) == {"one", "many", "none"}
    for kind in ("Is_there", "Yes_No"):
        for mode in ("vqa", "dense"):
            for form, texts in templates.answers[mode][kind].items():
                begin = "No," if form == "none" else "Yes,"
                assert all(text.startswith(begin) for text in texts)


def test_join():
    assert [join(list("abc")[:n]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]


def test_dense_asks_every_present_class_once_with_all_boxes_in_reading_order():
    for image in _images(30):
        records = list(construct_dense([image], "train", BUILD))
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
    normal, ill = _image(1, []), _image(2, ["ILD", "Cardiomegaly"], 2)
    # Each has one "What", and it comes first.
    records = list(construct_dense([normal, ill], "train", BUILD))
    what = [r for r in records if r.question_type == "What"]
    assert [r.image_id for r in what] == ["image-1", "image-2"]
    assert what[0].answer_text == "There is no finding."
    assert (what[0].answers[0].polarity, what[0].negative_kind) == ("neg", "no_finding_image")
    assert what[1].answer_text == "The findings are Cardiomegaly and ILD."
    assert what[1].answers[0].labels == ["Cardiomegaly", "ILD"]
    assert all(not r.boxes and "<loc" not in r.answer_text for r in what)
    assert [len(marked) for marked in what[1].readers.values()] == [4, 1, 0]
    assert [r.readers for r in records if r.question_type != "What"] == [None] * (len(records) - 2)


def test_dense_balance_is_five_to_seven():
    records = list(construct_dense(_images(300), "train", BUILD))
    polarity = collections.Counter(r.answers[0].polarity for r in records)
    assert polarity["neg"] == round(polarity["pos"] * 7 / 5)
    for record in records:
        kinds = {"pos": {None}, "neg": {"absent_class", "no_finding_image"}}
        assert record.negative_kind in kinds[record.answers[0].polarity]
        if record.answers[0].polarity == "neg":
            assert not record.boxes and record.gt_finding is None and record.gt_location is None


def test_dense_spreads_questions_evenly_over_images():
    images = _images(200)
    counts = collections.Counter(r.image_id for r in construct_dense(images, "train", BUILD))
    slack = {i.image_id for i in images if len(i.present) + 1 < max(counts.values()) - 1}
    assert max(counts[i] for i in slack) - min(counts[i] for i in slack) <= 1


def test_negatives_stop_where_every_absent_class_is_taken():
    images = [_image(i, list(CLASSES[:13])) for i in range(3)]
    assert deal_negatives(images, BUILD) == [1, 1, 1]


@pytest.mark.parametrize("polarity", ["pos", "neg"])
def test_dense_types_rotate_evenly(polarity):
    records = construct_dense(_images(400), "train", BUILD)
    counts = collections.Counter(
        r.question_type for r in records if r.variables and r.answers[0].polarity == polarity
    )
    assert set(counts) == set(CLASS_QUESTION_TYPES)
    mean = counts.total() / 5
    assert all(abs(count - mean) < 0.1 * mean for count in counts.values()), counts


def test_dense_answers_are_short_and_parse():
    images = [_image(i, list(CLASSES[i % 8 : i % 8 + 5]), 1 + i % MAX_BOXES) for i in range(48)]
    for record in construct_dense(images, "train", BUILD):
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


def test_dense_refuses_more_boxes_than_an_answer_may_list():
    with pytest.raises(ValueError, match="7 boxes of ILD"):
        list(construct_dense([_image(1, ["ILD"], MAX_BOXES + 1)], "train", BUILD))


def test_vqa_asks_four_questions_with_one_box_of_the_annotation():
    images = [image for image in _images(120)]
    by_id = {image.image_id: image for image in images}
    records = list(construct_vqa(images, "train", BUILD))
    counts = collections.Counter(r.image_id for r in records)
    assert set(counts) == {i.image_id for i in images if i.findings}
    assert set(counts.values()) == {4}
    for record in records:
        finding = Finding(record.gt_finding, tuple(record.boxes[0]))
        assert len(record.boxes) == 1 and finding in by_id[record.image_id].findings
        assert LOC.findall(record.answer_text) == [record.gt_location]
        assert record.gt_location == format_box(finding.box)
        assert record.gt_finding in record.answer_text and record.gt_location in record.reason
        # The question must not give away what "What" asks for.
        assert (record.gt_finding in record.question) == (record.question_type != "What")
        assert record.variables == (
            None if record.question_type == "What" else {"finding": record.gt_finding}
        )
        assert record.readers is not None and record.reason and record.difficulty
    types = collections.Counter(r.question_type for r in records)
    assert set(types) == set(QUESTION_TYPES)


def test_vqa_counts_one_readers_boxes():
    twice = [Finding("ILD", (1, 2, 3, 4)), Finding("ILD", (5, 6, 7, 8))]
    image = ImageAnnotation("i", "i.png", None, twice + twice, {"A": twice, "B": twice, "C": []})
    answers = {
        r.answer_text
        for seed in range(20)
        for r in construct_vqa([image], "train", Construction(seed, "vindr_cxr_vqa"))
        if r.question_type == "How_many"
    }
    assert answers and all("2 areas" in answer for answer in answers)


def test_difficulty_rule():
    image = _image(3, ["ILD"], 2)
    for record in construct_dense([image, *_images(20)], "train", BUILD):
        easy = record.question_type in ("Where", "Is_there", "Yes_No") and len(record.boxes) <= 1
        assert record.difficulty == ("Easy" if easy else "Medium")


def test_each_image_is_decided_by_seed_and_id():
    images = _images(20)
    alone = {i.image_id: list(construct_vqa([i], "train", BUILD)) for i in images}
    together = list(construct_vqa(images[::-1], "train", BUILD))
    for image in images:
        assert [r for r in together if r.image_id == image.image_id] == alone[image.image_id]
    assert list(construct_dense(images, "t", BUILD)) == list(construct_dense(images, "t", BUILD))
    other = list(construct_dense(images, "t", Construction(1, "synthetic")))
    assert other != list(construct_dense(images, "t", BUILD))
