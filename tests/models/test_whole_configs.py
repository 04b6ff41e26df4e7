"""Configurations that state everything: read without transformers, and as with it."""

import copy
import functools
import json
from unittest import mock

import pytest
from transformers import AutoConfig

from cxrjax.errors import UserError
from cxrjax.models import hf_config
from tests.models.sizes import sizes_of
from tests.random_configs import draw_config

WHOLE = ("paligemma", "gemma3", "gemma3_text")


def written(kind, seed=0):
    """What transformers 5 saves of a drawn configuration."""
    config = draw_config(kind, seed)
    # Of older versions; the library keeps it beside what it has made of it.
    config.get("text_config", config).pop("sliding_window_pattern", None)
    return json.loads(AutoConfig.for_model(**{**config, "model_type": kind}).to_json_string())


sizes = functools.partial(sizes_of, loc_token_start=100)


def sizes_by_transformers(config):
    with mock.patch.object(hf_config, "states_all", lambda kind, values: False):
        return sizes(config)


@pytest.mark.parametrize("kind", WHOLE)
def test_a_saved_configuration_is_read_without_the_library_and_the_same(kind):
    whole = 0
    for seed in range(8):
        config = written(kind, seed)
        text = config.get("text_config", config)
        if _is_odd(kind, text):  # has keys of another family, or of another sort of positions
            continue
        whole += 1
        with mock.patch.object(AutoConfig, "for_model", side_effect=AssertionError):
            found = sizes(config)
        assert found == sizes_by_transformers(config)
    assert whole > 1


def _is_odd(kind, text):
    rope = text["rope_parameters"]
    ropes = [rope] if kind == "paligemma" else rope.values()
    if any("factor" in rope and rope["rope_type"] != "linear" for rope in ropes):
        return True
    return kind == "paligemma" and bool(
        {"hidden_activation", "query_pre_attn_scalar"} & text.keys()
    )


@pytest.mark.parametrize("kind", WHOLE)
def test_whatever_is_left_out_is_asked_for(kind):
    """Each key of each object taken away: what comes out is what transformers makes of it."""

    def outcome(read, config):
        try:
            return read(config)
        except UserError as error:
            return str(error)

    whole = written(kind, 1)
    parts = [name for name in ("text_config", "vision_config") if name in whole]
    for part in [None, *parts]:
        for key in whole if part is None else whole[part]:
            config = copy.deepcopy(whole)
            del (config if part is None else config[part])[key]
            if key in ("model_type", "text_config", "vision_config"):
                continue
            assert outcome(sizes, config) == outcome(sizes_by_transformers, config), (part, key)
