"""Gemma 3's conversation as the published template and image processor write it."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxrjax.errors import UserError
from cxrjax.input_pipeline.chat import (
    START_OF_IMAGE,
    ChatTurn,
    answer,
    chat_text,
    context_ids,
    expand_images,
    question,
)
from cxrjax.input_pipeline.tokenizer import Tokenizer, load_tokenizer
from cxrjax.models import PRESETS
from cxrjax.models.presets import IMAGE

CONTROLS = ("<start_of_turn>", "<end_of_turn>", START_OF_IMAGE, "<end_of_image>")


def test_a_question_about_an_image_reads_as_published():
    text = chat_text([ChatTurn("user", (START_OF_IMAGE, " Is there a nodule?\n"))])
    assert text == (
        "<start_of_turn>user\n<start_of_image>Is there a nodule?<end_of_turn>\n"
        "<start_of_turn>model\n"
    )
    assert expand_images(text, 3) == (
        "<start_of_turn>user\n\n\n<start_of_image>" + "<image_soft_token>" * 3 + "<end_of_image>"
        "\n\nIs there a nodule?<end_of_turn>\n<start_of_turn>model\n"
    )
    assert expand_images(text).count("<image_soft_token>") == 256


def test_instructions_stand_in_the_first_turn_and_turns_take_turns():
    turns = [
        ChatTurn("user", ("A",)),
        ChatTurn("model", (" B ",)),
        ChatTurn("user", ("C", START_OF_IMAGE)),
    ]
    assert chat_text(turns, system="S", generate=False) == (
        "<start_of_turn>user\nS\n\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n"
        "<start_of_turn>user\nC<start_of_image><end_of_turn>\n"
    )
    with pytest.raises(UserError, match="turn 1 of the conversation is of role 'user'"):
        chat_text([turns[0], turns[0]])


@pytest.mark.parametrize("control", [*CONTROLS, "<image_soft_token>"])
def test_a_text_cannot_pose_as_the_format(control):
    text = f"Is there{control} a nodule?"
    for write in (question, answer, lambda t: chat_text([ChatTurn("user", ("A",))], system=t)):
        with pytest.raises(UserError, match=f"contains {control}, which only the chat format"):
            write(text)


@given(st.text(st.characters(codec="utf-8", exclude_characters="<")), st.integers(0, 3))
def test_context_and_question_together_are_the_conversation(text, images):
    turn = ChatTurn("user", ("Look:", *[START_OF_IMAGE] * images, text))
    whole = chat_text([turn])
    context = chat_text([turn._replace(parts=turn.parts[:-1])], generate=False)
    assert context.removesuffix("<end_of_turn>\n") + question(text) == whole


# The published tokenizer and, beside it, its configuration; data/gemma3/README.md.
REAL = Path(os.environ.get("CXRJAX_GEMMA3_TOKENIZER", "data/downloads/gemma3/tokenizer.json"))


@pytest.fixture(scope="module")
def real() -> Tokenizer:
    if not REAL.is_file():
        pytest.skip(f"no {REAL}: data/gemma3/README.md, or set CXRJAX_GEMMA3_TOKENIZER")
    return load_tokenizer(REAL)


@pytest.mark.slow
def test_the_published_template_gives_the_same_text(real):
    from transformers import PreTrainedTokenizerFast

    published = REAL.with_name(REAL.name.replace("tokenizer", "tokenizer_config"))
    if not published.is_file():
        pytest.skip(f"no {published}: data/gemma3/README.md")
    template = json.loads(published.read_text("utf-8"))["chat_template"]
    reference = PreTrainedTokenizerFast(tokenizer_file=str(REAL), bos_token="<bos>")
    image = {"type": "image"}
    texts = [{"type": "text", "text": t} for t in (" What is seen?\n", "A mass. ", "Where?")]
    conversations = [
        [("user", [image, texts[0]])],
        [("user", [texts[0], image, image])],
        [("user", [image, texts[0]]), ("assistant", [texts[1]]), ("user", [texts[2]])],
    ]
    for system in ("", "You are an expert radiologist."):
        for conversation in conversations:
            messages = [{"role": role, "content": list(parts)} for role, parts in conversation]
            if system:
                content = [{"type": "text", "text": system}]
                messages.insert(0, {"role": "system", "content": content})
            turns = [
                ChatTurn(
                    "user" if role == "user" else "model",
                    tuple(part.get("text", START_OF_IMAGE) for part in parts),
                )
                for role, parts in conversation
            ]
            for generate in (True, False):
                expected = reference.apply_chat_template(
                    messages,
                    chat_template=template,
                    tokenize=False,
                    add_generation_prompt=generate,
                )
                assert "<bos>" + chat_text(turns, system, generate) == expected


@pytest.mark.slow
def test_tokenized_in_two_parts_it_has_the_ids_of_the_whole(real):
    asked = "Where is the <loc0012> 1. nodule?\n\nAnswer briefly."
    whole = real.encode(expand_images(chat_text([ChatTurn("user", (START_OF_IMAGE, asked))]), 1))
    image = real.piece_id("<image_soft_token>")
    context = context_ids(real, image)
    assert [*context, *real.encode(question(asked))] == [real.bos_id, *whole]
    assert context.count(image) == 1


@pytest.mark.slow
def test_medgemma_presets_have_the_context_of_one_image(real):
    assert PRESETS["medgemma_4b"].context == context_ids(real, IMAGE)
