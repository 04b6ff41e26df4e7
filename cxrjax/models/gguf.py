"""Reads a Gemma 3 GGUF file: configuration, weights and tokenizer.

GGUF is llama.cpp's format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). A file for
Gemma 3 holds the text decoder only and calls its tensors `blk.0.attn_q.weight` and so on; here they
come out under their Hugging Face names and in Hugging Face's convention, dequantised, so that one
importer serves both. What differs from the file:

- Norm weights: the file stores 1 + w, Hugging Face stores w.
- Shapes: GGUF counts dimensions from the fastest; arrays here are (out, in) as in PyTorch.

Dequantising needs the package `gguf` (`pip install cxrjax[gguf]`); the header is read by
`cxrjax.untrusted.weights`.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sentencepiece import sentencepiece_model_pb2

from cxrjax.errors import UserError, optional
from cxrjax.family_tables import family_tables
from cxrjax.files import reading
from cxrjax.input_pipeline.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer
from cxrjax.models.families.family import MOST_LAYERS
from cxrjax.models.hf_layout import canonical_name
from cxrjax.paths import local_copy, to_path
from cxrjax.untrusted.names import shown, shown_value
from cxrjax.untrusted.weights import read_gguf_header

ARCHITECTURE = "gemma3"

_SPECIAL = 4  # pad, eos, bos, unk
# Five local layers to one global, and the local layers' RoPE base: the file states neither
# (arXiv 2503.19786, sections 2 and 2.1).
_LAYERS_PER_GLOBAL = 6
_ROPE_BASE_LOCAL = 10_000.0
_MOST_NUMBER = 1e12
# Gemma 3 27B alone scales its queries by width / heads and not by the head size
# (https://github.com/google/gemma_pytorch, config.py); the file does not state it.
_LAYERS_OF_27B = 62

_TENSORS: dict[str, str]
_LAYER_TENSORS: dict[str, str]
_TENSORS, _LAYER_TENSORS = (family_tables("gguf")[part] for part in ("model", "layers"))


class GGUFFile:
    """An open Gemma 3 GGUF file. Opening reads the metadata; tensors stay on disk.

    Attributes:
        shapes: of the tensors by canonical name (`hf_layout`).

    Raises:
        UserError: no such file, no GGUF file, one of several parts, cut short or damaged,
            another architecture than Gemma 3, a tensor that it has not, or the package `gguf` is
            not installed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = to_path(path)
        self._package = optional("gguf", "gguf")
        blocks = {int(kind): sizes for kind, sizes in self._package.GGML_QUANT_SIZES.items()}
        with reading(self.path, hint="fetch it again (all parts, joined in order)"):
            self._metadata, self._tensors = read_gguf_header(self.path, blocks)
        parts = self._metadata.get("split.count", 1)
        if type(parts) is not int or parts > 1:
            raise UserError(
                f"{self.path}: part {self._shown('split.no')} (from 0) of "
                f"{self._shown('split.count')} of a split file; join them with llama-gguf-split "
                "--merge first"
            )
        if not self._says("general.architecture", ARCHITECTURE):
            raise UserError(
                f"{self.path}: architecture {self._shown('general.architecture')}, expected "
                f"{ARCHITECTURE!r}; of GGUF files only Gemma 3's text decoder can be imported"
            )
        self._names = {name: self._hf_name(name) for name in self._tensors}
        self.shapes = {
            canonical_name(self._names[name]): tensor.shape
            for name, tensor in self._tensors.items()
        }

    def config(self) -> dict[str, Any]:
        """The content of Hugging Face's `config.json` of this model, with its keys and meanings.

        Raises:
            UserError: the file does not state a size.
        """
        number = self._number
        layers, width = self._count("block_count", MOST_LAYERS), self._count("embedding_length")
        heads, head_dim = self._count("attention.head_count"), self._count("attention.key_length")
        embedding = self._tensors.get("token_embd.weight")
        if embedding is None:
            raise UserError(f"{self.path}: no tensor token_embd.weight; is this a whole model?")
        is_27b = layers == _LAYERS_OF_27B
        return {
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "vocab_size": embedding.shape[0],
            "hidden_size": width,
            "intermediate_size": self._count("feed_forward_length"),
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": self._count("attention.head_count_kv"),
            "head_dim": head_dim,
            "query_pre_attn_scalar": width // heads if is_27b else head_dim,
            "hidden_activation": "gelu_pytorch_tanh",
            # Stored as float32, which has 1e-6 as 9.99999997e-07: back to the shortest decimal.
            "rms_norm_eps": float(str(np.float32(number("attention.layer_norm_rms_epsilon")))),
            "max_position_embeddings": self._count("context_length"),
            "sliding_window": self._count("attention.sliding_window"),
            "layer_types": [
                "sliding_attention" if (layer + 1) % _LAYERS_PER_GLOBAL else "full_attention"
                for layer in range(layers)
            ],
            "rope_theta": float(number("rope.freq_base")),
            "rope_local_base_freq": _ROPE_BASE_LOCAL,
            "rope_scaling": self._rope_scaling(),
            "attention_bias": False,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "tie_word_embeddings": "output.weight" not in self._tensors,
            "pad_token_id": PAD_ID,
            "eos_token_id": EOS_ID,
            "bos_token_id": BOS_ID,
        }

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """(Hugging Face name, float32 array) of every tensor, in the file's order.

        Raises:
            UserError: one in a type that the package cannot dequantise.
        """
        from gguf import quants

        content = np.memmap(local_copy(self.path), mode="r")
        for tensor in self._tensors.values():
            name, kind = self._names[tensor.name], self._package.GGMLQuantizationType(tensor.dtype)
            values, nbytes = self._package.GGML_QUANT_SIZES[kind]
            row = tensor.shape[-1] // values * nbytes
            size = math.prod(tensor.shape[:-1]) * row
            data = content[tensor.start : tensor.start + size].reshape(*tensor.shape[:-1], row)
            try:
                weight = quants.dequantize(data, kind)
            except NotImplementedError:
                raise UserError(
                    f"{self.path}: {tensor.name} is of type {kind.name}, which the "
                    "package gguf cannot dequantise; convert the file to Q8_0, F16 or BF16 first"
                ) from None
            # Float types come out as views of the file; own memory for everyone.
            weight = np.array(weight, np.float32)
            if name.endswith("norm.weight"):
                weight -= 1
            yield name, weight

    def tokenizer(self) -> Tokenizer:
        """The file's tokenizer: the SentencePiece model it was made from, put together again.

        Raises:
            UserError: the file has none, or one of another kind.
        """
        pieces = self._metadata.get("tokenizer.ggml.tokens")
        scores = self._metadata.get("tokenizer.ggml.scores")
        types = self._metadata.get("tokenizer.ggml.token_type")
        if (
            not self._says("tokenizer.ggml.model", "llama")
            or not isinstance(pieces, list)
            or not (isinstance(scores, np.ndarray) and np.isfinite(scores).all())
            or not isinstance(types, np.ndarray)
            or not _SPECIAL < len(pieces) == len(scores) == len(types)
        ):
            raise UserError(
                f"{self.path}: tokenizer of kind {self._shown('tokenizer.ggml.model')}, expected "
                "'llama' (SentencePiece) with as many tokens, scores and types; pass Gemma 3's "
                "tokenizer.json instead"
            )
        model = _sentencepiece_model(pieces, scores.tolist(), types.tolist())
        return Tokenizer(model, f"{self.path} (tokenizer)")

    def _hf_name(self, name: str) -> str:
        stem, _, kind = name.rpartition(".")
        layer = re.fullmatch(r"blk\.([0-9]{1,4})\.(\w+)", stem)
        found = None
        if layer is None:
            found = _TENSORS.get(stem)
        elif layer[2] in _LAYER_TENSORS:
            found = f"model.layers.{int(layer[1])}.{_LAYER_TENSORS[layer[2]]}"
        if found is None or kind != "weight":
            raise UserError(
                f"{self.path}: tensor {shown(name)} is not one of Gemma 3's; expected one such as "
                "blk.0.attn_q.weight"
            )
        return f"{found}.weight"

    def _rope_scaling(self) -> dict[str, Any] | None:
        key = f"{ARCHITECTURE}.rope.scaling.type"
        kind = self._metadata.get(key)
        if kind is None or self._says(key, "none"):
            return None
        return {"rope_type": kind, "factor": float(self._number("rope.scaling.factor"))}

    def _count(self, key: str, most: int = 2**40) -> int:
        count = self._number(key)
        if type(count) is not int or not 1 <= count <= most:
            raise UserError(
                f"{self.path}: {ARCHITECTURE}.{key} is {count!r}, expected a whole number from 1 "
                f"to {most:,}; convert the model again with a current llama.cpp"
            )
        return count

    def _number(self, key: str) -> float:
        value = self._metadata.get(f"{ARCHITECTURE}.{key}")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None or not is_number or not abs(value) < _MOST_NUMBER:  # NaN included
            raise UserError(
                f"{self.path}: {ARCHITECTURE}.{key} is {shown_value(value)}, expected a number; "
                "convert the model again with a current llama.cpp"
            )
        return value

    def _says(self, key: str, text: str) -> bool:
        found = self._metadata.get(key)
        return isinstance(found, str) and found == text

    def _shown(self, key: str) -> str:
        return shown_value(self._metadata.get(key))


def _sentencepiece_model(pieces: list[str], scores: list[float], types: list[int]) -> bytes:
    """The SentencePiece model (BPE) of a GGUF token list.

    The file calls many pieces "control" that are ordinary symbols in Gemma's own model, such as
    `<start_of_turn>`; only the first four are never made of text. It also writes symbols made of
    spaces as spaces where SentencePiece has U+2581.
    """
    # The type checker does not see what protobuf makes when the module is imported.
    proto: Any = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    kinds = proto.SentencePiece
    of_file: dict[int, int] = {1: kinds.NORMAL, 5: kinds.UNUSED, 6: kinds.BYTE}
    of_special = {
        PAD_ID: kinds.CONTROL,
        EOS_ID: kinds.CONTROL,
        BOS_ID: kinds.CONTROL,
        UNK_ID: kinds.UNKNOWN,
    }
    for piece_id, (piece, score, kind) in enumerate(zip(pieces, scores, types, strict=True)):
        proto_kind = of_special.get(piece_id, of_file.get(kind, kinds.USER_DEFINED))
        if proto_kind == kinds.USER_DEFINED:
            piece = piece.replace(" ", "▁")
        proto.pieces.add(piece=piece, score=score, type=proto_kind)
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    trainer.model_type = trainer.BPE
    trainer.vocab_size = len(pieces)
    trainer.byte_fallback = True
    trainer.pad_id, trainer.eos_id, trainer.bos_id, trainer.unk_id = PAD_ID, EOS_ID, BOS_ID, UNK_ID
    trainer.pad_piece, trainer.eos_piece, trainer.bos_piece, trainer.unk_piece = pieces[:4]
    normalizer.name = "identity"
    normalizer.add_dummy_prefix = False
    normalizer.remove_extra_whitespaces = False
    normalizer.escape_whitespaces = True
    return proto.SerializeToString()
