"""Phrases of ViX-Ray's texts that are counted: diagnoses and parts of the body."""

import unicodedata

from bench.vix_ray_phrases import body_parts, diagnoses
from tests.papers.cases import cases


@cases("text, phrases")
def test_diagnoses(text, phrases):
    found = diagnoses([unicodedata.normalize("NFD", text)])
    assert all(any(key.startswith(phrase) for key in found) for phrase in phrases), found


def test_body_parts_are_counted_longest_first():
    found = body_parts(["Góc sườn hoành hai bên nhọn, màng phổi không dày.", "Phổi sáng."])
    assert found == {"góc sườn hoành": 1, "màng phổi": 1, "phổi": 1}
