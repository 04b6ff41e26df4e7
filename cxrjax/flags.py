"""Flags of a command, declared from the class or function that takes them: one place an option.

A parameter's type and default are the flag's, and its line of the docstring is the help.
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


InFolder = Annotated[Path | None, Flag("DIR")]
InFile = Annotated[Path | None, Flag("FILE")]
InFiles = Annotated[Sequence[Path], Flag("FILE")]
OutFolder = Annotated[Path, Flag("DIR", out_path)]


def add_flags(
    parser: Any,
    described: Callable[..., Any],
    *names: str,
    without: Collection[str] = (),
    choices: Mapping[str, Collection[str]] = types.MappingProxyType({}),
) -> None:
    """Declares flags of a function's parameters, or of a dataclass's own fields.

    Args:
        parser: or a group of one.
        names: of these only; none: of all but `without`.
        choices: of parameters whose values are known at run time only.
    """
    own = inspect.get_annotations(described) if inspect.isclass(described) else None
    told = docstring_parser.parse(described.__doc__ or "").params
    helps = {one.arg_name: " ".join((one.description or "").split()) for one in told}
    for name, parameter in inspect.signature(described).parameters.items():
        if name in names or not (names or name in without or (own is not None and name not in own)):
            how = _how(parameter, helps[name])
            if name in choices:
                how = {**how, "choices": sorted(choices[name]), "metavar": None}
            parser.add_argument(f"--{name}", **how)


def add_group(
    parser: argparse.ArgumentParser, title: str, described: type, *names: str
) -> argparse._ArgumentGroup:
    """Declares flags in a group of their own, which the class's docstring explains."""
    group = parser.add_argument_group(
        title, docstring_parser.parse(described.__doc__ or "").description
    )
    add_flags(group, described, *names)
    return group


def _how(parameter: inspect.Parameter, told: str) -> dict[str, Any]:
    kind, flag, default = parameter.annotation, Flag(), parameter.default
    if get_origin(kind) is Annotated:
        kind, flag = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        kind = get_args(kind)[0]
    how: dict[str, Any] = {"help": told.replace("%", "%%"), "metavar": flag.metavar}
    if default is parameter.empty:
        how["required"] = True
    elif default not in (None, False, (), "") and not re.search(rf"default|{default}", told):
        how["help"] += f" (default {default})"
    if flag.parse is None and get_origin(kind) in (Sequence, tuple):
        kind, default = get_args(kind)[0], [*default] if default is not parameter.empty else None
        how["action"] = "append"
    how["default"] = None if default is parameter.empty else default
    if kind is bool:
        return {"help": how["help"], "action": "store_true"}
    choices = flag.choices or (get_args(kind) if get_origin(kind) is Literal else None)
    if choices:
        return how | {"choices": choices}
    return how | {"type": flag.parse or (in_path if kind is Path else kind)}


def options_of(flags: argparse.Namespace, described: Callable[..., Options]) -> Options:
    """Returns the options that parsed flags describe."""
    names = inspect.signature(described).parameters
    return described(**{name: value for name, value in vars(flags).items() if name in names})


def parse_options(
    parser: argparse.ArgumentParser, described: Callable[..., Options], argv: Sequence[str] | None
) -> Options:
    """Returns the options that the words describe; leaves with code 2 where they are unusable."""
    flags = parser.parse_args(argv)
    try:
        return options_of(flags, described)
    except UserError as error:
        parser.error(str(error))
