"""What the rules read out of sentences. All sentences are made up here."""

import json

import pytest

from cxrjax.papers.cxr_qba.construct.extraction import ReportSections
from cxrjax.papers.cxr_qba.construct.phrases import describe
from cxrjax.papers.cxr_qba.construct.rule_extractor import RuleExtractor, split_text
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.english import PhraseIndex, lemma, split_words
from cxrjax.records_io.quality import Unusable
from tests.papers.cases import cases


@pytest.fixture(scope="module")
def rules():
    return RuleExtractor()


def facts(rules, sentence):
    """entity -> (there, certainty), children included."""
    found, left = {}, list(rules.read_sentence(sentence))
    while left:
        observation = left.pop(0)
        found |= dict.fromkeys(observation.entity, (observation.positive, observation.certainty))
        left[:0] = observation.children
    return found


@cases("sentence, expected")
def test_what_is_there_and_how_surely(rules, sentence, expected):
    assert facts(rules, sentence) == {name: tuple(read) for name, read in expected.items()}


@cases("sentence, entity, expected")
def test_places_and_changes_belong_to_what_stands_beside_them(rules, sentence, entity, expected):
    found = next(o for o in rules.read_sentence(sentence) if entity in o.entity)
    for name, value in expected.items():
        assert json.loads(json.dumps(getattr(found, name))) == value
    assert not {"stable", "increas"} & set((found.name + found.summary_sentence).lower().split())


@cases("sentence, tree")
def test_interpretations_are_children(rules, sentence, tree):
    def below(observation):
        return [*observation.entity, *map(below, observation.children)]

    assert list(map(below, rules.read_sentence(sentence))) == tree


@cases("findings, expected")
def test_what_two_sentences_say_is_told_once_and_where_it_is(rules, findings, expected):
    found = rules.extract(ReportSections({"findings": findings})).observations
    told = [each.summary_sentence for one in found for each in (one, *one.children)]
    assert told == expected


def test_sections_are_merged_and_silent_sentences_told(rules):
    told = {"findings": "Small left effusion.", "impression": "Effusion. Effusion."}
    (fluid,) = rules.extract(ReportSections(told)).observations
    assert fluid.sentence_ids == ("S01", "S02", "S03")
    assert fluid.regions == ("left pleural space",)
    told = {"indication": "57-year-old woman with cough. Rule out pneumonia."}
    told["findings"] = "Clear lungs."
    indication = rules.extract(ReportSections(told)).indication
    assert indication.patient_info == "57-year-old woman"
    assert (indication.indication, indication.evaluation) == ("cough", "pneumonia")
    assert rules.extract(ReportSections({"findings": "Clear lungs."})).indication is None
    extraction = rules.extract(ReportSections({"findings": "Qwerty asdf. Clear lungs."}))
    assert extraction.silent == ("S01",)


def test_sentences_end_and_phrases_are_found_in_reports_of_any_use(rules):
    text = "1. A 3.5 cm nodule.  2. Seen by Dr. Who on Monday.\n\n- No effusion"
    said = ["A 3.5 cm nodule.", "Seen by Dr. Who on Monday.", "No effusion"]
    assert list(split_text(text)) == said
    index = PhraseIndex({"lung mass": 1, "mass": 2, "masses in the lung": 3})
    words = split_words("lung masses, masses-in-the lungs; massive")
    assert [(m.first, m.last, m.payload) for m in index.find(words)] == [(0, 2, 1), (2, 6, 3)]
    lemmas = [lemma(word) for word in ("opacities", "bases", "masses", "pelvis", "pus")]
    assert lemmas == ["opacity", "base", "mass", "pelvis", "pus"]
    for sections, reason in (
        ({"findings": "Clear lungs. " * 80_000}, "report_too_long"),  # 1 MB
        ({"findings": "", "impression": " \n "}, "empty_report"),
        ({"indication": "Cough."}, "empty_report"),
    ):
        with pytest.raises(Unusable, match=reason):
            rules.extract(ReportSections(sections))
    found = rules.extract(ReportSections({"findings": "left effusion and " * 5_000}))
    assert found.observations


@cases("finding, regions, modifiers, sentence")
def test_sentences_are_as_reports_word_them(finding, regions, modifiers, sentence):
    named, modifiers = load_definitions().findings[finding], [tuple(one) for one in modifiers]
    found = describe([named], regions, modifiers, True, "certain")
    assert found[1] == sentence
