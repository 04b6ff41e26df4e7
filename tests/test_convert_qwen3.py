"""Qwen3-VL in, and out again, and what is refused, as tests/test_convert_qwen.py of Qwen2.5-VL."""

import copy
import dataclasses
import json

import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from cxrjax import convert
from cxrjax.codecs import CODECS
from cxrjax.codecs.resize_rules import RESIZE_RULES
from cxrjax.errors import UserError
from cxrjax.models.hf_config import complete_config, read_config
from cxrjax.models.hf_layout import vlm_config
from cxrjax.models.presets import PRESETS, DecoderConfig, VisionConfig, VLMConfig
from cxrjax.training.checkpoint import load_model
from cxrjax.training.data import open_tokenizer
from tests.input_pipeline.test_qwen_turns import make_qwen

SIZES = VLMConfig(
    vision=VisionConfig(
        image_size=512,
        patch_size=64,
        width=8,
        depth=3,
        num_heads=2,
        mlp_dim=10,
        pool=2,
        kind="qwen3",
        position_side=3,
        deepstack=(0, 2),
    ),
    decoder=DecoderConfig(
        vocab_size=448,
        width=12,
        depth=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        mlp_dim=24,
        prefix_attention="past",
        plain_norms=True,
        activation="silu",
        scale_embeddings=False,
        tied=False,
        rope_base=5e6,
        qk_norm=True,
        rope_sections=(2, 1, 1),
        rope_interleaved=True,
    ),
    loc_token_start=-1,
    projector="merger",
)
# With the keys of the published files.
_TEXT = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 400,
    "dtype": "float32",
    "eos_token_id": 402,
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_size": 12,
    "initializer_range": 0.02,
    "intermediate_size": 24,
    "max_position_embeddings": 262144,
    "model_type": "qwen3_vl_text",
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
        "rope_type": "default",
    },
    "rope_theta": 5000000,
    "use_cache": True,
    "vocab_size": 448,
}
_VISION = {
    "deepstack_visual_indexes": [0, 2],
    "depth": 3,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 8,
    "in_channels": 3,
    "initializer_range": 0.02,
    "intermediate_size": 10,
    "model_type": "qwen3_vl",
    "num_heads": 2,
    "num_position_embeddings": 9,
    "out_hidden_size": 12,
    "patch_size": 64,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
_CONFIG = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "image_token_id": 405,
    "model_type": "qwen3_vl",
    "text_config": _TEXT,
    "tie_word_embeddings": False,
    "transformers_version": "4.57.0.dev0",
    "video_token_id": 406,
    "vision_config": _VISION,
    "vision_end_token_id": 404,
    "vision_start_token_id": 403,
}
_PICTURE = {
    "size": {"longest_edge": 16777216, "shortest_edge": 65536},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "processor_class": "Qwen3VLProcessor",
}
# As its template writes an image and turns: nobody speaks for the system.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ p.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def hf(tmp_path, write_hf):
    directory = tmp_path / "hf"
    tensors = write_hf(directory, SIZES, _CONFIG)
    (directory / "tokenizer.json").write_bytes(make_qwen())
    (directory / "preprocessor_config.json").write_text(json.dumps(_PICTURE))
    (directory / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return directory, tensors


def test_there_and_back(hf, tmp_path):
    directory, tensors = hf
    assert {
        "lm_head.weight",
        "model.visual.pos_embed.weight",
        "model.visual.deepstack_merger_list.1.linear_fc2.bias",
        "model.visual.merger.norm.bias",
        "model.language_model.layers.1.self_attn.q_norm.weight",
    } <= {*tensors}
    convert.main([f"--checkpoint={directory}", f"--out={tmp_path / 'base'}"])
    model, config, tokenizer_path = load_model(tmp_path / "base")
    tokenizer = open_tokenizer(tokenizer_path, config)
    begin, end = (tokenizer.piece_id(f"<|vision_{side}|>") for side in ("start", "end"))
    assert tokenizer.decode(model.config.context[:-3]).endswith("user\n")
    assert "system" not in tokenizer.decode(model.config.context[:-3])
    assert model.config.context[-3:] == (begin, -1, end)
    same = (model.config.vision, model.config.decoder, model.config.projector)
    assert same == (SIZES.vision, SIZES.decoder, SIZES.projector)
    data = config.data
    assert (data.prompt, data.codec, data.geometry) == ("qwen", "qwen3_vl", "letterbox")
    kernel = model.deepstack.fc2.kernel[...]
    name = "model.visual.deepstack_merger_list.1.linear_fc2.weight"
    np.testing.assert_array_equal(kernel[1], tensors[name].T)
    convert.main([f"--checkpoint={tmp_path / 'base'}", "--to=hf", f"--out={tmp_path / 'back'}"])
    back = load_file(tmp_path / "back/model.safetensors")
    assert back.keys() == tensors.keys()
    assert all(np.array_equal(back[name], tensors[name]) for name in tensors)


def test_an_adapter_of_some_inner_mergers_there_and_back(hf, tmp_path):
    from cxrjax.models.lora import LoRAConfig, apply_lora
    from cxrjax.models.peft import adapter_parameters, read_peft, save_peft

    convert.main([f"--checkpoint={hf[0]}", f"--out={tmp_path / 'base'}"])
    model = load_model(tmp_path / "base").model
    apply_lora(model, LoRAConfig(rank=2, targets=("deepstack/fc1", "v_proj")), nnx.Rngs(0))
    rng = np.random.default_rng(0)
    for _, module in nnx.iter_modules(model):
        if getattr(module, "lora", None) is not None:
            module.lora.b[...] = rng.normal(size=module.lora.b.shape).astype(np.float32)
    lora = model.deepstack.fc1.lora
    lora.a[...], lora.b[...] = lora.a[...].at[0].set(0), lora.b[...].at[0].set(0)
    save_peft(tmp_path / "adapter", model)
    found = load_file(tmp_path / "adapter/adapter_model.safetensors")
    inner = "base_model.model.model.visual.deepstack_merger_list."
    inner = {name.removeprefix(inner) for name in found if name.startswith(inner)}
    assert inner == {"1.linear_fc1.lora_A.weight", "1.linear_fc1.lora_B.weight"}
    stated = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert r"deepstack_merger_list\.(1)\.linear_fc1" in stated["target_modules"]
    trained = adapter_parameters(model, read_peft(tmp_path / "adapter", model.config))
    np.testing.assert_array_equal(trained["deepstack/fc1/lora/b"], lora.b[...])


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("", {"text_config": None}, "text_config is None"),
        ("", {"vision_config": {}}, "vision_config is not there"),
        ("", {"model_type": "qwen3_vl_moe"}, "model_type is 'qwen3_vl_moe'"),
        ("", {"fullatt_block_indexes": [1]}, "the key 'fullatt_block_indexes' is not known"),
        ("text_config", {"tie_word_embeddings": True}, "is False, and text_config has True"),
        ("text_config", {"attention_bias": True}, "text_config.attention_bias is True"),
        ("text_config", {"num_experts": 4}, "the key 'text_config.num_experts' is not known"),
        ("text_config", {"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling.rope_type is"),
        (
            "text_config",
            {"rope_scaling": {"mrope_section": [2, 1, 1], "mrope_interleaved": False}},
            "mrope_interleaved is False",
        ),
        ("text_config", {"rope_scaling": {"mrope_section": [1, 2, 1]}}, "cannot take turns"),
        ("text_config", {"rope_scaling": {"mrope_section": [2, 2, 1]}}, "rope_sections"),
        ("text_config", {"rope_scaling": {"mrope_section": [2.0, 1, 1]}}, "mrope_section is [2.0"),
        ("vision_config", {"hidden_act": "gelu"}, "vision_config.hidden_act is 'gelu'"),
        ("vision_config", {"num_position_embeddings": 8}, "8 is no square"),
        ("vision_config", {"deepstack_visual_indexes": [2, 0]}, "deepstack_visual_indexes [2, 0]"),
        ("vision_config", {"deepstack_visual_indexes": [1, 3]}, "of 3 layers"),
        ("vision_config", {"deepstack_visual_indexes": [0, 1, 2]}, "for 2 of the decoder"),
        ("vision_config", {"window_size": 112}, "'vision_config.window_size' is not known"),
        ("vision_config", {"out_hidden_size": 8}, "out_hidden_size 8, hidden_size 12"),
    ],
)
def test_what_we_do_not_have_is_named(part, change, said):
    config = copy.deepcopy(_CONFIG)
    (config[part] if part else config).update(change)
    with pytest.raises(UserError) as caught:
        vlm_config(complete_config(config, "config.json"), "config.json", -1)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("colour", ["image_mean", "image_std"])
def test_colours_are_stated(hf, colour):
    """Without them the class of image processors takes CLIP's."""
    picture = {key: value for key, value in _PICTURE.items() if key != colour}
    (hf[0] / "preprocessor_config.json").write_text(json.dumps(picture))
    with pytest.raises(UserError, match=rf"preprocessor_config\.json: {colour} is not there"):
        read_config(hf[0])


def test_the_published_configurations_are_the_presets():
    small = {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096}
    small |= {"deepstack_visual_indexes": [5, 11, 17]}
    large = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304}
    large |= {"deepstack_visual_indexes": [8, 16, 24]}
    of_all = {"num_heads": 16, "patch_size": 16, "num_position_embeddings": 2304}
    heads = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
    heads["rope_scaling"] = _TEXT["rope_scaling"] | {"mrope_section": [24, 20, 20]}
    sizes = {
        "qwen3_vl_2b": (small, (2048, 6144, 28, 16), True),
        "qwen3_vl_4b": (small, (2560, 9728, 36, 32), True),
        "qwen3_vl_8b": (large, (4096, 12288, 36, 32), False),
    }
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    for name, (vision, numbers, tied) in sizes.items():
        text = _TEXT | heads | dict(zip(keys, numbers, strict=True))
        vision = _VISION | of_all | vision | {"out_hidden_size": numbers[0]}
        parts = {"text_config": text, "vision_config": vision, "tie_word_embeddings": tied}
        preset = PRESETS[name]
        config = complete_config(_CONFIG | parts, "config.json")
        found = vlm_config(config, "config.json", -1, preset.context, preset.second_image)
        assert found == preset


def test_boxes_count_the_padded_input():
    """The model sees the padding as a part of its image, and its numbers are of that."""
    rule, codec = RESIZE_RULES["qwen3_vl_512"], CODECS["qwen3_vl"]
    box = np.array([[0.0, 0.0, 1.0, 1.0]], np.float32)
    text = codec.encode(box, 1000, 500, rule.geometry(1000, 500))
    assert "[250,0,750,1000]" in text
    assert "[0,0,1000,1000]" in codec.encode(box, 1000, 500)
    assert dataclasses.replace(rule, placing="resize").geometry(9, 5).apply(box).tolist() == [
        [0.0, 0.0, 1.0, 1.0]
    ]
