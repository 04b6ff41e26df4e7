"""Qwen2.5-VL (arXiv 2502.13923) and Qwen3-VL (2511.21631): images of any size, in windows."""

import math
from collections.abc import Mapping
from typing import Any

from cxrjax.errors import UserError
from cxrjax.models.families import parts
from cxrjax.models.families.family import (
    divides,
    make_family,
    ours,
    rope,
    same_tie,
    table,
    tower_of,
)
from cxrjax.models.presets import DecoderConfig, VisionConfig, VLMConfig
from cxrjax.untrusted.names import shown_value

_OLD_TEXT, _VISION = table("qwen2_5_decoder"), table("qwen_vision")


def _in_parts(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns Qwen2.5-VL's settings with those of the decoder in their part, wherever they stood.

    Raises:
        UserError: a setting stands in both places, and is not the same; a part is missing.
    """
    names = (*_OLD_TEXT, "tie_word_embeddings")
    beside = {name: values[name] for name in names if name in values}
    text = dict(values.get("text_config") or {})
    if text:
        # Files of transformers 4.5x have both.
        differing = [name for name, value in beside.items() if text.get(name, value) != value]
        differing += [name for name in beside if name not in text and name in _OLD_TEXT]
        if differing:
            raise UserError(
                f"{where}: {differing[0]} is {shown_value(beside[differing[0]])}, and text_config "
                f"has {shown_value(text.get(differing[0]))}; remove the one that is wrong"
            )
    text = {name: value for name, value in (beside | text).items() if name in names}
    tied = text.pop("tie_word_embeddings", None) or False
    lacking = [] if values.get("vision_config") else ["vision_config"]
    lacking += [] if text else ["text_config"]
    if lacking:
        raise UserError(f"{where}: {lacking[0]} is missing; use the config.json of the weights")
    vision = values["vision_config"]
    return {"text_config": text, "vision_config": vision, "tie_word_embeddings": tied}


def _tower(vision: Mapping[str, Any], text: Mapping[str, Any], side: int, **more: Any) -> Any:
    """Returns a tower of images of about so many pixels a side: its configuration has none."""
    if vision["out_hidden_size"] != text["hidden_size"]:
        raise ValueError(
            f"out_hidden_size {vision['out_hidden_size']}, hidden_size {text['hidden_size']}"
        )
    found = ours(_VISION, vision)
    divides(found["num_heads"], found["width"], "heads of the tower")
    divides(4, found["width"] // found["num_heads"], "quarters of the tower's heads")
    # The nearest that whole tokens fill.
    unit = found["patch_size"] * found["pool"]
    return VisionConfig(**found, image_size=max(side // unit, 1) * unit, **more)


def _decoder(
    text: Mapping[str, Any], tied: bool, theta: float, sections: tuple[int, ...], **own: Any
) -> DecoderConfig:
    """Returns a decoder's sizes; theta and sections are those of its code where none are stated."""
    found = ours(_OLD_TEXT, text)
    heads = found["num_heads"]
    found["num_kv_heads"] = found["num_kv_heads"] or heads
    divides(found["num_kv_heads"], heads, "heads of keys and values")
    turned = rope(text, theta)
    sections = tuple(turned.get("mrope_section", sections))
    if len(sections) != 3:
        raise ValueError(f"mrope_section {list(sections)}, expected three")
    return DecoderConfig(
        **found,
        **parts.PLAIN_DECODER,
        **own,
        rope_base=turned["rope_theta"],
        rope_sections=sections,
        norm_eps=float(text["rms_norm_eps"]),
        tied=tied,
    )


def _old_sizes(values: Mapping[str, Any], where: str) -> VLMConfig:
    vision, text = values["vision_config"], values["text_config"]
    unit, pool = vision["patch_size"] * vision["spatial_merge_size"], vision["spatial_merge_size"]
    if vision["window_size"] < unit:
        raise ValueError(f"window_size {vision['window_size']}, tokens of {unit} pixels")
    tower = _tower(
        *(vision, text, 448),
        **tower_of("qwen2_5_vl"),
        # As its code rounds it: to whole tokens.
        window=vision["window_size"] // unit * pool,
        full_every=_full_every(vision["fullatt_block_indexes"], vision["depth"]),
    )
    heads, width = text["num_attention_heads"], text["hidden_size"]
    divides(2 * heads, width, "halves of heads")
    own = {"head_dim": width // heads, "qkv_bias": True}
    tied = bool(values["tie_word_embeddings"])
    decoder = _decoder(text, tied, 1_000_000.0, (16, 24, 24), **own)
    return VLMConfig(tower, decoder, -1, projector="merger")


def _full_every(indexes: list[int], depth: int) -> int:
    """Returns the period of the layers that see whole images: of so many the last one does."""
    full = sorted({index for index in indexes if index < depth})
    every = full[0] + 1 if full else depth + 1
    if full != list(range(every - 1, depth, every)):
        raise ValueError(f"fullatt_block_indexes {full} of {depth} layers have no period")
    return every


def _new_sizes(values: Mapping[str, Any], where: str) -> VLMConfig:
    vision, text = values["vision_config"], values["text_config"]
    rows, deepstack = vision["num_position_embeddings"], list(vision["deepstack_visual_indexes"])
    if math.isqrt(rows) ** 2 != rows:
        raise ValueError(f"num_position_embeddings {rows} is not a square number")
    in_order = deepstack == sorted(set(deepstack)) and max(deepstack, default=0) < vision["depth"]
    if not in_order or len(deepstack) > text["num_hidden_layers"]:
        raise ValueError(
            f"deepstack_visual_indexes {deepstack} of {vision['depth']} layers, for "
            f"{text['num_hidden_layers']} of the decoder"
        )
    side = {"position_side": math.isqrt(rows), "deepstack": tuple(deepstack)}
    tower = _tower(vision, text, 512, **tower_of("qwen3_vl"), **side)
    own = {"head_dim": text["head_dim"], "qk_norm": True, "rope_interleaved": True}
    tied = bool(values["tie_word_embeddings"])
    decoder = _decoder(text, tied, 500_000.0, (24, 20, 20), **own)
    return VLMConfig(tower, decoder, -1, projector="merger")


# Keys of the decoder beside the parts, which `_in_parts` brings there.
_OLD = {name: each._replace(ours=None) for name, each in table("qwen2_5_vl").items()}
QWEN2_5_VL = make_family("qwen2_5_vl", _old_sizes, settings=_OLD, prepare=_in_parts)
QWEN3_VL = make_family("qwen3_vl", _new_sizes, prepare=same_tie)
