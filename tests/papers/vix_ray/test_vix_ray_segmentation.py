"""Words and noun phrases of Vietnamese reports."""

import os
import unicodedata

import pytest

from cxrjax.errors import UserError
from cxrjax.papers.vix_ray.noun_phrases import body_parts, diagnoses, load_segmenter, words
from tests.evaluation import made

CASES = made.cases_of(__file__)


def test_pyvi_joins_syllables_of_a_word():
    text = "Tổn thương phổi kẽ, không thấy hình ảnh tràn dịch."
    found = words(load_segmenter("pyvi"), text)
    assert {"Tổn_thương", "hình_ảnh"} <= set(found)
    assert not any(word in ",." for word in found)
    assert found == words(load_segmenter("pyvi"), unicodedata.normalize("NFD", text))


def test_syllables_keep_measures_whole():
    found = words(load_segmenter("syllables"), "Chỉ số 0,55; nốt 1/3 dưới.")
    assert found == ["Chỉ", "số", "0,55", "nốt", "1/3", "dưới"]


def test_what_is_not_there_says_what_to_do(monkeypatch):
    monkeypatch.delenv("VNCORENLP_DIR", raising=False)
    with pytest.raises(UserError, match="VNCORENLP_DIR is None"):
        load_segmenter("vncorenlp")
    with pytest.raises(UserError, match="expected one of pyvi"):
        load_segmenter("stanza")


def test_vncorenlp_where_it_is_installed():
    pytest.importorskip("py_vncorenlp")
    if "VNCORENLP_DIR" not in os.environ:
        pytest.skip("VNCORENLP_DIR is not set")
    found = words(load_segmenter("vncorenlp"), "Tổn thương phổi kẽ.")
    assert "Tổn_thương" in found


@pytest.mark.parametrize(("text", "phrases"), CASES["diagnoses"])
def test_diagnoses(text, phrases):
    found = diagnoses([unicodedata.normalize("NFD", text)])
    assert all(any(key.startswith(phrase) for key in found) for phrase in phrases), found


def test_body_parts_are_counted_longest_first():
    found = body_parts(["Góc sườn hoành hai bên nhọn, màng phổi không dày.", "Phổi sáng."])
    assert found == {"góc sườn hoành": 1, "màng phổi": 1, "phổi": 1}
