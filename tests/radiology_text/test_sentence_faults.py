"""Faults of English that records may have, and sentences that have none."""

import pytest

from cxrjax.radiology_text.sentence_faults import is_plural, phrase_faults, sentence_faults

WRONG = """
There is a opacity in the left lung.
An heart is enlarged.
There are a nodule in the left lung.
There is interstitial markings.
There is no sternotomy wires.
There is small pleural effusions.
The lungs is clear.
A nodule are seen in the lung.
The film show a nodule.
Both lungs shows no pneumothorax.
It are mild.
They appears as lines.
Each appear as a spot.
What does the sternotomy wires imply?
Why does the low lung volumes matter?
Is the lungs clear?
Are there a pneumothorax?
Two area are marked.
One areas show it.
There is a surgical clips.
The the heart is normal.
The heart is normal .
The heart is  normal.
The heart is normal..
there is a nodule.
There is a nodule
There is {finding}.
"""
RIGHT = """
There is an opacity, a nodule and two effusions.
There are opacities in both lungs.
There is no pneumothorax, effusions or masses.
The lungs are clear: nothing but vessels is seen against the dark of the air.
It can be seen that the lungs are clear.
Nodules and a mass are seen.
Elevation of both hemidiaphragms is visible.
They usually appear as small lungs with a high diaphragm.
It would show as a thin pleural line with no lung markings beyond it.
Is there evidence of a pneumothorax in this chest X-ray?
How can both lungs be described?
What do the low lung volumes suggest?
Does the opacity affect the lower zones of both lungs?
Which of these findings does the image not show?
Are both hila free of abnormalities?
An X-ray shows atelectasis.
The hila are normal, and the diaphragm is smooth.
One of the readers marked <loc_1_2_3_4> as an ILD.
"""


@pytest.mark.parametrize("text", WRONG.strip().split("\n"))
def test_wrong(text):
    assert sentence_faults(text)


@pytest.mark.parametrize("text", RIGHT.strip().split("\n"))
def test_right(text):
    assert sentence_faults(text) == ()


def test_parts_of_sentences_need_no_capital_and_no_end():
    assert [*phrase_faults("pleural effusion")] == [] and [*phrase_faults("an effusions")]


@pytest.mark.parametrize(
    ("noun", "several"),
    [("opacities", True), ("hila", True), ("atelectasis", False), ("mass", False),
     ("pneumothorax", False), ("thymus", False), ("vertebrae", True), ("gas", False)],
)  # fmt: skip
def test_plural(noun, several):
    assert is_plural(noun) == several
