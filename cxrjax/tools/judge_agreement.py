"""Compares a judge with people, or with another judge, on the answers that both rated.

    python -m cxrjax.tools.judge_agreement --marks=DIR/judgements.jsonl --marks=people.csv

Each --marks is a judgements.jsonl as `score` writes it (the mark of the answer, its mean over both
orders), or a CSV file of people's marks with the columns question_id, system (if there are several)
and mark, 1 to 10. Prints Spearman's and Kendall's correlation, Cohen's kappa with quadratic weights
of rounded marks with its 95 % interval, the intraclass correlation ICC(2,1) of the marks as they
are, how much higher the second marks, and what was left out.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from cxrjax.cli import command_parser, run
from cxrjax.errors import UserError
from cxrjax.files import replace_text


def main(argv: Sequence[str] | None = None) -> None:
    """Compares what the flags name, prints it and writes it where --out says."""
    parser = command_parser("tools.judge_agreement", __doc__)
    add = parser.add_argument
    add("--marks", required=True, type=Path, action="append", metavar="FILE", help="give two")
    add("--out", type=Path, metavar="FILE", help="the figures as JSON")
    flags = parser.parse_args(argv)
    if len(flags.marks) != 2:
        parser.error(f"{len(flags.marks)} --marks, expected two")
    from cxrjax.apps.review.judge_agreement import compare, read_marks

    agreement, left_out = compare(*map(read_marks, flags.marks))
    figures = {
        name: None if math.isnan(value) else value for name, value in agreement._asdict().items()
    }
    content = json.dumps({**figures, "left_out": left_out}, indent=1)
    print(content)
    if flags.out:
        try:
            replace_text(flags.out, content + "\n")
        except OSError as error:
            raise UserError(f"{flags.out}: cannot be written: {error.strerror}") from None


if __name__ == "__main__":
    run(main)
