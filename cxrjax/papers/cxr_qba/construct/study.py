"""The input of a scene graph's construction: a report, and regions on the images."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from cxrjax.papers.cxr_qba.construct.extraction import ReportSections

FRONTAL_VIEWS = ("PA", "AP")

Box = tuple[float, float, float, float]


@dataclasses.dataclass(frozen=True)
class StudyImage:
    """One image of a study.

    Attributes:
        image_hw: (height, width) in pixels, None where it is not known.
        view: as DICOM's ViewPosition has it (PA, AP, LATERAL, LL), "" where it is not known.
        boxes: region -> boxes, pixels of the original image, xyxy.
        masks: region -> [height, width] bool, of the whole image.
        path: where the file is, relative to the data set's root.
    """

    image_id: str
    image_hw: tuple[int, int] | None = None
    view: str = ""
    orientation: str = ""
    boxes: Mapping[str, tuple[Box, ...]] = dataclasses.field(default_factory=dict)
    masks: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    path: str = ""

    @property
    def frontal(self) -> bool:
        """Whether it is a frontal view."""
        return self.view.upper() in FRONTAL_VIEWS


@dataclasses.dataclass(frozen=True)
class SourceStudy:
    """One study: a pure input of construction.

    Attributes:
        split: train, validation or test; "" where the source does not say.
    """

    patient_id: str
    study_id: str
    report: ReportSections
    images: tuple[StudyImage, ...] = ()
    split: str = ""
