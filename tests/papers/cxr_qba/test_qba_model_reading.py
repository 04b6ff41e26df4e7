"""Reading reports by a language model: sent, checked, asked again, counted."""

import collections
import importlib.util
import json
import re
import types
from pathlib import Path

import pytest

from cxrjax.errors import UserError
from cxrjax.papers.cxr_qba.construct import language_model_answers as answers
from cxrjax.papers.cxr_qba.construct import language_model_extractor as extracting
from cxrjax.papers.cxr_qba.construct.construction import construct_graph
from cxrjax.papers.cxr_qba.construct.extraction import (
    NumberedSentence,
    ReportSections,
    SourceStudy,
    StudyImage,
)
from cxrjax.papers.cxr_qba.construct.language_model_extractor import LanguageModelExtractor
from cxrjax.papers.cxr_qba.construct.rule_extractor import split_report
from cxrjax.records_io.quality import QualityLog, Unusable

_path = Path(__file__).with_name("scripted_model.py")
_spec = importlib.util.spec_from_file_location("scripted_model", _path)
scripted = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(scripted)


def test_a_report_in_three_steps(chat, client):
    with chat.Server(scripted.reader(chat)) as where:
        extractor = LanguageModelExtractor(client(where))
        extraction = extractor.extract(scripted.REPORT)
        assert extractor.extract(scripted.REPORT) == extraction
    # Sentences, indication, and three sentences of findings and impression; each paid for once.
    assert collections.Counter(map(scripted.stage_of, where.bodies)) == {
        "sentences": 1,
        "observations": 3,
        "indication": 1,
    }
    assert [(s.sent_id, s.section, s.text) for s in extraction.sentences] == [
        ("S01", "indication", "Fever, evaluate for pneumonia."),
        ("S02", "findings", "Stable small left effusion."),
        ("S03", "findings", "Heart size is normal."),
        ("S04", "impression", "The XXXX is unchanged."),
    ]
    assert extraction.silent == ("S04",)
    effusion, heart = extraction.observations
    assert effusion.entity == ("pleural effusion",) and effusion.sentence_ids == ("S02",)
    assert effusion.regions == ("left pleural space",) and effusion.modifiers == (
        ("severity", "small"),
    )
    assert (effusion.positive, effusion.certainty, effusion.probability) == (True, "certain", "1")
    assert not heart.positive
    # "PA view." stands nowhere in what came back.
    assert extraction.left_out == {extracting.LEFT_OUT: 1, extracting.MERGED: 1}
    assert "PA view." in scripted.asked(where.bodies[0])
    indication = next(b for b in where.bodies if scripted.stage_of(b) == "indication")
    assert "S02 (findings): Stable small left effusion." in scripted.asked(indication).splitlines()


def test_the_graph_maps_free_values(chat, client, how):
    with chat.Server(scripted.reader(chat)) as where:
        how = type(how)(extractor=LanguageModelExtractor(client(where)))
        quality = QualityLog()
        study = SourceStudy("p1", "s1", scripted.REPORT, (StudyImage("i", (1000, 1000), "PA"),))
        graph = construct_graph(study, how, quality)
    assert graph.observations["O01"].obs_entities == ["pleural effusion"]
    assert graph.observations["O01"].region_names == ["left pleural space"]
    assert graph.observations["O02"].obs_entities == ["cardiomegaly"]
    assert graph.indication.associated_sentence_ids == ["S02"]
    assert graph.indication.associated_obs_ids == ["O01"]
    answer = graph.indication.answer_for_indication
    assert answer.summary_sentence == scripted.GOOD_INDICATION["answer_for_indication"]
    assert quality.warnings[extracting.LEFT_OUT] == 1


@pytest.mark.parametrize(
    ("probability", "positive", "certainty"),
    [
        (0, False, "certain"),
        (0.2, False, "likely"),
        (0.5, True, "uncertain"),
        (0.8, True, "likely"),
    ],
)
def test_a_probability_is_polarity_and_certainty(chat, client, probability, positive, certainty):
    def other(stage, text, often):
        if text == "Stable small left effusion.":
            return {"observations": [scripted.observation(probability=probability)]}

    with chat.Server(scripted.reader(chat, other)) as where:
        found = LanguageModelExtractor(client(where)).extract(scripted.REPORT).observations[0]
    assert (found.positive, found.certainty) == (positive, certainty)


NESTED = scripted.observation(
    children=[
        scripted.observation(children=[scripted.observation(children=[scripted.observation()])])
    ]
)
WRONG = [
    ("sentences", scripted.sentences(("findings", "There is a small effusion.", []))),
    ("sentences", scripted.sentences(("findings", "Heart size is normal.", ["No effusion."]))),
    # Words of two sections do not make a sentence.
    ("sentences", scripted.sentences(("findings", "PA view. 1. Left effusion.", []))),
    ("sentences", scripted.sentences(("findings", " . ", []))),
    ("sentences", scripted.sentences(("indication", "Fever, evaluate for pneumonia.", []))),
    ("sentences", scripted.sentences(("technique", "PA view.", []))),
    ("sentences", "no json"),
    ("indication", scripted.GOOD_INDICATION | {"answer_sentence_ids": ["S09"]}),
    ("indication", scripted.GOOD_INDICATION | {"answer_sentence_ids": ["S01"]}),
    ("indication", scripted.GOOD_INDICATION | {"answer_sentence_ids": []}),
    ("indication", scripted.GOOD_INDICATION | {"indication_summary": " "}),
    ("observations", {"observations": [scripted.observation(probability=1.5)]}),
    ("observations", {"observations": [scripted.observation(probability=-0.1)]}),
    ("observations", '{"observations": [' + json.dumps(scripted.observation(probability=0)) + "]"),
    ("observations", {"observations": [scripted.observation(entity=[" "])]}),
    ("observations", {"observations": [scripted.observation(name="")]}),
    ("observations", {"observations": [scripted.observation(side="west")]}),
    ("observations", {"observations": [scripted.observation(certainty="high")]}),
    ("observations", {"observations": [NESTED]}),
]


@pytest.mark.parametrize(("stage", "content"), WRONG)
def test_what_is_wrong_is_asked_for_again(chat, client, stage, content):
    with chat.Server(scripted.reader(chat)) as where:
        good = LanguageModelExtractor(client(where)).extract(scripted.REPORT)

    def first(of, text, often):
        return content if of == stage and not often else None

    # Another model's name: the cache does not know it.
    with chat.Server(scripted.reader(chat, first)) as where:
        again = LanguageModelExtractor(client(where, model="n")).extract(scripted.REPORT)
    assert again == good
    assert len(where.bodies) == 6
    told = next(
        b for b in where.bodies if len(b["messages"]) > 2 and "cannot be used" in scripted.asked(b)
    )
    assert scripted.stage_of(told) == stage


def test_refused_observations_set_the_study_aside_and_refused_indications_do_not(chat, client):
    def refuse(which):
        return lambda stage, text, often: chat.Text(None, refusal="no") if stage == which else None

    for which, model in (("observations", "a"), ("sentences", "b")):
        with chat.Server(scripted.reader(chat, refuse(which))) as where:
            with pytest.raises(Unusable) as fault:
                LanguageModelExtractor(client(where, model=model)).extract(scripted.REPORT)
            assert fault.value.reason == "generator_failed"
            assert fault.value.found == f"{which}: refusal"
    with chat.Server(scripted.reader(chat, refuse("indication"))) as where:
        extraction = LanguageModelExtractor(client(where, model="c")).extract(scripted.REPORT)
    assert extraction.indication is None and len(extraction.observations) == 2
    assert extraction.left_out[extracting.NO_INDICATION] == 1


def test_mentions_of_change_are_asked_away_or_counted(chat, client):
    changed = {"observations": [scripted.observation(name="New left effusion")]}

    def stubborn(stage, text, often):
        if stage == "observations" and ("Stable" in text or "compare with an" in text):
            return changed

    def willing(stage, text, often):
        if text == "Stable small left effusion.":
            return changed
        if "compare with an" in text:
            assert "New left effusion" in text
            return {"observations": [scripted.observation()]}

    with chat.Server(scripted.reader(chat, stubborn)) as where:
        extraction = LanguageModelExtractor(client(where)).extract(scripted.REPORT)
    assert extraction.observations[0].name == "New left effusion"
    assert extraction.left_out[extracting.CHANGE_KEPT] == 1
    with chat.Server(scripted.reader(chat, willing)) as where:
        extraction = LanguageModelExtractor(client(where, model="n")).extract(scripted.REPORT)
    assert extraction.observations[0].name == "Small left pleural effusion"
    assert extracting.CHANGE_KEPT not in extraction.left_out


def test_an_answer_that_compares_is_replaced(chat, client):
    comparing = scripted.GOOD_INDICATION | {"answer_for_indication": "The effusion is unchanged."}
    script = scripted.reader(chat, lambda stage, *_: comparing if stage == "indication" else None)
    with chat.Server(script) as where:
        extraction = LanguageModelExtractor(client(where)).extract(scripted.REPORT)
    assert extraction.indication.answer == ""
    assert extraction.left_out[extracting.ANSWER_REPLACED] == 1


def test_too_long_and_empty_reports_are_not_sent(chat, client):
    with chat.Server(scripted.reader(chat)) as where:
        extractor = LanguageModelExtractor(client(where))
        for sections, reason in (
            ({"findings": "Clear. " * 20_000}, "report_too_long"),
            ({"indication": "Cough."}, "empty_report"),
        ):
            with pytest.raises(Unusable) as fault:
                extractor.extract(ReportSections(sections))
            assert fault.value.reason == reason
    assert not where.bodies


def test_a_busy_server_is_waited_for_and_a_dead_one_stops_the_run(chat, client):
    def busy(stage, text, often):
        return chat.Status(503) if not often else None

    with chat.Server(scripted.reader(chat, busy)) as where:
        assert LanguageModelExtractor(client(where)).extract(scripted.REPORT).observations
    reports = [ReportSections({"findings": f"Nodule number {n}."}) for n in range(30)]
    with chat.Server(lambda body, number: chat.Status(500)) as where:
        extractor = LanguageModelExtractor(client(where, model="n", attempts=2))
        with pytest.raises(UserError, match="requests in a row failed"):
            extractor.ask_ahead(reports)


NOWHERE = types.SimpleNamespace(url="http://127.0.0.1:1/v1")


def test_demonstrations_pass_the_checks_that_answers_must_pass(client):
    asked = client(NOWHERE)
    for shown in scripted.EXTRACT["sentences"]["demonstrations"]:
        parts = dict(re.findall(r"^([A-Z]+):\n(.*?)(?=\n\n|\Z)", shown["user"], re.S | re.M))
        report = ReportSections({name.lower(): text for name, text in parts.items()})
        assert set(report.sections) == {"indication", "findings", "impression"}
        read = answers.ReadSentences.model_validate_json(shown["assistant"])
        answers.SentenceStage(asked).check(report, read)
    for shown in scripted.EXTRACT["indication"]["demonstrations"]:
        rows = re.findall(r"^(S\d+) \((\w+)\): (.*)$", shown["user"], re.M)
        told = [
            NumberedSentence(sent_id, section, section.upper(), text)
            for sent_id, section, text in rows
        ]
        read = answers.ReadIndication.model_validate_json(shown["assistant"])
        answers.IndicationStage(asked).check(told, read)
    for shown in scripted.EXTRACT["observations"]["demonstrations"]:
        read = answers.ReadObservations.model_validate_json(shown["assistant"])
        answers.ObservationStage(asked).check(shown["user"], read)
        assert not answers.comparing(read.observations)


def test_planned_requests_ask_about_a_sentence_once(client):
    same = ReportSections({"findings": "Clear lungs. Small left effusion.", "indication": "Cough."})
    extractor = LanguageModelExtractor(client(NOWHERE))
    planned = list(extractor.planned_requests([same, same, ReportSections({})]))
    # Twice sentences and indication, two different sentences.
    assert len(planned) == 6
    assert len(split_report(same)) == 3
