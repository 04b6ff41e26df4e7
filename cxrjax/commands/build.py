"""Builds a dataset: records per split, the same without answers, hashes, quality, statistics.

    python -m cxrjax.build --dataset=NAME --source=PATH --out=DIR

data/README.md and data/<dataset>/README.md say what the sources look like.
"""

import argparse
import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tyro

from cxrjax.errors import UserError
from cxrjax.lock import folder_lock
from cxrjax.paper import find_paper, load_papers
from cxrjax.records_io.builder import Builder, BuildOptions

_STYLE = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes)


@dataclasses.dataclass(frozen=True)
class _AnyData(BuildOptions):
    """Flags of every data set.

    Attributes:
        dataset: what to build; --dataset=NAME --help shows all flags of NAME.
        source: file or folder to read; what is drawn needs none.
    """

    dataset: str
    source: Path | None = None


def parse_arguments(argv: Sequence[str] | None = None) -> Builder[Any]:
    """The builder that the flags ask for; leaves with code 2 where they are unusable.

    Raises:
        UserError: a flag belongs to another data set, or has a value out of its range.
    """
    parser = argparse.ArgumentParser("python -m cxrjax.build", allow_abbrev=False, add_help=False)
    summaries = {paper.name: paper.help for paper in load_papers() if paper.builder}
    parser.add_argument("--dataset", choices=list(summaries))
    chosen, words = parser.parse_known_args(sys.argv[1:] if argv is None else argv)
    if chosen.dataset is None:
        listed = [f"  {name:18} {summary}" for name, summary in summaries.items()]
        told = "\n".join([__doc__ or "", "Data sets:", *listed])
        _parse(_AnyData, parser.prog, words, told)
        raise AssertionError("it wants --dataset")
    builder = find_paper(chosen.dataset).part("builder")
    words = [_our_word(word, builder.other_words) for word in words]
    _check_flags(chosen.dataset, words)
    prog = f"{parser.prog} --dataset={chosen.dataset}"
    told = (builder.__doc__ or "").partition("\n\n")[0]
    return builder(_parse(builder.options_class, prog, words, told))


def _our_word(word: str, others: Mapping[str, str]) -> str:
    """A flag under the name that it has here."""
    name, sign, value = word.partition("=")
    ours = others.get(name[2:]) if name.startswith("--") else None
    return f"--{ours}{sign}{value}" if ours else word


def _parse(
    options: type[BuildOptions], prog: str, words: Sequence[str], description: str
) -> BuildOptions:
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


def _check_flags(dataset: str, words: Sequence[str]) -> None:
    """Raises `UserError` where a flag is missing, decides nothing, or is another data set's: says
    whose."""
    flags = {word[2:].partition("=")[0] for word in words if word.startswith("--")}
    builder = find_paper(dataset).part("builder")
    told = [f"--{flag} decides nothing" for flag in builder.unheeded if flag in flags]
    for flag in sorted(flags - _flags_of(builder.options_class)):
        others = {paper.name: paper.part("builder") for paper in load_papers() if paper.builder}
        owners = [name for name, one in others.items() if flag in _flags_of(one.options_class)]
        if owners:
            told.append(f"--{flag} belongs to --dataset={' and '.join(owners)}")
    if told:
        raise UserError(f"--dataset={dataset}: {'; '.join(told)}")
    missing = [name for name in _required(builder.options_class) if name not in flags]
    if missing and not {"-h", "--help"} & {*words}:
        raise UserError(f"--dataset={dataset} needs --{missing[0]}")


def _flags_of(options: type[Any]) -> set[str]:
    flags: set[str] = set()
    for field in dataclasses.fields(options):
        nested = field.default_factory
        flags |= _flags_of(nested) if isinstance(nested, type) else {field.name}
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Builds what the flags ask for and prints where it is."""
    builder = parse_arguments(argv)
    told = builder.estimate()
    if told is None:
        with folder_lock(builder.options.out):
            told = builder.build()
    print(told)
