"""Questions out of scene graphs, and on what has changed between two."""

import collections
import json
import random
import re

from cxrjax.papers.cxr_qba.construct import generation, sampling
from cxrjax.papers.cxr_qba.construct.comparison import CONFLICT, Comparer, find_changes
from cxrjax.papers.cxr_qba.construct.construction import construct_graph, construct_questions
from cxrjax.papers.cxr_qba.construct.generation import generate_questions
from cxrjax.papers.cxr_qba.construct.phrases import NOT_MENTIONED
from cxrjax.papers.cxr_qba.construct.ratings import extraction_grade, rate_by_rules
from cxrjax.papers.cxr_qba.construct.sampling import MentionCounts, sample
from cxrjax.papers.cxr_qba.native import LONGITUDINAL_TYPES, QUESTION_TYPES
from cxrjax.records_io.quality import QualityLog
from tests.papers.cases import cases


def ask(graph, seed=0):
    return generate_questions(graph, MentionCounts(), seed).questions


def of(questions, kind, **variables):
    own = [question for question in questions if question.question_type == kind]
    return [question for question in own if variables.items() <= dict(question.variables).items()]


def test_27_types_are_sampled_alike_with_a_seed(graph_of):
    assert len(QUESTION_TYPES) == 27
    assert set(QUESTION_TYPES.values()) == {"indication", "abnormal", "region_abnormal", "finding"}
    counts = MentionCounts()
    counts.positive["often"], counts.negative["never"] = 9, 9
    drawn = [sample(["often", "never"], counts, 1, random.Random(seed))[0] for seed in range(500)]
    # Odds are 10 to 0.1.
    assert drawn.count("often") > 480
    assert sample(["a", "b"], counts, 5, random.Random(0)) in (["a", "b"], ["b", "a"])
    graph = graph_of("Small left effusion.")
    first, second, other = ask(graph), ask(graph), ask(graph, seed=1)
    assert [q.to_json() for q in first] == [q.to_json() for q in second]
    assert [q.to_json() for q in first] != [q.to_json() for q in other]
    found, warnings = changes(graph_of, "No pneumothorax.", "Unchanged left pneumothorax.")
    assert not found and warnings == {CONFLICT: 1}


def test_all_types_are_asked(studies, how):
    kinds = set()
    for study in studies:
        graph = construct_graph(study, how, QualityLog())
        for question in construct_questions(graph, MentionCounts(), how).questions:
            kinds.add(question.question_type)
            assert question.question_strategy == QUESTION_TYPES[question.question_type]
            assert "{" not in question.question
            assert any(a.answer_type == "main_answer" for a in question.answers)
            every = list(question.all_answers())
            assert len({a.answer_id for a in every}) == len(every)
            for answer in every:
                assert answer.answer_type in ("main_answer", "details", "related_information")
                assert answer.text[0].isupper() and answer.text.endswith("."), answer.text
    assert kinds == set(QUESTION_TYPES)


SEGMENT = "superior segment of the left lower lobe"


@cases("report, kind, about, expected")
def test_answers(graph_of, monkeypatch, report, kind, about, expected):
    """The first answer of the only such question; without an expectation, none is asked."""
    monkeypatch.setattr(generation, "DEFAULT_REGIONS", (*generation.DEFAULT_REGIONS, SEGMENT))
    monkeypatch.setattr(generation, "RANDOM_FINDINGS", 200)
    found = of(ask(graph_of(report)), kind, **about)
    assert len(found) == bool(expected)
    for question in found:
        told, parts = question.answers[0].to_json(), question.answers[0].sub_answers
        told |= {"question": question.question, "parts": [part.text for part in parts]}
        for name, value in expected.items():
            if name in ("question", "text"):
                assert re.match(value, told[name])
            else:
                assert told.get(name) == value


def test_a_denial_is_no_surer_than_what_it_rests_on(graph_of, monkeypatch):
    """Stated, hedged, of other findings alone, and of what the region lies in."""
    monkeypatch.setattr(generation, "DEFAULT_REGIONS", (SEGMENT, "lungs"))
    graph = graph_of("No pneumothorax. No definite pleural effusion. No consolidation.")
    questions = ask(graph)
    for question in questions:
        rate_by_rules(question)

    def no(kind, certainty, word, **variables):
        (question,) = of(questions, kind, **variables)
        (answer,) = question.answers
        assert answer.certainty == certainty
        return word in answer.text.lower()

    assert not no("D02_has_finding", "certain", "probably", finding="pneumothorax")
    assert no("D02_has_finding", "likely", "probably", finding="pleural effusion")
    assert no("C03_is_abnormal_region", "likely", "probably", region="lungs")
    # Of a part of the lung nothing was said.
    kinds = ("C01_describe_region", "C02_describe_abnormal_region", "C03_is_abnormal_region")
    assert not any(of(questions, kind, region=SEGMENT) for kind in kinds)


def test_what_is_not_mentioned_is_neither_yes_nor_no(graph_of):
    questions = ask(graph_of("No pneumothorax."))
    unsaid = [a for q in questions for a in q.all_answers() if a.certainty == NOT_MENTIONED]
    assert unsaid
    for answer in unsaid:
        assert answer.positiveness is None
        assert not answer.text.startswith(("No", "Yes")) or answer.text.startswith("Nothing")
        assert "mentioned" in answer.text or answer.text.startswith("Nothing is said")
    for question in questions:
        for answer in question.answers:
            if answer.name_tag is None and not answer.sub_answers:
                assert answer.certainty == NOT_MENTIONED
                assert extraction_grade(question) == "B"


@cases("report, sentence")
def test_sentences_agree_in_number_and_carry_distances(graph_of, report, sentence):
    texts = [o.summary_sentence for o in graph_of(report).observations.values()]
    assert any(text.startswith(sentence.rstrip(".")) for text in texts), texts


def test_places_levels_and_absences_are_the_findings_own(graph_of):
    graph = graph_of("Left retrocardiac opacity suggesting a small pleural effusion.")
    (effusion,) = [o for o in graph.observations.values() if "pleural effusion" in o.obs_entities]
    assert effusion.region_names == ["left pleural space"]
    graph = graph_of("Left basilar opacity may represent pneumonia.", indication="Cough.")
    ((answer,),) = (question.answers for question in of(ask(graph), "A_indication"))
    (opacity,) = answer.sub_answers
    assert (answer.answer_level, opacity.answer_level) == (0, 1)
    assert [part.answer_level for part in opacity.sub_answers] == [2]
    absent = sampling.unmentioned_findings(graph_of("Possible lung opacity."))
    assert "pleural plaque" in absent
    assert not {"lung opacity", "consolidation", "lung disease", "atelectasis"} & set(absent)
    text = "Possible opacity in the right apex otherwise unremarkable appearance of the lungs."
    assert graph_of(text).observations


def test_answers_nest_and_carry_boxes(studies, how):
    graph = construct_graph(studies[0], how, QualityLog())
    questions = construct_questions(graph, MentionCounts(), how).questions
    (described,) = of(questions, "D01_describe_finding", finding="lung opacity")
    (opacity, *_) = described.answers
    assert [part.answer_type for part in opacity.sub_answers] == ["details", "details"]
    assert {part.answer_level for part in opacity.sub_answers} == {1}
    for image in studies[0].images[:2]:
        height, width = image.image_hw
        (x0, y0, x1, y1), *_ = opacity.localization[image.image_id].bboxes
        assert x0 >= width / 2 and y0 >= height / 3 and x1 <= width and y1 <= height


def changes(graph_of, earlier, later):
    warnings = collections.Counter()
    found = find_changes(graph_of(earlier), graph_of(later), warnings)
    return {(c.finding, c.kind, c.certainty) for c in found}, warnings


@cases("earlier, later, expected")
def test_changes(graph_of, earlier, later, expected):
    assert changes(graph_of, earlier, later)[0] == {tuple(one) for one in expected}


def test_questions(graph_of):
    earlier = graph_of("No pneumothorax. Small left pleural effusion.")
    later = graph_of("New small right pneumothorax. No pleural effusion.")
    comparer = Comparer(earlier, later, 0, {"earlier_study": "s0"})
    made = list(comparer.questions(collections.Counter()))
    kinds = {"L01_describe_changes", "L02_how_has_finding_changed", "L04_has_finding_changed"}
    assert {q.question_type for q in made} == kinds
    texts = {a.text for q in made for a in q.answers}
    assert {"The right pneumothorax is new.", "The pleural effusion has resolved."} <= texts
    for question in made:
        assert question.variables["earlier_study"] == "s0" and "{" not in question.question
        assert question.question_strategy == "longitudinal"
        for answer in question.answers:
            opened = answer.text.split(",")[0]
            if question.question_type.startswith("L04"):
                assert (opened == "Yes") == (answer.positiveness == "pos")


def test_a_build_compares_studies_of_a_patient_by_date(built, tmp_path):
    def study(number, date, findings):
        image = {"image_id": f"i{number}", "image_hw": [100, 100], "view": "PA"}
        image["boxes"] = {"left lung": [[50, 10, 90, 80]], "right lung": [[5, 10, 45, 80]]}
        told = {"patient_id": "p1", "study_id": f"s{number}", "date": date, "images": [image]}
        return told | {"sections": {"findings": findings}}

    source = tmp_path / "studies.jsonl"
    lines = [
        study(2, "2020-02-01", "Consolidation in the left lung."),
        study(1, "2020-01-01", "No consolidation in the left lung."),
        study(3, "", "No consolidation."),
    ]
    source.write_text("\n".join(map(json.dumps, lines)))
    made = built(source, tmp_path / "out", longitudinal=True, rate_with="surrogate")
    compared = [r for r in made.records if r.question_type in LONGITUDINAL_TYPES]
    assert {r.study_id for r in compared} == {"s2"}
    assert {r.variables["earlier_image"] for r in compared} == {"i1"}
    assert {r.earlier.image_id for r in compared if r.earlier} == {"i1"}
    assert all((r.earlier is not None) == (r in compared) for r in made.records)
    (how,) = [r for r in compared if r.question_type.startswith("L02")]
    assert how.answers[0].text == "The left consolidation is new."
    assert how.answers[0].boxes_by_image["i2"]
    assert made.quality["warnings"]["studies without a date, not compared"] == 1
