"""Qwen2.5-VL in, and out again: base, adapters, merged, and what is refused."""

import copy
import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image
from safetensors.numpy import load_file

from cxrjax import convert
from cxrjax.codecs import get_codec
from cxrjax.errors import UserError
from cxrjax.input_pipeline.chat import QWEN
from cxrjax.input_pipeline.examples import QuestionEncoder, image_geometry, load_image
from cxrjax.models.hf_config import complete_config, read_config
from cxrjax.models.hf_layout import vlm_config
from cxrjax.models.presets import PRESETS, DecoderConfig, VisionConfig, VLMConfig
from cxrjax.records import Answer, QARecord
from cxrjax.training import interchange
from cxrjax.training.base_model import base_config, model_sizes, save_base
from cxrjax.training.checkpoint import build_model, load_model
from cxrjax.training.config_file import find_preset, load_config
from cxrjax.training.data import example_config, open_tokenizer
from tests.input_pipeline.test_qwen_turns import TEMPLATE, make_qwen

SIZES = VLMConfig(
    vision=VisionConfig(
        image_size=448,
        patch_size=56,
        width=8,
        depth=3,
        num_heads=2,
        mlp_dim=10,
        pool=2,
        kind="qwen",
        window=4,
        full_every=2,
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
        rope_sections=(2, 1, 1),
    ),
    loc_token_start=-1,
    projector="merger",
)
# As published: the decoder's settings beside those of the whole.
_VISION = {
    "depth": 3,
    "hidden_act": "silu",
    "hidden_size": 8,
    "intermediate_size": 10,
    "num_heads": 2,
    "in_chans": 3,
    "out_hidden_size": 16,
    "patch_size": 56,
    "spatial_merge_size": 2,
    "spatial_patch_size": 14,
    "window_size": 224,
    "fullatt_block_indexes": [1],
    "tokens_per_second": 2,
    "temporal_patch_size": 2,
}
_CONFIG = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "attention_dropout": 0.0,
    "image_token_id": 405,
    "video_token_id": 406,
    "vision_start_token_id": 403,
    "vision_end_token_id": 404,
    "vision_token_id": 407,
    "hidden_act": "silu",
    "hidden_size": 16,
    "initializer_range": 0.02,
    "intermediate_size": 24,
    "max_position_embeddings": 128000,
    "max_window_layers": 2,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "transformers_version": "4.41.2",
    "use_cache": True,
    "use_sliding_window": False,
    "vision_config": _VISION,
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]},
    "vocab_size": 448,
}
_PICTURE = {
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
}


@pytest.fixture
def hf(tmp_path, write_hf):
    """(directory, tensors) as Qwen publishes them."""
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
        "visual.merger.mlp.2.bias",
        "model.layers.1.self_attn.k_proj.bias",
    } <= {*tensors}
    convert.main([f"--checkpoint={directory}", f"--out={tmp_path / 'base'}"])
    model, config, tokenizer_path = load_model(tmp_path / "base")
    tokenizer = open_tokenizer(tokenizer_path, config)
    begin, end = (tokenizer.piece_id(f"<|vision_{side}|>") for side in ("start", "end"))
    assert model.config.context[-3:] == (begin, -1, end)
    assert model.config.second_image == (end, begin, -1)
    same = (model.config.vision, model.config.decoder, model.config.projector)
    assert same == (SIZES.vision, SIZES.decoder, SIZES.projector)
    data = config.data
    assert (data.prompt, data.codec, data.geometry) == ("qwen", "qwen2.5_vl_448", "letterbox")
    kernel = model.vision.layers.attn.qkv_proj.kernel[...]
    np.testing.assert_array_equal(kernel[1], tensors["visual.blocks.1.attn.qkv.weight"].T)
    convert.main([f"--checkpoint={tmp_path / 'base'}", "--to=hf", f"--out={tmp_path / 'back'}"])
    back = load_file(tmp_path / "back/model.safetensors")
    assert back.keys() == tensors.keys()
    assert all(np.array_equal(back[name], tensors[name]) for name in tensors)
    assert json.loads((tmp_path / "back/preprocessor_config.json").read_text()) == _PICTURE
    again = json.loads((tmp_path / "back/config.json").read_text())
    assert {key: again[key] for key in _CONFIG if key != "torch_dtype"} == {
        key: value for key, value in _CONFIG.items() if key != "torch_dtype"
    }


def test_questions_and_answers_in_its_ids(hf, tmp_path):
    interchange.import_hf(hf[0], tmp_path / "base")
    _, config, path = load_model(tmp_path / "base")
    tokenizer = open_tokenizer(path, config)
    record = QARecord(
        dataset="vix_ray",
        split="train",
        image_id="i",
        image_path="i.png",
        image_hw=(600, 400),
        question_type="stage1",
        question_id="q",
        question="Where?",
        answers=[Answer(text="Here.")],
    )
    encoded = QuestionEncoder(tokenizer, example_config(config)).encode(record)
    assert encoded.prefix.tolist() == tokenizer.encode(QWEN.question("Where?"))
    assert encoded.answer.tolist() == [*tokenizer.encode("Here."), tokenizer.eos_id]


def test_another_size_of_images_needs_other_pixels(hf, tmp_path):
    interchange.import_hf(hf[0], tmp_path / "base")
    _, config, _ = load_model(tmp_path / "base")
    assert example_config(config).image_size == 448
    larger = load_config("configs/vix_ray_stage1.py:qwen_tiny")  # of 128
    data = dataclasses.replace(larger.data, codec="qwen2.5_vl_448")
    with pytest.raises(
        UserError, match="counts pixels of an input of 448 x 448, and the model's has 128 x 128"
    ):
        example_config(dataclasses.replace(larger, data=data))


def test_a_grid_that_is_not_square(hf, tmp_path):
    """Of five rows of four tokens: nothing else of a portrait of that shape is padding."""
    interchange.import_hf(hf[0], tmp_path / "base")
    config = base_config(tmp_path / "base")
    preset = dataclasses.replace(config.model, preset="from_base@560x448")
    portrait = dataclasses.replace(config, model=preset)
    with pytest.raises(UserError, match=r"has 560 x 448; set 'qwen2\.5_vl_560x448', or a codec"):
        example_config(portrait)
    data = dataclasses.replace(config.data, codec="qwen2.5_vl_560x448")
    portrait = dataclasses.replace(portrait, data=data)
    examples = example_config(portrait)
    assert examples.image_hw == (560, 448) and examples.empty_input().shape == (560, 448, 3)
    Image.fromarray(np.full((100, 80), 255, np.uint8)).save(tmp_path / "i.png")
    pixels = load_image(tmp_path / "i.png", examples)
    assert pixels.shape == (560, 448, 3) and pixels.min() == 255
    box = np.array([[0.25, 0.2, 0.5, 1.0]], np.float32)
    codec, geometry = get_codec(examples.codec), image_geometry(100, 80, examples)
    text = codec.encode(box, 100, 80, geometry)
    assert "[112,112,224,560]" in text and codec.name == examples.codec
    np.testing.assert_allclose(codec.decode(text, 100, 80, geometry).boxes, box)
    model, _ = build_model(portrait)
    assert model.config.vision.token_grid == (5, 4)
    assert model.encode_images(jnp.asarray(pixels[None])).shape == (1, 20, 16)
    save_base(tmp_path / "again", model, portrait, tmp_path / "base/tokenizer.json")
    assert model_sizes(base_config(tmp_path / "again")) == model.config
    both = dataclasses.replace(
        portrait,
        model=dataclasses.replace(config.model, preset="from_base@448x448,560x448"),
        data=dataclasses.replace(data, codec="qwen2.5_vl_448x448,560x448"),
    )
    model, _ = build_model(both)
    assert model.config.vision.image_hw == (560, 448)
    save_base(tmp_path / "both", model, both, tmp_path / "base/tokenizer.json")
    kept = base_config(tmp_path / "both")
    assert model_sizes(kept) == model.config
    assert example_config(kept).grids == ((448, 448), (560, 448))
    # What is trained from it has them too, and hands them on, unless it names its own.
    base = dataclasses.replace(both.model, preset="from_base", init_from=str(tmp_path / "both"))
    tuned = dataclasses.replace(both, model=base)
    assert example_config(tuned).grids == ((448, 448), (560, 448))
    model, _ = build_model(tuned)
    save_base(tmp_path / "tuned", model, tuned, tmp_path / "base/tokenizer.json")
    assert example_config(base_config(tmp_path / "tuned")).grids == ((448, 448), (560, 448))
    one = dataclasses.replace(tuned.model, preset="from_base@448x448")
    one = dataclasses.replace(tuned, model=one, data=dataclasses.replace(data, codec="qwen3_vl"))
    assert example_config(one).grids == () and example_config(one).image_hw == (448, 448)


@pytest.mark.parametrize(
    ("preset", "said"),
    [
        ("qwen25_vl_3b@560x450", "560 and 450 are no multiples of 28"),
        ("qwen3_vl_2b@0x448", "0 and 448 are no multiples of 32"),
        ("qwen3_vl_2b@448", "expected HEIGHTxWIDTH, or several with commas"),
        ("qwen3_vl_2b@448x576,", "expected HEIGHTxWIDTH, or several with commas"),
        ("qwen3_vl_2b@448x576,448x576", "expected different ones"),
        ("qwen3_vl_2b@448x576,576x440", "576 and 440 are no multiples of 32"),
        ("qwen25_vl_3b@4480x4480", "25,600 tokens an image, and it is made for 16,384"),
        ("gemma4_31b@1632x1632", "1,156 tokens an image, and it is made for 1,120"),
        ("paligemma_3b_448@448x224", "only models of Qwen-VL, Gemma 4 and InternVL take images"),
        ("qwen3_vl_2c@448x448", "did you mean 'qwen3_vl_2b'"),
    ],
)
def test_sizes_that_cannot_be(preset, said):
    with pytest.raises(UserError, match=said):
        find_preset(preset)


def test_an_adapter_there_and_back(hf, tmp_path):
    from cxrjax.models.lora import LoRAConfig, apply_lora
    from cxrjax.models.peft import adapter_parameters, read_peft, save_peft

    interchange.import_hf(hf[0], tmp_path / "base")
    model = load_model(tmp_path / "base").model
    targets = ("decoder/layers/attn/(q|v)_proj", "vision/layers/attn/qkv_proj", "projector_out")
    apply_lora(model, LoRAConfig(rank=2, alpha=3.0, targets=targets), nnx.Rngs(0))
    rng = np.random.default_rng(0)
    for _, module in nnx.iter_modules(model):
        if getattr(module, "lora", None) is not None:
            module.lora.b[...] = rng.normal(size=module.lora.b.shape).astype(np.float32)
    save_peft(tmp_path / "adapter", model)
    found = load_file(tmp_path / "adapter/adapter_model.safetensors")
    names = {name.removeprefix("base_model.model.") for name in found}
    assert "model.visual.blocks.2.attn.qkv.lora_B.weight" in names
    assert "model.visual.merger.mlp.2.lora_A.weight" in names
    assert "model.language_model.layers.1.self_attn.v_proj.lora_A.weight" in names
    adapter = read_peft(tmp_path / "adapter", model.config)
    trained = adapter_parameters(model, adapter)
    kernel = model.vision.layers.attn.qkv_proj.lora.b[...]
    np.testing.assert_array_equal(trained["vision/layers/attn/qkv_proj/lora/b"], kernel)


def test_a_template_of_another_form_is_refused(hf, tmp_path):
    other = TEMPLATE.replace("assistant", "model")
    (hf[0] / "chat_template.json").write_text(json.dumps({"chat_template": other}))
    with pytest.raises(UserError, match=r"expected Qwen2\.5-VL's template"):
        interchange.import_hf(hf[0], tmp_path / "base")


def test_a_tokenizer_of_another_family_is_refused(hf, tmp_path):
    from tests.input_pipeline.test_llava_turns import make_llama

    (hf[0] / "tokenizer.json").unlink()
    (hf[0] / "tokenizer.model").write_bytes(make_llama(400))
    with pytest.raises(UserError, match=r"no piece '<\|vision_start\|>'"):
        interchange.import_hf(hf[0], tmp_path / "base")


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("", {"use_sliding_window": True}, "use_sliding_window is True"),
        ("", {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling"),
        ("", {"rope_scaling": {"type": "mrope", "mrope_section": [2, 2, 1]}}, "rope_sections"),
        ("", {"rope_scaling": {"type": "mrope", "mrope_section": [2, 2]}}, "expected three"),
        ("", {"rope_parameters": {"rope_type": "default"}}, "rope_scaling and rope_parameters"),
        ("", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ("", {"layer_types": ["sliding_attention"] * 2}, "layer_types is"),
        ("", {"deepstack_visual_indexes": [1]}, "the key 'deepstack_visual_indexes' is not known"),
        ("", {"text_config": {"hidden_size": 32}}, "hidden_size is 16, and text_config has 32"),
        ("", {"text_config": {"hidden_size": 16}}, "text_config has None"),
        ("vision_config", {"hidden_act": "quick_gelu"}, "vision_config.hidden_act is"),
        ("vision_config", {"fullatt_block_indexes": [0, 1]}, "have no period"),
        ("vision_config", {"temporal_patch_size": 1}, "vision_config.temporal_patch_size is 1"),
        ("vision_config", {"out_hidden_size": 8}, "out_hidden_size 8, hidden_size 16"),
        ("vision_config", {"window_size": 8}, "window_size 8"),
        ("vision_config", {"rope_parameters": {"rope_theta": 5e5}}, "rope_theta is 500000.0"),
        ("vision_config", {"embed_dim": 8}, "the key 'vision_config.embed_dim' is not known"),
    ],
)
def test_what_we_do_not_have_is_named(part, change, said):
    config = copy.deepcopy(_CONFIG)
    (config[part] if part else config).update(change)
    with pytest.raises(UserError) as caught:
        vlm_config(complete_config(config, "config.json"), "config.json", -1)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_pictures_of_other_colours_are_refused(hf):
    wrong = json.dumps(_PICTURE | {"image_mean": [0.5, 0.5, 0.5]})
    (hf[0] / "preprocessor_config.json").write_text(wrong)
    with pytest.raises(UserError, match="image_mean is"):
        read_config(hf[0])


def test_the_published_configurations_are_the_presets():
    vision = _VISION | {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "patch_size": 14,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
    }
    of_both = {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}
    small = {
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_attention_heads": 16,
        "num_hidden_layers": 36,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "vocab_size": 151936,
    }
    large = {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
    }
    for name, sizes in (("qwen25_vl_3b", small), ("qwen25_vl_7b", large)):
        preset = PRESETS[name]
        own = {"vision_config": vision | {"out_hidden_size": sizes["hidden_size"]}}
        config = complete_config(_CONFIG | of_both | sizes | own, "config.json")
        context = (preset.context, preset.second_image)
        found = vlm_config(config, "config.json", -1, *context)
        assert found == preset
