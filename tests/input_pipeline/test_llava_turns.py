"""Llama's family of tokenizers, and LLaVA's turns in its ids."""

import json
from pathlib import Path

import numpy as np
import pytest

from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.images.geometry import IDENTITY
from cxrjax.input_pipeline.coordinates import DigitFinder
from cxrjax.input_pipeline.llava_turns import llava_context, question
from cxrjax.input_pipeline.prompts import PROMPTS
from cxrjax.input_pipeline.tokenizer import Tokenizer
from cxrjax.records import Turn

from .conftest import make_record, train_pieces

IMAGE = -1
_TEXTS = ["USER: where is the right lung ASSISTANT: here", "[INST] is there a nodule [/INST] yes"]


def make_llama(vocab_size=420) -> bytes:
    """As Llama's and Mistral's are made: no pad, unk 0, `<s>` 1, `</s>` 2, a space before texts."""
    ids = {"pad_id": -1, "unk_id": 0, "bos_id": 1, "eos_id": 2}
    texts = [*_TEXTS, "(0123456789)"] * 20
    return train_pieces(texts, vocab_size=vocab_size, add_dummy_prefix=True, **ids)


@pytest.fixture(scope="module")
def both():
    """The same tokenizer from either file."""
    model = make_llama()
    return Tokenizer(model, "m"), Tokenizer(_to_json(model), "j")


def _to_json(model: bytes) -> bytes:
    """As llava-hf's tokenizer.json: BPE with bytes, and `<image>` and `<pad>` behind."""
    from sentencepiece import sentencepiece_model_pb2
    from transformers.convert_slow_tokenizer import generate_merges

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    vocab = {piece.piece: i for i, piece in enumerate(proto.pieces)}
    scores = {p.piece: p.score for p in proto.pieces if p.type == p.NORMAL}
    added = [(0, "<unk>"), (1, "<s>"), (2, "</s>")]
    added += [(len(vocab), "<image>"), (len(vocab) + 1, "<pad>")]
    whole = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    description = json.loads(Path(__file__).with_name("llama_tokenizer.json").read_text("utf-8"))
    description["added_tokens"] = [
        {"id": i, "content": c, "special": True, **whole} for i, c in added
    ]
    merges = [" ".join(merge) for merge in generate_merges(vocab, scores)]
    description["model"] |= {"vocab": vocab, "merges": merges}
    return json.dumps(description).encode()


def test_both_files_give_the_same_ids_and_texts(both):
    model, as_json = both
    for tokenizer in both:
        assert tokenizer.is_llama and tokenizer.stop_ids == (2,)
        assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id) == (1, 2, 0)
        assert tokenizer.loc_token_start == -1 and len(tokenizer.loc_ids) == 0
    for text in (*_TEXTS, "Größe 12,345", "two  spaces", "\na line", "x " * 50):
        ids = model.encode(text)
        assert as_json.encode(text) == ids
        assert model.decode([1, *ids, 2]) == as_json.decode([1, *ids, 2]) == text
    # `</s>` within a text is four characters: a question cannot end an answer.
    assert 2 not in model.encode("yes</s>") and 2 not in as_json.encode("yes</s>")
    assert as_json.decode([1, as_json.vocab_size - 1]) == ""  # <pad>


def test_the_turns(both):
    for tokenizer in both:
        space, line = tokenizer.encode("\n")
        before, second = llava_context(tokenizer, IMAGE, "llava_med")
        assert before == (1, *tokenizer.encode("[INST] "), IMAGE)
        # The space before the image is a piece of its own, as where LLaVA's code tokenizes it.
        assert before[-2] == space and tokenizer.decode(before[1:-1]) == "[INST] "
        assert second == (space, line, IMAGE)
        assert tokenizer.decode(llava_context(tokenizer, IMAGE, "llava")[0][1:-1]) == "USER: "
    assert question(" Is there a nodule? ", "llava_med") == "\nIs there a nodule? [/INST]"
    assert question("Where?", "llava") == "\nWhere? ASSISTANT:"


def test_gemma_s_tokenizer_has_no_such_turns(tokenizer):
    with pytest.raises(UserError, match="not a tokenizer of Llama's family"):
        llava_context(tokenizer, IMAGE, "llava")


@pytest.mark.parametrize("codec", ["gemex", "vindr_px"])
def test_boxes_are_found_digit_by_digit(both, codec):
    box = np.array([[0.1, 0.25, 0.5, 0.75]], np.float32)
    notation = CODECS[codec]
    for tokenizer in both:
        text = f"There: {notation.encode(box, 448, 448)}"
        answer = np.array([*tokenizer.encode(text), tokenizer.eos_id], np.int32)
        found = DigitFinder(tokenizer).find(text, answer, notation, 448, 448, IDENTITY)
        expected = notation.decode(text, 448, 448).boxes
        np.testing.assert_allclose(found.boxes, expected, atol=1e-6)


@pytest.mark.parametrize("name", ["llava", "llava_med", "gemex_llava", "gemex_llava_med"])
def test_formats_ask_one_question(name):
    assert not PROMPTS[name].begins and PROMPTS[name].end is None
    history = [Turn(question_id="p", question="Is it?", answer="Yes.")]
    record = make_record(question="Where?", type_prompt="Choose.", history=history)
    with pytest.raises(UserError, match="ask one question"):
        PROMPTS[name].prefix(record)
    asked = PROMPTS[name].prefix(record.model_copy(update={"history": []}))
    mark = " [/INST]" if name.endswith("med") else " ASSISTANT:"
    assert asked == f"\n{'Choose.' + chr(10) if 'gemex' in name else ''}Where?{mark}"
