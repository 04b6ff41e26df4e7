"""Quality control of a set of questions: checks, a review by people, and readers against readers.

    python -m cxrjax.review --check --records=DIR [--source=TABLE] --out=OUT
    python -m cxrjax.review --records=DIR/records/validation.jsonl --out=OUT [--sample=100]
    python -m cxrjax.review --records=... --predictions=FILE [--predictions=FILE2] --out=OUT
    python -m cxrjax.review --serve --records=... --reader=anna [--reader=bao ...] --out=OUT
    python -m cxrjax.review --records=... --export=DIR [--reader=anna] --out=OUT
    python -m cxrjax.review --sheets=A.csv --sheets=B.csv [--consensus=FILE] --out=OUT
    python -m cxrjax.review --readers=TABLE --out=OUT

--check verifies structure, findings and boxes (against the source table), words of reasons,
contradictions (by each data set's rules), repeated questions and what splits share: OUT/check.json.
Exit code 1 where a check failed. Without it, --records draws a stratified sample: OUT/sheet.csv to
fill in, OUT/index.html to fill in beside the images. --predictions puts a model's answers in the
place of the records' own (which are shown too) and takes the least certain first, where
coordinates are spread, a confidence is near a half, or a second system disagrees; records without
answers get theirs so. With --serve each reader has a link instead, every click stored in
OUT/review.sqlite; once all have submitted, their sheets and what --sheets writes are written.
Answers can be corrected there: boxes, words, findings that were missed. --export, given the same
flags, writes the whole set with the corrections of a review (finished or not): DIR/records.jsonl,
or records/SPLIT.jsonl of several splits; questions.jsonl, without an answer yet; DIR/pairs.jsonl,
for `rl.pairs`, each corrected answer preferred to the one before (--codec: how the model writes
boxes; --letterbox: its input, where images are padded to it); and prints the command that trains.
--sheets computes the agreement of filled sheets: OUT/agreement.json, agreement.md, consensus.csv;
with the filled consensus file consensus.json. --readers scores every radiologist of a box table, or
of records, against the others: OUT/readers.json, readers.md.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from cxrjax.apps.review import reader_names
from cxrjax.cli import command_parser, input_sizes
from cxrjax.paths import in_path, local_path


def _local(text: str) -> Path:
    return local_path(text, "a review's database and locks")


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the flags; leaves with code 2 where they are unusable."""
    parser = command_parser("review", __doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    add = what.add_argument
    text = "records file, built folder with records/, or data_v1.json; may be repeated"
    add("--records", type=in_path, action="append", metavar="PATH", help=text)
    add(
        "--sheets",
        type=in_path,
        action="append",
        metavar="CSV",
        help="a filled sheet; give two or more",
    )
    add("--readers", type=in_path, metavar="PATH", help="box table or records")
    add = parser.add_argument
    add("--out", required=True, type=_local, metavar="DIR", help="folder to write to")
    add("--check", action="store_true", help="check the records instead of drawing a sample")
    text = "predictions to review; a second system's to compare them with"
    add("--predictions", type=in_path, action="append", metavar="FILE", help=text)
    add("--serve", action="store_true", help="serve the sample to readers")
    add("--export", type=in_path, metavar="DIR", help="write the set as the review in --out has it")
    text = "box format of --predictions, and of the model that learns from --export's pairs"
    add("--codec", default="paligemma", help=text)
    text = "its inputs, where images are padded to them (default: they are stretched)"
    add("--letterbox", type=input_sizes, default=(), metavar="HxW[,HxW...]", help=text)
    add("--reader", action="append", metavar="NAME", help="who reads, for --serve; may be repeated")
    add("--host", default="127.0.0.1", help="of --serve (default 127.0.0.1: this machine alone)")
    add("--port", type=int, default=8765, help="of --serve (default 8765; 0: any free one)")
    add("--allowed_host", action="append", metavar="NAME", help="name of a proxy before --serve")
    add("--source", type=in_path, metavar="TABLE", help="box table of findings and boxes")
    add("--allow_leakage", action="store_true", help="report what splits share without failing")
    add("--sample", type=int, metavar="N", help="questions to review (default: at most 100)")
    add("--consensus", type=in_path, metavar="CSV", help="the consensus file, filled in")
    add("--image_root", type=in_path, help="what image_path is relative to (data/README.md)")
    add("--seed", type=int, default=0, help="of the sample and the bootstrap (default 0)")
    add("--resamples", type=int, default=1000, help="bootstrap resamples (default 1000)")
    add("--processes", type=int, default=os.cpu_count() or 1, help="workers for images")
    flags = parser.parse_args(argv)
    _check(parser, flags)
    return flags


def _check(parser: argparse.ArgumentParser, flags: argparse.Namespace) -> None:
    """Ends with code 2 where flags do not go together."""
    if flags.sheets and not 2 <= len(flags.sheets) <= reader_names.MOST_READERS:
        parser.error(f"{len(flags.sheets)} --sheets: expected 2 to {reader_names.MOST_READERS}")
    if len(flags.predictions or ()) > 2:
        parser.error(f"{len(flags.predictions)} --predictions: expected one or two")
    for name, needs, there in (
        ("--check", "--records", flags.records),
        ("--source", "--check", flags.check),
        ("--allow_leakage", "--check", flags.check),
        ("--consensus", "--sheets", flags.sheets),
        ("--serve", "--records", flags.records and not flags.check),
        ("--export", "--records", flags.records and not flags.check and not flags.serve),
        ("--predictions", "--records", flags.records and not flags.check),
        ("--reader", "--serve or --export", flags.serve or flags.export),
        ("--allowed_host", "--serve", flags.serve),
    ):
        if getattr(flags, name.lstrip("-")) and not there:
            parser.error(f"{name} needs {needs}")
    if flags.serve:
        fault = reader_names.find_fault(flags.reader or [])
        if fault:
            parser.error(fault)
    if (
        flags.resamples < 0
        or flags.seed < 0
        or flags.processes < 1
        or (flags.sample is not None and flags.sample < 1)
    ):
        parser.error(
            "--sample and --processes must be at least 1, --resamples and --seed at least 0"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what the flags request and prints the result; returns the exit code."""
    flags = parse_arguments(argv)
    from cxrjax.apps.review import quality_control

    return quality_control.run(flags)
