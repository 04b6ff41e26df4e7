"""InternVL 3 (arXiv 2504.10479): InternViT, four patches a token, and Qwen2.5."""

from collections.abc import Mapping
from typing import Any

from cxrjax.errors import UserError
from cxrjax.models.families import parts
from cxrjax.models.families.family import (
    Family,
    Original,
    divides,
    expect,
    key,
    notes,
    ours,
    part,
    rope,
    same_tie,
)
from cxrjax.models.presets import IMAGENET_MEAN, IMAGENET_STD, DecoderConfig, VLMConfig

# Up to here rotary positions of type "dynamic" are plain ones; nothing here is as long.
_LONGEST_PLAIN = 16_384
_ROPE = part(
    {
        **parts.ROPE,
        "rope_type": key("default", "dynamic"),
        "type": key("default", "dynamic"),
    }
)
_TEXT = {
    **parts.COMMON,
    **parts.decoder_keys(151_936, 4096, 22_016, 32, 32, None),
    "num_key_value_heads": key(None, most=2**10, default=32, ours="num_kv_heads"),
    "model_type": key("qwen2"),
    "hidden_act": key("silu"),
    "rms_norm_eps": key(most=0.1, default=1e-6),
    "max_position_embeddings": key(most=2**24, default=32_768),
    "use_sliding_window": key(False, None),
    **notes("sliding_window", "max_window_layers"),  # without it these count for nothing
    "layer_types": key(None, items=("full_attention",)),
    "rope_theta": parts.THETA,
    "rope_scaling": _ROPE,
    "rope_parameters": _ROPE,
    "tie_word_embeddings": key(True, False, None),
}
_SIDES = key(most=2**13, items=tuple(range(1, 2**13 + 1)))
_VISION = {
    **parts.COMMON,
    **parts.tower_keys(1024, 4096, 24, 16),
    "model_type": key("internvl_vision"),
    "num_channels": key(3),
    "hidden_act": key("gelu"),
    "layer_norm_eps": key(1e-6),
    "image_size": _SIDES._replace(default=448),
    "patch_size": _SIDES._replace(default=14),
    # transformers' default is another: without biases.
    "attention_bias": key(True),
    "use_qk_norm": key(False),
    "norm_type": key("layer_norm"),
    "use_mask_token": key(False),
    "use_absolute_position_embeddings": key(True),
    "use_mean_pooling": key(True),
    "hidden_dropout_prob": key(0),
    "projection_dropout": key(0),
    **notes(
        *("projector_hidden_act", "num_positions"),
        # How training began; the weights have what it came to.
        *("layer_scale_init_value", "initializer_factor", "dropout", "embed_dim", "auto_map"),
    ),
}
_SETTINGS = {
    **parts.COMMON,
    **parts.TIE,
    "text_config": part(_TEXT, null=False),
    "vision_config": part(_VISION, null=False),
    "downsample_ratio": key(0.5, 1.0, default=0.5),
    "image_seq_length": key(most=2**20, default=256),
    "projector_hidden_act": key("gelu"),
    "vision_feature_layer": key(-1),
    "vision_feature_select_strategy": key("default"),
    **notes("image_token_index", "image_token_id", "ignore_index", "hidden_size"),
}


_TOWER: dict[str, Any] = {
    "side_by_side": True,
    "activation": "gelu",
    "colours": "imagenet",
    "class_token": True,
    "final_norm": False,
    "layer_scale": True,
    "most_tiles": 12,
}


def _side(size: Any, what: str) -> int:
    """Returns a side, which older files state as one number and newer ones as two."""
    sides = set(size) if isinstance(size, list | tuple) else {size}
    if len(sides) != 1:
        raise ValueError(f"{what} of {size}")
    return int(sides.pop())


def _sizes(values: Mapping[str, Any], where: str) -> VLMConfig:
    vision, text = values["vision_config"], values["text_config"]
    size, patch = _side(vision["image_size"], "images"), _side(vision["patch_size"], "patches")
    pool = round(1 / values["downsample_ratio"])
    divides(patch * pool, size, "tokens of an image")
    tokens = (size // patch // pool) ** 2
    if values["image_seq_length"] != tokens:
        raise ValueError(f"image_seq_length {values['image_seq_length']}, {tokens} tokens")
    expect(where, "vision_config.attention_bias", vision.get("attention_bias"), True)
    tower = parts.tower(
        _VISION,
        vision,
        image_size=size,
        patch_size=patch,
        pool=pool,
        **_TOWER,
    )
    found = ours(_TEXT, text)
    heads, width = found["num_heads"], found["width"]
    found["num_kv_heads"] = found["num_kv_heads"] or heads
    divides(found["num_kv_heads"], heads, "heads of keys and values")
    divides(2 * heads, width, "halves of heads")
    turned, longest = rope(text, 10_000.0), text["max_position_embeddings"]
    if turned["rope_type"] == "dynamic" and longest < _LONGEST_PLAIN:
        raise UserError(
            f"{where}: rope_type 'dynamic' with max_position_embeddings {longest}; below "
            f"{_LONGEST_PLAIN:,} it may change positions that occur here, which is not supported"
        )
    decoder = DecoderConfig(
        **found,
        **parts.PLAIN_DECODER,
        head_dim=width // heads,
        rope_base=turned["rope_theta"],
        norm_eps=float(text["rms_norm_eps"]),
        tied=bool(values["tie_word_embeddings"]),
        qkv_bias=True,
    )
    return VLMConfig(tower, decoder, -1, projector="normed_mlp")


INTERNVL = Family(
    kind="internvl",
    named="InternVL 3",
    before=("internvl", "normed_mlp"),
    tower=_TOWER,
    settings=_SETTINGS,
    sizes=_sizes,
    tensors=("internvl",),
    # Its images are cut into tiles there; here each is one, whatever these say.
    images={
        **parts.images(IMAGENET_MEAN, IMAGENET_STD),
        **notes("crop_to_patches", "min_patches", "max_patches"),
    },
    processor=("video_processor", "chat_template"),
    needs_colours=True,
    form=lambda values: "internvl",
    resize="internvl",
    prepare=same_tie,
    tied_without_head=True,
    original=Original(("internvl_chat",), "such as OpenGVLab/InternVL3-2B-hf"),
)
