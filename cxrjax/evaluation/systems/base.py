"""The base of all systems: how they start, and how they answer turn by turn and seed by seed."""

import collections
import contextlib
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cxrjax.distributed import hosts
from cxrjax.errors import UserError
from cxrjax.evaluation.flags import PredictFlags
from cxrjax.files import read_json_lines, writing
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.lock import file_lock
from cxrjax.progress import progress_bar, waiting
from cxrjax.records import QARecord, strip_answers, write_records

# One line of predictions, in the form that `cxrjax.evaluation.predictions` reads.
Line = Mapping[str, Any]
# History of a later turn: answers of the questions file, or the system's own.
GOLD, SELF = "gold", "self"
Predict = Callable[[RecordSource], Iterable[Line]]


def predict_in_turns(
    source: RecordSource, predict: Predict, joined: Path, history: str = GOLD
) -> Iterator[Line]:
    """Yields lines of predictions for all questions, earlier turns first.

    A question whose history has an answer of null waits for the line of that earlier question, and
    is then asked with the system's own text as the answer. So does one of a records file, with
    answers, whatever its history is: reference answers stay unseen. The line of a later turn has
    its kind under `history`: "gold" or "self".

    Args:
        predict: source -> a line with `question_id` and `text` for each of its questions.
        joined: file for the questions that waited, as they were asked; on storage that all
            processes share.
        history: kind of the closed histories of the source's questions.

    Raises:
        UserError: a question continues one that is not in the file.
    """
    asked_as = ((i, strip_answers(r) if r.answers else r) for i, r in source.records())
    open_turns, later = {}, set()
    with waiting(f"looking for dialogues in {source.path}"):
        for index, record in asked_as:
            if _open_turns(record):
                open_turns[index] = record
            elif record.history:
                later.add(record.question_id)

    def said(line: Line) -> Line:
        return {**line, "history": history} if line["question_id"] in later else line

    if not open_turns:
        yield from map(said, predict(source))
        return
    asked = {record.question_id for _, record in source.records()}
    for index, record in open_turns.items():
        for question_id in _open_turns(record):
            if question_id not in asked or question_id == record.question_id:
                raise UserError(
                    f"{source.where(index)}: continues {question_id}, which is not in the file; "
                    "ask both in one questions file, or join an answer to history"
                )
    if len(open_turns) == source.num_questions:
        raise UserError(f"{source.path}: every question continues another; expected a first turn")
    answers: dict[str, str] = {}
    for line in predict(source.without(open_turns)):
        answers[line["question_id"]] = line["text"]
        yield said(line)
    if hosts.is_first():
        write_records(joined, (join_answers(record, answers) for record in open_turns.values()))
    hosts.wait_for_all(f"{joined.name} written")
    rest = RecordSource(joined, source.image_root, source.questions_per_image)
    yield from predict_in_turns(rest, predict, joined.with_suffix(".next.jsonl"), SELF)


def join_answers(record: QARecord, answers: Mapping[str, str]) -> QARecord:
    """The record with the open turns of its history answered where `answers` has them."""
    history = [
        turn.model_copy(update={"answer": answers.get(turn.question_id)})
        if turn.answer is None
        else turn
        for turn in record.history
    ]
    return record.model_copy(update={"history": history})


def _open_turns(record: QARecord) -> list[str]:
    """Ids of the earlier questions whose answers are not there."""
    return [turn.question_id for turn in record.history if turn.answer is None]


# Questions -> a line for each, in any order; every process gives all. A dialogue is asked in
# turns: one call for each turn.
Answer = Callable[[RecordSource], Iterable[Line]]


@dataclass(frozen=True)
class Starter:
    """The functions that start a system of `--runner`."""

    # Options of `predict` -> the system. Called once; loads the model.
    start: Callable[[PredictFlags], Answer]
    needs: tuple[str, ...] = ()  # required flags
    # The same for systems that can sample: flags -> seed -> the system.
    sample: Callable[[PredictFlags], Callable[[int | None], Answer]] | None = None
    # Describes what a run would send and cost, without running.
    estimate: Callable[[PredictFlags, RecordSource], str] | None = None


def answer_all(questions: RecordSource, answer: Answer, out: Path) -> collections.Counter[str]:
    """Writes a line for each question, the whole file or none; only the first process writes.

    Args:
        out: the predictions file. Questions of later turns are left in OUT.turns.jsonl, as asked.

    Returns:
        How many lines have which `parse`.

    Raises:
        UserError: the system fails, a question continues one that is not in the file, `out` cannot
            be written, or another process is writing it.
    """
    with hosts.held_by_first(file_lock(out)):
        return _write_answers(questions, answer, out)


def _write_answers(questions: RecordSource, answer: Answer, out: Path) -> collections.Counter[str]:
    lines = predict_in_turns(questions, answer, out.with_name(out.name + ".turns.jsonl"))
    if not hosts.is_first():
        return collections.Counter(line["parse"] for line in lines)
    partial = out.with_name(out.name + ".partial")
    found: collections.Counter[str] = collections.Counter()
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        file = partial.open("w", encoding="utf-8")
    try:
        for line in progress_bar(
            lines, total=questions.num_questions, unit="question", desc=out.stem
        ):
            with writing(out):
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            found[line["parse"]] += 1
        with writing(out):
            file.flush()
    finally:
        with contextlib.suppress(OSError):  # which closing repeats
            file.close()
    with writing(out):
        partial.replace(out)
    return found


def check_seeds(seeds: Sequence[int] | None, samples: bool) -> None:
    """Refuses sampling without seeds, and seeds without sampling.

    Raises:
        UserError: one without the other.
    """
    if samples and not seeds:
        raise UserError(
            "sampled answers differ from run to run: give at least three seeds, as --seeds=0,1,2, "
            "or --temperature=0 for the likeliest answer"
        )
    if seeds and not samples:
        raise UserError("--seeds is about sampling, and --temperature is 0; set one, such as 1")


def run_file(out: Path, seed: int | None) -> Path:
    """`out`, or for a seed the file of its run: p.jsonl -> p.seed0.jsonl."""
    return out if seed is None else out.with_suffix(f".seed{seed}{out.suffix}")


def answer_seeds(
    questions: RecordSource,
    sampler: Callable[[int | None], Answer],
    out: Path,
    seeds: Sequence[int],
) -> list[Path]:
    """Answers all questions once for each seed and returns the files.

    Raises:
        UserError: the system fails.
    """
    files = [run_file(out, seed) for seed in seeds]
    for seed, file in zip(seeds, files, strict=True):
        answer_all(questions, sampler(seed), file)
    return files


def describe_spread(files: Sequence[Path]) -> str:
    """The spread of several runs' answers, in one line.

    Args:
        files: predictions of the same questions.
    """
    texts: dict[str, list[bytes]] = {}
    boxes, failures = np.zeros(len(files)), np.zeros(len(files))
    for run, file in enumerate(files):
        for _, line in read_json_lines(file, "predictions", "predict again"):
            # A hash of each: the texts of many runs may be more than memory holds.
            digest = hashlib.sha256(line["text"].encode()).digest()[:8]
            texts.setdefault(line["question_id"], []).append(digest)
            boxes[run] += len(line["boxes"])
            failures[run] += line["parse"] != "ok"
    pairs = [a == b for said in texts.values() for a, b in itertools.combinations(said, 2)]
    same = [len(set(said)) == 1 for said in texts.values()]
    per_question = boxes / len(texts)
    return (
        f"{len(files)} runs of {len(texts):,} questions: {np.mean(same):.1%} answered in the same "
        f"words by all, {np.mean(pairs):.1%} by two; boxes a question "
        f"{per_question.mean():.2f} (standard deviation over runs {per_question.std(ddof=1):.2f}); "
        f"answers that failed to parse {failures.mean():.1f} ({failures.std(ddof=1):.1f})"
    )
