"""Configurations from files, typed and checked: Python files with overrides, and `config.json`."""

import dataclasses
import difflib
import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cxrjax.cli import input_sizes
from cxrjax.codecs import get_codec
from cxrjax.decoding.strategy import read_strategy
from cxrjax.errors import UserError
from cxrjax.files import read_packaged, shipped
from cxrjax.models.presets import PRESETS, VLMConfig
from cxrjax.training.config import (
    FROM_BASE,
    ExperimentConfig,
    Key,
    SourceConfig,
    flatten,
    keys_of,
)

if TYPE_CHECKING:
    from ml_collections import ConfigDict  # what runs made is read without ml_collections

_DEFAULTS = flatten(ExperimentConfig().to_json())
# What the dotted keys of a mixture's sources begin with.
SOURCES = "mixture.sources."
# Of files from when these were true or false.
_SWITCHES: dict[str, dict[object, str]] = {
    "decoding.grammar": {True: "boxes", False: "none"},
    "model.remat": {True: "full", False: "none"},
}


def load_config(spec: str, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Reads `FILE[:VARIANT]`, applies overrides, checks everything.

    Args:
        spec: a Python file with `get_config(variant="")`, and the variant to ask it for.
        overrides: command-line words of the form `--config.key=value`; `None` empties a key that
            may be empty.

    Raises:
        UserError: no such file, an unknown key or variant, or a value of the wrong type.
    """
    from absl import flags
    from ml_collections import config_flags

    path, *variant = spec.split(":", 1)
    file = shipped(path)
    if not os.path.isfile(file):
        raise UserError(f"--config={spec}: no file {path}; expected FILE.py[:VARIANT]")
    for word in overrides:
        _check_override(word)
    # To the flags a None is a text.
    emptied = [_key(word) for word in overrides if word.endswith("=None") and _may_be_empty(word)]
    kept = [word for word in overrides if _key(word) not in emptied]
    argv = ["", f"--config={':'.join([str(file), *variant])}", *kept]
    values = flags.FlagValues()
    try:
        config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=argv)
        values(argv)
        values.config.update_from_flattened_dict(dict.fromkeys(emptied))
    except flags.Error as error:
        raise UserError(f"--config={spec}: {_last_line(error)}") from error
    except (MemoryError, RecursionError):  # of Python's parser
        raise UserError(f"--config={spec}: a value with too many brackets in it") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        text = _last_line(error)
        unknown = re.search(r'Key "(\w+)" does not exist', text)  # a locked ConfigDict's words
        if unknown:
            text = unknown_key(unknown[1])
        for source in filter(None, map(_source, overrides)):
            if isinstance(error, KeyError) and source in text:
                text = f"{source!r} is no source of the file's mixture; add_source makes one"
        raise UserError(f"--config={spec}: {text}") from error
    config = typed_config(values.config)
    validate(config)
    model = dataclasses.replace(
        config.model,
        init_from=_shipped(config.model.init_from),
        tower_from=_shipped(config.model.tower_from),
        tokenizer=_shipped(config.model.tokenizer),
    )
    return dataclasses.replace(config, model=model)


def _shipped(name: str | None) -> str | None:
    return None if name is None else str(shipped(name))


def typed_config(nested: "Mapping[str, Any] | ConfigDict", where: str = "") -> ExperimentConfig:
    """Turns a ConfigDict, or what `ExperimentConfig.to_json` gave, into dataclasses.

    Args:
        nested: what is absent is as by default.
        where: file, for messages.

    Raises:
        UserError: a key this version does not have, or a value of the wrong type.
    """
    try:
        return _group(ExperimentConfig, nested, "")
    except UserError as error:
        raise UserError(f"{where}: {error}") if where else error from None


def _group(group: type, nested: Any, path: str) -> Any:
    if not hasattr(nested, "items"):
        raise UserError(f"{path.rstrip('.')}={nested!r}: expected keys")
    keys, values = keys_of(group), {}
    for name, value in sorted(nested.items()):
        if name not in keys and f"{path}{name}" in removed_keys():
            check_removed(f"{path}{name}", value)
            continue
        if name not in keys:
            inner = [*value][:1] if hasattr(value, "items") else []
            raise UserError(unknown_key(".".join([f"{path}{name}", *inner])))
        check_removed(f"{path}{name}", value)
        values[name] = _value(keys[name], value, f"{path}{name}")
    return group(**values)


def _value(key: Key, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(key.kind):
        return _group(key.kind, value, f"{path}.")
    if key.kind is dict:
        if not hasattr(value, "items"):
            raise UserError(f"{path}={value!r}: expected names, each with keys")
        for name in value:
            if not name or "." in name:
                raise UserError(f"{path}: {name!r} is no name: expected one without dots")
        groups = sorted(value.items())
        return {name: _group(key.items, each, f"{path}.{name}.") for name, each in groups}
    if isinstance(value, bool):
        value = _SWITCHES.get(path, {}).get(value, value)
    if value is None and key.may_be_empty:
        return None
    if key.kind is tuple:
        if isinstance(value, tuple | list) and all(type(item) is key.items for item in value):
            return tuple(value)
        raise UserError(f"{path}={value!r}: expected a tuple of {key.items.__name__}")
    if key.kind is float and type(value) in (float, int):
        return float(value)
    if type(value) is not key.kind:
        wanted = "a number" if key.kind is float else key.kind.__name__
        raise UserError(f"{path}={value!r}: expected {wanted}")
    return value


def validate(config: ExperimentConfig) -> None:
    """Checks choices, ranges, and what keys must have in common.

    Raises:
        UserError: names the first key that is wrong, its value and what is expected.
    """
    for name, key, value in _each_key(config):
        if isinstance(key.rule, tuple) and value not in key.rule:
            raise UserError(f"{name}={value!r}: expected one of {', '.join(key.rule)}")
        if key.rule == "> 0" and value is not None and not value > 0:
            raise UserError(f"{name}={value!r}: expected a number above 0")
        if key.rule == ">= 0" and not value >= 0:
            raise UserError(f"{name}={value!r}: expected 0 or more")
        if key.rule == "0 to 1" and not 0 <= value <= 1:
            raise UserError(f"{name}={value!r}: expected a number from 0 to 1")
    if not is_from_base(config.model.preset):
        find_preset(config.model.preset)
    if config.lora.dropout >= 1:
        raise UserError(f"lora.dropout={config.lora.dropout}: expected a fraction below 1")
    if config.mesh.data == 0 or config.mesh.data < -1:
        raise UserError(f"mesh.data={config.mesh.data}: expected -1 or a number above 0")
    _check_one_of(config)
    _check_mixture(config)
    read_strategy(config.decoding)


def _each_key(group: Any, path: str = "") -> Iterator[tuple[str, Key, Any]]:
    for name, key in keys_of(group.__class__).items():
        value = getattr(group, name)
        if dataclasses.is_dataclass(key.kind):
            yield from _each_key(value, f"{path}{name}.")
        elif key.kind is dict:
            for inner, each in value.items():
                yield from _each_key(each, f"{path}{name}.{inner}.")
        else:
            yield f"{path}{name}", key, value


def is_from_base(preset: str) -> bool:
    """Returns whether `model.preset` means the base's own sizes, whatever the images'."""
    return preset.partition("@")[0] == FROM_BASE


def grids_of(preset: str) -> tuple[tuple[int, int], ...]:
    """(height, width) of each of the sizes of images that `model.preset` names, if any."""
    sizes = preset.partition("@")[2]
    return input_sizes(sizes) if sizes else ()


def find_preset(name: str) -> VLMConfig:
    """`PRESETS[name]`, for images of the sizes behind an '@' where there are any.

    Raises:
        UserError: no such preset; suggests the nearest. A size that it cannot have.
    """
    name, _, size = name.partition("@")
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(PRESETS)}"
        raise UserError(f"model.preset={name!r} is unknown; {hint}")
    return at_size(PRESETS[name], size)


def at_size(sizes: VLMConfig, size: str) -> VLMConfig:
    """Sizes for images of "HEIGHTxWIDTH" pixels, of several ("...,...") for those with the most
    tokens; for those of its own where that is empty.

    Raises:
        UserError: it is no size, or none that the model can have.
    """
    if not size:
        return sizes
    try:
        grids = input_sizes(size)
        if len(set(grids)) < len(grids):
            raise ValueError("expected different ones")
        return max((sizes.for_images(*grid) for grid in grids), key=lambda each: each.num_context)
    except ValueError as error:
        raise UserError(
            f"model.preset: images of {size!r} pixels: {error}; such as 'qwen3_vl_4b@576x448'"
        ) from None


def _one_of(config: ExperimentConfig, *names: str) -> str:
    """Returns the remedy for two keys of which exactly one must be set."""
    found = [(name, getattr(config.training, name)) for name in names]
    told = " and ".join(f"training.{name}={value}" for name, value in found)
    return f"found {told}: set one, and the other to None, as in --config.training.{names[1]}=None"


def _check_one_of(config: ExperimentConfig) -> None:
    if config.model.init == "random" and config.model.init_from is not None:
        raise UserError(
            f"model.init='random' and model.init_from={config.model.init_from!r} exclude each other"
        )
    if config.model.init != "random" and config.model.tower_from is not None:
        raise UserError(
            f"model.tower_from={config.model.tower_from!r} needs model.init='random': a base "
            "brings its own tower"
        )
    if config.model.init == "random" and is_from_base(config.model.preset):
        raise UserError(
            f"model.preset={FROM_BASE!r} needs a base, and model.init is 'random'; name a preset"
        )
    if config.rl.pairs is not None and config.rl.kind == "none":
        raise UserError(
            f"rl.pairs={config.rl.pairs} is of preferences, and rl.kind is 'none': set 'dpo', or "
            "leave the pairs out"
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
    if config.model.attention == "cudnn" and config.model.dtype == "float32":
        raise UserError(
            "model.attention='cudnn' takes no float32: set model.dtype='bfloat16', or "
            "model.attention='auto'"
        )
    if config.data.packed_buckets and config.model.attention in ("splash", "cudnn"):
        raise UserError(
            f"model.attention={config.model.attention!r} cannot tell packed questions apart: leave "
            "data.packed_buckets empty, or set model.attention='auto'"
        )
    if config.data.augment and config.data.feature_cache is not None:
        raise UserError(
            "data.augment changes images at every visit, and data.feature_cache keeps what the "
            "tower makes of them as they are: leave one of the two out"
        )
    training = config.training
    of_tokens = get_codec(config.data.codec).coordinate_order is not None
    config.box_route  # noqa: B018  raises where the codec has no such route
    for key in ("coordinate_width", "coordinate_weight"):
        value = getattr(training, key)
        if value != _DEFAULTS[f"training.{key}"] and not of_tokens:
            raise UserError(
                f"training.{key}={value} is of location tokens, and data.codec="
                f"{config.data.codec!r} writes boxes in digits; leave it out"
            )
    if (config.training.batch_images is None) == (config.training.batch_questions is None):
        raise UserError(_one_of(config, "batch_images", "batch_questions"))
    if (config.training.steps is None) == (config.training.epochs is None):
        raise UserError(_one_of(config, "steps", "epochs"))
    profile = config.training.profile_steps
    if profile and not (len(profile) == 2 and 1 <= profile[0] <= profile[1]):
        raise UserError(
            f"training.profile_steps={profile}: expected the first and the last step, as (10, 15)"
        )
    images = config.batch_images
    if images % config.training.accumulation_steps:
        raise UserError(
            f"training.accumulation_steps={config.training.accumulation_steps} does not divide "
            f"the batch of {images} images"
        )


def _check_mixture(config: ExperimentConfig) -> None:
    from cxrjax.input_pipeline.mixture import one_box_route, shares  # Grain, for few runs

    sources = config.mixture.sources
    if not sources:
        return
    if config.data.train is not None:
        raise UserError(f"data.train={config.data.train!r} and mixture.sources exclude each other")
    if config.training.batch_questions is not None:
        raise UserError("training.batch_questions: a mixture's batch is set by batch_images")
    for name in sources:
        source = config.of_source(name)
        if not source.data.train:
            raise UserError(f"{SOURCES}{name}.train is not set: expected a records file")
    codecs = {name: config.of_source(name).data.codec for name in sources}
    # The step takes its route from data.codec.
    one_box_route(config.training.box_route, {"data": config.data.codec, **codecs})
    # Only the weights are looked at here: the files have not been.
    weights = {n: s.weight for n, s in sources.items()}
    shares([1] * len(sources), weights)
    if config.mixture.temperature != 1 and None not in weights.values():
        raise UserError(
            f"mixture.temperature={config.mixture.temperature} would change nothing beside a "
            "weight for every source: leave it at 1.0, or leave the weights out"
        )


def other_names() -> dict[str, str]:
    """Names that other trainers give some keys -> the key."""
    keys = read_packaged("cxrjax.training", "other_names.toml")
    return {name: key for key, names in keys.items() for name in names}


@functools.cache
def removed_keys() -> dict[str, dict[str, Any]]:
    """Keys that earlier versions had -> `kept`, the value that still is meant, and `why`."""
    return read_packaged("cxrjax.training", "removed_keys.toml")


def check_removed(key: str, value: Any) -> None:
    """Rejects a removed key, or a removed value of a key, that means what no run does any more."""
    removed = removed_keys().get(key) or removed_keys().get(f"{key}={value}")
    if removed and ("kept" not in removed or value != removed["kept"]):
        remedy = f"this version has {removed['kept']!r}" if "kept" in removed else "set another"
        raise UserError(
            f"{key}={value!r}: removed, as {removed['why']} (docs/log/boxes.md, 'Objectives that "
            f"left'); {remedy}; commit {removed['commit']} reads it"
        )


def unknown_key(key: str) -> str:
    """The message about a key that does not exist, dotted or bare."""
    if removed := removed_keys().get(key):
        return f"configuration key {key!r} was removed, as {removed['why']}; leave it out"
    if meant := other_names().get(key.rpartition(".")[2]):
        return f"unknown configuration key {key!r}; did you mean {meant!r}?"
    known = dict(zip(_DEFAULTS, _DEFAULTS, strict=True))
    if key.startswith(SOURCES):
        source = key.removeprefix(SOURCES).split(".")[0]
        known = {name: name for name in (f"{SOURCES}{source}.{k}" for k in keys_of(SourceConfig))}
    if "." not in key:
        known = {name.rpartition(".")[2]: name for name in known}
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {known[near[0]]!r}?" if near else "see cxrjax/training/config.py"
    return f"unknown configuration key {key!r}; {hint}"


def _key(override: str) -> str:
    return override.split("=", 1)[0].removeprefix("--config.")


def _source(override: str) -> str | None:
    """The source of a mixture that an override is about; None: another key."""
    key = _key(override)
    return key.removeprefix(SOURCES).split(".")[0] if key.startswith(SOURCES) else None


def _may_be_empty(override: str) -> bool:
    # All that a source may say is null by default.
    return bool(_source(override)) or _DEFAULTS.get(_key(override), "") is None


def _check_override(word: str) -> None:
    name, key = word.split("=", 1)[0], _key(word)
    if not name.startswith("--config.") or "=" not in word:
        raise UserError(f"argument {word!r}: expected --config.key=value")
    known = set(_DEFAULTS)
    if key.startswith(SOURCES):  # whether there is such a source, the file will tell
        known = {f"{SOURCES}{_source(word)}.{own}" for own in keys_of(SourceConfig)}
    if key not in known:
        raise UserError(f"{name}: {unknown_key(key)}")


def _last_line(error: BaseException) -> str:
    text = str(error).strip()
    if text[:1] == text[-1:] == '"':  # KeyError and ExperimentConfig's errors are repr()s
        text = text[1:-1]
    return (text.splitlines() or [repr(error)])[-1].strip()
