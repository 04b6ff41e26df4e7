"""Faults of English that records may have, and sentences that have none."""

from cxrjax.radiology_text.sentence_faults import is_plural, phrase_faults, sentence_faults
from tests.radiology_text.conftest import CASES


def test_faults_are_found_and_nothing_else(subtests):
    for wrong in ("wrong", "right"):
        for text in CASES[wrong]:
            with subtests.test(text):
                assert bool(sentence_faults(text)) == (wrong == "wrong")


def test_parts_of_sentences_need_no_capital_and_no_end():
    assert [*phrase_faults("pleural effusion")] == [] and [*phrase_faults("an effusions")]


def test_plural(subtests):
    for noun, several in CASES["plural"]:
        with subtests.test(noun):
            assert is_plural(noun) == several
