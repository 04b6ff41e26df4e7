"""Qwen's tokenizer, byte-level and without location tokens, and its conversations in its ids."""

import json
from pathlib import Path

import numpy as np
import pytest

from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.images.geometry import letterbox_geometry
from cxrjax.input_pipeline.chat import QWEN, check_template, qwen_context
from cxrjax.input_pipeline.coordinates import DigitFinder
from cxrjax.input_pipeline.prompts import PROMPTS
from cxrjax.input_pipeline.tokenizer import Tokenizer
from cxrjax.records import Turn

from .conftest import make_record

IMAGE = -1
_TEXTS = ["You are a helpful assistant.", "system\nuser\nassistant\n", "Is there a nodule? Yes."]
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"]
_SPECIAL += ["<|image_pad|>"]
# As the model card writes an image and two turns.
TEMPLATE = Path(__file__).with_name("qwen.jinja").read_text("utf-8")


def make_qwen() -> bytes:
    """A small tokenizer.json by transformers' own converter of Qwen's, trained on a few texts."""
    import tokenizers
    from tokenizers import Tokenizer as Trained
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    made = Trained(models.BPE())
    made.normalizer = normalizers.NFC()
    cut = pre_tokenizers.Split(tokenizers.Regex(PRETOKENIZE_REGEX), behavior="isolated")
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([cut, by_bytes])
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(_TEXTS * 20, trainer)
    made.add_special_tokens(_SPECIAL)
    return made.to_str().encode()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(make_qwen(), "q")


def test_its_ids_and_texts(tokenizer):
    assert tokenizer.is_qwen and not tokenizer.is_llama and tokenizer.loc_token_start == -1
    end, pad = tokenizer.piece_id("<|im_end|>"), tokenizer.piece_id("<|endoftext|>")
    assert tokenizer.stop_ids == (end, pad)
    assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.bos_id) == (pad, end, pad)
    for text in (*_TEXTS, "Bóng tim to 🫁", "two  spaces\n\n a line", "x" * 50, "12,345"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode([*ids, end, pad]) == text
        assert "".join(tokenizer.pieces(text)) == text or not text.isascii()
    # Padding within a text is spelled out; letters with their marks apart become one.
    assert pad not in tokenizer.encode("yes<|endoftext|>")
    assert tokenizer.encode("e\u0302") == tokenizer.encode("ê")
    assert [len(tokenizer.encode(n)) for n in ("7", "12", "345")] == [1, 2, 3]


def test_as_transformers_reads_the_file(tokenizer, tmp_path):
    from transformers import PreTrainedTokenizerFast

    (tmp_path / "tokenizer.json").write_bytes(tokenizer.model)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    conversation = QWEN.opening + QWEN.user + QWEN.image + QWEN.question("Is there?", [("A", "B")])
    context, _ = qwen_context(tokenizer, tokenizer.piece_id("<|image_pad|>"))
    ours = [*context, *tokenizer.encode(QWEN.question("Is there?", [("A", "B")]))]
    assert ours == theirs(conversation)["input_ids"]


def test_other_programs_are_refused(tokenizer):
    for change, said in (
        ({"pretokenizers": [{"type": "Split", "pattern": {"Regex": "(a+)+"}}]}, "a regular expr"),
        ({"type": "UnicodeScripts"}, "has 'UnicodeScripts'"),
    ):
        description = json.loads(tokenizer.model)
        description["pre_tokenizer"] |= change
        with pytest.raises(UserError, match=said):
            Tokenizer(json.dumps(description).encode(), "q")


def test_the_context(tokenizer):
    before, second = qwen_context(tokenizer, IMAGE)
    begin, end = (tokenizer.piece_id(f"<|vision_{side}|>") for side in ("start", "end"))
    assert before[-3:] == (begin, IMAGE, end) and second == (end, begin, IMAGE)
    assert tokenizer.decode(before[:-3]).replace("<|im_start|>", "") == (
        "system\nYou are a helpful assistant.\nuser\n"
    )


def test_a_conversation_and_its_control_tokens(tmp_path):
    assert QWEN.question(" Where? ", [("Is it?", "Yes.")]) == (
        "Is it?<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n<|im_start|>user\n"
        "Where?<|im_end|>\n<|im_start|>assistant\n"
    )
    with pytest.raises(UserError, match=r"contains <\|im_end\|>, which only the chat format"):
        QWEN.answer("yes<|im_end|>")
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    check_template(tmp_path, QWEN)
    other = TEMPLATE.replace("a helpful", "an unhelpful")
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": other}))
    with pytest.raises(UserError, match=r"and Qwen2.5-VL's form is .*Qwen/Qwen2.5-VL-7B-Instruct"):
        check_template(tmp_path, QWEN)


def test_the_format_asks_behind_earlier_turns():
    history = [Turn(question_id="p", question="Is it?", answer="Yes.")]
    record = make_record(question="Where?", type_prompt="Choose.", history=history)
    asked = PROMPTS["qwen"].prefix(record)
    assert asked == QWEN.question("Where?", [("Is it?", "Yes.")])
    assert not PROMPTS["qwen"].begins and PROMPTS["qwen"].end == "<|im_end|>"
    assert PROMPTS["qwen_typed"].prefix(record) == QWEN.question(
        "Choose. Where?", [("Is it?", "Yes.")]
    )


@pytest.mark.parametrize("codec", ["qwen2.5_vl_448", "qwen3_vl"])
def test_boxes_are_found_digit_by_digit(tokenizer, codec):
    box = np.array([[0.1, 0.25, 0.5, 0.75]], np.float32)
    notation, geometry = CODECS[codec], letterbox_geometry(600, 400, 448, 448)
    text = f"There: {notation.encode(box, 600, 400, geometry, ['nodule'])}"
    answer = np.array([*tokenizer.encode(text), tokenizer.eos_id], np.int32)
    found = DigitFinder(tokenizer).find(text, answer, notation, 600, 400, geometry)
    expected = notation.decode(text, 600, 400, geometry).boxes
    np.testing.assert_allclose(geometry.invert(found.boxes), expected, atol=1e-3)
    np.testing.assert_allclose(expected, box, atol=2e-3)
