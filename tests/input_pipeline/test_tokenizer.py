"""The tokenizer: special ids, location pieces, lossless text, and what it refuses."""

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from cxrjax.errors import UserError
from cxrjax.input_pipeline.tokenizer import (
    LOC_PIECES,
    SEG_PIECES,
    Tokenizer,
    check_vocabulary,
    load_tokenizer,
)
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES
from cxrjax.tools.tokenizer_training import template_corpus, train_tokenizer

MODEL = train_tokenizer(template_corpus())
TOKENIZER = Tokenizer(MODEL)


def train_with(**changes) -> bytes:
    """A small SentencePiece model that differs from ours in what the test says."""
    model = io.BytesIO()
    options = {
        "vocab_size": 1300,
        "pad_id": 0,
        "eos_id": 1,
        "bos_id": 2,
        "unk_id": 3,
        "user_defined_symbols": list(LOC_PIECES),
        "hard_vocab_limit": False,
        "add_dummy_prefix": False,
        "normalization_rule_name": "identity",
        "minloglevel": 2,
    } | changes
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["where is the right lung", "the left lung is here"] * 20),
        model_writer=model,
        **options,
    )
    return model.getvalue()


def test_special_ids_are_those_of_paligemma():
    assert (TOKENIZER.pad_id, TOKENIZER.eos_id, TOKENIZER.bos_id) == (0, 1, 2)
    assert TOKENIZER.vocab_size == 2048
    assert TOKENIZER.decode([2, *TOKENIZER.encode("heart"), 1, 0, 0]) == "heart"


def test_each_location_and_segment_piece_is_one_id():
    ids = [TOKENIZER.encode(piece) for piece in (*LOC_PIECES, *SEG_PIECES)]
    assert all(len(i) == 1 for i in ids)
    flat = np.ravel(ids)
    assert len(set(flat.tolist())) == 1024 + 128
    np.testing.assert_array_equal(flat[:1024], TOKENIZER.loc_ids)
    assert TOKENIZER.loc_ids.dtype == np.int32
    np.testing.assert_array_equal(np.diff(TOKENIZER.loc_ids), 1)


def test_location_pieces_stay_whole_inside_a_sentence():
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


def test_digits_stand_alone_and_the_newline_is_one_piece():
    assert TOKENIZER.pieces("2024\n") == ["2", "0", "2", "4", "\n"]


@pytest.mark.parametrize("name", CLASSES)
def test_class_names_are_short_within_a_sentence(name):
    assert len(TOKENIZER.encode(" " + name)) <= 3


def test_common_words_are_one_piece():
    sentence = "Where is the patient's right lung located?"
    assert len(TOKENIZER.encode(sentence)) <= len(sentence.split()) + 3


def test_training_twice_gives_the_same_bytes():
    assert train_tokenizer(template_corpus()) == MODEL


def test_pickles_into_the_same_tokenizer():
    copy = pickle.loads(pickle.dumps(TOKENIZER))
    assert copy.encode("Where is the <loc0500>?") == TOKENIZER.encode("Where is the <loc0500>?")
    assert copy.name == TOKENIZER.name


def test_tokenizer_without_location_pieces_is_refused():
    with pytest.raises(UserError, match=r"<loc0000> is \d+ ids, expected one"):
        Tokenizer(train_with(user_defined_symbols=[], vocab_size=40), "plain.model")


def test_tokenizer_with_one_piece_missing_is_refused_by_name():
    pieces = [piece for piece in LOC_PIECES if piece != "<loc0700>"]
    with pytest.raises(UserError, match="<loc0700>"):
        Tokenizer(train_with(user_defined_symbols=pieces))


def test_tokenizer_with_gaps_in_the_location_ids_is_refused():
    swapped = [*LOC_PIECES[1::-1], *LOC_PIECES[2:]]
    with pytest.raises(UserError, match="not contiguous"):
        Tokenizer(train_with(user_defined_symbols=swapped))


def test_other_special_ids_are_refused():
    with pytest.raises(UserError, match="expected 0, 1, 2, 3"):
        Tokenizer(train_with(unk_id=0, bos_id=1, eos_id=2, pad_id=3))


def test_what_is_no_model_is_refused_with_its_path(tmp_path):
    path = tmp_path / "tokenizer.model"
    with pytest.raises(UserError, match=f"{path}: cannot read tokenizer"):
        load_tokenizer(path)
    path.write_bytes(b"not a model")
    with pytest.raises(UserError, match=f"{path}: not a SentencePiece model"):
        load_tokenizer(path)


def test_an_embedding_must_have_a_row_for_each_piece_and_few_more():
    for rows in (2048, 2048 + 1023):
        check_vocabulary(TOKENIZER, rows)
    for rows in (2047, 2048 + 1024):
        with pytest.raises(UserError, match=f"tokenizer: 2048 pieces, .* has {rows} rows"):
            check_vocabulary(TOKENIZER, rows)


def test_ids_beyond_the_vocabulary_say_nothing():
    assert TOKENIZER.decode([*TOKENIZER.encode("heart"), 2048, 4000]) == "heart"


def test_a_piece_is_looked_up_by_name():
    assert TOKENIZER.piece_id("7") == TOKENIZER.encode("7")[0]
    assert TOKENIZER.piece_id("<loc0007>") == TOKENIZER.loc_ids[7]
    with pytest.raises(UserError, match="tokenizer: no piece '<image_soft_token>' among 2048"):
        TOKENIZER.piece_id("<image_soft_token>")


def test_corpus_that_is_too_small_is_a_user_error():
    with pytest.raises(UserError, match="more text"):
        train_tokenizer(["one line"])


def test_the_shipped_tokenizer_is_one_of_ours():
    shipped = load_tokenizer(Path(__file__).parents[2] / "data/demo_base/tokenizer.model")
    assert shipped.vocab_size == TOKENIZER.vocab_size
    np.testing.assert_array_equal(shipped.loc_ids, TOKENIZER.loc_ids)
    assert all(len(shipped.encode(" " + name)) <= 3 for name in CLASSES)


def _set_score(proto, value):
    proto.pieces[300].score = value


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
        (lambda p: _set_score(p, float("nan")), "a score that is no number"),
        (lambda p: setattr(p.pieces[300], "piece", "a" * 1001), "more than 1000 characters"),
        (lambda p: p.ClearField("pieces"), "0 pieces"),
    ],
)
def test_a_sentencepiece_model_is_looked_at_before_the_library_sees_it(change, said):
    proto = sentencepiece_model_pb2.ModelProto.FromString(MODEL)
    change(proto)
    with pytest.raises(UserError, match=said):
        Tokenizer(proto.SerializeToString(), "tokenizer.model")


def test_a_piece_that_is_no_text_is_refused():
    content = MODEL.replace(b"filtration", b"fi\x80tration")
    assert content != MODEL
    with pytest.raises(UserError, match="a piece is not UTF-8"):
        Tokenizer(content, "tokenizer.model")


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
