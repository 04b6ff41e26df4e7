"""The release's own files of a study: its scene graph, and its questions (`<study>.qa.json`)."""

import functools
from collections.abc import Iterator
from typing import Annotated, Any

import pydantic

from cxrjax.records_io.statistics import load_statistics

Number = int | float
PixelBox = Annotated[list[Number], pydantic.Field(min_length=4, max_length=4)]


_ID_LETTERS = {"patient_id": "p", "study_id": "s"}


def path_id(letter: str, value: Any) -> str:
    """An id as paths have it (`p10000032`), whether or not it stands there with its letter."""
    text = str(value)
    return letter + text if text.isdecimal() else text


class Native(pydantic.BaseModel):
    """An object of the release's files."""

    model_config = pydantic.ConfigDict(extra="allow")

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _read(cls, content: Any, handler: pydantic.ModelWrapValidatorHandler["Native"]) -> "Native":
        """Takes null for a field that is never null as if it were missing, and ids without their
        letter; `to_json` writes both as they were."""
        if not isinstance(content, dict):
            return handler(content)
        found: dict[str, Any] = {
            n: v for n, v in content.items() if v is None and n in _never_null(cls)
        }
        changed = {n: v for n, v in content.items() if n not in found} if found else content
        for name in _ID_LETTERS.keys() & cls.model_fields.keys() & content.keys():
            value = content[name]
            if isinstance(value, int | str) and value != path_id(_ID_LETTERS[name], value):
                found[name] = value
                changed = {**changed, name: path_id(_ID_LETTERS[name], value)}
        made = handler(changed)
        if found:
            # Written after the fields, so that these take their place; no attribute reads them.
            made.__pydantic_extra__ = {**(made.__pydantic_extra__ or {}), **found}
        return made

    def to_json(self, whole: bool = False) -> dict[str, Any]:
        """The object as it stands in a file.

        Args:
            whole: write fields that nobody set, too: for what was constructed here. What was read
                is written with the fields that it had.
        """
        return self.model_dump(mode="json", exclude_unset=not whole)


@functools.cache
def _never_null(kind: type[Native]) -> frozenset[str]:
    """Fields that may be missing, and are no null where they are."""
    fields = kind.model_fields.items()
    return frozenset(n for n, f in fields if not f.is_required() and f.get_default() is not None)


class NativeSentence(Native):
    """A sentence of the report."""

    sent_id: str
    section: str
    section_type: str
    sentence: str


class NativeLocalization(Native):
    """The place of something on one image."""

    image_id: str
    localization_reference_ids: list[str] = []  # regions that the boxes were taken from
    bboxes: list[PixelBox] = []  # pixels of the original image, xyxy
    instance_mask_ids: list[Any] = []
    missing_localization: list[str] = []  # regions without a box on this image
    is_fallback: bool = False  # whether the boxes are of a more general region
    localization_quality: Any = None


class ObservedRegion(Native):
    """A region of an observation."""

    region: str
    distances: list[Any] = []


class NativeObservation(Native):
    """A node: one thing observed."""

    obs_id: str
    name: str
    summary_sentence: str = ""
    child_type: str | None = None
    child_level: int = 0
    regions: list[ObservedRegion] = []
    non_resolved_regions: list[str] = []
    laterality: str | None = None
    default_regions: list[Any] = []
    obs_entities: list[str] = []
    obs_entities_parents: list[str] = []
    non_resolved_obs_entities: list[str] = []
    obs_categories: list[str] = []
    obs_subcategories: list[str] = []
    probability: Any = None
    certainty: str | None = None
    positiveness: str = "pos"
    modifiers: dict[str, list[str]] = {}
    changes: list[str] = []
    change_sentence: str | None = None
    from_report: bool = True
    obs_quality: dict[str, Any] = {}
    localization: dict[str, NativeLocalization] = {}

    @property
    def positive(self) -> bool:
        """Returns whether the observation is stated as present."""
        return self.positiveness == "pos"

    @property
    def region_names(self) -> list[str]:
        """Names of its regions."""
        return [entry.region for entry in self.regions]


class NativeIndication(Native):
    """The reason for the study, and what answers it."""

    indication_summary: str | None = None
    patient_info: str | None = None
    indication: str | None = None
    evaluation: str | None = None
    associated_sentence_ids: list[str] = []
    associated_obs_ids: list[str] = []
    answer_for_indication: NativeObservation | None = None


class NativeRegion(Native):
    """A node: an anatomical region."""

    region: str
    laterality: str | None = None
    localization: dict[str, NativeLocalization] = {}
    region_localization_quality: Any = None


class LocatedAt(Native):
    """An edge from an observation to a region."""

    region: str
    observation_id: str
    distances: list[Any] = []
    where_specified: Any = None


class ObservationRelation(Native):
    """An edge between observations."""

    parent_observation_id: str
    child_observation_id: str
    child_type: str | None = None


class SentenceRelation(Native):
    """An edge from an observation to a sentence."""

    observation_id: str
    sentence_id: str


class RegionRelation(Native):
    """An edge between regions."""

    region: str
    related_region: str
    relation_type: str


class StudySceneGraph(Native):
    """All of a study."""

    patient_id: str
    study_id: str
    sentences: dict[str, NativeSentence] = {}
    top_level_obs_ids: list[str] = []
    observations: dict[str, NativeObservation] = {}
    indication: NativeIndication | None = None
    regions: dict[str, NativeRegion] = {}
    located_at_relations: list[LocatedAt] = []
    obs_relations: list[ObservationRelation] = []
    obs_sent_relations: list[SentenceRelation] = []
    region_region_relations: list[RegionRelation] = []
    study_quality: dict[str, Any] = {}
    study_img_localization_quality: dict[str, Any] = {}

    def children(self, obs_id: str) -> list[str]:
        """Observations below this one."""
        return [
            edge.child_observation_id
            for edge in self.obs_relations
            if edge.parent_observation_id == obs_id
        ]


_STRATEGIES = {"A": "indication", "B": "abnormal", "C": "region_abnormal", "D": "finding"}
# question_type -> strategy.
_PRINTED = load_statistics(str(__package__))
QUESTION_TYPES = {kind: _STRATEGIES[kind[0]] for kind in _PRINTED["types"]}

# Of pairs of studies, which the release does not have: question_type -> strategy.
LONGITUDINAL_TYPES = dict.fromkeys(_PRINTED["longitudinal"]["types"], "longitudinal")


class NativeAnswer(Native):
    """One part of an answer, with its own parts below it."""

    answer_id: str
    answer_type: str
    answer_level: int = 0
    text: str
    name_tag: str | None = None
    laterality: str | None = None
    regions: list[str | dict[str, Any]] = []
    obs_entities: list[str] = []
    obs_entities_parents: list[str] = []
    obs_categories: list[str] = []
    obs_subcategories: list[str] = []
    certainty: str | None = None
    positiveness: str | None = None
    modifiers: list[list[str]] = []
    localization: dict[str, NativeLocalization] = {}
    sub_answers: list["NativeAnswer"] = []
    from_report: bool = True
    extraction_quality: dict[str, Any] = {}
    answer_quality: dict[str, Any] = {}


class NativeQuestion(Native):
    """A question with its answers."""

    question_id: str
    question_type: str
    question_strategy: str
    variables: dict[str, Any] = {}
    obs_ids: list[str] = []
    contains_report_answers: bool = False
    contains_template_answers: bool = False
    extraction_quality: dict[str, Any] = {}
    question_img_localization_quality: dict[str, Any] = {}
    question: str
    answers: list[NativeAnswer] = []
    question_quality: dict[str, Any] = {}

    @pydantic.field_validator("question_quality")
    @classmethod
    def _grades_are_texts(cls, rated: dict[str, Any]) -> dict[str, Any]:
        surrogate = rated.get("surrogate", {})
        if not isinstance(surrogate, dict):
            raise ValueError("surrogate is no object")
        grades = rated.get("extraction_grade"), surrogate.get("grade")
        if not all(isinstance(grade, str | None) for grade in grades):
            raise ValueError("a grade is no text")
        return rated

    def all_answers(self) -> Iterator[NativeAnswer]:
        """Answers and their sub-answers, each before what is below it."""
        yield from walk(self.answers)


class StudyQuestions(Native):
    """All questions of a study."""

    patient_id: str
    study_id: str
    questions: list[NativeQuestion] = []


def walk(answers: list[NativeAnswer]) -> Iterator[NativeAnswer]:
    """Answers and their sub-answers, each before what is below it."""
    for answer in answers:
        yield answer
        yield from walk(answer.sub_answers)
