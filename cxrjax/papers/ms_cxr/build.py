"""MS-CXR's file to a folder of records: the file's split where it has one, else 85 % and 15 % of
the patients."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from cxrjax.papers.ms_cxr.native import FINDINGS, find_file, read_native
from cxrjax.records import QARecord
from cxrjax.records_io.builder import Builder, SourceOptions, describe_file
from cxrjax.records_io.split import group_of, hold_out
from cxrjax.records_io.statistics import Published

_PAGE = "PhysioNet's page of MS-CXR: image-sentence pairs"
PAPER = {
    "questions": Published(1162, _PAGE),
    "classes": Published(8, "PhysioNet's page of MS-CXR"),
    **{
        f"finding_questions/{name}": Published(pairs, f"{_PAGE} of this finding")
        for name, pairs in zip(FINDINGS, (61, 333, 117, 46, 82, 96, 182, 245), strict=True)
    },
}


class MsCxrBuilder(Builder[SourceOptions]):
    """Reads the CSV, the JSON, or a folder with one of them."""

    dataset = "ms_cxr"
    options_class = SourceOptions

    def read(self) -> dict[str, list[QARecord]]:
        self.published = PAPER
        file = find_file(self.options.source)
        records = list(read_native(file, self.quality))
        if not records:
            raise self.nothing_left("phrase", "; expected MS-CXR's rows")
        if not any(record.split for record in records):
            return hold_out(records, self.options.seed, f"{file}", "add a column split")
        return self._by_split(records, file.name)

    def _by_split(self, records: Sequence[QARecord], file: str) -> dict[str, list[QARecord]]:
        first_split: dict[str, str] = {}
        splits: dict[str, list[QARecord]] = defaultdict(list)
        for record in records:
            group, split = group_of(record), record.split
            if split and split == first_split.setdefault(group, split):
                splits[split].append(record)
                continue
            where = f"{file}: question {record.question_id}"
            found = f"split is {split!r}; expected one for all rows of {group}, as others have it"
            self.quality.set_aside("split_conflict", record.image_id, where, found)
        return dict(sorted(splits.items()))

    def describe(self) -> dict[str, Any]:
        file = find_file(self.options.source)
        return {"seed": self.options.seed, "source": describe_file(file)}
