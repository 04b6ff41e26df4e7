"""LLaVA 1.5 (arXiv 2310.03744) and LLaVA-Med v1.5 (2306.00890): CLIP, and Llama or Mistral."""

from collections.abc import Mapping
from typing import Any

from cxrjax.models.families import parts
from cxrjax.models.families.family import key, make_family, table, tower_of
from cxrjax.models.presets import VLMConfig

_CLIP = table("clip")
# The features are those of any layer but the first, counted from the last.
_LAYER = key(*range(-1, -100, -1), default=-2)


def _sizes(values: Mapping[str, Any], where: str) -> VLMConfig:
    vision, layer = values["vision_config"], values["vision_feature_layer"]
    if not -vision["num_hidden_layers"] <= layer < 0:
        raise ValueError(f"vision_feature_layer {layer} of {vision['num_hidden_layers']} layers")
    tower = parts.tower(_CLIP, vision, skip_last=-layer - 1, **tower_of("llava"))
    return VLMConfig(tower, parts.llama(values["text_config"], where), -1, projector="mlp")


def _form(values: Mapping[str, Any]) -> str:
    """Mistral's instructions, or Vicuna's turns."""
    return "llava_med" if values["text_config"]["model_type"] == "mistral" else "llava"


LLAVA = make_family(
    "llava", _sizes, form=_form, settings=table("llava") | {"vision_feature_layer": _LAYER}
)
