"""Records of a build, as Python objects."""

import dataclasses
import os
from pathlib import Path
from typing import Any

from cxrjax.paths import AnyPath, to_path
from cxrjax.records import QARecord
from cxrjax.records import read_records as _read_records


@dataclasses.dataclass(frozen=True)
class Build:
    """A folder of records that `build` or `import_boxes` has written. It is taken as a path, too.

    Attributes:
        folder: with records/, questions/, statistics.json, quality.json, manifest.json.
    """

    folder: Path

    def __fspath__(self) -> str:
        return os.fspath(self.folder)

    @property
    def splits(self) -> dict[str, Path]:
        """Returns the records file of each split, "train" and "validation" mostly."""
        return {file.stem: file for file in sorted(self.folder.glob("records/*.jsonl"))}

    def records(self, split: str = "train") -> list[QARecord]:
        """Returns the records of a split.

        Raises:
            UserError: there is no such split.
        """
        return read_records(self, split)

    @property
    def statistics(self) -> dict[str, Any]:
        """Returns the counts of the build beside published ones (statistics.json)."""
        return self._read("statistics.json")

    @property
    def quality(self) -> dict[str, Any]:
        """Returns the rejected records by reason, and the balance of answers (quality.json)."""
        return self._read("quality.json")

    def _read(self, name: str) -> dict[str, Any]:
        from cxrjax.files import read_json_object

        return read_json_object(self.folder / name)


def read_records(source: AnyPath, split: str = "train") -> list[QARecord]:
    """Returns the records of a file, or of one split of a build.

    Raises:
        UserError: it cannot be read, or a line is not a record.
    """
    return list(_read_records(records_of(source, split)))


def records_of(source: AnyPath, split: str) -> Path:
    """Returns the file of records that a file, or a build and a split, mean."""
    path = to_path(source)
    return path / "records" / f"{split}.jsonl" if path.is_dir() else path
