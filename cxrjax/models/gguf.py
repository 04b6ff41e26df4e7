"""Reads a Gemma 3 GGUF file: configuration, weights and tokenizer.

GGUF is llama.cpp's format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). A file for
Gemma 3 holds the text decoder only and calls its tensors `blk.0.attn_q.weight` and so on; here they
come out under their Hugging Face names and in Hugging Face's convention, dequantised, so that one
importer serves both. What differs from the file:

- Norm weights: the file stores 1 + w, Hugging Face stores w.
- Shapes: GGUF counts dimensions from the fastest; arrays here are (out, in) as in PyTorch.

Reading needs the package `gguf` (`pip install cxrjax[gguf]`).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sentencepiece import sentencepiece_model_pb2

from cxrjax.errors import UserError, optional
from cxrjax.input_pipeline.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer

if TYPE_CHECKING:
    from gguf import GGUFReader

ARCHITECTURE = "gemma3"
_MAGIC = b"GGUF"

# Five local layers to one global, and the local layers' RoPE base: the file states neither
# (arXiv 2503.19786, sections 2 and 2.1).
_LAYERS_PER_GLOBAL = 6
_ROPE_BASE_LOCAL = 10_000.0
# Gemma 3 27B alone scales its queries by width / heads and not by the head size
# (https://github.com/google/gemma_pytorch, config.py); the file does not state it.
_LAYERS_OF_27B = 62

_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}


class GGUFFile:
    """An open Gemma 3 GGUF file. Opening reads the metadata; tensors stay on disk.

    Opening takes seconds: the tokenizer's 262,144 entries are read one by one.

    Raises:
        UserError: no such file, no GGUF file, one of several parts, cut short, another
            architecture than Gemma 3, or the package `gguf` is not installed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._reader = _open(self.path)
        parts = self._optional("split.count") or 1
        if parts > 1:
            raise UserError(
                f"{self.path}: part {self._optional('split.no', 0) + 1} of {parts} of a split "
                "file; join them with llama-gguf-split --merge first"
            )
        architecture = self._optional("general.architecture")
        if architecture != ARCHITECTURE:
            raise UserError(
                f"{self.path}: architecture {architecture!r}, expected {ARCHITECTURE!r}; of GGUF "
                "files only Gemma 3's text decoder can be imported"
            )
        size = self.path.stat().st_size
        for tensor in self._reader.tensors:
            if tensor.data_offset + tensor.n_bytes > size:
                raise _cut_short(self.path)

    def config(self) -> dict[str, Any]:
        """The content of Hugging Face's `config.json` of this model, with its keys and meanings.

        Raises:
            UserError: the file does not state a size.
        """
        number = self._number
        layers, width = int(number("block_count")), int(number("embedding_length"))
        heads, head_dim = int(number("attention.head_count")), int(number("attention.key_length"))
        embedding = next((t for t in self._reader.tensors if t.name == "token_embd.weight"), None)
        if embedding is None:
            raise UserError(f"{self.path}: no tensor token_embd.weight; is this a whole model?")
        names = {tensor.name for tensor in self._reader.tensors}
        is_27b = layers == _LAYERS_OF_27B
        return {
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "vocab_size": int(embedding.shape[1]),
            "hidden_size": width,
            "intermediate_size": int(number("feed_forward_length")),
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": int(number("attention.head_count_kv")),
            "head_dim": head_dim,
            "query_pre_attn_scalar": width // heads if is_27b else head_dim,
            "hidden_activation": "gelu_pytorch_tanh",
            # Stored as float32, which has 1e-6 as 9.99999997e-07: back to the shortest decimal.
            "rms_norm_eps": float(str(np.float32(number("attention.layer_norm_rms_epsilon")))),
            "max_position_embeddings": int(number("context_length")),
            "sliding_window": int(number("attention.sliding_window")),
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
            "tie_word_embeddings": "output.weight" not in names,
            "pad_token_id": PAD_ID,
            "eos_token_id": EOS_ID,
            "bos_token_id": BOS_ID,
        }

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """(Hugging Face name, float32 array) of every tensor, in the file's order.

        Raises:
            UserError: a tensor that Gemma 3 has not, or one in a type that the package cannot
                dequantise.
        """
        from gguf import quants

        for tensor in self._reader.tensors:
            name = self._hf_name(tensor.name)
            try:
                weight = quants.dequantize(tensor.data, tensor.tensor_type)
            except NotImplementedError:
                raise UserError(
                    f"{self.path}: {tensor.name} is of type {tensor.tensor_type.name}, which the "
                    "package gguf cannot dequantise; convert the file to Q8_0, F16 or BF16 first"
                ) from None
            # The reader's float types come out as views of the file; own memory for everyone.
            weight = np.array(weight, np.float32).reshape([int(n) for n in tensor.shape[::-1]])
            if name.endswith("norm.weight"):
                weight -= 1
            yield name, weight

    def tokenizer(self) -> Tokenizer:
        """The file's tokenizer: the SentencePiece model it was made from, put together again.

        Raises:
            UserError: the file has none, or one of another kind.
        """
        kind = self._optional("tokenizer.ggml.model")
        pieces = self._optional("tokenizer.ggml.tokens")
        scores = self._optional("tokenizer.ggml.scores")
        types = self._optional("tokenizer.ggml.token_type")
        if kind != "llama" or pieces is None or scores is None or types is None:
            raise UserError(
                f"{self.path}: tokenizer of kind {kind!r}, expected 'llama' (SentencePiece) with "
                "tokens, scores and types; pass Gemma 3's tokenizer.json instead"
            )
        model = _sentencepiece_model(pieces, scores, types)
        return Tokenizer(model, f"{self.path} (tokenizer)")

    def _hf_name(self, name: str) -> str:
        stem, _, kind = name.rpartition(".")
        layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
        found = None
        if layer is None:
            found = _TENSORS.get(stem)
        elif layer[2] in _LAYER_TENSORS:
            found = f"model.layers.{int(layer[1])}.{_LAYER_TENSORS[layer[2]]}"
        if found is None or kind != "weight":
            raise UserError(
                f"{self.path}: tensor {name!r} is none of Gemma 3's; expected such as "
                "blk.0.attn_q.weight"
            )
        return f"{found}.weight"

    def _rope_scaling(self) -> dict[str, Any] | None:
        kind = self._optional(f"{ARCHITECTURE}.rope.scaling.type")
        if kind in (None, "none"):
            return None
        return {"rope_type": kind, "factor": float(self._number("rope.scaling.factor"))}

    def _optional(self, key: str, default: Any = None) -> Any:
        field = self._reader.get_field(key)
        try:
            return default if field is None else field.contents()
        except UnicodeDecodeError:
            raise _cut_short(self.path) from None

    def _number(self, key: str) -> float:
        value = self._optional(f"{ARCHITECTURE}.{key}")
        if not isinstance(value, int | float):
            raise UserError(
                f"{self.path}: {ARCHITECTURE}.{key} is {value!r}, expected a number; convert the "
                "model again with a current llama.cpp"
            )
        return value


def _open(path: Path) -> "GGUFReader":
    reader = optional("gguf", "gguf").GGUFReader
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}; expected a GGUF file") from None
    if magic != _MAGIC:
        raise UserError(f"{path}: starts with {magic!r}, expected {_MAGIC!r}; not a GGUF file")
    try:
        return reader(path)
    # What indexing and viewing bytes that are not there raises, in numpy and in the package.
    except (IndexError, KeyError, ValueError):
        raise _cut_short(path) from None


def _cut_short(path: Path) -> UserError:
    return UserError(
        f"{path}: a GGUF file of {path.stat().st_size} bytes that ends too early or is damaged; "
        "fetch it again (all parts, joined in order)"
    )


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
