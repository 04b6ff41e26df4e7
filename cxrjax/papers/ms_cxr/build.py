"""MS-CXR's file to a folder of records: the file's split where it has one, else 85 % and 15 % of
the patients."""

from typing import Any

from cxrjax.papers.ms_cxr.native import FINDINGS, find_file, read_native
from cxrjax.records import QARecord
from cxrjax.records_io.builder import Builder, SourceOptions, describe_file
from cxrjax.records_io.split import by_split
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
        return by_split(records, self.options.seed, f"{file}", "add a column split", self.quality)

    def describe(self) -> dict[str, Any]:
        file = find_file(self.options.source)
        return {"seed": self.options.seed, "source": describe_file(file)}
