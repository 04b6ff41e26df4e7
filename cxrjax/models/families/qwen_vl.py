"""Qwen2.5-VL (arXiv 2502.13923) and Qwen3-VL (2511.21631): images of any size, in windows."""

import math
from collections.abc import Mapping
from typing import Any

from cxrjax.errors import UserError
from cxrjax.models.families import parts
from cxrjax.models.families.family import (
    LATER,
    MOST_LAYERS,
    NOTE,
    Family,
    divides,
    key,
    notes,
    ours,
    part,
    rope,
    same_tie,
)
from cxrjax.models.presets import CLIP_MEAN, CLIP_STD, DecoderConfig, VisionConfig, VLMConfig
from cxrjax.untrusted.names import shown_value

_SECTIONS = key(items=tuple(range(1, 2**11)))
_OLD_ROPE = part(
    {
        "rope_type": key("default", "mrope"),
        "type": key("default", "mrope"),
        "rope_theta": parts.THETA,
        "mrope_section": _SECTIONS,
    }
)
_SILU = {"hidden_act": key("silu")}
# Published files have these keys beside those of the whole model.
_OLD_TEXT = {
    **parts.decoder_keys(152_064, 8192, 29_568, 80, 64, None),
    "num_key_value_heads": key(None, most=2**10, default=8, ours="num_kv_heads"),
    **_SILU,
    "rms_norm_eps": key(most=0.1, default=1e-5),
    "attention_dropout": key(0, None),
    "use_sliding_window": key(False, None),
    **notes("sliding_window", "max_window_layers"),  # without it these count for nothing
    "layer_types": key(None, items=("full_attention",)),
    "rope_theta": parts.THETA,
    "rope_scaling": _OLD_ROPE,
    "rope_parameters": _OLD_ROPE,
}
_IDS = notes(
    *("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
    *("vision_token_id", "image_token_index", "ignore_index"),
)
_AXIAL = part({"rope_type": key("axial"), "rope_theta": key(10_000)})
_TOWER = {
    **parts.COMMON,
    "in_channels": key(3),
    "spatial_merge_size": key(most=2**6, default=2, ours="pool"),
    "temporal_patch_size": key(2),
    "out_hidden_size": key(most=2**16, default=3584),
    "rope_parameters": _AXIAL,
}


def _tower_keys(width: int, mlp_dim: int, depth: int, patch: int) -> dict[str, Any]:
    return {
        "depth": key(most=MOST_LAYERS, default=depth, ours="depth"),
        "hidden_size": key(most=2**16, default=width, ours="width"),
        "intermediate_size": key(most=2**20, default=mlp_dim, ours="mlp_dim"),
        "num_heads": key(most=2**10, default=16, ours="num_heads"),
        "patch_size": key(most=2**10, default=patch, ours="patch_size"),
    }


_INDEXES = key(items=tuple(range(MOST_LAYERS)))
_OLD_VISION = {
    **_TOWER,
    **_tower_keys(3584, 3420, 32, 14),
    **_SILU,
    "model_type": key("qwen2_5_vl", "qwen2_5_vl_vision"),
    "in_chans": key(3),
    "window_size": key(most=2**13, default=112),
    "fullatt_block_indexes": _INDEXES._replace(default=[7, 15, 23, 31]),
    "spatial_patch_size": NOTE,  # published, and read by no version
    "tokens_per_second": NOTE,  # of videos
}
_OLD = {
    **parts.COMMON,
    **{name: entry._replace(ours=None) for name, entry in _OLD_TEXT.items()},
    **_IDS,
    "tie_word_embeddings": key(True, False),
    "text_config": part(
        {
            **parts.COMMON,
            **_OLD_TEXT,
            **_IDS,
            "model_type": key("qwen2_5_vl_text", "qwen2_5_vl"),
            "tie_word_embeddings": key(True, False, None),
            "vision_config": LATER,
        }
    ),
    "vision_config": part(_OLD_VISION),
}
_ROPE = part(
    {
        "rope_type": key("default"),
        "rope_theta": parts.THETA,
        "mrope_section": _SECTIONS,
        "mrope_interleaved": key(True),  # its code does so, whatever stands here
    }
)
_TEXT = {
    **parts.COMMON,
    **parts.decoder_keys(151_936, 4096, 22_016, 32, 32, None),
    "num_key_value_heads": key(None, most=2**10, default=32, ours="num_kv_heads"),
    **_SILU,
    "rms_norm_eps": key(most=0.1, default=1e-6),
    "rope_theta": parts.THETA,
    "model_type": key("qwen3_vl_text"),
    "head_dim": key(most=2**12, default=128, ours="head_dim"),
    "attention_bias": key(False, None),
    "rope_scaling": _ROPE,
    "rope_parameters": _ROPE,
    "tie_word_embeddings": key(True, False, None),
}
_VISION = {
    **_TOWER,
    **_tower_keys(1152, 4304, 27, 16),
    "model_type": key("qwen3_vl", "qwen3_vl_vision"),
    "hidden_act": parts.GELU_TANH,
    "num_position_embeddings": key(most=2**20, default=2304),
    "deepstack_visual_indexes": _INDEXES._replace(default=[8, 16, 24]),
}
_NEW = {
    **parts.COMMON,
    **_IDS,
    "tie_word_embeddings": key(True, False, default=False),
    "hidden_size": NOTE,  # a note of transformers' beside the parts
    "text_config": part(_TEXT, null=False),
    "vision_config": part(_VISION, null=False),
}


_OLD_TOWER: dict[str, Any] = {
    "merges": True,
    "norm": "rms",
    "activation": "silu",
    "gated": True,
    "colours": "clip",
    "patch_bias": False,
    "final_norm": False,
    "most_tokens": 16384,
}
_NEW_TOWER: dict[str, Any] = {"merges": True, "final_norm": False, "most_tokens": 16384}


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
        **_OLD_TOWER,
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
    tower = _tower(vision, text, 512, **_NEW_TOWER, **side)
    own = {"head_dim": text["head_dim"], "qk_norm": True, "rope_interleaved": True}
    tied = bool(values["tie_word_embeddings"])
    decoder = _decoder(text, tied, 500_000.0, (24, 20, 20), **own)
    return VLMConfig(tower, decoder, -1, projector="merger")


# Images are of any size; ours are resized to one, whatever these say.
_SIZES = {
    **notes("min_pixels", "max_pixels", "patch_size", "merge_size"),
    "temporal_patch_size": key(2),
    **parts.PLACED,
}
_PROCESSOR = ("video_processor", "chat_template")
QWEN2_5_VL = Family(
    kind="qwen2_5_vl",
    named="Qwen2.5-VL",
    before=("qwen", "merger"),
    tower=_OLD_TOWER,
    settings=_OLD,
    sizes=_old_sizes,
    tensors=("qwen2_5_vl",),
    images={**parts.images(CLIP_MEAN, CLIP_STD), **_SIZES},
    processor=_PROCESSOR,
    form=lambda values: "qwen",
    resize="qwen2.5_vl_448",
    prepare=_in_parts,
)
QWEN3_VL = Family(
    kind="qwen3_vl",
    named="Qwen3-VL",
    before=("qwen3", "merger"),
    tower=_NEW_TOWER,
    settings=_NEW,
    sizes=_new_sizes,
    tensors=("qwen3_vl",),
    images={**parts.IMAGES, **_SIZES},
    processor=_PROCESSOR,
    needs_colours=True,
    form=lambda values: "qwen3",
    resize="qwen3_vl_512",
    prepare=same_tie,
)
