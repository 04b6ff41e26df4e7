"""Words of the offline writer: lengths, grammar, and nothing that the annotation does not hold."""

import dataclasses
import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES, FindingBox, ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.construct.plan import (
    CLASS_QUESTION_TYPES,
    REASON_WORDS,
    plan_denied,
    plan_list_all,
    plan_one_box,
)
from cxrjax.papers.vindr_cxr_vqa.construct.reasons import (
    counted,
    number,
    ordinal,
    overlap,
    place,
    size_rank,
)
from cxrjax.papers.vindr_cxr_vqa.construct.template_writer import TemplateWriter
from cxrjax.papers.vindr_cxr_vqa.construct.templates import (
    class_words,
    load_templates,
    reading_remarks,
)
from cxrjax.radiology_text.mentions import MentionReader

READER = MentionReader()
LOC = re.compile(r"<loc_(\d+)_(\d+)_(\d+)_(\d+)>")
NUMBERS = {number(n): n for n in range(1, 21)} | {ordinal(n): n for n in range(1, 21)}
SIDES = [f"{third} third" for third in ("upper", "middle", "lower")]


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
    plans = list(plan_one_box([image], seed)) if image.findings else []
    # All six kinds about one and the same box.
    plans += [
        dataclasses.replace(plan, kind=kind, question_id=f"{plan.question_id}/{kind}")
        for plan in plans[:1]
        for kind in ("What", *CLASS_QUESTION_TYPES)
    ]
    for kind, label in zip(CLASS_QUESTION_TYPES, CLASSES[seed % 10 :], strict=False):
        if label not in image.present:
            plans.append(plan_denied(image, f"no/{kind}", kind, label))
    if image.findings:
        plans.append(plan_list_all(image, "all"))
    else:
        plans.append(plan_denied(image, "nothing", "What", None))
    return plans


@settings(deadline=None, max_examples=60)
@given(annotations(), st.integers(0, 1000))
def test_text_follows_from_the_annotation(image, seed):
    for plan, wording in TemplateWriter(seed).write(plans_of(image, seed)):
        reason = wording.reason
        assert REASON_WORDS[0] <= len(reason.split()) <= REASON_WORDS[1], (plan.kind, reason)
        for text in (wording.question, wording.answer, reason):
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
    for count, noun in re.findall(r"\b(\w+) (box|boxes|area|areas|reader|readers)\b", text):
        if count.lower() in NUMBERS and count.lower() not in map(ordinal, range(21)):
            assert (count.lower() == "one") == (not noun.endswith("s") and noun != "boxes"), text
    assert not re.search(r"\bone (?:area|box) (?:are|mark|overlap)\b", text), text


def _check_boxes(plan, wording) -> None:
    boxes = [tuple(map(round, box)) for group in plan.boxes.values() for box in group]
    found = [tuple(map(int, match)) for match in LOC.findall(wording.answer)]
    assert found == boxes
    assert {tuple(map(int, match)) for match in LOC.findall(wording.reason)} <= set(boxes)


def _check_numbers(plan, reason: str) -> None:
    """Numbers, in digits or words, are counts that the annotation has, or its readers' names."""
    image = plan.image
    text = LOC.sub("", reason)
    for reader in image.readers:
        text = re.sub(rf"\b{reader}\b", "", text)
    for side in SIDES:
        text = text.replace(f"{side} and the", "")
    allowed = {len(image.readers), len(image.findings), len(image.present), plan.count}
    allowed |= {image.votes(label) for label in plan.labels}
    allowed |= {len(boxes) for boxes in plan.boxes.values()}
    if plan.style == "one_box" and plan.boxes:
        same = image.boxes_of(plan.labels[0])
        (box,) = plan.boxes[plan.labels[0]]
        allowed |= {len(same), same.index(box) + 1, sum(overlap(box, other) for other in same)}
        # Those of other readers, and the rank by size.
        allowed |= set(range(sum(overlap(box, other) for other in same)))
        rank = size_rank(box, [finding.box for finding in image.findings]) or ""
        word = rank.split(" ")[0]
        allowed.add(int("0" + re.sub(r"\D", "", word)) or NUMBERS.get(word, 0))
    words = {int(digits) for digits in re.findall(r"\d+", text)}
    words |= {NUMBERS[word] for word in re.findall(r"[a-z]+", text.lower()) if word in NUMBERS}
    assert words <= allowed, (words - allowed, reason)


def _check_classes(plan, wording) -> None:
    """A class that is not on the image is named as absent, or is the one asked about."""
    present = set(plan.image.present)
    for mention in READER.mentions(wording.reason):
        if mention.name not in present and mention.name not in plan.labels:
            assert mention.negated, (mention, wording.reason)
    if plan.style == "one_box":
        asked = plan.labels[0] if plan.labels and plan.kind != "What" else None
        reading = READER.read(wording.answer, asked, has_box=bool(plan.boxes))
        if plan.negative_kind:
            assert (reading.present, reading.absent) == (frozenset(), frozenset(plan.labels))
        else:
            assert reading.present == set(plan.labels)
    else:
        assert READER.read(wording.answer).present == set(plan.labels)


def test_wordings_vary_and_the_same_seed_repeats_them():
    findings = [
        FindingBox("ILD", (1.0, 2.0, 30.0, 40.0)),
        FindingBox("Cardiomegaly", (5.0, 6.0, 70, 80)),
    ]
    image = ImageAnnotation("i", "i.png", None, findings, {"A": findings, "B": [], "C": findings})
    plans = plans_of(image, 0)
    first = [wording for _, wording in TemplateWriter(0).write(plans)]
    assert first == [wording for _, wording in TemplateWriter(0).write(plans)]
    reasons = {
        wording.reason for seed in range(50) for _, wording in TemplateWriter(seed).write(plans[:1])
    }
    assert len(reasons) == 50


def test_readers_agreement_is_told_as_it_is():
    box = FindingBox("ILD", (1.0, 2.0, 30.0, 40.0))
    for votes, words in (
        (1, ("only A", "alone")),
        (2, ("two of the three readers",)),
        (3, ("ll three", "every reader")),
    ):
        readers = {name: [box] if k < votes else [] for k, name in enumerate("ABC")}
        image = ImageAnnotation("i", "i.png", None, [box] * votes, readers)
        for seed in range(10):
            for _, wording in TemplateWriter(seed).write(plan_one_box([image], seed)):
                text = wording.reason.replace("Two", "two")
                assert any(word in text for word in words), text


@pytest.mark.parametrize("name", CLASSES)
def test_vocabulary_is_complete_general_and_names_no_other_class(name):
    words = class_words()[name]
    assert words.structure in ("heart", "aorta", "lung", "pleura", "chest")
    assert words.article in ("", "a", "an")
    sentences = [*words.definition, *words.sign, *words.care]
    assert all(len(group) == 2 for group in (words.definition, words.sign, words.care))
    for text in sentences:
        named = {mention.name for mention in READER.mentions(text) if not mention.negated}
        assert named <= {name}, text
    assert all(READER.name_of(name) == name and name in text for text in words.definition)


def test_no_general_sentence_holds_a_number():
    classes = class_words().values()
    groups = itertools.chain.from_iterable((c.definition, c.sign, c.care) for c in classes)
    sentences = [*itertools.chain.from_iterable(groups), *reading_remarks()]
    assert len(sentences) == len(set(sentences)) >= 14 * 6 + 8
    for text in sentences:
        _check_language(text)
        assert not re.search(r"\d", text) and not set(text.lower().split()) & set(NUMBERS), text
    for text in reading_remarks():
        assert not READER.mentions(text)
    assert set(class_words()) == set(CLASSES)


def test_each_reason_has_several_wordings():
    for name, wordings in load_templates("2").reasons.items():
        rare = name in ("agreement_single", "normal_single", "overlap_none")
        assert len(set(wordings)) == len(wordings) >= (1 if rare else 2), name


def test_box_words():
    assert [number(n) for n in (1, 20, 21)] == ["one", "twenty", "21"]
    assert [ordinal(n) for n in (3, 12, 20, 21, 22, 33, 111)] == [
        "third", "twelfth", "twentieth", "21st", "22nd", "33rd", "111th"
    ]  # fmt: skip
    assert (counted(1, "box", "boxes"), counted(4, "box", "boxes")) == ("one box", "four boxes")
    assert place((0, 0, 10, 10), (90, 60)) == "in the upper third and the left half of the image"
    assert place((40, 80, 60, 90), (90, 60)) == "in the lower third and the right half of the image"
    boxes = [(0, 0, 4, 4), (0, 0, 3, 3), (0, 0, 2, 2)]
    assert [size_rank(box, boxes) for box in boxes] == ["largest", "second largest", "smallest"]
    assert size_rank(boxes[0], boxes[:1]) is None and size_rank(boxes[0], [boxes[0]] * 2) is None
    assert overlap((0, 0, 2, 2), (1, 1, 3, 3)) and not overlap((0, 0, 2, 2), (2, 0, 3, 2))
