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

# By the `model_type` of its configuration.
FAMILIES: dict[str, Family] = {
    family.kind: family
    for family in (
        *(PALIGEMMA, GEMMA3, GEMMA3_TEXT, GEMMA4, GEMMA4_UNIFIED),
        *(LLAVA, INTERNVL, QWEN2_5_VL, QWEN3_VL),
    )
}


def family_of_sizes(sizes: Mapping[str, Any]) -> str:
    """Returns the family of a base directory's `sizes`, which older ones do not name.

    Raises:
        ValueError: there is none.
    """
    vision = sizes["vision"]
    tower = vision if vision is None else vision.get("kind", "siglip")
    before = (tower, sizes.get("projector", "linear"))
    for family in FAMILIES.values():
        if before == family.before if "family" not in sizes else sizes["family"] == family.kind:
            return family.kind
    raise ValueError(f"family is {sizes.get('family', before)!r}, expected one of {[*FAMILIES]}")
