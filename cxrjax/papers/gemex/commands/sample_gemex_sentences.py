"""Samples sentences of GEMeX's scene graphs to label, for `measure_gemex_refiner` (section 3.1.2).

    cxrjax sample_gemex_sentences --source=CHEST_IMAGENOME --reports=100 \\
        --out=labels.jsonl

Each line has the regions that the rules give the sentence, to be put right, and `rule` null, to be
filled in where a rule of Table 9 decides. The paper drew 100 reports of Chest ImaGenome's test set,
some 367 sentences. Sentences of credentialed reports may not be passed on, and stay out of the
repository.
"""

import json
from collections.abc import Sequence

from cxrjax.cli import command_parser, run
from cxrjax.errors import UserError
from cxrjax.paths import in_path, out_path


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the file to label."""
    parser = command_parser("papers.gemex.commands.sample_gemex_sentences", __doc__)
    add = parser.add_argument
    add("--source", required=True, type=in_path, help="folder or zip of scene graphs")
    add("--reports", type=int, default=100, help="how many (default 100)")
    add("--seed", type=int, default=0, help="which (default 0)")
    add("--out", required=True, type=out_path, help="JSON Lines to write; must not be there")
    flags = parser.parse_args(argv)
    from cxrjax.papers.gemex.construct.draw_sentences import draw

    lines = list(draw(flags.source, flags.reports, flags.seed))
    try:
        with flags.out.open("x", encoding="utf-8") as out:
            out.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    except FileExistsError:
        raise UserError(
            f"{flags.out}: is there, and may hold labels; choose another --out"
        ) from None
    except OSError as error:
        raise UserError(f"{flags.out}: cannot write: {error.strerror}") from None
    print(f"{flags.out}: {len(lines)} sentences to label")


if __name__ == "__main__":
    run(main)
