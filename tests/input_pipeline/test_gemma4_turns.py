"""Gemma 4's conversations in the ids of its tokenizer's class, and as its template writes them."""

from pathlib import Path

import pytest

from cxrjax.errors import UserError
from cxrjax.input_pipeline.chat import CHAT_FORMS, check_template, contexts
from cxrjax.input_pipeline.prompts import PROMPTS
from cxrjax.input_pipeline.tokenizer import Tokenizer

IMAGE = -1
GEMMA4, GEMMA4_SMALL = CHAT_FORMS["gemma4"], CHAT_FORMS["gemma4_small"]
SPECIAL = ["<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|image>", "<|image|>", "<image|>"]
_TEXT = "user model thought Is there a nodule? Yes. Where? No.\n"
# In the published template's form, without its tools, thinking and other media.
TEMPLATE = Path(__file__).with_name("gemma4.jinja").read_text("utf-8")


def make_gemma4(size: int = 0):
    """A small tokenizer of transformers' class for Gemma, of at least `size` pieces."""
    from transformers import GemmaTokenizer

    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{n:02X}>" for n in range(256))]
    pieces += sorted({*_TEXT.replace(" ", "▁"), *"0123456789,[]{}:\"'`_xyjsonbael"})
    pieces += [f"<spare{n}>" for n in range(size - len(pieces) - len(SPECIAL))]
    made = GemmaTokenizer(vocab={piece: n for n, piece in enumerate(pieces)}, add_bos_token=False)
    made.add_special_tokens({"additional_special_tokens": SPECIAL})
    return made


@pytest.fixture(scope="module")
def both():
    theirs = make_gemma4()
    return theirs, Tokenizer(theirs.backend_tokenizer.to_str().encode(), "g")


def test_ids_are_those_of_transformers(both):
    theirs, ours = both
    assert not (ours.is_llama or ours.is_qwen) and ours.loc_token_start == -1
    assert ours.stop_ids == (1, ours.piece_id("<turn|>"))
    context, second = contexts(GEMMA4, ours, IMAGE)
    assert context[-3:] == (ours.piece_id("<|image>"), IMAGE, ours.piece_id("<image|>"))
    assert second == (context[-1], context[-3], IMAGE)
    image = ours.piece_id("<|image|>")
    found = [image if i == IMAGE else i for i in context]
    found += ours.encode(GEMMA4.question("Is there a nodule?", [("Where?", "No.")]))
    text = (
        "<bos><|turn>user\n<|image><|image|><image|>Where?<turn|>\n<|turn>model\nNo.<turn|>\n"
        "<|turn>user\nIs there a nodule?<turn|>\n<|turn>model\n<|channel>thought\n<channel|>"
    )
    assert found == theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.decode([*ours.encode("Yes."), *ours.stop_ids[:1]]) == "Yes."


def test_its_template_and_control_tokens(tmp_path):
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    check_template(tmp_path, GEMMA4)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE.replace("<|channel>thought", ""))
    with pytest.raises(UserError, match=r"Gemma 4's form is .*google/gemma-4-31B-it"):
        check_template(tmp_path, GEMMA4)
    (tmp_path / "chat_template.jinja").unlink()
    for control in (*SPECIAL, "<|think|>"):
        with pytest.raises(UserError, match="which only the chat format"):
            GEMMA4.answer(f"yes{control}")
    assert GEMMA4_SMALL.question("Where?").endswith("<turn|>\n<|turn>model\n")
    for name in ("gemma4", "gemma4_small"):
        assert PROMPTS[name].end == "<turn|>" and not PROMPTS[name].begins
