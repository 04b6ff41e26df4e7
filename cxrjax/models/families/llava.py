"""LLaVA 1.5 (arXiv 2310.03744) and LLaVA-Med v1.5 (2306.00890): CLIP, and Llama or Mistral."""

from collections.abc import Mapping
from typing import Any

from cxrjax.models.families import parts
from cxrjax.models.families.family import Family, Original, key, table
from cxrjax.models.presets import CLIP_MEAN, CLIP_STD, VLMConfig

_CLIP = table("clip")
# The features are those of any layer but the first, counted from the last.
_LAYER = key(*range(-1, -100, -1), default=-2)
_TOWER: dict[str, Any] = {
    "norm_eps": 1e-05,
    "activation": "quick_gelu",
    "colours": "clip",
    "patch_bias": False,
    "class_token": True,
    "pre_norm": True,
}


def _sizes(values: Mapping[str, Any], where: str) -> VLMConfig:
    vision, layer = values["vision_config"], values["vision_feature_layer"]
    if not -vision["num_hidden_layers"] <= layer < 0:
        raise ValueError(f"vision_feature_layer {layer} of {vision['num_hidden_layers']} layers")
    tower = parts.tower(_CLIP, vision, skip_last=-layer - 1, **_TOWER)
    return VLMConfig(tower, parts.llama(values["text_config"], where), -1, projector="mlp")


def _form(values: Mapping[str, Any]) -> str:
    """Mistral's instructions, or Vicuna's turns."""
    return "llava_med" if values["text_config"]["model_type"] == "mistral" else "llava"


LLAVA = Family(
    kind="llava",
    named="LLaVA",
    before=("clip", "mlp"),
    tower=_TOWER,
    settings=table("llava") | {"vision_feature_layer": _LAYER},
    sizes=_sizes,
    tensors=("encoder", "llava"),
    # LLaVA's own code pads the image, its processor for transformers cuts the middle out.
    images=parts.images(CLIP_MEAN, CLIP_STD, "images_placed"),
    processor=(
        *("patch_size", "vision_feature_select_strategy", "num_additional_image_tokens"),
        *("image_token", "chat_template"),
    ),
    form=_form,
    resize="llava",
    original=Original(
        ("llava_llama", "llava_mistral"),
        "llava-hf/llava-1.5-7b-hf, or of LLaVA-Med what transformers' "
        "convert_llava_weights_to_hf.py makes of it, with --text_model_id="
        "mistralai/Mistral-7B-Instruct-v0.2 and --vision_model_id="
        "openai/clip-vit-large-patch14-336",
        keys=("mm_vision_tower",),
    ),
)
