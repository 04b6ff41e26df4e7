"""Which findings an answer names: contrasts, scopes, and the answers that our templates give."""

import itertools
import time

import pytest

from cxrjax.codecs import CODECS
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES
from cxrjax.papers.vindr_cxr_vqa.construct.templates import class_words, load_templates
from cxrjax.radiology_text.mentions import VINDR_CLASSES, MentionReader, yes_or_no
from tests.radiology_text.conftest import CASES

READER = MentionReader()


def _read(text, asked=None, has_box=False):
    reading = READER.read(text, asked, has_box)
    return sorted(reading.present), sorted(reading.absent)


def test_vocabulary_is_the_fourteen_classes():
    assert tuple(VINDR_CLASSES) == CLASSES


def test_contrast(subtests):
    for name, (there, not_there) in itertools.product(CLASSES, CASES["contrast"]):
        with subtests.test(name, said=there):
            for spelling in (name, name.lower(), name.upper()):
                assert _read(there.format(spelling)) == ([name], [])
                assert _read(not_there.format(spelling)) == ([], [name])


@pytest.mark.parametrize("kind", CASES["mentions"])
def test_findings_are_read_as_present_and_absent(kind, subtests):
    for text, asked, has_box, present, absent in CASES["mentions"][kind]:
        with subtests.test(text):
            assert _read(text, asked or None, has_box) == (present, absent)


def test_five_outcomes(subtests):
    for text, outcome in CASES["five_outcomes"]:
        with subtests.test(text):
            found = READER.read(text, "ILD")
            assert found.outcome == outcome
            assert (found.present >= {"ILD"}) is (outcome == "yes")
            assert (found.absent >= {"ILD"}) is (outcome == "no")


def test_a_reason_names_no_class():
    text = "No, there is no ILD. Reasoning: there is cardiomegaly."
    assert READER.read(text, "ILD").present == frozenset()
    assert READER.read("ILD. Reasoning: there is cardiomegaly.").present == {"ILD"}


@pytest.mark.parametrize("codec", ["vindr_px", "paligemma"])
def test_answers_of_our_templates_are_read_as_they_are_meant(codec):
    """Every wording of every template for every class, boxes in either notation."""
    boxes = CODECS[codec].encode([[0.1, 0.2, 0.3, 0.4]], 1000, 800)
    read = 0
    answers = load_templates("5").answers | load_templates("6").answers
    for mode, by_type in answers.items():
        for (kind, wordings), name in itertools.product(by_type.items(), CLASSES):
            for number, texts in wordings.items():
                for text in texts:
                    filled = text.format(
                        finding=name,
                        findings=name,
                        a_finding=class_words()[name].with_article,
                        The_finding=f"The {name}" if class_words()[name].article else name,
                        place="the only box with this label",
                        boxes=boxes,
                        boxes_and=boxes,
                        count="two",
                        range="one or two",
                    )
                    asked = None if kind.startswith("What") else name
                    # "There is no finding." of a normal image names no class at all.
                    denied = [name] if "finding}" in text else []
                    expected = ([], denied) if number == "none" else ([name], [])
                    assert _read(filled, asked) == expected, (mode, filled)
                    read += 1
    assert read > 14 * 20


def test_mentions_stand_where_the_text_has_them():
    text = "İ <loc_1_2_30_40> Nodule and no ILD"
    found = [(m.name, text[m.start : m.end], m.negated) for m in READER.mentions(text)]
    assert found == [("Nodule/Mass", "Nodule", False), ("ILD", "ILD", True)]


def test_labels():
    assert READER.name_of("cardiomegaly ") == "Cardiomegaly"
    assert READER.name_of("Nodule/Mass") == "Nodule/Mass"
    assert READER.name_of("enlarged heart") == "Cardiomegaly"
    assert READER.name_of("nodule with effusion") is READER.name_of("fracture") is None


def test_own_vocabulary():
    reader = MentionReader(["Right lung", "Left lung (all)"])
    assert reader.read("The right  lung and no left lung (all)").present == {"Right lung"}


@pytest.mark.parametrize(
    "text",
    ["no effusion, " * 4000, "effusion and no nodule is " * 2000, "1." * 25_000, "<" * 50_000],
)
def test_rambling_is_read_in_time_that_grows_with_its_length(text):
    start = time.process_time()
    READER.read(text, "ILD")
    assert time.process_time() - start < 30  # squared or worse, it would be minutes


def test_what_an_answer_opens_with(subtests):
    for text, said in CASES["what_an_answer_opens_with"]:
        with subtests.test(text):
            assert {True: "yes", False: "no", None: "neither"}[yes_or_no(text)] == said
