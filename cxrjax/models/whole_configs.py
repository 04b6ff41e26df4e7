"""Configurations that leave nothing to transformers' defaults, as its version 5 writes them.

Asking the library for defaults takes seconds, most of it for importing PyTorch where that is
installed. A file that states every setting our sizes are read from says the same without it.
"""

from collections.abc import Mapping
from typing import Any

_SIZES = {
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    "attention_dropout",
}
_VISION = {
    *_SIZES,
    *("model_type", "hidden_act", "image_size", "patch_size", "num_channels", "layer_norm_eps"),
}
_GEMMA = {
    *_SIZES,
    *("model_type", "vocab_size", "num_key_value_heads", "head_dim", "rms_norm_eps"),
    *("attention_bias", "use_bidirectional_attention", "rope_parameters", "tie_word_embeddings"),
}
_GEMMA_3 = {
    *_GEMMA,
    *("hidden_activation", "layer_types", "query_pre_attn_scalar", "sliding_window"),
    *("attn_logit_softcapping", "final_logit_softcapping"),
}
_TEXTS = {"gemma": {*_GEMMA, "hidden_act"}, "gemma3_text": _GEMMA_3}
_TOPS = {
    "paligemma": {"text_config", "vision_config", "tie_word_embeddings"},
    "gemma3": {"text_config", "vision_config", "tie_word_embeddings", "mm_tokens_per_image"},
}


def states_all(kind: str, values: Mapping[str, Any]) -> bool:
    """Returns whether a valid configuration has all keys that sizes depend on, and no legacy key.

    Args:
        values: what counts of it (`check_settings`).
    """
    if kind == "gemma3_text":
        return _is_text({"model_type": kind, **values})
    if values.keys() != _TOPS.get(kind):
        return False
    text, vision = values["text_config"], values["vision_config"]
    if not (isinstance(text, Mapping) and isinstance(vision, Mapping)):
        return False
    return _is_text(text) and vision.keys() == _VISION


def _is_text(text: Mapping[str, Any]) -> bool:
    kind = text.get("model_type")
    if text.keys() != _TEXTS.get(str(kind)):
        return False
    rope = text["rope_parameters"]
    if kind == "gemma":
        return _is_rope(rope)
    sorts = {"full_attention", "sliding_attention"}
    return (
        isinstance(rope, Mapping)
        and rope.keys() == sorts
        and all(_is_rope(part) for part in rope.values())
        and isinstance(text["layer_types"], list)
        and len(text["layer_types"]) == text["num_hidden_layers"]
    )


def _is_rope(rope: Any) -> bool:
    """One sort of rotary positions, in full."""
    if not isinstance(rope, Mapping):
        return False
    keys = {"rope_type", "rope_theta"}
    return rope.keys() == (keys | {"factor"} if rope.get("rope_type") == "linear" else keys)
