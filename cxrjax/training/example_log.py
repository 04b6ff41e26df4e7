"""Logs what every step has read, so that runs can be compared example by example."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from cxrjax.input_pipeline.batch import LoadedBatch
from cxrjax.training.workdir import storage_errors

DIRECTORY = "examples"


class ExampleLog:
    """`examples/<process>_of_<processes>.jsonl` in the workdir.

    A line of JSON for each image of this process: `step`, `row` of the global batch, the
    `question_ids` that were asked about it, and `sha256` over all arrays of the row. A resumed run
    adds lines; steps that are read again are there again, and must say the same.

    Args:
        rows: of each global batch, those that this process loads.
    """

    def __init__(self, workdir: Path, rows: Sequence[int]) -> None:
        directory = workdir / DIRECTORY
        directory.mkdir(exist_ok=True)
        name = f"{jax.process_index()}_of_{jax.process_count()}.jsonl"
        self._path = directory / name
        self._rows = rows

    def write(self, step: int, loaded: LoadedBatch) -> None:
        """Adds the rows of a batch.

        Raises:
            UserError: they cannot be written (a full disk).
        """
        arrays = [np.asarray(x) for x in jax.tree.leaves(loaded.batch)]
        with storage_errors(str(self._path)), open(self._path, "a", encoding="utf-8") as file:
            for local, row in enumerate(self._rows):
                digest = hashlib.sha256()
                for array in arrays:
                    digest.update(array[local].tobytes())
                ids = [i for i in loaded.question_ids[local] if i is not None]
                line = {"step": step, "row": row, "question_ids": ids, "sha256": digest.hexdigest()}
                file.write(json.dumps(line) + "\n")
