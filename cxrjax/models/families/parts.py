"""Sizes that several families share: SigLIP's tower, Gemma's and Llama's decoders, images."""

from collections.abc import Mapping
from typing import Any

from cxrjax.models.families.family import (
    Table,
    divides,
    global_every,
    kinds_of_layers,
    ours,
    rope,
    rope_scale,
    table,
)
from cxrjax.models.presets import DecoderConfig, VisionConfig

SIGLIP = table("siglip")
_LLAMA, _GEMMA = table("llama"), table("gemma")


def tower(settings: Table, vision: Mapping[str, Any], **more: Any) -> VisionConfig:
    """Returns the sizes of a tower of square images and whole patches.

    Raises:
        ValueError: sizes that do not go together.
    """
    found = ours(settings, vision) | more
    if found["image_size"] % found["patch_size"] and not found.get("side_by_side"):
        raise ValueError(f"images of {found['image_size']}, patches of {found['patch_size']}")
    divides(found["num_heads"], found["width"], "heads of the tower")
    return VisionConfig(**found)


# What Llama's, Mistral's and Qwen's decoders have alike.
PLAIN_DECODER: dict[str, Any] = {
    "prefix_attention": "past",
    "plain_norms": True,
    "activation": "silu",
    "scale_embeddings": False,
}


def llama(text: Mapping[str, Any], where: str, *, tied: bool = False) -> DecoderConfig:
    """Returns the decoder's sizes from Llama's or Mistral's settings."""
    found = ours(_LLAMA, text)
    heads, width = found["num_heads"], found["width"]
    if text["model_type"] == "llama":  # as transformers has it
        divides(heads, width, "heads of the decoder")
    found["num_kv_heads"] = found["num_kv_heads"] or heads
    head_dim = text["head_dim"] or width // heads
    divides(found["num_kv_heads"], heads, "heads of keys and values")
    divides(2, head_dim, "halves of a head")
    # Mistral's first version had a window, in every layer; Llama has no such key.
    window = text["sliding_window"] if text["model_type"] == "mistral" else None
    turned = rope(text, 10_000.0)
    return DecoderConfig(
        **found,
        **PLAIN_DECODER,
        head_dim=head_dim,
        rope_base=turned["rope_theta"],
        rope_scale=rope_scale(turned, where),
        window=window,
        global_every=1 if window is None else found["depth"] + 1,
        norm_eps=float(text["rms_norm_eps"]),
        tied=tied,
    )


def gemma_layers(text: Mapping[str, Any], every: int, where: str) -> dict[str, Any]:
    """Returns the sizes of a decoder with local and global layers (Gemma 2 and 3).

    Args:
        every: transformers' default of the period of global layers.
    """
    depth = text["num_hidden_layers"]
    layers = text["layer_types"] or kinds_of_layers(depth, every)
    if len(layers) != depth:
        raise ValueError(f"{len(layers)} layer_types for {depth} layers")
    divides(text["num_attention_heads"], text["hidden_size"], "heads of the decoder")
    return {
        "query_scale": float(text["query_pre_attn_scalar"]),
        "window": text["sliding_window"],
        "global_every": global_every(layers, where),
        "post_norms": True,
    }


def gemma(text: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sizes that all of Gemma's decoders have."""
    found = ours(_GEMMA, text)
    divides(found["num_kv_heads"], found["num_heads"], "heads of keys and values")
    divides(2, found["head_dim"], "halves of a head")
    return found
