"""The base of all runners: how they are started and asked, and what they leave."""

import argparse
import collections
import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tqdm

from cxrjax.distributed import hosts
from cxrjax.files import writing
from cxrjax.input_pipeline.dialogue import predict_in_turns
from cxrjax.input_pipeline.sources import RecordSource

# One line of predictions, in the form that `cxrjax.scoring.predictions` reads.
Line = Mapping[str, Any]
# Questions -> a line for each, in any order; every process gives all. A dialogue is asked in
# turns: one call for each turn.
Answer = Callable[[RecordSource], Iterable[Line]]


@dataclass(frozen=True)
class Runner:
    """One way to answer questions.

    Attributes:
        summary: what it is, a few words for `--help`.
        start: the command's flags -> what answers. Called once; loads what there is to load.
        needs: flags that it cannot run without.
        sample: the same for runners that can sample: flags -> seed -> what answers.
        estimate: what a run would take, without running.
    """

    summary: str
    start: Callable[[argparse.Namespace], Answer]
    needs: tuple[str, ...] = ()
    sample: Callable[[argparse.Namespace], Callable[[int | None], Answer]] | None = None
    estimate: Callable[[argparse.Namespace, RecordSource], str] | None = None


def answer_all(questions: RecordSource, answer: Answer, out: Path) -> collections.Counter[str]:
    """Writes a line for each question, the whole file or none; of several processes the first.

    Args:
        out: the predictions file. Questions of later turns are left in OUT.turns.jsonl, as asked.

    Returns:
        How many lines have which `parse`.

    Raises:
        UserError: what the runner raises, a question continues one that is not in the file, or
            `out` cannot be written.
    """
    lines = predict_in_turns(questions, answer, out.with_name(out.name + ".turns.jsonl"))
    if not hosts.is_first():
        return collections.Counter(line["parse"] for line in lines)
    partial = out.with_name(out.name + ".partial")
    found: collections.Counter[str] = collections.Counter()
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        file = open(partial, "w", encoding="utf-8")  # noqa: SIM115 - closed below
    try:
        for line in tqdm.tqdm(lines, total=questions.num_questions, unit="question", desc=out.stem):
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
