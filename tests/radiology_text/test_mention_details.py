"""How sure, on which side and how severe, in English; contrasts in pairs."""

import pytest

from cxrjax.radiology_text.mention_details import DetailedReader

READER = DetailedReader()


def _read(text):
    return [(m.name, m.negated, m.certainty, m.side, m.severity) for m in READER.read(text)]


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
def test_one_finding(text, expected):
    found = _read(text)
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
    found = READER.read("Left ventricular enlargement with pneumothorax")
    assert ("pneumothorax", "") in [(m.name, m.side) for m in found]


def test_positions_are_those_of_the_text():
    text = "Fine.  Small RIGHT effusion; no Pneumothorax"
    found = [text[m.start : m.end] for m in READER.read(text)]
    assert found == ["effusion", "Pneumothorax"]
