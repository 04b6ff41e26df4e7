"""The work of `predict`: questions, perhaps in other words, and a line of predictions for each."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cxrjax.distributed import hosts
from cxrjax.errors import UserError
from cxrjax.evaluation import conformal
from cxrjax.evaluation.conformal import PREDICTIONS, Margins
from cxrjax.evaluation.flags import PredictFlags
from cxrjax.evaluation.run_record import check_same_model, write_prediction_record
from cxrjax.evaluation.systems import base, table
from cxrjax.evaluation.systems.base import Answer
from cxrjax.files import read_json_lines
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.input_pipeline.wording import UNKNOWN_ANSWER, reword, says_unknown
from cxrjax.progress import waiting
from cxrjax.records import write_records


def predict(flags: PredictFlags) -> str:
    """Predicts, and writes the predictions and how they were made.

    Returns:
        The lines to print; empty in all processes but the first.

    Raises:
        UserError: flags, questions or a model that cannot be used.
    """
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
    margins, about = _margins(flags, flags.conformal, questions) if flags.conformal else (None, {})
    if flags.dry_run:
        return table.estimate_run(flags, questions)
    if flags.seeds:
        return _predict_seeds(flags, questions, names)
    answer = _named(table.start_system(flags), names)
    if margins:
        answer = _widened(answer, margins)
    found = base.answer_all(questions, answer, flags.out)
    if not hosts.is_first():
        return ""
    settings = table.resolved_settings(flags) | about
    write_prediction_record(flags.out, flags.questions, flags, settings)
    return _describe(flags, found)


def _describe(flags: PredictFlags, found: Counter[str]) -> str:
    faults = ", ".join(f"{n:,} {name}" for name, n in found.most_common() if name != "ok")
    told = f"{flags.out}: {found.total():,} predictions" + f" ({faults})" * bool(faults)
    if flags.reword == "unknown":
        lines = read_json_lines(flags.out, "predictions", "predict again")
        unknown = sum(says_unknown(line["text"]) for _, line in lines)
        told += f"\n{unknown:,} of {found.total():,} answered {UNKNOWN_ANSWER!r}"
    return told


def _predict_seeds(
    flags: PredictFlags, questions: RecordSource, names: Mapping[str, str | None]
) -> str:
    """Writes a file of predictions for each seed and describes their spread."""
    sampler = table.start_sampler(flags)
    seeds = flags.seeds or ()
    files = base.answer_seeds(
        questions, lambda seed: _named(sampler(seed), names), flags.out, seeds
    )
    if not hosts.is_first():
        return ""
    resolved = table.resolved_settings(flags)
    for file, seed in zip(files, seeds, strict=True):
        write_prediction_record(file, flags.questions, flags, resolved | {"seed": seed})
    listed = ", ".join(map(str, files))
    return f"{base.describe_spread(files)}\n{listed}: give all of them to score"


def _margins(
    flags: PredictFlags, of_others: Path, questions: RecordSource
) -> tuple[Margins, dict[str, Any]]:
    """The margins of --conformal, and what the run's record says of them."""
    cover = 0.9 if flags.cover is None else flags.cover
    found = of_others / PREDICTIONS
    known = check_same_model(found, flags, table.resolved_settings(flags))
    if not known and hosts.is_first():
        print(
            f"warning: {found}: no {PREDICTIONS}.run.json beside it tells which model made it; "
            "margins hold for that model alone",
            file=sys.stderr,
        )
    asked = (record for _, record in questions.records())
    margins, answered = conformal.calibrate(of_others, cover, asked)
    rows = conformal.check_coverage(answered, margins)
    if hosts.is_first():
        print(margins.describe())
        print(conformal.coverage_table(rows))
    halves = [asdict(row) for row in rows]
    return margins, {"cover": cover, "margins": margins.to_json() | {"halves": halves}}


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
