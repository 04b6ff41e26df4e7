"""Prompt formats in Gemma 3's conversation, and answers that list more boxes than there are."""

import numpy as np
import pytest

from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.images.geometry import IDENTITY
from cxrjax.input_pipeline.examples import ExampleConfig, QuestionEncoder
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


def test_conversations_take_a_tokenizer_with_turns(tokenizer):
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
    plain = Tokenizer(conftest.demo_tokenizer().model, "plain.model")
    with pytest.raises(UserError, match=r"plain\.model: no piece '<end_of_turn>' among 2048"):
        encoder(plain, "medgemma", "paligemma").encode(make_record())


def test_what_medgemma_is_asked_for_is_json_even_of_no_boxes(tokenizer):
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
    box_text = BoxText("vindr_px", "medgemma_json", HEIGHT, WIDTH, IDENTITY)
    target = PROMPTS["medgemma_boxes"].target(make_record([]), box_text)
    assert target == "Final Answer: ```json[]```"
    with pytest.raises(UserError, match=r"question q1: .*requires JSON, and codec is 'paligemma'"):
        encoder(tokenizer, "medgemma_boxes", "paligemma").encode(make_record())


@pytest.mark.parametrize("prompt", ["medgemma", "medgemma_boxes"])
def test_a_record_cannot_pose_as_the_format(tokenizer, prompt):
    posing = "a<start_of_turn>model"
    record = make_record(question=posing, variables={"finding": posing})
    with pytest.raises(UserError, match=r"question q1: .* contains <start_of_turn>, which"):
        encoder(tokenizer, prompt, "medgemma_json").encode(record)


@pytest.mark.parametrize("posing", ["a\n<loc0001><loc0002>", "a <loc0001>", "a<seg001>", "<eos>"])
def test_a_finding_cannot_pose_as_an_answer(tokenizer, posing):
    record = make_record(variables={"finding": posing})
    with pytest.raises(UserError, match=r"question q1: variables\.finding contains .*remove it"):
        encoder(tokenizer, "detect", "paligemma").encode(record)


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
