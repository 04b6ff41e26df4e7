"""Texts that a regular expression could stay at for minutes: each is read or refused in seconds."""

import itertools
import time

import pytest

from cxrjax.errors import UserError
from cxrjax.papers.cxr_qba.construct.rule_extractor import split_text
from cxrjax.papers.gemex.construct.refine import refine_sentence
from cxrjax.papers.gemex.native_files import reports
from cxrjax.papers.sources import report
from cxrjax.papers.sources.openi import parse_openi
from cxrjax.papers.sources.report import split_sentences
from cxrjax.papers.vix_ray.deidentification import find_identifiers
from cxrjax.radiology_text.facts import align
from cxrjax.records_io.quality import Unusable

LENGTH = 60_000
PIECES = (
    *(" ", "\n", "a", "A", ",", "(", ". ", "no ", "1", "1. ", "A. ", "Dr. ", "no. ", "e.g. "),
    *("a@a.", "effusion, ", "Right pleural effusion. ", "\n \n", "FINDINGS: a\n", "tràn dịch, "),
)
READERS = {
    "sentences": split_sentences,
    "sections": report.parse_sections,
    "text": lambda text: list(split_text(text)),
    "identifiers": find_identifiers,
    "refined": lambda text: refine_sentence(report.ReportSentence(text)),
    "align en": lambda text: align(text, "No effusion. The heart is large.", "en"),
    "align vi": lambda text: align(text, "Không tràn dịch. Tim to.", "vi"),
}


@pytest.mark.parametrize("reader", READERS)
def test_no_text_holds_a_reader_up(reader):
    READERS[reader]("A first text, so that tables are loaded.")
    for piece in PIECES:
        text = "".join(itertools.islice(itertools.cycle(piece), LENGTH))
        start = time.process_time()
        READERS[reader](text)
        assert time.process_time() - start < 1, piece


def test_abbreviations_end_no_sentence_however_long_it_is():
    text = "The aorta, as Dr. Who says, i.e. the large one, is normal. No. 7 is not."
    first, second = split_sentences(text)
    assert first == "The aorta, as Dr. Who says, i.e. the large one, is normal."
    assert second == "No. 7 is not."


def test_a_report_that_cannot_be_one_is_refused(tmp_path):
    text = "no " * (report.MAX_REPORT_CHARACTERS // 3 + 9)
    xml = f'<a><uId id="CXR1"/><AbstractText Label="FINDINGS">{text}</AbstractText></a>'
    with pytest.raises(Unusable, match="report_too_long"):
        parse_openi(xml.encode(), "1.xml")
    path = tmp_path / "closed_ended_question.jsonl"
    path.write_text(f'{{"image_path": "a", "ori_report": "{text}"}}')
    with pytest.raises(UserError, match="expected at most"):
        reports(path)
