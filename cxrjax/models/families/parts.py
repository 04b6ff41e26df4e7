"""Tables that several families share: SigLIP's tower, Gemma's and Llama's decoders, images."""

from collections.abc import Mapping
from typing import Any

from cxrjax.models.families.family import (
    MOST_LAYERS,
    NOTE,
    Setting,
    Table,
    divides,
    global_every,
    key,
    kinds_of_layers,
    notes,
    ours,
    part,
    rope,
    rope_scale,
)
from cxrjax.models.presets import DecoderConfig, VisionConfig

# What transformers writes into any configuration, of every version since 4.40: what generation
# does, how training began, notes.
COMMON: Table = {
    **notes(
        *("_name_or_path", "architectures", "transformers_version", "dtype", "torch_dtype"),
        *("_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "use_cache"),
        *("cache_implementation", "initializer_range", "max_position_embeddings"),
        *("num_image_tokens", "chunk_size_feed_forward", "vision_use_head"),
        *("output_attentions", "output_hidden_states", "output_scores", "return_dict"),
        *("return_dict_in_generate", "torchscript", "tf_legacy_loss", "use_bfloat16"),
        *("pad_token_id", "eos_token_id", "bos_token_id", "sep_token_id", "decoder_start_token_id"),
        *("id2label", "label2id", "problem_type", "finetuning_task", "task_specific_params"),
        *("tokenizer_class", "prefix", "bad_words_ids", "begin_suppress_tokens", "suppress_tokens"),
        *("forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "do_sample"),
        *("early_stopping", "num_beams", "num_beam_groups", "num_return_sequences"),
        *("diversity_penalty", "length_penalty", "repetition_penalty", "temperature", "top_k"),
        *("top_p", "typical_p", "min_length", "max_length", "no_repeat_ngram_size"),
        *("encoder_no_repeat_ngram_size", "exponential_decay_length_penalty"),
        *("unsloth_fixed", "unsloth_version", "model_name"),
    ),
    "attention_dropout": key(0, None),
    **dict.fromkeys(
        ("is_encoder_decoder", "is_decoder", "add_cross_attention", "tie_encoder_decoder"),
        key(False, None),
    ),
    "cross_attention_hidden_size": key(None),
    "pruned_heads": key({}, None),
}
# Where an output layer in the weights is compared with the embedding, whatever this says.
TIE = {"tie_word_embeddings": key(True, False, default=True)}
GELU_TANH = key("gelu_pytorch_tanh", None)
THETA = key(most=1e12)
ROPE = {
    "rope_type": key("default", "linear"),
    "type": key("default", "linear"),
    "rope_theta": THETA,
    "factor": key(most=1e6),
}


def decoder_keys(
    vocab_size: int, width: int, mlp_dim: int, depth: int, num_heads: int, num_kv_heads: int | None
) -> dict[str, Setting]:
    """Returns the sizes that every decoder has, with transformers' defaults."""
    null = (None,) if num_kv_heads is None else ()
    return {
        "vocab_size": key(most=2**22, default=vocab_size, ours="vocab_size"),
        "hidden_size": key(most=2**16, default=width, ours="width"),
        "intermediate_size": key(most=2**20, default=mlp_dim, ours="mlp_dim"),
        "num_hidden_layers": key(most=MOST_LAYERS, default=depth, ours="depth"),
        "num_attention_heads": key(most=2**10, default=num_heads, ours="num_heads"),
        "num_key_value_heads": key(*null, most=2**10, default=num_kv_heads, ours="num_kv_heads"),
    }


def tower_keys(width: int, mlp_dim: int, depth: int, num_heads: int) -> dict[str, Setting]:
    """Returns the sizes that every tower has, with transformers' defaults."""
    return {
        "hidden_size": key(most=2**16, default=width, ours="width"),
        "intermediate_size": key(most=2**20, default=mlp_dim, ours="mlp_dim"),
        "num_hidden_layers": key(most=MOST_LAYERS, default=depth, ours="depth"),
        "num_attention_heads": key(most=2**10, default=num_heads, ours="num_heads"),
    }


def square_keys(image_size: int, patch_size: int) -> dict[str, Setting]:
    """Returns the sizes of a tower's images."""
    return {
        "num_channels": key(3),
        "image_size": key(most=2**13, default=image_size, ours="image_size"),
        "patch_size": key(most=2**10, default=patch_size, ours="patch_size"),
    }


def tower(table: Table, vision: Mapping[str, Any], **more: Any) -> VisionConfig:
    """Returns the sizes of a tower of square images and whole patches.

    Raises:
        ValueError: sizes that do not go together.
    """
    found = ours(table, vision) | more
    if found["image_size"] % found["patch_size"] and not found.get("side_by_side"):
        raise ValueError(f"images of {found['image_size']}, patches of {found['patch_size']}")
    divides(found["num_heads"], found["width"], "heads of the tower")
    return VisionConfig(**found)


_TOWER_NOTES = notes(
    # The weights have the width that counts.
    *("projection_dim", "vocab_size"),
    # Published, and read by no version.
    *("projector_hidden_act", "num_positions"),
)
SIGLIP: Table = {
    **COMMON,
    **TIE,
    "model_type": key("siglip_vision_model"),
    **tower_keys(768, 3072, 12, 12),
    **square_keys(224, 16),
    "hidden_act": GELU_TANH,
    "layer_norm_eps": key(1e-6),
    **_TOWER_NOTES,
}
# Of towers whose layers are CLIP's: SigLIP's too.
# Of models that transformers published before its version 5, as files and as modules have them.

# Llama's and Mistral's decoder.
_LLAMA: Table = {
    **COMMON,
    "model_type": key("llama", "mistral", default="llama"),
    **decoder_keys(32_000, 4096, 11_008, 32, 32, None),
    "head_dim": key(None, most=2**12, default=None),
    "hidden_act": key("silu"),
    "rms_norm_eps": key(most=0.1, default=1e-6),
    "attention_bias": key(False, None),
    "mlp_bias": key(False, None),
    "pretraining_tp": key(1, None),
    "sliding_window": key(None, most=2**40, default=None),  # of Mistral; Llama reads none
    "rope_theta": THETA,
    "rope_scaling": part(ROPE),
    "rope_parameters": part(ROPE),
    "tie_word_embeddings": key(False, None),
}
_MISTRAL = {
    **_LLAMA,
    **decoder_keys(32_000, 4096, 14_336, 32, 32, 8),
    "num_key_value_heads": key(None, most=2**10, default=8, ours="num_kv_heads"),
    "sliding_window": key(None, most=2**40, default=4096),
}


def llama_part(**changes: Setting) -> Setting:
    """Returns the key of a Llama's or a Mistral's settings, with some keys of one's own."""
    return part(_LLAMA | changes, mistral=_MISTRAL | changes, default={})


# What Llama's, Mistral's and Qwen's decoders have alike.
PLAIN_DECODER: dict[str, Any] = {
    "prefix_attention": "past",
    "plain_norms": True,
    "activation": "silu",
    "scale_embeddings": False,
}


def llama(text: Mapping[str, Any], where: str, *, tied: bool = False) -> DecoderConfig:
    """Returns the decoder's sizes from Llama's or Mistral's settings."""
    found = ours(_LLAMA, text)
    heads, width = found["num_heads"], found["width"]
    if text["model_type"] == "llama":  # as transformers has it
        divides(heads, width, "heads of the decoder")
    found["num_kv_heads"] = found["num_kv_heads"] or heads
    head_dim = text["head_dim"] or width // heads
    divides(found["num_kv_heads"], heads, "heads of keys and values")
    divides(2, head_dim, "halves of a head")
    # Mistral's first version had a window, in every layer; Llama has no such key.
    window = text["sliding_window"] if text["model_type"] == "mistral" else None
    turned = rope(text, 10_000.0)
    return DecoderConfig(
        **found,
        **PLAIN_DECODER,
        head_dim=head_dim,
        rope_base=turned["rope_theta"],
        rope_scale=rope_scale(turned, where),
        window=window,
        global_every=1 if window is None else found["depth"] + 1,
        norm_eps=float(text["rms_norm_eps"]),
        tied=tied,
    )


# No null here: transformers' classes read it as off, or stop, and not as their default.
IMAGES: Table = {
    "image_mean": key([0.5, 0.5, 0.5]),
    "image_std": key([0.5, 0.5, 0.5]),
    "rescale_factor": key(1 / 255),
    "do_normalize": key(True),
    "do_rescale": key(True),
    "do_resize": key(True),
    **dict.fromkeys(
        ("do_center_crop", "do_pad", "do_pan_and_scan", "do_flip_channel_order"), key(False, None)
    ),
    **notes(
        # Ours are resized by `cxrjax.images`, grey ones made three colours.
        *("resample", "size", "do_convert_rgb", "crop_size", "pad_size", "default_to_square"),
        *("image_processor_type", "feature_extractor_type", "processor_class"),
        *("image_seq_length", "image_seq_len", "data_format", "input_data_format"),
        *("disable_grouping", "device", "return_tensors", "backend"),
        *("pan_and_scan_min_crop_size", "pan_and_scan_max_num_crops"),
        *("pan_and_scan_min_ratio_to_activate", "_valid_processor_keys", "_name_or_path"),
    ),
}


def images(
    mean: tuple[float, ...] | None = None, std: tuple[float, ...] | None = None, **changes: Setting
) -> dict[str, Setting]:
    """Returns the settings of an image processor with these colours, and with these changes."""
    colours = {}
    if mean is not None and std is not None:
        colours = {"image_mean": key(list(mean)), "image_std": key(list(std))}
    return {**IMAGES, **colours, **changes}


# Ours are placed by `data.geometry`: what a processor crops and pads does not count.
PLACED = {"do_center_crop": NOTE, "do_pad": NOTE}

# Gemma's decoders of the first three generations; each family states its defaults.
GEMMA: Table = {
    **COMMON,
    **TIE,
    "head_dim": key(most=2**12, default=256, ours="head_dim"),
    "hidden_act": GELU_TANH,
    "hidden_activation": GELU_TANH,
    "rms_norm_eps": key(1e-6),
    "attention_bias": key(False, None),
    "use_bidirectional_attention": key(False, True, None, default=None),
    "query_pre_attn_scalar": key(most=1e6, default=256),
    "attn_logit_softcapping": key(None, most=1e6, default=None),
    "final_logit_softcapping": key(None, most=1e6, default=None),
    "sliding_window": key(most=2**40, default=4096),
    "sliding_window_pattern": key(most=MOST_LAYERS, default=6),
    "_sliding_window_pattern": NOTE,  # a note of transformers' beside `layer_types`
    "layer_types": key(None, items=("full_attention", "sliding_attention"), default=None),
    "rope_theta": THETA,
    "rope_local_base_freq": THETA,
    "rope_scaling": part(ROPE),
    "rope_parameters": part(
        {**ROPE, "full_attention": part(ROPE), "sliding_attention": part(ROPE)}
    ),
}


def gemma_layers(text: Mapping[str, Any], every: int, where: str) -> dict[str, Any]:
    """Returns the sizes of a decoder with local and global layers (Gemma 2 and 3).

    Args:
        every: transformers' default of the period of global layers.
    """
    depth = text["num_hidden_layers"]
    layers = text["layer_types"] or kinds_of_layers(depth, every)
    if len(layers) != depth:
        raise ValueError(f"{len(layers)} layer_types for {depth} layers")
    divides(text["num_attention_heads"], text["hidden_size"], "heads of the decoder")
    return {
        "query_scale": float(text["query_pre_attn_scalar"]),
        "window": text["sliding_window"],
        "global_every": global_every(layers, where),
        "post_norms": True,
    }


def gemma(text: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sizes that all of Gemma's decoders have."""
    found = ours({**GEMMA, **decoder_keys(1, 1, 1, 1, 1, 1)}, text)
    divides(found["num_kv_heads"], found["num_heads"], "heads of keys and values")
    divides(2, found["head_dim"], "halves of a head")
    return found
