"""Earlier turns of a dialogue: in prompts, and predicted before what continues them."""

import json

import pytest

from cxrjax.errors import UserError
from cxrjax.evaluation.systems.base import predict_in_turns
from cxrjax.input_pipeline.prompts import PROMPTS
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.records import Answer, QARecord, Turn, parse_record, strip_answers, write_records


def record(name, history=(), image="i"):
    return QARecord(
        dataset="vix_ray",
        split="test",
        image_id=image,
        image_path=f"{image}.png",
        image_hw=(10, 10),
        question_id=name,
        question=f"{name}?",
        question_type="findings",
        type_prompt="[tag]",
        history=[Turn(question_id=q, question=f"{q}?", answer=a) for q, a in history],
        answers=[Answer(text="true")],
    )


def test_a_prefix_has_the_earlier_turns_and_a_tag_tells_the_stages_apart():
    asked = record("q2", [("q1", "first")])
    assert PROMPTS["vqa"].prefix(asked) == "q1?\nfirst\nq2?\n"
    assert PROMPTS["vqa"].prefix(record("q1")) == "q1?\n"
    # google/gemma-3-4b-it's template, image apart.
    assert PROMPTS["medgemma"].prefix(asked) == (
        "q1?<end_of_turn>\n<start_of_turn>model\nfirst<end_of_turn>\n"
        "<start_of_turn>user\nq2?<end_of_turn>\n<start_of_turn>model\n"
    )
    untold = record("q1").model_copy(update={"type_prompt": None})
    for prompt in (PROMPTS["vqa_typed"], PROMPTS["medgemma_typed"]):
        assert prompt.prefix(record("q1")).startswith("[tag] q1?")
        with pytest.raises(UserError, match="q1: type_prompt is null"):
            prompt.prefix(untold)


def test_the_true_history_is_neither_shown_nor_looked_at(tmp_path):
    with pytest.raises(UserError, match="question q2: continues q1, whose answer is null"):
        PROMPTS["vqa"].prefix(record("q2", [("q1", None)]))
    stripped = strip_answers(record("q2", [("q1", "secret")]))
    assert stripped.history == [Turn(question_id="q1", question="q1?")]
    assert "secret" not in stripped.model_dump_json()
    line = record("q2", [("q1", "a")]).model_dump_json()
    assert parse_record(line, "line").history[0].answer == "a"
    _, rounds = run(tmp_path, [record("a"), record("b", [("a", "true")])], strip=lambda r: r)
    assert rounds == [["a?\n"], ["a?\nsaid a\nb?\n"]]


def run(tmp_path, records, strip=strip_answers):
    """(id -> history said of its line, what was asked when)."""
    path = tmp_path / "questions" / "test.jsonl"
    write_records(path, map(strip, records))
    rounds = []

    def predict(source):
        asked = [r for _, r in source.records()]
        rounds.append([PROMPTS["vqa"].prefix(r) for r in asked])
        assert source.image_root == tmp_path
        return [{"question_id": r.question_id, "text": f"said {r.question_id}"} for r in asked]

    lines = list(predict_in_turns(RecordSource(path), predict, tmp_path / "turns.jsonl"))
    return {line["question_id"]: line.get("history") for line in lines}, rounds


def test_later_turns_are_asked_with_the_models_own_answers(tmp_path):
    records = [record("b", [("a", "true")]), record("a"), record("c", image="j")]
    lines, rounds = run(tmp_path, records)
    assert lines == {"a": None, "b": "self", "c": None}
    assert rounds == [["a?\n", "c?\n"], ["a?\nsaid a\nb?\n"]]
    (asked,) = map(json.loads, (tmp_path / "turns.jsonl").read_text().splitlines())
    assert asked["history"][0]["answer"] == "said a"
    records = [record("a"), record("b", [("a", "x")]), record("c", [("a", "x"), ("b", "x")])]
    lines, rounds = run(tmp_path, records)
    assert lines == {"a": None, "b": "self", "c": "self"}
    assert rounds[2] == ["a?\nsaid a\nb?\nsaid b\nc?\n"]


def test_a_gold_history_is_asked_at_once(tmp_path):
    path = tmp_path / "gold.jsonl"
    gold = record("b", [("a", "gold")])
    write_records(path, [gold.model_copy(update={"answers": []})])
    asked = []

    def predict(source):
        asked.extend(PROMPTS["vqa"].prefix(r) for _, r in source.records())
        return [{"question_id": "b", "text": "said"}]

    (line,) = predict_in_turns(RecordSource(path), predict, tmp_path / "turns.jsonl")
    assert line == {"question_id": "b", "text": "said", "history": "gold"}
    assert asked == ["a?\ngold\nb?\n"] and not (tmp_path / "turns.jsonl").exists()


def test_a_turn_that_is_not_there_or_is_itself_is_refused(tmp_path):
    def asks(**earlier):
        return [record(name, [(other, "x")] if other else ()) for name, other in earlier.items()]

    for records, told in (
        (asks(b="gone", a=None), r"test.jsonl:1: continues gone, which is not in the file"),
        (asks(b="b", a=None), "continues b"),
        (asks(a="b", b="a"), "every question continues another"),
    ):
        with pytest.raises(UserError, match=told):
            run(tmp_path, records)
