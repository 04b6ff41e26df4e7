"""Words of the offline writer: lengths, grammar, and nothing that the annotation does not hold."""

import dataclasses
import itertools
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.papers.vindr_cxr_vqa.annotation import (
    CLASSES,
    FindingBox,
    ImageAnnotation,
    related,
)
from cxrjax.papers.vindr_cxr_vqa.construct import asking, templates
from cxrjax.papers.vindr_cxr_vqa.construct.image_facts import against_heart, extent, shape
from cxrjax.papers.vindr_cxr_vqa.construct.lesions import find_lesions
from cxrjax.papers.vindr_cxr_vqa.construct.places import ChestFrame, describe
from cxrjax.papers.vindr_cxr_vqa.construct.plan import REASON_WORDS
from cxrjax.papers.vindr_cxr_vqa.construct.reasons import number
from cxrjax.papers.vindr_cxr_vqa.construct.template_writer import TemplateWriter
from cxrjax.radiology_text.mentions import MentionReader
from tests.evaluation import made
from tests.papers.cases import data

CASES = made.cases_of(__file__)

READER = MentionReader()
LOC = re.compile(r"<loc_(\d+)_(\d+)_(\d+)_(\d+)>")
NUMBERS = {number(n): n for n in range(21)}


@st.composite
def annotations(draw):
    """Images of one to five readers with up to all classes, sized or not."""
    readers = draw(st.integers(1, 5))
    labels = draw(st.lists(st.sampled_from(CLASSES), unique=True, max_size=14))
    marked = {f"R{17 - reader}": [] for reader in range(readers)}
    for label in labels:
        for reader in draw(st.lists(st.sampled_from(sorted(marked)), min_size=1, max_size=6)):
            x, y = draw(st.integers(0, 2000)), draw(st.integers(0, 2500))
            box = (x, y, x + draw(st.integers(1, 400)), y + draw(st.integers(1, 400)))
            marked[reader].append(FindingBox(label, tuple(map(float, box))))
    findings = [finding for group in marked.values() for finding in group]
    size = draw(st.sampled_from([None, (2950, 2450)]))
    return ImageAnnotation("image", "image.png", size, findings, marked)


def plans_of(image: ImageAnnotation, seed: int):
    """Every sort of question that there is about an image."""
    plans = list(asking.plan_lesions([image], seed)) if image.findings else []
    # All six kinds about one and the same box.
    plans += [
        dataclasses.replace(plan, kind=kind, question_id=f"{plan.question_id}/{kind}")
        for plan in plans[:1]
        for kind in ("What", *asking.CLASS_QUESTION_TYPES)
    ]
    for kind, label in zip(asking.CLASS_QUESTION_TYPES, CLASSES[seed % 10 :], strict=False):
        if label in image.deniable:
            plans.append(asking.plan_denied(image, f"no/{kind}", kind, label))
    if image.findings:
        plans.append(asking.plan_list_all(image, "all"))
    else:
        plans.append(asking.plan_denied(image, "nothing", "What", None))
    return plans


@settings(max_examples=60)
@given(annotations(), st.integers(0, 1000))
def test_text_follows_from_the_annotation(image, seed):
    for plan, wording in TemplateWriter(seed).write(plans_of(image, seed)):
        reason = wording.reason
        assert REASON_WORDS[0] <= len(reason.split()) <= REASON_WORDS[1], (plan.kind, reason)
        as_typed = re.search("careless|typo", wording.template_id or "")
        for text in (wording.answer, reason, *(() if as_typed else (wording.question,))):
            _check_language(text)
        _check_boxes(plan, wording)
        _check_numbers(plan, reason)
        _check_classes(plan, wording)


def _check_language(text: str) -> None:
    assert "{" not in text and "}" not in text and "  " not in text, text
    assert text == text.strip() and text[-1] in ".?" and not re.search(r" [,.;:?]|\.\.", text), text
    for sentence in re.split(r"(?<=[.?]) ", text):
        assert sentence[0].isupper() or sentence[0] == "<", text
    for article, word in re.findall(r"\b(an?) (\w+)", text, re.IGNORECASE):
        vowel = word[0].lower() in "aeiou" and not word.lower().startswith(("one", "uni"))
        assert (article.lower() == "an") == vowel, f"{article} {word}: {text}"
    for count, noun in re.findall(r"\b(\w+) (area|areas)\b", text):
        if count.lower() in NUMBERS:
            assert (count.lower() == "one") == (not noun.endswith("s")), text
    assert not re.search(r"\bone (?:area|box) (?:are|mark|show)\b|(?i:an|the) other\b", text), text


def _check_boxes(plan, wording) -> None:
    boxes = [tuple(map(round, box)) for group in plan.boxes.values() for box in group]
    found = [tuple(map(int, match)) for match in LOC.findall(wording.answer)]
    assert found == boxes
    assert not LOC.search(wording.reason)


def _check_numbers(plan, reason: str) -> None:
    """Numbers are counts that the image has, or how large the largest lesion is; no reader is
    named, and no outline counted."""
    image = plan.image
    for reader in image.readers:
        assert not re.search(rf"\b{reader}\b", reason)
    spoken = (
        r"\b(?:box|boxes|annotat\w+|label\w*|marked|reader\w*|radiologist\w*|votes?|report\w*)\b"
    )
    assert not re.search(spoken, reason, re.IGNORECASE), reason
    placed = re.findall(r"(?:[Tt]he|these, an?) ([a-z ]+?),?(?: it)? is seen (?:in|at|on) ", reason)
    assert len(placed) == len({*placed}), reason  # of each class once
    allowed = {plan.count}
    if image.image_hw:
        for group in plan.boxes.values():
            allowed |= {share for box in group for share in extent(box, image.image_hw)}
    words = {int(digits) for digits in re.findall(r"\d+", reason)}
    counted = re.findall(r"[a-z]+", reason.lower().replace("three quarters", ""))
    words |= {NUMBERS[word] for word in counted if word in NUMBERS}
    assert words <= allowed | {1}, (words - allowed, reason)


def _check_classes(plan, wording) -> None:
    """A class that is not on the image is named as absent, or is the one asked about."""
    present = set(plan.image.present)
    for mention in READER.mentions(wording.reason):
        if mention.name not in present and mention.name not in plan.labels:
            assert mention.negated, (mention, wording.reason)
    if plan.labels and present & {*related(plan.labels[0])}:  # which may be on the other side
        assert not re.search("free of it|nothing of the kind", wording.reason), wording.reason
    if plan.style == "lesions":
        asked = plan.labels[0] if plan.labels and plan.kind != "What" else None
        reading = READER.read(wording.answer, asked, has_box=bool(plan.boxes))
        if plan.negative_kind:
            assert (reading.present, reading.absent) == (frozenset(), frozenset(plan.labels))
        else:
            assert reading.present == set(plan.labels)
    else:
        assert READER.read(wording.answer).present == set(plan.labels)


def test_reasons_have_several_wordings_by_the_seed():
    other = FindingBox("Cardiomegaly", (5.0, 6.0, 70, 80))
    findings = [FindingBox("ILD", (1.0, 2.0, 30.0, 40.0)), other]
    image = ImageAnnotation("i", "i.png", None, findings, {"A": findings, "B": [], "C": findings})
    plans = plans_of(image, 0)
    first = [wording for _, wording in TemplateWriter(0).write(plans)]
    assert first == [wording for _, wording in TemplateWriter(0).write(plans)]
    reasons = {
        wording.reason for seed in range(50) for _, wording in TemplateWriter(seed).write(plans[:1])
    }
    assert len(reasons) == 50
    for name, wordings in templates.load_templates("6").reasons.items():
        assert len(set(wordings)) == len(wordings) >= 2, name


def test_places_are_told_from_organs_and_nothing_marked_is_denied():
    for name in ("Lung Opacity", "Nodule/Mass"):
        box = FindingBox(name, (1.0, 2.0, 30.0, 40.0))
        image = ImageAnnotation("i", "i.png", None, [box], {"A": [box]})
        assert not {name, *related(name)} & {*image.deniable} and len(image.deniable) >= 9
        for seed in range(20):
            for _, wording in TemplateWriter(seed).write(plans_of(image, seed)[:4]):
                denied = {m.name for m in READER.mentions(wording.reason) if m.negated}
                assert denied <= {*image.deniable}, wording.reason
    heart, aorta = (30.0, 55.0, 80.0, 75.0), (48.0, 25.0, 62.0, 40.0)
    frame = ChestFrame(None, heart, aorta)
    for box, words in data(__file__)["places_from_heart_and_aorta_where_the_size_is_not_known"]:
        assert describe("ILD", [tuple(map(float, box))], frame) == words
    assert describe("Cardiomegaly", [heart], frame) is None
    place = "in the upper mediastinum, near the midline"
    assert describe("Aortic enlargement", [aorta], frame) == place
    assert describe("ILD", [(10.0, 10.0, 20.0, 20.0)], ChestFrame(None, None, None)) is None


def test_a_question_asks_for_no_more_place_than_the_answer_has(subtests):
    for place, side, zone in CASES["asked_of_places"]:
        with subtests.test(place=place):
            asked = " ".join(
                templates.load_templates("6").question(
                    "Which", random.Random(seed), place, a_finding="ILD", the_finding="ILD"
                )[0]
                for seed in range(80)
            )
            assert bool(re.search(r"(?i)\bside\b", asked)) == side
            assert bool(re.search(r"(?i)\b(?:zone|level)\b", asked)) == zone


@pytest.mark.parametrize("name", CLASSES)
def test_vocabulary_is_complete_general_and_names_no_other_class(name):
    words = templates.class_words()[name]
    assert words.article in ("", "a", "an") and set(words.looks_like) <= set(CLASSES) - {name}
    assert set(words.fits) <= {"upper", "mid", "lower", "both"}
    sentences = [*words.definition, *words.sign, *words.care, *words.follows, *words.fits.values()]
    assert all(len(group) == 2 for group in (words.definition, words.sign, words.care))
    for text in sentences:
        named = {mention.name for mention in READER.mentions(text) if not mention.negated}
        assert named <= {name}, text
    if name != "Other lesion":  # it has no words of its own
        assert all(READER.name_of(word) in (name, None) for word in words.synonyms)


def test_no_general_sentence_holds_a_number():
    classes = templates.class_words().values()
    groups = itertools.chain.from_iterable((c.definition, c.sign, c.care) for c in classes)
    sentences = [*itertools.chain.from_iterable(groups), *templates.vocabulary("reading")]
    assert len(sentences) == len(set(sentences)) >= 14 * 6 + 8
    for text in sentences:
        _check_language(text)
        assert not re.search(r"\d", text) and not set(text.lower().split()) & set(NUMBERS), text
    for text in templates.vocabulary("reading"):
        assert not READER.mentions(text)
    assert set(templates.class_words()) == set(CLASSES)


def test_a_box_within_another_readers_is_no_second_area():
    around, within = (0.0, 0.0, 100.0, 100.0), (10.0, 10.0, 30.0, 30.0)
    apart = (200.0, 0.0, 240.0, 40.0)

    def areas(**marked):
        readers = {
            name: [FindingBox("ILD", box) for box in boxes] for name, boxes in marked.items()
        }
        findings = [finding for of_reader in readers.values() for finding in of_reader]
        image = ImageAnnotation("i", "i.png", None, findings, readers)
        return [lesion.readers for lesion in find_lesions(image, "ILD")]

    assert areas(A=[around], B=[within]) == [2]
    assert areas(A=[around], B=[within, apart]) == [2, 1]
    assert areas(A=[around, within]) == [1, 1]  # who draws both means both


def test_size_and_shape_in_words():
    assert [number(n) for n in (1, 20, 21)] == ["one", "twenty", "21"]
    assert extent((0, 0, 30, 36), (100, 100)) == (30, 50)  # lungs are 72 of 100 pixels high
    assert extent((0, 0, 1, 1), (100, 100)) == (5, 5)
    heights = (20, 15, 12, 8, 6, 5)
    assert [shape((0, 0, 10, height)) for height in heights] == [
        "tall", "higher", "even", "wider", "wider", "wide"
    ]  # fmt: skip
    frame = ChestFrame(None, (0.0, 0.0, 100.0, 40.0), None)
    assert against_heart("ILD", (0, 0, 50, 9), frame) == "about half"
    assert against_heart("Cardiomegaly", (0, 0, 50, 9), frame) is None


@pytest.mark.parametrize(("label", "boxes", "words"), CASES["places"])
def test_places_of_the_patient_from_box_and_size(label, boxes, words):
    frame = ChestFrame((100, 100), None, None)
    assert describe(label, [tuple(map(float, box)) for box in boxes], frame) == words
