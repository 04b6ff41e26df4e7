"""A language model as the judge: orders, keys, replay, and all that it can fail at."""

import json

import pytest

from cxrjax.errors import UserError
from cxrjax.language_model.judges.judge import FAILURES, Facts, Sample, compare_facts


def asked(body):
    return body["messages"][-1]["content"]


def test_both_orders_are_asked_and_take_the_favour_out(chat, judge, sample, reply):
    with chat.Server(reply) as there:
        (score,) = judge(there).relative_scores([sample(1, "Yes.")])
    first, second = sorted(map(asked, there.bodies), key=lambda text: -text.index("Yes."))
    assert first.index("There is an effusion") < first.index("Yes.")
    assert second.index("There is an effusion") > second.index("Yes.")
    assert "<known>Small right effusion.</known>" in first
    # The reference has 8 and 6, the answer 6 and 8.
    assert score.ratio_reference_first == 6 / 8 and score.ratio == 1.0
    assert score.failure is None


def test_verdicts_are_kept_by_what_decides_them(chat, judge, sample, reply, tmp_path):
    samples = [sample(1, "Yes."), sample(1, "Yes.", system="other"), sample(2, "No.")]
    with chat.Server(reply) as there:
        first = judge(there).relative_scores(samples)
        assert len(there.bodies) == 4  # equal samples of two systems are one
        again = judge(there).relative_scores(samples)
        assert len(there.bodies) == 4
        judge(there, temperature=0.0).relative_scores(samples)
        assert len(there.bodies) == 8  # another judge
    assert first == again == judge(None).relative_scores(samples)
    lines = [json.loads(line) for line in (tmp_path / "verdicts.jsonl").open()]
    assert len(lines) == len({line["key"] for line in lines}) == 8
    assert {line["judge"] for line in lines} == {"m", "m at temperature 0"}
    assert all(len(line["key"]) == 64 for line in lines)
    assert "effusion" not in (tmp_path / "verdicts.jsonl").read_text()


def test_replays_and_facts_that_fail_are_told(chat, judge, sample, reply):
    with chat.Server(reply) as there:
        judge(there).relative_scores([sample(1, "Yes.")])
    with pytest.raises(UserError, match=r"of m's verdicts 2 of relative_score are missing"):
        judge(None).relative_scores([sample(1, "Yes."), sample(2, "Yes.")])
    with pytest.raises(UserError, match="1 of facts are missing"):
        judge(None).facts([("Bóng tim to.", "vi"), (" ", "vi")])

    def script(body, _):
        return chat.Text(None, refusal="no") if "Xơ" in asked(body) else reply(body)

    with chat.Server(script) as there:
        one = Sample("s", "q", "", "Xơ phổi.", "Tim to.", lang="vi")
        (match,) = compare_facts(judge(there), [one])
    assert match.failure == "refusal" and match.pairs == ()


_RATING = {"accuracy": 5, "relevance": 5, "helpfulness": 5, "overall": 5}


def test_a_poisoned_verdict_counts_as_not_there(chat, judge, sample, reply, tmp_path, capsys):
    with chat.Server(reply) as there:
        judge(there).relative_scores([sample(1, "Yes.")])
    path = tmp_path / "verdicts.jsonl"
    first, second = map(json.loads, path.read_text().splitlines())
    poison = [{}, {"first": "good"}, {"facts": ["of another task"]}]
    poison += [{"failure": ["x"]}, {"failure": "of another kind"}]
    for mark in (-5, "5", 1e400):
        poison += [{"first": _RATING, "second": _RATING | {"overall": mark}}]
    for verdict in poison:
        lines = (first | {"verdict": verdict}, second)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        with pytest.raises(UserError, match=r"of m's verdicts 1 of relative_score are missing"):
            judge(None).relative_scores([sample(1, "Yes.")])
        assert "1 lines, each a verdict, cannot be used" in capsys.readouterr().err


def test_a_verdict_about_facts_that_are_not_there(chat, judge, reply, tmp_path):
    one = Facts(("no effusion",), "en")
    with chat.Server(reply) as there:
        judge(there).match([(one, one)])
    path = tmp_path / "verdicts.jsonl"
    line = json.loads(path.read_text())
    for pair in ({"a": 9, "b": 1}, {"a": 1, "b": 0}, {"a": 10**300, "b": 1}):
        path.write_text(json.dumps(line | {"verdict": {"same": [pair]}}) + "\n")
        with pytest.raises(UserError, match="beyond the ends"):
            judge(None).match([(one, one)])


@pytest.mark.parametrize("bad", ["a field is missing", "above 10", "below 1", "no JSON"])
def test_unusable_marks_are_a_failure_of_the_sample(chat, judge, sample, marks, bad):
    text = {
        "a field is missing": json.dumps({"first": marks(3)}),
        "above 10": json.dumps({"first": marks(11), "second": marks(5)}),
        "below 1": json.dumps({"first": marks(5), "second": marks(0)}),
        "no JSON": "8 6",
    }[bad]
    with chat.Server(chat.Text(text)) as there:
        (score,) = judge(there).relative_scores([sample(1, "Yes.")])
        assert len(there.bodies) == 6  # three answers for each order
    assert score.failure == ("invalid_json" if bad == "no JSON" else "invalid_content")
    assert score.failure in FAILURES
    assert score.ratio is None and score.ratio_reference_first is None
    # Asking again would repeat it; the replay has it too.
    assert judge(None).relative_scores([sample(1, "Yes.")]) == [score]


def test_refusals_cut_answers_and_faults_are_told_apart(chat, judge, sample, reply):
    def script(body, _):
        text = asked(body)
        if "Question 1?" in text:
            return chat.Text(None, refusal="I do not judge.")
        if "Question 2?" in text:
            return chat.Text("{", finish_reason="length")
        if "Question 3?" in text:
            return chat.Status(500)
        return reply(body)

    samples = [sample(n, "Yes.") for n in range(1, 5)] + [sample(5, "x" * 20_001)]
    with chat.Server(script) as there:
        scores = judge(there).relative_scores(samples)
        failures = [score.failure for score in scores]
        assert failures == ["refusal", "truncated", "service", None, "over_length"]
        before = len(there.bodies)
        judge(there).relative_scores(samples)
        # Only what the server failed at is sent again.
        again = {asked(body).split("?")[0] for body in there.bodies[before:]}
        assert again == {"<question>Question 3"}
    with pytest.raises(UserError, match="2 of relative_score are missing"):
        judge(None).relative_scores(samples)
    del samples[2]
    replayed = [score.failure for score in judge(None).relative_scores(samples)]
    assert replayed == ["refusal", "truncated", None, "over_length"]


def test_one_order_that_fails_leaves_the_papers_ratio(chat, judge, sample, reply):
    def script(body, _):
        answer_first = asked(body).index("Yes.") < asked(body).index("effusion, number")
        return chat.Text(None, refusal="no") if answer_first else reply(body)

    with chat.Server(script) as there:
        (score,) = judge(there).relative_scores([sample(1, "Yes.")])
    assert score.ratio_reference_first == 6 / 8
    assert score.ratio is None and score.failure == "refusal"


def test_facts_are_taken_apart_once_and_matched_one_to_one(chat, judge, reply):
    pairs = [
        Sample("s", "q1", "", "Xơ phổi. Gãy xương. Tim to.", "Tim to. Xơ phổi.", lang="vi"),
        Sample("s", "q2", "", "Tim to.", "", lang="vi"),
        Sample("s", "q3", "", "Tim to.", "Tim to.", lang="vi"),
    ]
    with chat.Server(reply) as there:
        model = judge(there)
        matches = compare_facts(model, pairs)
        assert len(there.bodies) == 3 + 2  # three texts that differ; nothing to match in q2
    assert matches[0].predicted.items == ("Tim to", "Xơ phổi")
    assert matches[0].pairs == ((0, 2), (1, 0))
    assert matches[1].predicted.items == () and matches[1].pairs == ()
    assert matches[2].pairs == ((0, 0),)
    assert [line["same"] for line in model.judgements] == [[[0, 2], [1, 0]], [], [[0, 0]]]
    assert compare_facts(judge(None), pairs) == matches


def test_many_to_many_becomes_one_to_one_and_numbers_out_of_range_do_not_pass(chat, judge):
    every = [{"a": a, "b": b} for a in (1, 2) for b in (1, 2)]
    answers = [json.dumps({"same": [{"a": 3, "b": 1}]}), json.dumps({"same": every})]
    two = Facts(("a", "b"), "en"), Facts(("c", "d"), "en")
    with chat.Server(lambda _, number: chat.Text(answers[min(number, 1)])) as there:
        (match,) = judge(there).match([two])
        assert "A3 with B1: the lists end at A2 and B2" in asked(there.bodies[1])
    assert len(match.pairs) == 2
    assert {a for a, _ in match.pairs} == {b for _, b in match.pairs} == {0, 1}


def test_nothing_leaves_the_machine_unasked_or_in_a_dry_run(chat, judge, sample, tmp_path):
    with chat.Server(chat.Text("{}")) as there:
        model = judge(there, dry_run=True)
        (score,) = model.relative_scores([sample(1, "Yes.")])
        assert not there.bodies
    assert score.failure == "not_asked"
    assert model.planned["relative_score"].startswith("2 requests to send with 0 images")
    with chat.Server(chat.Text("{}")) as there:
        model = judge(there, base_url="https://example.invalid/v1")
        with pytest.raises(UserError, match="this would send 2 requests with questions, reports"):
            model.relative_scores([sample(1, "Yes.")])
    assert not (tmp_path / "verdicts.jsonl").read_bytes()
