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

from collections.abc import Sequence

from cxrjax.apps.review.flags import ReviewFlags
from cxrjax.cli import command_parser
from cxrjax.flags import parse_options


def parse_arguments(argv: Sequence[str] | None = None) -> ReviewFlags:
    """Returns the options; leaves with code 2 where they are unusable."""
    parser = command_parser("review", __doc__)
    return parse_options(parser, ReviewFlags, argv, one_of=("records", "sheets", "readers"))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what the flags request and prints the result; returns the exit code."""
    flags = parse_arguments(argv)
    from cxrjax.apps.review import quality_control

    return quality_control.run(flags)
