"""Writes predictions of baselines for grounded reports: medoid, nearest image, prevalence.

    cxrjax grounded_baselines --train=DIR/records/train.jsonl \\
        --questions=DIR/questions/validation.jsonl --out=OUT

medoid.jsonl has the report that shares most words with the others, nearest.jsonl that of the
training image whose grey values are most alike, prevalence.jsonl the most frequent findings, each
in a sentence with median boxes, as many as score best on the training reports.
"""

from collections.abc import Sequence

from cxrjax.cli import command_parser, run
from cxrjax.paths import in_path


def main(argv: Sequence[str] | None = None) -> None:
    """Writes three files of predictions."""
    parser = command_parser("papers.grounded_reports.commands.grounded_baselines", __doc__)
    for name in ("train", "questions", "out"):
        parser.add_argument(f"--{name}", required=True, type=in_path)
    parser.add_argument("--image_root", type=in_path, help="default: the folders of the builds")
    flags = parser.parse_args(argv)
    from cxrjax.papers.grounded_reports.baselines import write_baselines

    print(write_baselines(flags.train, flags.questions, flags.out, flags.image_root))


if __name__ == "__main__":
    run(main)
