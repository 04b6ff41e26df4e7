"""Drawn configurations are read whole, or refused by the name of a key.

tests/parity/test_random_configs.py holds what they compute to transformers and PEFT.
"""

import json

import pytest

from bench.fuzz.drawn_configs import KINDS, Draw, draw_config
from cxrjax.errors import UserError
from cxrjax.models.families import FAMILIES
from cxrjax.models.families.family import rules
from cxrjax.untrusted.closed_world import NO_MATTER
from tests.models.sizes import sizes_of

each_kind = pytest.mark.parametrize("kind", KINDS)
some_and_more = pytest.mark.parametrize(
    "seeds", [range(8), pytest.param(range(8, 50), marks=pytest.mark.heavy)], ids=["8", "50"]
)
# What a value must not be, whatever the key: neither a size nor a setting of any.
_WRONG = ("seven", [[]], -3, 1e300)


def _objects(config, within=""):
    """Every object of a configuration, and the key that it stands under."""
    yield within, config
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _objects(value, f"{within}{key}.")


def _counting(config, rules):
    """(object, key) of every value that counts."""
    for key, value in config.items():
        if key == "model_type" or rules[key] is NO_MATTER:
            continue
        if isinstance(value, dict):
            yield from _counting(value, rules[key].keys)
        else:
            yield config, key


@some_and_more
@each_kind
def test_what_is_stated_is_what_is_read(kind, seeds, subtests):
    for seed in seeds:
        config = draw_config(kind, seed)
        assert config == draw_config(kind, seed)
        with subtests.test(seed=seed):
            _check_read(kind, config, sizes_of(json.loads(json.dumps(config)), 100))


def _check_read(kind, config, sizes):
    text, vision = config.get("text_config", config), config.get("vision_config")
    decoder = sizes.decoder
    assert (decoder.width, decoder.depth) == (text["hidden_size"], text["num_hidden_layers"])
    assert decoder.num_kv_heads == text["num_key_value_heads"]
    rope = text.get("rope_scaling") or text.get("rope_parameters", {}).get("full_attention") or {}
    is_stretched = "linear" in (rope.get("rope_type"), rope.get("type"))
    if kind.startswith("qwen"):
        whole = text.get("rope_scaling") or text["rope_parameters"]
        assert list(decoder.rope_sections) == whole["mrope_section"]
        assert decoder.tied == config.get("tie_word_embeddings", False)
        assert sizes.vision.depth == vision["depth"]
        assert list(sizes.vision.deepstack) == vision.get("deepstack_visual_indexes", [])
        return
    if kind.startswith("gemma4"):
        is_stretched = rope.get("rope_type") == "proportional" and "factor" in rope
    assert decoder.rope_scale == (rope["factor"] if is_stretched else 1.0)
    if vision is not None and kind != "gemma4_unified":
        assert sizes.vision.depth == vision["num_hidden_layers"]


@some_and_more
@each_kind
def test_a_strange_key_anywhere_is_named(kind, seeds, subtests):
    for seed in seeds:
        config = json.loads(json.dumps(draw_config(kind, seed)))  # no object in two places
        objects = list(_objects(config))
        within, place = objects[seed % len(objects)]
        place["strange"] = True
        with subtests.test(seed=seed):
            with pytest.raises(UserError) as caught:
                sizes_of(config, 100)
            assert f"the key '{within}strange' is not known here" in str(caught.value)


@some_and_more
@each_kind
def test_a_wrong_value_of_any_key_is_named(kind, seeds, subtests):
    for seed in seeds:
        draw, config = Draw(7, seed), draw_config(kind, seed)
        place, key = draw.of(*_counting(config, rules(FAMILIES[config["model_type"]].settings)))
        place[key] = draw.of(*_WRONG)
        with subtests.test(seed=seed):
            with pytest.raises(UserError) as caught:
                sizes_of(config, 100)
            assert key in str(caught.value) and "\n" not in str(caught.value)
