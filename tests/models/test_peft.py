"""PEFT's adapter format, both ways, without PEFT (tests/parity holds it to the library)."""

import dataclasses
import json
import re

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from cxrjax.errors import UserError
from cxrjax.models import VLM, LoRAConfig, apply_lora
from cxrjax.models.peft import LOC_ROWS, adapter_parameters, read_peft, save_peft
from cxrjax.models.presets import DecoderConfig, VisionConfig, VLMConfig

SIZES = VLMConfig(
    vision=VisionConfig(image_size=8, patch_size=4, width=8, depth=2, num_heads=2, mlp_dim=16),
    decoder=DecoderConfig(
        vocab_size=1100, width=8, depth=3, num_heads=3, num_kv_heads=1, head_dim=4, mlp_dim=24
    ),
    loc_token_start=6,
)
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

    def trained(path, leaf):
        is_adapter = "lora" in path or "loc_delta" in path
        return leaf.replace(rng.normal(size=leaf.shape).astype(np.float32)) if is_adapter else leaf

    graphdef, state = nnx.split(model)
    flat = [(path, trained(path, leaf)) for path, leaf in nnx.to_flat_state(state)]
    return nnx.merge(graphdef, nnx.from_flat_state(flat))


def _parameters(model):
    flat = nnx.to_flat_state(nnx.state(model))
    return {"/".join(map(str, path)): np.asarray(leaf.get_value()) for path, leaf in flat}


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
    tensors, ours = load_file(directory / "adapter_model.safetensors"), _parameters(model)
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
    trained, ours = adapter_parameters(other, found), _parameters(model)
    assert trained.keys() == ours.keys() - _parameters(drawn(_base)).keys()
    for path, array in trained.items():
        # Rows are stored whole: the difference comes back to rounding.
        np.testing.assert_allclose(array, ours[path], atol=1e-6 if "loc" in path else 0)
    scale = model.decoder.layers.mlp.down_proj.lora.scale
    assert other.decoder.layers.mlp.down_proj.lora.scale == pytest.approx(scale, rel=1e-12)


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


@pytest.mark.parametrize("projector", ["linear", "normed", "mlp"])
def test_a_projector_that_was_trained_whole_goes_along(tmp_path, projector, drawn):
    sizes = dataclasses.replace(SIZES, projector=projector)
    model = drawn(lambda: VLM(sizes, rngs=nnx.Rngs(0)))
    apply_lora(model, LoRAConfig(rank=2, alpha=6.0, targets=("q_proj",)), nnx.Rngs(1))
    save_peft(tmp_path / "without", model)
    assert not any(p.startswith("proj") for p in read_peft(tmp_path / "without", sizes).arrays)
    save_peft(tmp_path / "with", model, with_projector=True)
    stated = json.loads((tmp_path / "with/adapter_config.json").read_text())
    assert stated["modules_to_save"] == ["multi_modal_projector"]
    found, ours = read_peft(tmp_path / "with", sizes), _parameters(model)
    saved = [path for path in found.arrays if "/lora/" not in path]
    assert sorted(saved) == sorted(path for path in ours if path.startswith("projector"))
    trained = adapter_parameters(model, found)
    assert all(np.array_equal(trained[path], ours[path]) for path in saved)
    if projector == "normed":  # whose map is no linear module there, and has no adapter
        return
    both = drawn(lambda: VLM(sizes, rngs=nnx.Rngs(0)))
    apply_lora(both, LoRAConfig(rank=2, targets=("q_proj", "projector")), nnx.Rngs(1))
    with pytest.raises(UserError, match="trained whole and has an adapter as well"):
        save_peft(tmp_path / "both", both, with_projector=True)


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
    found = read_peft(part, SIZES)
    query = "decoder/layers/attn/q_proj/lora"
    for name in ("a", "b"):
        ours = _parameters(model)[f"{query}/{name}"]
        np.testing.assert_array_equal(found.arrays[f"{query}/{name}"][[0, 2]], ours[[0, 2]])
        assert not found.arrays[f"{query}/{name}"][1].any()

    graphdef, state = nnx.split(model)
    flat = nnx.to_flat_state(state)
    set_to = [
        (path, leaf.replace(found.arrays.get("/".join(map(str, path)), leaf.get_value())))
        for path, leaf in flat
    ]
    ours = nnx.merge(graphdef, nnx.from_flat_state(set_to))
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


_TARGETS = ["q_proj", "v_proj", "fc1", "linear"]
_QUERY = f"{_NAMES}.language_model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize(
    ("stated", "edit", "said"),
    [
        ({"peft_type": "IA3"}, None, "peft_type is 'IA3', expected 'LORA'"),
        ({"r": None}, None, "r is None, expected a whole number"),
        ({"r": True}, None, "r is True, expected a whole number"),
        ({"r": 10**300}, None, "r is 1000.*, expected a whole number"),
        ({"r": -1}, None, "r is -1, expected a whole number"),
        ({"lora_alpha": float("nan")}, None, "lora_alpha is nan, expected a number"),
        ({"lora_dropout": 1}, None, "lora_dropout is 1, expected"),
        ({"use_dora": "yes"}, None, "use_dora is 'yes', expected True or False"),
        ({"init_lora_weights": "pissa"}, None, "init_lora_weights is 'pissa', expected"),
        ({"use_kron": True}, None, "the key 'use_kron' is not known here; .* remove it"),
        ({"rank_pattern": {"(l|l)(a|a)(n|n)+x": 1}}, None, "pattern .* cannot be used"),
        ({"rank_pattern": {"fc1": "3"}}, None, "rank_pattern of 'fc1' is '3'"),
        ({"alpha_pattern": {"layers.1.self_attn.q_proj": 9}}, None, "than the same map of other"),
        ({"alpha_pattern": {"layers.0.self_attn.q_proj": 9}}, None, "than the same map of other"),
        ({"trainable_token_indices": ["a", 1]}, None, "trains 2 rows of the embedding"),
        ({"lora_dropout": [0]}, None, r"lora_dropout is \[0\], expected 0 or None or a number"),
        ({"alpha_pattern": 2}, None, "alpha_pattern is 2, expected an object"),
        ({"rank_pattern": {"x(": 1}}, None, r"pattern 'x\(' in rank_pattern cannot be used"),
        ({"trainable_token_indices": {}}, None, "trains 0 rows of the embedding"),
        (
            {},
            lambda t: [t.pop(key) for key in list(t) if "trainable_tokens" in key],
            "names trained rows, and .*adapter_model.safetensors has none",
        ),
        ({"lora_alpha": "6"}, None, "lora_alpha is '6', expected a number"),
        ({"bias": "all"}, None, "bias is 'all'"),
        ({"modules_to_save": ["lm_head"]}, None, r"modules_to_save is \['lm_head'\]; only \["),
        ({"modules_to_save": "all"}, None, "modules_to_save is 'all'; only"),
        (
            {"modules_to_save": ["multi_modal_projector"]},
            None,
            r"base_model\.model\.model\.multi_modal_projector\.linear\.weight has shape None",
        ),
        (
            {"rank_pattern": {}},
            None,
            r"fc1's lora_A\.weight has shape \(3, 8\), expected \(2, 8\) for rank 2",
        ),
        ({"trainable_token_indices": [1, 2]}, None, "trains 2 rows of the embedding"),
        (
            {},
            lambda t: t.pop(f"{_QUERY}.lora_A.weight"),
            rf"{_QUERY}\.lora_A\.weight is not there, and other parts of the same adapter are",
        ),
        ({}, lambda t: t.pop(f"{_QUERY}.lora_magnitude_vector"), r"lora_magnitude_vector is not"),
        (
            {},
            lambda t: [t.pop(key) for key in list(t) if key.startswith(_QUERY)],
            "2 of 3 layers have decoder/layers/attn/q_proj's magnitude",
        ),
        ({"use_dora": False}, None, rf"9 tensors without a place .*{_QUERY[:40]}.*magnitude"),
        (
            {"alpha_pattern": {"qkv_proj": 9}},
            None,
            "alpha_pattern has 'qkv_proj', which matches no",
        ),
        ({"rank_pattern": {"layers.7.mlp.up_proj": 9}}, None, "which matches no linear map of"),
        *(
            ({"init_lora_weights": kind}, None, f"init_lora_weights is '{kind}', expected")
            for kind in ("pissa_niter_16", "olora", "corda", "loftq", "lora_ga", "mica")
        ),
        ({"lora_bias": True}, None, "lora_bias is True"),
        ({"fan_in_fan_out": True}, None, "fan_in_fan_out is True"),
        ({"layer_replication": [[0, 2]]}, None, "layer_replication is"),
        ({"bias": "lora_only"}, None, "bias is 'lora_only'"),
        ({"init_lora_weights": "of_2027"}, None, "init_lora_weights is 'of_2027', expected"),
        ({"init_lora_weights": "kasa"}, None, "init_lora_weights is 'kasa', expected"),
        ({"use_qalora": True}, None, "use_qalora is True"),
        ({"use_rslora": 1}, None, "use_rslora is 1, expected True or False or None"),
        ({"alora_invocation_tokens": [1]}, None, r"alora_invocation_tokens is \[1\]"),
        *(
            ({f"{key}": {"num_groups": 2}}, None, f"{key} is ")
            for key in (
                *("use_bdlora", "arrow_config", "kasa_config", "monteclora_config"),
                *("velora_config", "megatron_config"),
            )
        ),
        ({"of_peft_1": None}, None, "the key 'of_peft_1' is not known here"),
        (
            {"modules_to_save": ["embed_tokens"]},
            None,
            r"modules_to_save is \['embed_tokens'\]; only",
        ),
        (
            {"trainable_token_indices": {"lm_head": list(range(6, 1030))}},
            None,
            r"trainable_token_indices names \['lm_head'\], expected 'embed_tokens' alone",
        ),
        (
            {"rank_pattern": {"fc1": 2, ".*": 3}},
            None,
            "pattern '\\.\\*' in rank_pattern cannot be used",
        ),
        # The first that matches counts.
        ({"rank_pattern": {"fc1": 3, "v_proj": 2, "self_attn.v_proj": 4}}, None, None),
        ({"rank_pattern": {"fc1": 3, "self_attn.v_proj": 4, "v_proj": 2}}, None, "for rank 4"),
        ({"target_modules": _TARGETS}, None, None),
        ({"target_modules": _TARGETS[1:]}, None, "give no adapter to .*self_attn.q_proj, and the"),
        ({"target_modules": ["proj", *_TARGETS[1:]]}, None, "give no adapter to .*q_proj"),
        ({"target_modules": None}, None, "give no adapter to"),
        ({"target_modules": [1]}, None, r"target_modules is \[1\], expected names of modules"),
        ({"exclude_modules": ["vision_tower"]}, None, None),  # which is no linear map
        ({"exclude_modules": ["mlp.fc1"]}, None, "give no adapter to .*mlp.fc1, and the weights"),
        (
            {"exclude_modules": ["language_model.model.layers.1.self_attn.q_proj"]},
            None,
            r"give no adapter to .*layers\.1\.self_attn\.q_proj",
        ),
        (
            {"target_modules": _TARGETS, "layers_to_transform": [0, 1, 2]},
            None,
            r"give no adapter to .*multi_modal_projector\.linear",  # in no layer
        ),
        (
            {
                "target_modules": [*_TARGETS, "model.multi_modal_projector.linear"],
                "layers_to_transform": [0, 1, 2],
            },
            None,
            None,
        ),
        (
            {
                "target_modules": [*_TARGETS, "model.multi_modal_projector.linear"],
                "layers_to_transform": [0, 1],
            },
            None,
            r"give no adapter to .*layers\.2\.self_attn\.q_proj",
        ),
        (
            {
                "target_modules": [*_TARGETS, "model.multi_modal_projector.linear"],
                "layers_to_transform": [0, 1, 2],
                "layers_pattern": "language_model.layers",
            },
            None,
            r"give no adapter to model\.vision_tower\.encoder\.layers\.0\.mlp\.fc1",
        ),
        ({"layers_to_transform": 1}, None, "layers_to_transform is 1, expected numbers of layers"),
        ({"layers_to_transform": ["1"]}, None, r"layers_to_transform is \['1'\], expected"),
        ({"target_parameters": ["mlp.weight"]}, None, "target_parameters is"),
        (
            {},
            lambda t: t.update({f"{_QUERY}.lora_A.weight": np.zeros((4, 8), np.float32)}),
            r"lora_A\.weight has shape \(4, 8\), expected \(2, 8\)",
        ),
        (
            {},
            lambda t: t.update({f"{_NAMES}.lm_head.lora_A.weight": np.zeros((2, 8), np.float32)}),
            # By the file's name.
            rf"1 tensors without a place in this model \({_NAMES}\.lm_head\.lora_A\.weight\)",
        ),
    ],
)
def test_adapters_that_do_not_fit_are_refused(saved, tmp_path, stated, edit, said):
    """Those that do, beside the ones that are nearly so, have nothing said of them."""
    if said is None:
        found, as_saved = (
            read_peft(folder, SIZES).arrays for folder in (_copy(saved, tmp_path, stated), saved[0])
        )
        assert found.keys() == as_saved.keys()
        return
    with pytest.raises(UserError, match=said) as caught:
        read_peft(_copy(saved, tmp_path, stated, edit), SIZES)
    assert "\n" not in str(caught.value)


def test_a_pickle_and_a_model_without_adapters_are_refused(saved, tmp_path, drawn):
    _copy(saved, tmp_path)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(UserError, match="is a pickle and not read"):
        read_peft(tmp_path, SIZES)
    with pytest.raises(UserError, match="no adapters"):
        save_peft(tmp_path / "x", drawn(_base))
    assert not (tmp_path / "x").exists()
