"""PEFT's adapter format, both ways, without PEFT (tests/parity holds it to the library)."""

import dataclasses
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from cxrjax.errors import UserError
from cxrjax.models import (
    PRESETS,
    VLM,
    LoRAConfig,
    apply_lora,
    count_parameters,
    partition,
    peft,
    peft_patterns,
)
from cxrjax.models.hf_config import checked
from cxrjax.models.lora import merge_lora
from cxrjax.models.peft import LOC_ROWS, adapter_parameters, read_peft, save_peft
from tests.models.sizes import PLAIN, arrays, changed, with_arrays

SIZES = changed(PLAIN, loc_token_start=6)
_LORA = LoRAConfig(
    rank=2,
    alpha=6.0,
    dropout=0.1,
    targets=("decoder/layers/attn/(q|v)_proj", "vision/layers/mlp/fc1", "projector"),
    rank_pattern={"vision/.*": 3},
    alpha_pattern={"projector": 1.5},
    use_dora=True,
)
_NAMES = "base_model.model.model"


def _base():
    return VLM(SIZES, rngs=nnx.Rngs(0))


def _model(drawn, config=_LORA, loc_rows=True):
    model = drawn(_base)
    apply_lora(model, config, nnx.Rngs(1))
    if loc_rows:
        model.decoder.embedder.add_loc_delta()
    rng = np.random.default_rng(2)
    trained = {
        path: rng.normal(size=array.shape).astype(np.float32)
        for path, array in arrays(model).items()
        if "/lora/" in path or "loc_delta" in path
    }
    return with_arrays(model, trained)


@pytest.fixture(scope="module")
def saved(tmp_path_factory, drawn):
    """(directory, model)."""
    directory, model = tmp_path_factory.mktemp("adapter"), _model(drawn)
    save_peft(directory, model, "google/x", base_sha256="abc")
    return directory, model


def _copy(saved, to, stated=(), edit=None):
    content = json.loads((saved[0] / "adapter_config.json").read_text())
    (to / "adapter_config.json").write_text(json.dumps({**content, **dict(stated)}))
    tensors = load_file(saved[0] / "adapter_model.safetensors")
    if edit is not None:
        edit(tensors)
    save_file(tensors, to / "adapter_model.safetensors")
    return to


def test_files_are_as_peft_has_them(saved):
    directory, model = saved
    tensors, ours = load_file(directory / "adapter_model.safetensors"), arrays(model)
    name = f"{_NAMES}.language_model.layers.2.self_attn.v_proj"
    lora = "decoder/layers/attn/v_proj/lora"
    np.testing.assert_array_equal(tensors[f"{name}.lora_A.weight"], ours[f"{lora}/a"][2].T)
    np.testing.assert_array_equal(tensors[f"{name}.lora_B.weight"], ours[f"{lora}/b"][2].T)
    magnitude = tensors[f"{name}.lora_magnitude_vector"]
    np.testing.assert_array_equal(magnitude, ours[f"{lora}/magnitude"][2])
    assert tensors[f"{_NAMES}.multi_modal_projector.linear.lora_A.weight"].shape == (2, 8)
    rows = tensors[f"{_NAMES}.language_model.embed_tokens.token_adapter.trainable_tokens_delta"]
    table = ours["decoder/embedder/table"][6 : 6 + 1024]
    np.testing.assert_array_equal(rows, table + ours["decoder/embedder/loc_delta"])
    assert len(tensors) == 3 * (2 * 3 + 2 + 1) + 1

    stated = json.loads((directory / "adapter_config.json").read_text())
    assert (stated["r"], stated["lora_alpha"], stated["lora_dropout"]) == (2, 6, 0.1)
    assert stated["use_dora"] and not stated["use_rslora"] and stated["bias"] == "none"
    assert stated["base_model_name_or_path"] == "google/x"
    fc1 = r"model\.vision_tower\.encoder\.layers\.\d+\.mlp\.fc1"
    assert stated["rank_pattern"] == {fc1: 3}
    assert stated["alpha_pattern"] == {r"model\.multi_modal_projector\.linear": 1.5}
    assert fc1 in stated["target_modules"].split("|")
    assert stated["trainable_token_indices"] == {"embed_tokens": list(range(6, 6 + 1024))}


@pytest.mark.parametrize("use_rslora", [False, True])
def test_what_is_read_is_what_was_written(tmp_path, use_rslora, drawn):
    config = LoRAConfig(rank=3, alpha=5.0, targets=("down_proj", "fc2"), use_rslora=use_rslora)
    model = _model(drawn, config, loc_rows=not use_rslora)
    save_peft(tmp_path, model, use_rslora=use_rslora)
    found = read_peft(tmp_path, SIZES)
    assert (found.config.rank, found.config.alpha) == (3, 5.0)
    assert found.config.use_rslora == use_rslora and found.base_sha256 is None
    assert (LOC_ROWS in found.arrays) != use_rslora
    other = drawn(_base)
    added = apply_lora(other, found.config, nnx.Rngs(5))
    assert added == ["decoder/layers/mlp/down_proj", "vision/layers/mlp/fc2"]
    trained, ours = adapter_parameters(other, found), arrays(model)
    assert trained.keys() == ours.keys() - arrays(drawn(_base)).keys()
    for path, array in trained.items():
        # Rows are stored whole: the difference comes back to rounding.
        np.testing.assert_allclose(array, ours[path], atol=1e-6 if "loc" in path else 0)
    scale = model.decoder.layers.mlp.down_proj.lora.scale
    assert other.decoder.layers.mlp.down_proj.lora.scale == pytest.approx(scale, rel=1e-12)


def test_the_box_loss_s_adapter_is_one_of_its_own_on_the_output_layer(tmp_path, drawn):
    model = _model(drawn, loc_rows=False)
    model.decoder.embedder.add_box_adapter(3, nnx.Rngs(1))
    model.decoder.embedder.lora.b[...] += np.random.default_rng(0).normal(size=(3, 1024))
    save_peft(tmp_path, model, "google/x", base_sha256="abc")
    tensors = load_file(tmp_path / "boxes/adapter_model.safetensors")
    stated = json.loads((tmp_path / "boxes/adapter_config.json").read_text())
    assert (stated["r"], stated["lora_alpha"], stated["target_modules"]) == (3, 3, ["lm_head"])
    assert not any("lm_head" in name for name in load_file(tmp_path / "adapter_model.safetensors"))
    prefix = f"{_NAMES.removesuffix('.model')}.lm_head.lora_"
    a, b = (tensors[f"{prefix}{part}.weight"] for part in "AB")
    table = np.asarray(model.decoder.embedder.table[...])
    merge_lora(model)
    np.testing.assert_allclose(model.decoder.embedder.head[...], table + b @ a, atol=1e-5)


def test_patterns_dropout_and_the_base_s_hash_come_back(saved):
    found = read_peft(saved[0], SIZES)
    assert found.config.rank_pattern == {"vision/layers/mlp/fc1": 3}
    assert found.config.alpha_pattern == {"projector": 1.5}
    assert found.config.dropout == 0.1 and found.config.use_dora
    assert found.base_sha256 == "abc"


def test_names_of_older_versions_are_read(saved, tmp_path):
    def older(tensors):
        for name in list(tensors):
            new = name.replace(
                f"{_NAMES}.language_model.", "base_model.model.language_model.model."
            )
            new = new.replace(
                f"{_NAMES}.vision_tower.", "base_model.model.vision_tower.vision_model."
            )
            tensors[new.replace(f"{_NAMES}.multi", "base_model.model.multi")] = tensors.pop(name)

    found = read_peft(_copy(saved, tmp_path, edit=older), SIZES)
    for path, array in read_peft(saved[0], SIZES).arrays.items():
        np.testing.assert_array_equal(found.arrays[path], array)


@pytest.mark.parametrize("family", ["linear paligemma", "normed gemma3", "mlp llava"])
def test_a_projector_that_was_trained_whole_goes_along(tmp_path, family, drawn):
    projector, family = family.split()
    sizes = dataclasses.replace(SIZES, projector=projector, family=family)
    model = drawn(lambda: VLM(sizes, rngs=nnx.Rngs(0)))
    apply_lora(model, LoRAConfig(rank=2, alpha=6.0, targets=("q_proj",)), nnx.Rngs(1))
    save_peft(tmp_path / "without", model)
    assert not any(p.startswith("proj") for p in read_peft(tmp_path / "without", sizes).arrays)
    whole = [path for path in arrays(model) if path.startswith("projector")]
    save_peft(tmp_path / "with", model, whole=whole)
    stated = json.loads((tmp_path / "with/adapter_config.json").read_text())
    assert stated["modules_to_save"] == ["multi_modal_projector"]
    found, ours = read_peft(tmp_path / "with", sizes), arrays(model)
    saved = [path for path in found.arrays if "/lora/" not in path]
    assert sorted(saved) == sorted(path for path in ours if path.startswith("projector"))
    trained = adapter_parameters(model, found)
    assert all(np.array_equal(trained[path], ours[path]) for path in saved)
    if projector == "normed":  # whose map is no linear module there, and has no adapter
        return
    both = drawn(lambda: VLM(sizes, rngs=nnx.Rngs(0)))
    apply_lora(both, LoRAConfig(rank=2, targets=("q_proj", "projector")), nnx.Rngs(1))
    with pytest.raises(UserError, match="trained whole and has an adapter as well"):
        save_peft(tmp_path / "both", both, whole=whole)


@pytest.mark.parametrize("modules", [["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"]])
def test_embedding_and_output_layer_trained_whole_go_along(tmp_path, modules, drawn):
    config = LoRAConfig(rank=2, alpha=6.0, targets=("decoder/.*q_proj",))
    model = _model(drawn, config, loc_rows=False)
    model.untie()
    paths = {"embed_tokens": "decoder/embedder/table", "lm_head": "decoder/embedder/head"}
    whole = {paths[name]: len(name) * arrays(model)[paths[name]] for name in modules}
    model = with_arrays(model, whole)
    save_peft(tmp_path / "new", model, whole=whole)
    stated = json.loads((tmp_path / "new/adapter_config.json").read_text())
    assert stated["modules_to_save"] == modules and not stated.get("ensure_weight_tying")

    def older(tensors):
        for name in [name for name in tensors if "lora" not in name]:
            older = name.replace(".weight", ".modules_to_save.default.weight")
            tensors[older] = tensors.pop(name)

    (tmp_path / "old").mkdir()
    old = _copy((tmp_path / "new", model), tmp_path / "old", edit=older)
    for folder in (tmp_path / "new", old):
        found = read_peft(folder, SIZES)
        assert found.untied
        trained = adapter_parameters(drawn(_base), found)
        assert {path for path in trained if "/lora/" not in path} == whole.keys()
        assert all(np.array_equal(trained[path], whole[path]) for path in whole)
    with pytest.raises(UserError, match="without a place in this model"):
        read_peft(_copy((tmp_path / "new", model), old, {"modules_to_save": None}), SIZES)
    tied = _copy((tmp_path / "new", model), old, {"ensure_weight_tying": True})
    if "lm_head" not in modules:
        assert not read_peft(tied, SIZES).untied
        return
    with pytest.raises(UserError, match=r"layer differ|embed_tokens, and .* has shape None"):
        read_peft(tied, SIZES)


def test_settings_of_published_adapters_name_the_modules_they_were_trained_on(subtests):
    """Seen in public; a count is (maps of a block of the decoder) x depth + those of the tower."""
    lines = Path(__file__).with_name("published_adapters.jsonl").read_text().splitlines()
    for name, preset, count, stated in map(json.loads, lines):
        said = rf"names {count} modules, and the weights beside it lack {count} of them"
        with subtests.test(name), pytest.raises(UserError, match=said):
            assert stated.pop("peft_type") == "LORA"
            stated = checked(stated, peft.SETTINGS, name)
            peft_patterns.check_targets(stated, (), PRESETS[preset], {}, name)


def test_adapters_of_keys_that_no_layer_reads_are_left_out(tmp_path, drawn, capsys):
    """transformers 5.5 had maps of keys and values in Gemma 4's layers that share another's."""
    sizes = PRESETS["tiny_gemma4_e2b"]
    model = drawn(lambda: VLM(sizes, rngs=nnx.Rngs(0)))
    apply_lora(model, LoRAConfig(rank=2, targets=("decoder/.*(q|k|v)_proj",)), nnx.Rngs(1))
    save_peft(tmp_path, model)
    own = read_peft(tmp_path, sizes)
    last = f"{_NAMES}.language_model.layers.{sizes.decoder.depth - 1}.self_attn"
    names = [f"{last}.{part}_proj.lora_{m}.weight" for part in "kv" for m in "AB"]
    (tmp_path / "older").mkdir()
    older = _copy(
        (tmp_path, model),
        tmp_path / "older",
        {"target_modules": ["q_proj", "k_proj", "v_proj"], "exclude_modules": ".*vision_tower.*"},
        lambda tensors: tensors.update({name: np.ones((2, 2), np.float32) for name in names}),
    )
    found = read_peft(older, sizes)
    assert ": 4 tensors are left out, of keys that no layer reads" in capsys.readouterr().out
    assert found.arrays.keys() == own.arrays.keys()


def test_both_tables_of_medgemma_are_trained_on_one_accelerator():
    def build():
        model = VLM(PRESETS["medgemma_4b"], rngs=nnx.Rngs(0))
        apply_lora(model, LoRAConfig(rank=64, targets=("attn/.*", "mlp/.*")), nnx.Rngs(1))
        model.untie()
        return model

    _, trained, frozen = partition(nnx.eval_shape(build), ("/lora/", "embedder/(table|head)$"))
    assert count_parameters(trained) > 2 * 262_208 * 2_560
    # Values, gradients and Adam's two moments in float32; the rest in bfloat16.
    assert 16 * count_parameters(trained) + 2 * count_parameters(frozen) < 40e9


@pytest.mark.parametrize(
    "prefix",
    [
        *("model.language_model.", "language_model.model.", "language_model.", ""),
        "base_model.model.model.language_model.",
    ],
)
def test_patterns_may_have_the_names_of_any_version(saved, tmp_path, prefix):
    pattern = {rf"{prefix}layers.\d+.self_attn.v_proj": 9}
    copy = _copy(saved, tmp_path, {"alpha_pattern": pattern})
    if prefix.startswith("base_model"):  # PEFT's own wrapper, which no pattern is matched with
        with pytest.raises(UserError, match="matches no linear map"):
            read_peft(copy, SIZES)
        return
    found = read_peft(copy, SIZES).config
    assert found.alpha_pattern == {"decoder/layers/attn/v_proj": 9.0}


def test_layers_without_an_adapter_stay_without(tmp_path, drawn):
    """They add nothing, have no gradient, and are not written again."""
    config = LoRAConfig(rank=2, alpha=6.0, targets=("q_proj", "projector"))
    model = _model(drawn, config, loc_rows=False)
    save_peft(tmp_path / "whole", model)
    lacking = f"{_NAMES}.language_model.layers.1.self_attn.q_proj"

    def edit(tensors):
        for key in [key for key in tensors if key.startswith(lacking)]:
            del tensors[key]

    (tmp_path / "part").mkdir()
    part = _copy((tmp_path / "whole", model), tmp_path / "part", edit=edit)
    with pytest.raises(UserError, match=r"lack 1 of them \(.*layers\.1\.self_attn\.q_proj\)"):
        read_peft(part, SIZES)
    less = {"target_modules": ["q_proj", "linear"], "exclude_modules": [lacking[17:]]}
    part = _copy((tmp_path / "whole", model), part, less, edit=edit)
    found = read_peft(part, SIZES)
    query = "decoder/layers/attn/q_proj/lora"
    for name in ("a", "b"):
        ours = arrays(model)[f"{query}/{name}"]
        np.testing.assert_array_equal(found.arrays[f"{query}/{name}"][[0, 2]], ours[[0, 2]])
        assert not found.arrays[f"{query}/{name}"][1].any()

    ours = with_arrays(model, found.arrays)
    save_peft(tmp_path / "again", ours)
    kept, again = (load_file(d / "adapter_model.safetensors") for d in (part, tmp_path / "again"))
    assert kept.keys() == again.keys()
    assert all(np.array_equal(kept[key], again[key]) for key in kept)
    stated = json.loads((tmp_path / "again/adapter_config.json").read_text())
    targets = re.compile(stated["target_modules"])
    modules = [f"model.language_model.layers.{layer}.self_attn.q_proj" for layer in range(3)]
    assert [bool(targets.fullmatch(module)) for module in modules] == [True, False, True]

    graphdef, state = nnx.split(ours.decoder.layers.attn.q_proj)
    linear = nnx.merge(graphdef, jax.tree.map(lambda leaf: jax.numpy.asarray(leaf[1]), state))
    x = jax.numpy.ones((4, SIZES.decoder.width))
    np.testing.assert_array_equal(linear(x), x @ linear.kernel[...])
    gradient = nnx.grad(lambda m: (m(x) ** 2).sum())(linear)
    assert not np.any(gradient["lora"]["a"][...]) and not np.any(gradient["lora"]["b"][...])


_QUERY = f"{_NAMES}.language_model.layers.1.self_attn.q_proj"


def _without(part):
    return lambda tensors: [tensors.pop(key) for key in list(tensors) if part in key]


def _with(name, *shape):
    return lambda tensors: tensors.update({name: np.zeros(shape, np.float32)})


_DAMAGED = [
    (
        {},
        _without("trainable_tokens"),
        "names trained rows, and .*adapter_model.safetensors has none",
    ),
    (
        {},
        _without(f"{_QUERY}.lora_A.weight"),
        rf"{_QUERY}\.lora_A\.weight is missing, and other parts of the same adapter are",
    ),
    ({}, _without(f"{_QUERY}.lora_magnitude_vector"), r"lora_magnitude_vector is missing"),
    ({}, _without(_QUERY), "2 of 3 layers have decoder/layers/attn/q_proj's magnitude"),
    (
        {},
        _with(f"{_QUERY}.lora_A.weight", 4, 8),
        r"lora_A\.weight has shape \(4, 8\), expected \(2, 8\)",
    ),
    # By the file's name.
    (
        {},
        _with(f"{_NAMES}.lm_head.lora_A.weight", 2, 8),
        rf"1 tensors without a place in this model \({_NAMES}\.lm_head\.lora_A\.weight\)",
    ),
]


def test_adapters_that_do_not_fit_are_refused(saved, tmp_path, subtests):
    """Those that do, beside the ones that are nearly so, have nothing said of them."""
    lines = Path(__file__).with_name("refused_adapters.jsonl").read_text().splitlines()
    rows = [(stated, None, said) for stated, said in map(json.loads, lines)]
    as_saved = read_peft(saved[0], SIZES).arrays.keys()
    for stated, edit, said in [*rows, *_DAMAGED]:
        folder = _copy(saved, tmp_path, stated, edit)
        with subtests.test(said, stated=stated):
            if said is None:
                assert read_peft(folder, SIZES).arrays.keys() == as_saved
                continue
            with pytest.raises(UserError, match=said) as caught:
                read_peft(folder, SIZES)
            assert "\n" not in str(caught.value)


def test_a_pickle_and_a_model_without_adapters_are_refused(saved, tmp_path, drawn):
    _copy(saved, tmp_path)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(UserError, match="is a pickle and not read"):
        read_peft(tmp_path, SIZES)
    with pytest.raises(UserError, match="no adapters"):
        save_peft(tmp_path / "x", drawn(_base))
    with pytest.raises(UserError, match=r"this base has no <loc> tokens .* merge the adapter"):
        read_peft(saved[0], dataclasses.replace(SIZES, loc_token_start=-1))
    assert not (tmp_path / "x").exists()
