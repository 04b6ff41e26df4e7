"""Families of published models, one file each, and their list."""

from collections.abc import Mapping
from typing import Any

from cxrjax.models.families.family import Family
from cxrjax.models.families.gemma3 import GEMMA3, GEMMA3_TEXT
from cxrjax.models.families.gemma4 import GEMMA4, GEMMA4_UNIFIED
from cxrjax.models.families.internvl import INTERNVL
from cxrjax.models.families.llava import LLAVA
from cxrjax.models.families.paligemma import PALIGEMMA
from cxrjax.models.families.qwen_vl import QWEN2_5_VL, QWEN3_VL
from cxrjax.models.families.smolvlm import SMOLVLM
from cxrjax.models.presets import IMAGE, DecoderConfig, VisionConfig, VLMConfig, check_sizes

# By the `model_type` of its configuration.
FAMILIES: dict[str, Family] = {
    family.kind: family
    for family in (
        *(PALIGEMMA, GEMMA3, GEMMA3_TEXT, GEMMA4, GEMMA4_UNIFIED),
        *(LLAVA, INTERNVL, QWEN2_5_VL, QWEN3_VL, SMOLVLM),
    )
}


def sizes_of_base(sizes: Mapping[str, Any]) -> VLMConfig:
    """Returns the sizes that a base directory states.

    Older ones name no family, take one image, and name the kind of their tower.

    Raises:
        ValueError: sizes of no family, or beyond any model there is; or as the sizes' classes.
        KeyError, TypeError: no such sizes.
    """
    vision = sizes["vision"]
    kind = vision if vision is None else vision.get("kind", "siglip")
    before = (kind, sizes.get("projector", "linear"))
    known = {family.before: family.kind for family in FAMILIES.values() if family.before}
    family = sizes["family"] if "family" in sizes else known.get(before)
    if family not in FAMILIES:
        raise ValueError(f"family is {family!r}, expected one of {', '.join(FAMILIES)}")
    if vision is not None:
        stated = {name: value for name, value in vision.items() if name != "kind"}
        vision = VisionConfig(**(FAMILIES[family].tower if "kind" in vision else {}) | stated)
    parts = {"vision": vision, "decoder": DecoderConfig(**sizes["decoder"]), "family": family}
    contexts = {name: tuple(sizes.get(name, (IMAGE,))) for name in ("context", "second_image")}
    found = VLMConfig(**{**sizes, **parts, **contexts})
    check_sizes(found)
    return found
