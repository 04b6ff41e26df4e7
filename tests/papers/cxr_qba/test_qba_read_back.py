"""Reading answers back against the sentences that they came from."""

import pytest

from cxrjax.papers.cxr_qba.construct.generation import generate_questions
from cxrjax.papers.cxr_qba.construct.ratings import rate_by_rules
from cxrjax.papers.cxr_qba.construct.read_back import ReadBack
from cxrjax.papers.cxr_qba.construct.sampling import MentionCounts
from cxrjax.radiology_text.definitions import load_definitions

DEFINITIONS = load_definitions()
REPORT = (
    "Small left pleural effusion. No pneumothorax. The heart is not enlarged. "
    "There is a 9 mm nodule in the right upper lobe. Possible pneumonia at the left base. "
    "Endotracheal tube tip 4 cm above the carina."
)


def graded(graph):
    """(grade, questions) of all questions of a graph."""
    read_back = ReadBack(graph, DEFINITIONS)
    questions = generate_questions(graph, DEFINITIONS, MentionCounts()).questions
    return [(rate_by_rules(question, read_back.verdict), question) for question in questions]


def test_what_was_read_right_is_borne_out(graph_of):
    assert not [q.question for grade, q in graded(graph_of(REPORT)) if grade in ("C", "D")]


@pytest.mark.parametrize(
    ("finding", "changes"),
    [
        ("pleural effusion", {"positiveness": "neg"}),
        ("pneumothorax", {"positiveness": "pos"}),
        ("pleural effusion", {"summary_sentence": "There is a small right pleural effusion."}),
        (
            "lung nodule",
            {"summary_sentence": "There is a lung nodule in the right upper lobe, measuring 6 mm."},
        ),
        ("lung nodule", {"summary_sentence": "There is a lung nodule in the right lung base."}),
        (
            "endotracheal tube",
            {"summary_sentence": "There is an endotracheal tube, 2 cm above the carina."},
        ),
    ],
)
def test_what_the_sentence_does_not_say_is_graded_d(graph_of, finding, changes):
    graph = graph_of(REPORT)
    (node,) = [o for o in graph.observations.values() if finding in o.obs_entities]
    for name, value in changes.items():
        setattr(node, name, value)
    wrong = [
        grade
        for grade, question in graded(graph)
        if any(answer.name_tag == node.name for answer in question.all_answers())
    ]
    assert wrong and set(wrong) == {"D"}


def test_a_doubt_that_was_lost_is_graded_c(graph_of):
    graph = graph_of("Possible pneumonia at the left base.")
    (node,) = [o for o in graph.observations.values() if "pneumonia" in o.obs_entities]
    node.certainty = "certain"
    grades = {g for g, q in graded(graph) if q.variables.get("finding") == "pneumonia"}
    assert grades == {"C"}


def test_silence_on_what_the_report_names_is_graded_d(graph_of):
    graph = graph_of("Clear lungs. No pneumothorax.")
    (node,) = [o for o in graph.observations.values() if o.obs_entities == ["pneumothorax"]]
    node.from_report, node.certainty = False, "not_mentioned"
    (described,) = [(g, q) for g, q in graded(graph) if q.question_type == "B01_describe_all"]
    assert described[0] == "D"
