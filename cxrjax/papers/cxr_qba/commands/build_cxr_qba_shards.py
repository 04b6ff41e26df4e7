"""Constructs CXR-QBA from reports as an Apache Beam pipeline: sharded ArrayRecord out.

    cxrjax build_cxr_qba_shards --source=REPORTS --out=DIR --num_shards=64
    cxrjax build_cxr_qba_shards ... --processes=8  this machine, 8 workers
    cxrjax build_cxr_qba_shards ... --shards=3,7  these again
    cxrjax build_cxr_qba_shards ... --tfds=DIR2  as a TFDS data set as well
    cxrjax build_cxr_qba_shards ... --generator=language_model \
        --rate_with=language_model --base_url=URL --model=NAME [--dry_run] [--max_cost=C]
    cxrjax build_cxr_qba_shards ... --runner=FlinkRunner \
        --flink_master=HOST:8081

Needs an environment of its own (`make beam`; Apache Beam wants older versions of some libraries).
What is done is not done again: a run that was stopped, or in which shards failed, goes on. Flags
that are not listed go to Beam, if it knows them; those after `--` go there unasked, for options
that only the engine knows. data/cxr_qba/README.md has those of Dataflow, Flink and Spark.
SOURCE and DIR must be paths that all workers see.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from cxrjax.cli import command_parser, run
from cxrjax.flags import add_options
from cxrjax.language_model.flags import ClientFlags
from cxrjax.paths import in_path, local_path


def _local(text: str) -> Path:
    return local_path(text, "shards, which their libraries write,")


def parse_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Returns the flags of the command, and those that it does not know."""
    parser = command_parser("papers.cxr_qba.commands.build_cxr_qba_shards", __doc__)
    add = parser.add_argument
    add(
        "--source",
        required=True,
        type=in_path,
        help="reports, as data/cxr_qba/README.md lists them",
    )
    add("--out", required=True, type=_local, help="folder to write to")
    add("--num_shards", type=int, default=16, help="parts to construct (default 16)")
    add("--shards", default="", help="build these again: numbers from 0, such as 3,7")
    add("--processes", type=int, default=1, help="workers of the local runner (default 1)")
    add("--seed", type=int, default=0, help="decides wordings and splits (default 0)")
    add(
        "--rate_with",
        default="none",
        choices=("none", "surrogate", "language_model"),
        help="surrogate: rules",
    )
    add(
        "--generator",
        default="rules",
        choices=("rules", "language_model"),
        help="what reads the reports",
    )
    add("--least_grade", default="", choices=("", "A++", "A+", "A", "B"), help="export filter")
    add("--entity_model", type=in_path, help="folder of a sentence-transformers model (see build)")
    add("--regions_cache", type=in_path, help="keeps images' regions for the next build")
    add("--tfds", type=_local, help="write the questions as a TFDS data set into this folder too")
    add("--image_root", type=in_path, help="of --tfds: folder of the images (default: without)")
    add_options(parser, ClientFlags)
    return parser.parse_known_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Builds what the flags request and prints where it is."""
    given = list(sys.argv[1:] if argv is None else argv)
    end = given.index("--") if "--" in given else len(given)
    flags, unknown = parse_arguments(given[:end])
    from cxrjax.papers.cxr_qba.construct import pipeline

    for line in pipeline.construct(flags, unknown, given[end + 1 :]):
        print(line)


if __name__ == "__main__":
    run(main)
