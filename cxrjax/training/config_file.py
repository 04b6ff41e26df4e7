"""Configurations from files: Python files with overrides of a command line, and `config.json`."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from cxrjax.errors import UserError
from cxrjax.files import shipped
from cxrjax.training.config import default_config, flatten
from cxrjax.training.config_check import defaults_of, unknown_key, validate
from cxrjax.training.mixture_config import SOURCES, source_defaults

# Keys of `model` that may name what ships.
_BASES = ("init_from", "tower_from", "tokenizer")


def load_config(spec: str, overrides: Sequence[str] = ()) -> ConfigDict:
    """Reads `FILE[:VARIANT]`, applies overrides, checks everything.

    Args:
        spec: a Python file with `get_config(variant="")`, and the variant to ask it for.
        overrides: command-line words of the form `--config.key=value`; `None` empties a key that
            may be empty.

    Raises:
        UserError: no such file, an unknown key or variant, or a value of the wrong type.
    """
    path, *variant = spec.split(":", 1)
    file = shipped(path)
    if not file.is_file():
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
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        text = _last_line(error)
        unknown = re.search(r'Key "(\w+)" does not exist', text)  # a locked ConfigDict's words
        if unknown:
            text = unknown_key(unknown[1])
        for source in filter(None, map(_source, overrides)):
            if isinstance(error, KeyError) and source in text:
                text = f"{source!r} is no source of the file's mixture; add_source makes one"
        raise UserError(f"--config={spec}: {text}") from error
    validate(values.config)
    for key in _BASES:
        if values.config.model[key] is not None:
            values.config.model[key] = str(shipped(values.config.model[key]))
    return values.config


def _key(override: str) -> str:
    return override.split("=", 1)[0].removeprefix("--config.")


def _source(override: str) -> str | None:
    """The source of a mixture that an override is about; None: another key."""
    key = _key(override)
    return key.removeprefix(SOURCES).split(".")[0] if key.startswith(SOURCES) else None


def _may_be_empty(override: str) -> bool:
    # All that a source may say is null by default.
    return bool(_source(override)) or flatten(default_config()).get(_key(override), "") is None


def _check_override(word: str) -> None:
    name, key = word.split("=", 1)[0], _key(word)
    if not name.startswith("--config.") or "=" not in word:
        raise UserError(f"argument {word!r}: expected --config.key=value")
    known = set(flatten(default_config()))
    if key.startswith(SOURCES):  # whether there is such a source, the file will tell
        known = {f"{SOURCES}{_source(word)}.{own}" for own in source_defaults()}
    if key not in known:
        raise UserError(f"{name}: {unknown_key(key)}")


def to_json(config: ConfigDict) -> dict[str, Any]:
    """The configuration as nested dicts and lists, as `config.json` holds it."""
    return {
        key: to_json(value) if isinstance(value, ConfigDict) else value
        for key, value in config.items()
    }


def from_json(nested: Mapping[str, Any], where: str) -> ConfigDict:
    """What `to_json` wrote.

    Args:
        where: file, for error messages.

    Raises:
        UserError: a key this version does not have, or a value of the wrong type.
    """
    config = defaults_of(nested)
    for key, value in flatten(nested).items():
        if key not in flatten(config):
            raise UserError(f"{where}: {unknown_key(key)}")
        group, _, name = key.rpartition(".")
        try:
            node = config[group] if group else config
            value = grammar_name(value) if key == "decoding.grammar" else value
            value = remat_name(value) if key == "model.remat" else value
            node[name] = tuple(value) if isinstance(value, list) else value
        except (TypeError, ValueError) as error:
            raise UserError(f"{where}: {key}={value!r}: {_last_line(error)}") from error
    return config


def grammar_name(value: Any) -> Any:
    """`decoding.grammar` of files from when it was true or false."""
    return {True: "boxes", False: "none"}[value] if isinstance(value, bool) else value


def remat_name(value: Any) -> Any:
    """`model.remat` of files from when it was true or false."""
    return {True: "full", False: "none"}[value] if isinstance(value, bool) else value


def _last_line(error: BaseException) -> str:
    text = str(error).strip()
    if text[:1] == text[-1:] == '"':  # KeyError and ConfigDict's errors are repr()s
        text = text[1:-1]
    return (text.splitlines() or [repr(error)])[-1].strip()
