"""Questions from annotations: copied truth, correct wording, balance, determinism."""

import collections
import hashlib
import json
import random
import re

import pytest

from cxrjax.codecs import CODECS
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES, FindingBox, ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.construct import asking, templates
from cxrjax.papers.vindr_cxr_vqa.construct.asking import MAX_BOXES, plan_lesions
from cxrjax.papers.vindr_cxr_vqa.construct.lesions import ORGANS, find_lesions
from cxrjax.papers.vindr_cxr_vqa.construct.plan import Assembly, Wording, reader_boxes
from cxrjax.papers.vindr_cxr_vqa.construct.template_writer import EASY_BOXES, TemplateWriter
from cxrjax.papers.vindr_cxr_vqa.construct.templates import QUESTION_TYPES, format_box
from cxrjax.radiology_text.english import join
from cxrjax.records import format_record
from cxrjax.records_io.readers import merge_readers, parse_mode
from cxrjax.simulation.dense import DenseWriter, deal_negatives, plan_dense

# Of dense records as they were when the checkpoint in data/demo_base was trained.
DENSE_SHA256 = "1312ecc89d7186e489ccf4a0abb3fb1cecf582a302150e3e30d389937e6b8f48"
LOC = re.compile(r"<loc[^>]*>")


def _image(number: int, labels: list[str], boxes_per_class: int = 1) -> ImageAnnotation:
    rng = random.Random(number)
    findings = []
    for label in labels:
        for _ in range(boxes_per_class):
            x, y = rng.randrange(100), rng.randrange(80)
            findings.append(FindingBox(label, (x, y, x + 5 + rng.randrange(20), y + 9)))
    readers = {"P1": findings, "P2": findings[:1], "P3": []}
    return ImageAnnotation(f"image-{number}", f"images/{number}.png", (120, 130), findings, readers)


def _images(count: int) -> list[ImageAnnotation]:
    rng = random.Random(7)
    return [
        _image(i, rng.sample(CLASSES, 0 if i % 10 == 9 else rng.randint(1, 7)), rng.randint(1, 3))
        for i in range(count)
    ]


def dense(images, split="train", seed=0):
    return Assembly("synthetic", DenseWriter(seed)).records(plan_dense(images, seed), split)


def lesions(images, split="train", seed=0):
    assembly = Assembly("vindr_cxr_vqa", TemplateWriter(seed))
    return assembly.records(plan_lesions(images, seed), split)


def test_dense_records_are_what_the_shipped_checkpoint_was_trained_on():
    """Reasons, which it never saw, aside."""
    lines = [json.loads(format_record(record)) for record in dense(_images(40))]
    unseen = ("reason", "template_id", "generator")
    seen = [{name: line[name] for name in line.keys() - unseen} for line in lines]
    text = "\n".join(json.dumps(line, sort_keys=True) for line in seen)
    assert hashlib.sha256(text.encode()).hexdigest() == DENSE_SHA256


@pytest.mark.parametrize("version", ["5", "6"])
def test_templates_have_eight_distinct_phrasings_per_category(version):
    loaded = templates.load_templates(version)
    for category, phrasings in loaded.questions.items():
        assert len(set(phrasings)) == len(phrasings) >= 8, category
        for phrasing in phrasings:
            names = len(re.findall(r"{\w*finding}", phrasing))
            assert names == int(category not in ("What", "List_all"))
    assert set(loaded.questions) - {"List_all"} == set(QUESTION_TYPES)
    style = {"5": "dense", "6": "lesions"}[version]
    for kind in QUESTION_TYPES:
        assert {"one", "none"} <= set(loaded.answers[style][kind])
    for kind in ("Is_there", "Yes_No"):
        for form, texts in loaded.answers[style][kind].items():
            begin = "No," if form == "none" else "Yes,"
            assert all(text.startswith(begin) for text in texts)


def test_join():
    assert [join(list("abc")[:n]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]


def test_dense_asks_every_present_class_once_with_all_boxes_in_reading_order():
    for image in _images(30):
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
    normal, ill = _image(1, []), _image(2, ["ILD", "Cardiomegaly"], 2)
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


def test_dense_balance_is_five_to_seven():
    records = list(dense(_images(300)))
    polarity = collections.Counter(r.answers[0].polarity for r in records)
    assert polarity["neg"] == round(polarity["pos"] * 7 / 5)
    for record in records:
        kinds = {"pos": {None}, "neg": {"absent_class", "no_finding_image"}}
        assert record.negative_kind in kinds[record.answers[0].polarity]
        if record.answers[0].polarity == "neg":
            assert not record.boxes and record.gt_finding is None and record.gt_location is None


def test_dense_spreads_questions_evenly_over_images():
    images = _images(200)
    counts = collections.Counter(r.image_id for r in dense(images))
    slack = {i.image_id for i in images if len(i.present) + 1 < max(counts.values()) - 1}
    assert max(counts[i] for i in slack) - min(counts[i] for i in slack) <= 1


def test_negatives_stop_where_every_absent_class_is_taken():
    images = [_image(i, list(CLASSES[:13])) for i in range(3)]
    assert deal_negatives(images, 0) == [1, 1, 1]


@pytest.mark.parametrize("polarity", ["pos", "neg"])
def test_dense_types_rotate_evenly(polarity):
    records = dense(_images(400))
    counts = collections.Counter(
        r.question_type for r in records if r.variables and r.answers[0].polarity == polarity
    )
    assert set(counts) == set(asking.CLASS_QUESTION_TYPES)
    mean = counts.total() / 5
    assert all(abs(count - mean) < 0.1 * mean for count in counts.values()), counts


def test_dense_answers_are_short_and_parse():
    images = [_image(i, list(CLASSES[i % 8 : i % 8 + 5]), 1 + i % MAX_BOXES) for i in range(48)]
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


def test_dense_refuses_more_boxes_than_an_answer_may_list():
    with pytest.raises(ValueError, match="7 boxes of ILD"):
        list(dense([_image(1, ["ILD"], MAX_BOXES + 1)]))


def test_four_questions_an_image_each_with_all_lesions_of_a_class():
    images = _images(120)
    by_id = {image.image_id: image for image in images}
    records = list(lesions(images))
    counts = collections.Counter(r.image_id for r in records)
    assert set(counts) == {i.image_id for i in images if i.findings}
    assert set(counts.values()) == {4}
    for record in records:
        image = by_id[record.image_id]
        found = [list(lesion.box) for lesion in find_lesions(image, record.gt_finding)]
        assert record.boxes == found and len(found) >= 1
        assert set(map(tuple, found)) <= set(image.boxes_of(record.gt_finding))
        assert LOC.findall(record.answer_text) == [format_box(box) for box in found]
        assert record.gt_location == format_box(found[0])
        assert record.gt_finding in record.answer_text
        # The question must not give away what "What" asks for.
        if record.question_type == "What":
            assert record.gt_finding.lower() not in record.question.lower()
            assert record.variables is None and sorted(record.answer_key) == image.present
            assert {label for a in record.answers for label in a.labels} == set(image.present)
        else:
            assert record.variables == {"finding": record.gt_finding}
        assert record.readers is not None and record.reason and record.difficulty


def test_lesions_are_the_components_of_the_readers_boxes():
    for image in _images(60):
        merged = merge_readers(reader_boxes(image), parse_mode("components"))
        for label in set(image.present) - set(ORGANS):
            assert len(find_lesions(image, label)) == sum(name == label for name, _ in merged)


def test_kinds_come_equally_often_and_rotate_on_each_image():
    plans = list(plan_lesions(_images(120), 0))
    counts = collections.Counter(plan.kind for plan in plans)
    assert set(counts) == set(QUESTION_TYPES) and max(counts.values()) - min(counts.values()) <= 4
    by_image = collections.defaultdict(set)
    for plan in plans:
        by_image[plan.image.image_id].add(plan.kind)
    assert all(len(kinds) == 4 for kinds in by_image.values())


def test_a_number_is_of_lesions_with_the_range_of_the_readers():
    far, near = FindingBox("ILD", (50, 60, 70, 80)), FindingBox("ILD", (1, 2, 30, 40))
    copy = FindingBox("ILD", (1, 2, 30, 41))
    readers = {"A": [near, far], "B": [copy], "C": []}
    image = ImageAnnotation("i", "i.png", None, [near, far, copy], readers)
    records = [
        record
        for seed in range(20)
        for record in lesions([image], seed=seed)
        if record.question_type == "How_many"
    ]
    assert records
    for record in records:
        assert "wo areas" in record.answer_text and len(record.boxes) == 2
        assert record.answer_key == ["1", "2"]


def test_which_is_asked_only_of_what_has_a_known_place():
    heart = FindingBox("Cardiomegaly", (800, 1200, 1800, 1700))
    beside = FindingBox("ILD", (200, 1300, 500, 1650))
    for findings, hw, place in (
        ([heart, beside], None, "in the right lower zone"),
        ([beside], None, None),
        ([beside], (2500, 2400), "in the right mid zone and the right lower zone"),
    ):
        image = ImageAnnotation("i", "i.png", hw, findings, {"A": findings})
        left_out: collections.Counter = collections.Counter()
        for seed in range(20):
            for plan in plan_lesions([image], seed, left_out):
                if plan.kind == "Which":
                    assert plan.labels == ("ILD",) and plan.place == place
        kinds = {p.kind for seed in range(20) for p in plan_lesions([image], seed)}
        assert ("Which" in kinds) == (place is not None)
        if len(findings) == 2:
            assert "Which" not in left_out


def test_names_and_typing_errors_vary_at_the_stated_rates():
    images = _images(400)
    ids = [record.template_id for record in lesions(images)]
    asked = [i for i in ids if "/What/" not in i]
    rates = templates.load_templates("6").variation
    for how in ("lower", "synonym", "careless", "typo"):
        of = asked if how in ("lower", "synonym") else ids
        share = sum(how in i.split("/")[-1] for i in of) / len(of)
        assert share == pytest.approx(rates[how], abs=0.05 if rates[how] > 0.1 else 0.02), how


def test_list_all_has_an_answer_for_each_class_with_all_its_boxes():
    image = _image(5, ["ILD", "Cardiomegaly"], 2)
    plan = asking.plan_list_all(image, "q")
    (record,) = Assembly("vindr_cxr_vqa", TemplateWriter(0)).records([plan], "train")
    assert [answer.labels for answer in record.answers] == [["Cardiomegaly"], ["ILD"]]
    for answer in record.answers:
        boxes = [list(box) for box in image.boxes_of(answer.labels[0])]
        assert answer.boxes_by_image == {image.image_id: boxes}
        assert len(LOC.findall(answer.text)) == len(boxes)
    assert sorted(record.boxes) == sorted(list(f.box) for f in image.findings)
    assert record.gt_finding is None and record.gt_location is None


def test_words_that_do_not_hold_the_plans_boxes_are_refused():
    plan = asking.plan_list_all(_image(5, ["ILD", "Cardiomegaly"]), "q")
    assembly = Assembly("vindr_cxr_vqa", TemplateWriter(0))
    for answer in ("There is ILD.", "Cardiomegaly at <loc_1_2_3_4>. ILD at <loc_1_2_3_4>."):
        with pytest.raises(ValueError, match=r"sentences with boxes|lacks a box"):
            assembly.record(plan, Wording("?", answer, "", "Medium"), "train")


def test_difficulty_rule():
    image = _image(3, ["ILD"], 2)
    easy_kinds = ("Where", "Is_there", "Yes_No")
    for record in dense([image, *_images(20)]):
        easy = record.question_type in easy_kinds and len(record.boxes) <= 1
        assert record.difficulty == ("Easy" if easy else "Medium")
    for record in lesions(_images(40)):
        easy = record.question_type in easy_kinds and len(record.boxes) <= EASY_BOXES
        assert record.difficulty == ("Easy" if easy else "Medium")


def test_the_same_seed_gives_the_same_records_in_any_order_of_images():
    images = _images(20)
    forwards = {r.question_id: r for r in lesions(images)}
    assert forwards == {r.question_id: r for r in lesions(images[::-1])}
    assert list(dense(images)) == list(dense(images))
    assert list(dense(images)) != list(dense(images, seed=1))
    assert list(lesions(images)) != list(lesions(images, seed=1))
