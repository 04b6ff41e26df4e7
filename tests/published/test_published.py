"""Published checkpoints as far as their files were seen: configurations, processors, tensor names.

checkpoints.json has them as facts, with where they were seen; `described` follow descriptions.
Layers' kinds are one period, and a tensor of every layer is one row with its number.
"""

import json
from pathlib import Path

import pytest

from cxrjax.errors import UserError
from cxrjax.models.hf_config import complete_config, read_config
from cxrjax.models.hf_layout import canonical_name, tensor_rules, vlm_config
from cxrjax.models.presets import PRESETS

PAGE = Path(__file__).parents[2] / "docs/weights.md"
FACTS = json.loads(Path(__file__).with_name("checkpoints.json").read_text("utf-8"))
CASES = FACTS["seen"] | {
    name: {"preset": name, "files": {"config.json": config}}
    for name, config in FACTS["described"].items()
}


def _whole(config):
    text = config.get("text_config", config)
    if kinds := text.get("layer_types"):
        depth = text["num_hidden_layers"]
        text["layer_types"] = (kinds * depth)[:depth]
    return config


@pytest.mark.parametrize("name", CASES)
def test_what_was_seen_is_read_whole(tmp_path, name):
    facts = CASES[name]
    for file, content in facts["files"].items():
        content = _whole(content) if file == "config.json" else content
        (tmp_path / file).write_text(json.dumps(content))
    config, preset = read_config(tmp_path), PRESETS.get(facts["preset"])
    if preset is None:
        return
    contexts = (preset.context, preset.second_image)
    assert vlm_config(config, "config.json", preset.loc_token_start, *contexts) == preset
    if "tensors" in facts:
        found = {
            canonical_name(pattern.replace("{}", str(layer)))
            for pattern, count in facts["tensors"].items()
            for layer in range(count)
        }
        head = {"lm_head.weight"} if preset.decoder.tied else set()
        assert found - head == {n for rule in tensor_rules(preset) for n in rule.names(preset)}


@pytest.mark.parametrize("name", FACTS["refused"])
def test_what_we_cannot_honour_says_so(name):
    facts = FACTS["refused"][name]
    with pytest.raises(UserError) as caught:
        complete_config(_whole(facts["config.json"]), "config.json")
    assert facts["said"] in str(caught.value) and "\n" not in str(caught.value)


def test_what_nobody_has_seen_is_listed_as_such():
    seen = {facts["preset"] for facts in FACTS["seen"].values()} - {None}
    presets = {name for name in PRESETS if not name.startswith("tiny")}
    assert presets == seen | FACTS["unseen"].keys() and not seen & FACTS["unseen"].keys()
    listed = PAGE.read_text("utf-8").split("Nobody here has seen")[1].split(" Their presets")[0]
    assert all(name in " ".join(listed.split()) for name in FACTS["unseen"].values())
