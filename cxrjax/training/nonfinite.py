"""Steps whose loss or gradients are not finite: the first one stops a run, or some are left out."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cxrjax.distributed import hosts
from cxrjax.errors import UserError
from cxrjax.training.workdir import storage_errors

FILE_NAME = "nonfinite.jsonl"
# Question ids told on the one line; all of them are in the file.
_IDS_IN_MESSAGE = 20


class NonFiniteSteps:
    """Writes each down with its questions, counts them, and ends the run where they are too many.

    Args:
        workdir: receives nonfinite.jsonl; a resumed run may meet a step again, and write it again.
        limit: how many in a row are left out (`training.skip_nonfinite`).
        log_line: where each is told.
        skipped: left out before a resume.
    """

    def __init__(
        self, workdir: Path, limit: int, log_line: Callable[[str], None], skipped: int = 0
    ) -> None:
        self.limit = limit
        self.skipped = skipped
        self._path = workdir / FILE_NAME
        self._log_line = log_line
        self._in_a_row = 0

    def check(
        self,
        step: int,
        values: Mapping[str, float],
        question_ids: Sequence[str],
        last_checkpoint: Callable[[], int | None],
    ) -> None:
        """Called for every step, in order, by all processes.

        Args:
            values: of the step, the same in all processes.
            question_ids: of this process's rows.
            last_checkpoint: gives its step.

        Raises:
            UserError: one more than may be left out.
        """
        if math.isfinite(values["loss"]) and math.isfinite(values["grad_norm"]):
            self._in_a_row = 0
            return
        found = [i for part in hosts.gather(list(question_ids)) for i in part]
        if hosts.is_first():
            finite = {name: v if math.isfinite(v) else None for name, v in values.items()}
            line = json.dumps({"step": step, "question_ids": found, "values": finite})
            with storage_errors(str(self._path)), open(self._path, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        hosts.wait_for_all(f"{FILE_NAME} written")
        what = f"step {step}: loss {values['loss']}, gradient norm {values['grad_norm']}"
        ids = ", ".join(found[:_IDS_IN_MESSAGE])
        if len(found) > _IDS_IN_MESSAGE:
            ids += f" and {len(found) - _IDS_IN_MESSAGE} more (all in {self._path})"
        if self._in_a_row < self.limit:
            self._in_a_row += 1
            self.skipped += 1
            self._log_line(f"{what}; left out ({self._in_a_row} in a row), with questions: {ids}")
            return
        last = last_checkpoint()
        kept = "no checkpoint was made yet" if last is None else f"the last good one is step {last}"
        remedies = "lower optimizer.learning_rate or look at these questions"
        if self.limit:
            what += f", after {self.limit} in a row that were left out"
        else:
            remedies = f"set training.skip_nonfinite, {remedies}"
        raise UserError(f"{what}; stopped ({kept}); {remedies}: {ids}")
