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

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cxrjax.cli import EXIT_USER_ERROR, command_parser
from cxrjax.errors import UserError
from cxrjax.flags import Flag, InFolder, OutFolder, parse_known_options


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckFlags:
    """Records to check, and the page of samples.

    Attributes:
        file: records, questions, or a folder
        config: whose prompt and tokenizer to use (default configs/records_lora.py, with the
            records' own box format)
        source: of a mixture: whose settings these records have
        out: folder to write to
        image_root: what image_path is relative to
        samples: records on the page
        seed: chooses them
        processes: workers for images
    """

    file: Annotated[Path, Flag("FILE", positional=True)]
    config: Annotated[str | None, Flag("FILE[:VARIANT]")] = None
    source: Annotated[str | None, Flag("NAME")] = None
    out: OutFolder = Path("runs/check_records")
    image_root: InFolder = None
    samples: Annotated[int, Flag("N")] = 20
    seed: int = 0
    processes: int = os.cpu_count() or 1

    def __post_init__(self) -> None:
        if self.samples < 1 or self.seed < 0 or self.processes < 1:
            raise UserError("--samples and --processes must be at least 1, --seed at least 0")


def parse_arguments(argv: Sequence[str] | None = None) -> tuple[CheckFlags, list[str]]:
    """Returns the options, and the words that override the configuration."""
    return parse_known_options(command_parser("check_records", __doc__), CheckFlags, argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Checks, writes and prints; returns the exit code."""
    flags, overrides = parse_arguments(argv)
    from cxrjax.api.data import check  # --help stays quick

    options = vars(flags) | {"overrides": overrides, "mixture_source": flags.source}
    del options["file"], options["source"]
    return EXIT_USER_ERROR if check(flags.file, **options).problems else 0
