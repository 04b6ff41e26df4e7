"""Layout of a folder of shards: its place, and the columns that questions are chosen by."""

from pathlib import Path

FOLDER = "records"
# What `data.select` may name; an empty cell is what the record lacks.
SELECTABLE = ("view", "question_type", "question_strategy", "finding", "grade", "extraction_grade",
              "surrogate_grade")  # fmt: skip


def is_sharded(directory: Path) -> bool:
    """Returns whether a folder has questions in shards."""
    return next((directory / FOLDER).glob("*.array_record"), None) is not None
