"""PaliGemma (arXiv 2407.07726) and PaliGemma 2 (2412.03555): SigLIP and Gemma, all of it seen."""

from collections.abc import Mapping
from typing import Any

from cxrjax.models.families import parts
from cxrjax.models.families.family import Family, expect, key, notes, part, rope
from cxrjax.models.presets import DecoderConfig, VLMConfig

_KINDS = key("gemma", "gemma2", default="gemma")
_GEMMA = parts.GEMMA | {"model_type": _KINDS}
_FIRST = _GEMMA | parts.decoder_keys(256_000, 3072, 24_576, 28, 16, 16)
_SECOND = {
    **_GEMMA,
    **parts.decoder_keys(256_000, 2304, 9216, 26, 8, 4),
    "attn_logit_softcapping": key(None, most=1e6, default=50.0),
    "final_logit_softcapping": key(None, most=1e6, default=30.0),
}
_SETTINGS = {
    **parts.COMMON,
    **parts.TIE,
    "text_config": part(
        _FIRST,
        gemma2=_SECOND,
        # What transformers 5 takes where the whole part is missing.
        default={
            **{"hidden_size": 2048, "num_hidden_layers": 18, "intermediate_size": 16_384},
            **{"num_attention_heads": 8, "num_key_value_heads": 1, "vocab_size": 257_152},
        },
    ),
    "vision_config": part(
        parts.SIGLIP,
        default={
            **{"intermediate_size": 4096, "hidden_size": 1152, "num_hidden_layers": 27},
            **{"num_attention_heads": 16, "patch_size": 14},
        },
    ),
    **notes(
        *("image_token_index", "image_token_id", "ignore_index", "projection_dim"),
        # The decoder's own count.
        *("hidden_size", "vocab_size", "_vocab_size", "num_hidden_layers"),
    ),
}


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


PALIGEMMA = Family(
    kind="paligemma",
    named="PaliGemma",
    before=("siglip", "linear"),
    settings=_SETTINGS,
    sizes=_sizes,
    tensors=("encoder", "siglip", "paligemma"),
    images=parts.IMAGES,
)
