"""Training of a small SentencePiece tokenizer with the special pieces of PaliGemma."""

import io
import string
from collections.abc import Iterable

import sentencepiece

from cxrjax.errors import UserError
from cxrjax.input_pipeline.tokenizer import (
    BOS_ID,
    EOS_ID,
    LOC_PIECES,
    PAD_ID,
    SEG_PIECES,
    UNK_ID,
)

VOCAB_SIZE = 2048
# Single characters of English stay single pieces instead of a byte each or a missing one.
_CHARACTERS = string.ascii_letters + string.digits + string.punctuation


def train_tokenizer(corpus: Iterable[str]) -> bytes:
    """A serialised SentencePiece model (BPE) of 2,048 pieces, PaliGemma's special ones among them.

    Text comes back from its ids unchanged: nothing is normalised, digits stand alone, unknown
    characters are spelled in bytes.

    Raises:
        UserError: the corpus is too small for so many pieces.
    """
    model = io.BytesIO()
    try:
        # Read from an iterator and written to memory: a path would end up inside the model.
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus),
            model_writer=model,
            model_type="bpe",
            vocab_size=VOCAB_SIZE,
            pad_id=PAD_ID,
            eos_id=EOS_ID,
            bos_id=BOS_ID,
            unk_id=UNK_ID,
            pad_piece="<pad>",
            eos_piece="<eos>",
            bos_piece="<bos>",
            unk_piece="<unk>",
            user_defined_symbols=[*LOC_PIECES, *SEG_PIECES, "\n"],
            required_chars=_CHARACTERS,
            byte_fallback=True,
            split_digits=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            character_coverage=1.0,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise UserError(
            f"tokenizer: SentencePiece finds no {VOCAB_SIZE} pieces in this corpus ({error}); "
            "give it more text"
        ) from None
    return model.getvalue()
