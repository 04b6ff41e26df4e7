"""Answers questions with a model of ours, or another runner: a line of predictions for each.

    python -m cxrjax.predict --workdir=runs/vindr --questions=DIR/questions/validation.jsonl \\
        --out=predictions.jsonl
    python -m cxrjax.predict --checkpoint=data/demo_base --prompt=detect --questions=... --out=...
    python -m cxrjax.predict --runner=prior_box --train=DIR/records/train.jsonl --questions=... \\
        --out=...
    python -m cxrjax.predict --runner=openai --base_url=http://127.0.0.1:8000/v1 --model=NAME \\
        --system=qwen2.5_vl --questions=... --out=...
    python -m cxrjax.predict --runner=hf --folder=PATH/TO/medgemma-1.5-4b-it \\
        --system=medgemma_1.5 --wording=locate --questions=... --out=...

The questions file carries no answers (`build` writes it; a records file works too: its answers are
not looked at, and a warning says that they are there). Where a question continues another one of
the file and that one's answer is null in its history, the other goes first and its prediction
becomes the history; what was asked then is left in OUT.turns.jsonl.

A line of predictions has `question_id`, `text`, `boxes` (xyxy, fractions of the original image),
`labels`, `box_scores` and `parse`: `ok`, or why no box could be read. Three natural logarithms tell
how sure the model was: `answer_logprob` of all tokens, `decision_logprob` of what the answer says
(yes or no, the findings it names), and `coordinate_logprob` of where its boxes lie, null where it
writes none (cxrjax/decoding/confidence.py). Of other people's models `parse` can also be
`http_error`, `timeout`, `connection`, `unreadable_image` or `not_asked`, where there is no answer,
and `written` is all that was written, where the answer is a part of it. OUT.run.json says how they
were made: hashes, versions, and settings as they came out of flags and the model's own.

A model of ours that samples needs --seeds: at least three, a file each.

--reword asks the same questions in other words: `score` given both files says what that costs, with
an interval. The questions, as asked, are left in OUT.questions.jsonl. --reword=unknown asks about
things that no training has asked about, and says how often the answer is that they are unknown.

--conformal=DIR makes boxes wider, so that so many true ones lie within one (--cover, 0.9 unless
given): by margins found on DIR/predictions.jsonl, which this command wrote of the same model with
the same flags, and DIR/records.jsonl, its questions with answers, of other patients. Lines then
have `margins`, how far each side was moved outwards, and a table says what margins of half of DIR's
patients cover of the other half.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cxrjax.cli import command_parser
from cxrjax.distributed import hosts
from cxrjax.errors import UserError
from cxrjax.evaluation.conformal import (
    PREDICTIONS,
    Margins,
    calibrate,
    check_coverage,
    coverage_table,
)
from cxrjax.evaluation.run_record import made_otherwise, write_prediction_record
from cxrjax.evaluation.systems import (
    add_runner_flags,
    answer_all,
    estimate_run,
    resolved_settings,
    start_runner,
    start_sampler,
)
from cxrjax.evaluation.systems.base import Answer, answer_seeds, describe_spread
from cxrjax.evaluation.systems.systems import describe_systems
from cxrjax.files import read_json_lines
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.input_pipeline.wording import REWORDINGS, UNKNOWN_ANSWER, reword, says_unknown
from cxrjax.papers.benchmarks import CLOSED_CLASSES
from cxrjax.progress import waiting
from cxrjax.records import write_records


class _ListSystems(argparse.Action):
    """Prints the systems and ends, as `--help` does, whatever else is missing."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(describe_systems())
        parser.exit()


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Flags of the command; leaves with code 2 where they are unusable."""
    parser = command_parser("predict", __doc__)
    add = parser.add_argument
    add_runner_flags(parser)
    add("--list_systems", action=_ListSystems, help="list what --system knows, and end")
    add("--questions", required=True, type=Path, metavar="FILE", help="questions (JSON Lines)")
    add("--out", required=True, type=Path, metavar="FILE", help="predictions to write")
    add("--reword", choices=REWORDINGS, help="ask in other words (input_pipeline/wording.toml)")
    # Absent unless given: records of other runs say nothing of them.
    absent = argparse.SUPPRESS
    text = "of other patients, to widen boxes by"
    add("--conformal", type=Path, metavar="DIR", default=absent, help=text)
    add("--cover", type=float, metavar="SHARE", default=absent, help="of true boxes (0.9)")
    text = "how likely a listed box must be real to count (prompt formats '_listed'; 0.5)"
    add("--listed_above", type=float, metavar="PROBABILITY", default=absent, help=text)
    hosts.add_flags(parser)
    flags = parser.parse_args(argv)
    if "cover" in flags and "conformal" not in flags:
        parser.error("--cover is for --conformal=DIR; give both")
    if "listed_above" in flags and not (flags.workdir or flags.checkpoint):
        parser.error("--listed_above is for a model of ours; give --workdir or --checkpoint")
    if "conformal" in flags and flags.seeds:
        parser.error("--conformal is for one file of predictions; leave out --seeds")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Predicts what the flags ask for and says where it is."""
    flags = parse_arguments(argv)
    hosts.initialize(flags)
    if not (hosts.alone() or flags.workdir or flags.checkpoint):
        raise UserError("several processes: only our own models (--workdir, --checkpoint) use them")
    with waiting(f"reading {flags.questions}"):
        questions = RecordSource(flags.questions, flags.image_root)
    names: dict[str, str | None] = {}
    if flags.reword:
        if flags.reword != "unknown":
            names = {record.question_id: record.finding for _, record in questions.records()}
        questions = _reworded(questions, flags.reword, flags.out)
    margins, about = _margins(flags, questions) if "conformal" in flags else (None, {})
    if flags.dry_run:
        print(estimate_run(flags, questions))
        return
    if flags.seeds:
        sampler = start_sampler(flags, CLOSED_CLASSES)
        files = answer_seeds(
            questions, lambda seed: _named(sampler(seed), names), flags.out, flags.seeds
        )
        if hosts.is_first():
            resolved = resolved_settings(flags)
            for file, seed in zip(files, flags.seeds, strict=True):
                write_prediction_record(file, flags.questions, flags, resolved | {"seed": seed})
            print(describe_spread(files))
            print(f"{', '.join(map(str, files))}: give all of them to score")
        return
    answer = _named(start_runner(flags, CLOSED_CLASSES), names)
    if margins:
        answer = _widened(answer, margins)
    found = answer_all(questions, answer, flags.out)
    if not hosts.is_first():
        return
    write_prediction_record(flags.out, flags.questions, flags, resolved_settings(flags) | about)
    faults = ", ".join(f"{n:,} {name}" for name, n in found.most_common() if name != "ok")
    print(f"{flags.out}: {found.total():,} predictions" + f" ({faults})" * bool(faults))
    if flags.reword == "unknown":
        lines = read_json_lines(flags.out, "predictions", "predict again")
        unknown = sum(says_unknown(line["text"]) for _, line in lines)
        print(f"{unknown:,} of {found.total():,} answered {UNKNOWN_ANSWER!r}")


def _margins(flags: argparse.Namespace, questions: RecordSource) -> tuple[Margins, dict[str, Any]]:
    """The margins of --conformal, and what the run's record says of them."""
    cover = flags.cover if "cover" in flags else 0.9
    _check_same_model(flags)
    asked = (record for _, record in questions.records())
    margins, answered = calibrate(flags.conformal, cover, asked)
    rows = check_coverage(answered, margins)
    if hosts.is_first():
        print(margins.describe())
        print(coverage_table(rows))
    halves = [asdict(row) for row in rows]
    return margins, {"cover": cover, "margins": margins.to_json() | {"halves": halves}}


def _check_same_model(flags: argparse.Namespace) -> None:
    """Refuses margins of another model, or of one that was asked otherwise."""
    found = flags.conformal / PREDICTIONS
    differ = made_otherwise(found, flags, resolved_settings(flags))
    if differ:
        raise UserError(
            f"{found}: made by another model or asked otherwise ({', '.join(differ)}); margins "
            "hold for the model that they were found on alone: predict its questions again with "
            "the same flags"
        )
    if differ is None and hosts.is_first():
        print(
            f"warning: {found}: no {PREDICTIONS}.run.json beside it tells which model made it; "
            "margins hold for that model alone",
            file=sys.stderr,
        )


def _widened(answer: Answer, margins: Margins) -> Answer:
    def answers(source: RecordSource) -> Iterator[dict[str, Any]]:
        return margins.widen(answer(source))

    return answers


def _named(answer: Answer, names: Mapping[str, str | None]) -> Answer:
    """Boxes of what a question was about before it was put in other words, by question."""

    def answers(source: RecordSource) -> Iterator[dict[str, Any]]:
        for line in answer(source):
            name = names.get(line["question_id"])
            yield {**line, **({"labels": [name] * len(line["boxes"])} if name else {})}

    return answers


def _reworded(questions: RecordSource, kind: str, out: Path) -> RecordSource:
    """The questions that can be put so, in other words."""
    asked = out.with_name(out.name + ".questions.jsonl")
    if hosts.is_first():
        said = [(record, reword(record, kind)) for _, record in questions.records()]
        changed = [new for old, new in said if new.question != old.question]
        if not changed:
            raise UserError(f"--reword={kind}: none of {len(said):,} questions has other words")
        kept = [new for old, new in said if kind != "unknown" or new.question != old.question]
        write_records(asked, kept)
        print(f"{asked}: {len(changed):,} of {len(said):,} questions in other words ({kind})")
    hosts.wait_for_all(f"{asked.name} written")
    return RecordSource(asked, questions.image_root)
