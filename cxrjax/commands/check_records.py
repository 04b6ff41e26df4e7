"""Checks your records and images, and shows what the model would see of them.

    python -m cxrjax.check_records FILE [--config=configs/records_lora.py] [--out=DIR]

FILE is a records or questions file, a folder with a records.jsonl (data/README.md), or a build.
Every problem is printed with its line, its field and what to do; DIR gets check.json, with all, and
index.html: 20 of the usable records as the configured model is given them, with the image at
its size, the prompt and the target as their tokens say them, and the boxes read back from the
tokens. Exit code 2 where anything cannot be used. The last line is the `train` command that fits:
with all settings that the longest question, the longest answer and the most boxes need.

How answers write boxes is data.record_codec of --config. Without --config it is what the records'
data set has, such as <location> [[x1, y1, x2, y2]], and the first line says so.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from cxrjax.cli import EXIT_USER_ERROR, command_parser
from cxrjax.paths import in_path, out_path


def parse_arguments(argv: Sequence[str] | None = None) -> tuple[argparse.Namespace, list[str]]:
    """Flags of the command, and the words that override the configuration."""
    parser = command_parser("check_records", __doc__)
    add = parser.add_argument
    add("file", type=in_path, metavar="FILE", help="records, questions, or a folder")
    add(
        "--config",
        metavar="FILE[:VARIANT]",
        help="whose prompt and tokenizer to use (default configs/records_lora.py, with the "
        "records' own box format)",
    )
    add("--source", metavar="NAME", help="of a mixture: whose settings these records have")
    add("--out", type=out_path, default=Path("runs/check_records"), metavar="DIR")
    add("--image_root", type=in_path, metavar="DIR", help="what image_path is relative to")
    add("--samples", type=int, default=20, metavar="N", help="records on the page (default 20)")
    add("--seed", type=int, default=0, help="decides which (default 0)")
    add("--processes", type=int, default=os.cpu_count() or 1, help="workers for images")
    flags, overrides = parser.parse_known_args(argv)
    if flags.samples < 1 or flags.seed < 0 or flags.processes < 1:
        parser.error("--samples and --processes must be at least 1, --seed at least 0")
    return flags, overrides


def main(argv: Sequence[str] | None = None) -> int:
    """Checks, writes and prints; the exit code."""
    flags, overrides = parse_arguments(argv)
    from cxrjax.api.data import check  # --help stays quick

    found = check(
        flags.file,
        flags.config,
        overrides,
        out=flags.out,
        mixture_source=flags.source,
        image_root=flags.image_root,
        samples=flags.samples,
        seed=flags.seed,
        processes=flags.processes,
    )
    return EXIT_USER_ERROR if found.problems else 0
