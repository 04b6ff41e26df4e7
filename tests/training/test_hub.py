"""Names on the hub: told apart from paths, explained, and fetched (from a stand-in of the hub)."""

import json

import pytest

from cxrjax import convert
from cxrjax.errors import UserError
from cxrjax.training import hub
from cxrjax.training.base_model import read_model_json


@pytest.mark.parametrize(
    ("source", "is_name"),
    [
        ("google/medgemma-4b-it", True),
        ("llava-hf/llava-1.5-7b-hf", True),
        ("data/medgemma_4b", False),  # a folder of the working folder, mistyped
        ("/google/medgemma-4b-it", False),
        ("medgemma-4b-it", False),
        ("a/b/c", False),
        ("../google", False),
    ],
)
def test_names_are_told_from_paths(source, is_name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    from pathlib import Path

    assert (hub.hub_name(Path(source)) == source) == is_name


@pytest.mark.parametrize(
    ("name", "licence"),
    [
        ("google/medgemma-4b-it", "Accept the Health AI Developer Foundations terms"),
        ("google/paligemma2-3b-pt-448", "Accept the Gemma terms of use"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "Accept the Apache licence 2.0"),
        ("someone/their-model", "Read its licence, and accept it"),
    ],
)
def test_a_name_is_answered_with_page_licence_and_command(name, licence, tmp_path):
    with pytest.raises(UserError) as caught:
        convert.main([f"--checkpoint={name}", f"--out={tmp_path / 'out'}"])
    said = str(caught.value)
    assert f"https://huggingface.co/{name}" in said and licence in said and "\n" not in said
    assert f"cxrjax.convert --checkpoint={name} --out={tmp_path / 'out'} --download" in said
    assert f"hf download {name}" in said and "'*.safetensors'" in said
    assert not (tmp_path / "out").exists()


def test_download_is_for_names(tmp_path):
    with pytest.raises(UserError, match="is no name on the hub"):
        convert.main([f"--checkpoint={tmp_path}", f"--out={tmp_path / 'out'}", "--download"])


def test_what_is_fetched_is_converted_and_keeps_its_name(tmp_path, monkeypatch, write_hf):
    import huggingface_hub

    from tests.test_convert import _write_hf

    asked = []

    def snapshot_download(name, allow_patterns):
        asked.append((name, allow_patterns))
        _write_hf(write_hf, tmp_path / "cache/0a1b2c")
        return str(tmp_path / "cache/0a1b2c")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    name = "google/paligemma-3b-pt-224"
    convert.main([f"--checkpoint={name}", f"--out={tmp_path / 'base'}", "--download"])
    (small_of, small), (all_of, everything) = asked
    assert small_of == all_of == name and "*.safetensors" not in small
    assert set(everything) == {*small, "*.safetensors"}
    assert not any(pattern.endswith(("bin", "pt", "*")) for pattern in everything)
    assert json.loads((tmp_path / "base/hf.json").read_text())["source"] == name
    assert read_model_json(tmp_path / "base")["notes"] == {"source": name}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (None, "OpenGVLab/InternVL3-2B: has no config.json, so it is no model in transformers'"),
        (
            {"model_type": "internvl_chat", "auto_map": {"AutoModel": "modeling.py"}},
            "its weights were not fetched: .*'internvl_chat' in the layout of .*InternVL3-2B-hf",
        ),
        (
            {"model_type": "gemma4", "text_config": {"enable_moe_block": True}},
            "its weights were not fetched: .*text_config.enable_moe_block is True, expected",
        ),
    ],
)
def test_weights_of_a_model_that_we_do_not_have_are_not_fetched(
    tmp_path, monkeypatch, config, said
):
    import huggingface_hub

    def snapshot_download(name, allow_patterns):
        assert "*.safetensors" not in allow_patterns
        if config is not None:
            (tmp_path / "config.json").write_text(json.dumps(config))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    flags = ["--checkpoint=OpenGVLab/InternVL3-2B", f"--out={tmp_path / 'out'}", "--download"]
    with pytest.raises(UserError, match=said) as caught:
        convert.main(flags)
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("GatedRepo", "gated. Accept the Health AI .* log in by `hf auth login`"),
        ("RepoNotFound", "no such model at https://huggingface.co/google/medgemma-9"),
        ("", "cannot be fetched .*give the same command again"),
    ],
)
def test_what_the_hub_refuses_is_one_line(tmp_path, monkeypatch, code, said):
    import huggingface_hub
    from huggingface_hub import errors

    kinds = {"GatedRepo": errors.GatedRepoError, "RepoNotFound": errors.RepositoryNotFoundError}

    def refused(*_, **__):
        kind = kinds.get(code, errors.HfHubHTTPError)
        error = kind.__new__(kind)  # its own way wants a whole response
        Exception.__init__(error, "refused\nby the hub")
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refused)
    with pytest.raises(UserError, match=said) as caught:
        convert.main(["--checkpoint=google/medgemma-9", f"--out={tmp_path / 'out'}", "--download"])
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()
