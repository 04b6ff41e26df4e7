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
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from cxrjax.cli import EXIT_USER_ERROR, command_parser
from cxrjax.errors import UserError
from cxrjax.paths import in_path, out_path

DEFAULT_CONFIG = "configs/records_lora.py"
_RECORD_CODEC = "--config.data.record_codec="


def parse_arguments(argv: Sequence[str] | None = None) -> tuple[argparse.Namespace, list[str]]:
    """Flags of the command, and the words that override the configuration."""
    parser = command_parser("check_records", __doc__)
    add = parser.add_argument
    add("file", type=in_path, metavar="FILE", help="records, questions, or a folder")
    add(
        "--config",
        metavar="FILE[:VARIANT]",
        help=f"whose eyes to use (default {DEFAULT_CONFIG}, with the records' own box notation)",
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

    from cxrjax.apps import record_check  # --help stays quick
    from cxrjax.training.config_file import load_config

    config = load_config(flags.config or DEFAULT_CONFIG, overrides)
    if config.mixture.sources and not flags.source:
        raise UserError(
            f"--config={flags.config} is a mixture: say with --source=NAME whose settings these "
            f"records have, one of {', '.join(config.mixture.sources)}"
        )
    if flags.source:
        config = config.of_source(flags.source)
    said, loaded = "", config
    if not flags.config and not any(word.startswith(_RECORD_CODEC) for word in overrides):
        codec = record_check.notation_of(flags.file) or config.data.record_codec
        if codec != config.data.record_codec:
            said = (
                f"boxes in answers were read as {codec} writes them: a configuration that trains "
                f"on these records says data.record_codec={codec!r}\n"
            )
        data = dataclasses.replace(config.data, record_codec=codec)
        config = dataclasses.replace(config, data=data)
    check = record_check.check_file(
        flags.file, config, flags.out, image_root=flags.image_root, processes=flags.processes
    )
    record_check.write_result(check, flags.out)
    page = record_check.write_page(check, flags.out, flags.samples, flags.seed)
    print(said + record_check.describe(check))
    print(page)
    if check.needs.answer and not flags.source:
        named = flags.config or DEFAULT_CONFIG
        print(record_check.next_commands(check, loaded, named, overrides))
    return EXIT_USER_ERROR if check.problems else 0
