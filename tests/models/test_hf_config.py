"""Hugging Face's configurations are a closed world: what is not known here is refused by name."""

import json
import time

import pytest

from cxrjax.errors import UserError
from cxrjax.models.hf_config import complete_config, read_config
from cxrjax.models.hf_layout import vlm_config

_TINY = {
    "model_type": "gemma3_text",
    "vocab_size": 64,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "sliding_window": 4,
}


def _whole(kind, text=(), vision=(), **more):
    text = {"model_type": {"paligemma": "gemma", "gemma3": "gemma3_text"}[kind], **dict(text)}
    vision = {"image_size": 896, "patch_size": 14, **dict(vision)}
    return {"model_type": kind, "text_config": text, "vision_config": vision, **more}


@pytest.mark.parametrize("kind", ["paligemma", "gemma3", "gemma3_text"])
def test_whatever_transformers_writes_of_its_own_is_known(kind):
    """Each key that the library writes today, with the value that it has by default."""
    from transformers import AutoConfig

    sees = {"vision_config": {"image_size": 896, "patch_size": 14}} if kind == "gemma3" else {}
    written = AutoConfig.for_model(kind, **sees).to_dict()
    vlm_config(complete_config(json.loads(json.dumps(written)), "config.json"), "config.json", 4)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**_TINY, "attention_temperature": 2.0}, "the key 'attention_temperature' is not known"),
        ({**_TINY, "quantization_config": {"bits": 4}}, "the key 'quantization_config' is not"),
        ({**_TINY, "auto_map": {"AutoModel": "x.py"}}, "the key 'auto_map' is not known here"),
        (_whole("gemma3", {"use_relative": 1}), "the key 'text_config.use_relative' is not known"),
        (_whole("gemma3", vision={"pooling": 1}), "the key 'vision_config.pooling' is not known"),
        ({**_TINY, "rope_scaling": {"rope_type": "linear", "beta": 1}}, "'rope_scaling.beta' is"),
        ({**_TINY, "rope_scaling": {"rope_type": "yarn"}}, "rope_scaling.rope_type is 'yarn'"),
        ({**_TINY, "rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({**_TINY, "rope_scaling": {"type": "linear", "factor": 2.0}}, "name it rope_type"),
        (
            {**_TINY, "rope_scaling": {"type": "linear", "rope_type": "default", "factor": 2.0}},
            "rope_scaling has type 'linear'",
        ),
        (
            {**_TINY, "rope_parameters": {"rope_type": "linear", "factor": 2.0}},
            "rope_parameters of Gemma 3 and 4 are full_attention's and sliding_attention's",
        ),
        (
            {
                **_TINY,
                "rope_parameters": {"full_attention": {"rope_type": "default"}, "factor": 2.0},
            },
            "rope_parameters has factor beside its sorts of layers",
        ),
        (
            _whole(
                "paligemma",
                {"rope_scaling": {"rope_type": "default"}, "rope_parameters": {"rope_theta": 5.0}},
            ),
            "rope_scaling and rope_parameters are both there",
        ),
        ({**_TINY, "hidden_activation": "relu"}, "hidden_activation is 'relu', expected 'gelu_py"),
        ({**_TINY, "rms_norm_eps": 1e-5}, "rms_norm_eps is 1e-05, expected 1e-06"),
        ({**_TINY, "attention_bias": True}, "attention_bias is True, expected False"),
        ({**_TINY, "attention_bias": 0}, "attention_bias is 0, expected False"),
        ({**_TINY, "attention_dropout": 0.1}, "attention_dropout is 0.1, expected 0"),
        ({**_TINY, "use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        (
            _whole("paligemma", {"use_bidirectional_attention": False}),
            "use_bidirectional_attention is False",
        ),
        (
            _whole("paligemma", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
            "rope_type is 'linear'; only 'default' is supported",
        ),
        (
            _whole(
                "paligemma",
                {
                    "model_type": "gemma2",
                    "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
                },
            ),
            "rope_type is 'linear'; only 'default' is supported",
        ),
        (_whole("paligemma", vision={"num_channels": 1}), "vision_config.num_channels is 1"),
        (_whole("paligemma", vision={"layer_norm_eps": 1e-5}), "layer_norm_eps is 1e-05"),
        (_whole("paligemma", {"model_type": "gemma3_text"}), "expected 'gemma' or 'gemma2'"),
        (
            _whole("gemma3", {"model_type": "gemma2"}),
            "text_config.model_type is 'gemma2', expected 'gemma3_text'",
        ),
        ({**_TINY, "layer_types": ["chunked_attention"] * 2}, "layer_types is"),
        ({**_TINY, "layer_types": ["full_attention"]}, "layer_types"),
        (
            {**_TINY, "num_hidden_layers": 10**9},
            "num_hidden_layers is 1000000000, expected a whole",
        ),
        ({**_TINY, "num_hidden_layers": 10**300}, "num_hidden_layers is 1000"),
        ({**_TINY, "hidden_size": -8}, "hidden_size is -8"),
        ({**_TINY, "hidden_size": 8.0}, "hidden_size is 8.0, expected a whole number"),
        ({**_TINY, "hidden_size": "8"}, "hidden_size is '8'"),
        ({**_TINY, "head_dim": True}, "head_dim is True"),
        ({**_TINY, "head_dim": 3}, "halves of a head"),
        ({**_TINY, "num_attention_heads": 2, "num_key_value_heads": 4}, "heads of keys"),
        ({**_TINY, "query_pre_attn_scalar": float("nan")}, "query_pre_attn_scalar is nan"),
        ({**_TINY, "rope_theta": float("inf")}, "rope_theta is inf"),
        ({**_TINY, "sliding_window": None}, "sliding_window is None"),
        ({**_TINY, "vocab_size": [64]}, r"vocab_size is [64]"),
        ({**_TINY, "tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'"),
        (_whole("gemma3", mm_tokens_per_image=0), "mm_tokens_per_image is 0"),
        (_whole("gemma3", vision={"patch_size": 0}), "vision_config.patch_size is 0"),
        (
            {"model_type": "gemma3", "text_config": 3},
            "text_config is 3, expected None or an object",
        ),
        ({"model_type": ["gemma3"]}, "model_type is ['gemma3'], expected one of paligemma"),
    ],
)
def test_what_we_cannot_honour_is_refused_by_name(tmp_path, config, said):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    start = time.monotonic()
    with pytest.raises(UserError) as caught:
        vlm_config(read_config(tmp_path), str(path), 4)
    message = str(caught.value)
    assert said in message and message.startswith(f"{path}: ") and "\n" not in message
    assert len(message) < 500 and time.monotonic() - start < 2


def test_a_number_that_overflows_and_deep_json_are_refused(tmp_path):
    for content, said in (
        ('{"model_type": "gemma3_text", "rope_theta": 1' + "0" * 400 + "}", "digits"),
        ('{"model_type": ' + "[" * 100_000, "not JSON"),
        (" " * 2**20 + "{}", "more than the 1,048,576 bytes"),
    ):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(UserError, match=said):
            read_config(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("preprocessor_config.json", {"image_mean": [0.48, 0.45, 0.4]}, "image_mean is"),
        ("preprocessor_config.json", {"do_normalize": False}, "do_normalize is False"),
        ("preprocessor_config.json", {"do_pan_and_scan": True}, "do_pan_and_scan is True"),
        ("preprocessor_config.json", {"rescale_factor": 1.0}, "rescale_factor is 1.0"),
        *(
            ("preprocessor_config.json", {key: None}, f"{key} is None, expected")
            # Off, for transformers.
            for key in ("do_normalize", "do_rescale", "do_resize", "image_std", "rescale_factor")
        ),
        ("preprocessor_config.json", {"gamma": 2}, "the key 'gamma' is not known here"),
        ("processor_config.json", {"image_processor": {"do_pad": True}}, "image_processor.do_pad"),
    ],
)
def test_pictures_must_be_prepared_as_ours(tmp_path, name, content, said):
    (tmp_path / "config.json").write_text(json.dumps(_TINY))
    published = {
        "do_convert_rgb": None,
        "do_normalize": True,
        "do_pan_and_scan": None,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "Gemma3ImageProcessor",
        "image_seq_length": 256,
        "image_std": [0.5, 0.5, 0.5],
        "pan_and_scan_max_num_crops": None,
        "pan_and_scan_min_crop_size": None,
        "pan_and_scan_min_ratio_to_activate": None,
        "processor_class": "Gemma3Processor",
        "resample": 2,
        "rescale_factor": 0.00392156862745098,
        "size": {"height": 896, "width": 896},
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(published))
    assert read_config(tmp_path)["hidden_size"] == 8
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(UserError) as caught:
        read_config(tmp_path)
    assert said in str(caught.value) and str(caught.value).startswith(f"{tmp_path / name}: ")


def test_a_factor_counts_with_the_type_that_has_one():
    rope = {"rope_type": "default", "factor": 8.0}
    found = vlm_config(complete_config({**_TINY, "rope_scaling": rope}, "c"), "c", 4)
    assert found.decoder.rope_scale == 1
    rope["rope_type"] = "linear"
    found = vlm_config(complete_config({**_TINY, "rope_scaling": rope}, "c"), "c", 4)
    assert found.decoder.rope_scale == 8


# The keys of the files that google/paligemma-3b-pt-224, google/paligemma2-3b-pt-448 and
# google/medgemma-4b-it publish, beyond those in test_hf_import.py, and of models saved again.
_PUBLISHED = [
    (
        "paligemma",
        {"_name_or_path": "final-hf", "_vocab_size": 257152, "transformers_version": "4.41.0.dev0"},
        {"num_image_tokens": 256, "torch_dtype": "float32", "model_type": "gemma"},
        {"projector_hidden_act": "gelu_fast", "vision_use_head": False},
    ),
    (
        "paligemma",
        {"architectures": ["PaliGemmaForConditionalGeneration"], "ignore_index": -100},
        {
            "architectures": ["Gemma2ForCausalLM"],
            "attn_logit_softcapping": 50.0,
            "cache_implementation": "hybrid",
            "final_logit_softcapping": 30.0,
            "hidden_activation": "gelu_pytorch_tanh",
            "model_type": "gemma2",
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
        },
        {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-06, "num_channels": 3},
    ),
    (
        "gemma3",
        {"boi_token_index": 255999, "eoi_token_index": 256000, "eos_token_id": [1, 106]},
        {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attn_logit_softcapping": None,
            "cache_implementation": "hybrid",
            "final_logit_softcapping": None,
            "head_dim": 256,
            "rope_local_base_freq": 10000.0,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "rope_theta": 1000000.0,
            "sliding_window": 1024,
            "sliding_window_pattern": 6,
            "use_cache": True,
            "max_position_embeddings": 131072,
        },
        {"attention_dropout": 0.0, "torch_dtype": "bfloat16"},
    ),
]


@pytest.mark.parametrize(("kind", "more", "text", "vision"), _PUBLISHED)
def test_published_keys_are_known(kind, more, text, vision):
    config = _whole(kind, text, {"model_type": "siglip_vision_model", **vision}, **more)
    vlm_config(complete_config(config, "config.json"), "config.json", 4)
