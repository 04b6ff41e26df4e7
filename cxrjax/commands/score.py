"""Scores predictions of any model against reference answers, in the layout of a paper's tables.

    python -m cxrjax.score --benchmark=vindr_cxr_vqa --references=DIR/records/validation.jsonl \\
        --predictions=base.jsonl --predictions=tuned.jsonl --out=DIR

Several predictions files are scored side by side, on the same resamples. A line of predictions has
`question_id`, `text` and `boxes` (xyxy fractions of the original image); for systems that give text
alone, --codec names the convention in which it writes boxes.

--benchmark=cxr_qba_tags and cxr_qba_boxes score scene graphs (--predictions=BUILD/native) against
people's labels of the same studies (--references: a label table, MS-CXR or REFLACX).

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
share of answers that change with the picture) and spread.json (of sampled runs, p.seed0.jsonl,
p.seed1.jsonl, ...: mean and spread over seeds, and where the system that all are compared with has
several runs, the difference from it over other patients and other seeds); with --judge:

    judgements.jsonl   marks and facts of each answer; judge.json: who judged and at what cost
    verdicts.jsonl     a language model's verdicts, which --judge=replay takes in its place
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cxrjax.cli import command_parser, garbage_collector_paused
from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.evaluation.bert_score import BertScoreSettings
from cxrjax.evaluation.radeval import RadEvalScorer
from cxrjax.evaluation.run_record import check_folder, check_split, write_score_record
from cxrjax.evaluation.scores import (
    GT_MODE_HELP,
    MOST_FOR_FLOORS,
    ScoreOptions,
    Scores,
)
from cxrjax.evaluation.several_runs import seed_spread, spread_markdown
from cxrjax.files import reading, write_json, writing
from cxrjax.language_model.judges.flags import (
    add_judge_flags,
    judge_from_flags,
    write_judgements,
)
from cxrjax.lock import folder_lock
from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.papers.benchmarks import BENCHMARKS, DATA_VALIDATIONS
from cxrjax.papers.vix_ray.noun_phrases import SEGMENTERS
from cxrjax.progress import waiting
from cxrjax.untrusted.names import system_name

if TYPE_CHECKING:
    from cxrjax.evaluation.benchmark import Benchmark


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Flags of the command; leaves with code 2 where they are unusable."""
    parser = command_parser("score", __doc__)
    add = parser.add_argument
    add(
        "--benchmark",
        required=True,
        choices=sorted([*BENCHMARKS, *DATA_VALIDATIONS]),
        help="whose tables",
    )
    add("--references", required=True, type=Path, metavar="FILE", help="records with answers")
    add(
        "--predictions",
        default=[],
        type=Path,
        action="append",
        metavar="FILE",
        help="predictions of one system; may be repeated (default: the floors alone, which answer "
        "without looking)",
    )
    add(
        "--name",
        action="append",
        metavar="NAME",
        help="the system's name, once for each --predictions, in order (default: the file's stem)",
    )
    add("--title", help="of tables and page (default: the benchmark's)")
    add("--codec", choices=sorted(CODECS), help="read boxes from the text of lines without boxes")
    add(
        "--diagnose",
        action="store_true",
        help="say in which frame a system's boxes would fit much better (pixels, 0-1000, y first, "
        "padded square, ...); applies nothing",
    )
    add("--gt_mode", metavar="MODE", help=GT_MODE_HELP)
    add("--split_sha256", metavar="HASH", help="refuse references whose image ids hash otherwise")
    add("--manifest", type=Path, metavar="FILE", help="a build's manifest.json, to check that hash")
    add("--resamples", type=int, default=1000, help="bootstrap resamples; 0: none (default 1000)")
    add("--seed", type=int, default=0, help="of the bootstrap (default 0)")
    add(
        "--interval",
        choices=("bca", "percentile"),
        default="bca",
        help="kind of bootstrap interval (default bca)",
    )
    add(
        "--compare_to",
        metavar="NAME",
        help="the system that all others are compared with (default: the first)",
    )
    add(
        "--floors",
        choices=("auto", "always", "never"),
        default="auto",
        help="systems that do not look, beside the others (default auto: up to "
        f"{MOST_FOR_FLOORS:,} questions)",
    )
    add(
        "--bertscore_model",
        type=Path,
        metavar="DIR",
        help="folder of the encoder that BERTScore is taken with, such as roberta-large (needs "
        "PyTorch: the extra bertscore)",
    )
    add("--bertscore_layer", type=int, metavar="N", help="its layer (default: the best known one)")
    add(
        "--bertscore_baseline",
        type=Path,
        metavar="FILE",
        help="LAYER,P,R,F of the package bert-score: rescale by it, as papers mostly do",
    )
    add(
        "--radeval",
        type=lambda names: names.split(","),
        metavar="NAMES",
        help="metrics of the package radeval, with commas: radgraph, f1chexbert, ratescore, green, "
        "srrbert (free text of cxr_qba, gemex and own; their weights must lie on this machine)",
    )
    add(
        "--segmenter",
        choices=sorted(SEGMENTERS),
        help="cuts Vietnamese words, for vix_ray (default pyvi)",
    )
    add("--out", required=True, type=Path, metavar="DIR", help="folder to write to")
    add(
        "--summaries",
        type=Path,
        metavar="DIR",
        help="folder for event files of the figures (CLU's writers; TensorBoard reads them)",
    )
    add("--step", type=int, default=0, help="the step that --summaries has them at (default 0)")
    add_judge_flags(parser)
    flags = parser.parse_args(argv)
    if flags.resamples < 0 or flags.seed < 0:
        parser.error("--resamples and --seed must not be negative")
    of_model = (flags.bertscore_layer, flags.bertscore_baseline)
    if flags.bertscore_model is None and of_model != (None, None):
        parser.error("--bertscore_layer and --bertscore_baseline are of --bertscore_model")
    return flags


def system_names(predictions: Sequence[Path], names: Sequence[str] | None) -> dict[str, Path]:
    """The files by their systems' names."""
    if names is not None and len(names) != len(predictions):
        raise UserError(
            f"{len(names)} --name for {len(predictions)} --predictions: give one each, in order"
        )
    systems: dict[str, Path] = {}
    for name, path in zip(names or [path.stem for path in predictions], predictions, strict=True):
        with reading(path, hint="choose another --name"):
            system_name(name)
        if name in systems:
            raise UserError(
                f"{path}: a system called {name!r} is there already ({systems[name]}): "
                "tell them apart with --name"
            )
        systems[name] = path
    return systems


def write_summaries(folder: Path, step: int, benchmark: "Benchmark[Any]", scores: Scores) -> None:
    """Writes what a training run logs, `score/<system>/<protocol>/<metric>`, to event files."""
    from cxrjax.training.metric_log import write_figures

    figures = {
        f"score/{system}/{protocol}/{metric}": value
        for system, named in scores.figures.items()
        for protocol, metric, value in benchmark.logged_figures(named)
    }
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_figures(folder, step, figures, {})


def main(argv: Sequence[str] | None = None) -> None:
    """Scores what the flags name, writes the files and prints the tables."""
    flags = parse_arguments(argv)
    of_records = flags.benchmark in BENCHMARKS
    benchmark = (BENCHMARKS if of_records else DATA_VALIDATIONS)[flags.benchmark]()
    systems = system_names(flags.predictions, flags.name)
    if not systems and (flags.floors == "never" or not of_records or not benchmark.has_floors):
        raise UserError(f"{flags.benchmark}: nothing to score: give --predictions")
    check_folder(flags.out)
    if of_records:
        check_split(flags.references, flags.split_sha256, flags.manifest)
    elif flags.diagnose:
        raise UserError(f"{flags.benchmark} scores no boxes of answers: leave out --diagnose")
    elif flags.split_sha256 or flags.manifest:
        raise UserError(f"{flags.benchmark} compares with a table, which has no split to check")
    with folder_lock(flags.out):
        _score(flags, benchmark, systems)


def _score(flags: argparse.Namespace, benchmark: Any, systems: dict[str, Path]) -> None:
    of_records = flags.benchmark in BENCHMARKS
    judge = judge_from_flags(flags, flags.out)
    bert_score = None
    if flags.bertscore_model is not None:
        bert_score = BertScoreSettings(
            flags.bertscore_model, flags.bertscore_layer, flags.bertscore_baseline
        )
    with garbage_collector_paused(), waiting("scoring, and drawing intervals"):
        scores = benchmark.score_files(
            flags.references,
            systems,
            ScoreOptions(
                codec=flags.codec,
                gt_mode=flags.gt_mode or benchmark.gt_modes[0],
                bootstrap=Bootstrap(
                    resamples=flags.resamples, seed=flags.seed, method=flags.interval
                ),
                judge=judge,
                segmenter=flags.segmenter,
                bert_score=bert_score,
                radeval=RadEvalScorer(flags.radeval) if flags.radeval else None,
                compare_to=flags.compare_to,
                title=flags.title,
                floors={"auto": None, "always": True, "never": False}[flags.floors],
            ),
        )
    from cxrjax.evaluation.benchmark import write_scores
    from cxrjax.language_model.judges.asked import LanguageModelJudge

    if isinstance(judge, LanguageModelJudge) and flags.dry_run:
        print("\n".join(f"{task}: {estimate}" for task, estimate in judge.planned.items()))
        return
    if judge is not None:
        write_judgements(flags.out, judge)
    markdown = write_scores(flags.out, benchmark, scores)
    if of_records:
        write_score_record(flags.out, flags.references, systems, scores)
    print(markdown)
    if flags.diagnose:
        _diagnose(flags, systems)
    if spread := seed_spread(scores.figures, scores.run_differences):
        write_json(flags.out / "spread.json", spread)
        print(spread_markdown(spread))
    if flags.summaries:
        write_summaries(flags.summaries, flags.step, benchmark, scores)
    written = "metrics.json, tables.md, tables.tex, tables.csv, score.json"
    print(f"{flags.out}: {written}{', run.json' if of_records else ''}")


def _diagnose(flags: argparse.Namespace, systems: dict[str, Path]) -> None:
    """Prints in which frame systems' boxes would fit, where it is another one."""
    from cxrjax.evaluation.frame_doctor import diagnose_files

    codec = CODECS[flags.codec] if flags.codec else None
    found = diagnose_files(flags.references, systems, codec)
    for system in systems:
        told = found.get(system, "no other frame fits its boxes better, or they are too few to say")
        print(f"{system}: {told}\n")
