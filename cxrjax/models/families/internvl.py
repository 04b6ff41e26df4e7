"""InternVL 3 (arXiv 2504.10479): InternViT, four patches a token, and Qwen2.5."""

from collections.abc import Mapping
from typing import Any

from cxrjax.errors import UserError
from cxrjax.models.families import parts
from cxrjax.models.families.family import (
    divides,
    expect,
    make_family,
    ours,
    rope,
    same_tie,
    table,
    tower_of,
)
from cxrjax.models.presets import DecoderConfig, VLMConfig

# Up to here rotary positions of type "dynamic" are plain ones; nothing here is as long.
_LONGEST_PLAIN = 16_384
_TEXT, _VISION = table("internvl_text"), table("internvl_vision")


def _side(size: Any, what: str) -> int:
    """Returns a side, which older files state as one number and newer ones as two."""
    sides = set(size) if isinstance(size, list | tuple) else {size}
    if len(sides) != 1:
        raise ValueError(f"{what} of {size}")
    return int(sides.pop())


def _sizes(values: Mapping[str, Any], where: str) -> VLMConfig:
    vision, text = values["vision_config"], values["text_config"]
    size, patch = _side(vision["image_size"], "images"), _side(vision["patch_size"], "patches")
    pool = round(1 / values["downsample_ratio"])
    divides(patch * pool, size, "tokens of an image")
    tokens = (size // patch // pool) ** 2
    if values["image_seq_length"] != tokens:
        raise ValueError(f"image_seq_length {values['image_seq_length']}, {tokens} tokens")
    expect(where, "vision_config.attention_bias", vision.get("attention_bias"), True)
    tower = parts.tower(
        _VISION, vision, image_size=size, patch_size=patch, pool=pool, **tower_of("internvl")
    )
    found = ours(_TEXT, text)
    heads, width = found["num_heads"], found["width"]
    found["num_kv_heads"] = found["num_kv_heads"] or heads
    divides(found["num_kv_heads"], heads, "heads of keys and values")
    divides(2 * heads, width, "halves of heads")
    turned, longest = rope(text, 10_000.0), text["max_position_embeddings"]
    if turned["rope_type"] == "dynamic" and longest < _LONGEST_PLAIN:
        raise UserError(
            f"{where}: rope_type 'dynamic' with max_position_embeddings {longest}; below "
            f"{_LONGEST_PLAIN:,} it may change positions that occur here, which is not supported"
        )
    decoder = DecoderConfig(
        **found,
        **parts.PLAIN_DECODER,
        head_dim=width // heads,
        rope_base=turned["rope_theta"],
        norm_eps=float(text["rms_norm_eps"]),
        tied=bool(values["tie_word_embeddings"]),
        qkv_bias=True,
    )
    return VLMConfig(tower, decoder, -1, projector="normed_mlp")


INTERNVL = make_family("internvl", _sizes, prepare=same_tie)
