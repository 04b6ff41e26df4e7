"""Gemma 4 in, and out again: base, adapters of both kinds of layers, and what is refused."""

import copy
import dataclasses
import json

import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from cxrjax import convert
from cxrjax.errors import UserError
from cxrjax.models.hf_config import complete_config, read_config
from cxrjax.models.hf_layout import vlm_config
from cxrjax.models.lora import LoRAConfig, apply_lora, merge_lora
from cxrjax.models.peft import adapter_parameters, read_peft, save_peft
from cxrjax.models.presets import PRESETS
from cxrjax.training import interchange
from cxrjax.training.checkpoint import load_model
from cxrjax.training.config_file import find_preset, load_config
from cxrjax.training.data import open_tokenizer
from tests.input_pipeline.test_gemma4_turns import TEMPLATE, make_gemma4

_SLIDING, _FULL = "sliding_attention", "full_attention"
_TEXT = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attention_k_eq_v": True,
    "enable_moe_block": False,
    "final_logit_softcapping": 30.0,
    "global_head_dim": 12,
    "head_dim": 8,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 16,
    "hidden_size_per_layer_input": 0,
    "intermediate_size": 24,
    "layer_types": [_SLIDING, _SLIDING, _FULL] * 2,
    "max_position_embeddings": 262144,
    "model_type": "gemma4_text",
    "num_attention_heads": 2,
    "num_experts": None,
    "num_global_key_value_heads": 1,
    "num_hidden_layers": 6,
    "num_key_value_heads": 2,
    "num_kv_shared_layers": 0,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        _FULL: {"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"},
        _SLIDING: {"rope_theta": 1e4, "rope_type": "default"},
    },
    "sliding_window": 1024,
    "tie_word_embeddings": True,
    "top_k_experts": None,
    "use_bidirectional_attention": "vision",
    "use_double_wide_mlp": False,
    "vocab_size": 448,
    "vocab_size_per_layer_input": 448,
}
_VISION = {
    "attention_bias": False,
    "default_output_length": 280,
    "global_head_dim": 4,
    "head_dim": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 8,
    "intermediate_size": 10,
    "model_type": "gemma4_vision",
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "patch_size": 16,
    "pooling_kernel_size": 3,
    "position_embedding_size": 48,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"},
    "standardize": True,
    "use_clipped_linears": False,
}
_CONFIG = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "audio_config": None,
    "audio_token_id": 258881,
    "boi_token_id": 255999,
    "dtype": "bfloat16",
    "eoi_token_id": 258882,
    "image_token_id": 258880,
    "model_type": "gemma4",
    "text_config": _TEXT,
    "tie_word_embeddings": True,
    "video_token_id": 258884,
    "vision_config": _VISION,
    "vision_soft_tokens_per_image": 280,
}
_PROCESSOR = {
    "image_processor": {
        "do_convert_rgb": True,
        "do_normalize": False,
        "image_mean": [0.0, 0.0, 0.0],
        "image_std": [1.0, 1.0, 1.0],
        "image_processor_type": "Gemma4ImageProcessor",
        "max_soft_tokens": 280,
        "patch_size": 16,
        "pooling_kernel_size": 3,
        "rescale_factor": 1 / 255,
    },
    "image_seq_length": 280,
    "processor_class": "Gemma4Processor",
}


def sizes_of(config):
    return vlm_config(complete_config(config, "config.json"), "config.json", -1)


@pytest.fixture(scope="module")
def sizes():
    return sizes_of(_CONFIG)


@pytest.fixture
def hf(tmp_path, write_hf, sizes):
    """(directory, tensors) in the form in which Gemma 4 is published."""
    directory = tmp_path / "hf"
    tensors = write_hf(directory, sizes, _CONFIG)
    tokenizer = make_gemma4(448).backend_tokenizer.to_str()
    (directory / "tokenizer.json").write_text(tokenizer)
    (directory / "processor_config.json").write_text(json.dumps(_PROCESSOR))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory, tensors


def test_there_and_back(hf, tmp_path, sizes):
    directory, tensors = hf
    layers = "model.language_model.layers"
    assert f"{layers}.1.self_attn.v_proj.weight" in tensors
    assert f"{layers}.2.self_attn.v_proj.weight" not in tensors  # its keys are its values
    assert tensors[f"{layers}.2.self_attn.q_norm.weight"].shape == (12,)
    assert {
        f"{layers}.5.layer_scalar",
        "model.embed_vision.embedding_projection.weight",
        "model.vision_tower.std_bias",
        "model.vision_tower.patch_embedder.position_embedding_table",
        "model.vision_tower.encoder.layers.1.mlp.down_proj.linear.weight",
    } <= {*tensors}
    convert.main([f"--checkpoint={directory}", f"--out={tmp_path / 'base'}"])
    model, config, _ = load_model(tmp_path / "base")
    assert (model.config.vision, model.config.decoder) == (sizes.vision, sizes.decoder)
    assert model.config.vision.image_size == 768 and model.config.vision.num_tokens == 256
    data = config.data
    assert (data.prompt, data.codec, data.geometry) == ("gemma4", "medgemma_json", "letterbox")
    global_q, local_q = (
        getattr(model.decoder, f"{kind}_layers").attn.q_proj.kernel[...]
        for kind in ("global", "local")
    )
    for found, layer in ((global_q[1], 5), (local_q[2], 3)):
        np.testing.assert_array_equal(found, tensors[f"{layers}.{layer}.self_attn.q_proj.weight"].T)
    convert.main([f"--checkpoint={tmp_path / 'base'}", "--to=hf", f"--out={tmp_path / 'back'}"])
    back = load_file(tmp_path / "back/model.safetensors")
    assert back.keys() == tensors.keys()
    assert all(np.array_equal(back[name], tensors[name]) for name in tensors)
    again = json.loads((tmp_path / "back/config.json").read_text())
    assert again == _CONFIG | {"dtype": "float32"}


def test_images_of_other_sizes():
    sizes = find_preset("gemma4_31b@1152x960")
    assert sizes.vision.num_tokens == 24 * 20 and sizes.vision.image_hw == (1152, 960)
    assert find_preset("gemma4_12b@1152x960").vision.num_tokens == 24 * 20
    with pytest.raises(UserError, match="no multiples of 48"):
        find_preset("gemma4_31b@1152x950")
    with pytest.raises(UserError, match="its table of positions ends at 53760"):
        find_preset("gemma4_12b@48x53808")


def test_a_recipe_of_another_family_says_what_to_set(hf, tmp_path):
    interchange.import_hf(hf[0], tmp_path / "base")
    recipe = load_config("configs/vindr_lora.py")
    model = dataclasses.replace(recipe.model, preset="from_base", init_from=str(tmp_path / "base"))
    recipe = dataclasses.replace(recipe, model=model)
    path = tmp_path / "base/tokenizer.json"
    with pytest.raises(UserError) as caught:
        open_tokenizer(path, recipe)
    assert str(caught.value).startswith("data.prompt='medgemma_reason' ends turns with <end_of_")
    assert "set it to one of gemma4, gemma4_small, gemma4_typed, " in str(caught.value)
    data = dataclasses.replace(recipe.data, prompt="gemma4_reason")
    tokenizer = open_tokenizer(path, dataclasses.replace(recipe, data=data))
    assert tokenizer.loc_token_start == -1


def test_an_adapter_there_and_back_and_merged(hf, tmp_path):
    interchange.import_hf(hf[0], tmp_path / "base")
    model = load_model(tmp_path / "base").model
    targets = ("decoder/layers/attn/(q|v)_proj", "vision/layers/attn/q_proj", "projector")
    config = LoRAConfig(
        rank=2, alpha=3.0, targets=targets, rank_pattern={"global_layers/attn/q_proj": 3}
    )
    assert apply_lora(model, config, nnx.Rngs(0)) == [
        "decoder/global_layers/attn/q_proj",
        "decoder/local_layers/attn/q_proj",
        "decoder/local_layers/attn/v_proj",
        "vision/layers/attn/q_proj",
        "projector",
    ]
    rng = np.random.default_rng(0)
    for _, module in nnx.iter_modules(model):
        if getattr(module, "lora", None) is not None:
            module.lora.b[...] = rng.normal(size=module.lora.b.shape).astype(np.float32)
    save_peft(tmp_path / "adapter", model)
    found = load_file(tmp_path / "adapter/adapter_model.safetensors")
    part = "base_model.model.model.language_model.layers.{}.self_attn.{}_proj.lora_B.weight"
    assert found[part.format(5, "q")].shape == (24, 3) and found[part.format(4, "q")].shape[1] == 2
    assert part.format(4, "v") in found and part.format(5, "v") not in found
    stated = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert list(stated["rank_pattern"]) == [
        r"model\.language_model\.layers\.(2|5)\.self_attn\.q_proj"
    ]
    trained = adapter_parameters(model, read_peft(tmp_path / "adapter", model.config))
    for path in ("global_layers/attn/q_proj", "local_layers/attn/q_proj"):
        kind, rest = path.split("/", 1)
        lora = getattr(model.decoder, kind).attn.q_proj.lora
        np.testing.assert_array_equal(trained[f"decoder/{kind}/{rest}/lora/b"], lora.b[...])
    assert len(merge_lora(model)) == 5


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("text_config", {"enable_moe_block": True}, "text_config.enable_moe_block is True"),
        ("text_config", {"num_experts": 128}, "text_config.num_experts is 128"),
        ("text_config", {"num_kv_shared_layers": 2}, "num_kv_shared_layers is 2; expected a mult"),
        ("text_config", {"num_kv_shared_layers": 6}, "num_kv_shared_layers is 6; expected a mult"),
        ("text_config", {"pad_token_id": 5}, "text_config.pad_token_id is 5"),
        (
            "text_config",
            {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 9},
            "vocab_size_per_layer_input is 9; only 448",
        ),
        ("text_config", {"use_bidirectional_attention": "all"}, "attention is 'all'"),
        ("text_config", {"rope_parameters": {"rope_type": "default"}}, "rope_type' is not known"),
        ("text_config", {"layer_types": [_FULL] * 6}, "every 1th is global"),
        ("text_config", {"layer_types": [_SLIDING, _FULL, _FULL] * 2}, "expected every n-th"),
        ("text_config", {"per_layer_config": {"0": {"head_dim": 4}}}, "per_layer_config {0:"),
        ("text_config", {"per_layer_config": {"2": {"head_dim": 4}}}, "per_layer_config {2:"),
        ("text_config", {"num_global_key_value_heads": 3}, "heads of keys and values"),
        ("vision_config", {"num_key_value_heads": 1}, "num_key_value_heads is 1"),
        ("vision_config", {"head_dim": 8}, "2 heads of 8 in a tower of width 8"),
        ("vision_config", {"position_embedding_size": 47}, "47 positions, 48 patches"),
        ("vision_config", {"rope_parameters": {"rope_theta": 1e4}}, "rope_theta is 10000.0"),
        ("", {"model_type": "gemma4_assistant"}, "model_type is 'gemma4_assistant'"),
        ("", {"model_type": "gemma4_unified"}, "text_config.model_type is 'gemma4_text'"),
        ("", {"tie_word_embeddings": False}, "tie_word_embeddings is False"),
    ],
)
def test_what_we_do_not_have_is_named(part, change, said):
    config = copy.deepcopy(_CONFIG)
    settings = config[part] if part else config
    for key, value in change.items():
        settings.pop(key, None) if value is ... else settings.update({key: value})
    with pytest.raises(UserError) as caught:
        sizes_of(config)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_global_layers_may_be_described_one_by_one(sizes):
    """As transformers 5.2x writes them."""
    text = {k: v for k, v in _TEXT.items() if k not in ("global_head_dim",)}
    del text["num_global_key_value_heads"]
    each = {"head_dim": 12, "num_key_value_heads": 1}
    text["per_layer_config"] = {"02": each, "05": each}
    assert sizes_of(_CONFIG | {"text_config": text}) == sizes


def test_pictures_of_other_colours_are_refused(hf):
    wrong = copy.deepcopy(_PROCESSOR)
    wrong["image_processor"]["do_normalize"] = True
    (hf[0] / "processor_config.json").write_text(json.dumps(wrong))
    with pytest.raises(UserError, match="do_normalize is True"):
        read_config(hf[0])


def test_a_small_size_there_and_back(tmp_path, write_hf, capsys):
    """Published files have keys of layers that read others', and a tower for sounds, unasked."""
    small = {
        "attention_k_eq_v": False,
        "hidden_size_per_layer_input": 5,
        "num_global_key_value_heads": None,
        "num_kv_shared_layers": 3,
        "use_bidirectional_attention": None,
        "use_double_wide_mlp": True,
    }
    vision = _VISION | {"standardize": False, "use_clipped_linears": True}
    config = _CONFIG | {"text_config": _TEXT | small, "vision_config": vision}
    sizes, directory = sizes_of(config), tmp_path / "hf"
    decoder = sizes.decoder
    assert (decoder.shared_layers, decoder.shared_mlp_dim, decoder.per_layer_width) == (3, 48, 5)
    assert [decoder.keys_of(layer) for layer in range(6)] == [0, 1, 2, 1, 1, 2]
    tensors = write_hf(directory, sizes, config)
    layers, tower = "model.language_model.layers", "model.vision_tower.encoder.layers"
    assert f"{layers}.3.self_attn.k_proj.weight" not in tensors
    assert tensors[f"{layers}.4.mlp.up_proj.weight"].shape == (48, 16)
    assert tensors["model.language_model.embed_tokens_per_layer.weight"].shape == (448, 30)
    assert tensors[f"{tower}.1.self_attn.o_proj.output_max"].shape == ()
    more = {
        f"{layers}.3.self_attn.k_proj.weight": np.ones((16, 16), np.float32),
        "model.audio_tower.layers.0.norm_out.weight": np.ones(4, np.float32),
        "model.embed_audio.embedding_projection.weight": np.ones((16, 4), np.float32),
    }
    save_file(tensors | more, directory / "model.safetensors")
    published = config | {"audio_config": {"hidden_size": 4, "model_type": "gemma4_audio"}}
    (directory / "config.json").write_text(json.dumps(published))
    (directory / "tokenizer.json").write_text(make_gemma4(448).backend_tokenizer.to_str())
    # The larger sizes' template begins an answer by a thought without words; these sizes' does not.
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    with pytest.raises(UserError, match=r"Gemma 4 E2B and E4B's form is .*google/gemma-4-E4B-it"):
        interchange.import_hf(directory, tmp_path / "base")
    begun = "{{- '<|channel>thought\n<channel|>' -}}"
    assert begun in TEMPLATE
    (directory / "chat_template.jinja").write_text(TEMPLATE.replace(begun, ""))
    interchange.import_hf(directory, tmp_path / "base")
    described = json.loads((tmp_path / "base/model.json").read_text())
    assert described["prompt"] == "gemma4_small"
    said = capsys.readouterr().out
    assert "2 tensors are left out, of the tower for sounds" in said
    assert "1 tensors are left out, of keys that no layer reads" in said
    interchange.export_hf(tmp_path / "base", tmp_path / "back")
    back = load_file(tmp_path / "back/model.safetensors")
    assert back.keys() == tensors.keys()
    assert all(np.array_equal(back[name], tensors[name]) for name in tensors)
    again = json.loads((tmp_path / "back/config.json").read_text())
    assert again == config | {"dtype": "float32"}


# As the 12B is published.
_PATCHES = {
    "mm_embed_dim": 8,
    "mm_posemb_size": 16,
    "model_patch_size": 48,
    "model_type": "gemma4_unified_vision",
    "num_soft_tokens": 280,
    "output_proj_dims": 8,
    "patch_size": 16,
    "pooling_kernel_size": 3,
    "rms_norm_eps": 1e-6,
}
_UNIFIED = _CONFIG | {
    "audio_config": {
        "audio_embed_dim": 7,
        "audio_samples_per_token": 7,
        "hidden_size": 7,
        "model_type": "gemma4_unified_audio",
        "output_proj_dims": 7,
        "rms_norm_eps": 1e-6,
    },
    "model_type": "gemma4_unified",
    "text_config": _TEXT | {"model_type": "gemma4_unified_text"},
    "vision_config": _PATCHES,
}


def test_the_model_without_a_tower_there_and_back(tmp_path, write_hf):
    sizes, directory = sizes_of(_UNIFIED), tmp_path / "hf"
    assert (sizes.vision.depth, sizes.vision.num_tokens, sizes.audio_width) == (0, 256, 7)
    tensors = write_hf(directory, sizes, _UNIFIED)
    assert {
        "model.embed_audio.embedding_projection.weight",
        "model.embed_vision.embedding_projection.weight",
        "model.vision_embedder.patch_ln1.bias",
        "model.vision_embedder.pos_embedding",
    } <= {*tensors}
    (directory / "tokenizer.json").write_text(make_gemma4(448).backend_tokenizer.to_str())
    interchange.import_hf(directory, tmp_path / "base")
    interchange.export_hf(tmp_path / "base", tmp_path / "back")
    back = load_file(tmp_path / "back/model.safetensors")
    assert back.keys() == tensors.keys()
    assert all(np.array_equal(back[name], tensors[name]) for name in tensors)
    with pytest.raises(UserError, match="output_proj_dims is 9; only 8"):
        sizes_of(_UNIFIED | {"vision_config": _PATCHES | {"output_proj_dims": 9}})


@pytest.mark.parametrize(
    ("name", "width", "every", "shared", "wide", "kv_heads"),
    [("gemma4_e2b", 1536, 5, 20, True, 1), ("gemma4_e4b", 2560, 6, 18, False, 2)],
)
def test_the_small_published_configurations_are_the_presets(
    name, width, every, shared, wide, kv_heads
):
    text = {
        "attention_k_eq_v": False,
        "global_head_dim": 512,
        "head_dim": 256,
        "hidden_size": width,
        "hidden_size_per_layer_input": 256,
        "intermediate_size": 4 * width,
        "layer_types": [*[_SLIDING] * (every - 1), _FULL] * 7,
        "num_attention_heads": 8,
        "num_global_key_value_heads": None,
        "num_hidden_layers": 7 * every,
        "num_key_value_heads": kv_heads,
        "num_kv_shared_layers": shared,
        "pad_token_id": 0,
        "sliding_window": 512,
        "use_bidirectional_attention": None,
        "use_double_wide_mlp": wide,
        "vocab_size": 262144,
        "vocab_size_per_layer_input": 262144,
    }
    vision = {
        "head_dim": 64,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
        "num_hidden_layers": 16,
        "num_key_value_heads": 12,
        "position_embedding_size": 10240,
        "standardize": False,
        "use_clipped_linears": True,
    }
    whole = _CONFIG | {"text_config": _TEXT | text, "vision_config": _VISION | vision}
    whole |= {"audio_config": {"model_type": "gemma4_audio", "hidden_size": 1024}}
    preset = PRESETS[name]
    contexts = (preset.context, preset.second_image)
    found = vlm_config(complete_config(whole, "config.json"), "config.json", -1, *contexts)
    assert found == preset


def test_the_published_configurations_are_the_presets():
    preset = PRESETS["gemma4_12b"]
    text = {
        "global_head_dim": 512,
        "head_dim": 256,
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "layer_types": [*[_SLIDING] * 5, _FULL] * 8,
        "num_attention_heads": 16,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "vocab_size": 262144,
    }
    of_images = {"mm_embed_dim": 3840, "mm_posemb_size": 1120, "output_proj_dims": 3840}
    of_sounds = dict.fromkeys(
        ("audio_embed_dim", "audio_samples_per_token", "hidden_size", "output_proj_dims"), 640
    )
    whole = _UNIFIED | {
        "text_config": _UNIFIED["text_config"] | text,
        "vision_config": _PATCHES | of_images,
        "audio_config": of_sounds,
    }
    contexts = (preset.context, preset.second_image)
    found = vlm_config(complete_config(whole, "config.json"), "config.json", -1, *contexts)
    assert found == preset

    preset = PRESETS["gemma4_31b"]
    text = {
        "global_head_dim": 512,
        "head_dim": 256,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "layer_types": [*[_SLIDING] * 5, _FULL] * 10,
        "num_attention_heads": 32,
        "num_global_key_value_heads": 4,
        "num_hidden_layers": 60,
        "num_key_value_heads": 16,
        "vocab_size": 262144,
    }
    vision = {
        "head_dim": 72,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "num_key_value_heads": 16,
        "position_embedding_size": 10240,
    }
    whole = _CONFIG | {"text_config": _TEXT | text, "vision_config": _VISION | vision}
    config = complete_config(whole, "config.json")
    found = vlm_config(config, "config.json", -1, preset.context, preset.second_image)
    assert found == preset
