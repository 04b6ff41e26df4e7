"""Checks a configuration's keys, types, choices and ranges against `default_config`."""

import difflib
import re
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from cxrjax.decoding.strategy import read_strategy
from cxrjax.errors import UserError
from cxrjax.input_pipeline.coordinates import resolve_box_route
from cxrjax.models.presets import PRESETS, VLMConfig
from cxrjax.training.config import (
    CHOICES,
    EMPTY_TUPLES,
    FROM_BASE,
    NOT_NEGATIVE,
    POSITIVE,
    batch_images,
    default_config,
    flatten,
)
from cxrjax.training.mixture_config import SOURCES, add_source, check_mixture, source_defaults

# What a rule must match for the regression head to train.
_HEAD_PARAMETER = "box_head/out/kernel"


# Figures of evaluations that are better the lower they are.
_LOWER_IS_BETTER = re.compile(
    "swapped|_error|spread|failure|left_out|hallucination|(^|/)(ece|brier|aurc)"
)


def validate(config: ConfigDict) -> None:
    """Checks keys, types, choices and ranges.

    Raises:
        UserError: names the first key that is wrong, its value and what is expected.
    """
    found, expected = flatten(config), flatten(defaults_of(config))
    for key in found:
        if key not in expected:
            raise UserError(unknown_key(key))
    for key, default in expected.items():
        if key not in found:
            raise UserError(f"configuration key {key!r} is missing; start from default_config()")
        _check_type(key, found[key], default)
    for key, choices in CHOICES.items():
        if found[key] not in choices:
            raise UserError(f"{key}={found[key]!r}: expected one of {', '.join(choices)}")
    for key in POSITIVE:
        if found[key] is not None and not found[key] > 0:
            raise UserError(f"{key}={found[key]!r}: expected a number above 0")
    for key in NOT_NEGATIVE:
        if not found[key] >= 0:
            raise UserError(f"{key}={found[key]!r}: expected 0 or more")
    if config.model.preset != FROM_BASE:
        find_preset(config.model.preset)
    if config.lora.dropout >= 1:
        raise UserError(f"lora.dropout={config.lora.dropout}: expected a fraction below 1")
    if config.mesh.data == 0 or config.mesh.data < -1:
        raise UserError(f"mesh.data={config.mesh.data}: expected -1 or a number above 0")
    if _LOWER_IS_BETTER.search(config.training.best_metric):
        raise UserError(
            f"training.best_metric={config.training.best_metric!r}: lower is better, and the "
            "checkpoint with the highest figure is kept; name another, such as detection/f1@0.3"
        )
    _check_one_of(config)
    check_mixture(config)
    read_strategy(config.decoding)


def find_preset(name: str) -> VLMConfig:
    """`PRESETS[name]`.

    Raises:
        UserError: no such preset; suggests the nearest.
    """
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(PRESETS)}"
        raise UserError(f"model.preset={name!r} is unknown; {hint}")
    return PRESETS[name]


def _check_type(key: str, value: Any, default: Any) -> None:
    if isinstance(default, tuple):
        kind = type(default[0]) if default else EMPTY_TUPLES[key]
        fits = isinstance(value, tuple) and all(type(item) is kind for item in value)
        wanted = f"a tuple of {kind.__name__}"
    elif default is None:  # a placeholder; ConfigDict itself checks what is assigned to it
        return
    elif isinstance(default, float):
        fits, wanted = type(value) in (float, int), "a number"
    else:
        fits, wanted = type(value) is type(default), f"{type(default).__name__}"
    if not fits:
        raise UserError(f"{key}={value!r}: expected {wanted}")


def _check_one_of(config: ConfigDict) -> None:
    """The keys that exclude or need one another."""
    if config.model.init == "random" and config.model.init_from is not None:
        raise UserError(
            f"model.init='random' and model.init_from={config.model.init_from!r} exclude each other"
        )
    if config.model.init != "random" and config.model.tower_from is not None:
        raise UserError(
            f"model.tower_from={config.model.tower_from!r} needs model.init='random': a base "
            "brings its own tower"
        )
    if config.model.init == "random" and config.model.preset == FROM_BASE:
        raise UserError(
            f"model.preset={FROM_BASE!r} needs a base, and model.init is 'random'; name a preset"
        )
    if config.lora.rank > 0 and config.lora.alpha == 0 and not config.lora.alpha_pattern:
        raise UserError(
            f"lora.rank={config.lora.rank} and lora.alpha=0: adapters are scaled by alpha / rank "
            "and would change nothing; set lora.alpha, such as twice the rank"
        )
    if config.data.packed_buckets and config.model.share != "image":
        raise UserError(
            "data.packed_buckets needs model.share='image': with 'tower' each question is its own "
            "sequence"
        )
    if config.data.packed_buckets and config.model.attention == "splash":
        raise UserError(
            "model.attention='splash' cannot tell packed questions apart: leave "
            "data.packed_buckets empty, or set model.attention='auto'"
        )
    route = resolve_box_route(config.training.box_route, config.data.codec)
    if config.model.box_head != (route == "head"):
        raise UserError(
            f"model.box_head={config.model.box_head} and training.box_route="
            f"{config.training.box_route!r}: set both or neither, for only box_route='head' "
            "trains the head"
        )
    if route == "head" and not any(re.search(rule, _HEAD_PARAMETER) for rule in config.trainable):
        raise UserError(
            "training.box_route='head' needs the head to train: add 'box_head/' to trainable"
        )
    if (config.training.batch_images is None) == (config.training.batch_questions is None):
        raise UserError("set either training.batch_images or training.batch_questions")
    if (config.training.steps is None) == (config.training.epochs is None):
        raise UserError("set either training.steps or training.epochs")
    profile = config.training.profile_steps
    if profile and not (len(profile) == 2 and 1 <= profile[0] <= profile[1]):
        raise UserError(
            f"training.profile_steps={profile}: expected the first and the last step, as (10, 15)"
        )
    images = batch_images(config)
    if images % config.training.accumulation_steps:
        raise UserError(
            f"training.accumulation_steps={config.training.accumulation_steps} does not divide "
            f"the batch of {images} images"
        )


def defaults_of(nested: Mapping[str, Any] | ConfigDict) -> ConfigDict:
    """The default configuration with the sources that this one has."""
    config = default_config()
    for name, source in nested.get("mixture", {}).get("sources", {}).items():
        if not isinstance(source, Mapping | ConfigDict):
            raise UserError(f"mixture.sources.{name}={source!r}: expected keys; use add_source")
        if not name or "." in name:
            raise UserError(f"mixture.sources: {name!r} is no name: expected one without dots")
        add_source(config, name, "")
    return config


# What other trainers call some keys: nearest by letters, optimizer.lr would be optimizer.b2.
_ALSO_CALLED = {
    "lr": "optimizer.learning_rate",
    "wd": "optimizer.weight_decay",
    "warmup": "optimizer.warmup_steps",
    "num_warmup_steps": "optimizer.warmup_steps",
    "lr_scheduler": "optimizer.schedule",
    "lr_scheduler_type": "optimizer.schedule",
    "scheduler": "optimizer.schedule",
    "beta1": "optimizer.b1",
    "beta2": "optimizer.b2",
    "max_grad_norm": "optimizer.clip_norm",
    "grad_clip": "optimizer.clip_norm",
    "batch_size": "training.batch_images",
    "global_batch_size": "training.batch_images",
    "gradient_accumulation_steps": "training.accumulation_steps",
    "grad_accum": "training.accumulation_steps",
    "max_steps": "training.steps",
    "total_steps": "training.steps",
    "num_epochs": "training.epochs",
    "num_train_epochs": "training.epochs",
    "save_steps": "training.checkpoint_every",
    "eval_steps": "training.eval_every",
    "logging_steps": "training.log_every",
    "r": "lora.rank",
    "lora_r": "lora.rank",
    "lora_alpha": "lora.alpha",
    "lora_dropout": "lora.dropout",
    "target_modules": "lora.targets",
    "num_workers": "data.workers",
    "max_new_tokens": "decoding.max_answer_tokens",
    "num_beams": "decoding.beams",
    "checkpoint": "model.init_from",
    "pretrained": "model.init_from",
}


def unknown_key(key: str) -> str:
    """What to say about a key that does not exist, dotted or bare."""
    if meant := _ALSO_CALLED.get(key.rpartition(".")[2]):
        return f"unknown configuration key {key!r}; did you mean {meant!r}?"
    known = {name: name for name in flatten(default_config())}
    if key.startswith(SOURCES):
        source = key.removeprefix(SOURCES).split(".")[0]
        known = {name: name for name in (f"{SOURCES}{source}.{k}" for k in source_defaults())}
    if "." not in key:
        known = {name.rpartition(".")[2]: name for name in known}
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {known[near[0]]!r}?" if near else "see cxrjax/training/config.py"
    return f"unknown configuration key {key!r}; {hint}"
