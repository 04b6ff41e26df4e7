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

import argparse
from collections.abc import Sequence

from cxrjax import choices
from cxrjax.cli import command_parser
from cxrjax.evaluation.flags import add_benchmark_flags, add_text_flags
from cxrjax.language_model.judges.flags import add_judge_flags
from cxrjax.paper import benchmark_places, load_benchmark
from cxrjax.paths import in_path, out_path


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the flags; leaves with code 2 where they are unusable."""
    parser = command_parser("score", __doc__)
    add = parser.add_argument
    add_benchmark_flags(parser, [*benchmark_places()])
    add("--references", required=True, type=in_path, metavar="FILE", help="records with answers")
    text = "predictions of one system; may be repeated (default: only baselines that see no image)"
    add("--predictions", default=[], type=in_path, action="append", metavar="FILE", help=text)
    text = "the system's name, once for each --predictions, in order (default: the file's stem)"
    add("--name", action="append", metavar="NAME", help=text)
    text = "read boxes from the text of lines without boxes"
    add("--codec", choices=choices.CODECS, help=text)
    text = "print in which frame a system's boxes would fit much better; applies nothing"
    add("--diagnose", action="store_true", help=text)
    add("--seed", type=int, default=0, help="of the bootstrap (default 0)")
    text = "kind of bootstrap interval (default bca)"
    add("--interval", choices=("bca", "percentile"), default="bca", help=text)
    text = "the system that all others are compared with (default: the first)"
    add("--compare_to", metavar="NAME", help=text)
    text = "baselines that see no image, beside the systems (default auto: up to 50,000 questions)"
    add("--floors", choices=("auto", "always", "never"), default="auto", help=text)
    add("--out", required=True, type=out_path, metavar="DIR", help="folder to write to")
    text = "folder for event files of the figures (CLU's writers; TensorBoard reads them)"
    add("--summaries", type=in_path, metavar="DIR", help=text)
    add("--step", type=int, default=0, help="the step that --summaries has them at (default 0)")
    add_text_flags(parser)
    add_judge_flags(parser)
    flags = parser.parse_args(argv)
    if flags.resamples < 0 or flags.seed < 0:
        parser.error("--resamples and --seed must not be negative")
    of_model = (flags.bertscore_layer, flags.bertscore_baseline)
    if flags.bertscore_model is None and of_model != (None, None):
        parser.error("--bertscore_layer and --bertscore_baseline are of --bertscore_model")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Scores what the flags name, writes the files and prints the tables."""
    flags = parse_arguments(argv)
    from cxrjax.evaluation import scoring_run

    benchmark = load_benchmark(flags.benchmark)
    for text in scoring_run.score(flags, benchmark):
        print(text)
