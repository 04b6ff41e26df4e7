"""Shows predictions of ViX-Ray beside the references, errors in colour, and a sheet to fill in.

    cxrjax show_vix_ray_errors --references=DIR/records/test.jsonl \\
        --predictions=tuned.jsonl --out=DIR --examples=50

Writes to --out:

    errors.html   fact by fact, as in appendix D: correct blue, incorrect red, missing purple,
                  hallucinated and redundant orange; guessed by rules
    errors.csv    a line for each fact with the guess, and columns to fill in by hand: `judged` as
                  one of correct, incorrect, redundant (section 4.4), missing, refusal; `comment`
    spans.jsonl   all answers: both texts (Unicode's form NFC), and where in each the words of each
                  fact stand: [start, end, label]
    errors.json   how many of each label
"""

from collections.abc import Sequence

from cxrjax.cli import command_parser, run
from cxrjax.paths import in_path, out_path


def main(argv: Sequence[str] | None = None) -> None:
    """Writes what the flags ask for and prints the counts."""
    parser = command_parser("papers.vix_ray.commands.show_vix_ray_errors", __doc__)
    add = parser.add_argument
    add("--references", required=True, type=in_path, metavar="FILE", help="records with answers")
    add("--predictions", required=True, type=in_path, metavar="FILE", help="of one system")
    add("--examples", type=int, default=50, help="answers shown, drawn from all (default 50)")
    add("--seed", type=int, default=0, help="of the draw (default 0)")
    add("--out", required=True, type=out_path, metavar="DIR", help="folder to write to")
    flags = parser.parse_args(argv)
    if flags.examples < 1:
        parser.error("--examples must be at least 1")
    from cxrjax.papers.vix_ray.errors import write_errors

    counts = write_errors(
        flags.references, flags.predictions, flags.out, flags.examples, flags.seed
    )
    print(", ".join(f"{name}: {number:,}" for name, number in counts.items()))
    print(f"{flags.out}: errors.html, errors.csv, spans.jsonl, errors.json")


if __name__ == "__main__":
    run(main)
