"""Questions from annotations: copied truth, correct wording, balance, determinism."""

import collections
import random
import re

import pytest

from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES, FindingBox, ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.construct import asking, templates
from cxrjax.papers.vindr_cxr_vqa.construct.asking import plan_lesions
from cxrjax.papers.vindr_cxr_vqa.construct.lesions import ORGANS, find_lesions
from cxrjax.papers.vindr_cxr_vqa.construct.plan import Assembly, Wording, reader_boxes
from cxrjax.papers.vindr_cxr_vqa.construct.template_writer import EASY_BOXES, TemplateWriter
from cxrjax.papers.vindr_cxr_vqa.construct.templates import QUESTION_TYPES, format_box
from cxrjax.radiology_text.english import join
from cxrjax.records_io.readers import merge_readers, parse_mode

LOC = re.compile(r"<loc[^>]*>")


def annotation(number: int, labels: list[str], boxes_per_class: int = 1) -> ImageAnnotation:
    rng = random.Random(number)
    findings = []
    for label in labels:
        for _ in range(boxes_per_class):
            x, y = rng.randrange(100), rng.randrange(80)
            findings.append(FindingBox(label, (x, y, x + 5 + rng.randrange(20), y + 9)))
    readers = {"P1": findings, "P2": findings[:1], "P3": []}
    return ImageAnnotation(f"image-{number}", f"images/{number}.png", (120, 130), findings, readers)


def annotated(count: int) -> list[ImageAnnotation]:
    rng = random.Random(7)
    return [
        annotation(
            i, rng.sample(CLASSES, 0 if i % 10 == 9 else rng.randint(1, 7)), rng.randint(1, 3)
        )
        for i in range(count)
    ]


def lesions(images, split="train", seed=0):
    assembly = Assembly("vindr_cxr_vqa", TemplateWriter(seed))
    return assembly.records(plan_lesions(images, seed), split)


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


def test_names_are_joined_vary_and_hold_the_plans_boxes():
    assert [join(list("abc")[:n]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
    for image in annotated(60):
        merged = merge_readers(reader_boxes(image), parse_mode("components"))
        for label in set(image.present) - set(ORGANS):
            assert len(find_lesions(image, label)) == sum(name == label for name, _ in merged)
    plan = asking.plan_list_all(annotation(5, ["ILD", "Cardiomegaly"]), "q")
    assembly = Assembly("vindr_cxr_vqa", TemplateWriter(0))
    for answer in ("There is ILD.", "Cardiomegaly at <loc_1_2_3_4>. ILD at <loc_1_2_3_4>."):
        with pytest.raises(ValueError, match=r"sentences with boxes|lacks a box"):
            assembly.record(plan, Wording("?", answer, "", "Medium"), "train")


def test_four_questions_an_image_each_with_all_lesions_of_a_class():
    images = annotated(120)
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


def test_kinds_come_equally_often_by_rule_and_seed():
    plans = list(plan_lesions(annotated(120), 0))
    counts = collections.Counter(plan.kind for plan in plans)
    assert set(counts) == set(QUESTION_TYPES) and max(counts.values()) - min(counts.values()) <= 4
    by_image = collections.defaultdict(set)
    for plan in plans:
        by_image[plan.image.image_id].add(plan.kind)
    assert all(len(kinds) == 4 for kinds in by_image.values())
    easy_kinds = ("Where", "Is_there", "Yes_No")
    for record in lesions(annotated(40)):
        easy = record.question_type in easy_kinds and len(record.boxes) <= EASY_BOXES
        assert record.difficulty == ("Easy" if easy else "Medium")
    images = annotated(20)
    forwards = {r.question_id: r for r in lesions(images)}
    assert forwards == {r.question_id: r for r in lesions(images[::-1])}
    assert list(lesions(images)) != list(lesions(images, seed=1))


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
    images = annotated(400)
    ids = [record.template_id for record in lesions(images)]
    asked = [i for i in ids if "/What/" not in i]
    rates = templates.load_templates("6").variation
    for how in ("lower", "synonym", "careless", "typo"):
        of = asked if how in ("lower", "synonym") else ids
        share = sum(how in i.split("/")[-1] for i in of) / len(of)
        assert share == pytest.approx(rates[how], abs=0.05 if rates[how] > 0.1 else 0.02), how


def test_list_all_has_an_answer_for_each_class_with_all_its_boxes():
    image = annotation(5, ["ILD", "Cardiomegaly"], 2)
    plan = asking.plan_list_all(image, "q")
    (record,) = Assembly("vindr_cxr_vqa", TemplateWriter(0)).records([plan], "train")
    assert [answer.labels for answer in record.answers] == [["Cardiomegaly"], ["ILD"]]
    for answer in record.answers:
        boxes = [list(box) for box in image.boxes_of(answer.labels[0])]
        assert answer.boxes_by_image == {image.image_id: boxes}
        assert len(LOC.findall(answer.text)) == len(boxes)
    assert sorted(record.boxes) == sorted(list(f.box) for f in image.findings)
    assert record.gt_finding is None and record.gt_location is None
