"""Options of `review`; importing them loads no library."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cxrjax.apps.review import reader_names
from cxrjax.cli import input_sizes
from cxrjax.errors import UserError
from cxrjax.flags import Flag, InFiles, InFolder
from cxrjax.paths import local_path


def _local(text: str) -> Path:
    return local_path(text, "a review's database and locks")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReviewFlags:
    """Records to review, their readers, and the files to write.

    Attributes:
        records: records file, built folder with records/, or data_v1.json; may be repeated
        sheets: a filled sheet; give two or more
        readers: box table or records
        out: folder to write to
        check: check the records instead of drawing a sample
        predictions: predictions to review; a second system's to compare them with
        serve: serve the sample to readers
        export: write the set as the review in --out has it
        codec: box format of --predictions, and of the model that learns from --export's pairs
        letterbox: its inputs, where images are padded to them (default: they are stretched)
        reader: who reads, for --serve; may be repeated
        host: of --serve (default 127.0.0.1: this machine alone)
        port: of --serve (default 8765; 0: any free one)
        allowed_host: name of a proxy before --serve
        source: box table of findings and boxes
        allow_leakage: report what splits share without failing
        sample: questions to review (default: at most 100)
        consensus: the consensus file, filled in
        image_root: what image_path is relative to (data/README.md)
        seed: of the sample and the bootstrap
        resamples: bootstrap resamples
        processes: workers for images
    """

    records: Annotated[Sequence[Path], Flag("PATH")] = ()
    sheets: Annotated[Sequence[Path], Flag("CSV")] = ()
    readers: Annotated[Path | None, Flag("PATH")] = None
    out: Annotated[Path, Flag("DIR", _local)]
    check: bool = False
    predictions: InFiles = ()
    serve: bool = False
    export: InFolder = None
    codec: str = "paligemma"
    letterbox: Annotated[Sequence[tuple[int, int]], Flag("HxW[,HxW...]", input_sizes)] = ()
    reader: Annotated[Sequence[str], Flag("NAME")] = ()
    host: str = "127.0.0.1"
    port: int = 8765
    allowed_host: Annotated[Sequence[str], Flag("NAME")] = ()
    source: Annotated[Path | None, Flag("TABLE")] = None
    allow_leakage: bool = False
    sample: Annotated[int | None, Flag("N")] = None
    consensus: Annotated[Path | None, Flag("CSV")] = None
    image_root: Path | None = None
    seed: int = 0
    resamples: int = 1000
    processes: int = os.cpu_count() or 1

    def __post_init__(self) -> None:
        if self.sheets and not 2 <= len(self.sheets) <= reader_names.MOST_READERS:
            most = reader_names.MOST_READERS
            raise UserError(f"{len(self.sheets)} --sheets: expected 2 to {most}")
        if len(self.predictions) > 2:
            raise UserError(f"{len(self.predictions)} --predictions: expected one or two")
        for name, needs, there in (
            ("check", "--records", self.records),
            ("source", "--check", self.check),
            ("allow_leakage", "--check", self.check),
            ("consensus", "--sheets", self.sheets),
            ("serve", "--records", self.records and not self.check),
            ("export", "--records", self.records and not self.check and not self.serve),
            ("predictions", "--records", self.records and not self.check),
            ("reader", "--serve or --export", self.serve or self.export),
            ("allowed_host", "--serve", self.serve),
        ):
            if getattr(self, name) and not there:
                raise UserError(f"--{name} needs {needs}")
        if self.serve and (fault := reader_names.find_fault(list(self.reader))):
            raise UserError(fault)
        least = 1 if self.sample is None else self.sample
        if min(self.resamples, self.seed) < 0 or min(self.processes, least) < 1:
            raise UserError(
                "--sample and --processes must be at least 1, --resamples and --seed at least 0"
            )
