"""Configurations of Hugging Face: read without transformers, unknown keys refused by name."""

import copy
import json
import time
from pathlib import Path

import pytest
from transformers import AutoConfig

from bench.fuzz.drawn_configs import draw_config
from cxrjax.errors import UserError
from cxrjax.models.hf_config import read_config
from cxrjax.models.hf_layout import vlm_config
from tests.models.sizes import sizes_of

_TINY = json.loads(Path(__file__).with_name("tiny_config.json").read_text())


def _whole(kind):
    text = {"model_type": {"paligemma": "gemma", "gemma3": "gemma3_text"}[kind]}
    vision = {"image_size": 896, "patch_size": 14}
    return {"model_type": kind, "text_config": text, "vision_config": vision}


def _rows():
    """Changes of a configuration and what is said of them, None where nothing is."""
    bases = {"tiny": _TINY, "gemma3": _whole("gemma3"), "paligemma": _whole("paligemma"), None: {}}
    for line in Path(__file__).with_name("refused_configs.jsonl").read_text().splitlines():
        base, changes, said = json.loads(line)
        config = dict(bases[base])
        for key, value in changes.items():
            config[key] = config.get(key, {}) | value if isinstance(value, dict) else value
        yield config, said
    yield {**_TINY, "num_hidden_layers": 10**300}, "num_hidden_layers is 1000"


def test_what_we_cannot_honour_is_refused_by_name(tmp_path, subtests):
    """Nothing is said of keys that published files and models saved again have."""
    path = tmp_path / "config.json"
    for config, said in _rows():
        path.write_text(json.dumps(config))
        with subtests.test(said, config=config):
            if said is None:
                vlm_config(read_config(tmp_path), str(path), 4)
                continue
            start = time.process_time()
            with pytest.raises(UserError) as caught:
                vlm_config(read_config(tmp_path), str(path), 4)
            message = str(caught.value)
            assert said in message and message.startswith(f"{path}: ") and "\n" not in message
            assert len(message) < 500 and time.process_time() - start < 2


def test_numbers_that_overflow_deep_json_and_factors_without_a_type(tmp_path):
    for content, said in (
        ('{"model_type": "gemma3_text", "rope_theta": 1' + "0" * 400 + "}", "digits"),
        ('{"model_type": ' + "[" * 100_000, "not JSON"),
        (" " * 2**20 + "{}", "more than the 1,048,576 bytes"),
    ):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(UserError, match=said):
            read_config(tmp_path)
    rope = {"rope_type": "default", "factor": 8.0}
    assert sizes_of({**_TINY, "rope_scaling": rope}, 4).decoder.rope_scale == 1
    rope["rope_type"] = "linear"
    assert sizes_of({**_TINY, "rope_scaling": rope}, 4).decoder.rope_scale == 8


def test_pictures_must_be_prepared_as_ours(tmp_path, subtests):
    """What is null there is off, for transformers."""
    published = Path(__file__).with_name("published_preprocessor_config.json").read_text()
    lines = Path(__file__).with_name("refused_processors.jsonl").read_text().splitlines()
    for number, (name, content, said) in enumerate(map(json.loads, lines)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(_TINY))
        (folder / "preprocessor_config.json").write_text(published)
        assert read_config(folder)["hidden_size"] == 8
        (folder / name).write_text(json.dumps(content))
        with subtests.test(said):
            with pytest.raises(UserError) as caught:
                read_config(folder)
            assert said in str(caught.value)
            assert str(caught.value).startswith(f"{folder / name}: ")


WHOLE = ("paligemma", "gemma3", "gemma3_text", "gemma4", "llava", "internvl", "qwen", "qwen3")


@pytest.mark.parametrize("kind", WHOLE)
def test_what_is_left_out_is_what_transformers_fills_in(kind, subtests):
    """Each key of each object taken away: as if transformers' own reading had been stated."""

    def outcome(config):
        try:
            return sizes_of(config, 100)
        except UserError:
            return "refused"

    whole = json.loads(json.dumps(draw_config(kind, 1)))
    parts = [name for name in ("text_config", "vision_config") if name in whole]
    for part, key in [(p, k) for p in (None, *parts) for k in (whole[p] if p else whole)]:
        config = copy.deepcopy(whole)
        del (config[part] if part else config)[key]
        if key in ("model_type", "text_config", "vision_config", "tie_word_embeddings"):
            continue
        with subtests.test(part=part, key=key):
            found, stated = outcome(config), {k: config[k] for k in config if k != "model_type"}
            try:
                theirs = AutoConfig.for_model(whole["model_type"], **copy.deepcopy(stated))
            except Exception:
                assert found == "refused"
                continue
            again = json.loads(theirs.to_json_string())
            if kind == "internvl":  # which it writes twice, and not alike
                del again["text_config"]["tie_word_embeddings"]
            assert found in ("refused", outcome(again))  # of sizes that do not fit the others
