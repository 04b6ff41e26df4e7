"""Gives all boxes of a predictions file the same score.

    python -m cxrjax.tools.constant_scores --predictions=FILE --out=FILE

Scored beside the original, the difference in average precision is what the box scores are worth:
with constant scores only the order of the file ranks boxes.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from cxrjax import cli
from cxrjax.cli import command_parser
from cxrjax.errors import UserError
from cxrjax.files import read_json_lines, replace_text
from cxrjax.training.workdir import storage_errors

SCORE = 0.5


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the file."""
    parser = command_parser("tools.constant_scores", __doc__)
    parser.add_argument("--predictions", type=Path, required=True, metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    flags = parser.parse_args(argv)
    changed = []
    hint = "expected a prediction with boxes"
    for where, line in read_json_lines(flags.predictions, "the predictions", hint):
        if not isinstance(line.get("boxes"), list):
            raise UserError(f"{where}: {hint}")
        line["box_scores"] = [SCORE] * len(line["boxes"])
        changed.append(json.dumps(line) + "\n")
    with storage_errors(str(flags.out)):
        replace_text(flags.out, "".join(changed))


if __name__ == "__main__":
    cli.run(main)
