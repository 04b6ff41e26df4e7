"""Input of a construction, a report with its images, and what extractors read of the report.

Values are free text here; graph_construction.py maps them. Extractors are rule_extractor.py and
language_model_extractor.py.
"""

import dataclasses
from collections.abc import Mapping
from typing import Protocol

import numpy as np

# In the order in which they are read.
OBSERVED_SECTIONS = ("findings", "impression")


@dataclasses.dataclass(frozen=True)
class ReportSections:
    """A report's sections, by lower-case name ("findings", "impression", "indication", ...)."""

    sections: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class NumberedSentence:
    """One sentence; `section` is the report's word for its section, `section_type` its kind."""

    sent_id: str
    section: str
    section_type: str
    text: str


@dataclasses.dataclass(frozen=True)
class Observation:
    """One thing observed, in free values.

    Attributes:
        name, summary_sentence: without mention of change.
        entity: what is observed; several where one statement is about several.
        side: left, right, both or "".
        probability: the report's words of certainty, "" where it simply states; from a language
            model a number, 0 (denied) to 1 (stated).
        certainty: certain, likely or uncertain.
        modifiers: (type, value) pairs; types temporal, severity, texture, spread.
        distances: to a landmark, as "4 cm above the carina".
        change_sentence: a full sentence on the change, or "".
        children: what it is taken for ("opacity, likely pneumonia").
    """

    name: str
    summary_sentence: str
    entity: tuple[str, ...]
    regions: tuple[str, ...] = ()
    side: str = ""
    positive: bool = True
    probability: str = ""
    certainty: str = "certain"
    modifiers: tuple[tuple[str, str], ...] = ()
    distances: tuple[str, ...] = ()
    change: tuple[str, ...] = ()
    change_sentence: str = ""
    children: tuple["Observation", ...] = ()
    sentence_ids: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Indication:
    """The reason for the study.

    Attributes:
        answer_sentence_ids, answer: the sentences that answer it, and in words; empty where rules
            choose observations.
    """

    indication_summary: str
    patient_info: str
    indication: str
    evaluation: str
    sentence_ids: tuple[str, ...] = ()
    answer_sentence_ids: tuple[str, ...] = ()
    answer: str = ""


@dataclasses.dataclass(frozen=True)
class Extraction:
    """All of a report.

    Attributes:
        silent: ids of sentences of the observed sections without any observation.
        left_out: warnings for quality.json -> how often.
    """

    sentences: tuple[NumberedSentence, ...]
    observations: tuple[Observation, ...]
    indication: Indication | None = None
    silent: tuple[str, ...] = ()
    left_out: Mapping[str, int] = dataclasses.field(default_factory=dict)


class Extractor(Protocol):
    """Reads a report; the same report gives the same extraction."""

    name: str
    version: str

    def extract(self, report: ReportSections) -> Extraction:
        """Returns the report's sentences, observations and indication."""
        ...


FRONTAL_VIEWS = ("PA", "AP")

Box = tuple[float, float, float, float]


@dataclasses.dataclass(frozen=True)
class StudyImage:
    """One image of a study.

    Attributes:
        image_hw: (height, width) in pixels.
        view: as DICOM's ViewPosition has it (PA, AP, LATERAL, LL), "" where it is not known.
        boxes: region -> boxes, pixels of the original image, xyxy.
        masks: region -> [height, width] bool, of the whole image, all at one size.
        path: of the file, relative to the data set's root.
        regions_key: changes with the files that boxes and masks come from; "" without files.
    """

    image_id: str
    image_hw: tuple[int, int] | None = None
    view: str = ""
    orientation: str = ""
    boxes: Mapping[str, tuple[Box, ...]] = dataclasses.field(default_factory=dict)
    masks: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    path: str = ""
    regions_key: str = ""

    @property
    def frontal(self) -> bool:
        """True for a frontal view."""
        return self.view.upper() in FRONTAL_VIEWS


@dataclasses.dataclass(frozen=True)
class SourceStudy:
    """One study: a pure input of construction.

    Attributes:
        split: train, validation or test; "" where the source does not say.
        date: sorts a patient's studies by when they were made; "" where the source does not say.
    """

    patient_id: str
    study_id: str
    report: ReportSections
    images: tuple[StudyImage, ...] = ()
    split: str = ""
    date: str = ""
