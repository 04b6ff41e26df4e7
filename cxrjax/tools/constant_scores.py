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
from cxrjax.training.workdir import storage_errors

SCORE = 0.5


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the file."""
    parser = command_parser("tools.constant_scores", __doc__)
    parser.add_argument("--predictions", type=Path, required=True, metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    flags = parser.parse_args(argv)
    try:
        lines = flags.predictions.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{flags.predictions}: cannot read the predictions: {error}") from None
    changed = []
    for number, text in enumerate(lines, start=1):
        try:
            line = json.loads(text)
            line["box_scores"] = [SCORE] * len(line["boxes"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{flags.predictions}:{number}: expected a prediction with boxes ({error!r})"
            ) from None
        changed.append(json.dumps(line) + "\n")
    with storage_errors(str(flags.out)):
        flags.out.write_text("".join(changed), encoding="utf-8")


if __name__ == "__main__":
    cli.run(main)
