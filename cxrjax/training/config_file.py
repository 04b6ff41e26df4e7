"""Configurations from files, typed and checked: Python files with overrides, and `config.json`."""

import dataclasses
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from cxrjax.decoding.strategy import read_strategy
from cxrjax.errors import UserError
from cxrjax.files import shipped
from cxrjax.input_pipeline.data_config import SourceConfig
from cxrjax.paths import is_file
from cxrjax.training.config import ExperimentConfig, flatten
from cxrjax.training.key_names import SOURCES, renew, unknown_key
from cxrjax.training.preset_names import find_preset, is_from_base

if TYPE_CHECKING:
    from ml_collections import ConfigDict  # what runs made is read without ml_collections

_DEFAULTS = flatten(ExperimentConfig().to_json())
_READER = TypeAdapter(ExperimentConfig)
# What pydantic's errors expected; what it does not name here are texts of validators.
_EXPECTED = {
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "{ge:g} or more",
    "less_than": "a number below {lt:g}",
    "less_than_equal": "at most {le:g}",
    "int_type": "int",
    "float_type": "a number",
    "string_type": "str",
    "bool_type": "bool",
    "tuple_type": "a tuple",
    "dict_type": "names, each with keys",
    "dataclass_type": "keys",
}


def override_words(overrides: Mapping[str, object] | Sequence[str]) -> list[str]:
    """Overrides as words of the command line, from keys and their values or from such words."""
    if isinstance(overrides, Mapping):
        return [f"--config.{key}={value}" for key, value in overrides.items()]
    return list(overrides)


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
    if not is_file(file):
        raise UserError(f"--config={spec}: no file {path}; expected FILE.py[:VARIANT]")
    for word in overrides:
        _check_override(word)
    # To the flags a None is a text. All keys of a source are null by default.
    nullable = [w for w in overrides if _source(w) or _DEFAULTS.get(_key(w), "") is None]
    emptied = [_key(word) for word in nullable if word.endswith("=None")]
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
            text = unknown_key(unknown[1], _DEFAULTS)
        for source in filter(None, map(_source, overrides)):
            if isinstance(error, KeyError) and source in text:
                text = f"{source!r} is no source of the file's mixture; add_source makes one"
        raise UserError(f"--config={spec}: {text}") from error
    config = typed_config(values.config)
    validate(config)
    named = {name: getattr(config.model, name) for name in ("init_from", "tower_from", "tokenizer")}
    found: dict[str, Any] = {n: str(shipped(path)) for n, path in named.items() if path is not None}
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **found))


def typed_config(nested: "Mapping[str, Any] | ConfigDict", where: str = "") -> ExperimentConfig:
    """Turns a ConfigDict, or what `ExperimentConfig.to_json` gave, into dataclasses.

    Args:
        nested: what is absent is as by default.
        where: file, for messages.

    Raises:
        UserError: a key this version does not have, or a value that the key may not have.
    """
    plain = _plain(nested)
    try:
        renew(plain)
        # As JSON: strict, but with lists for tuples.
        return _READER.validate_json(json.dumps(plain, default=repr))
    except (UserError, ValidationError) as error:
        said = str(error) if isinstance(error, UserError) else _first(error)
        raise UserError(f"{where}: {said}" if where else said) from None


def _plain(nested: Any) -> Any:
    """Copies mappings of any kind, ConfigDicts among them, to dicts."""
    if not hasattr(nested, "items"):
        return nested
    return {str(name): _plain(value) for name, value in nested.items()}


def _first(error: ValidationError) -> str:
    """The first of pydantic's errors in words: key, value, and what was expected."""
    first = error.errors(include_url=False)[0]
    kind, place, value = first["type"], [*first["loc"]], first["input"]
    if kind == "json_invalid":  # all else in it was JSON
        return "a text of the configuration is no Unicode; expected UTF-8 paths and names"
    if kind == "unexpected_keyword_argument":
        inner = [*value][:1] if isinstance(value, Mapping) else []
        key = ".".join(map(str, [*place, *inner]))
        return unknown_key(key, _known(key))
    if place[-1:] == ["[key]"]:
        place = place[:-2]
    context = first.get("ctx", {})
    expected = f"expected {_EXPECTED.get(kind, kind).format(**context)}"
    if kind == "value_error":
        expected = str(context["error"])
    elif kind == "literal_error":
        expected = "expected one of " + ", ".join(re.findall("'(.*?)'", context["expected"]))
    elif place and isinstance(place[-1], int):
        place, expected = place[:-1], f"expected a tuple of {_EXPECTED.get(kind, kind)}"
    return f"{'.'.join(map(str, place))}={value!r}: {expected}"


def validate(config: ExperimentConfig) -> None:
    """Checks what keys must have in common, and names that are read elsewhere.

    Raises:
        UserError: names the first key that is wrong, its value and what is expected.
    """
    if not is_from_base(config.model.preset):
        find_preset(config.model.preset)
    for message in config.mistakes():
        raise UserError(message)
    if config.mixture.sources:
        from cxrjax.input_pipeline.mixture import check_mixture  # Grain, for few runs

        each = {name: config.of_source(name).data for name in config.mixture.sources}
        check_mixture(config.mixture, config.data, each, config.training.box_route)
    read_strategy(config.decoding)


def _known(key: str) -> Collection[str]:
    """Dotted keys that an unknown one may mean; of a source, its own."""
    source = _source(key)  # whether there is one, the file will tell
    own = (field.name for field in dataclasses.fields(SourceConfig))
    return [f"{SOURCES}{source}.{name}" for name in own] if source else _DEFAULTS


def _key(override: str) -> str:
    return override.split("=", 1)[0].removeprefix("--config.")


def _source(override: str) -> str | None:
    """The source of a mixture that an override is about; None: another key."""
    key = _key(override)
    return key.removeprefix(SOURCES).split(".")[0] if key.startswith(SOURCES) else None


def _check_override(word: str) -> None:
    name, key = word.split("=", 1)[0], _key(word)
    if not name.startswith("--config.") or "=" not in word:
        raise UserError(f"argument {word!r}: expected --config.key=value")
    if key not in (known := _known(key)):
        raise UserError(f"{name}: {unknown_key(key, known)}")


def _last_line(error: BaseException) -> str:
    text = str(error).strip()
    if text[:1] == text[-1:] == '"':  # KeyError and ExperimentConfig's errors are repr()s
        text = text[1:-1]
    return (text.splitlines() or [repr(error)])[-1].strip()
