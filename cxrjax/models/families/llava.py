"""LLaVA 1.5 (arXiv 2310.03744) and LLaVA-Med v1.5 (2306.00890): CLIP, and Llama or Mistral."""

from collections.abc import Mapping
from typing import Any

from cxrjax.models.families import parts
from cxrjax.models.families.family import NOTE, Family, Original, key, notes, part
from cxrjax.models.presets import CLIP_MEAN, CLIP_STD, VLMConfig

_CLIP = {
    **{name: entry for name, entry in parts.SIGLIP.items() if name != "projector_hidden_act"},
    **parts.tower_keys(768, 3072, 12, 12),
    **parts.square_keys(224, 32),
    "model_type": key("clip_vision_model"),
    "hidden_act": key("quick_gelu"),
    "layer_norm_eps": key(1e-5),
    "initializer_factor": NOTE,
    "dropout": key(0),
}
_SETTINGS = {
    **parts.COMMON,
    "tie_word_embeddings": key(False, None, default=False),
    "text_config": parts.llama_part(),
    "vision_config": part(
        _CLIP,
        default={
            **{"intermediate_size": 4096, "hidden_size": 1024, "num_hidden_layers": 24},
            **{"num_attention_heads": 16, "patch_size": 14, "image_size": 336},
        },
    ),
    "projector_hidden_act": key("gelu"),
    "vision_feature_select_strategy": key("default"),
    "vision_feature_layer": key(*range(-1, -100, -1), default=-2),
    "multimodal_projector_bias": key(True),
    **notes(
        *("image_token_index", "image_token_id", "ignore_index", "image_seq_length"),
        *("vocab_size", "projection_dim", "hidden_size"),
    ),
}


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
    settings=_SETTINGS,
    sizes=_sizes,
    tensors=("encoder", "llava"),
    # LLaVA's own code pads the image, its processor for transformers cuts the middle out.
    images=parts.images(CLIP_MEAN, CLIP_STD, **parts.PLACED),
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
