"""Counts the reference boxes that lie within predicted ones, such as `predict --conformal` widened.

    python -m cxrjax.tools.coverage --predictions=FILE --references=FILE --out=FILE

A true box is covered if one predicted box of its question holds all of it, whatever else is
predicted: several boxes of an answer count each. Large boxes cover easily, so that the mean area of
predicted boxes, as a multiple of true ones', stands beside it. Written is JSON: the share with its
interval (bootstrap of patients), and the same by what is asked about; `asked`: the share that the
predictions were widened for, as FILE.run.json says, null where it does not. Without --out it is
printed alone.
"""

import argparse
import json
from collections.abc import Sequence

from cxrjax import cli
from cxrjax.cli import command_parser
from cxrjax.files import replace_text, writing
from cxrjax.paths import in_path, out_path


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Flags of the command; leaves with code 2 where they are unusable."""
    parser = command_parser("tools.coverage", __doc__)
    add = parser.add_argument
    add("--predictions", type=in_path, required=True, metavar="FILE", help="lines with boxes")
    add("--references", type=in_path, required=True, metavar="FILE", help="records with answers")
    add("--out", type=out_path, metavar="FILE", help="JSON to write")
    add("--resamples", type=int, default=1000, help="bootstrap resamples (default 1000)")
    flags = parser.parse_args(argv)
    if flags.resamples < 0:
        parser.error("--resamples must not be negative")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the shares and prints them."""
    flags = parse_arguments(argv)
    from cxrjax.evaluation.coverage import coverage
    from cxrjax.metrics.bootstrap import Bootstrap

    found = coverage(flags.predictions, flags.references, Bootstrap(resamples=flags.resamples))
    text = json.dumps(found, indent=2) + "\n"
    if flags.out:
        with writing(flags.out):
            replace_text(flags.out, text)
    print(text, end="")


if __name__ == "__main__":
    cli.run(main)
