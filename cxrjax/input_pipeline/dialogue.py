"""Questions that continue others: they can be asked when the earlier ones have been answered."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cxrjax.distributed import hosts
from cxrjax.errors import UserError
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.records import QARecord, strip_answers, write_records

Line = Mapping[str, Any]
# What a later turn was asked on: answers that the questions file has, or the model's own.
GOLD, SELF = "gold", "self"
Predict = Callable[[RecordSource], Iterable[Line]]


def predict_in_turns(source: RecordSource, predict: Predict, joined: Path) -> Iterator[Line]:
    """Lines of predictions for all questions, earlier turns first.

    A question whose history has an answer of null waits for the line of that earlier question, and
    is then asked with its text, the model's own, as the answer. So does one of a records file, with
    answers, whatever its history says: they are not to be looked at. The line of a later turn says
    under `history` which of the two it was asked on: "gold" or "self".

    Args:
        source: questions.
        predict: source -> a line with `question_id` and `text` for each of its questions.
        joined: where to write the questions that had waited, as they were asked; on storage that
            all processes share.

    Raises:
        UserError: a question continues one that is not in the file.
    """
    yield from _in_turns(source, predict, joined, GOLD)


def _in_turns(source: RecordSource, predict: Predict, joined: Path, history: str) -> Iterator[Line]:
    """`predict_in_turns`; `history`: what closed histories of the source's questions are."""
    asked_as = ((i, strip_answers(r) if r.answers else r) for i, r in source.records())
    waiting, later = {}, set()
    for index, record in asked_as:
        if _open_turns(record):
            waiting[index] = record
        elif record.history:
            later.add(record.question_id)

    def said(line: Line) -> Line:
        return {**line, "history": history} if line["question_id"] in later else line

    if not waiting:
        yield from map(said, predict(source))
        return
    asked = {record.question_id for _, record in source.records()}
    for index, record in waiting.items():
        for question_id in _open_turns(record):
            if question_id not in asked or question_id == record.question_id:
                raise UserError(
                    f"{source.where(index)}: continues {question_id}, which is not in the file; "
                    "ask both in one questions file, or join an answer to history"
                )
    if len(waiting) == source.num_questions:
        raise UserError(f"{source.path}: every question continues another; expected a first turn")
    answers: dict[str, str] = {}
    for line in predict(source.without(waiting)):
        answers[line["question_id"]] = line["text"]
        yield said(line)
    if hosts.is_first():
        write_records(joined, (join_answers(record, answers) for record in waiting.values()))
    hosts.wait_for_all(f"{joined.name} written")
    rest = RecordSource(joined, source.image_root, source.questions_per_image)
    yield from _in_turns(rest, predict, joined.with_suffix(".next.jsonl"), SELF)


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
