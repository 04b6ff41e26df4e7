"""What the rules read out of sentences. All sentences are made up here."""

import pytest

from cxrjax.papers.cxr_qba.construct.extraction import ReportSections
from cxrjax.papers.cxr_qba.construct.phrases import describe
from cxrjax.papers.cxr_qba.construct.rule_extractor import RuleExtractor, split_text
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.english import PhraseIndex, lemma, split_words
from cxrjax.records_io.quality import Unusable


@pytest.fixture(scope="module")
def rules():
    return RuleExtractor()


def facts(rules, sentence):
    """entity -> (there, certainty), children included."""
    found = {}

    def add(observation):
        for name in observation.entity:
            found[name] = (observation.positive, observation.certainty)
        for child in observation.children:
            add(child)

    for observation in rules.read_sentence(sentence):
        add(observation)
    return found


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        (
            "No pneumothorax or effusion.",
            {"pneumothorax": (False, "certain"), "pleural effusion": (False, "certain")},
        ),
        ("Lungs without evidence of consolidation.", {"consolidation": (False, "certain")}),
        ("Cannot exclude a small effusion.", {"pleural effusion": (True, "uncertain")}),
        ("Pneumonia cannot be excluded.", {"pneumonia": (True, "uncertain")}),
        ("Pneumonia is unlikely.", {"pneumonia": (False, "likely")}),
        ("No definite pneumothorax.", {"pneumothorax": (False, "likely")}),
        ("Probable scarring.", {"scarring": (True, "likely")}),
        (
            "Left basilar opacity may represent atelectasis or pneumonia.",
            {
                "lung opacity": (True, "certain"),
                "atelectasis": (True, "uncertain"),
                "pneumonia": (True, "uncertain"),
            },
        ),
        ("The heart is not enlarged.", {"cardiomegaly": (False, "certain")}),
        ("The heart is mildly enlarged.", {"cardiomegaly": (True, "certain")}),
        ("Heart size is top normal.", {"cardiomegaly": (True, "uncertain")}),
        (
            "Heart size is normal and lungs are clear.",
            {"cardiomegaly": (False, "certain"), "lung opacity": (False, "certain")},
        ),
        (
            "Effusion but no pneumothorax.",
            {"pleural effusion": (True, "certain"), "pneumothorax": (False, "certain")},
        ),
        ("The right pneumothorax has resolved.", {"pneumothorax": (False, "certain")}),
        # Neither in the heart nor free air.
        ("A spinal cord stimulator is seen.", {"support device": (True, "certain")}),
        ("There is free fluid.", {}),
        (
            "Osseous structures of the thorax are without acute abnormality.",
            {"bone abnormality": (False, "certain")},
        ),
        ("No acute abnormality.", {"cardiopulmonary abnormality": (False, "certain")}),
        # The projection alone says neither portable nor anything else.
        (
            "Heart size is normal for AP technique.",
            {"cardiomegaly": (False, "certain"), "anteroposterior projection": (True, "certain")},
        ),
        ("Frontal view is lordotic in projection.", {"lordotic projection": (True, "certain")}),
        (
            "Seen on the AP view, with increased AP chest diameter.",
            {"anteroposterior projection": (True, "certain")},
        ),
        ("CT is recommended to evaluate for a mass.", {}),
        ("Findings were discussed with the ward, pneumothorax.", {}),
        ("", {}),
    ],
)
def test_what_is_there_and_how_surely(rules, sentence, expected):
    assert facts(rules, sentence) == expected


def one(rules, sentence, entity):
    return next(o for o in rules.read_sentence(sentence) if entity in o.entity)


def test_places_belong_to_what_stands_beside_them(rules):
    sentence = "Small right pleural effusion and left basilar atelectasis."
    assert one(rules, sentence, "pleural effusion").regions == ("right pleural space",)
    assert one(rules, sentence, "atelectasis").regions == ("left lung base",)
    listed = "Scarring and atelectasis in the right lower lobe."
    assert one(rules, listed, "scarring").regions == ("right lower lobe",)
    assert one(rules, listed, "atelectasis").regions == ("right lower lobe",)
    lobes = one(rules, "Opacity in the right middle and lower lobes.", "lung opacity")
    assert lobes.regions == ("right middle lobe", "right lower lobe")


def test_change_goes_into_its_own_fields(rules):
    sentence = "Stable cardiomegaly with increasing small bilateral effusions."
    heart, fluid = one(rules, sentence, "cardiomegaly"), one(rules, sentence, "pleural effusion")
    assert (heart.change, fluid.change) == (("no change",), ("increased",))
    assert fluid.change_sentence == "The pleural effusion has increased."
    assert fluid.summary_sentence == "There are small bilateral pleural effusions."
    assert not {"stable", "increas"} & set((heart.name + heart.summary_sentence).lower().split())


def test_interpretations_are_children(rules):
    (opacity,) = rules.read_sentence("Hazy opacity, likely edema.")
    assert [child.entity for child in opacity.children] == [("pulmonary edema",)]
    assert opacity.modifiers == (("texture", "hazy"),)


def test_what_is_named_before_an_interpretation_makes_no_difference(rules):
    # A normal organ that is denied names nothing that is there or not.
    sentence = "Normal lung markings are not seen, with a large opacity suggesting pneumonia."
    (opacity,) = rules.read_sentence(sentence)
    assert [child.entity for child in opacity.children] == [("pneumonia",)]


def test_an_interpretation_may_be_interpreted(rules):
    (opacity,) = rules.read_sentence("Opacity may represent pneumonia, possibly due to aspiration.")
    (pneumonia,) = opacity.children
    assert [child.entity for child in pneumonia.children] == [("aspiration",)]


def test_findings_and_impression_are_merged(rules):
    report = ReportSections(
        {"findings": "Small left effusion.", "impression": "Effusion. Effusion."}
    )
    extraction = rules.extract(report)
    (fluid,) = extraction.observations
    assert fluid.sentence_ids == ("S01", "S02", "S03")
    assert fluid.regions == ("left pleural space",)


def test_indication(rules):
    report = ReportSections(
        {
            "indication": "57-year-old woman with cough. Rule out pneumonia.",
            "findings": "Clear lungs.",
        }
    )
    indication = rules.extract(report).indication
    assert indication.patient_info == "57-year-old woman"
    assert (indication.indication, indication.evaluation) == ("cough", "pneumonia")
    assert rules.extract(ReportSections({"findings": "Clear lungs."})).indication is None


def test_silent_sentences_are_told(rules):
    extraction = rules.extract(ReportSections({"findings": "Qwerty asdf. Clear lungs."}))
    assert extraction.silent == ("S01",)


def test_sentences_end_where_they_end():
    text = "1. A 3.5 cm nodule.  2. Seen by Dr. Who on Monday.\n\n- No effusion"
    assert list(split_text(text)) == [
        "A 3.5 cm nodule.",
        "Seen by Dr. Who on Monday.",
        "No effusion",
    ]


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"findings": "Clear lungs. " * 80_000}, "report_too_long"),  # 1 MB
        ({"findings": "", "impression": " \n "}, "empty_report"),
        ({"indication": "Cough."}, "empty_report"),
    ],
)
def test_reports_without_use_are_set_aside(rules, sections, reason):
    with pytest.raises(Unusable) as caught:
        rules.extract(ReportSections(sections))
    assert caught.value.reason == reason


def test_one_endless_sentence_is_read(rules):
    found = rules.extract(ReportSections({"findings": "left effusion and " * 5_000}))
    assert found.observations


def test_phrases_are_found_by_words():
    index = PhraseIndex({"lung mass": 1, "mass": 2, "masses in the lung": 3})
    words = split_words("lung masses, masses-in-the lungs; massive")
    assert [(m.first, m.last, m.payload) for m in index.find(words)] == [(0, 2, 1), (2, 6, 3)]
    assert [lemma(w) for w in ("opacities", "bases", "masses", "pelvis", "pus")] == [
        "opacity",
        "base",
        "mass",
        "pelvis",
        "pus",
    ]


@pytest.mark.parametrize(
    ("finding", "regions", "modifiers", "sentence"),
    [
        (
            "elevated hemidiaphragm",
            ["left hemidiaphragm"],
            [("severity", "mild"), ("temporal", "chronic")],
            "There is a chronic mildly elevated left hemidiaphragm.",
        ),
        ("tortuous aorta", ["aorta"], [("severity", "mild")], "There is a mildly tortuous aorta."),
        ("calcified lymph node", ["lymph nodes"], [], "There is a calcified lymph node."),
        (
            "lung nodule",
            ["cardiac silhouette"],
            [("texture", "nodular")],
            "There is a lung nodule projecting over the cardiac silhouette.",
        ),
        (
            "lung opacity",
            ["cardiac silhouette", "right lung base"],
            [],
            "There is a lung opacity in the right lung base, "
            "projecting over the cardiac silhouette.",
        ),
    ],
)
def test_sentences_are_as_reports_word_them(finding, regions, modifiers, sentence):
    known = load_definitions()
    found = describe([known.findings[finding]], regions, modifiers, True, "certain", known)
    assert found[1] == sentence
