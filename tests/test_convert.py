"""The command's ways in and out, on a small PaliGemma that was not ours."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import cxrjax
from cxrjax.commands import convert
from cxrjax.errors import UserError
from cxrjax.input_pipeline.tokenizer import load_tokenizer
from cxrjax.models import partition
from cxrjax.models.lora import AdapterConfig, merge_lora
from cxrjax.training import base_model, checkpoint, resolver
from cxrjax.training.config import ExperimentConfig, ModelConfig, TrainingConfig
from cxrjax.training.config_file import validate
from cxrjax.training.data import example_config, open_tokenizer
from cxrjax.training.optimizer import make_optimizer
from cxrjax.training.step import init_state
from cxrjax.training.store import CheckpointStore
from tests.models.sizes import PLAIN, arrays, changed
from tests.papers.cases import cases

_TOKENIZER = Path(__file__).parent.parent / "data/demo_base/tokenizer.model"
SIZES = changed(PLAIN, vision={"depth": 1}, decoder={"vocab_size": 2112, "depth": 2})
_CONFIG = json.loads(Path(__file__).with_name("paligemma_config.json").read_text())


def _convert(source, out, *more):
    convert.main([f"--checkpoint={source}", f"--out={out}", *more])
    return out


def _write_hf(write_hf, directory, **options):
    tensors = write_hf(directory, SIZES, _CONFIG, **options)
    (directory / "tokenizer.model").write_bytes(_TOKENIZER.read_bytes())
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "GemmaTokenizer"}')
    return tensors


@pytest.fixture(scope="module")
def hf(tmp_path_factory, write_hf):
    """(directory, tensors), to be read alone, as `base` and `run` are."""
    directory = tmp_path_factory.mktemp("convert") / "hf"
    return directory, _write_hf(write_hf, directory, dtype="bfloat16", shards=2)


@pytest.fixture(scope="module")
def base(hf):
    return _convert(hf[0], hf[0].parent / "base")


def _with_lora(config, **changes):
    return dataclasses.replace(config, lora=dataclasses.replace(config.lora, **changes))


@pytest.fixture(scope="module")
def run(base):
    """A workdir whose adapters and <loc> rows have been trained on the base."""
    return _trained(base, base.parent / "run", "/lora/", "loc_delta")


@pytest.fixture(scope="module")
def adapter(run):
    return _convert(run, run.parent / "adapter", "--to=peft")


@pytest.fixture
def copied(tmp_path):
    """`copied(folder)`: one that may be written into."""
    return lambda folder: Path(shutil.copytree(folder, tmp_path / "copied"))


def _trained(base, workdir, *rules, dropout=0.1, scale=1.0, untied=False):
    config = dataclasses.replace(
        base_model.base_config(base),
        lora=AdapterConfig(rank=2, alpha=3.0, dropout=dropout, loc_rows=not untied, untied=untied),
        trainable=rules,
        training=TrainingConfig(batch_images=1, steps=1),
    )
    model, reference = checkpoint.build_model(config)
    _, trainable, _ = partition(model, config.trainable)
    rng = np.random.default_rng(0)
    drawn = lambda x: (scale * rng.normal(size=x.shape)).astype(np.float32)  # noqa: E731
    trained = jax.tree.map(drawn, trainable)
    workdir.mkdir()
    (workdir / "config.json").write_text(json.dumps(config.to_json()))
    shutil.copy(base / "tokenizer.model", workdir)
    store = CheckpointStore(workdir, "vqa/f1")
    store.save(5, init_state(trained, make_optimizer(config.optimizer, 10)), {}, reference, {})
    store.close()
    return workdir


def _loaded(folder):
    return arrays(checkpoint.load_model(folder).model)


def _assert_close(found, expected):
    assert found.keys() == expected.keys()
    for path in expected:
        np.testing.assert_allclose(found[path], expected[path], atol=1e-6)


def test_a_base_of_any_size_carries_its_sizes(base, hf):
    described = json.loads((base / "model.json").read_text())
    assert described["preset"] == "from_base" and described["dtype"] == "bfloat16"
    assert described["notes"] == {"source": "hf"}
    model, config, tokenizer_path = checkpoint.load_model(base)
    assert model.config == SIZES
    assert config.model.share == "tower"
    assert example_config(config).image_size == 8
    assert open_tokenizer(tokenizer_path, config).loc_ids[0] == 4
    table = hf[1]["language_model.model.embed_tokens.weight"]
    np.testing.assert_array_equal(arrays(model)["decoder/embedder/table"], table)
    assert (base / "tokenizer_config.json").is_file()


def test_an_output_layer_that_is_the_embedding_again_is_tied(tmp_path, write_hf):
    """transformers would draw the one that is left out, where the file says that there is one."""
    source = tmp_path / "untied"
    tensors = _write_hf(write_hf, source)
    (path,) = source.glob("*.safetensors")
    stated = json.loads((source / "config.json").read_text()) | {"tie_word_embeddings": False}
    (source / "config.json").write_text(json.dumps(stated))
    with pytest.raises(UserError, match="is False, and the weights have no output layer"):
        _convert(source, tmp_path / "x")
    table = tensors["language_model.model.embed_tokens.weight"]
    save_file(tensors | {"language_model.lm_head.weight": table.copy()}, path)
    out = _convert(_convert(source, tmp_path / "base"), tmp_path / "back", "--to=hf")
    assert not [name for name in load_file(out / "model.safetensors") if "lm_head" in name]
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is True
    save_file(tensors | {"language_model.lm_head.weight": table + 1}, path)
    base = _convert(source, tmp_path / "own")
    model = checkpoint.load_model(base).model
    assert not model.config.decoder.tied
    np.testing.assert_array_equal(arrays(model)["decoder/embedder/head"], table + 1)
    _convert(base, tmp_path / "out", "--to=hf")
    found = load_file(tmp_path / "out/model.safetensors")
    np.testing.assert_array_equal(found["language_model.lm_head.weight"], table + 1)
    _convert(tmp_path / "out", tmp_path / "again")


def test_an_adapter_with_embedding_and_output_layer(base, tmp_path):
    """As most published adapters of MedGemma have them: trained, out, in, merged, and in again."""
    rules = ("/lora/", "embedder/(table|head)$")
    run = _trained(base, tmp_path / "run", *rules, untied=True)
    adapter = _convert(run, tmp_path / "adapter", "--to=peft")
    stated = json.loads((adapter / "adapter_config.json").read_text())
    assert stated["modules_to_save"] == ["embed_tokens", "lm_head"]
    back = _convert(adapter, tmp_path / "back", f"--base={base}")
    # Moments of two whole tables would be zeros, four times the adapter's size.
    assert list(
        CheckpointStore(back, "vqa/f1", writing=False)._manager.item_metadata(1)["optimizer"].tree
    ) == ["step"]
    ours = arrays(checkpoint.load_model(run).model)
    _assert_close(_loaded(back), ours)
    merged = _convert(back, tmp_path / "merged", "--to=merged")
    assert json.loads((merged / "config.json").read_text())["tie_word_embeddings"] is False
    again = arrays(checkpoint.load_model(_convert(merged, tmp_path / "again")).model)
    for name in ("table", "head"):
        path = f"decoder/embedder/{name}"
        np.testing.assert_array_equal(again[path], ours[path])
    assert not np.array_equal(ours[path], ours["decoder/embedder/table"])


def test_hugging_face_there_and_back(base, hf, tmp_path):
    out = _convert(base, tmp_path / "back", "--to=hf")
    found = load_file(out / "model.safetensors")
    assert found.keys() == hf[1].keys()
    for name, tensor in hf[1].items():
        assert found[name].dtype == tensor.dtype
        np.testing.assert_array_equal(found[name], tensor)
    stated = json.loads((out / "config.json").read_text())
    assert stated.pop("dtype") == "bfloat16"
    assert stated == {key: value for key, value in _CONFIG.items() if key != "torch_dtype"}
    assert (out / "tokenizer.model").read_bytes() == _TOKENIZER.read_bytes()
    assert (out / "tokenizer_config.json").is_file()
    again = _convert(out, tmp_path / "again", "--dtype=float32")
    assert json.loads((again / "model.json").read_text())["dtype"] == "float32"


def test_adapters_out_and_in_again(base, run, adapter, tmp_path):
    stated = json.loads((adapter / "adapter_config.json").read_text())
    assert stated["base_model_name_or_path"] == "hf" and stated["lora_dropout"] == 0.1
    assert 'base_model: "hf"\n' in (adapter / "README.md").read_text()
    named = _convert(
        run, tmp_path / "named", "--to=peft", "--base_name=google/paligemma2-3b-pt-448"
    )
    assert 'base_model: "google/paligemma2-3b-pt-448"\n' in (named / "README.md").read_text()
    assert (
        json.loads((named / "adapter_config.json").read_text())["base_model_name_or_path"]
        == "google/paligemma2-3b-pt-448"
    )
    with pytest.raises(UserError, match="only --to=peft writes a base's name"):
        _convert(run, tmp_path / "x", "--to=merged", "--base_name=x")
    back = _convert(adapter, tmp_path / "back", f"--base={base}")
    ours, theirs = (arrays(checkpoint.load_model(directory).model) for directory in (run, back))
    _assert_close(theirs, ours)
    config = checkpoint.load_model(back).config
    assert (config.lora.rank, config.lora.alpha, config.lora.dropout) == (2, 3.0, 0.1)
    assert load_tokenizer(checkpoint.load_model(back).tokenizer_path).vocab_size == 2048


def test_a_projector_trained_beside_adapters_goes_out_and_in_again(base, tmp_path):
    run = _trained(base, tmp_path / "whole", "/lora/", "loc_delta", "^projector/")
    adapter = _convert(run, tmp_path / "adapter", "--to=peft")
    back = _convert(adapter, tmp_path / "back", f"--base={base}")
    ours, again = (arrays(checkpoint.load_model(path)[0]) for path in (run, back))
    frozen = arrays(checkpoint.load_model(base)[0])["projector/kernel"]
    assert not np.array_equal(ours["projector/kernel"], frozen)
    _assert_close(again, ours)
    part = _trained(base, tmp_path / "part", "/lora/", "loc_delta", "^projector/bias")
    with pytest.raises(UserError, match="trained 1 parameters besides adapters, such as proj"):
        _convert(part, tmp_path / "x", "--to=peft")


def test_a_run_starts_from_an_adapter(run, adapter):
    config = _with_lora(checkpoint.read_config(run), init_from=str(adapter))
    ours = arrays(checkpoint.load_model(run).model)
    started = arrays(checkpoint.build_model(config)[0])
    _assert_close(started, ours)
    with pytest.raises(UserError, match=r"k_proj: 1\.5 there, 2\.5 configured; set lora\.rank"):
        checkpoint.build_model(_with_lora(config, alpha=5.0))
    with pytest.raises(UserError, match=r"loc_delta: \(1024, \d+\) there, None configured"):
        checkpoint.build_model(_with_lora(config, loc_rows=False))


def test_adapters_folded_in(run, tmp_path):
    out = _convert(run, tmp_path / "merged", "--to=merged")
    found = load_file(out / "model.safetensors")
    ours = arrays(checkpoint.load_model(run).model)
    lora = {k: ours[f"decoder/layers/attn/v_proj/lora/{k}"][1] for k in ("a", "b")}
    kernel = ours["decoder/layers/attn/v_proj/kernel"][1] + 1.5 * lora["a"] @ lora["b"]
    name = "language_model.model.layers.1.self_attn.v_proj.weight"
    np.testing.assert_allclose(found[name], kernel.T, rtol=1e-5, atol=1e-5)
    rows = ours["decoder/embedder/table"][4:1028] + ours["decoder/embedder/loc_delta"]
    table = found["language_model.model.embed_tokens.weight"]
    np.testing.assert_allclose(table[4:1028], rows, rtol=1e-6)
    assert json.loads((out / "config.json").read_text())["dtype"] == "float32"
    with pytest.raises(UserError, match="has adapters; --to=merged"):
        _convert(run, tmp_path / "x", "--to=hf")
    with pytest.raises(UserError, match="has adapters, and a base has none"):
        _convert(run, tmp_path / "x")


def test_an_adapter_of_another_base_is_refused(hf, base, adapter, write_hf, tmp_path):
    _write_hf(write_hf, tmp_path / "other_hf", seed=1)
    other = _convert(tmp_path / "other_hf", tmp_path / "other")
    with pytest.raises(UserError, match="use the base it was trained on"):
        _convert(adapter, tmp_path / "x", f"--base={other}")
    with pytest.raises(UserError, match="needs --base"):
        _convert(adapter, tmp_path / "x")
    with pytest.raises(UserError, match="only a PEFT adapter needs one"):
        _convert(hf[0], tmp_path / "x", f"--base={base}")


@pytest.mark.parametrize(("key", "value"), [("alpha", 4.0), ("use_rslora", True)])
def test_adapters_under_another_alpha_are_refused(run, copied, tmp_path, key, value):
    run = copied(run)
    config = json.loads((run / "config.json").read_text())
    config["lora"][key] = value
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=rf"trained with lora\.{key}=.*set it back"):
        _convert(run, tmp_path / "x", "--to=peft")


def test_runs_resume_with_their_own_rank_and_small_files_are_copied(run, hf, copied, tmp_path):
    config = checkpoint.read_config(run)
    checkpoint.check_same_run(run, config)
    with pytest.raises(UserError, match=r"lora\.alpha is 3\.0 there.*lora\.rank is 2 there"):
        checkpoint.check_same_run(run, _with_lora(config, rank=4, alpha=6.0))
    with open(copied(hf[0]) / "generation_config.json", "wb") as file:
        file.truncate(2**40)  # a hole
    with pytest.raises(UserError, match=r"generation_config\.json: more than the 67,108,864 bytes"):
        _convert(tmp_path / "copied", tmp_path / "out")
    assert not (tmp_path / "out/model.json").exists()


def test_what_cannot_be_converted(hf, base, copied, tmp_path, subtests):
    (tmp_path / "taken").write_text("a file")
    absent = r"medgemma: not there; .* or the name of a model on the Hu"
    for source, out, flags, said in (
        (tmp_path, "x", [], "nothing to convert"),
        (tmp_path / "medgemma", "x", [], absent),
        (hf[0], "x", ["--to=hf"], "is not ours; convert it to a base first"),
        (base, "x", ["--to=peft"], "expected a training workdir"),
        (hf[0], base, [], "holds a model already"),
        (hf[0], "taken", [], "taken: is a file, expected a folder"),
        (base, "taken/inside", [], "taken: cannot write: File exists; choose another --out"),
        (_TOKENIZER.parent, "x", ["--to=hf"], "it was not imported from Hugging Face"),
        (_TOKENIZER, "x", [], "not a GGUF file"),
    ):
        with subtests.test(said), pytest.raises(UserError, match=said):
            _convert(source, tmp_path / out, *flags)
    # An embedding of 4,096 rows is another tokenizer's.
    wide = copied(hf[0])
    text = _CONFIG["text_config"] | {"vocab_size": 4096}
    (wide / "config.json").write_text(json.dumps(_CONFIG | {"text_config": text}))
    with pytest.raises(UserError, match="2048 pieces, but the model's embedding has 4096 rows"):
        _convert(wide, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_sizes_of_a_base_need_a_base(base, copied):
    base = copied(base)
    config = ExperimentConfig(
        model=ModelConfig(preset="from_base", init="random"),
        training=TrainingConfig(batch_images=1, steps=1),
    )
    with pytest.raises(UserError, match=r"needs a base, and model\.init is 'random'"):
        validate(config)
    config = dataclasses.replace(config, model=ModelConfig("from_base", init_from=str(base)))
    validate(config)
    assert base_model.model_sizes(config) == SIZES
    described = json.loads((base / "model.json").read_text())
    del described["sizes"]["decoder"]
    (base / "model.json").write_text(json.dumps(described))
    with pytest.raises(UserError, match=r"sizes cannot be read \('decoder'\)"):
        base_model.model_sizes(config)


def test_whatever_is_named_is_found_and_converted_once(
    hf, base, run, adapter, copied, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert (resolver.resolve(run), resolver.resolve(base)) == (run, base)
    assert resolver.resolve_base(base) == base and capsys.readouterr().err == ""
    found = resolver.resolve(hf[0])
    told = capsys.readouterr().err
    assert f"{hf[0]}: a Hugging Face folder, kept in our form as {found}" in told
    assert f"cxrjax.convert --checkpoint={hf[0]} --out=DIR keeps it" in told
    np.testing.assert_equal(arrays(cxrjax.load(found)._opened.generator.model), _loaded(base))
    # By content: the same weights in another folder are there already, others are not.
    other = copied(hf[0])
    renamed = other.rename(other.with_name("hf"))
    assert resolver.resolve(renamed) == found and "kept" not in capsys.readouterr().err
    (renamed / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    assert resolver.resolve(renamed) != found
    # The adapter names its base, which is the folder beside it.
    for base_of in (None, base):
        _assert_close(_loaded(resolver.resolve(adapter, base_of)), _loaded(run))
    merged = checkpoint.load_model(run).model
    merge_lora(merged)
    found = resolver.resolve_base(run)
    assert base_model.base_config(found).lora.rank == 0
    _assert_close(_loaded(found), arrays(merged))


def test_an_adapter_without_its_base_and_a_base_with_another_are_refused(adapter, base, copied):
    alone = copied(adapter)
    with pytest.raises(UserError, match=r"a PEFT adapter on hf, which is not here; .* --base=DIR"):
        resolver.resolve(alone)
    stated = json.loads((alone / "adapter_config.json").read_text())
    stated["base_model_name_or_path"] = "gs://somebody/elses"
    (alone / "adapter_config.json").write_text(json.dumps(stated))
    with pytest.raises(UserError, match="a PEFT adapter on gs://somebody/elses, which is not here"):
        resolver.resolve(alone)
    with pytest.raises(UserError, match="only a PEFT adapter has another base"):
        resolver.resolve(base, alone)
    with pytest.raises(UserError, match="no such folder; on the Hugging Face hub it would be"):
        resolver.resolve("google/none-of-ours")


@cases("notes, said")
def test_notes_that_no_import_wrote_are_refused(base, copied, tmp_path, notes, said):
    base = copied(base)
    (base / "hf.json").write_text(json.dumps(notes))
    (base / "checksums.json").unlink()
    with pytest.raises(UserError, match=said) as caught:
        _convert(base, tmp_path / "back", "--to=hf")
    assert str(base / "hf.json") in str(caught.value) and "\n" not in str(caught.value)
