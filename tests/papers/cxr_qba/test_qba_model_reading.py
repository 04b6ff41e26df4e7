"""Reading reports by a language model: sent, checked, asked again, counted."""

import collections
import json
import re
import types

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
from tests.papers.cases import cases, data
from tests.papers.cxr_qba import scripted_model as scripted

SAID = data(__file__)


@pytest.fixture
def read(chat, client):
    """`read(wrong, ...)`: what is read of REPORT, `wrong` answering first, and the requests."""

    def extract(wrong=None, **settings):
        with chat.Server(scripted.reader(chat, wrong)) as where:
            extractor = LanguageModelExtractor(client(where, **settings))
            extraction = extractor.extract(scripted.REPORT)
            assert extractor.extract(scripted.REPORT) == extraction  # paid for once
        return extraction, where.bodies

    return extract


def test_a_report_in_three_steps(read):
    extraction, bodies = read()
    # Sentences, indication, and three sentences of findings and impression.
    stages = collections.Counter(map(scripted.stage_of, bodies))
    assert stages == {"sentences": 1, "observations": 3, "indication": 1}
    assert [[s.sent_id, s.section, s.text] for s in extraction.sentences] == SAID["numbered"]
    assert extraction.silent == ("S04",)
    effusion, heart = extraction.observations
    assert effusion.entity == ("pleural effusion",) and effusion.sentence_ids == ("S02",)
    assert effusion.regions == ("left pleural space",)
    assert effusion.modifiers == (("severity", "small"),)
    assert (effusion.positive, effusion.certainty, effusion.probability) == (True, "certain", "1")
    assert not heart.positive
    # "PA view." stands nowhere in what came back.
    assert extraction.left_out == {extracting.LEFT_OUT: 1, extracting.MERGED: 1}
    assert "PA view." in scripted.asked(bodies[0])
    indication = next(b for b in bodies if scripted.stage_of(b) == "indication")
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


@cases("probability, positive, certainty")
def test_a_probability_is_polarity_and_certainty(read, probability, positive, certainty):
    def other(stage, text, often):
        if text == "Stable small left effusion.":
            return {"observations": [scripted.observation(probability=probability)]}

    found = read(other)[0].observations[0]
    assert (found.positive, found.certainty) == (positive, certainty)


NESTED = scripted.observation()
for _ in range(3):
    NESTED = scripted.observation(children=[NESTED])
WRONG = [("sentences", "no json"), ("observations", {"observations": [NESTED]})]
WRONG += [("observations", f'{{"observations": [{json.dumps(scripted.NORMAL_HEART)}]')]
WRONG += [("sentences", scripted.sentences(row)) for row in SAID["wrong_sentences"]]
WRONG += [("indication", scripted.GOOD_INDICATION | one) for one in SAID["wrong_indications"]]
for change in SAID["wrong_observations"]:
    WRONG.append(("observations", {"observations": [scripted.observation(**change)]}))


@pytest.mark.parametrize(("stage", "content"), WRONG)
def test_what_is_wrong_is_asked_for_again(read, stage, content):
    good, _ = read()

    def first(of, text, often):
        return content if of == stage and not often else None

    again, bodies = read(first, model="n")  # another model's name: the cache does not know it
    assert again == good and len(bodies) == 6
    retold = [b for b in bodies if "cannot be used" in scripted.asked(b)]
    assert scripted.stage_of(next(b for b in retold if len(b["messages"]) > 2)) == stage


def test_refused_observations_set_the_study_aside_and_refused_indications_do_not(chat, read):
    def refuse(which):
        return lambda stage, text, often: chat.Text(None, refusal="no") if stage == which else None

    for which, model in (("observations", "a"), ("sentences", "b")):
        with pytest.raises(Unusable) as fault:
            read(refuse(which), model=model)
        assert (fault.value.reason, fault.value.found) == ("generator_failed", f"{which}: refusal")
    extraction, _ = read(refuse("indication"), model="c")
    assert extraction.indication is None and len(extraction.observations) == 2
    assert extraction.left_out[extracting.NO_INDICATION] == 1


def test_mentions_of_change_are_asked_away_or_counted(read):
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

    kept, _ = read(stubborn)
    assert kept.observations[0].name == "New left effusion"
    assert kept.left_out[extracting.CHANGE_KEPT] == 1
    gone, _ = read(willing, model="n")
    assert gone.observations[0].name == "Small left pleural effusion"
    assert extracting.CHANGE_KEPT not in gone.left_out


def test_an_answer_that_compares_is_replaced(read):
    comparing = scripted.GOOD_INDICATION | {"answer_for_indication": "The effusion is unchanged."}
    extraction, _ = read(lambda stage, *_: comparing if stage == "indication" else None)
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


def test_a_busy_server_is_waited_for_and_a_dead_one_stops_the_run(chat, client, read):
    assert read(lambda stage, text, often: None if often else chat.Status(503))[0].observations
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
        told = [NumberedSentence(i, name, name.upper(), text) for i, name, text in rows]
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
