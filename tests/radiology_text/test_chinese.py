"""Chinese within English answers."""

import pytest

from cxrjax.radiology_text.chinese import in_english
from cxrjax.radiology_text.reading import open_reader


@pytest.mark.parametrize(
    ("text", "english"),
    [
        ("没有 pneumothorax。", "no pneumothorax."),
        ("这张胸片没有发现明显的 pneumothorax", "no pneumothorax"),
        ("pneumothorax 不存在", "pneumothorax is absent"),
        ("右侧可见 effusion", "right there is effusion"),
        ("是", "yes"),
        ("答案是 No", "answer is No"),
        # Names of findings are not known, nor what is said of them.
        ("没有胸腔积液", "没有胸腔积液"),
        ("Yes，心影增大", "Yes,心影增大"),
    ],
)
def test_small_words_are_translated(text, english):
    read, places = in_english(text)
    assert " ".join(read.split()) == english
    assert places is not None and len(places) == len(read) + 1
    assert places == sorted(places) and places[-1] == len(text)
    assert in_english("No effusion.") == ("No effusion.", None)


def test_spans_are_places_of_the_original():
    (one,) = open_reader("en").read("没有 pneumothorax。").assertions
    assert one.status == "absent"
    assert "没有 pneumothorax。"[slice(*one.span)] == "pneumothorax"
