"""SmolVLM (arXiv 2504.05299), transformers' Idefics 3: SigLIP, pixel shuffle, and Llama.

An image is one frame, as its processor makes with `do_image_splitting` false; cut into tiles it is
refused.
"""

from collections.abc import Mapping
from typing import Any

from cxrjax.models.families import parts
from cxrjax.models.families.family import make_family, same_tie, table
from cxrjax.models.presets import VLMConfig

_VISION = table("smolvlm_vision")


def _sizes(values: Mapping[str, Any], where: str) -> VLMConfig:
    pool = values["scale_factor"]
    tower = parts.tower(_VISION, values["vision_config"], pool=pool, side_by_side=True)
    side = tower.image_size // tower.patch_size
    if side % pool:
        raise ValueError(f"scale_factor {pool} of {side} x {side} patches")
    tied = bool(values["tie_word_embeddings"])
    decoder = parts.llama(values["text_config"], where, tied=tied)
    return VLMConfig(tower, decoder, -1, projector="plain")


SMOLVLM = make_family("idefics3", _sizes, settings=table("smolvlm"), prepare=same_tie)
