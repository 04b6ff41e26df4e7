"""Rules in place of a judge: contrasts, order, and its name on everything."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.language_model.judges import FactPair, Sample, compare_facts, metric_name
from cxrjax.language_model.judges.surrogate import SurrogateJudge, mark

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


@pytest.mark.parametrize(
    ("reference", "better", "worse", "lang"),
    [
        ("There is an effusion.", "Effusion is seen.", "No effusion is seen.", "en"),
        ("Left effusion.", "There is a left effusion.", "There is a right effusion.", "en"),
        ("Small left effusion.", "A small effusion.", "A large effusion.", "en"),
        ("Left effusion.", "Left effusion.", "Left effusion. Pneumothorax. Nodule.", "en"),
        ("Bilateral effusions.", "Left effusion.", "No left effusion.", "en"),
        ("Tràn dịch màng phổi trái.", "Tràn dịch màng phổi.", "Không có tràn dịch.", "vi"),
        ("Xơ phổi phải.", "Xơ phổi phải.", "Xơ phổi trái.", "vi"),
        ("Rốn phổi đậm.", "Rốn phổi đậm.", "Rốn phổi không đậm.", "vi"),
        ("Yes, there is an effusion.", "Yes.", "No.", "en"),
    ],
)
def test_contrasts(sample, reference, better, worse, lang):
    question = "Is there an effusion?"
    marks = [
        mark(sample(1, answer, reference=reference, question=question, lang=lang))
        for answer in (better, worse, " ")
    ]
    assert marks[0] > marks[1] >= marks[2] == 1


def test_order_plays_no_part_and_everything_says_surrogate(sample):
    judge = SurrogateJudge()
    (score,) = judge.relative_scores([sample(1, "There is an effusion.")])
    assert score.reference_first == score.answer_first and score.reference_first.reference == 10
    assert score.ratio == score.ratio_reference_first
    assert judge.surrogate and "surrogate" in judge.name
    assert metric_name(judge, "ar_score") == "surrogate/ar_score"
    (line,) = judge.judgements
    assert line["surrogate"] is True and line["answer"] == score.answer_first.answer


def test_facts_are_each_counted_once():
    pair = FactPair("s", "q", "Tim to. Tim to. Xơ phổi trái.", "Bóng tim to. Xơ phổi phải.", "vi")
    (match,) = compare_facts(SurrogateJudge(), [pair])
    assert match.predicted.items == ("Tim to", "Xơ phổi trái")
    assert match.pairs == ((0, 0),) and match.failure is None
