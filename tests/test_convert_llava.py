"""LLaVA in, and out again: base, adapters, merged, and what is refused."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from cxrjax import convert
from cxrjax.errors import UserError
from cxrjax.models.hf_config import complete_config, read_config
from cxrjax.models.hf_layout import vlm_config
from cxrjax.models.presets import PRESETS, DecoderConfig, VisionConfig, VLMConfig
from cxrjax.training import base_model, interchange
from cxrjax.training.checkpoint import load_model
from cxrjax.training.config import ModelConfig
from cxrjax.training.data import open_tokenizer
from tests.input_pipeline.test_llava_turns import make_llama

SIZES = VLMConfig(
    vision=VisionConfig(
        image_size=8,
        patch_size=4,
        width=8,
        depth=2,
        num_heads=2,
        mlp_dim=16,
        kind="clip",
        skip_last=1,
    ),
    decoder=DecoderConfig(
        vocab_size=448,
        width=12,
        depth=2,
        num_heads=3,
        num_kv_heads=1,
        head_dim=4,
        mlp_dim=24,
        prefix_attention="past",
        norm_eps=1e-5,
        plain_norms=True,
        activation="silu",
        scale_embeddings=False,
        tied=False,
        rope_base=1e6,
    ),
    loc_token_start=-1,
    projector="mlp",
)
_CONFIG = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "image_token_index": 440,
    "ignore_index": -100,
    "projector_hidden_act": "gelu",
    "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
    "text_config": {
        "model_type": "mistral",
        "hidden_size": 12,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "sliding_window": None,
        "vocab_size": 448,
    },
    "vision_config": {
        "model_type": "clip_vision_model",
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 8,
        "patch_size": 4,
        "projection_dim": 8,
    },
}
_PICTURE = {
    "crop_size": {"height": 336, "width": 336},
    "do_center_crop": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "CLIPImageProcessor",
    "rescale_factor": 0.00392156862745098,
    "size": {"shortest_edge": 336},
}


@pytest.fixture
def hf(tmp_path, write_hf):
    """(directory, tensors) as llava-hf publishes them."""
    directory = tmp_path / "hf"
    tensors = write_hf(directory, SIZES, _CONFIG)
    (directory / "tokenizer.model").write_bytes(make_llama(400))
    (directory / "preprocessor_config.json").write_text(json.dumps(_PICTURE))
    return directory, tensors


def test_there_and_back(hf, tmp_path):
    directory, tensors = hf
    assert "language_model.lm_head.weight" in tensors
    convert.main([f"--checkpoint={directory}", f"--out={tmp_path / 'base'}"])
    model, config, tokenizer_path = load_model(tmp_path / "base")
    tokenizer = open_tokenizer(tokenizer_path, config)
    assert model.config.context == (1, *tokenizer.encode("[INST] "), -1)
    same = (model.config.vision, model.config.decoder, model.config.projector)
    assert same == (SIZES.vision, SIZES.decoder, SIZES.projector)
    data = config.data
    assert (data.prompt, data.codec, data.geometry) == ("llava_med", "llava", "letterbox")
    np.testing.assert_array_equal(
        model.decoder.embedder.head[...], tensors["language_model.lm_head.weight"]
    )
    convert.main([f"--checkpoint={tmp_path / 'base'}", "--to=hf", f"--out={tmp_path / 'back'}"])
    back = load_file(tmp_path / "back/model.safetensors")
    assert back.keys() == tensors.keys()
    assert all(np.array_equal(back[name], tensors[name]) for name in tensors)
    assert json.loads((tmp_path / "back/preprocessor_config.json").read_text()) == _PICTURE


def test_location_tokens_are_not_there_to_write(hf, tmp_path):
    interchange.import_hf(hf[0], tmp_path / "base")
    config = base_model.base_config(tmp_path / "base")
    paligemma = config.__class__(
        model=ModelConfig(preset="from_base", init_from=str(tmp_path / "base"))
    )
    with pytest.raises(UserError, match="vocabulary has none; set one that writes digits"):
        open_tokenizer(tmp_path / "base/tokenizer.model", paligemma)


def test_a_tokenizer_of_another_family_is_refused(hf, tmp_path):
    from pathlib import Path

    gemma = Path(__file__).parents[1] / "data/demo_base/tokenizer.model"
    (hf[0] / "tokenizer.model").write_bytes(gemma.read_bytes())
    with pytest.raises(UserError, match="not a tokenizer of Llama's family"):
        interchange.import_hf(hf[0], tmp_path / "base")


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("", {"vision_feature_select_strategy": "full"}, "vision_feature_select_strategy is"),
        ("", {"vision_feature_layer": [-2, -5]}, "vision_feature_layer is"),
        ("", {"vision_feature_layer": -3}, "vision_feature_layer -3 of 2 layers"),
        ("", {"projector_hidden_act": "relu"}, "projector_hidden_act is 'relu'"),
        ("", {"multimodal_projector_bias": False}, "multimodal_projector_bias is False"),
        ("", {"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ("", {"image_grid_pinpoints": []}, "the key 'image_grid_pinpoints' is not known"),
        ("text_config", {"model_type": "qwen2"}, "text_config.model_type is 'qwen2'"),
        ("text_config", {"hidden_act": "gelu"}, "text_config.hidden_act is 'gelu'"),
        ("text_config", {"rope_scaling": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ("text_config", {"attention_bias": True}, "text_config.attention_bias is True"),
        ("vision_config", {"model_type": "siglip_vision_model"}, "vision_config.model_type is"),
        ("vision_config", {"hidden_act": "gelu"}, "vision_config.hidden_act is 'gelu'"),
        ("vision_config", {"layer_norm_eps": 1e-6}, "vision_config.layer_norm_eps is 1e-06"),
    ],
)
def test_what_llava_s_config_may_not_say(part, change, said):
    config = {**_CONFIG, **({part: _CONFIG[part] | change} if part else change)}
    with pytest.raises(UserError) as caught:
        vlm_config(complete_config(config, "config.json"), "config.json", -1)
    assert said in str(caught.value)


def test_pictures_have_clip_s_colours(hf):
    path = hf[0] / "preprocessor_config.json"
    path.write_text(json.dumps(_PICTURE | {"image_mean": [0.5, 0.5, 0.5]}))
    with pytest.raises(UserError, match="image_mean is"):
        read_config(hf[0])


def test_the_published_configurations_are_the_presets():
    """llava-hf/llava-1.5-7b-hf's config.json, and LLaVA-Med v1.5's in the same form."""
    vision = {
        "hidden_size": 1024,
        "image_size": 336,
        "intermediate_size": 4096,
        "model_type": "clip_vision_model",
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "patch_size": 14,
        "projection_dim": 768,
        "vocab_size": 32000,
    }
    llama = {
        "_name_or_path": "lmsys/vicuna-7b-v1.5",
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 4096,
        "model_type": "llama",
        "rms_norm_eps": 1e-05,
        "torch_dtype": "float16",
        "vocab_size": 32064,
    }
    mistral = {
        "model_type": "mistral",
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "intermediate_size": 14336,
        "vocab_size": 32064,  # two more of Mistral's 32,000, padded to 64
    }
    whole = {key: value for key, value in _CONFIG.items() if not key.endswith("_config")}
    whole |= {"image_token_index": 32000, "pad_token_id": 32001, "vision_config": vision}
    for name, text in (("llava15_7b", llama), ("llava_med15_7b", mistral)):
        preset = PRESETS[name]
        config = complete_config(whole | {"text_config": text}, "config.json")
        context = (preset.context, preset.second_image)
        assert vlm_config(config, "config.json", -1, *context) == preset
