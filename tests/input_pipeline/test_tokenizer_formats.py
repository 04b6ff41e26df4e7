"""`tokenizer.json` gives the ids of `tokenizer.model`, and Gemma 3's unused pieces carry <loc>."""

import io
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2
from transformers import AddedToken, GemmaTokenizer, PreTrainedTokenizerFast
from transformers.tokenization_utils_base import generate_merges

from cxrjax.errors import UserError
from cxrjax.input_pipeline.chat import USER_TURN, question
from cxrjax.input_pipeline.tokenizer import (
    GEMMA3_LOC_START,
    LOC_CARRIERS,
    LOC_PIECES,
    Tokenizer,
    check_vocabulary,
    load_tokenizer,
)
from cxrjax.models import PRESETS

SHIPPED = Path(__file__).parents[2] / "data/demo_base/tokenizer.model"
TURNS = ("<start_of_turn>", "<end_of_turn>")
# Gemma 3's own, small: no <loc>, the unused pieces on both sides of the ordinary ones, the turns.
GEMMA3_SYMBOLS = [
    "<unused94>",
    "<unused95>",
    *TURNS,
    *(space * n for n in (4, 3, 2) for space in ("\n", "▁")),
    "\n",
    *LOC_CARRIERS,
    "<unused1123>",
]


def to_json(model: bytes) -> bytes:
    """The tokenizer.json of a SentencePiece model, as transformers' Gemma writes it."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    symbols = [p.piece for p in proto.pieces if p.type in (p.CONTROL, p.UNKNOWN, p.USER_DEFINED)]
    vocab = {piece.piece: piece_id for piece_id, piece in enumerate(proto.pieces)}
    # Runs of spaces come from merges, as in the published file: its symbols are matched before
    # spaces become U+2581.
    scores = {p.piece: p.score for p in proto.pieces if p.type == p.NORMAL or set(p.piece) == {"▁"}}
    tokenizer = GemmaTokenizer(vocab, generate_merges(vocab, scores), mask_token="<pad>")
    tokenizer.add_tokens([AddedToken(s, normalized=False, special=s in TURNS) for s in symbols])
    return tokenizer.backend_tokenizer.to_str().encode()


@pytest.fixture(scope="module")
def both() -> tuple[Tokenizer, Tokenizer]:
    """The repository's tokenizer in both formats."""
    model = SHIPPED.read_bytes()
    return Tokenizer(model, "m"), Tokenizer(to_json(model), "j")


@pytest.fixture(scope="module")
def gemma3_model() -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["where is the right lung", "the left  lung is <here> 0123"] * 20),
        model_writer=model,
        model_type="bpe",
        vocab_size=1500,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        pad_piece="<pad>",
        eos_piece="<eos>",
        bos_piece="<bos>",
        user_defined_symbols=GEMMA3_SYMBOLS,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def gemma3_json(gemma3_model) -> bytes:
    return to_json(gemma3_model)


@pytest.fixture(scope="module")
def gemma3(gemma3_model, gemma3_json) -> tuple[Tokenizer, Tokenizer]:
    return Tokenizer(gemma3_model, "m"), Tokenizer(gemma3_json, "j")


# Words and symbols among arbitrary characters. SentencePiece ends its input at a null character and
# spells spaces with U+2581.
texts = st.lists(
    st.sampled_from(
        ["the left  lung", " where", "   ", "\n\n\n", "<loc0123>", "<loc9999>", "<seg001>"]
        + [
            "<start_of_turn>",
            "<unused94>",
            "<unused1123>",
            "<pad>",
            "Cardiomegaly at 0691",
            "<0x41>",
        ]
    )
    | st.text(st.characters(codec="utf-8", exclude_characters="\0▁"), max_size=8),
    max_size=6,
).map("".join)


@given(text=texts)
def test_both_formats_give_the_same_ids_and_the_text_back(both, text):
    model, description = both
    ids = model.encode(text)
    assert description.encode(text) == ids
    assert description.decode(ids) == model.decode(ids) == text
    assert description.pieces(text) == model.pieces(text)


@given(ids=st.lists(st.integers(0, 2100), max_size=12))
def test_both_formats_read_any_ids_alike(both, ids):
    """But for bytes that are no UTF-8: sentencepiece replaces the wrong ones, tokenizers all."""
    model, description = both
    assume("\ufffd" not in model.decode(ids))
    assert description.decode(ids) == model.decode(ids)


def test_both_formats_agree_on_what_they_hold(both):
    model, description = both
    assert (model.file_name, description.file_name) == ("tokenizer.model", "tokenizer.json")
    assert model.vocab_size == description.vocab_size == 2048
    np.testing.assert_array_equal(model.loc_ids, description.loc_ids)
    assert model.stop_ids == description.stop_ids == (1,)
    assert description.piece_id("7") == model.piece_id("7")


def test_ids_of_a_json_are_those_of_transformers(both, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(both[1].model)
    reference = PreTrainedTokenizerFast(tokenizer_file=str(path))
    text = "Where is the <loc0500>?\n  Tràn dịch 2024"
    assert load_tokenizer(path).encode(text) == reference.encode(text, add_special_tokens=False)


def test_a_conversation_has_the_ids_of_transformers_own_template(gemma3, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(gemma3[1].model)
    reference = PreTrainedTokenizerFast(tokenizer_file=str(path), bos_token="<bos>")
    template = (
        "{{ bos_token }}{% for m in messages %}<start_of_turn>"
        "{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}"
        "<end_of_turn>\n{% endfor %}{{ '<start_of_turn>model\n' }}"
    )
    said = (" Where is it?\n", "In the left lung. ", "Right or left?")
    messages = [
        {"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)
    ]
    expected = reference.apply_chat_template(messages, chat_template=template, return_dict=False)
    for tokenizer in gemma3:
        ours = tokenizer.encode(USER_TURN + question(said[2], [said[:2]]))
        assert [tokenizer.bos_id, *ours] == expected


def test_special_pieces_within_a_text_are_text(both, gemma3):
    for tokenizer in (*both, *gemma3):
        ids = tokenizer.encode("<bos>a<eos><pad><unk>")
        assert not {0, 1, 2, 3} & set(ids)
        assert tokenizer.decode([2, *ids, 1, 0, 3]) == "<bos>a<eos><pad><unk>"


def test_what_a_training_run_left_in_the_file_changes_nothing(both):
    description = json.loads(both[1].model)
    template = [
        {"SpecialToken": {"id": "<bos>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    description |= {
        "truncation": {
            "direction": "Right",
            "max_length": 3,
            "strategy": "LongestFirst",
            "stride": 0,
        },
        "padding": {
            "strategy": {"Fixed": 20},
            "direction": "Left",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "<pad>",
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": template,
            "pair": template,
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}},
        },
    }
    question = "Where is the right lung located?"
    changed = Tokenizer(json.dumps(description).encode())
    assert changed.encode(question) == both[0].encode(question)


def test_a_json_pickles_into_the_same_tokenizer(both):
    copy = pickle.loads(pickle.dumps(both[1]))
    assert copy.encode("The <loc0001>.") == both[0].encode("The <loc0001>.")
    assert copy.name == "j"


def test_unused_pieces_carry_the_locations_in_both_formats(gemma3):
    for tokenizer in gemma3:
        start = tokenizer.loc_ids[0]
        assert tokenizer.encode("<loc0000><loc1023>") == [start, start + 1023]
        box = "at <loc0123><loc0001><loc0456><loc1000>, not there"
        assert tokenizer.decode(tokenizer.encode(box)) == box
        assert np.isin(tokenizer.encode(box), tokenizer.loc_ids).sum() == 4
        assert len(tokenizer.encode("<loc1024>")) > 1
        end = tokenizer.piece_id("<end_of_turn>")
        assert tokenizer.stop_ids == (1, end)
        assert tokenizer.encode("lung<end_of_turn>")[-1] == end


@pytest.fixture(scope="module")
def plain(gemma3_model) -> sentencepiece.SentencePieceProcessor:
    """The model without location tokens."""
    return sentencepiece.SentencePieceProcessor(model_proto=gemma3_model)


@given(text=texts)
def test_carrying_locations_leaves_other_ids_as_they_were(gemma3, plain, text):
    text = text.replace("<loc0123>", "")
    for tokenizer in gemma3:
        ids = tokenizer.encode(text)
        assert ids == plain.encode(text)
        assert tokenizer.decode(ids) == text


@given(texts, texts, st.integers(0, 1023))
def test_a_location_parts_the_text_around_it(gemma3, before, after, bin_index):
    for tokenizer in gemma3:
        ids = tokenizer.encode(before + LOC_PIECES[bin_index] + after)
        around = tokenizer.encode(before), tokenizer.encode(after)
        assert ids == [*around[0], tokenizer.loc_ids[bin_index], *around[1]]


def test_a_piece_too_few_to_carry_all_locations_is_refused(gemma3_json):
    description = gemma3_json.replace(b"<unused500>", b"<taken>")
    with pytest.raises(UserError, match=r"few\.json: <loc0401> is \d+ ids, expected one"):
        Tokenizer(description, "few.json")


def test_the_image_token_alone_may_lie_beyond_the_embedding(gemma3_json):
    description = json.loads(gemma3_json)
    size = len(description["model"]["vocab"])
    # As in the published file: the last entry, in the list of added ones only.
    description["added_tokens"].append(
        description["added_tokens"][-1] | {"id": size, "content": "<image_soft_token>"}
    )
    tokenizer = Tokenizer(json.dumps(description).encode(), "t")
    assert tokenizer.vocab_size == size + 1
    check_vocabulary(tokenizer, size)
    check_vocabulary(tokenizer, size + 64)
    with pytest.raises(UserError, match=f"t: {size + 1} pieces, .* has {size - 1} rows"):
        check_vocabulary(tokenizer, size - 1)


def test_a_folder_gives_its_json_before_its_model(tmp_path, both, gemma3):
    with pytest.raises(UserError, match=f"{tmp_path}: no tokenizer; expected tokenizer.json or"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(both[0].model)
    assert load_tokenizer(tmp_path).vocab_size == 2048
    (tmp_path / "tokenizer.json").write_bytes(gemma3[1].model)
    loaded = load_tokenizer(tmp_path)
    assert loaded.name == str(tmp_path / "tokenizer.json")
    assert loaded.vocab_size == gemma3[1].vocab_size != 2048


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b'{"model_type": "gemma3"}', "not a tokenizer; expected a Hugging Face tokenizer.json"),
        (b"{not json", r"not a tokenizer \(not JSON .*; expected a Hugging Face tokenizer.json"),
        (b'{"model": {"vocab": []}, "added_tokens": [3]}', "not a tokenizer; expected"),
        (
            b'{"model": {"vocab": {}, "merges": ["a"]}, "added_tokens": []}',
            r"not a tokenizer that tokenizers [\d.]+ reads",
        ),
    ],
)
def test_what_is_no_tokenizer_is_refused_in_one_line(tmp_path, content, complaint):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"{path}: {complaint}") as raised:
        load_tokenizer(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["model"].update(dropout=0.5), "without dropout"),
        (lambda d: d["model"].update(type="Unigram"), "of type BPE"),
        # A panic in the library, where it is longer than a merge.
        (lambda d: d["model"].update(continuing_subword_prefix="##"), "_prefix is '##', expected"),
        (lambda d: d["model"]["vocab"].update(x=-1), "an id that is none"),
        (lambda d: d["model"]["vocab"].update(x=2**40), "an id that is none"),
        (lambda d: d["model"]["vocab"].update({"a" * 1001: 9}), "more than 1000 characters"),
        (lambda d: d.update(added_tokens=d["added_tokens"] * 70_000), "added ones, at most 1,048"),
        (lambda d: d.update(x=[[]] * 2**20), "more than 1,048,576 lists"),
        (lambda d: d.update(pre_tokenizer={"type": "Digits"}), "pre_tokenizer has 'Digits'"),
        (
            lambda d: d.update(
                pre_tokenizer={
                    "type": "Split",
                    "pattern": {"Regex": "(a+)+$"},
                    "behavior": "Isolated",
                    "invert": False,
                }
            ),
            "pre_tokenizer has a regular expression",
        ),
        (
            lambda d: d.update(normalizer={"type": "Prepend", "prepend": "a" * 2000}),
            "normalizer has a text of 2,000",
        ),
        (
            lambda d: d.update(decoder={"type": "Sequence", "decoders": [{"type": "Fuse"}] * 101}),
            "decoder has 101 steps",
        ),
    ],
)
def test_a_json_that_asks_for_more_than_gemma_s_is_refused(change, said):
    description = {
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
        "added_tokens": [{"id": 0, "content": "a"}],
    }
    change(description)
    with pytest.raises(UserError, match=said) as raised:
        Tokenizer(json.dumps(description).encode(), "tokenizer.json")
    assert "\n" not in str(raised.value)


def test_a_panic_of_the_library_is_one_line(gemma3_json, monkeypatch):
    import tokenizers

    class PanicException(BaseException):
        pass

    def panic(text):
        raise PanicException("index out of bounds")

    monkeypatch.setattr(tokenizers, "Tokenizer", type("T", (), {"from_str": staticmethod(panic)}))
    with pytest.raises(UserError, match=r"reads \(index out of bounds\)"):
        Tokenizer(gemma3_json, "tokenizer.json")


def test_other_special_ids_in_a_json_are_refused(gemma3_json):
    description = gemma3_json.replace(b"<bos>", b"<s>")
    with pytest.raises(UserError, match=r"ids \(0, 1, None, 3\), expected 0, 1, 2, 3"):
        Tokenizer(description)


def test_presets_of_gemma3_expect_the_locations_where_the_tokenizer_has_them():
    starts = {
        name: preset.loc_token_start
        for name, preset in PRESETS.items()
        if name.startswith(("gemma3", "medgemma"))
    }
    assert starts and set(starts.values()) == {GEMMA3_LOC_START}


# The published tokenizer, 262,145 entries; data/gemma3/README.md says how to get it.
REAL = os.environ.get("CXRJAX_GEMMA3_TOKENIZER", "data/downloads/gemma3/tokenizer.json")


@pytest.fixture(scope="module")
def real() -> Tokenizer:
    if not Path(REAL).is_file():
        pytest.skip(f"no {REAL}: data/gemma3/README.md, or set CXRJAX_GEMMA3_TOKENIZER")
    return load_tokenizer(REAL)


@pytest.mark.slow
def test_the_real_gemma3_tokenizer(real):
    assert real.vocab_size == 262_145
    assert real.loc_ids[0] == GEMMA3_LOC_START
    assert real.stop_ids == (1, 106)
    assert real.piece_id("<image_soft_token>") == 262_144
    assert all(len(real.encode(digit)) == 1 for digit in "0123456789")
    assert real.pieces("2024") == list("2024")
    assert len(real.encode("<loc_691_1375_1653_1831>")) == 22
    # What follows the last of the run, and what MedGemma thinks in, stay what they were.
    assert real.encode("<unused1123>") == [257_025]
    assert real.encode("<unused94><unused95>") == [100, 101]
    for rows in (262_144, 262_208):
        check_vocabulary(real, rows)
    with pytest.raises(UserError, match="has 257216 rows"):
        check_vocabulary(real, 257_216)


@pytest.mark.slow
@settings(deadline=None)
@given(text=texts)
def test_the_real_tokenizer_gives_the_text_back(real, text):
    assert real.decode(real.encode(text)) == text
