"""Rating questions by a language model: contexts, verdicts, failures."""

import re

import pytest

from cxrjax.papers.cxr_qba.construct import language_model_rater as rating
from cxrjax.papers.cxr_qba.construct.construction import construct_questions
from cxrjax.papers.cxr_qba.construct.language_model_rater import LanguageModelRater, verdict_form
from cxrjax.papers.cxr_qba.construct.ratings import QUESTION_CRITERIA, overall_grade
from cxrjax.papers.cxr_qba.construct.sampling import MentionCounts
from cxrjax.records_io.quality import QualityLog
from tests.papers.cxr_qba import scripted_model as scripted


@pytest.fixture
def some(graph_of, how):
    """A graph and four of its questions, one with several answers."""
    graph = graph_of("Small left effusion. Heart size is normal.", indication="Fever.")
    made = construct_questions(graph, MentionCounts(), how)
    length = {q.question_id: len(list(q.all_answers())) for q in made.questions}
    longest = sorted(made.questions, key=lambda q: -length[q.question_id])
    made.questions = [*longest[:2], *[q for q in made.questions if length[q.question_id] == 1][:2]]
    assert length[made.questions[0].question_id] > 2
    return graph, made


@pytest.fixture
def rate(chat, client, some):
    """`rate(wrong, count)`: rates the first questions; (they, the quality log, the requests)."""
    graph, made = some

    def run(wrong=None, count=4):
        made.questions, quality = made.questions[:count], QualityLog()
        with chat.Server(scripted.judge(chat, wrong)) as where:
            LanguageModelRater(client(where)).rate(graph, made, quality)
        return made.questions, quality, where.bodies

    return run


def test_each_criterion_is_asked_with_its_context(rate):
    questions, quality, bodies = rate()
    # A question is asked about its wording once, wherever it stands.
    assert quality.examined["verdicts of a language model"] == 5 * len(questions)
    contexts = {}
    for body in bodies:
        text = scripted.asked(body)
        report = "FINDINGS: Small left effusion. Heart size is normal." in text
        found = report, "Question: " in text, bool(scripted.numbers(text))
        contexts[scripted.stage_of(body)] = found
    assert contexts == {
        "entailment": (True, True, True),
        "relevance": (False, True, True),
        "completeness": (False, True, True),
        "question_clarity": (False, True, False),
        "answer_clarity": (False, False, True),
    }
    best = {"entailment": "ALIGNED_MENTIONED", "relevance": "RELEVANT_MAIN_ANSWER"}
    best["answer_clarity"] = "OPTIMAL"
    for question in questions:
        own = [question.question_quality[criterion] for criterion in QUESTION_CRITERIA]
        assert own == ["FULLY_COMPLETE", "OPTIMAL"]
        assert all(answer.answer_quality == best for answer in question.all_answers())
        assert overall_grade(question) != "unrated"
    assert not quality.warnings


def test_verdicts_go_to_their_answers(rate, some):
    target = some[1].questions[0]

    def one_bad(stage, text, turns):
        if stage == "entailment" and target.question in text:
            verdicts = ["ALIGNED_MENTIONED", "NON_ALIGNED_CONTRADICTING"]
            rows = [{"number": n, "verdict": verdicts[n == 2]} for n in scripted.numbers(text)]
            return {"verdicts": rows}

    rate(one_bad)
    found = [a.answer_quality["entailment"] for a in target.all_answers()]
    assert [n for n, verdict in enumerate(found) if "CONTRADICTING" in verdict] == [1]
    assert overall_grade(target) == "D"


@pytest.mark.parametrize(
    "wrong",
    [
        {"verdicts": []},
        {"verdicts": [{"number": 1, "verdict": "ALIGNED_MENTIONED"}] * 2},
        {"verdicts": [{"number": 1, "verdict": "FINE"}]},
        {"verdict": "ALIGNED_MENTIONED"},
        '{"verdicts": [{"number": 1, "verd',
    ],
)
def test_wrong_verdicts_are_asked_for_again(rate, wrong):
    first = 2 + 2 * len(scripted.RATE["entailment"]["demonstrations"])

    def once(stage, text, turns):
        return wrong if stage == "entailment" and turns == first else None

    (question,), quality, bodies = rate(once, count=1)
    assert len(bodies) == 6 and not quality.warnings
    assert overall_grade(question) != "unrated"


def test_failures_are_counted_and_leave_the_question_unrated(chat, rate):
    def failing(stage, text, turns):
        if stage == "relevance":
            return chat.Text(None, refusal="no")
        return "never json" if stage == "question_clarity" else None

    (question,), quality, _ = rate(failing, count=1)
    assert quality.warnings == {
        "relevance left unrated: refusal": 1,
        "question_clarity left unrated: invalid_json": 1,
    }
    assert overall_grade(question) == "unrated"
    assert "completeness" in question.question_quality
    assert all("relevance" not in answer.answer_quality for answer in question.all_answers())


@pytest.mark.parametrize("criterion", list(rating.CRITERIA))
def test_criteria_name_all_verdicts_and_show_valid_ones(criterion):
    stage = scripted.RATE[criterion]
    named = re.findall(r"^- ([A-Z_]+):", stage["system"], re.M)
    assert named == list(rating.CRITERIA[criterion])
    for shown in stage["demonstrations"]:
        read = verdict_form(criterion).model_validate_json(shown["assistant"])
        if criterion not in QUESTION_CRITERIA:
            assert [one.number for one in read.verdicts] == scripted.numbers(shown["user"])
