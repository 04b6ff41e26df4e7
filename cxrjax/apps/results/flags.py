"""Options of a results page; importing them loads no library."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cxrjax import choices
from cxrjax.errors import UserError
from cxrjax.flags import Flag, InFile, InFiles, InFolder, OutFolder


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportFlags:
    """Files of a page, and what it shows; None: where `report --help` says that they are.

    Attributes:
        workdir: where the others are by default
        compare: a further work directory, whose systems are beside those of the first; may be
            repeated
        out: for index.html
        title: default: the work directory's name
        predictions: may be repeated
        name: the system's, once for each --predictions, in order
        metrics: figures
        references: records with answers
        training_log: losses and evaluations of a run
        run: what was run
        score: how it was scored
        notes: remarks for readers
        image_root: what image_path is relative to
        codec: reads boxes of predictions that are only text
        benchmark: default: the one that score.json names
        max_images: radiographs shown at most
        pictures: in the page's file, in a folder beside it, or none: only boxes (no image is read)
        full_pictures: radiographs stored beside the page with all their pixels, at most
    """

    workdir: Annotated[Path, Flag("DIR")]
    compare: Annotated[Sequence[Path], Flag("DIR2")] = ()
    out: OutFolder
    title: str | None = None
    predictions: InFiles = ()
    name: Sequence[str] = ()
    metrics: InFile = None
    references: InFile = None
    training_log: InFile = None
    run: InFile = None
    score: InFile = None
    notes: InFile = None
    image_root: InFolder = None
    codec: Annotated[str | None, Flag(choices=choices.CODECS)] = None
    benchmark: str | None = None
    max_images: int = 5000
    pictures: Annotated[str, Flag(choices=choices.PICTURES)] = "auto"
    full_pictures: Annotated[int, Flag("N")] = 1000

    def __post_init__(self) -> None:
        if self.max_images < 1:
            raise UserError(f"--max_images={self.max_images}: expected at least 1")
        if self.full_pictures < 0:
            raise UserError(f"--full_pictures={self.full_pictures}: expected at least 0")

    @property
    def scored_in(self) -> Path:
        """Returns the folder of metrics.json, where `score` wrote."""
        return self.metrics.parent if self.metrics else self.workdir
