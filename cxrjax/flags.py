"""Flags of a command, declared from the dataclass of its options or the function that it calls.

Type and default of a field or parameter are the flag's, its line of the docstring is the help.
"""

import argparse
import dataclasses
import inspect
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import docstring_parser

from cxrjax.errors import UserError
from cxrjax.paths import in_path, out_path

Options = TypeVar("Options")


@dataclasses.dataclass(frozen=True)
class Flag:
    """Details of a flag beyond its parameter's type, for `typing.Annotated`."""

    metavar: str | None = None
    parse: Callable[[str], Any] | None = None
    choices: Collection[str] | None = None
    positional: bool = False


InFolder = Annotated[Path | None, Flag("DIR")]
InFile = Annotated[Path | None, Flag("FILE")]
InFiles = Annotated[Sequence[Path], Flag("FILE")]
OutFolder = Annotated[Path, Flag("DIR", out_path)]


def add_options(
    parser: argparse.ArgumentParser,
    options: Callable[..., Any],
    *,
    one_of: Collection[str] = (),
    without: Collection[str] = (),
    choices: Mapping[str, Collection[str]] = types.MappingProxyType({}),
) -> None:
    """Declares flags of a function, or of a dataclass and its bases; a `group` is their title.

    Args:
        one_of: fields of which exactly one is required.
        without: fields that are no flags.
        choices: of fields whose values are known at run time only.
    """
    places: dict[str, Any] = {"": parser}
    done = set(without)
    if one_of:
        places["one"] = parser.add_mutually_exclusive_group(required=True)
    parameters = inspect.signature(options).parameters
    kinds = options.__mro__ if isinstance(options, type) else (options,)
    for kind in (one for one in kinds if one is options or dataclasses.is_dataclass(one)):
        told = docstring_parser.parse(kind.__doc__ or "")
        helps = {one.arg_name: _help(one.description or "") for one in told.params}
        group = vars(kind).get("group", "")
        if group not in places:
            places[group] = parser.add_argument_group(group, told.description)
        for name in filter(helps.__contains__, inspect.get_annotations(kind)):
            if name in done:
                continue
            done.add(name)
            how = _how(parameters[name], helps[name])
            if name in choices:
                how = {**how, "choices": sorted(choices[name]), "metavar": None}
            words = [name] if how.pop("positional") else [f"--{name}"]
            places["one" if name in one_of else group].add_argument(*words, **how)


def _help(told: str) -> str:
    """A field's help, from its line of a docstring."""
    return re.sub(r"\bNone: ", "default: ", " ".join(told.split()))


def _how(parameter: inspect.Parameter, told: str) -> dict[str, Any]:
    kind, flag, default = parameter.annotation, Flag(), parameter.default
    if get_origin(kind) is Annotated:
        kind, flag = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        kind = get_args(kind)[0]
    how: dict[str, Any] = {"help": told.replace("%", "%%"), "metavar": flag.metavar}
    how["positional"] = flag.positional
    if default is parameter.empty and not flag.positional:
        how["required"] = True
    elif default not in (None, False, (), "") and not re.search(rf"default|{default}", told):
        how["help"] += f" (default {default})"
    if flag.parse is None and get_origin(kind) in (Sequence, tuple):
        kind, default = get_args(kind)[0], [*default] if default is not parameter.empty else None
        how["action"] = "append"
    how["default"] = None if default is parameter.empty else default
    if flag.parse and isinstance(default, Path):
        how["default"] = str(default)  # argparse parses defaults that are text
    if kind is bool:
        return {"help": how["help"], "action": "store_true", "positional": False}
    choices = flag.choices or (get_args(kind) if get_origin(kind) is Literal else None)
    if choices:
        return how | {"choices": choices}
    return how | {"type": flag.parse or (in_path if kind is Path else kind)}


def options_of(flags: argparse.Namespace, described: Callable[..., Options]) -> Options:
    """Returns the options that parsed flags describe."""
    names = inspect.signature(described).parameters
    return described(**{name: value for name, value in vars(flags).items() if name in names})


def parse_options(
    parser: argparse.ArgumentParser,
    options: Callable[..., Options],
    argv: Sequence[str] | None,
    **how: Any,
) -> Options:
    """Returns the options that the words describe; leaves with code 2 where they are unusable.

    Args:
        how: as of `add_options`.
    """
    options_read, rest = parse_known_options(parser, options, argv, **how)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return options_read


def parse_known_options(
    parser: argparse.ArgumentParser,
    options: Callable[..., Options],
    argv: Sequence[str] | None,
    **how: Any,
) -> tuple[Options, list[str]]:
    """Returns the options, and the words that are no flags, such as --config.key=value."""
    add_options(parser, options, **how)
    flags, rest = parser.parse_known_args(argv)
    try:
        return options_of(flags, options), rest
    except UserError as error:
        parser.error(str(error))
