"""Flags of boxes from any tool, apart from what reads them, so that their help is quick."""

import dataclasses
from pathlib import Path
from typing import Literal

from cxrjax.apps.annotations.annotation import WORDS, Stated
from cxrjax.apps.annotations.coordinates import Form
from cxrjax.choices import ANNOTATION_FORMATS
from cxrjax.errors import UserError
from cxrjax.records_io.builder import SourceOptions

_ROLES = (*WORDS["columns"], "box")


@dataclasses.dataclass(frozen=True)
class BoxesOptions(SourceOptions):
    """Flags of boxes from any tool: `source` is a folder with images and annotations, the one file
    of annotations in it, or a zip. --input is another word for --source.

    Attributes:
        format: of the annotations, such as coco or csv; auto: detected.
        images: folder of the images, where they do not lie in the source.
        columns: of a table, such as image=file,label=finding,box=x1+y1+x2+y2,patient=id,reader=who.
        box_form: form of four numbers, where the files do not state it.
        units: of the boxes, where the files do not state them.
        label: class of all boxes, where the files name none.
        classes: names by number, separated by commas (YOLO from 0, masks from 1).
        patient: pattern of which the first group is the patient in an image's path.
        readers: several readers of an image: fuse boxes of one lesion, keep lesions of a majority,
            keep the boxes of any reader unmerged, or those of the reader of this name.
        split: keep the splits of the source, or draw them again.
        predictions_as_labels: confidence from which on a model's boxes are used as labels.
        negatives: ask if a class is there, as often of images without it as of others; none: where
            not everything was marked, do not ask.
        unlisted: images that the annotations do not name: left out, or nothing is there.
        accept: write, in spite of doubts; somebody has inspected the page.
    """

    format: str = "auto"
    images: Path | None = None
    columns: str = ""
    box_form: Form | None = None
    units: Literal["pixels", "fractions", "percent", "thousandths"] | None = None
    label: str = ""
    classes: str = ""
    patient: str = ""
    readers: str = "fuse"
    split: Literal["keep", "again"] = "keep"
    predictions_as_labels: float | None = None
    negatives: Literal["balanced", "none"] = "balanced"
    unlisted: Literal["skip", "negative"] = "skip"
    accept: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.format not in ("auto", *ANNOTATION_FORMATS):
            raise UserError(
                f"--format={self.format}: expected auto, {', '.join(ANNOTATION_FORMATS)}"
            )
        least = self.predictions_as_labels
        if least is not None and not 0 <= least <= 1:
            raise UserError(f"--predictions_as_labels={least}: expected 0 to 1")

    def said(self) -> Stated:
        """Returns the flags that readers of annotations use.

        Raises:
            UserError: --columns is not NAME=COLUMN,NAME=COLUMN.
        """
        columns = {}
        for pair in filter(None, self.columns.split(",")):
            role, sign, name = pair.partition("=")
            if not sign or role not in _ROLES:
                raise UserError(f"--columns={self.columns}: {pair!r}; expected {', '.join(_ROLES)}")
            columns[role] = name
        classes = tuple(name.strip() for name in self.classes.split(",") if name.strip())
        return Stated(self.box_form, self.units, columns, self.label, classes)
