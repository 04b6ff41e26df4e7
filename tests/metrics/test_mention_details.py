"""How sure, on which side and how severe, in English; contrasts in pairs."""

import pytest

from cxrjax.datasets.vindr_cxr_vqa.classes import CLASSES
from cxrjax.metrics.mention_details import (
    DetailedReader,
    SideCounts,
    compare_sides,
    sides_by_finding,
)
from cxrjax.metrics.mentions import MentionReader

BY_DEFINITIONS = DetailedReader()
BY_CLASSES = DetailedReader(MentionReader())


def _read(text, reader=BY_DEFINITIONS):
    return [(m.name.lower(), m.negated, m.certainty, m.side, m.severity) for m in reader.read(text)]


@pytest.mark.parametrize("reader", [BY_DEFINITIONS, BY_CLASSES])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("possible left effusion", (False, "uncertain", "left", "")),
        ("left effusion", (False, "certain", "left", "")),
        ("right effusion", (False, "certain", "right", "")),
        ("bilateral effusions", (False, "certain", "both", "")),
        ("No effusion", (True, "certain", "", "")),
        ("effusion", (False, "certain", "", "")),
        ("no definite left effusion", (True, "likely", "left", "")),
        ("Effusion is unlikely.", (True, "likely", "", "")),
        ("Effusion cannot be excluded.", (False, "uncertain", "", "")),
        ("Probable right effusion", (False, "likely", "right", "")),
        ("Small left effusion", (False, "certain", "left", "small")),
        ("Large left effusion", (False, "certain", "left", "large")),
        ("severe effusion", (False, "certain", "", "severe")),
        ("effusion at the left base", (False, "certain", "left", "")),
        ("<loc_1_2_3_4> mild effusion on the right", (False, "certain", "right", "mild")),
    ],
)
def test_one_finding(reader, text, expected):
    found = _read(text, reader)
    assert [mention[1:] for mention in found] == [expected]
    assert "effusion" in found[0][0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "left effusion but no right effusion",
            [
                ("pleural effusion", False, "certain", "left", ""),
                ("pleural effusion", True, "certain", "right", ""),
            ],
        ),
        (
            "Right effusion, no left pneumothorax.",
            [
                ("pleural effusion", False, "certain", "right", ""),
                ("pneumothorax", True, "certain", "left", ""),
            ],
        ),
        (
            "Atelectasis and effusion at the left base.",
            [
                ("atelectasis", False, "certain", "left", ""),
                ("pleural effusion", False, "certain", "left", ""),
            ],
        ),
        (
            "Moderate effusion. Mild cardiomegaly.",
            [
                ("pleural effusion", False, "certain", "", "moderate"),
                ("cardiomegaly", False, "certain", "", "mild"),
            ],
        ),
        ("The heart is enlarged.", [("cardiomegaly", False, "certain", "", "")]),
        ("The heart is normal.", [("cardiomegaly", True, "certain", "", "")]),
        ("The effusion has resolved.", [("pleural effusion", True, "certain", "", "")]),
        ("Is there a left effusion?", []),
        ("", []),
        ("Recommend CT to exclude pneumothorax.", []),
    ],
)
def test_reach(text, expected):
    assert _read(text) == expected


def test_a_chamber_of_the_heart_lends_no_side():
    found = BY_CLASSES.read("Left ventricular enlargement with pneumothorax")
    assert [(m.name, m.side) for m in found] == [("Pneumothorax", "")]


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_of_vindr_is_read_with_its_side(name):
    for side in ("left", "right"):
        (mention,) = BY_CLASSES.read(f"There is possible {side} {name}.")
        assert mention[0] == name
        assert (mention.negated, mention.certainty, mention.side) == (False, "uncertain", side)


def test_classes_and_negation_are_those_of_the_plain_reader():
    plain = MentionReader()
    for text in (
        "No effusion but cardiomegaly is seen.",
        "Atelectasis, consolidation and effusion are absent.",
        "Effusion: no, cardiomegaly: yes",
        "An opacity in the left lower lobe, possibly consolidation.",
    ):
        detailed = [(m.name, m.start, m.end, m.negated) for m in BY_CLASSES.read(text)]
        spread = [(m.name, m.negated) for m in plain.mentions(text)]
        assert [(name, negated) for name, _, _, negated in detailed] == spread


def test_positions_are_those_of_the_text():
    text = "Fine.  Small RIGHT effusion; no Pneumothorax"
    found = [text[m.start : m.end] for m in BY_DEFINITIONS.read(text)]
    assert found == ["effusion", "Pneumothorax"]


def test_sides_are_compared_where_both_name_one():
    def compare(predicted, reference):
        return compare_sides(BY_CLASSES.read(predicted), BY_CLASSES.read(reference))

    assert compare("left effusion", "right effusion") == SideCounts(1, 1, 0)
    assert compare("left effusion", "left effusion") == SideCounts(1, 0, 0)
    assert compare("left effusion", "bilateral effusions") == SideCounts(1, 0, 1)
    assert compare("effusion", "left effusion") == SideCounts(0, 0, 0)
    assert compare("no left effusion", "right effusion") == SideCounts(0, 0, 0)
    two = "Left effusion and right pneumothorax"
    swapped = "Right effusion and left pneumothorax"
    assert compare(two, swapped) == SideCounts(2, 2, 0)
    assert compare(two, two) == SideCounts(2, 0, 0)


def test_one_side_here_and_one_there_are_both():
    mentions = BY_CLASSES.read("Left effusion. Right effusion.")
    assert sides_by_finding(mentions) == {"Pleural effusion": "both"}
