"""Names on the hub: told apart from paths, explained, and fetched (from a stand-in of the hub)."""

import json
import re
from pathlib import Path

import huggingface_hub
import pytest

from cxrjax.commands import convert
from cxrjax.errors import UserError
from cxrjax.training import hub
from cxrjax.training.base_model import read_model_json
from tests.papers.cases import cases
from tests.test_convert import _write_hf


@pytest.mark.parametrize("source", ["google/medgemma-4b-it", "llava-hf/llava-1.5-7b-hf"])
def test_names_are_told_from_paths(source):
    assert hub.hub_name(Path(source)) == source


# The first is a folder of the working folder, mistyped.
@pytest.mark.parametrize(
    "source", ["data/medgemma_4b", "/google/medgemma-4b-it", "medgemma-4b-it", "a/b/c", "../google"]
)
def test_paths_are_told_from_names(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    assert hub.hub_name(Path(source)) is None


@cases("name, licence")
def test_a_name_is_answered_with_page_licence_and_command(name, licence, tmp_path):
    with pytest.raises(UserError) as caught:
        convert.main([f"--checkpoint={name}", f"--out={tmp_path / 'out'}"])
    said = str(caught.value)
    assert f"https://huggingface.co/{name}" in said and licence in said and "\n" not in said
    assert f"cxrjax.convert --checkpoint={name} --out={tmp_path / 'out'} --download" in said
    assert f"hf download {name}" in said and "'*.safetensors'" in said
    assert not (tmp_path / "out").exists()


def test_what_is_fetched_by_name_is_converted_and_keeps_it(tmp_path, monkeypatch, write_hf):
    asked = []

    def snapshot_download(name, allow_patterns, **_):
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
    with pytest.raises(UserError, match="is no name on the hub"):
        convert.main([f"--checkpoint={tmp_path}", f"--out={tmp_path / 'out'}", "--download"])


def _refused(name, out):
    """The line in which fetching and converting is refused."""
    with pytest.raises(UserError) as caught:
        convert.main([f"--checkpoint={name}", f"--out={out}", "--download"])
    assert "\n" not in str(caught.value) and not out.exists()
    return str(caught.value)


_CHAT = {"model_type": "internvl_chat", "auto_map": {"AutoModel": "modeling.py"}}
_MIXED = {"model_type": "gemma4", "text_config": {"enable_moe_block": True}}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (None, "OpenGVLab/InternVL3-2B: has no config.json, so it is no model in transformers'"),
        (
            _CHAT,
            "its weights were not fetched: .*'internvl_chat' in the layout of .*InternVL3-2B-hf",
        ),
        (_MIXED, "its weights were not fetched: .*text_config.enable_moe_block is True, expected"),
    ],
)
def test_weights_of_a_model_that_we_do_not_have_are_not_fetched(
    tmp_path, monkeypatch, config, said
):
    def snapshot_download(name, allow_patterns, **_):
        assert "*.safetensors" not in allow_patterns
        if config is not None:
            (tmp_path / "config.json").write_text(json.dumps(config))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert re.search(said, _refused("OpenGVLab/InternVL3-2B", tmp_path / "out"))
