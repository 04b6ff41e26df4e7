"""Rules in place of a judge: contrasts, order, and its name on everything."""

from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.language_model.judges.judge import Sample, compare_facts, metric_name
from cxrjax.language_model.judges.surrogate import SurrogateJudge, mark
from tests.language_model.conftest import CASES

TEXTS = st.lists(
    st.sampled_from(
        ["No effusion.", "Small left effusion.", "The heart is enlarged.", "Clear lungs.", "Stop."]
    ),
    max_size=3,
).map(" ".join)


@settings(deadline=None)  # the first case loads the reader
@given(TEXTS, TEXTS)
def test_marks_lie_between_one_and_ten_and_the_reference_has_ten(answer, reference):
    own = Sample("s", "q", "What is seen?", reference, reference)
    assert mark(own) == (10 if reference else 1)
    assert 1 <= mark(Sample("s", "q", "What is seen?", reference, answer)) <= 10


def test_contrasts_facts_and_order(sample, subtests):
    for reference, better, worse, lang in CASES["contrasts"]:
        asked = {"reference": reference, "question": "Is there an effusion?", "lang": lang}
        with subtests.test(better):
            marks = [mark(sample(1, answer, **asked)) for answer in (better, worse, " ")]
            assert marks[0] > marks[1] >= marks[2] == 1
    pair = Sample(
        "s", "q", "", "Bóng tim to. Xơ phổi phải.", "Tim to. Tim to. Xơ phổi trái.", lang="vi"
    )
    (match,) = compare_facts(SurrogateJudge(), [pair])
    assert match.predicted.items == ("Tim to", "Xơ phổi trái")
    assert match.pairs == ((0, 0),) and match.failure is None
    judge = SurrogateJudge()
    (score,) = judge.relative_scores([sample(1, "There is an effusion.")])
    assert score.reference_first == score.answer_first and score.reference_first.reference == 10
    assert score.ratio == score.ratio_reference_first
    assert judge.surrogate and "surrogate" in judge.name
    assert metric_name(judge, "ar_score") == "surrogate/ar_score"
    (line,) = judge.judgements
    assert line["surrogate"] is True and line["answer"] == score.answer_first.answer
