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
    """One thing observed, in free values."""

    # `name`, `summary_sentence`: without mention of change.
    name: str
    summary_sentence: str
    entity: tuple[str, ...]  # what is observed; several where one statement is about several
    regions: tuple[str, ...] = ()
    side: str = ""  # left, right, both or ""
    positive: bool = True
    # The report's words of certainty, "" where it simply states; from a language model a number, 0
    # (denied) to 1 (stated).
    probability: str = ""
    certainty: str = "certain"  # certain, likely or uncertain
    # (type, value) pairs; types temporal, severity, texture, spread.
    modifiers: tuple[tuple[str, str], ...] = ()
    distances: tuple[str, ...] = ()  # to a landmark, as "4 cm above the carina"
    change: tuple[str, ...] = ()
    change_sentence: str = ""  # a full sentence on the change, or ""
    children: tuple["Observation", ...] = ()  # what it is taken for ("opacity, likely pneumonia")
    sentence_ids: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Indication:
    """The reason for the study."""

    indication_summary: str
    patient_info: str
    indication: str
    evaluation: str
    sentence_ids: tuple[str, ...] = ()
    # `answer_sentence_ids`, `answer`: the sentences that answer it, and in words; empty where rules
    # choose observations.
    answer_sentence_ids: tuple[str, ...] = ()
    answer: str = ""


@dataclasses.dataclass(frozen=True)
class Extraction:
    """All of a report."""

    sentences: tuple[NumberedSentence, ...]
    observations: tuple[Observation, ...]
    indication: Indication | None = None
    # Ids of sentences of the observed sections without any observation.
    silent: tuple[str, ...] = ()
    # Warnings for quality.json -> how often.
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
    """One image of a study."""

    image_id: str
    image_hw: tuple[int, int] | None = None  # (height, width) in pixels
    view: str = ""  # as DICOM's ViewPosition has it (PA, AP, LATERAL, LL), "" where it is not known
    orientation: str = ""
    # Region -> boxes, pixels of the original image, xyxy.
    boxes: Mapping[str, tuple[Box, ...]] = dataclasses.field(default_factory=dict)
    # Region -> [height, width] bool, of the whole image, all at one size.
    masks: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    path: str = ""  # of the file, relative to the data set's root
    regions_key: str = ""  # changes with the files that boxes and masks come from; "" without files

    @property
    def frontal(self) -> bool:
        """True for a frontal view."""
        return self.view.upper() in FRONTAL_VIEWS


@dataclasses.dataclass(frozen=True)
class SourceStudy:
    """One study: a pure input of construction."""

    patient_id: str
    study_id: str
    report: ReportSections
    images: tuple[StudyImage, ...] = ()
    split: str = ""  # train, validation or test; "" where the source does not say
    # Sorts a patient's studies by when they were made; "" where the source does not say.
    date: str = ""
