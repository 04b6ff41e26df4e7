"""Flags of `build`: those of the data set's own options, checked against those of others."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tyro

from cxrjax.errors import UserError
from cxrjax.paper import load_papers
from cxrjax.records_io.builder import Builder, BuildOptions

_STYLE = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes)


@dataclasses.dataclass(frozen=True)
class AnyOptions(BuildOptions):
    """Flags of every data set.

    Attributes:
        dataset: what to build; --dataset=NAME --help shows all flags of NAME.
        source: file or folder to read; what is rendered needs none.
    """

    dataset: str
    source: Path | None = None


def make_builder(
    dataset: str, builder: type[Builder[Any]], words: Sequence[str], prog: str
) -> Builder[Any]:
    """Returns the builder with its options from flags; leaves with code 2 where they are unusable.

    Raises:
        UserError: a flag is missing, decides nothing or belongs to another data set, or has a
            value out of its range.
    """
    words = [_our_word(word, builder.other_words) for word in words]
    _check_flags(dataset, builder, words)
    about = (builder.__doc__ or "").partition("\n\n")[0]
    return builder(parse(builder.options_class, f"{prog} --dataset={dataset}", words, about))


def _our_word(word: str, others: Mapping[str, str]) -> str:
    """Returns a flag under the name that it has here."""
    name, sign, value = word.partition("=")
    ours = others.get(name[2:]) if name.startswith("--") else None
    return f"--{ours}{sign}{value}" if ours else word


def parse(
    options: type[BuildOptions], prog: str, words: Sequence[str], description: str
) -> BuildOptions:
    """Returns the options that the flags give; leaves with code 2 where they are unusable."""
    required = dict.fromkeys(_required(options), tyro.MISSING)
    return tyro.cli(
        options,
        prog=prog,
        description=description,
        args=words,
        default=options(**required, processes=os.cpu_count() or 1),
        config=_STYLE,
        use_underscores=True,
    )


def _required(options: type[BuildOptions]) -> list[str]:
    unset = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(options) if f.default is f.default_factory is unset]


def _check_flags(dataset: str, builder: type[Builder[Any]], words: Sequence[str]) -> None:
    """Raises `UserError` where a flag is missing, decides nothing, or is another data set's."""
    flags = {word[2:].partition("=")[0] for word in words if word.startswith("--")}
    told = [f"--{flag} decides nothing" for flag in builder.unheeded if flag in flags]
    for flag in sorted(flags - flags_of(builder.options_class)):
        others = {paper.name: paper.part("builder") for paper in load_papers() if paper.builder}
        owners = [name for name, one in others.items() if flag in flags_of(one.options_class)]
        if owners:
            told.append(f"--{flag} belongs to --dataset={' and '.join(owners)}")
    if told:
        raise UserError(f"--dataset={dataset}: {'; '.join(told)}")
    missing = [name for name in _required(builder.options_class) if name not in flags]
    if missing and not {"-h", "--help"} & {*words}:
        raise UserError(f"--dataset={dataset} needs --{missing[0]}")


def flags_of(options: type[Any]) -> set[str]:
    """Returns the names of the options of a data set, of those in groups too."""
    flags: set[str] = set()
    for field in dataclasses.fields(options):
        nested = field.default_factory
        flags |= flags_of(nested) if isinstance(nested, type) else {field.name}
    return flags
