"""SentencePiece with the location tokens of PaliGemma.

PaliGemma's vocabulary has 1,024 pieces `<loc0000>`..`<loc1023>` for coordinates and 128
`<seg000>`..`<seg127>` for masks (arXiv 2407.07726). A tokenizer that splits `<loc0123>` into
characters trains without complaint and never localises, so every one of them is checked at load.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import sentencepiece
from jaxtyping import Int32

from cxrjax.errors import UserError

NUM_LOC = 1024
NUM_SEG = 128
LOC_PIECES = tuple(f"<loc{bin_index:04d}>" for bin_index in range(NUM_LOC))
SEG_PIECES = tuple(f"<seg{index:03d}>" for index in range(NUM_SEG))
PAD_ID, EOS_ID, BOS_ID, UNK_ID = 0, 1, 2, 3


class Tokenizer:
    """Text to ids and back, without `<bos>` and `<eos>`: the example puts those in.

    Can be pickled (worker processes are given one).

    Args:
        model: a serialised SentencePiece model.
        name: what error messages call it, usually its path.

    Raises:
        UserError: not a SentencePiece model, or one without PaliGemma's special ids or with a
            `<locNNNN>` that is not exactly one id, or whose `<loc>` ids have gaps.
    """

    pad_id, eos_id, bos_id, unk_id = PAD_ID, EOS_ID, BOS_ID, UNK_ID

    def __init__(self, model: bytes, name: str = "tokenizer") -> None:
        self._model = model
        self.name = name
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise UserError(
                f"{name}: not a SentencePiece model ({error}); expected the tokenizer.model file "
                "of a PaliGemma checkpoint or of cxrjax.input_pipeline.tokenizer_training"
            ) from None
        self._check_special_ids()
        self.loc_ids = self._check_loc_pieces()

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[bytes, str]]:
        return Tokenizer, (self._model, self.name)

    @property
    def vocab_size(self) -> int:
        """Number of pieces; every id is below it."""
        return self._processor.vocab_size()

    def encode(self, text: str) -> list[int]:
        """Ids of the text alone."""
        return self._processor.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; `<pad>`, `<bos>` and `<eos>` say nothing."""
        return self._processor.decode([int(i) for i in ids])

    def pieces(self, text: str) -> list[str]:
        """The pieces the text is split into, for people to read."""
        return self._processor.encode(text, out_type=str)

    def _check_special_ids(self) -> None:
        found = (
            self._processor.pad_id(),
            self._processor.eos_id(),
            self._processor.bos_id(),
            self._processor.unk_id(),
        )
        if found != (PAD_ID, EOS_ID, BOS_ID, UNK_ID):
            raise UserError(
                f"{self.name}: pad, eos, bos, unk have ids {found}, expected 0, 1, 2, 3 as in "
                "PaliGemma; use a tokenizer of that family"
            )

    def _check_loc_pieces(self) -> Int32[np.ndarray, "1024"]:
        ids = self._processor.piece_to_id(list(LOC_PIECES))
        # Looked up and encoded: a piece may be in the vocabulary and yet lose to shorter ones.
        split = next(
            (
                piece
                for piece, piece_id in zip(LOC_PIECES, ids, strict=True)
                if piece_id == UNK_ID or self.encode(piece) != [piece_id]
            ),
            None,
        )
        if split is not None:
            raise UserError(
                f"{self.name}: {split} is {len(self.encode(split))} ids, expected one; boxes need "
                "a tokenizer with the 1,024 <loc> pieces, such as PaliGemma's or one made by "
                "cxrjax.input_pipeline.tokenizer_training"
            )
        loc_ids = np.asarray(ids, np.int32)
        if not np.array_equal(loc_ids, loc_ids[0] + np.arange(NUM_LOC)):
            raise UserError(f"{self.name}: ids of <loc0000>..<loc1023> are not contiguous")
        return loc_ids


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in a `tokenizer.model` file.

    Raises:
        UserError: no such file, or not a tokenizer with location tokens.
    """
    try:
        model = Path(path).read_bytes()
    except OSError as error:
        raise UserError(
            f"{path}: cannot read tokenizer: {error.strerror}; expected a SentencePiece "
            "tokenizer.model"
        ) from None
    return Tokenizer(model, str(path))
