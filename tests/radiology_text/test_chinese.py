"""Chinese of reports, and within English answers."""

from cxrjax.radiology_text.chinese import in_english
from cxrjax.radiology_text.reading import open_reader
from tests.radiology_text.conftest import CASES


def test_small_words_are_translated(subtests):
    for text, english in CASES["small_words_are_translated"]:
        with subtests.test(text):
            read, places = in_english(text)
            assert " ".join(read.split()) == english
            assert places is not None and len(places) == len(read) + 1
            assert places == sorted(places) and places[-1] == len(text)
            assert in_english("No effusion.") == ("No effusion.", None)


def test_spans_are_places_of_the_original():
    (one,) = open_reader("en").read("没有 pneumothorax。").assertions
    assert one.status == "absent"
    assert "没有 pneumothorax。"[slice(*one.span)] == "pneumothorax"
