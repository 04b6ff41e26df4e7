"""Configurations drawn from all that the closed world accepts: Hugging Face's and PEFT's.

Each is as a file would have it: keys left out or stated, under the names of any version.
"""

from typing import Any

import numpy as np

VOCAB, SIZE = 1300, 24
KINDS = (
    *("paligemma", "paligemma2", "gemma3", "gemma3_text", "llava", "llava_mistral"),
    *("qwen", "qwen3", "internvl", "gemma4", "gemma4_unified", "gemma4_small", "smolvlm"),
)
# Their vocabularies have no location tokens.
NO_LOC = ("llava", "llava_mistral", *KINDS[KINDS.index("qwen") :])

# Change nothing that is computed, whatever they say.
_NOTES = {
    "_name_or_path": "somewhere",
    "architectures": ["Any"],
    "bos_token_id": 2,
    "cache_implementation": "hybrid",
    "initializer_range": 0.3,
    "max_position_embeddings": 77,
    "pad_token_id": 0,
    "torch_dtype": "float32",
    "transformers_version": "4.40.0",
    "use_cache": False,
}

_QWEN_IDS = {"image_token_id": 1290, "vision_start_token_id": 1288, "vision_end_token_id": 1289}


def _without(note: str) -> dict[str, Any]:
    return {key: value for key, value in _NOTES.items() if key != note}


class Draw:
    """Choices by a seed."""

    def __init__(self, *seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def of(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def some(self, settings: dict[str, Any], chance: float = 0.5) -> dict[str, Any]:
        return {key: value for key, value in settings.items() if self.rng.random() < chance}


def draw_config(kind: str, seed: int) -> dict[str, Any]:
    """`config.json` of a small model: `kind` is one of `KINDS`."""
    config = _draw_config(kind, Draw(KINDS.index(kind), seed))
    if kind.startswith(("pali", "gemma")) and Draw(300 + KINDS.index(kind), seed).of(1, 0, 0):
        for part in (config, config.get("text_config", config)):
            part["tie_word_embeddings"] = False
    return config


def draw_storage(kind: str, seed: int) -> str:
    """The dtype that the model is stored in."""
    return Draw(400 + KINDS.index(kind), seed).of("float32", "float32", "bfloat16")


def _draw_config(kind: str, draw: Draw) -> dict[str, Any]:
    own = {"qwen": _qwen, "qwen3": _qwen3, "internvl": _internvl, "smolvlm": _smolvlm}
    if kind in own:
        return own[kind](draw)
    if kind.startswith(("llava", "gemma4")):
        return (_llava if kind.startswith("llava") else _gemma4)(kind, draw)
    text = _text(kind, draw)
    if kind == "gemma3_text":
        return {"model_type": "gemma3_text", **text}
    family = {"paligemma": "gemma", "paligemma2": "gemma2", "gemma3": "gemma3_text"}[kind]
    patch = draw.of(4, 6, 12)
    vision = _vision(draw, patch)
    config = {
        "model_type": kind.removesuffix("2"),
        "text_config": {"model_type": family, **text},
        "vision_config": vision,
        draw.of("image_token_index", "image_token_id"): 1290,
        **draw.some(_NOTES, 0.3),
        **draw.some({"ignore_index": -100, "tie_word_embeddings": True}),
    }
    if kind == "gemma3":
        side = SIZE // patch
        pooled = side // draw.of(*(pool for pool in (1, 2, 3) if side % pool == 0))
        config["mm_tokens_per_image"] = pooled**2
        config[draw.of("boi_token_index", "boi_token_id")] = 1288
        config[draw.of("eoi_token_index", "eoi_token_id")] = 1289
        return config
    config["projection_dim"] = text["hidden_size"]
    return config | draw.some({"hidden_size": 2048, "_vocab_size": 257_152})


def _heads(draw: Draw) -> tuple[int, int]:
    """Heads of keys and values, and of queries."""
    kv_heads, group = draw.of((1, 2), (1, 3), (2, 1), (2, 2), (3, 2))
    return kv_heads, kv_heads * group


def _decoder(draw: Draw, width: int, heads: int, kv_heads: int, layers: int = 0) -> dict[str, int]:
    return {
        "vocab_size": VOCAB,
        "hidden_size": width,
        "intermediate_size": draw.of(11, 20, 37),
        "num_hidden_layers": layers or draw.of(1, 2, 3, 4),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
    }


def _qwen_tower(draw: Draw, depth: int, heads: int, sides: tuple[int, int]) -> dict[str, int]:
    return {
        "depth": depth,
        "hidden_size": heads * draw.of(4, 8),
        "num_heads": heads,
        "intermediate_size": draw.of(9, 40),
        "patch_size": sides[0],
        "spatial_merge_size": sides[1],
    }


def _llava(kind: str, draw: Draw) -> dict[str, Any]:
    kv_heads, heads = _heads(draw)
    head_dim = draw.of(4, 6, 8)
    theta = draw.of(100.0, 1e4, 1e6)
    scaling = draw.of(
        {"rope_type": "linear", "factor": draw.of(2.0, 8.0)},
        {"type": "linear", "factor": 4.0},
        {"rope_type": "default", **draw.some({"factor": 8.0})},
    )
    text = {
        "model_type": "mistral" if kind == "llava_mistral" else "llama",
        **_decoder(draw, heads * head_dim, heads, kv_heads),
        **draw.some(_NOTES, 0.3),
        **draw.some({"rms_norm_eps": draw.of(1e-5, 1e-6, 1e-3), "head_dim": head_dim}),
        **draw.some({"hidden_act": "silu", "attention_dropout": 0.0, "rope_theta": theta}),
        **draw.of({}, {"rope_scaling": None}, {"rope_theta": theta, "rope_scaling": scaling}),
    }
    if kind == "llava_mistral":
        text["sliding_window"] = draw.of(None, 3, 7, 1000)
    else:
        text |= draw.some({"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1})
    vision = _vision(draw, draw.of(4, 6, 12))
    siglip_s = ("hidden_act", "layer_norm_eps", "projector_hidden_act", "vision_use_head")
    vision = {key: value for key, value in vision.items() if key not in siglip_s}
    vision |= {"model_type": "clip_vision_model"}
    vision |= draw.some({"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5})
    return {
        "model_type": "llava",
        "text_config": text,
        "vision_config": vision,
        draw.of("image_token_index", "image_token_id"): 1290,
        "vision_feature_layer": -draw.of(*range(1, vision["num_hidden_layers"] + 1)),
        **draw.some({"projector_hidden_act": "gelu", "vision_feature_select_strategy": "default"}),
        **draw.some({"multimodal_projector_bias": True, "image_seq_length": 5}),
        **draw.some({"tie_word_embeddings": False, "ignore_index": -100}),
    }


def _qwen(draw: Draw) -> dict[str, Any]:
    kv_heads, heads = _heads(draw)
    sections = draw.of([1, 2, 1], [2, 1, 1], [1, 1, 2], [2, 3, 3])
    theta = draw.of(100.0, 1e4, 1e6)
    width = heads * 2 * sum(sections)
    layers = draw.of(1, 2, 3, 4)
    older = {"rope_theta": theta, "rope_scaling": {"type": "mrope", "mrope_section": sections}}
    both = {"rope_type": "default", "type": "default", "mrope_section": sections}
    newer = {"rope_parameters": {"rope_theta": theta, **both}}
    text = {
        **_decoder(draw, width, heads, kv_heads, layers),
        **draw.some({"rms_norm_eps": draw.of(1e-5, 1e-6, 1e-3), "hidden_act": "silu"}),
        **draw.some({"use_sliding_window": False, "attention_dropout": 0.0}),
        **draw.some({"sliding_window": 3, "max_window_layers": 1}),
        **draw.of(older, {"rope_theta": theta, "rope_scaling": both}, newer),
    }
    patch, pool = draw.of((2, 2), (2, 3), (3, 2), (3, 4), (6, 2), (4, 3))
    depth, tower_heads = draw.of(1, 2, 3, 4), draw.of(1, 2, 3)
    every = draw.of(1, 2, 3, depth + 1)
    vision = {
        **_qwen_tower(draw, depth, tower_heads, (patch, pool)),
        "window_size": patch * pool * draw.of(1, 2, 3, 9) + draw.of(0, 1),
        "out_hidden_size": width,
        "fullatt_block_indexes": list(range(every - 1, depth + draw.of(0, 3), every)),
        **draw.some({"model_type": "qwen2_5_vl", "hidden_act": "silu", "in_chans": 3}),
        **draw.some({"temporal_patch_size": 2, "tokens_per_second": 2, "spatial_patch_size": 5}),
    }
    tied = draw.some({"tie_word_embeddings": draw.of(True, False)})
    notes = draw.some(_without("pad_token_id"), 0.3)
    whole = {"model_type": "qwen2_5_vl", "vision_config": vision, **_QWEN_IDS, **notes}
    parts = {"text_config": {"model_type": "qwen2_5_vl_text", **text}}
    return {**whole, **tied, **draw.of(text, parts, {**parts, **text})}


def _qwen3(draw: Draw) -> dict[str, Any]:
    kv_heads, heads = _heads(draw)
    sections = draw.of([2, 1, 1], [3, 1, 2], [4, 2, 2], [3, 2, 2])
    layers, theta = draw.of(1, 2, 3, 4), draw.of(100.0, 1e4, 5e6)
    width = draw.of(12, 16, 30)
    rope = {"rope_type": "default", "mrope_section": sections}
    rope |= draw.some({"mrope_interleaved": True})
    text = {
        "model_type": "qwen3_vl_text",
        **_decoder(draw, width, heads, kv_heads, layers),
        "head_dim": 2 * sum(sections),
        **draw.some({"rms_norm_eps": draw.of(1e-5, 1e-6, 1e-3), "hidden_act": "silu"}),
        **draw.some({"attention_bias": False, "attention_dropout": 0.0, "dtype": "float32"}),
        **draw.of(
            {"rope_theta": theta, "rope_scaling": rope},
            {"rope_parameters": {"rope_theta": theta, **rope}},
        ),
    }
    patch, pool = draw.of((2, 2), (2, 3), (3, 2), (3, 4), (6, 2), (4, 3))
    depth, tower_heads = draw.of(1, 2, 3, 4), draw.of(1, 2, 3)
    inner = [layer for layer in range(depth) if draw.rng.random() < 0.5][:layers]
    vision = {
        **_qwen_tower(draw, depth, tower_heads, (patch, pool)),
        "out_hidden_size": width,
        "num_position_embeddings": draw.of(1, 4, 25, 81, 144),
        "deepstack_visual_indexes": inner,
        **draw.some({"model_type": draw.of("qwen3_vl", "qwen3_vl_vision"), "hidden_act": _GELU}),
        **draw.some({"temporal_patch_size": 2, "in_channels": 3, "initializer_range": 0.5}),
    }
    tied = draw.of({}, {"tie_word_embeddings": True}, {"tie_word_embeddings": False})
    if tied and draw.of(True, False):
        text |= tied
    notes = draw.some(_without("pad_token_id"), 0.3)
    parts = {"text_config": text, "vision_config": vision}
    return {"model_type": "qwen3_vl", **parts, **_QWEN_IDS, **tied, **notes}


def _internvl(draw: Draw) -> dict[str, Any]:
    kv_heads, heads = _heads(draw)
    theta = draw.of(100.0, 1e4, 1e6)
    plain = {"rope_type": "default", **draw.some({"factor": 2.0})}
    rope = draw.of(plain, {"rope_type": "dynamic", "factor": 2.0})
    longest = {"max_position_embeddings": 32_768}
    text = {
        "model_type": "qwen2",
        **_decoder(draw, heads * draw.of(4, 6, 8), heads, kv_heads),
        **draw.some(_without("max_position_embeddings"), 0.3),
        **(longest if rope["rope_type"] == "dynamic" else draw.some(longest)),
        **draw.some({"rms_norm_eps": draw.of(1e-5, 1e-6, 1e-3), "hidden_act": "silu"}),
        **draw.some({"use_sliding_window": False, "sliding_window": 3, "max_window_layers": 1}),
        **draw.of(
            {"rope_theta": theta, "rope_scaling": rope},
            {"rope_parameters": {"rope_theta": theta, **rope}},
        ),
    }
    patch, ratio = draw.of((4, 0.5), (6, 0.5), (12, 0.5), (8, 1.0))
    tower_heads, pair = draw.of(1, 2, 3), draw.of(True, False)
    vision = {
        "model_type": "internvl_vision",
        "hidden_size": 8 * tower_heads,
        "intermediate_size": draw.of(9, 40),
        "num_hidden_layers": draw.of(1, 2, 3),
        "num_attention_heads": tower_heads,
        "image_size": [SIZE, SIZE] if pair else SIZE,
        "patch_size": [patch, patch] if pair else patch,
        "attention_bias": True,
        **draw.some({"hidden_act": "gelu", "use_qk_norm": False, "norm_type": "layer_norm"}),
        **draw.some({"layer_norm_eps": 1e-6, "use_mean_pooling": True, "use_mask_token": False}),
        **draw.some({"layer_scale_init_value": 0.3, "projection_dropout": 0.0}),
        **draw.some({"hidden_dropout_prob": 0.0, "attention_dropout": 0.0}),
    }
    return {
        "model_type": "internvl",
        "text_config": text,
        "vision_config": vision,
        "downsample_ratio": ratio,
        "image_seq_length": round(SIZE // patch * ratio) ** 2,
        "image_token_id": 1290,
        "tie_word_embeddings": draw.of(True, False),
        **draw.some({"projector_hidden_act": "gelu", "vision_feature_layer": -1}),
    }


def _smolvlm(draw: Draw) -> dict[str, Any]:
    text = _llava("llava", draw)["text_config"]
    text |= draw.some({"qk_layer_norms": False, "pixel_shuffle_factor": 4, "use_resampler": False})
    patch, pool = draw.of((4, 2), (4, 3), (6, 2), (6, 4), (12, 2), (8, 1))
    idle = ("vision_use_head", "projection_dim", "num_image_tokens", "projector_hidden_act")
    vision = {name: value for name, value in _vision(draw, patch).items() if name not in idle}
    vision |= {"model_type": draw.of("idefics3", "idefics3_vision")}
    vision |= draw.some({"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 24}})
    parts = {"text_config": text, "vision_config": vision, "scale_factor": pool}
    tied = draw.of({}, {"tie_word_embeddings": True}, {"tie_word_embeddings": False})
    notes = draw.some(_without("pad_token_id"), 0.3)
    return {"model_type": "idefics3", **parts, "image_token_id": 1290, **tied, **notes}


def _gemma4(kind: str, draw: Draw) -> dict[str, Any]:
    kv_heads, heads = _heads(draw)
    every, theta = draw.of(2, 3), draw.of(100.0, 1e4, 1e6)
    is_small = kind == "gemma4_small"
    layers = every * (draw.of(1, 2) + is_small)
    kinds = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    share = draw.some({"partial_rotary_factor": draw.of(0.25, 0.5, 1.0), "factor": 4.0})
    far = {"rope_type": draw.of("proportional", "default"), "rope_theta": theta, **share}
    near = {"rope_type": "default", "rope_theta": draw.of(50.0, 1e4)}
    of_global = {"head_dim": draw.of(4, 8, 12), "num_key_value_heads": draw.of(1, kv_heads)}
    by_layer = {str(i): dict(of_global) for i, kind in enumerate(kinds) if kind == "full_attention"}
    text = {
        **_decoder(draw, heads * 6, heads, kv_heads, layers),
        "head_dim": draw.of(4, 6, 8),
        "layer_types": kinds,
        "hidden_size_per_layer_input": 0,
        "sliding_window": draw.of(3, 7, 1000),
        **draw.of(
            {"per_layer_config": by_layer},
            {"global_head_dim": of_global["head_dim"]},
            {
                "global_head_dim": of_global["head_dim"],
                "num_global_key_value_heads": of_global["num_key_value_heads"],
            },
        ),
        **draw.some({"attention_k_eq_v": draw.of(True, False)}, 0.7),
        **draw.some({"use_bidirectional_attention": draw.of("vision", None)}, 0.8),
        **draw.some({"rope_parameters": {"full_attention": far, "sliding_attention": near}}),
        **draw.some({"final_logit_softcapping": draw.of(5.0, 30.0, None)}),
        **draw.some(_NOTES, 0.3),
        **draw.some({"model_type": f"{kind}_text", "rms_norm_eps": 1e-6, "attention_bias": False}),
        **draw.some({"hidden_activation": _GELU, "enable_moe_block": False, "num_experts": None}),
        **draw.some({"num_kv_shared_layers": 0, "use_double_wide_mlp": draw.of(True, False)}),
    }
    if "model_type" in text:
        text["model_type"] = text["model_type"].replace("small_", "")
    if is_small:
        given, shared = draw.of(0, 3, 8, 8), every * draw.of(*range(layers // every))
        # transformers 5.23 cannot run shared keys without inputs of layers.
        text |= {"hidden_size_per_layer_input": given or (5 if shared else 0)}
        text |= {"num_kv_shared_layers": shared}
        text |= {"vocab_size_per_layer_input": VOCAB, "pad_token_id": 0}
    # transformers 5.23 gives no token at all where a tower pools nothing.
    none = (12, 1) if kind == "gemma4_unified" else (4, 3)
    patch, pool = draw.of((2, 3), (4, 2), (4, 3), (6, 2), (3, 4), none)
    if kind == "gemma4_unified":
        width, sound = draw.of(5, 12), draw.of(3, 6)
        vision = {
            "patch_size": patch,
            "pooling_kernel_size": pool,
            "mm_embed_dim": width,
            "output_proj_dims": width,
            "mm_posemb_size": draw.of(16, 20),
            **draw.some({"model_patch_size": patch * pool, "num_soft_tokens": 280}),
        }
        sounds = {"audio_embed_dim": sound, **draw.some({"hidden_size": sound})}
        parts = {"vision_config": vision, **draw.some({"audio_config": draw.of(None, sounds)})}
        return {"model_type": kind, "text_config": text, "image_token_id": 1290, **parts}
    heads, head_dim = draw.of(1, 2, 3), draw.of(4, 8, 12)
    vision = {
        "hidden_size": heads * head_dim,
        "intermediate_size": draw.of(9, 40),
        "num_hidden_layers": draw.of(1, 2, 3),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": head_dim,
        "patch_size": patch,
        "pooling_kernel_size": pool,
        "position_embedding_size": draw.of(64, 80),
        **draw.some({"standardize": draw.of(True, False), "use_clipped_linears": False}),
        **draw.some({"model_type": "gemma4_vision", "attention_bias": False}),
        **draw.some({"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
        **draw.some({"default_output_length": 280, "global_head_dim": 7}),
        **({"use_clipped_linears": draw.of(True, False)} if is_small else {}),
    }
    return {
        "model_type": "gemma4",
        "text_config": text,
        "vision_config": vision,
        "image_token_id": 1290,
        **draw.some({"audio_config": None, "tie_word_embeddings": True}),
        **draw.some({"boi_token_id": 1288, "eoi_token_id": 1289, "video_token_id": 1299}),
        **draw.some({"vision_soft_tokens_per_image": 280}),
    }


def _text(kind: str, draw: Draw) -> dict[str, Any]:
    kv_heads, heads = _heads(draw)
    layers = draw.of(1, 2, 3, 4)
    # Only Gemma 1's may be any; transformers wants the others' to hold whole heads.
    width = draw.of(12, 18, 24) if kind == "paligemma" else heads * 6
    config = {
        **_decoder(draw, width, heads, kv_heads, layers),
        "head_dim": draw.of(4, 6, 8),
        **draw.some(_NOTES, 0.3),
        **draw.some({"rms_norm_eps": 1e-6, "attention_bias": False, "tie_word_embeddings": True}),
        **draw.some({"attention_dropout": draw.of(0, 0.0), "hidden_activation": _GELU}),
    }
    theta = draw.of(100.0, 1e4, 1e6)
    if kind in ("paligemma", "paligemma2"):
        # PaliGemma's rotary positions are never stretched; a factor may be left over.
        idle = {"rope_type": "default", **draw.some({"factor": 8.0})}
        config |= draw.of(
            {},
            {"rope_theta": theta},
            {"rope_theta": theta, "rope_scaling": idle},
            {"rope_theta": theta, "rope_scaling": None},
            {"rope_parameters": {"rope_theta": theta, **idle}},
        )
        config |= draw.some({"use_bidirectional_attention": draw.of(True, None)})
        if kind == "paligemma":
            return config | draw.some({"hidden_act": _GELU, "query_pre_attn_scalar": 7})
        config |= draw.some({"attn_logit_softcapping": draw.of(3.0, 50.0, None)})
        config |= draw.some({"final_logit_softcapping": draw.of(5.0, 30.0, None)})
    else:
        config |= _gemma3_rope(draw, theta)
        config |= draw.some({"attn_logit_softcapping": None, "final_logit_softcapping": None})
        config |= draw.some({"use_bidirectional_attention": draw.of(False, None)})
        config |= draw.some({draw.of("sliding_window_pattern"): draw.of(2, 3)})
    config |= draw.some({"query_pre_attn_scalar": draw.of(3, 5, 16)}, 0.7)
    config |= draw.some({"sliding_window": draw.of(3, 7, 1000)}, 0.8)
    every = draw.of(1, 2, layers + 1)
    kinds = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    return config | draw.some({"layer_types": kinds}, 0.3)


def _gemma3_rope(draw: Draw, theta: float) -> dict[str, Any]:
    scaling = draw.of(
        None,
        {"rope_type": "linear", "factor": draw.of(2.0, 8.0)},
        {"rope_type": "default", **draw.some({"factor": 8.0})},
    )
    older = draw.some({"rope_theta": theta, "rope_local_base_freq": draw.of(50.0, 1e4)})
    near = {"rope_type": "default", "rope_theta": draw.of(50.0, 1e4)}
    far = {"rope_theta": theta, **(scaling or {"rope_type": "default"})}
    newer = {"rope_parameters": {"full_attention": far, "sliding_attention": near}}
    return draw.of(older, {**older, "rope_scaling": scaling}, newer)


def _vision(draw: Draw, patch: int) -> dict[str, Any]:
    heads = draw.of(1, 2, 3)
    return {
        "hidden_size": 12 * heads,
        "intermediate_size": draw.of(9, 40),
        "num_hidden_layers": draw.of(1, 2, 3),
        "num_attention_heads": heads,
        "image_size": SIZE,
        "patch_size": patch,
        **draw.some({"model_type": "siglip_vision_model", "num_channels": 3}),
        **draw.some({"hidden_act": _GELU, "layer_norm_eps": 1e-6, "attention_dropout": 0.0}),
        # Without the key the library adds a head that nothing asks, and we refuse its weights.
        "vision_use_head": False,
        **draw.some({"projection_dim": 18, "vocab_size": 5}),
        **draw.some({"num_image_tokens": 3, "projector_hidden_act": "gelu_fast"}, 0.3),
    }


_GELU = "gelu_pytorch_tanh"
# Patterns of maps that are in no `layers`.
_OF_TOWERS = {
    "qkv": r"blocks\.\d+\.attn\.qkv",
    "attn.proj": r"blocks\.\d+\.attn\.proj",
    "linear_fc2": r"blocks\.\d+\.mlp\.linear_fc2",
    "projection_layer": r"layer\.\d+\.attention\.projection_layer",
    "linear_2": "multi_modal_projector.linear_2",
}
# Where not SigLIP's; Gemma 4's has each linear map within a module of its name.
_MAPS_OF_TOWERS = {
    "gemma3_text": (),
    "gemma4_unified": (),
    # Without its part, `proj` would be the patches' convolution too.
    "qwen": ("qkv", "attn.proj"),
    "qwen3": ("qkv", "attn.proj", "linear_fc2"),
    "internvl": ("projection_layer", "linear_2"),
    "gemma4": (_LINEAR := ("q_proj.linear", "o_proj.linear", "down_proj.linear")),
    "gemma4_small": _LINEAR,
}
_MAPS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def _vary(settings: dict[str, Any], names: list[str], draw: Draw) -> None:
    """Other ways to say which modules are meant: lists that leave out, patterns that overlap."""
    if "layers_to_transform" in settings:
        settings["layers_pattern"] = draw.of("layers", ["layers"], None, [])
        layer = settings["layers_to_transform"][0]
        settings["layers_to_transform"] = draw.of([layer], [layer, 99], layer)
    if len(names) > 1 and draw.rng.random() < 0.3:
        settings["exclude_modules"] = [names[-1], "lm_head"]
    if names[0] in _MAPS[:4] and draw.rng.random() < 0.4:
        # The first that matches counts, and PEFT sorts them when it writes.
        one, two = rf"layers\.\d+\.self_attn\.{names[0]}", f"self_attn.{names[0]}"
        both = settings["rank_pattern"] | {one: draw.of(1, 2), two: draw.of(3, 5), names[0]: 2}
        settings["rank_pattern"] = dict(sorted(both.items()))


def draw_adapter(kind: str, seed: int, layers: int) -> dict[str, Any]:
    """Arguments of PEFT's `LoraConfig` for a decoder of so many layers."""
    draw = Draw(100 + KINDS.index(kind), seed)
    seen = _MAPS_OF_TOWERS.get(kind, ("out_proj", "fc1", "fc2"))
    names = [name for name in (*_MAPS, *seen) if draw.rng.random() < 0.4] or ["q_proj"]
    dora = draw.of(False, False, True)
    settings: dict[str, Any] = {
        "r": draw.of(1, 2, 4),
        "lora_alpha": draw.of(1, 4, 7),
        "target_modules": draw.of(names, names, "all-linear"),
        "use_dora": dora,
        "use_rslora": draw.of(True, False),
        "lora_dropout": draw.of(0.0, 0.1),
        "bias": "none",
        "task_type": "CAUSAL_LM",
        "trainable_token_indices": draw.of(None, list(range(100, 1124))),
        **({"trainable_token_indices": None} if kind in NO_LOC else {}),
    }
    if settings["target_modules"] == names:
        part = "mlp"
        if names[-1].removesuffix(".linear") in (*_MAPS[:4], "out_proj"):
            part = "self_attn"
        patterns = [names[0], rf"layers\.\d+\.{part}\.{names[-1]}"]
        patterns[1] = _OF_TOWERS.get(names[-1], patterns[1])
        settings["rank_pattern"] = draw.some({draw.of(*patterns): draw.of(1, 3)})
        settings["alpha_pattern"] = draw.some({draw.of(*patterns): draw.of(2, 9)})
        if not dora and layers > 1 and not kind.startswith("gemma4") and draw.rng.random() < 0.4:
            settings["layers_to_transform"] = [draw.of(*range(layers))]
            settings["layers_pattern"] = "layers"
        _vary(settings, names, Draw(200 + KINDS.index(kind), seed))
    if kind.startswith("gemma4"):
        names = names if settings["target_modules"] == names else [*_MAPS, *seen]
        more = ["per_layer_input_gate", "per_layer_projection"] if kind == "gemma4_small" else []
        names = [*names, *(name for name in more if draw.rng.random() < 0.7)]
        # By their last names alone the tower's modules around linear maps would be meant too.
        of_text = "|".join(name for name in names if name in (*_MAPS, *more))
        of_tower = "|".join(name.removesuffix(".linear") for name in names if name in seen)
        settings["target_modules"] = (
            rf".*language_model\..*\.({of_text or 'none'})"
            rf"|.*vision_tower\..*\.({of_tower or 'none'})\.linear"
        )
    _save_whole(settings, kind, Draw(500 + KINDS.index(kind), seed))
    if len(names) > 1 and settings.get("exclude_modules") is None:
        out = names[1].removesuffix(".linear")
        settings["exclude_modules"] = Draw(600 + KINDS.index(kind), seed).of(
            None, None, [out], rf"(?:.*?\.)+{out}(\.linear)?"
        )
    return settings


_PROJECTORS = {"qwen": "merger", "qwen3": "merger", "gemma4": "embed_vision"}
_PROJECTORS |= {"gemma4_small": "embed_vision", "gemma4_unified": "multimodal_embedder"}
_PROJECTORS["smolvlm"] = "connector"


def _save_whole(settings: dict[str, Any], kind: str, draw: Draw) -> None:
    tables = [["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"]]
    projector = [_PROJECTORS.get(kind, "multi_modal_projector")]
    whole = draw.of(None, None, None, *tables, *([projector] if kind != "gemma3_text" else []))
    settings["modules_to_save"] = whole
    if whole in tables:
        settings["trainable_token_indices"] = None
        settings["ensure_weight_tying"] = draw.of(False, False, True)
