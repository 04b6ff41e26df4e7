"""Turns of Qwen's and LLaVA's templates: byte-level and sentence pieces, images in place."""

import json
from pathlib import Path

import numpy as np
import pytest

from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.images.geometry import IDENTITY, letterbox_geometry
from cxrjax.input_pipeline.chat import CHAT_FORMS, check_template, contexts
from cxrjax.input_pipeline.coordinates import DigitFinder
from cxrjax.input_pipeline.prompts import PROMPTS
from cxrjax.input_pipeline.tokenizer import Tokenizer
from cxrjax.records import Turn

from .conftest import demo_tokenizer, make_record, train_pieces

IMAGE = -1
QWEN = CHAT_FORMS["qwen"]
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


def test_ids_are_those_of_transformers_and_other_programs_are_refused(tokenizer, tmp_path):
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
    from transformers import PreTrainedTokenizerFast

    (tmp_path / "tokenizer.json").write_bytes(tokenizer.model)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    conversation = QWEN.whole("Is there?", [("A", "B")])
    context, _ = contexts(QWEN, tokenizer, tokenizer.piece_id("<|image_pad|>"))
    ours = [*context, *tokenizer.encode(QWEN.question("Is there?", [("A", "B")]))]
    assert ours == theirs(conversation)["input_ids"]
    for change, said in (
        ({"pretokenizers": [{"type": "Split", "pattern": {"Regex": "(a+)+"}}]}, "a regular expr"),
        ({"type": "UnicodeScripts"}, "has 'UnicodeScripts'"),
    ):
        description = json.loads(tokenizer.model)
        description["pre_tokenizer"] |= change
        with pytest.raises(UserError, match=said):
            Tokenizer(json.dumps(description).encode(), "q")


def test_the_context_and_earlier_turns(tokenizer):
    before, second = contexts(QWEN, tokenizer, IMAGE)
    begin, end = (tokenizer.piece_id(f"<|vision_{side}|>") for side in ("start", "end"))
    assert before[-3:] == (begin, IMAGE, end) and second == (end, begin, IMAGE)
    assert tokenizer.decode(before[:-3]).replace("<|im_start|>", "") == (
        "system\nYou are a helpful assistant.\nuser\n"
    )
    history = [Turn(question_id="p", question="Is it?", answer="Yes.")]
    record = make_record(question="Where?", type_prompt="Choose.", history=history)
    asked = PROMPTS["qwen"].prefix(record)
    assert asked == QWEN.question("Where?", [("Is it?", "Yes.")])
    assert not PROMPTS["qwen"].begins and PROMPTS["qwen"].end == "<|im_end|>"
    assert PROMPTS["qwen_typed"].prefix(record) == QWEN.question(
        "Choose. Where?", [("Is it?", "Yes.")]
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


_LLAVA_TEXTS = [
    "USER: where is the right lung ASSISTANT: here",
    "[INST] is there a nodule [/INST] yes",
]


def make_llama(vocab_size=420) -> bytes:
    """As Llama's and Mistral's are made: no pad, unk 0, `<s>` 1, `</s>` 2, a space before texts."""
    ids = {"pad_id": -1, "unk_id": 0, "bos_id": 1, "eos_id": 2}
    texts = [*_LLAVA_TEXTS, "(0123456789)"] * 20
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
    for text in (*_LLAVA_TEXTS, "Größe 12,345", "two  spaces", "\na line", "x " * 50):
        ids = model.encode(text)
        assert as_json.encode(text) == ids
        assert model.decode([1, *ids, 2]) == as_json.decode([1, *ids, 2]) == text
    # `</s>` within a text is four characters: a question cannot end an answer.
    assert 2 not in model.encode("yes</s>") and 2 not in as_json.encode("yes</s>")
    assert as_json.decode([1, as_json.vocab_size - 1]) == ""  # <pad>


def test_the_turns(both):
    llava, med = CHAT_FORMS["llava"], CHAT_FORMS["llava_med"]
    for tokenizer in both:
        space, line = tokenizer.encode("\n")
        before, second = contexts(med, tokenizer, IMAGE)
        assert before == (1, *tokenizer.encode("[INST] "), IMAGE)
        # The space before the image is a piece of its own, as where LLaVA's code tokenizes it.
        assert before[-2] == space and tokenizer.decode(before[1:-1]) == "[INST] "
        assert second == (space, line, IMAGE)
        assert tokenizer.decode(contexts(llava, tokenizer, IMAGE)[0][1:-1]) == "USER: "
    assert med.question(" Is there a nodule? ") == "\nIs there a nodule? [/INST]"
    assert llava.question("Where?") == "\nWhere? ASSISTANT:"


def test_the_turns_and_template_of_llava_are_compared(tmp_path):
    form, path = CHAT_FORMS["llava"], tmp_path / "chat_template.jinja"
    template = Path(__file__).with_name("llava.jinja").read_text("utf-8")
    path.write_text(template)
    check_template(tmp_path, form)
    path.write_text(template.replace("ASSISTANT", "BOT"))
    with pytest.raises(UserError, match=r"may be replaced by that of llava-hf/llava-1\.5-7b-hf"):
        check_template(tmp_path, form)
    with pytest.raises(UserError, match="not a tokenizer of Llama's family"):
        contexts(CHAT_FORMS["llava"], demo_tokenizer(), IMAGE)


@pytest.mark.parametrize("codec", ["gemex", "vindr_px"])
def test_boxes_of_llava_are_found_digit_by_digit(both, codec):
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
