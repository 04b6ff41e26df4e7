"""Hugging Face's configurations: a closed world, completed by transformers' defaults.

A key that is not listed here is refused, as is a value that our models cannot honour: what we read
means to us what it means to transformers 5. Sizes have bounds, since the library makes lists as
long as a file says.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cxrjax.errors import ForeignError, UserError
from cxrjax.files import read_json_object
from cxrjax.models import presets
from cxrjax.models.hf_layout import check_architecture
from cxrjax.models.whole_configs import states_all
from cxrjax.untrusted.closed_world import CHECKED_LATER, NO_MATTER, Rule, check_settings
from cxrjax.untrusted.foreign_files import MIB
from cxrjax.untrusted.names import shown_value

CONFIG_FILE = "config.json"
# The picture's way into the model: a file of its own, or since transformers 5 a part of another.
_PREPROCESSOR, _PROCESSOR = "preprocessor_config.json", "processor_config.json"
MOST_CONFIG_BYTES = MIB  # they have some kB
MOST_LAYERS = 1_000

# What transformers writes into any configuration, of every version since 4.40: what generation
# does, how training began, notes.
_NOTES = dict.fromkeys(
    (
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
    NO_MATTER,
)
_COMMON = {
    **_NOTES,
    "attention_dropout": Rule((0, None)),
    "is_encoder_decoder": Rule((False, None)),
    "is_decoder": Rule((False, None)),
    "add_cross_attention": Rule((False, None)),
    "cross_attention_hidden_size": Rule((None,)),
    "tie_encoder_decoder": Rule((False, None)),
    "pruned_heads": Rule(({}, None)),
    # An output layer in the weights is compared with the embedding, whatever stands here.
    "tie_word_embeddings": Rule((True, False)),
}
_ACTIVATION = Rule(("gelu_pytorch_tanh", None))
_THETA = Rule(most=1e12)
_ROPE = {
    "rope_type": Rule(("default", "linear")),
    "type": Rule(("default", "linear")),
    "rope_theta": _THETA,
    "factor": Rule(most=1e6),
}
_EITHER_ROPE = Rule((None,), keys=_ROPE)
_TEXT = {
    **_COMMON,
    "vocab_size": Rule(most=2**22),
    "hidden_size": Rule(most=2**16),
    "intermediate_size": Rule(most=2**20),
    "num_hidden_layers": Rule(most=MOST_LAYERS),
    "num_attention_heads": Rule(most=2**10),
    "num_key_value_heads": Rule(most=2**10),
    "head_dim": Rule(most=2**12),
    "hidden_act": _ACTIVATION,
    "hidden_activation": _ACTIVATION,
    "rms_norm_eps": Rule((1e-6,)),
    "attention_bias": Rule((False, None)),
    "use_bidirectional_attention": Rule((False, True, None)),  # `hf_layout` knows which
    "query_pre_attn_scalar": Rule(most=1e6),
    "attn_logit_softcapping": Rule((None,), most=1e6),
    "final_logit_softcapping": Rule((None,), most=1e6),
    "sliding_window": Rule(most=2**40),
    "sliding_window_pattern": Rule(most=MOST_LAYERS),
    "_sliding_window_pattern": NO_MATTER,  # a note of transformers' beside `layer_types`
    "layer_types": Rule((None,), items=("full_attention", "sliding_attention")),
    "rope_theta": _THETA,
    "rope_local_base_freq": _THETA,
    "rope_scaling": _EITHER_ROPE,
    "rope_parameters": Rule(
        (None,),
        keys={**_ROPE, "full_attention": _EITHER_ROPE, "sliding_attention": _EITHER_ROPE},
    ),
}
# Gemma 4's. What its mixture of experts has besides is refused.
_GEMMA4_TEXT = {
    **_COMMON,
    **{
        key: _TEXT[key]
        for key in (
            *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
            *("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_activation"),
            *("rms_norm_eps", "attention_bias", "final_logit_softcapping", "sliding_window"),
            "layer_types",
        )
    },
    "model_type": Rule(("gemma4_text",)),
    "tie_word_embeddings": Rule((True, None)),
    # Of global layers: by these two keys, or layer by layer in the third.
    "global_head_dim": Rule(most=2**12),
    "num_global_key_value_heads": Rule((None,), most=2**10),
    "per_layer_config": Rule(
        keys=dict.fromkeys(
            # Some versions of transformers write numbers of one length.
            {f"{layer:0{digits}}" for layer in range(MOST_LAYERS) for digits in (1, 2, 3)},
            Rule(keys={"head_dim": Rule(most=2**12), "num_key_value_heads": Rule(most=2**10)}),
        )
    ),
    "attention_k_eq_v": Rule((True, False)),
    "use_bidirectional_attention": Rule(("vision", None)),
    "rope_parameters": Rule(
        (None,),
        keys={
            "full_attention": Rule(
                keys={
                    "rope_type": Rule(("proportional", "default")),
                    "rope_theta": _THETA,
                    "partial_rotary_factor": Rule(most=1.0),
                    "factor": Rule(most=1e6),
                }
            ),
            "sliding_attention": Rule(keys={"rope_type": Rule(("default",)), "rope_theta": _THETA}),
        },
    ),
    "hidden_size_per_layer_input": Rule((0,), most=2**12),
    "vocab_size_per_layer_input": Rule(most=2**22),
    "num_kv_shared_layers": Rule((0,), most=MOST_LAYERS),
    "use_double_wide_mlp": Rule((True, False)),
    "pad_token_id": Rule((0,)),  # whose row of the second table images have
    "enable_moe_block": Rule((False, None)),
    **dict.fromkeys(
        ("num_experts", "top_k_experts", "moe_intermediate_size", "expert_intermediate_size"),
        Rule((None,)),
    ),
}
# The 12B has none of what the small sizes have.
_GEMMA4_UNIFIED_TEXT = {
    **_GEMMA4_TEXT,
    "model_type": Rule(("gemma4_unified_text",)),
    **dict.fromkeys(("hidden_size_per_layer_input", "num_kv_shared_layers"), Rule((0,))),
    **dict.fromkeys(
        ("vocab_size_per_layer_input", "use_double_wide_mlp", "pad_token_id"), NO_MATTER
    ),
}
# Llama's and Mistral's decoder, as LLaVA has it.
_LLAMA = {
    **{key: _TEXT[key] for key in _COMMON if key != "tie_word_embeddings"},
    **{
        key: _TEXT[key]
        for key in (
            *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
            *("num_attention_heads", "rope_theta", "rope_scaling", "attention_bias"),
        )
    },
    "model_type": Rule(("llama", "mistral")),
    "num_key_value_heads": Rule((None,), most=2**10),
    "head_dim": Rule((None,), most=2**12),
    "hidden_act": Rule(("silu",)),
    "rms_norm_eps": Rule(most=0.1),
    "mlp_bias": Rule((False, None)),
    "pretraining_tp": Rule((1, None)),
    "sliding_window": Rule((None,), most=2**40),  # of Mistral; Llama reads none
    "rope_parameters": _EITHER_ROPE,
    "tie_word_embeddings": Rule((False, None)),
}
# Qwen2.5-VL's decoder. Published files have these keys beside those of the whole model.
_QWEN_ROPE = Rule(
    (None,),
    keys={
        "rope_type": Rule(("default", "mrope")),
        "type": Rule(("default", "mrope")),
        "rope_theta": _THETA,
        "mrope_section": Rule(items=tuple(range(1, 2**11))),
    },
)
_QWEN_TEXT = {
    key: _TEXT[key]
    for key in (
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "rope_theta"),
    )
} | {
    "num_key_value_heads": Rule((None,), most=2**10),
    "hidden_act": Rule(("silu",)),
    "rms_norm_eps": Rule(most=0.1),
    "attention_dropout": Rule((0, None)),
    "use_sliding_window": Rule((False, None)),
    # Without it these count for nothing.
    "sliding_window": NO_MATTER,
    "max_window_layers": NO_MATTER,
    "layer_types": Rule((None,), items=("full_attention",)),
    "rope_scaling": _QWEN_ROPE,
    "rope_parameters": _QWEN_ROPE,
}
_QWEN_IDS = dict.fromkeys(
    (
        *("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
        *("vision_token_id", "image_token_index", "ignore_index"),
    ),
    NO_MATTER,
)
_QWEN_VISION = {
    **{key: rule for key, rule in _COMMON.items() if key != "tie_word_embeddings"},
    "model_type": Rule(("qwen2_5_vl", "qwen2_5_vl_vision")),
    "depth": Rule(most=MOST_LAYERS),
    "hidden_size": Rule(most=2**16),
    "intermediate_size": Rule(most=2**20),
    "num_heads": Rule(most=2**10),
    "hidden_act": Rule(("silu",)),
    "in_channels": Rule((3,)),
    "in_chans": Rule((3,)),
    "patch_size": Rule(most=2**10),
    "spatial_merge_size": Rule(most=2**6),
    "temporal_patch_size": Rule((2,)),
    "window_size": Rule(most=2**13),
    "out_hidden_size": Rule(most=2**16),
    "fullatt_block_indexes": Rule(items=tuple(range(MOST_LAYERS))),
    "rope_parameters": Rule(
        (None,), keys={"rope_type": Rule(("axial",)), "rope_theta": Rule((10_000,))}
    ),
    "spatial_patch_size": NO_MATTER,  # published, and read by no version
    "tokens_per_second": NO_MATTER,  # of videos
}
# InternVL's decoder, Qwen2.5's, and tower.
_DYNAMIC_ROPE = Rule(
    (None,),
    keys={
        "rope_type": Rule(("default", "dynamic")),
        "type": Rule(("default", "dynamic")),
        "rope_theta": _THETA,
        "factor": Rule(most=1e6),
    },
)
_INTERNVL_TEXT = {
    **{key: rule for key, rule in _COMMON.items() if key != "tie_word_embeddings"},
    **{key: rule for key, rule in _QWEN_TEXT.items() if not key.startswith("rope_")},
    "model_type": Rule(("qwen2",)),
    "max_position_embeddings": Rule(most=2**24),
    "rope_theta": _THETA,
    "rope_scaling": _DYNAMIC_ROPE,
    "rope_parameters": _DYNAMIC_ROPE,
    "tie_word_embeddings": Rule((True, False, None)),
}
# Qwen3-VL's decoder and tower.
_QWEN3_ROPE = Rule(
    (None,),
    keys={
        "rope_type": Rule(("default",)),
        "rope_theta": _THETA,
        "mrope_section": Rule(items=tuple(range(1, 2**11))),
        "mrope_interleaved": Rule((True,)),  # its code does so, whatever stands here
    },
)
_QWEN3_TEXT = {
    **{key: rule for key, rule in _COMMON.items() if key != "tie_word_embeddings"},
    **{
        key: _QWEN_TEXT[key]
        for key in (
            *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
            *("num_attention_heads", "num_key_value_heads", "hidden_act", "rms_norm_eps"),
            *("attention_dropout", "rope_theta"),
        )
    },
    "model_type": Rule(("qwen3_vl_text",)),
    "head_dim": Rule(most=2**12),
    "attention_bias": Rule((False, None)),
    "rope_scaling": _QWEN3_ROPE,
    "rope_parameters": _QWEN3_ROPE,
    "tie_word_embeddings": Rule((True, False, None)),
}
_QWEN3_VISION = {
    **{
        key: rule
        for key, rule in _QWEN_VISION.items()
        if key
        not in (
            *("window_size", "fullatt_block_indexes", "spatial_patch_size", "tokens_per_second"),
            "in_chans",
        )
    },
    "model_type": Rule(("qwen3_vl", "qwen3_vl_vision")),
    "hidden_act": _ACTIVATION,
    "num_position_embeddings": Rule(most=2**20),
    "deepstack_visual_indexes": Rule(items=tuple(range(MOST_LAYERS))),
}
_VISION = {
    **_COMMON,
    "model_type": Rule(("siglip_vision_model",)),
    "hidden_size": Rule(most=2**16),
    "intermediate_size": Rule(most=2**20),
    "num_hidden_layers": Rule(most=MOST_LAYERS),
    "num_attention_heads": Rule(most=2**10),
    "num_channels": Rule((3,)),
    "image_size": Rule(most=2**13),
    "patch_size": Rule(most=2**10),
    "hidden_act": _ACTIVATION,
    "layer_norm_eps": Rule((1e-6,)),
    # The weights have the width that counts.
    "projection_dim": NO_MATTER,
    "vocab_size": NO_MATTER,
    # Published, and read by no version.
    "projector_hidden_act": NO_MATTER,
    "num_positions": NO_MATTER,
}
_SIDES = Rule(most=2**13, items=tuple(range(1, 2**13 + 1)))
_INTERNVL_VISION = {
    **{
        key: rule
        for key, rule in _VISION.items()
        if key not in ("tie_word_embeddings", "projection_dim", "vocab_size")
    },
    "model_type": Rule(("internvl_vision",)),
    "hidden_act": Rule(("gelu",)),
    "image_size": _SIDES,
    "patch_size": _SIDES,
    "attention_bias": Rule((True,)),
    "use_qk_norm": Rule((False,)),
    "norm_type": Rule(("layer_norm",)),
    "use_mask_token": Rule((False,)),
    "use_absolute_position_embeddings": Rule((True,)),
    "use_mean_pooling": Rule((True,)),
    "hidden_dropout_prob": Rule((0,)),
    "projection_dropout": Rule((0,)),
    # How training began; the weights have what it came to.
    **dict.fromkeys(
        ("layer_scale_init_value", "initializer_factor", "dropout", "embed_dim", "auto_map"),
        NO_MATTER,
    ),
}
_CLIP = {
    **{key: rule for key, rule in _VISION.items() if key != "projector_hidden_act"},
    "model_type": Rule(("clip_vision_model",)),
    "hidden_act": Rule(("quick_gelu",)),
    "layer_norm_eps": Rule((1e-5,)),
    "initializer_factor": NO_MATTER,
    "dropout": Rule((0,)),
}
_GEMMA4_VISION = {
    **{key: rule for key, rule in _COMMON.items() if key != "tie_word_embeddings"},
    **{
        key: _VISION[key]
        for key in (
            *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
            "patch_size",
        )
    },
    "model_type": Rule(("gemma4_vision",)),
    "num_key_value_heads": Rule(most=2**10),
    "head_dim": Rule(most=2**12),
    "hidden_activation": Rule(("gelu_pytorch_tanh",)),
    "rms_norm_eps": Rule((1e-6,)),
    "attention_bias": Rule((False, None)),
    "rope_parameters": Rule(
        (None,),
        keys={
            "rope_type": Rule(("axial", "default")),
            "rope_theta": Rule((presets.GEMMA4_ROPE_BASE,)),
        },
    ),
    "pooling_kernel_size": Rule(most=2**6),
    "position_embedding_size": Rule(most=2**20),
    "standardize": Rule((True, False)),
    "use_clipped_linears": Rule((True, False)),
    # Published, and read by no version.
    "global_head_dim": NO_MATTER,
    "default_output_length": NO_MATTER,
}
# Of the 12B: patches that go straight into the decoder, and the map of sounds, which nothing asks.
_GEMMA4_PATCHES = {
    **{key: rule for key, rule in _COMMON.items() if key != "tie_word_embeddings"},
    "model_type": Rule(("gemma4_unified_vision",)),
    "patch_size": Rule(most=2**10),
    "pooling_kernel_size": Rule(most=2**6),
    "model_patch_size": Rule(most=2**16),
    "mm_embed_dim": Rule(most=2**16),
    "mm_posemb_size": Rule(most=2**20),
    "output_proj_dims": Rule(most=2**16),
    "rms_norm_eps": Rule((1e-6,)),
    "num_soft_tokens": NO_MATTER,
}
_GEMMA4_SOUNDS = {
    **{key: rule for key, rule in _COMMON.items() if key != "tie_word_embeddings"},
    "model_type": Rule(("gemma4_unified_audio",)),
    "rms_norm_eps": Rule((1e-6,)),
    **dict.fromkeys(
        ("audio_embed_dim", "audio_samples_per_token", "hidden_size", "output_proj_dims"),
        Rule(most=2**16),
    ),
}


def _parts(*kinds: str) -> dict[str, Rule]:
    """The rules of a model with a tower and a decoder of one of the kinds."""
    return {
        **_COMMON,
        "text_config": Rule((None,), keys={**_TEXT, "model_type": Rule(kinds)}),
        "vision_config": Rule((None,), keys=_VISION),
        # Where the picture stands is in `VLMConfig.context`.
        **dict.fromkeys(("image_token_index", "image_token_id", "ignore_index"), NO_MATTER),
    }


_GEMMA4 = {
    **_COMMON,
    "tie_word_embeddings": Rule((True, None)),
    **dict.fromkeys(
        (
            *("image_token_id", "video_token_id", "audio_token_id", "boi_token_id"),
            *("eoi_token_id", "boa_token_id", "eoa_token_id", "eoa_token_index"),
            "vision_soft_tokens_per_image",
        ),
        NO_MATTER,
    ),
}
_BY_KIND = {
    "paligemma": {
        **_parts("gemma", "gemma2"),
        **dict.fromkeys(
            (
                *("projection_dim", "hidden_size", "vocab_size", "_vocab_size"),
                "num_hidden_layers",  # PaliGemma 2's; the decoder's own counts
            ),
            NO_MATTER,
        ),
    },
    "gemma3": {
        **_parts("gemma3_text"),
        "mm_tokens_per_image": Rule(most=2**20),
        **dict.fromkeys(
            ("boi_token_index", "eoi_token_index", "boi_token_id", "eoi_token_id"), NO_MATTER
        ),
    },
    "gemma3_text": _TEXT,
    "gemma4": {
        **_GEMMA4,
        "text_config": Rule((None,), keys=_GEMMA4_TEXT),
        "vision_config": Rule((None,), keys=_GEMMA4_VISION),
        "audio_config": NO_MATTER,  # its whole tower is left out
    },
    "gemma4_unified": {
        **_GEMMA4,
        "text_config": Rule((None,), keys=_GEMMA4_UNIFIED_TEXT),
        "vision_config": Rule((None,), keys=_GEMMA4_PATCHES),
        "audio_config": Rule((None,), keys=_GEMMA4_SOUNDS),
    },
    "llava": {
        **_COMMON,
        "tie_word_embeddings": Rule((False, None)),
        "text_config": Rule((None,), keys=_LLAMA),
        "vision_config": Rule((None,), keys=_CLIP),
        "projector_hidden_act": Rule(("gelu",)),
        "vision_feature_select_strategy": Rule(("default",)),
        "vision_feature_layer": Rule(tuple(range(-1, -100, -1))),
        "multimodal_projector_bias": Rule((True,)),
        **dict.fromkeys(
            (
                *("image_token_index", "image_token_id", "ignore_index", "image_seq_length"),
                *("vocab_size", "projection_dim", "hidden_size"),
            ),
            NO_MATTER,
        ),
    },
    "internvl": {
        **_COMMON,
        "text_config": Rule(keys=_INTERNVL_TEXT),
        "vision_config": Rule(keys=_INTERNVL_VISION),
        "downsample_ratio": Rule((0.5, 1.0)),
        "image_seq_length": Rule(most=2**20),
        "projector_hidden_act": Rule(("gelu",)),
        "vision_feature_layer": Rule((-1,)),
        "vision_feature_select_strategy": Rule(("default",)),
        **dict.fromkeys(
            ("image_token_index", "image_token_id", "ignore_index", "hidden_size"), NO_MATTER
        ),
    },
    "qwen2_5_vl": {
        **_COMMON,
        **_QWEN_TEXT,
        **_QWEN_IDS,
        "text_config": Rule(
            (None,),
            keys={
                **{key: rule for key, rule in _COMMON.items() if key != "tie_word_embeddings"},
                **_QWEN_TEXT,
                **_QWEN_IDS,
                "model_type": Rule(("qwen2_5_vl_text", "qwen2_5_vl")),
                "tie_word_embeddings": Rule((True, False, None)),
                "vision_config": CHECKED_LATER,
            },
        ),
        "vision_config": Rule((None,), keys=_QWEN_VISION),
    },
    "qwen3_vl": {
        **_COMMON,
        **_QWEN_IDS,
        "hidden_size": NO_MATTER,  # a note of transformers' beside the parts
        "text_config": Rule(keys=_QWEN3_TEXT),
        "vision_config": Rule(keys=_QWEN3_VISION),
    },
}

# No null here: transformers' classes read it as off, or stop, and not as their default.
_HALF = Rule(([0.5, 0.5, 0.5],))
_PICTURE = {
    "image_mean": _HALF,
    "image_std": _HALF,
    "rescale_factor": Rule((1 / 255,)),
    "do_normalize": Rule((True,)),
    "do_rescale": Rule((True,)),
    "do_resize": Rule((True,)),
    "do_center_crop": Rule((False, None)),
    "do_pad": Rule((False, None)),
    "do_pan_and_scan": Rule((False, None)),
    "do_flip_channel_order": Rule((False, None)),
    **dict.fromkeys(
        (
            # Ours are resized by `cxrjax.images`, grey ones made three colours.
            *("resample", "size", "do_convert_rgb", "crop_size", "pad_size", "default_to_square"),
            *("image_processor_type", "feature_extractor_type", "processor_class"),
            *("image_seq_length", "image_seq_len", "data_format", "input_data_format"),
            *("disable_grouping", "device", "return_tensors", "backend"),
            *("pan_and_scan_min_crop_size", "pan_and_scan_max_num_crops"),
            *("pan_and_scan_min_ratio_to_activate", "_valid_processor_keys", "_name_or_path"),
        ),
        NO_MATTER,
    ),
}
# CLIP's colours; how the square comes about is in the settings (`data.geometry`), not here: LLaVA's
# own code pads the picture, its processor for transformers cuts the middle out.
_CLIP_PICTURE = {
    **_PICTURE,
    "image_mean": Rule((list(presets.CLIP_MEAN),)),
    "image_std": Rule((list(presets.CLIP_STD),)),
    "do_center_crop": NO_MATTER,
    "do_pad": NO_MATTER,
}


# Qwen-VL's images are of any size; ours are resized to one, whatever these say.
_ANY_SIZE = {
    **dict.fromkeys(("min_pixels", "max_pixels", "patch_size", "merge_size"), NO_MATTER),
    "temporal_patch_size": Rule((2,)),
}
_QWEN_PICTURE = {**_CLIP_PICTURE, **_ANY_SIZE}
_QWEN3_PICTURE = {**_PICTURE, **_ANY_SIZE, "do_center_crop": NO_MATTER, "do_pad": NO_MATTER}
# The same here; its colours are from 0 to 1, and its model brings them to ours.
_GEMMA4_PICTURE = {
    **_PICTURE,
    "image_mean": Rule(([0, 0, 0],)),
    "image_std": Rule(([1, 1, 1],)),
    "do_normalize": Rule((False, None)),
    **dict.fromkeys(("patch_size", "max_soft_tokens", "pooling_kernel_size"), NO_MATTER),
}


def _around(picture: Mapping[str, Rule], *more: str) -> dict[str, Rule]:
    """The rules of a processor's file, a part of which is the picture's."""
    notes = dict.fromkeys(("processor_class", "image_seq_length", *more), NO_MATTER)
    return {"image_processor": Rule((None,), keys=picture), **notes}


_PICTURES = {_PREPROCESSOR: _PICTURE, _PROCESSOR: _around(_PICTURE)}
_CLIP_PICTURES = {
    _PREPROCESSOR: _CLIP_PICTURE,
    _PROCESSOR: _around(
        _CLIP_PICTURE,
        *("patch_size", "vision_feature_select_strategy", "num_additional_image_tokens"),
        *("image_token", "chat_template"),
    ),
}
# InternVL's are cut into tiles there; here each is one, whatever these say.
_INTERNVL_PICTURE = {
    **_PICTURE,
    "image_mean": Rule((list(presets.IMAGENET_MEAN),)),
    "image_std": Rule((list(presets.IMAGENET_STD),)),
    **dict.fromkeys(("crop_to_patches", "min_patches", "max_patches"), NO_MATTER),
}
_GEMMA4_PICTURES = {
    _PREPROCESSOR: _GEMMA4_PICTURE,
    _PROCESSOR: _around(
        _GEMMA4_PICTURE,
        *("video_processor", "feature_extractor", "chat_template", "audio_seq_length"),
        "audio_ms_per_token",
    ),
}
_PICTURES_OF = {
    "gemma4": _GEMMA4_PICTURES,
    "gemma4_unified": _GEMMA4_PICTURES,
    "llava": _CLIP_PICTURES,
    "internvl": {
        _PREPROCESSOR: _INTERNVL_PICTURE,
        _PROCESSOR: _around(_INTERNVL_PICTURE, "video_processor", "chat_template"),
    },
    **{
        kind: {
            _PREPROCESSOR: picture,
            _PROCESSOR: _around(picture, "video_processor", "chat_template"),
        }
        for kind, picture in (("qwen2_5_vl", _QWEN_PICTURE), ("qwen3_vl", _QWEN3_PICTURE))
    },
}


_ORIGINAL = ("internvl_chat", "llava_llama", "llava_mistral")
# Whose class of image processors has other colours by default than the models.
_COLOURS_STATED = ("qwen3_vl", "internvl")


def read_config(directory: str | Path) -> dict[str, Any]:
    """`config.json` with transformers' defaults filled in (published ones leave most out).

    Raises:
        UserError: it is not there, is damaged, of an architecture that we do not have, or has a
            key or a value that we do not have; so has the preprocessor's file beside it.
    """
    directory = Path(directory)
    stated = read_json_object(directory / CONFIG_FILE, MOST_CONFIG_BYTES)
    for name, rules in _PICTURES_OF.get(str(stated.get("model_type")), _PICTURES).items():
        path = directory / name
        if path.is_file():
            found = checked(read_json_object(path, MOST_CONFIG_BYTES), rules, str(path))
            picture = found.get("image_processor") if name == _PROCESSOR else found
            lacking = [key for key in ("image_mean", "image_std") if key not in (picture or {})]
            if picture and lacking and stated.get("model_type") in _COLOURS_STATED:
                raise UserError(
                    f"{path}: {lacking[0]} is missing, and the class would use CLIP's, which "
                    "the model was not trained with; use the file that belongs to the weights"
                )
    return complete_config(stated, str(directory / CONFIG_FILE))


def complete_config(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Validates a configuration and fills in transformers' defaults; ignored keys are left out.

    Raises:
        UserError: an architecture, a key or a value that we do not have.
    """
    kind = config.get("model_type")
    if kind in _ORIGINAL or "mm_vision_tower" in config:
        raise UserError(
            f"{where}: model_type is {shown_value(kind)} in the layout of its makers' own code; "
            "take the form for transformers, of InternVL OpenGVLab/InternVL3-2B-hf, of LLaVA "
            "llava-hf/llava-1.5-7b-hf, of LLaVA-Med what transformers' "
            "convert_llava_weights_to_hf.py makes of it, with --text_model_id="
            "mistralai/Mistral-7B-Instruct-v0.2 and --vision_model_id="
            "openai/clip-vit-large-patch14-336"
        )
    check_architecture(kind, where)
    stated = {key: value for key, value in config.items() if key != "model_type"}
    values = checked(stated, _BY_KIND[str(kind)], where)
    if kind == "qwen2_5_vl":
        values = _qwen_in_parts(values, where)
    if kind in ("qwen3_vl", "internvl"):
        _check_parts(values, where)
    text = values if kind == "gemma3_text" else values.get("text_config") or {}
    _check_rope(text, where, is_gemma3=str(kind).startswith(("gemma3", "gemma4")))
    if states_all(str(kind), values):
        return {"model_type": kind, **values}
    # Here, since it takes seconds.
    from transformers import AutoConfig

    try:
        return AutoConfig.for_model(str(kind), **values).to_dict()
    # Each check of the library's raises something of its own.
    except Exception as error:
        line = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise UserError(f"{where}: not a configuration that transformers reads: {line}") from None


def _qwen_in_parts(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Qwen2.5-VL's settings with those of the decoder in their part, wherever they stood.

    Raises:
        UserError: a setting stands in both places, and is not the same; a part is missing.
    """
    keys = (*_QWEN_TEXT, "tie_word_embeddings")
    beside = {key: values[key] for key in keys if key in values}
    text = dict(values.get("text_config") or {})
    if text:
        # Files of transformers 4.5x have both.
        differing = [key for key, value in beside.items() if text.get(key, value) != value]
        differing += [key for key in beside if key not in text and key in _QWEN_TEXT]
        if differing:
            raise UserError(
                f"{where}: {differing[0]} is {shown_value(beside[differing[0]])}, and text_config "
                f"has {shown_value(text.get(differing[0]))}; remove the one that is wrong"
            )
    text = {key: value for key, value in (beside | text).items() if key in keys}
    tied = text.pop("tie_word_embeddings", None) or False
    lacking = [key for key in ("vision_config",) if not values.get(key)]
    lacking += [] if text else ["text_config"]
    if lacking:
        raise UserError(f"{where}: {lacking[0]} is missing; use the config.json of the weights")
    return {
        "text_config": text,
        "vision_config": values["vision_config"],
        "tie_word_embeddings": tied,
    }


def _check_parts(values: dict[str, Any], where: str) -> None:
    """Refuses settings without a part, or with two answers to one question."""
    for part in ("text_config", "vision_config"):
        if not values.get(part):
            raise UserError(f"{where}: {part} is missing; use the config.json of the weights")
    inner = values["text_config"].pop("tie_word_embeddings", None)
    tied = bool(values.get("tie_word_embeddings"))
    if inner is not None and inner != tied:
        raise UserError(
            f"{where}: tie_word_embeddings is {tied}, and text_config has {inner}; remove the one "
            "that is wrong"
        )


def _check_rope(text: Mapping[str, Any], where: str, *, is_gemma3: bool) -> None:
    """Refuses what one version of transformers reads of rotary positions and another passes over.

    Raises:
        UserError: two places for the same, or two kinds in one; of Gemma 3, whose layers have two
            sorts of positions, a kind under the older key, or one that is of neither sort.
    """
    places = {key: text.get(key) or {} for key in ("rope_scaling", "rope_parameters")}
    if all(places.values()):
        raise UserError(
            f"{where}: rope_scaling and rope_parameters are both there, and the first would make "
            "the second count for nothing; remove one"
        )
    for key, place in places.items():
        sorts = {part: place.get(part) or {} for part in ("full_attention", "sliding_attention")}
        has_sorts = any(sorts.values())
        if has_sorts and set(place) - set(sorts):
            extra = ", ".join(sorted(set(place) - set(sorts)))
            raise UserError(f"{where}: {key} has {extra} beside its sorts of layers; remove them")
        if is_gemma3 and key == "rope_parameters" and place and not has_sorts:
            raise UserError(
                f"{where}: rope_parameters of Gemma 3 and 4 are full_attention's and "
                "sliding_attention's; what stands beside them counts for nothing"
            )
        for part in (place, *sorts.values()):
            older = part.get("type")
            older = None if older == "mrope" else older  # Qwen's name for what is default
            if older is not None and (is_gemma3 or older != part.get("rope_type", older)):
                raise UserError(
                    f"{where}: {key} has type {older!r}, which not every version of transformers "
                    "reads here; name it rope_type"
                )


def checked(found: Mapping[str, Any], rules: Mapping[str, Rule], where: str) -> dict[str, Any]:
    """`check_settings`, with the file in its message.

    Raises:
        UserError: a key or a value that we do not have.
    """
    try:
        return check_settings(found, rules)
    except ForeignError as error:
        raise UserError(f"{where}: {error}") from None
