"""Questions out of scene graphs."""

import pytest

from cxrjax.papers.cxr_qba.construct import generation
from cxrjax.papers.cxr_qba.construct.construction import construct_graph, construct_questions
from cxrjax.papers.cxr_qba.construct.generation import generate_questions
from cxrjax.papers.cxr_qba.construct.phrases import NOT_MENTIONED
from cxrjax.papers.cxr_qba.construct.ratings import extraction_grade, rate_by_rules
from cxrjax.papers.cxr_qba.construct.sampling import (
    MentionCounts,
    cxrjax_sampling_weight,
    sample,
    unmentioned_findings,
)
from cxrjax.papers.cxr_qba.native import QUESTION_TYPES
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.records_io.quality import QualityLog

DEFINITIONS = load_definitions()


def ask(graph, seed=0):
    return generate_questions(graph, DEFINITIONS, MentionCounts(), seed).questions


def of(questions, kind, **variables):
    return [
        q
        for q in questions
        if q.question_type == kind and variables.items() <= dict(q.variables).items()
    ]


def test_there_are_27_types():
    assert len(QUESTION_TYPES) == 27
    assert set(QUESTION_TYPES.values()) == {"indication", "abnormal", "region_abnormal", "finding"}


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


def test_same_seed_same_questions(graph_of):
    graph = graph_of("Small left effusion.")
    first, second, other = ask(graph), ask(graph), ask(graph, seed=1)
    assert [q.to_json() for q in first] == [q.to_json() for q in second]
    assert [q.to_json() for q in first] != [q.to_json() for q in other]


@pytest.mark.parametrize(
    ("findings", "polarity"),
    [("Small left effusion.", "pos"), ("Lungs are clear. No effusion.", "neg")],
)
def test_abnormal_and_normal_are_opposites(graph_of, findings, polarity):
    questions = ask(graph_of(findings))
    (abnormal,), (normal,) = of(questions, "B03_is_abnormal"), of(questions, "B04_is_normal")
    assert abnormal.answers[0].positiveness == polarity
    assert normal.answers[0].positiveness != polarity
    assert abnormal.answers[0].text.startswith("Yes" if polarity == "pos" else "No")


def test_no_question_whose_answer_is_open(graph_of):
    questions = ask(graph_of("Possible pneumonia."))
    assert not of(questions, "B03_is_abnormal") and not of(questions, "B04_is_normal")
    # Where in the lungs it would be is not said.
    assert not of(questions, "C04_is_normal_region", region="left lower lobe")


def test_regions_speak_for_their_parts(graph_of):
    questions = ask(graph_of("Consolidation in the left lower lobe. No pleural effusion."))
    for region in ("left lower lobe", "left lung", "lungs"):
        (question,) = of(questions, "C03_is_abnormal_region", region=region)
        assert question.answers[0].positiveness == "pos"
    (question,) = of(questions, "C03_is_abnormal_region", region="pleural spaces")
    assert question.answers[0].positiveness == "neg"


def test_findings(graph_of):
    questions = ask(graph_of("Severe emphysema in the right upper lobe. No pneumothorax."))
    (has,) = of(questions, "D02_has_finding", finding="emphysema")
    (where,) = of(questions, "D03_where_is_finding", finding="emphysema")
    (severity,) = of(questions, "D04_how_severe_is_finding", finding="emphysema")
    (absent,) = of(questions, "D02_has_finding", finding="pneumothorax")
    assert has.answers[0].positiveness == "pos"
    assert "the right upper lobe" in where.answers[0].text
    assert "severe" in severity.answers[0].text
    assert absent.answers[0].positiveness == "neg"
    assert not of(questions, "D03_where_is_finding", finding="pneumothorax")


SEGMENT = "superior segment of the left lower lobe"


def test_a_denial_is_no_surer_than_what_it_rests_on(graph_of, monkeypatch):
    """Stated, hedged, of other findings alone, and of what the region lies in."""
    monkeypatch.setattr(generation, "DEFAULT_REGIONS", (SEGMENT, "lungs"))
    graph = graph_of("No pneumothorax. No definite pleural effusion. No consolidation.")
    questions = ask(graph)
    for question in questions:
        rate_by_rules(question)

    def no(kind, **variables):
        (question,) = of(questions, kind, **variables)
        (answer,) = question.answers
        return answer.text.lower(), answer.certainty

    text, certainty = no("D02_has_finding", finding="pneumothorax")
    assert certainty == "certain" and "probably" not in text
    text, certainty = no("D02_has_finding", finding="pleural effusion")
    assert certainty == "likely" and "probably" in text
    text, certainty = no("C03_is_abnormal_region", region="lungs")
    assert certainty == "likely" and "probably" in text
    for kind in ("C03_is_abnormal_region", "C04_is_normal_region", "C02_describe_abnormal_region"):
        text, certainty = no(kind, region=SEGMENT)
        assert certainty == "uncertain" and "reported" in text


def test_clear_lungs_hold_for_their_parts(graph_of, monkeypatch):
    monkeypatch.setattr(generation, "DEFAULT_REGIONS", (SEGMENT,))
    (question,) = of(
        ask(graph_of("The lungs are clear.")), "C03_is_abnormal_region", region=SEGMENT
    )
    assert (question.answers[0].certainty, question.answers[0].positiveness) == ("certain", "neg")
    assert [part.text for part in question.answers[0].sub_answers] == ["The lungs are normal."]


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
    (bones,) = of(questions, "B08_describe_subcat", subcat="bones")
    assert bones.answers[0].certainty == NOT_MENTIONED


def test_no_acute_abnormality_says_nothing_of_chronic_disease(graph_of):
    questions = ask(graph_of("No acute cardiopulmonary abnormality."))
    for kind in ("B03_is_abnormal", "B04_is_normal", "C03_is_abnormal_region"):
        assert not of(questions, kind)
    (described,) = of(questions, "B02_describe_abnormal")
    assert described.answers[0].text.startswith("No acute abnormal findings")
    # Neither of bones nor of soft tissues.
    assert not of(questions, "C02_describe_abnormal_region", region="bones")


def test_the_heart_lies_beside_the_mediastinum(graph_of):
    questions = ask(graph_of("The heart is enlarged. The mediastinum is normal."))
    (mediastinum,) = of(questions, "C03_is_abnormal_region", region="mediastinum")
    assert mediastinum.answers[0].positiveness == "neg"
    questions = ask(graph_of("The cardiomediastinal silhouette is unremarkable."))
    for region in ("mediastinum", "cardiac silhouette"):
        (question,) = of(questions, "C04_is_normal_region", region=region)
        assert question.answers[0].positiveness == "pos"


def test_what_denies_the_general_denies_the_special(graph_of, monkeypatch):
    monkeypatch.setattr(generation, "RANDOM_FINDINGS", 200)
    questions = ask(graph_of("The lungs are clear."))
    (nodule,) = of(questions, "D02_has_finding", finding="lung nodule")
    assert (nodule.answers[0].positiveness, nodule.answers[0].certainty) == ("neg", "likely")
    (fracture,) = of(questions, "D02_has_finding", finding="fracture")
    assert fracture.answers[0].certainty == NOT_MENTIONED


@pytest.mark.parametrize(
    ("report", "sentence"),
    [
        ("Increased interstitial markings.", "There are interstitial markings."),
        ("Multiple surgical clips.", "There are multiple surgical clips"),
        ("Mild to moderate cardiomegaly.", "There is mild to moderate cardiomegaly."),
        ("Small bilateral effusions.", "There are small bilateral pleural effusions."),
        (
            "Endotracheal tube with its tip 4 cm above the carina.",
            "There is an endotracheal tube, 4 cm above the carina.",
        ),
    ],
)
def test_sentences_agree_in_number_and_carry_distances(graph_of, report, sentence):
    texts = [o.summary_sentence for o in graph_of(report).observations.values()]
    assert any(text.startswith(sentence.rstrip(".")) for text in texts), texts


def test_a_place_is_the_findings_own(graph_of):
    graph = graph_of("Left retrocardiac opacity suggesting a small pleural effusion.")
    (effusion,) = [o for o in graph.observations.values() if "pleural effusion" in o.obs_entities]
    assert effusion.region_names == ["left pleural space"]


def test_devices_are_asked_about_in_every_study(graph_of):
    (none,) = of(ask(graph_of("Clear lungs.")), "B13_has_devices")
    assert none.answers[0].certainty == NOT_MENTIONED
    questions = ask(graph_of("Left pacemaker. No endotracheal tube."))
    found = {q.variables["devices"]: q.answers[0] for q in of(questions, "B13_has_devices")}
    assert found["devices"].positiveness == found["cardiac devices"].positiveness == "pos"
    assert found["tubes"].positiveness == "neg"
    assert found["lines"].certainty == NOT_MENTIONED


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


@pytest.mark.parametrize(
    ("region", "verb"),
    [("left main bronchus", "Is"), ("esophagus", "Is"), ("hila", "Are"), ("lungs", "Are")],
)
def test_regions_take_their_verb(graph_of, region, verb):
    (question,) = of(ask(graph_of(f"Mass in the {region}.")), "C04_is_normal_region", region=region)
    assert question.question.startswith(f"{verb} the {region} ")


def test_levels_of_an_answer_to_the_indication(graph_of):
    graph = graph_of("Left basilar opacity may represent pneumonia.", indication="Cough.")
    ((answer,),) = (question.answers for question in of(ask(graph), "A_indication"))
    (opacity,) = answer.sub_answers
    assert (answer.answer_level, opacity.answer_level) == (0, 1)
    assert [part.answer_level for part in opacity.sub_answers] == [2]


def test_weights_rise_with_positive_and_fall_with_negative_mentions():
    for n in range(5):
        weights = [cxrjax_sampling_weight(p, n) for p in range(5)]
        assert weights == sorted(weights) and len(set(weights)) == 5
        weights = [cxrjax_sampling_weight(n, m) for m in range(5)]
        assert weights == sorted(weights, reverse=True) and len(set(weights)) == 5


def test_sampling_follows_the_weights():
    import random

    counts = MentionCounts()
    counts.positive["often"], counts.negative["never"] = 9, 9
    drawn = [sample(["often", "never"], counts, 1, random.Random(seed))[0] for seed in range(500)]
    # Odds are 10 to 0.1.
    assert drawn.count("often") > 480
    assert sample(["a", "b"], counts, 5, random.Random(0)) in (["a", "b"], ["b", "a"])


def test_only_what_may_be_called_absent_is_sampled(graph_of):
    absent = unmentioned_findings(graph_of("Possible lung opacity."), DEFINITIONS)
    assert "pleural plaque" in absent
    assert not {"lung opacity", "consolidation", "lung disease", "atelectasis"} & set(absent)


def test_a_doubted_normal_organ_is_read_without_fault(graph_of):
    text = "Possible opacity in the right apex otherwise unremarkable appearance of the lungs."
    assert graph_of(text).observations
