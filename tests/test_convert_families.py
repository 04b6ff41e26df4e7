"""Families of models in, and out again: bases, adapters, and what is refused.

tests/convert_families/NAME.json has a family's small `config` and the `sizes` that it should have,
`files` beside it, what importing it `chooses`, some of its `tensors`, an `adapter` of it, and rows
of what is `refused`. An image in a context is null.
"""

import copy
import dataclasses
import functools
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from cxrjax.codecs import get_codec
from cxrjax.commands import convert
from cxrjax.errors import UserError
from cxrjax.input_pipeline.chat import CHAT_FORMS
from cxrjax.input_pipeline.examples import QuestionEncoder, image_geometry, load_image
from cxrjax.models.hf_config import read_config
from cxrjax.models.lora import LoRAConfig, apply_lora, merge_lora
from cxrjax.models.peft import adapter_parameters, read_peft, save_peft
from cxrjax.records import Answer
from cxrjax.training import interchange
from cxrjax.training.base_model import base_config, model_sizes, save_base
from cxrjax.training.checkpoint import build_model, load_model
from cxrjax.training.config import ModelConfig
from cxrjax.training.config_file import load_config
from cxrjax.training.data import example_config, open_tokenizer
from cxrjax.training.preset_names import find_preset
from tests.asked import asked
from tests.input_pipeline import test_gemma4_turns, test_qwen_turns
from tests.models.sizes import sizes_of, stated

_ROWS = Path(__file__).with_name("convert_families")
_GEMMA = Path(__file__).parents[1] / "data/demo_base/tokenizer.model"


def _merged(config, changes):
    """A configuration with changes, part by part; {"exactly": part} is taken as it is."""
    whole = dict(config)
    for key, value in changes.items():
        if isinstance(value, dict):
            value = value["exactly"] if "exactly" in value else (whole.get(key) or {}) | value
        whole[key] = value
    return whole


@functools.cache
def _family(name):
    rows = json.loads((_ROWS / f"{name}.json").read_text())
    nothing = dict.fromkeys(("image", "context", "second_image", "chooses", "adapter"))
    nothing |= {"files": {}, "tensors": {}, "kernels": [], "refused": []}
    of = _family(rows["of"]) if "of" in rows else SimpleNamespace(config={}, files={})
    rows["config"] = _merged(of.config, rows["config"])
    sizes = rows.get("sizes")
    rows["sizes"] = stated(sizes) if sizes else sizes_of(rows["config"], -1)
    return SimpleNamespace(**nothing | {"files": of.files, "name": name} | rows)


_FAMILIES = sorted(path.stem for path in _ROWS.glob("*.json"))


def _tokenizer_files(name):
    if name == "llava":
        return {"tokenizer.model": test_qwen_turns.make_llama(400)}
    if name.startswith("gemma4"):
        made = test_gemma4_turns.make_gemma4(448).backend_tokenizer.to_str()
        # The larger sizes' begins an answer by a thought without words; these sizes' does not.
        begun = "{{- '<|channel>thought\n<channel|>' -}}" if name == "gemma4_small" else ""
        assert begun in test_gemma4_turns.TEMPLATE
        template = test_gemma4_turns.TEMPLATE.replace(begun, "")
        return {"tokenizer.json": made.encode(), "chat_template.jinja": template}
    made = test_qwen_turns.make_qwen()
    if name == "internvl":
        marked = Tokenizer.from_str(made.decode())
        marked.add_special_tokens(["<img>", "</img>", "<IMG_CONTEXT>"])
        made = marked.to_str().encode()
    template = {"chat_template": test_qwen_turns.TEMPLATE}
    return {"tokenizer.json": made} | ({"chat_template.json": template} if name == "qwen" else {})


def _write(folder, files):
    for name, content in files.items():
        content = json.dumps(content) if isinstance(content, dict) else content
        content = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(content)


@pytest.fixture(scope="session")
def published(tmp_path_factory, write_hf):
    """`published(name) -> (folder, tensors)` in the form in which the family is published."""

    @functools.cache
    def write(name):
        family, folder = _family(name), tmp_path_factory.mktemp(name) / "hf"
        tensors = write_hf(folder, family.sizes, family.config)
        _write(folder, family.files | _tokenizer_files(name))
        return folder, tensors

    return write


@pytest.fixture(scope="session")
def base(published):
    """`base(name)`: the folder of the family's base, to be read alone."""

    @functools.cache
    def make(name):
        folder = published(name)[0]
        convert.main([f"--checkpoint={folder}", f"--out={folder.parent / 'base'}"])
        return folder.parent / "base"

    return make


def _copied(folder, to):
    return Path(shutil.copytree(folder, to / "copied"))


def _ids(tokenizer, words):
    """Marks are pieces, an image is None."""
    for word in words:
        if word is None:
            yield -1
        elif word.startswith("<"):
            yield tokenizer.piece_id(word)
        else:
            yield from tokenizer.encode(word)


def _check_tensors(shapes, tensors):
    for name, shape in shapes.items():
        assert (None if name not in tensors else list(tensors[name].shape)) == shape, name


def _check_exported(family, base, tensors, back):
    convert.main([f"--checkpoint={base}", "--to=hf", f"--out={back}"])
    found = load_file(back / "model.safetensors")
    assert found.keys() == tensors.keys()
    assert all(np.array_equal(found[name], tensors[name]) for name in tensors)
    config = json.loads((back / "config.json").read_text())
    expected = {key: value for key, value in family.config.items() if key != "torch_dtype"}
    assert config == expected | {"dtype": "float32"}


@pytest.mark.parametrize("name", [name for name in _FAMILIES if name != "gemma4_small"])
def test_there_and_back(published, base, tmp_path, name):
    family, (_, tensors) = _family(name), published(name)
    _check_tensors(family.tensors, tensors)
    model, config, tokenizer_path = load_model(base(name))
    found, expected = model.config, family.sizes
    assert (found.vision, found.decoder) == (expected.vision, expected.decoder)
    assert found.projector == expected.projector
    if family.image:
        assert [[*found.vision.image_hw], found.vision.num_tokens] == family.image
    tokenizer = open_tokenizer(tokenizer_path, config)
    for key in ("context", "second_image"):
        if words := getattr(family, key):
            assert getattr(found, key) == tuple(_ids(tokenizer, words))
    assert [config.data.prompt, config.data.codec, config.data.geometry] == family.chooses
    for path, layer, name in family.kernels:
        array = functools.reduce(getattr, path.split("/"), model)[...]
        array = array if layer is None else array[layer]
        wanted = tensors[name].T if path.endswith("kernel") else tensors[name]
        np.testing.assert_array_equal(array, wanted)
    _check_exported(family, base(family.name), tensors, tmp_path / "back")
    for file, content in family.files.items():
        if file.endswith("processor_config.json"):
            assert json.loads((tmp_path / "back" / file).read_text()) == content


def test_a_small_size_there_and_back(published, tmp_path, capsys):
    """Published files have keys of layers that read others', and a tower for sounds, unasked."""
    family, (folder, tensors) = _family("gemma4_small"), published("gemma4_small")
    _check_tensors(family.tensors, tensors)
    decoder, directory = family.sizes.decoder, _copied(folder, tmp_path)
    assert (decoder.shared_layers, decoder.shared_mlp_dim, decoder.per_layer_width) == (3, 48, 5)
    assert [decoder.keys_of(layer) for layer in range(6)] == [0, 1, 2, 1, 1, 2]
    more = {
        "model.language_model.layers.3.self_attn.k_proj.weight": np.ones((16, 16), np.float32),
        "model.audio_tower.layers.0.norm_out.weight": np.ones(4, np.float32),
        "model.embed_audio.embedding_projection.weight": np.ones((16, 4), np.float32),
    }
    save_file(tensors | more, directory / "model.safetensors")
    sounds = {"audio_config": {"hidden_size": 4, "model_type": "gemma4_audio"}}
    _write(directory, {"config.json": family.config | sounds})
    own = (directory / "chat_template.jinja").read_text()
    _write(directory, {"chat_template.jinja": test_gemma4_turns.TEMPLATE})
    with pytest.raises(UserError, match=r"Gemma 4 E2B and E4B's form is .*google/gemma-4-E4B-it"):
        interchange.import_hf(directory, tmp_path / "base")
    _write(directory, {"chat_template.jinja": own})
    interchange.import_hf(directory, tmp_path / "base")
    assert json.loads((tmp_path / "base/model.json").read_text())["prompt"] == "gemma4_small"
    said = capsys.readouterr().out
    assert "2 tensors are left out, of the tower for sounds" in said
    assert "1 tensors are left out, of keys that no layer reads" in said
    _check_exported(family, tmp_path / "base", tensors, tmp_path / "back")


def test_what_we_do_not_have_is_named(subtests):
    for name in _FAMILIES:
        family = _family(name)
        for part, change, said in family.refused:
            config = copy.deepcopy(family.config)
            (config[part] if part else config).update(change)
            with subtests.test(name, part=part, change=change):
                with pytest.raises(UserError) as caught:
                    sizes_of(config, -1)
                assert said in str(caught.value) and "\n" not in str(caught.value)


def test_global_layers_and_other_sizes_of_images(subtests):
    """As transformers 5.2x writes them."""
    family, each = _family("gemma4"), {"head_dim": 12, "num_key_value_heads": 1}
    text = family.config["text_config"] | {"per_layer_config": {"02": each, "05": each}}
    del text["global_head_dim"], text["num_global_key_value_heads"]
    assert sizes_of(family.config | {"text_config": text}, -1) == family.sizes
    sizes = find_preset("gemma4_31b@1152x960")
    assert sizes.vision.num_tokens == 24 * 20 and sizes.vision.image_hw == (1152, 960)
    assert find_preset("gemma4_12b@1152x960").vision.num_tokens == 24 * 20
    for line in Path(__file__).with_name("sizes_that_cannot_be.tsv").read_text().splitlines():
        preset, said = line.split("\t")
        with subtests.test(preset), pytest.raises(UserError, match=said):
            find_preset(preset)


@pytest.mark.parametrize(
    ("name", "key", "value", "said"),
    [
        ("gemma4", "do_normalize", True, "do_normalize is True"),
        ("llava", "image_mean", [0.5, 0.5, 0.5], "image_mean is"),
        ("qwen", "image_mean", [0.5, 0.5, 0.5], "image_mean is"),
        # Without them the class of image processors takes CLIP's.
        ("qwen3", "image_mean", None, r"preprocessor_config\.json: image_mean is missing"),
        ("qwen3", "image_std", None, r"preprocessor_config\.json: image_std is missing"),
    ],
)
def test_pictures_of_other_colours_are_refused(tmp_path, name, key, value, said):
    family = _family(name)
    files = copy.deepcopy({"config.json": family.config} | family.files)
    _write(tmp_path, files)
    assert read_config(tmp_path)
    picture = next(files[file] for file in files if file.endswith("processor_config.json"))
    picture = picture.get("image_processor", picture)
    del picture[key]
    picture |= {} if value is None else {key: value}
    _write(tmp_path, files)
    with pytest.raises(UserError, match=said):
        read_config(tmp_path)


def test_tokenizers_and_templates_of_other_families_are_refused(published, tmp_path, subtests):
    other = {"chat_template": test_qwen_turns.TEMPLATE.replace("assistant", "model")}
    for name, files, said in (
        ("llava", {"tokenizer.model": _GEMMA.read_bytes()}, "not a tokenizer of Llama's family"),
        ("qwen", _tokenizer_files("llava"), r"no piece '<\|vision_start\|>'"),
        ("qwen", {"chat_template.json": other}, r"expected Qwen2\.5-VL's template"),
    ):
        with subtests.test(name, said=said):
            folder = _copied(published(name)[0], tmp_path)
            if "tokenizer.model" in files:
                (folder / "tokenizer.json").unlink(missing_ok=True)
            _write(folder, files)
            with pytest.raises(UserError, match=said):
                interchange.import_hf(folder, tmp_path / "base")
        shutil.rmtree(folder)


def test_a_recipe_of_another_family_says_what_to_set(base):
    recipe = load_config("configs/vindr_lora.py")
    model = dataclasses.replace(recipe.model, preset="from_base", init_from=str(base("gemma4")))
    recipe = dataclasses.replace(recipe, model=model)
    path = base("gemma4") / "tokenizer.json"
    with pytest.raises(UserError) as caught:
        open_tokenizer(path, recipe)
    assert str(caught.value).startswith("data.prompt='medgemma_reason' ends turns with <end_of_")
    assert "set it to one of gemma4, gemma4_small, gemma4_typed, " in str(caught.value)
    data = dataclasses.replace(recipe.data, prompt="gemma4_reason")
    tokenizer = open_tokenizer(path, dataclasses.replace(recipe, data=data))
    assert tokenizer.loc_token_start == -1


def test_a_base_without_location_tokens_or_of_another_size_is_refused(base):
    config = base_config(base("llava"))
    model = ModelConfig(preset="from_base", init_from=str(base("llava")))
    with pytest.raises(UserError, match="vocabulary has none; set one that writes digits"):
        open_tokenizer(base("llava") / "tokenizer.model", config.__class__(model=model))
    assert example_config(base_config(base("qwen"))).image_size == 448
    larger = load_config("configs/vix_ray_stage1.py:qwen_tiny")  # of 128
    data = dataclasses.replace(larger.data, codec="qwen2.5_vl_448")
    with pytest.raises(
        UserError, match="counts pixels of an input of 448 x 448, and the model's has 128 x 128"
    ):
        example_config(dataclasses.replace(larger, data=data))


@pytest.mark.parametrize("name", [name for name in _FAMILIES if _family(name).adapter])
def test_an_adapter_there_and_back(base, tmp_path, name):
    expected = _family(name).adapter
    model = load_model(base(name)).model
    paths = apply_lora(model, LoRAConfig(rank=2, alpha=3.0, **expected["lora"]), nnx.Rngs(0))
    assert sorted(paths) == sorted(expected["maps"])
    of_path = {path: functools.reduce(getattr, path.split("/"), model).lora for path in paths}
    rng = np.random.default_rng(0)
    for one in of_path.values():
        one.b[...] = rng.normal(size=one.b.shape).astype(np.float32)
    if name == "qwen3":  # one of its inner mergers has none
        inner = of_path["deepstack/fc1"]
        inner.a[...], inner.b[...] = inner.a[...].at[0].set(0), inner.b[...].at[0].set(0)
    save_peft(tmp_path, model)
    found = load_file(tmp_path / "adapter_model.safetensors")
    found = {key.removeprefix("base_model.model.model."): found[key] for key in found}
    _check_tensors(expected["tensors"], found)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert list(config["rank_pattern"]) == expected["rank_pattern"]
    assert expected["targets"] in config["target_modules"]
    trained = adapter_parameters(model, read_peft(tmp_path, model.config))
    for path, one in of_path.items():
        np.testing.assert_array_equal(trained[f"{path}/lora/b"], one.b[...])
    assert sorted(merge_lora(model)) == sorted(paths)


def test_questions_and_answers_in_its_ids(base):
    config = base_config(base("qwen"))
    tokenizer = open_tokenizer(base("qwen") / "tokenizer.json", config)
    record = asked(dataset="vix_ray", split="train", answers=[Answer(text="Here.")])
    encoded = QuestionEncoder(tokenizer, example_config(config)).encode(record)
    assert encoded.prefix.tolist() == tokenizer.encode(CHAT_FORMS["qwen"].question("Where?"))
    assert encoded.answer.tolist() == [*tokenizer.encode("Here."), tokenizer.eos_id]


def test_a_grid_that_is_not_square(base, tmp_path):
    """Of five rows of four tokens: nothing else of a portrait of that shape is padding."""
    config, tokenizer = base_config(base("qwen")), base("qwen") / "tokenizer.json"
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
    encode = nnx.jit(lambda model, images: model.encode_images(images))
    assert encode(model, jnp.asarray(pixels[None])).shape == (1, 20, 16)
    both = dataclasses.replace(
        portrait,
        model=dataclasses.replace(config.model, preset="from_base@448x448,560x448"),
        data=dataclasses.replace(data, codec="qwen2.5_vl_448x448,560x448"),
    )
    model, _ = build_model(both)
    assert model.config.vision.image_hw == (560, 448)
    save_base(tmp_path / "both", model, both, tokenizer)
    kept = base_config(tmp_path / "both")
    assert model_sizes(kept) == model.config
    assert example_config(kept).grids == ((448, 448), (560, 448))
    # What is trained from it has them too, and hands them on, unless it names its own.
    trained = dataclasses.replace(both.model, preset="from_base", init_from=str(tmp_path / "both"))
    tuned = dataclasses.replace(both, model=trained)
    assert example_config(tuned).grids == ((448, 448), (560, 448))
    one = dataclasses.replace(tuned.model, preset="from_base@448x448")
    one = dataclasses.replace(tuned, model=one, data=dataclasses.replace(data, codec="qwen3_vl"))
    assert example_config(one).grids == () and example_config(one).image_hw == (448, 448)
