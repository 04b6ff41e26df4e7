"""Gemma 3 and MedGemma (arXiv 2503.19786): SigLIP, squares of patches as tokens, and text alone."""

import math
from collections.abc import Mapping
from typing import Any

from cxrjax.models.families import parts
from cxrjax.models.families.family import expect, make_family, rope, rope_scale
from cxrjax.models.presets import DecoderConfig, VLMConfig


def _decoder(text: Mapping[str, Any], where: str) -> DecoderConfig:
    seen = bool(text["use_bidirectional_attention"])
    expect(where, "use_bidirectional_attention", seen, False)
    stated = text.get("rope_parameters") or {}
    far = rope(
        {"rope_scaling": text.get("rope_scaling") or stated.get("full_attention")},
        float(text.get("rope_theta", 1_000_000.0)),
    )
    near = rope(
        {"rope_scaling": stated.get("sliding_attention")},
        float(text.get("rope_local_base_freq", 10_000.0)),
    )
    expect(where, "rope_type of local layers", near["rope_type"], "default")
    return DecoderConfig(
        **parts.gemma(text),
        **parts.gemma_layers(text, text["sliding_window_pattern"], where),
        rope_base=far["rope_theta"],
        rope_scale=rope_scale(far, where),
        local_rope_base=near["rope_theta"],
        qk_norm=True,
        prefix_attention="causal",
    )


def _sizes(values: Mapping[str, Any], where: str) -> VLMConfig:
    tower = parts.tower(parts.SIGLIP, values["vision_config"])
    side, tokens = tower.image_size // tower.patch_size, values["mm_tokens_per_image"]
    pool = side // math.isqrt(tokens)
    if (side // pool) ** 2 != tokens or side % pool:
        raise ValueError(f"{side} x {side} patches, mm_tokens_per_image {tokens}")
    tower = parts.tower(parts.SIGLIP, values["vision_config"], pool=pool)
    return VLMConfig(tower, _decoder(values["text_config"], where), -1, projector="normed")


def _text_sizes(values: Mapping[str, Any], where: str) -> VLMConfig:
    return VLMConfig(None, _decoder(values, where), -1, context=())


GEMMA3 = make_family("gemma3", _sizes)
GEMMA3_TEXT = make_family("gemma3_text", _text_sizes)
