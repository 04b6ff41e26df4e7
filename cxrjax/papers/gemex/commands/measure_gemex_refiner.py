"""Measures how often GEMeX's refiner gives a sentence its right regions (section 3.1.2).

    cxrjax measure_gemex_refiner \
        --labels=data/gemex/labelled_sentences.jsonl
    cxrjax measure_gemex_refiner --labels=STUDIES/truth/studies.jsonl
    cxrjax measure_gemex_refiner --labels=FILE \
        --refiner=language_model \
        --base_url=URL --model=NAME [--prompt=TRIED.toml]

A label file is JSON Lines: `{"id", "sentence", "regions", "rule"}`, regions of the 30, [] where the
sentence is to be left out, and optionally the rule of Table 9 that it tries (0: none); or the truth
of phantom studies, whose facts name regions of Chest ImaGenome's 29. A sentence counts as right
where its set of regions is; the interval is Wilson's, 95 %. The paper reached about 98.4 % of some
367 sentences with OpenBioLLM-70B. `sample_gemex_sentences`
samples sentences of scene graphs to label.
"""

from collections.abc import Sequence

from cxrjax.cli import command_parser, run
from cxrjax.language_model.flags import add_client_flags
from cxrjax.paths import in_path


def main(argv: Sequence[str] | None = None) -> None:
    """Prints accuracy, by rule and in all, and what went wrong."""
    parser = command_parser("papers.gemex.commands.measure_gemex_refiner", __doc__)
    add = parser.add_argument
    add("--labels", required=True, type=in_path, help="labelled sentences")
    add("--refiner", default="rules", choices=("rules", "language_model"), help="default: rules")
    add("--prompt", type=in_path, metavar="FILE", help="a prompt to try (default: the package's)")
    add_client_flags(parser)
    flags = parser.parse_args(argv)
    from cxrjax.papers.gemex.construct.refiner_accuracy import accuracy_lines

    for line in accuracy_lines(flags):
        print(line)


if __name__ == "__main__":
    run(main)
