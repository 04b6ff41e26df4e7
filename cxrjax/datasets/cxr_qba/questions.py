"""The questions of a study as the release publishes them: `<study>.qa.json`."""

from collections.abc import Iterator
from typing import Any

from cxrjax.datasets.cxr_qba.scene_graph import Localization, Native

# question_type -> strategy.
QUESTION_TYPES = {
    "A_indication": "indication",
    "B01_describe_all": "abnormal",
    "B02_describe_abnormal": "abnormal",
    "B03_is_abnormal": "abnormal",
    "B04_is_normal": "abnormal",
    "B08_describe_subcat": "abnormal",
    "B09_describe_abnormal_subcat": "abnormal",
    "B10_is_abnormal_subcat": "abnormal",
    "B11_is_normal_subcat": "abnormal",
    "B12_describe_device": "abnormal",
    "B13_has_devices": "abnormal",
    "B14_describe_acquisition": "abnormal",
    "B15_describe_imaging_artifacts": "abnormal",
    "B16_has_imaging_artifacts": "abnormal",
    "C01_describe_region": "region_abnormal",
    "C02_describe_abnormal_region": "region_abnormal",
    "C03_is_abnormal_region": "region_abnormal",
    "C04_is_normal_region": "region_abnormal",
    "C07_describe_region_device": "region_abnormal",
    "C08_has_region_device": "region_abnormal",
    "D01_describe_finding": "finding",
    "D02_has_finding": "finding",
    "D03_where_is_finding": "finding",
    "D04_how_severe_is_finding": "finding",
    "D05_describe_device": "finding",
    "D06_has_device": "finding",
    "D07_where_is_device": "finding",
}


class Answer(Native):
    """One part of an answer, with its own parts below it."""

    answer_id: str
    answer_type: str
    answer_level: int = 0
    text: str
    name_tag: str | None = None
    laterality: str | None = None
    regions: list[Any] = []
    obs_entities: list[str] = []
    obs_entities_parents: list[str] = []
    obs_categories: list[str] = []
    obs_subcategories: list[str] = []
    certainty: str | None = None
    positiveness: str | None = None
    modifiers: list[list[str]] = []
    localization: dict[str, Localization] = {}
    sub_answers: list["Answer"] = []
    from_report: bool = True
    extraction_quality: dict[str, Any] = {}
    answer_quality: dict[str, Any] = {}


class Question(Native):
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
    answers: list[Answer] = []
    question_quality: dict[str, Any] = {}

    def all_answers(self) -> Iterator[Answer]:
        """Answers and their sub-answers, each before what is below it."""
        yield from walk(self.answers)


class StudyQuestions(Native):
    """All questions of a study."""

    patient_id: str
    study_id: str
    questions: list[Question] = []


def walk(answers: list[Answer]) -> Iterator[Answer]:
    """Answers and their sub-answers, each before what is below it."""
    for answer in answers:
        yield answer
        yield from walk(answer.sub_answers)
