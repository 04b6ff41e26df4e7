"""Tokenizers: special ids, locations, lossless text, both formats alike, and what is refused."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import assume, given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2
from transformers import AddedToken, GemmaTokenizer, PreTrainedTokenizerFast
from transformers.tokenization_utils_base import generate_merges

from bench.tokenizer_training import template_corpus, train_tokenizer
from cxrjax.errors import UserError
from cxrjax.input_pipeline.chat import CHAT_FORMS
from cxrjax.input_pipeline.tokenizer import (
    GEMMA3_LOC_START,
    LOC_CARRIERS,
    LOC_PIECES,
    SEG_PIECES,
    Tokenizer,
    check_vocabulary,
    load_tokenizer,
)
from cxrjax.models import PRESETS
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES

from .conftest import demo_tokenizer, train_pieces

TOKENIZER = demo_tokenizer()
MODEL = TOKENIZER.model


def train_with(**changes) -> bytes:
    """A small SentencePiece model that differs from ours in what the test says."""
    texts = ["where is the right lung", "the left lung is here"] * 20
    usual = {"model_type": "unigram", "vocab_size": 1300, "byte_fallback": False}
    return train_pieces(texts, **usual | {"user_defined_symbols": list(LOC_PIECES)} | changes)


def test_special_ids_and_location_pieces_are_those_of_paligemma():
    assert (TOKENIZER.pad_id, TOKENIZER.eos_id, TOKENIZER.bos_id) == (0, 1, 2)
    assert TOKENIZER.vocab_size == 2048
    assert TOKENIZER.decode([2, *TOKENIZER.encode("heart"), 1, 0, 0]) == "heart"
    ids = [TOKENIZER.encode(piece) for piece in (*LOC_PIECES, *SEG_PIECES)]
    assert all(len(i) == 1 for i in ids)
    flat = np.ravel(ids)
    assert len(set(flat.tolist())) == 1024 + 128
    np.testing.assert_array_equal(flat[:1024], TOKENIZER.loc_ids)
    assert TOKENIZER.loc_ids.dtype == np.int32
    np.testing.assert_array_equal(np.diff(TOKENIZER.loc_ids), 1)
    box = "<loc0010><loc0999><loc1023><loc0000>"
    ids = TOKENIZER.encode(f"The heart is at{box}, not{box}.")
    is_loc = np.isin(ids, TOKENIZER.loc_ids)
    expected = TOKENIZER.loc_ids[[10, 999, 1023, 0]]
    np.testing.assert_array_equal(np.asarray(ids)[is_loc], np.tile(expected, 2))


@given(st.text())
def test_text_comes_back_unchanged(text):
    # SentencePiece ends its input at a null character and spells spaces with U+2581.
    text = text.replace("\0", "").replace("▁", "")
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_digits_stand_alone_and_common_words_are_short():
    assert TOKENIZER.pieces("2024\n") == ["2", "0", "2", "4", "\n"]
    assert {name: n for name in CLASSES if (n := len(TOKENIZER.encode(" " + name))) > 3} == {}
    sentence = "Where is the patient's right lung located?"
    assert len(TOKENIZER.encode(sentence)) <= len(sentence.split()) + 3
    assert TOKENIZER.piece_id("7") == TOKENIZER.encode("7")[0]
    assert TOKENIZER.piece_id("<loc0007>") == TOKENIZER.loc_ids[7]
    with pytest.raises(UserError, match="tokenizer: no piece '<image_soft_token>' among 2048"):
        TOKENIZER.piece_id("<image_soft_token>")
    assert TOKENIZER.decode([*TOKENIZER.encode("heart"), 2048, 4000]) == "heart"


def test_training_gives_the_same_tokenizer_twice_and_pickled(both):
    assert train_tokenizer(template_corpus()) == MODEL
    with pytest.raises(UserError, match="more text"):
        train_tokenizer(["one line"])
    copy = pickle.loads(pickle.dumps(TOKENIZER))
    assert copy.encode("Where is the <loc0500>?") == TOKENIZER.encode("Where is the <loc0500>?")
    assert copy.name == TOKENIZER.name
    copy = pickle.loads(pickle.dumps(both[1]))
    assert copy.encode("The <loc0001>.") == both[0].encode("The <loc0001>.")
    assert copy.name == "j"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"user_defined_symbols": [], "vocab_size": 40}, r"<loc0000> is \d+ ids, expected one"),
        ({"user_defined_symbols": [p for p in LOC_PIECES if p != "<loc0700>"]}, "<loc0700>"),
        ({"user_defined_symbols": [*LOC_PIECES[1::-1], *LOC_PIECES[2:]]}, "not contiguous"),
        ({"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": 3}, "expected 0, 1, 2, 3"),
    ],
    ids=["no locations", "one missing", "swapped", "other ids"],
)
def test_a_tokenizer_with_other_special_pieces_is_refused(changes, said):
    with pytest.raises(UserError, match=said):
        Tokenizer(train_with(**changes))


def test_what_is_no_model_or_has_a_piece_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "tokenizer.model"
    with pytest.raises(UserError, match=f"{path}: cannot read tokenizer"):
        load_tokenizer(path)
    path.write_bytes(b"not a model")
    with pytest.raises(UserError, match=f"{path}: not a SentencePiece model"):
        load_tokenizer(path)
    content = MODEL.replace(b"filtration", b"fi\x80tration")
    assert content != MODEL
    with pytest.raises(UserError, match="a piece is not UTF-8"):
        Tokenizer(content, "tokenizer.model")


def test_the_shipped_tokenizer_is_ours_and_embeddings_have_a_row_for_each_piece():
    shipped = load_tokenizer(SHIPPED)
    assert shipped.vocab_size == TOKENIZER.vocab_size
    np.testing.assert_array_equal(shipped.loc_ids, TOKENIZER.loc_ids)
    assert all(len(shipped.encode(" " + name)) <= 3 for name in CLASSES)
    for rows in (2048, 2048 + 1023):
        check_vocabulary(TOKENIZER, rows)
    for rows in (2047, 2048 + 1024):
        with pytest.raises(UserError, match=f"tokenizer: 2048 pieces, .* has {rows} rows"):
            check_vocabulary(TOKENIZER, rows)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: setattr(p.trainer_spec, "model_type", 4), "model_type 4, expected BPE"),
        # Units that point far outside of the table.
        (
            lambda p: setattr(p.normalizer_spec, "precompiled_charsmap", b"\4\0\0\0" + b"\xff" * 9),
            "a precompiled_charsmap, expected none",
        ),
        (
            lambda p: setattr(p.denormalizer_spec, "precompiled_charsmap", b"x"),
            "a precompiled_charsmap, expected none",
        ),
        (
            lambda p: setattr(p.pieces[300], "score", float("nan")),
            "the score of a piece is not a number",
        ),
        (lambda p: setattr(p.pieces[300], "piece", "a" * 1001), "more than 1000 characters"),
        (lambda p: p.ClearField("pieces"), "0 pieces"),
    ],
)
def test_a_sentencepiece_model_is_looked_at_before_the_library_sees_it(change, said):
    proto = sentencepiece_model_pb2.ModelProto.FromString(MODEL)
    change(proto)
    with pytest.raises(UserError, match=said):
        Tokenizer(proto.SerializeToString(), "tokenizer.model")


def test_a_damaged_sentencepiece_model_is_one_line_or_a_tokenizer():
    rng = np.random.default_rng(0)
    for round_number in range(60):
        content = bytearray(MODEL)
        if round_number % 3 == 0:
            del content[rng.integers(len(content)) :]
        for place in rng.integers(len(content), size=20):
            content[place] = rng.integers(256)
        try:
            found = Tokenizer(bytes(content), "tokenizer.model")
        except UserError as error:
            assert "\n" not in str(error)
        else:
            found.decode(found.encode("Where is the nodule? ü\0"))


SHIPPED = Path(__file__).parents[2] / "data/demo_base/tokenizer.model"
TURNS = ("<start_of_turn>", "<end_of_turn>")
# Gemma 3's own, small: no <loc>, the unused pieces on both sides of the ordinary ones, the turns.
GEMMA3_SYMBOLS = ["<unused94>", "<unused95>", *TURNS, *LOC_CARRIERS, "<unused1123>"]
GEMMA3_SYMBOLS[4:4] = [*(space * n for n in (4, 3, 2) for space in ("\n", "▁")), "\n"]


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
    texts = ["where is the right lung", "the left  lung is <here> 0123"] * 20
    names = {"pad_piece": "<pad>", "eos_piece": "<eos>", "bos_piece": "<bos>"}
    return train_pieces(texts, vocab_size=1500, user_defined_symbols=GEMMA3_SYMBOLS, **names)


@pytest.fixture(scope="module")
def gemma3_json(gemma3_model) -> bytes:
    return to_json(gemma3_model)


@pytest.fixture(scope="module")
def gemma3(gemma3_model, gemma3_json) -> tuple[Tokenizer, Tokenizer]:
    return Tokenizer(gemma3_model, "m"), Tokenizer(gemma3_json, "j")


# Words and symbols among arbitrary characters. SentencePiece ends its input at a null character and
# spells spaces with U+2581.
_WORDS = ["the left  lung", " where", "   ", "\n\n\n", "Cardiomegaly at 0691", "<pad>", "<0x41>"]
_WORDS += ["<loc0123>", "<loc9999>", "<seg001>", "<start_of_turn>", "<unused94>", "<unused1123>"]
texts = st.lists(
    st.sampled_from(_WORDS)
    | st.text(st.characters(codec="utf-8", exclude_characters="\0▁"), max_size=8),
    max_size=6,
).map("".join)


@given(text=texts)
def test_both_formats_and_carried_locations_give_the_same_ids_and_the_text_back(
    both, text, gemma3, plain
):
    model, description = both
    ids = model.encode(text)
    assert description.encode(text) == ids
    assert description.decode(ids) == model.decode(ids) == text
    assert description.pieces(text) == model.pieces(text)
    text = text.replace("<loc0123>", "")
    for tokenizer in gemma3:
        ids = tokenizer.encode(text)
        assert ids == plain.encode(text)
        assert tokenizer.decode(ids) == text


@given(ids=st.lists(st.integers(0, 2100), max_size=12))
def test_both_formats_read_any_ids_alike(both, ids):
    """But for bytes that are no UTF-8: sentencepiece replaces the wrong ones, tokenizers all."""
    model, description = both
    assume("\ufffd" not in model.decode(ids))
    assert description.decode(ids) == model.decode(ids)


def test_both_formats_agree_on_what_they_hold_and_on_special_pieces_in_a_text(both, gemma3):
    model, description = both
    assert (model.file_name, description.file_name) == ("tokenizer.model", "tokenizer.json")
    assert model.vocab_size == description.vocab_size == 2048
    np.testing.assert_array_equal(model.loc_ids, description.loc_ids)
    assert model.stop_ids == description.stop_ids == (1,)
    assert description.piece_id("7") == model.piece_id("7")
    for tokenizer in (*both, *gemma3):
        ids = tokenizer.encode("<bos>a<eos><pad><unk>")
        assert not {0, 1, 2, 3} & set(ids)
        assert tokenizer.decode([2, *ids, 1, 0, 3]) == "<bos>a<eos><pad><unk>"


def test_ids_of_a_json_are_those_of_transformers_whatever_training_left(both, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(both[1].model)
    reference = PreTrainedTokenizerFast(tokenizer_file=str(path))
    text = "Where is the <loc0500>?\n  Tràn dịch 2024"
    assert load_tokenizer(path).encode(text) == reference.encode(text, add_special_tokens=False)
    description = json.loads(both[1].model)
    description |= json.loads(Path(__file__).with_name("left_by_training.json").read_text())
    question = "Where is the right lung located?"
    changed = Tokenizer(json.dumps(description).encode())
    assert changed.encode(question) == both[0].encode(question)


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
        ours = tokenizer.encode(
            CHAT_FORMS["medgemma"].user + CHAT_FORMS["medgemma"].question(said[2], [said[:2]])
        )
        assert [tokenizer.bos_id, *ours] == expected


def test_locations_are_carried_by_unused_pieces_where_presets_expect_them(gemma3):
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
    starts = {
        name: preset.loc_token_start
        for name, preset in PRESETS.items()
        if name.startswith(("gemma3", "medgemma"))
    }
    assert starts and set(starts.values()) == {GEMMA3_LOC_START}


@pytest.fixture(scope="module")
def plain(gemma3_model) -> sentencepiece.SentencePieceProcessor:
    """The model without location tokens."""
    return sentencepiece.SentencePieceProcessor(model_proto=gemma3_model)


@given(texts, texts, st.integers(0, 1023))
def test_a_location_parts_the_text_around_it(gemma3, before, after, bin_index):
    for tokenizer in gemma3:
        ids = tokenizer.encode(before + LOC_PIECES[bin_index] + after)
        around = tokenizer.encode(before), tokenizer.encode(after)
        assert ids == [*around[0], tokenizer.loc_ids[bin_index], *around[1]]


def test_too_few_locations_and_other_special_ids_in_a_json_are_refused(gemma3_json):
    description = gemma3_json.replace(b"<unused500>", b"<taken>")
    with pytest.raises(UserError, match=r"few\.json: <loc0401> is \d+ ids, expected one"):
        Tokenizer(description, "few.json")
    description = gemma3_json.replace(b"<bos>", b"<s>")
    with pytest.raises(UserError, match=r"ids \(0, 1, None, 3\), expected 0, 1, 2, 3"):
        Tokenizer(description)


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


_SLOW_SPLIT = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated"}
_SLOW_SPLIT["invert"] = False
_LONG_PREPEND = {"type": "Prepend", "prepend": "a" * 2000}
_LONG_DECODER = {"type": "Sequence", "decoders": [{"type": "Fuse"}] * 101}


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
        (lambda d: d.update(pre_tokenizer={"type": "Whitespace"}), "pre_tokenizer has 'White"),
        (lambda d: d.update(pre_tokenizer=_SLOW_SPLIT), "pre_tokenizer has a regular expression"),
        (lambda d: d.update(normalizer=_LONG_PREPEND), "normalizer has a text of 2,000"),
        (lambda d: d.update(decoder=_LONG_DECODER), "decoder has 101 steps"),
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
@given(text=texts)
def test_the_real_tokenizer_gives_the_text_back(real, text):
    assert real.decode(real.encode(text)) == text
