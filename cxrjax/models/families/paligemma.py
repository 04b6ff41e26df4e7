"""PaliGemma (arXiv 2407.07726) and PaliGemma 2 (2412.03555): SigLIP and Gemma, all of it seen."""

from collections.abc import Mapping
from typing import Any

from cxrjax.models.families import parts
from cxrjax.models.families.family import expect, make_family, rope
from cxrjax.models.presets import DecoderConfig, VLMConfig


def _sizes(values: Mapping[str, Any], where: str) -> VLMConfig:
    text = values["text_config"]
    seen = text["use_bidirectional_attention"]
    expect(where, "use_bidirectional_attention", seen in (True, None), True)
    turned = rope(text, 10_000.0)
    expect(where, "rope_type", turned["rope_type"], "default")
    sizes = parts.gemma(text) | {"rope_base": turned["rope_theta"]}
    if text["model_type"] == "gemma2":
        sizes |= parts.gemma_layers(text, 2, where) | {
            "attn_softcap": text["attn_logit_softcapping"],
            "final_softcap": text["final_logit_softcapping"],
        }
    tower = parts.tower(parts.SIGLIP, values["vision_config"])
    return VLMConfig(tower, DecoderConfig(**sizes), -1, projector="linear")


PALIGEMMA = make_family("paligemma", _sizes)
