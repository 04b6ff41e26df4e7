"""InternVL 3 in, and out again, and what is refused."""

import copy
import json

import numpy as np
import pytest
from flax import nnx
from PIL import Image
from safetensors.numpy import load_file

from cxrjax import convert
from cxrjax.codecs.frames import internvl_tiles
from cxrjax.errors import UserError
from cxrjax.models import VLM
from cxrjax.models.hf_config import complete_config
from cxrjax.models.hf_layout import vlm_config
from cxrjax.models.presets import PRESETS, DecoderConfig, VisionConfig, VLMConfig
from cxrjax.training import interchange
from cxrjax.training.checkpoint import load_model
from cxrjax.training.config_file import find_preset
from cxrjax.training.data import open_tokenizer
from tests.input_pipeline.test_qwen_turns import make_qwen

SIZES = VLMConfig(
    vision=VisionConfig(
        image_size=448,
        patch_size=112,
        width=8,
        depth=2,
        num_heads=2,
        mlp_dim=10,
        pool=2,
        kind="internvl",
    ),
    decoder=DecoderConfig(
        vocab_size=448,
        width=16,
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
        rope_base=1e6,
        qkv_bias=True,
    ),
    loc_token_start=-1,
    projector="normed_mlp",
)
# As published: rotary positions that grow only behind 32,768 tokens; nothing of a tied table.
_TEXT = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 400,
    "eos_token_id": 402,
    "hidden_act": "silu",
    "hidden_size": 16,
    "initializer_range": 0.02,
    "intermediate_size": 24,
    "max_position_embeddings": 32768,
    "max_window_layers": 70,
    "model_type": "qwen2",
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {"factor": 2.0, "rope_type": "dynamic", "type": "dynamic"},
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 448,
}
_VISION = {
    "architectures": ["InternVisionModel"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "dropout": 0.0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "hidden_size": 8,
    "image_size": [448, 448],
    "initializer_factor": 0.1,
    "initializer_range": 1e-10,
    "intermediate_size": 10,
    "layer_norm_eps": 1e-6,
    "layer_scale_init_value": 0.1,
    "model_type": "internvl_vision",
    "norm_type": "layer_norm",
    "num_attention_heads": 2,
    "num_channels": 3,
    "num_hidden_layers": 2,
    "patch_size": [112, 112],
    "projection_dropout": 0.0,
    "use_absolute_position_embeddings": True,
    "use_mask_token": False,
    "use_mean_pooling": True,
    "use_qk_norm": False,
}
_CONFIG = {
    "architectures": ["InternVLForConditionalGeneration"],
    "downsample_ratio": 0.5,
    "image_seq_length": 4,
    "image_token_id": 405,
    "model_type": "internvl",
    "projector_hidden_act": "gelu",
    "text_config": _TEXT,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.52.0.dev0",
    "vision_config": _VISION,
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "default",
}
_PICTURE = {
    "crop_to_patches": False,
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_processor_type": "GotOcr2ImageProcessor",
    "image_std": [0.229, 0.224, 0.225],
    "max_patches": 12,
    "min_patches": 1,
    "processor_class": "InternVLProcessor",
    "size": {"height": 448, "width": 448},
}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for p in m.content %}"
    "{% if p.type == 'image' %}<IMG_CONTEXT>\n{% else %}{{ p.text }}{% endif %}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _with_marks() -> bytes:
    """Qwen's tokenizer with InternVL's marks of an image."""
    from tokenizers import Tokenizer

    made = Tokenizer.from_str(make_qwen().decode())
    made.add_special_tokens(["<img>", "</img>", "<IMG_CONTEXT>"])
    return made.to_str().encode()


@pytest.fixture
def hf(tmp_path, write_hf):
    directory = tmp_path / "hf"
    tensors = write_hf(directory, SIZES, _CONFIG)
    (directory / "tokenizer.json").write_bytes(_with_marks())
    (directory / "preprocessor_config.json").write_text(json.dumps(_PICTURE))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory, tensors


def test_there_and_back(hf, tmp_path):
    directory, tensors = hf
    assert tensors["vision_tower.embeddings.cls_token"].shape == (1, 1, 8)
    assert {
        "language_model.lm_head.weight",
        "language_model.model.layers.1.self_attn.k_proj.bias",
        "multi_modal_projector.layer_norm.bias",
        "vision_tower.encoder.layer.1.lambda_2",
    } <= {*tensors}
    convert.main([f"--checkpoint={directory}", f"--out={tmp_path / 'base'}"])
    model, config, tokenizer_path = load_model(tmp_path / "base")
    tokenizer = open_tokenizer(tokenizer_path, config)
    begin, end = (tokenizer.piece_id(piece) for piece in ("<img>", "</img>"))
    newline = tokenizer.encode("\n")
    assert model.config.context[-4:] == (begin, -1, end, *newline)
    assert model.config.second_image == (end, *newline, begin, -1)
    same = (model.config.vision, model.config.decoder, model.config.projector)
    assert same == (SIZES.vision, SIZES.decoder, SIZES.projector)
    data = config.data
    assert (data.prompt, data.codec, data.geometry) == ("qwen", "internvl", "resize")
    convert.main([f"--checkpoint={tmp_path / 'base'}", "--to=hf", f"--out={tmp_path / 'back'}"])
    back = load_file(tmp_path / "back/model.safetensors")
    assert back.keys() == tensors.keys()
    assert all(np.array_equal(back[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("", {"vision_feature_layer": -2}, "vision_feature_layer is -2"),
        ("", {"image_seq_length": 256}, "image_seq_length 256, 4 tokens"),
        ("", {"downsample_ratio": 0.25}, "downsample_ratio is 0.25"),
        ("", {"tie_word_embeddings": True}, "lm_head"),
        ("text_config", {"model_type": "llama"}, "model_type is 'llama'"),
        ("text_config", {"max_position_embeddings": 4096}, "rope_type 'dynamic' with max_pos"),
        ("text_config", {"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling.rope_type is"),
        ("vision_config", {"attention_bias": False}, "vision_config.attention_bias is False"),
        ("vision_config", {"use_qk_norm": True}, "vision_config.use_qk_norm is True"),
        ("vision_config", {"norm_type": "rms_norm"}, "vision_config.norm_type is 'rms_norm'"),
        ("vision_config", {"image_size": [448, 224]}, "images of [448, 224]"),
    ],
)
def test_what_we_do_not_have_is_named(hf, tmp_path, part, change, said):
    config = copy.deepcopy(_CONFIG)
    (config[part] if part else config).update(change)
    (hf[0] / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError) as caught:
        interchange.import_hf(hf[0], tmp_path / "base")
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_the_published_configurations_are_the_presets():
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    numbers = {
        "internvl3_1b": (896, 4864, 24, 14, 2),
        "internvl3_2b": (1536, 8960, 28, 12, 2),
        "internvl3_8b": (3584, 18944, 28, 28, 4),
    }
    vision = _VISION | dict(zip(keys, (1024, 4096, 24, 16), strict=True))
    for name, found in numbers.items():
        text = _TEXT | dict(zip((*keys, "num_key_value_heads"), found, strict=True))
        parts = {"text_config": text | {"vocab_size": 151674}}
        parts |= {"vision_config": vision | {"patch_size": [14, 14]}, "image_seq_length": 256}
        config = complete_config(_CONFIG | parts | {"tie_word_embeddings": False}, "config.json")
        preset = PRESETS[name]
        sizes = vlm_config(config, "config.json", -1, preset.context, preset.second_image)
        assert sizes == preset


def test_tiles_are_read_one_by_one_and_then_the_whole(drawn):
    sizes = PRESETS["tiny_internvl"]
    side = sizes.vision.image_size
    tiled = sizes.for_images(2 * side, 2 * side)
    assert tiled.vision.num_tokens == tiled.num_context == 5 * sizes.vision.num_tokens
    assert sizes.for_images(side, side) == sizes and tiled.for_images(side, side) == sizes
    one, several = (
        drawn(lambda config=config: VLM(config, rngs=nnx.Rngs(0))) for config in (sizes, tiled)
    )
    pixels = np.random.default_rng(0).normal(0, 0.2, (2 * side, 2 * side, 3)).astype(np.float32)
    as_seen = [
        np.asarray(Image.fromarray(pixels[..., colour]).resize((side, side), Image.BICUBIC))
        for colour in range(3)
    ]
    halves = (slice(side), slice(side, None))
    tiles = [pixels[down, across] for down in halves for across in halves]
    parts = np.stack([*tiles, np.stack(as_seen, axis=-1)])
    found = nnx.jit(lambda model, x: model.encode_images(x))(several, pixels[None])
    wanted = nnx.jit(lambda model, x: model.encode_images(x))(one, parts)
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(found[0], wanted.reshape(found[0].shape), atol=1e-3 * scale)


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ("900x448", "1 to 12 whole tiles of 448"),
        ("0x448", "1 to 12 whole tiles of 448"),
        ("1792x1792", "1 to 12 whole tiles of 448"),
    ],
)
def test_sizes_that_tiles_do_not_fill(size, said):
    with pytest.raises(UserError, match=said):
        find_preset(f"internvl3_2b@{size}")


@pytest.mark.parametrize(
    ("height", "width", "down", "across"),
    [
        (448, 448, 1, 1),
        (700, 700, 2, 2),  # more than half of 2 x 2 tiles' pixels, less than of 3 x 3
        (2500, 2500, 3, 3),
        (2991, 2512, 4, 3),
        (512, 1024, 1, 2),
        (1024, 2048, 2, 4),
        (4000, 200, 12, 1),
    ],
)
def test_tiles_have_the_nearest_aspect(height, width, down, across):
    assert internvl_tiles(height, width) == (448 * down, 448 * across)
