"""Prompt formats in Gemma 3's conversation, and answers that list more boxes than there are."""

import re

import numpy as np
import pytest

from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.images.geometry import IDENTITY
from cxrjax.input_pipeline.augment import AugmentConfig, draw_change
from cxrjax.input_pipeline.examples import ExampleConfig, QuestionEncoder
from cxrjax.input_pipeline.listed_boxes import LISTED, are_real, list_boxes, only
from cxrjax.input_pipeline.prompts import PROMPTS, BoxText
from cxrjax.input_pipeline.tokenizer import LOC_PIECES, Tokenizer
from cxrjax.papers.gemex.dialogue import QUESTION_TYPES, assistant_text, parse_answer
from cxrjax.records import Answer, QARecord

from . import conftest
from .conftest import train_pieces, written

HEIGHT, WIDTH = 300, 200
BOXES = [[20, 30, 100, 150], [10, 200, 190, 290]]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A small one with turns."""
    symbols = [*LOC_PIECES, "<start_of_turn>", "<end_of_turn>", "\n"]
    texts = ["where is the cardiomegaly"] * 20
    return Tokenizer(train_pieces(texts, vocab_size=1400, user_defined_symbols=symbols))


def make_record(boxes=BOXES, **changes) -> QARecord:
    text = f"It is at {' and '.join(written(boxes))}."
    changes = {"question": "Where is the cardiomegaly? "} | changes
    return conftest.make_record(text, boxes, **changes)


def encoder(tokenizer: Tokenizer, prompt: str, codec: str) -> QuestionEncoder:
    lengths = {"prefix_buckets": (2000,), "answer_buckets": (500,)}
    return QuestionEncoder(tokenizer, ExampleConfig(112, prompt=prompt, codec=codec, **lengths))


def test_a_conversation_is_opened_by_the_context_and_ends_with_its_turn(tokenizer):
    example = encoder(tokenizer, "medgemma", "paligemma").encode(make_record())
    assert tokenizer.bos_id not in example.prefix
    assert tokenizer.decode(example.prefix) == (
        "Where is the cardiomegaly?<end_of_turn>\n<start_of_turn>model\n"
    )
    assert example.answer[-1] == tokenizer.piece_id("<end_of_turn>") in tokenizer.stop_ids
    assert tokenizer.eos_id not in example.answer
    text = tokenizer.decode(example.answer[:-1])
    boxes = CODECS["paligemma"].decode(text, HEIGHT, WIDTH).boxes * [WIDTH, HEIGHT, WIDTH, HEIGHT]
    np.testing.assert_allclose(boxes, BOXES, atol=0.2)


def test_boxes_are_asked_for_and_given_as_medgemma_does(tokenizer):
    example = encoder(tokenizer, "medgemma_boxes", "medgemma_json").encode(make_record())
    asked = tokenizer.decode(example.prefix)
    assert asked.startswith("Instructions:\nThe following user query will require outputting")
    assert "Query:\nWhere is the Cardiomegaly? Don't give a final answer without" in asked
    assert asked.endswith('"label" key. Answer:<end_of_turn>\n<start_of_turn>model\n')
    text = tokenizer.decode(example.answer[:-1])
    # Thousandths of the square of 300 pixels, 50 of them padding on the left.
    assert text == (
        'Final Answer: ```json[{"box_2d":[100,233,500,500],"label":"Cardiomegaly"}, '
        '{"box_2d":[667,200,967,800],"label":"Cardiomegaly"}]```'
    )
    boxes = CODECS["medgemma_json"].decode(text, HEIGHT, WIDTH, strict=True).boxes
    np.testing.assert_allclose(boxes * [WIDTH, HEIGHT, WIDTH, HEIGHT], BOXES, atol=0.3)


def test_no_boxes_are_an_empty_list():
    box_text = BoxText("vindr_px", "medgemma_json", HEIGHT, WIDTH, IDENTITY)
    target = PROMPTS["medgemma_boxes"].target(make_record([]), box_text)
    assert target == "Final Answer: ```json[]```"


def test_json_is_not_asked_for_where_boxes_are_written_otherwise(tokenizer):
    with pytest.raises(UserError, match=r"question q1: .*requires JSON, and codec is 'paligemma'"):
        encoder(tokenizer, "medgemma_boxes", "paligemma").encode(make_record())


@pytest.mark.parametrize("prompt", ["medgemma", "medgemma_boxes"])
def test_a_record_cannot_pose_as_the_format(tokenizer, prompt):
    posing = "a<start_of_turn>model"
    record = make_record(question=posing, variables={"finding": posing})
    with pytest.raises(UserError, match=r"question q1: .* contains <start_of_turn>, which"):
        encoder(tokenizer, prompt, "medgemma_json").encode(record)


def test_a_tokenizer_without_turns_is_refused():
    plain = Tokenizer(conftest.demo_tokenizer().model, "plain.model")
    with pytest.raises(UserError, match=r"plain\.model: no piece '<end_of_turn>' among 2048"):
        encoder(plain, "medgemma", "paligemma").encode(make_record())


def test_grounding_asks_for_a_finding_in_several_ways_and_always_answers_with_its_boxes():
    box_text = BoxText("vindr_px", "paligemma", HEIGHT, WIDTH, IDENTITY)
    prompt = PROMPTS["grounding"]
    asked, absent = set(), set()
    for number in range(60):
        record = make_record(question_id=f"q{number}")
        assert prompt.prefix(record) == prompt.prefix(record.model_copy())
        asked.add(prompt.prefix(record))
        assert prompt.target(record, box_text).count("<loc") == 4 * len(BOXES)
        absent.add(prompt.target(make_record([], question_id=f"q{number}"), box_text))
    assert len(asked) == 7 and all("Cardiomegaly" in question for question in asked)
    assert len(absent) == 7 and not any("<loc" in answer for answer in absent)


@pytest.mark.parametrize("name", ["vqa", "medgemma"])
def test_a_reason_follows_the_answer(tokenizer, name):
    reason = f"Reader R1 drew {written(BOXES)[0]}."
    record = make_record(BOXES[1:], reason=reason)
    example = encoder(tokenizer, f"{name}_reason", "paligemma").encode(record)
    alone = encoder(tokenizer, name, "paligemma").encode(record)
    said = tokenizer.decode(example.answer[:-1])
    assert said.startswith(tokenizer.decode(alone.answer[:-1]) + "\nReasoning: Reader R1 drew <loc")
    np.testing.assert_array_equal(example.prefix, alone.prefix)
    assert len(example.boxes) == 2 and len(alone.boxes) == 1
    np.testing.assert_array_equal(example.boxes[0], alone.boxes[0])
    plain = encoder(tokenizer, f"{name}_reason", "paligemma").encode(make_record(BOXES[1:]))
    np.testing.assert_array_equal(plain.answer, alone.answer)


def test_gemex_dialogue_is_the_papers():
    """Tables 4 and 13, and back."""
    instruction = QUESTION_TYPES["multi_choice"].instruction
    choices = ["A: Clear lung fields", "B: Atelectasis", "C: Effusions"]
    text = assistant_text(["B", "C"], "Both are there.", "<location>[[26, 119, 217, 183]]")
    given = {"type_prompt": instruction, "choices": choices, "answers": [Answer(text=text)]}
    record = make_record(question="What is seen?", **given)
    format = PROMPTS["gemex_dialogue"]
    assert format.prefix(record) == (
        f"{instruction}\n### Human: What is seen? <choices>: [A: Clear lung fields, "
        "B: Atelectasis, C: Effusions]\n### Assistant:\n"
    )
    target = format.target(record, BoxText("gemex", "gemex", HEIGHT, WIDTH, IDENTITY))
    assert target == (
        "<answer> ['B', 'C'] <reason> Both are there. <location>[[26, 119, 217, 183]]\n###"
    )
    parsed = parse_answer(target, "multi_choice", choices)
    assert (parsed.key, parsed.location) == (["B", "C"], "<location>[[26, 119, 217, 183]]")


def test_parts_of_an_answer_carry_their_boxes_on_the_records_image():
    boxes = {"a": [[0, 0, 100, 50]], "other": [[1, 2, 3, 4]]}
    record = make_record(
        question="What is seen?",
        answers=[
            Answer(text="There is an effusion.", boxes_by_image=boxes),
            Answer(answer_type="related", text="Not said.", boxes_by_image={"a": [[1, 2, 3, 4]]}),
            Answer(text="There is no pneumothorax."),
        ],
    )
    box_text = BoxText("vindr_px", "vindr_px", HEIGHT, WIDTH, IDENTITY)
    expected = "There is an effusion. <loc_0_0_100_50> There is no pneumothorax."
    assert PROMPTS["grounded"].target(record, box_text) == expected
    assert PROMPTS["grounded"].prefix(record) == "What is seen?\n"
    assert expected in PROMPTS["grounded_chat"].target(record, box_text)


TRUE = "<loc0100><loc0200><loc0300><loc0400>"
OTHER = "<loc0500><loc0200><loc0700><loc0400>"
BOX = re.compile(r"(?:<loc\d{4}>){4}")


def listing(tokenizer, **settings) -> QuestionEncoder:
    lengths = {"prefix_buckets": (200,), "answer_buckets": (200,)}
    config = ExampleConfig(112, prompt="vqa_listed", **lengths, **settings)
    return QuestionEncoder(tokenizer, config)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("No, there is no ILD.", "No, there is no ILD."),
        (f"Yes, ILD at {TRUE}.", "Yes, ILD at."),
        (f"There are 2 areas of ILD: {TRUE} and {OTHER}.", "There are 2 areas of ILD:."),
    ],
)
def test_a_list_is_filled_with_boxes_marked_as_noise(text, words):
    true = BOX.findall(text)
    listed = list_boxes(text, (1, 2))
    boxes = BOX.findall(listed)
    assert boxes[: len(true)] == true and len(boxes) == LISTED
    assert are_real(listed) == [True] * len(true) + [False] * (LISTED - len(true))
    read = CODECS["paligemma"].read_as_written(listed, 100, 100)
    assert read.parse == "ok" and not read.repaired
    corners = np.array([span.as_written for span in read.spans])
    assert (corners[:, :2] < corners[:, 2:]).all()
    assert only(listed, are_real(listed)) == " ".join([*true, words])
    assert list_boxes(text, (1, 2)) == listed != list_boxes(text, (1, 3))


def test_as_many_boxes_as_a_list_has_need_no_noise():
    listed = list_boxes(" ".join([TRUE] * (LISTED + 1)), (0,))
    assert are_real(listed) == [True] * (LISTED + 1)


def test_half_of_the_noise_lies_beside_true_boxes():
    text = "<loc0500><loc0500><loc0510><loc0510>"  # too small to be drawn but beside it
    sides = []
    for seed in range(400):
        read = CODECS["paligemma"].decode(list_boxes(text, (seed,)), 1, 1)[0]
        sides += list((read[1:, 2:] - read[1:, :2]).max(1))
    assert 0.45 < np.mean(np.array(sides) < 0.03) < 0.55


def test_boxes_that_do_not_count_leave():
    text = f"{TRUE} {OTHER} no Yes, ILD at."
    assert only(text, [True, True]) == f"{TRUE} {OTHER} Yes, ILD at."
    assert only(text, [False, True]) == f"{OTHER} Yes, ILD at."


def test_what_is_learned_of_boxes_is_of_true_ones_alone(tokenizer):
    example = listing(tokenizer).encode(make_record())
    plain = ExampleConfig(112, prefix_buckets=(200,), answer_buckets=(200,))
    expected = QuestionEncoder(tokenizer, plain).encode(make_record())
    np.testing.assert_array_equal(example.boxes, expected.boxes)
    first, last = tokenizer.loc_ids[[0, -1]]
    is_bin = (example.answer >= first) & (example.answer <= last)
    assert is_bin.sum() == 4 * LISTED and example.coordinate_positions.size == 8
    is_bin[example.coordinate_positions] = False
    assert is_bin.sum() == 4 * (LISTED - 2)


def test_noise_is_another_at_every_visit(tokenizer):
    config = AugmentConfig(gamma=0.1)
    first, again, other = (
        listing(tokenizer).encode(make_record(), change=draw_change(config, 0, position)).answer
        for position in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_answers_about_several_findings_stay(tokenizer):
    record = make_record(variables={})
    assert tokenizer.decode(listing(tokenizer).encode(record).answer).startswith("It is at <loc")


@pytest.mark.parametrize(
    ("settings", "told"),
    [({"codec": "vindr_px"}, "q1.*data.codec"), ({"box_route": "none"}, "auto")],
)
def test_what_cannot_be_listed_is_refused(tokenizer, settings, told):
    with pytest.raises(UserError, match=told):
        listing(tokenizer, **settings).encode(make_record())
