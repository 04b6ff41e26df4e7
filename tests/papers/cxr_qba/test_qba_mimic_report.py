"""Sections of reports in MIMIC-CXR's layout; the texts are made up."""

from cxrjax.papers.sources.report import parse_sections, text_without_header
from tests.papers.cases import cases, data


def test_sections_and_text_of_reports():
    assert parse_sections(data(__file__)["whole"]) == {
        "indication": "___F with cough.  Evaluate for\n pneumonia.",
        "findings": "Lungs are clear.  No effusion.\n B: c.",
        "impression": "1. No acute process.",
    }
    text = " FINDINGS:  A.\n FINDINGS:  B.\n IMPRESSION:\n"
    assert parse_sections(text) == {"findings": "A.\nB."}
    text = " FINAL REPORT\n INDICATION:  Cough.\n \n COMPARISON:  ___.\n \n A.\n a.\n\n Bb.\n"
    assert text_without_header(text) == "A.\n a.\n\nBb."
    assert text_without_header(" FINAL REPORT\n\n The lungs are clear.\n") == "The lungs are clear."
    assert text_without_header(" FINAL REPORT\n HISTORY:  Cough.\n") == ""
    assert parse_sections("A" * 1_000_000) == {}
    assert parse_sections("A, " * 300_000) == {}
    assert text_without_header("\n \t" * 300_000) == ""


@cases("header, kind")
def test_headers_that_are_read(header, kind):
    assert parse_sections(f" {header}:  One.\n COMPARISON:  Two.\n") == {kind: "One."}


@cases("header")
def test_headers_that_are_not(header):
    assert parse_sections(f" {header}:  Chest, two views.\n") == {}
