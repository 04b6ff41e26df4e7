"""Builds a dataset: records per split, the same without answers, hashes, quality, statistics.

    python -m cxrjax.build --dataset=NAME --source=PATH --out=DIR

data/README.md and data/<dataset>/README.md say what the sources look like.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from cxrjax.paper import find_paper, load_papers
from cxrjax.records_io import build_flags
from cxrjax.records_io.builder import Builder


def parse_arguments(argv: Sequence[str] | None = None) -> Builder[Any]:
    """Returns the builder that the flags request; leaves with code 2 where they are unusable.

    Raises:
        UserError: a flag belongs to another data set, or has a value out of its range.
    """
    parser = argparse.ArgumentParser("python -m cxrjax.build", allow_abbrev=False, add_help=False)
    summaries = {paper.name: paper.help for paper in load_papers() if paper.builder}
    parser.add_argument("--dataset", choices=list(summaries))
    chosen, words = parser.parse_known_args(sys.argv[1:] if argv is None else argv)
    if chosen.dataset is not None:
        builder = find_paper(chosen.dataset).part("builder")
        return build_flags.make_builder(chosen.dataset, builder, words, parser.prog)

    listed = [f"  {name:18} {summary}" for name, summary in summaries.items()]
    about = "\n".join([__doc__ or "", "Data sets:", *listed])
    build_flags.parse(build_flags.AnyOptions, parser.prog, words, about)
    raise AssertionError("it wants --dataset")


def main(argv: Sequence[str] | None = None) -> None:
    """Builds what the flags request and prints where it is."""
    builder = parse_arguments(argv)
    from cxrjax.api.data import run_builder  # --help stays quick

    run_builder(builder)
