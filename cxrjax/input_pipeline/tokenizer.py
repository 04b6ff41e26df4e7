"""Text to ids and back, with 1,024 location tokens.

Two file formats give the same ids for the same text: `tokenizer.model` (SentencePiece) and
`tokenizer.json` (Hugging Face), of the Gemma family: pad, eos, bos, unk are ids 0 to 3, nothing is
put before the text, spaces are kept, unknown characters are spelled in bytes.

Llama's and Mistral's, which LLaVA has, are read too: unk, bos (`<s>`) and eos (`</s>`) are 0 to 2,
a space is put before every text, and there are no location tokens: with them boxes are written in
digits.

Qwen's is byte-level BPE and comes as `tokenizer.json` alone: `<|endoftext|>` is its padding and its
beginning, `<|im_end|>` ends a turn, every digit is a token, and there are no location tokens.

PaliGemma's vocabulary has 1,024 pieces `<loc0000>`..`<loc1023>` for coordinates and 128
`<seg000>`..`<seg127>` for masks (arXiv 2407.07726). A tokenizer that splits `<loc0123>` into
characters trains without complaint and never localises, so every one of them is checked at load.

Gemma 3 has none, and 6,242 unused pieces instead, of which `<unused99>`..`<unused6241>` are one run
of ids behind its ordinary ones. The first 1,024 of the run, `<unused99>`..`<unused1122>`, carry the
location tokens here: in both formats these pieces are renamed at load, which leaves the ids of
every other text as they were. They are ids 256,001..257,024, for which every size of Gemma 3 has
rows, and next to the pieces that others have taken from the front: MedGemma spells its thinking
with `<unused94>` and `<unused95>`. Gemma 4, whose turns end with `<turn|>`, is left without: it
writes boxes in digits.
"""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int32

from cxrjax.errors import ForeignError, UserError, first_line
from cxrjax.family_tables import family_tables
from cxrjax.files import reading
from cxrjax.paths import to_path
from cxrjax.untrusted.foreign_files import MIB, read_bytes
from cxrjax.untrusted.json_text import parse_object
from cxrjax.untrusted.names import shown_value

NUM_LOC = 1024
NUM_SEG = 128
LOC_PIECES = tuple(f"<loc{bin_index:04d}>" for bin_index in range(NUM_LOC))
SEG_PIECES = tuple(f"<seg{index:03d}>" for index in range(NUM_SEG))
PAD_ID, EOS_ID, BOS_ID, UNK_ID = 0, 1, 2, 3
_SPECIAL_IDS = (PAD_ID, EOS_ID, BOS_ID, UNK_ID)
_SPECIAL_PIECES = ("<pad>", "<eos>", "<bos>", "<unk>")
# Of Llama's family; what stands for padding is masked, and so need not be there.
_LLAMA_IDS = (0, 2, 1, 0)
_LLAMA_PIECES = ("<pad>", "</s>", "<s>", "<unk>")

# Where `<loc0000>` is in Gemma 3, and the pieces that stand there (see above).
GEMMA3_LOC_START = 256_001
LOC_CARRIERS = tuple(f"<unused{99 + bin_index}>" for bin_index in range(NUM_LOC))
_RENAMED = dict(zip(LOC_CARRIERS, LOC_PIECES, strict=True))

# Of Qwen's family.
END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# The one regular expression that a file may have: how GPT-4's family and Qwen cut texts into words.
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Which two families' vocabularies are known by.
END_OF_TURN, TURN_END = "<end_of_turn>", "<turn|>"
IMAGE_SOFT_TOKEN = "<image_soft_token>"
MODEL_FILE, JSON_FILE = "tokenizer.model", "tokenizer.json"

# The largest, Gemma 3's tokenizer.json, has 32 MiB, 262,144 pieces and half a million merges.
_MOST_BYTES = 40 * MIB
_MOST_LISTS = 2**20
_MOST_PIECES, _MOST_ADDED, _LONGEST_PIECE = 2**20, 2**16, 1_000
# What normalizers, pre-tokenizers and decoders are made of; the last two are of Qwen's.
_STEPS = (
    *("Sequence", "Replace", "Prepend", "Split", "Metaspace", "ByteFallback", "Fuse", "Strip"),
    *("ByteLevel", "NFC", "Digits"),
)
_MOST_STEPS = 100

# Embeddings are padded to a multiple of 64, 128 or more rows (Gemma 3 4B: 262,145 entries, 262,208
# rows). From here on it is the embedding of another tokenizer.
_MAX_PADDING_ROWS = 1024


@runtime_checkable
class _Format(Protocol):
    """The common part of the two file formats. Ids given to `decode` are ordinary pieces."""

    vocab_size: int

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...

    def id_of(self, piece: str) -> int | None: ...

    def piece_of(self, piece_id: int) -> str: ...

    def special_ids(self) -> tuple[int | None, ...]:
        """Ids of pad, eos, bos and unk."""


class _SentencePieceFormat:
    def __init__(self, model: bytes, name: str) -> None:
        # Here, since who reads no text, as a training step does, may be without it.
        import sentencepiece
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2

        # The type checker does not see what protobuf makes when the module is imported.
        proto_class: Any = sentencepiece_model_pb2.ModelProto  # type: ignore[attr-defined]
        try:
            proto = proto_class.FromString(model)
            _check_sentencepiece(proto)
            # The library is handed what was looked at, and nothing besides.
            proto.DiscardUnknownFields()
            self._processor = sentencepiece.SentencePieceProcessor(
                model_proto=proto.SerializeToString()
            )
        except (DecodeError, RuntimeError, ValueError) as error:
            raise UserError(
                f"{name}: not a SentencePiece model ({first_line(error)[:300]}); expected the "
                "tokenizer.model file of a checkpoint of the Gemma family or of "
                "bench/tokenizer_training.py"
            ) from None
        self.vocab_size = self._processor.vocab_size()

    def encode(self, text: str) -> list[int]:
        return self._processor.encode(text)

    def decode(self, ids: list[int]) -> str:
        return self._processor.decode(ids)

    def id_of(self, piece: str) -> int | None:
        found = self._processor.piece_to_id(piece)
        known = 0 <= found < self.vocab_size  # a damaged model's id for unknown pieces may not be
        return found if known and self._processor.id_to_piece(found) == piece else None

    def piece_of(self, piece_id: int) -> str:
        return self._processor.id_to_piece(piece_id)

    def special_ids(self) -> tuple[int | None, ...]:
        processor = self._processor
        if processor.pad_id() < 0 and processor.unk_id() == 0:  # no padding: Llama's
            return None, processor.eos_id(), processor.bos_id(), processor.unk_id()
        return processor.pad_id(), processor.eos_id(), processor.bos_id(), processor.unk_id()


def _check_sentencepiece(proto: Any) -> None:
    """Refuses what the library, in C++, would trust, and lets unused pieces carry locations.

    Raises:
        ForeignError: not of the Gemma family: another algorithm, a table of characters, or pieces
            that are none.
    """
    trainer = proto.trainer_spec
    if trainer.model_type not in (trainer.BPE, trainer.UNIGRAM):
        raise ForeignError(f"model_type {trainer.model_type}, expected BPE or unigram")
    # A compiled table, in which the library jumps to wherever its numbers say.
    if proto.normalizer_spec.precompiled_charsmap or proto.denormalizer_spec.precompiled_charsmap:
        raise ForeignError("it has a precompiled_charsmap, expected none: Gemma's changes no text")
    if not 0 < len(proto.pieces) <= _MOST_PIECES:
        raise ForeignError(f"{len(proto.pieces):,} pieces, expected 1 to {_MOST_PIECES:,}")
    pieces = [piece.piece for piece in proto.pieces]
    texts = [value for field, value in trainer.ListFields() if field.type == field.TYPE_STRING]
    texts += [each for value in texts if not isinstance(value, str | bytes) for each in value]
    # What is not UTF-8 comes as bytes.
    if any(isinstance(text, bytes) for text in (*pieces, *texts)):
        raise ForeignError("a piece is not UTF-8")
    if not all(map(math.isfinite, (piece.score for piece in proto.pieces))):
        raise ForeignError("the score of a piece is not a number")
    if max(map(len, pieces)) > _LONGEST_PIECE:
        raise ForeignError(f"a piece has more than {_LONGEST_PIECE} characters")
    if LOC_PIECES[0] not in pieces and LOC_CARRIERS[0] in pieces:
        for piece in proto.pieces:
            if piece.piece in _RENAMED:
                piece.piece = _RENAMED[piece.piece]
                piece.type = piece.USER_DEFINED


class _JsonFormat:
    """Read with `tokenizers`, which is what transformers reads the file with."""

    def __init__(self, model: bytes, name: str) -> None:
        # Here, since most runs have a tokenizer.model and need not wait for it.
        import tokenizers

        try:
            # Each takes some 200 bytes once it is read.
            if model.count(b"[") + model.count(b"{") > _MOST_LISTS:
                raise ForeignError(f"more than {_MOST_LISTS:,} lists and objects")
            description = parse_object(model, _MOST_BYTES)
            self._check(description)
            self._rewrite(description)
            text = json.dumps(description)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = f" ({error})" if isinstance(error, ForeignError) else ""
            raise UserError(
                f"{name}: not a tokenizer{why}; expected a Hugging Face tokenizer.json"
            ) from None
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
        # The library raises nothing more specific; its panics are no `Exception`.
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise UserError(
                f"{name}: not a tokenizer that tokenizers {tokenizers.__version__} reads "
                f"({first_line(error)[:300]}); expected a Hugging Face tokenizer.json"
            ) from None
        # As in SentencePiece, `<eos>` within a text is five characters, not the end.
        self._tokenizer.encode_special_tokens = True
        self._is_of_bytes = self.id_of(IM_START) is not None
        # Ids may have holes: counting the pieces would put the highest out of range.
        self.vocab_size = 1 + max(self._tokenizer.get_vocab().values(), default=-1)

    @staticmethod
    def _check(description: dict[str, Any]) -> None:
        """Refuses what Gemma's have not: chance, programs (regular expressions), no bounds.

        Raises:
            ForeignError: says what.
            KeyError, TypeError, AttributeError: a part is missing, or something else.
        """
        model, added = description["model"], description["added_tokens"]
        if model.get("type") not in (None, "BPE") or model.get("dropout"):
            raise ForeignError("expected a model of type BPE, without dropout")
        for key in ("continuing_subword_prefix", "end_of_word_suffix"):
            if model.get(key):
                raise ForeignError(f"{key} is {shown_value(model[key])}, expected none")
        if len(model["vocab"]) > _MOST_PIECES or len(added) > _MOST_ADDED:
            raise ForeignError(
                f"{len(model['vocab']):,} pieces and {len(added):,} added ones, at most "
                f"{_MOST_PIECES:,} and {_MOST_ADDED:,}"
            )
        texts = [*model["vocab"], *(token["content"] for token in added)]
        numbers = [*model["vocab"].values(), *(token.get("id") for token in added)]
        if not all(type(n) is int and 0 <= n < 4 * _MOST_PIECES for n in numbers):
            raise ForeignError("an id that is none")
        if max(map(len, texts), default=0) > _LONGEST_PIECE:
            raise ForeignError(f"a piece has more than {_LONGEST_PIECE} characters")
        for part in ("normalizer", "pre_tokenizer", "decoder"):
            _check_component(description.get(part), part)

    @staticmethod
    def _rewrite(description: dict[str, Any]) -> None:
        """Brings a parsed file to our conventions, in place."""
        vocab, added = description["model"]["vocab"], description["added_tokens"]
        # What a fine-tuning run had set when it saved its tokenizer.
        description["truncation"] = description["padding"] = None
        description["post_processor"] = None
        contents = {token["content"] for token in added} | set(vocab)
        carries = LOC_PIECES[0] not in contents and LOC_CARRIERS[0] in contents
        if carries and TURN_END not in contents:  # Gemma 4 writes boxes in digits
            description["model"]["vocab"] = {
                _RENAMED.get(piece, piece): piece_id for piece, piece_id in vocab.items()
            }
            for token in added:
                token["content"] = _RENAMED.get(token["content"], token["content"])
        bos = description["model"]["vocab"].get(_LLAMA_PIECES[2])
        special: tuple[str, ...] = _LLAMA_PIECES if bos == _LLAMA_IDS[2] else _SPECIAL_PIECES
        if IM_START in contents:
            special = (END_OF_TEXT,)
        for token in added:
            token["special"] = token["content"] in special

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids)

    def id_of(self, piece: str) -> int | None:
        return self._tokenizer.token_to_id(piece)

    def piece_of(self, piece_id: int) -> str:
        # Qwen's vocabulary spells bytes as letters; people are shown the text.
        if self._is_of_bytes:
            return self._tokenizer.decode([piece_id], skip_special_tokens=False)
        return self._tokenizer.id_to_token(piece_id) or ""

    def special_ids(self) -> tuple[int | None, ...]:
        if self.id_of(IM_START) is not None:
            return tuple(map(self.id_of, (END_OF_TEXT, IM_END, END_OF_TEXT, END_OF_TEXT)))
        # Gemma has `<s>` too, a tag of HTML, with another id.
        if self.id_of(_LLAMA_PIECES[2]) == _LLAMA_IDS[2]:
            return None, *map(self.id_of, _LLAMA_PIECES[1:])
        return tuple(map(self.id_of, _SPECIAL_PIECES))


def _check_component(part: Any, where: str) -> None:
    """Refuses steps that no tokenizer of these families has.

    Raises:
        ForeignError: another type, a regular expression, or a long text.
    """
    if isinstance(part, str) and len(part) > _LONGEST_PIECE:
        raise ForeignError(f"{where} has a text of {len(part):,} characters")
    if isinstance(part, list):
        for each in part:
            _check_component(each, where)
    if not isinstance(part, dict):
        return
    is_program = "Regex" in part and part["Regex"] != _QWEN_WORDS
    if is_program or part.get("type", "Replace") not in _STEPS:
        found = "a regular expression" if is_program else shown_value(part["type"])
        raise ForeignError(f"{where} has {found}, expected {', '.join(_STEPS)}, and plain texts")
    for each in part.values():
        if isinstance(each, list) and len(each) > _MOST_STEPS:
            raise ForeignError(f"{where} has {len(each):,} steps")
        _check_component(each, where)


class Tokenizer:
    """Text to ids and back, without `<bos>` and `<eos>`: the example puts those in.

    Can be pickled (worker processes are given one).

    Args:
        model: contents of a `tokenizer.model` or a `tokenizer.json`, told apart by content.
        name: what error messages call it, usually its path.

    Attributes:
        name, model: as above, unchanged.
        pad_id, eos_id, bos_id, unk_id: of its family.
        loc_ids: ids of `<loc0000>`..`<loc1023>`, one run; of Llama's and Qwen's families and of
            Gemma 4's none.
        stop_ids: what ends an answer: `<eos>`, and `<end_of_turn>` or `<turn|>` where there is one;
            of Qwen's family `<|im_end|>` and `<|endoftext|>`.

    Raises:
        UserError: not a tokenizer, or one without the special ids of one of these families or
            with a `<locNNNN>` that is not exactly one id, or whose `<loc>` ids have gaps.
    """

    def __init__(self, model: bytes, name: str = "tokenizer") -> None:
        self.model = model
        self.name = name
        # A SentencePiece model starts with the tag of its first field, a line feed.
        self._format: _Format
        if self.file_name == JSON_FILE:
            self._format = _JsonFormat(model, name)
        else:
            self._format = _SentencePieceFormat(model, name)
        ids = self._check_special_ids()
        self.is_llama, self.is_qwen = ids == _LLAMA_IDS, ids not in (_LLAMA_IDS, _SPECIAL_IDS)
        self.pad_id, self.eos_id, self.bos_id, self.unk_id = ids
        needs_loc = not (self.is_llama or self.is_qwen) and self._format.id_of(TURN_END) is None
        has_loc = needs_loc or self._format.id_of(LOC_PIECES[0]) is not None
        self.loc_ids = self._check_loc_pieces() if has_loc else np.zeros(0, np.int32)
        ends = {form.get("end") for form in family_tables("chat").values()} - {None, ""}
        turn_ends = sorted(end for piece in ends if (end := self._format.id_of(piece)) is not None)
        first = (self.eos_id, self.pad_id) if self.is_qwen else (self.eos_id,)
        self.stop_ids = (*first, *(end for end in turn_ends if end not in first))
        self._silent = {*ids, self._format.id_of(_SPECIAL_PIECES[0])}

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[bytes, str]]:
        return Tokenizer, (self.model, self.name)

    @property
    def file_name(self) -> str:
        """The name of a file with these contents: `tokenizer.model` or `tokenizer.json`."""
        return JSON_FILE if self.model.lstrip()[:1] == b"{" else MODEL_FILE

    @property
    def vocab_size(self) -> int:
        """Number of pieces; every id is below it."""
        return self._format.vocab_size

    def encode(self, text: str) -> list[int]:
        """Ids of the text alone. `<eos>` and its like within the text are spelled out."""
        return self._format.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids.

        `<pad>`, `<bos>`, `<eos>` and `<unk>` say nothing, nor do the padding rows that some
        embeddings have beyond the vocabulary.
        """
        said = [i for i in map(int, ids) if i not in self._silent and i < self.vocab_size]
        return self._format.decode(said)

    @property
    def loc_token_start(self) -> int:
        """The id of `<loc0000>`; -1: there are no location tokens."""
        return int(self.loc_ids[0]) if len(self.loc_ids) else -1

    def pieces(self, text: str) -> list[str]:
        """The pieces the text is split into, for people to read."""
        return [self.piece_of(piece_id) for piece_id in self.encode(text)]

    def piece_of(self, piece_id: int) -> str:
        """The piece with this id; empty for the padding rows that some embeddings have."""
        return self._format.piece_of(piece_id) if piece_id < self.vocab_size else ""

    def has_piece(self, piece: str) -> bool:
        """Returns whether the vocabulary has this piece."""
        return self._format.id_of(piece) is not None

    def piece_id(self, piece: str) -> int:
        """The id of one piece, such as `<image_soft_token>` or `7`.

        Raises:
            UserError: the vocabulary has no such piece.
        """
        found = self._format.id_of(piece)
        if found is None:
            raise UserError(
                f"{self.name}: no piece {piece!r} among {self.vocab_size}; use the tokenizer of "
                "the model's own family"
            )
        return found

    def _check_special_ids(self) -> tuple[int, int, int, int]:
        """Pad, eos, bos and unk, as they are in one of the families."""
        found = self._format.special_ids()
        if found == (None, *_LLAMA_IDS[1:]):
            return _LLAMA_IDS
        if self._format.id_of(IM_START) is not None and None not in found:
            pad, eos, bos, unk = (int(each) for each in found if each is not None)
            return pad, eos, bos, unk
        if found != _SPECIAL_IDS:
            raise UserError(
                f"{self.name}: pad, eos, bos, unk have ids {found}, expected 0, 1, 2, 3 as in "
                "PaliGemma and Gemma, eos 2, bos 1, unk 0 as in Llama and Mistral, or the pieces "
                f"{END_OF_TEXT}, {IM_START} and {IM_END} of Qwen; use a tokenizer of these families"
            )
        return _SPECIAL_IDS

    def _check_loc_pieces(self) -> Int32[np.ndarray, "1024"]:
        # Looked up and encoded: a piece may be in the vocabulary and yet lose to shorter ones.
        ids = [self._format.id_of(piece) for piece in LOC_PIECES]
        split = next(
            (
                piece
                for piece, piece_id in zip(LOC_PIECES, ids, strict=True)
                if piece_id is None or self.encode(piece) != [piece_id]
            ),
            None,
        )
        if split is not None:
            raise UserError(
                f"{self.name}: {split} is {len(self.encode(split))} ids, expected one; boxes need "
                "a tokenizer with the 1,024 <loc> pieces, such as PaliGemma's or one made by "
                "bench/tokenizer_training.py, or with Gemma 3's "
                f"{LOC_CARRIERS[0]}..{LOC_CARRIERS[-1]} to carry them"
            )
        loc_ids = np.asarray(ids, np.int32)
        if not np.array_equal(loc_ids, loc_ids[0] + np.arange(NUM_LOC)):
            raise UserError(f"{self.name}: ids of <loc0000>..<loc1023> are not contiguous")
        return loc_ids


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in a file, or in a folder such as a Hugging Face checkpoint.

    In a folder, `tokenizer.json` is taken before `tokenizer.model`: pieces that were added after
    SentencePiece's training stand in the former only.

    Raises:
        UserError: no such file, or not a tokenizer with location tokens.
    """
    path = to_path(path)
    if path.is_dir():
        candidates = [path / name for name in (JSON_FILE, MODEL_FILE)]
        found = next((candidate for candidate in candidates if candidate.is_file()), None)
        if found is None:
            raise UserError(f"{path}: no tokenizer; expected {JSON_FILE} or {MODEL_FILE} in it")
        path = found
    with reading(path, "tokenizer", "expected a SentencePiece tokenizer.model or a tokenizer.json"):
        model = read_bytes(path, _MOST_BYTES)
    return Tokenizer(model, str(path))


def check_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Refuses a tokenizer of another model.

    A text-only Gemma 3 shares the tokenizer of those that see and has no row for the last entry,
    `<image_soft_token>`: that entry alone may lie beyond the embedding. Padding rows may follow.

    Args:
        vocab_size: rows of the model's embedding.

    Raises:
        UserError: an id without a row, or 1,024 rows or more without an id.
    """
    needed = tokenizer.vocab_size
    if tokenizer.decode([needed - 1]) == IMAGE_SOFT_TOKEN:
        needed -= 1
    if not needed <= vocab_size < tokenizer.vocab_size + _MAX_PADDING_ROWS:
        raise UserError(
            f"{tokenizer.name}: {tokenizer.vocab_size} pieces, but the model's embedding has "
            f"{vocab_size} rows; use the tokenizer that belongs to the weights"
        )
