"""Scores predictions of any model against reference answers, in the layout of a paper's tables.

    python -m cxrjax.score --benchmark=NAME --references=DIR/records/validation.jsonl \\
        --predictions=base.jsonl --predictions=tuned.jsonl --out=DIR

Several predictions files are scored side by side, on the same resamples. A line of predictions has
`question_id`, `text` and `boxes` (xyxy fractions of the original image); for systems that give text
alone, --codec names the convention in which it writes boxes.

Some benchmarks compare a data set itself with people's labels of the same studies (--references: a
label table, or a file of boxes); its scene graphs stand in for predictions
(--predictions=BUILD/native).

--diagnose names, for each system, the coordinate frame in which its boxes would fit the reference
boxes much better (`cxrjax.evaluation.frame_doctor`), such as y-first, 0-1000 or the padded square;
the figures stay as they are.

Writes to --out:

    metrics.json   {system: {protocol: {metric: {value, ci_low, ci_high, n}}}}, null where undefined
    tables.md      the paper's tables with our figures beside its own
    tables.tex     the same for LaTeX
    tables.csv     the same, a line for each cell
    score.json     ground-truth mode, seed, file hashes, and what was wrong with the predictions
    run.json       command, hashes, versions, and how `predict` made the predictions, where it did

    floors.json    figures of systems that do not look, and each system's distance from the best

and, where there is something to write, comparisons.json (every system against the first: the
difference with its interval, and p of a paired permutation test), curves.json (for the page),
image_reliance.json (p_blind.jsonl, or _shuffled, _noise, _blurred, _masked, beside p.jsonl: the
share of answers that change with the image) and spread.json (of sampled runs, p.seed0.jsonl,
p.seed1.jsonl, ...: mean and spread over seeds, and where the system that all are compared with has
several runs, the difference from it over other patients and other seeds); with --judge:

    judgements.jsonl   marks and facts of each answer; judge.json: who judged and at what cost
    verdicts.jsonl     a language model's verdicts, which --judge=replay takes in its place
"""

from collections.abc import Sequence

from cxrjax.cli import command_parser
from cxrjax.evaluation.flags import ScoreFlags
from cxrjax.flags import parse_options
from cxrjax.paper import benchmark_places


def parse_arguments(argv: Sequence[str] | None = None) -> ScoreFlags:
    """Returns the options; leaves with code 2 where they are unusable."""
    choices = {"benchmark": benchmark_places()}
    return parse_options(command_parser("score", __doc__), ScoreFlags, argv, choices=choices)


def main(argv: Sequence[str] | None = None) -> None:
    """Scores what the flags name, writes the files and prints the tables."""
    flags = parse_arguments(argv)
    from cxrjax.evaluation.scoring_run import score

    for text in score(flags):
        print(text)
