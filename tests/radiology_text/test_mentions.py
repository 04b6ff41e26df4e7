"""Which findings an answer names: contrasts, scopes, and the answers that our templates give."""

import itertools
import time

import pytest

from cxrjax.codecs import CODECS
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES
from cxrjax.papers.vindr_cxr_vqa.construct.templates import class_words, load_templates
from cxrjax.radiology_text.mentions import VINDR_CLASSES, MentionReader, yes_or_no

READER = MentionReader()


def _read(text, asked=None, has_box=False):
    reading = READER.read(text, asked, has_box)
    return sorted(reading.present), sorted(reading.absent)


def test_vocabulary_is_the_fourteen_classes():
    assert tuple(VINDR_CLASSES) == CLASSES


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(
    ("there", "not_there"),
    [
        ("There is {}.", "There is no {}."),
        ("{} is seen at the left base.", "{} is not seen."),
        ("The image shows {}.", "The image does not show {}."),
        ("Findings consistent with {}.", "No findings consistent with {}."),
        ("{}", "No {}"),
        ("Positive for {}.", "Negative for {}."),
        ("{} is present", "{} is absent"),
        ("Evidence of {}", "No evidence of {}"),
        ("{}: yes", "{}: no"),
        ("There is {} with normal soft tissues.", "The lungs are free of {}."),
        ("Lungs with {}.", "Lungs without {}."),
        ("{} has been identified.", "{} has not been identified."),
        ("There are signs of {}.", "There aren't any signs of {}."),
        ("{} cannot be excluded.", "{} is excluded."),
        ("No change in {}.", "Absence of {}."),
    ],
)
def test_contrast(name, there, not_there):
    for spelling in (name, name.lower(), name.upper()):
        assert _read(there.format(spelling)) == ([name], [])
        assert _read(not_there.format(spelling)) == ([], [name])


@pytest.mark.parametrize(
    ("text", "present", "absent"),
    [
        (
            "There is no effusion, pneumothorax, or consolidation.",
            [],
            ["Consolidation", "Pleural effusion", "Pneumothorax"],
        ),
        ("There is neither effusion nor pneumothorax.", [], ["Pleural effusion", "Pneumothorax"]),
        (
            "Atelectasis, consolidation and effusion are absent.",
            [],
            ["Atelectasis", "Consolidation", "Pleural effusion"],
        ),
        ("No effusion but cardiomegaly is seen.", ["Cardiomegaly"], ["Pleural effusion"]),
        ("No effusion, cardiomegaly is present.", ["Cardiomegaly"], ["Pleural effusion"]),
        ("No effusion. Cardiomegaly.", ["Cardiomegaly"], ["Pleural effusion"]),
        ("No effusion; cardiomegaly.", ["Cardiomegaly"], ["Pleural effusion"]),
        ("There is no effusion and the heart is enlarged.", ["Cardiomegaly"], ["Pleural effusion"]),
        ("Cardiomegaly without pleural effusion.", ["Cardiomegaly"], ["Pleural effusion"]),
        ("Effusion is seen and pneumothorax is absent.", ["Pleural effusion"], ["Pneumothorax"]),
        ("Cardiomegaly present, effusion absent", ["Cardiomegaly"], ["Pleural effusion"]),
        (
            "Pneumothorax is not seen in this patient with cardiomegaly.",
            ["Cardiomegaly"],
            ["Pneumothorax"],
        ),
        ("Not only cardiomegaly but also effusion.", ["Cardiomegaly", "Pleural effusion"], []),
        ("A 1.5 cm nodule without calcification", ["Nodule/Mass"], ["Calcification"]),
        ("The heart is not enlarged.", [], ["Cardiomegaly"]),
        ("Is there pneumothorax?", [], []),
        ("Pericardial effusion.", [], []),
        ("Blunting by mass effect.", [], []),
        ("Left effusion. No right effusion.", ["Pleural effusion"], []),
        ("Effusion: no, cardiomegaly: yes", ["Cardiomegaly"], ["Pleural effusion"]),
    ],
)
def test_reach_of_a_negation(text, present, absent):
    assert _read(text) == (present, absent)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("an enlarged heart", "Cardiomegaly"),
        ("The cardiac silhouette is mildly enlarged.", "Cardiomegaly"),
        ("dilated thoracic aorta", "Aortic enlargement"),
        ("interstitial lung disease", "ILD"),
        ("pulmonary nodules", "Nodule/Mass"),
        ("a large mass", "Nodule/Mass"),
        ("a calcified granuloma", "Calcification"),
        ("bibasilar atelectatic bands", "Atelectasis"),
        ("air-space opacities", "Lung Opacity"),
        ("an opacity in the left lower lobe", "Lung Opacity"),
        ("infiltrates", "Infiltration"),
        ("thickened pleura", "Pleural thickening"),
        ("fibrotic changes", "Pulmonary fibrosis"),
        ("bilateral effusions", "Pleural effusion"),
    ],
)
def test_synonyms(text, name):
    assert _read(text) == ([name], [])


@pytest.mark.parametrize(
    "text",
    [
        "Yes.",
        "yes",
        "Yes, it is.",
        "Answer: Yes",
        "Is there any? Yes.",
        "2",
        "There are two.",
        "Left lower lobe.",
        "In the right upper zone",
        "True",
    ],
)
def test_short_answers_that_affirm(text):
    assert _read(text, asked="ILD") == (["ILD"], [])
    assert _read(text) == ([], [])  # about nothing in particular they say nothing


@pytest.mark.parametrize(
    "text",
    [
        "No.",
        "no",
        "No, it isn't.",
        "None",
        "Answer: No",
        "0",
        "Zero.",
        "There are none.",
        "Not seen.",
        "Absent.",
        "The image is normal.",
        "No such finding.",
        "False",
    ],
)
def test_short_answers_that_deny(text):
    assert _read(text, asked="ILD") == ([], ["ILD"])
    assert _read(text) == ([], [])


def test_a_box_affirms_what_was_asked_unless_denied():
    assert _read("It is at <loc_1_2_30_40>.", "ILD", has_box=True) == (["ILD"], [])
    assert _read("", "ILD", has_box=True) == (["ILD"], [])
    assert _read("There is no ILD <loc_1_2_30_40>.", "ILD", has_box=True) == ([], ["ILD"])
    assert _read("No.", "ILD", has_box=True) == ([], ["ILD"])


def test_what_an_answer_says_outright_beats_its_yes_or_no():
    assert _read("Yes, there is no ILD.", "ILD") == ([], [])  # says both: undecided
    assert _read("No: there is cardiomegaly.", "ILD") == (["Cardiomegaly"], ["ILD"])
    text = "No, there is no cardiomegaly. Cardiomegaly would show as an enlarged heart."
    assert _read(text, "Cardiomegaly") == ([], ["Cardiomegaly"])


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (" \n", "nothing"),
        ("qwerty", "nothing"),
        ("The", "nothing"),
        ("There is cardiomegaly.", "off_topic"),
        ("Possible ILD.", "undecided"),
        ("I cannot tell.", "undecided"),
        ("There is ILD.", "yes"),
        ("No ILD.", "no"),
    ],
)
def test_five_outcomes(text, outcome):
    found = READER.read(text, "ILD")
    assert found.outcome == outcome
    assert (found.present >= {"ILD"}) is (outcome == "yes")
    assert (found.absent >= {"ILD"}) is (outcome == "no")


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("No. Reasoning: there is ILD in both lungs.", "no"),
        ("No ILD.\n\n**Explanation:** ILD would show as reticular lines, as here.", "no"),
        ("Yes. There is no other ILD.", "yes"),
        ("The heart is large. There is ILD.", "yes"),
    ],
)
def test_a_reason_after_the_answer_is_none(text, outcome):
    assert READER.read(text, "ILD").outcome == outcome


def test_a_reason_names_no_class():
    text = "No, there is no ILD. Reasoning: there is cardiomegaly."
    assert READER.read(text, "ILD").present == frozenset()
    assert READER.read("ILD. Reasoning: there is cardiomegaly.").present == {"ILD"}


@pytest.mark.parametrize("codec", ["vindr_px", "paligemma"])
def test_answers_of_our_templates_are_read_as_they_are_meant(codec):
    """Every wording of every template for every class, boxes in either notation."""
    boxes = CODECS[codec].encode([[0.1, 0.2, 0.3, 0.4]], 1000, 800)
    read = 0
    answers = load_templates("1").answers | load_templates("3").answers
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


def test_a_list_of_findings():
    text = "The findings are Aortic enlargement, ILD, Nodule/Mass and Pulmonary fibrosis."
    assert _read(text) == (["Aortic enlargement", "ILD", "Nodule/Mass", "Pulmonary fibrosis"], [])
    assert _read("The findings are " + ", ".join(CLASSES) + ".") == (sorted(CLASSES), [])


def test_mentions_stand_where_the_text_has_them():
    text = "İ <loc_1_2_30_40> Nodule and no ILD"
    found = [(m.name, text[m.start : m.end], m.negated) for m in READER.mentions(text)]
    assert found == [("Nodule/Mass", "Nodule", False), ("ILD", "ILD", True)]


def test_labels():
    assert READER.name_of("cardiomegaly ") == "Cardiomegaly"
    assert READER.name_of("Nodule/Mass") == "Nodule/Mass"
    assert READER.name_of("enlarged heart") == "Cardiomegaly"
    assert READER.name_of("nodule with effusion") is None
    assert READER.name_of("fracture") is None


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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Yes.", True),
        ("Is there any? Yes, it is.", True),
        ("No, there is none.", False),
        ("Answer: no", False),
        ("No effusion is seen.", None),
        ("There is an effusion.", None),
        ("", None),
    ],
)
def test_what_an_answer_opens_with(text, said):
    assert yes_or_no(text) is said
