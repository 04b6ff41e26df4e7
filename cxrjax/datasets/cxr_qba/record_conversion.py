"""Questions of the release to records and back (one record for each image that is asked about).

Fields that records have no place for are kept under `quality`, which no model sees, so that the way
back gives the same JSON up to the order of keys.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from cxrjax.datasets.cxr_qba import questions as native
from cxrjax.datasets.cxr_qba.ratings import UNRATED, overall_grade
from cxrjax.datasets.cxr_qba.regions import fuse_duplicates
from cxrjax.datasets.cxr_qba.study import StudyImage
from cxrjax.datasets.cxr_qba.surrogate_rating import KEY as SURROGATE
from cxrjax.datasets.quality import PixelBox
from cxrjax.records import Answer, Generator, Provenance, QARecord

EXTRA_FIELDS = "native_fields"
EXTRA_ANSWERS = "native_answers"
EXTRA_STUDY = "native_study"
_TYPES: dict[str, Literal["main", "details", "related"]] = {
    "main_answer": "main",
    "details": "details",
    "related_information": "related",
}
_POLARITIES: dict[str | None, Literal["pos", "neg"]] = {"pos": "pos", "neg": "neg"}
_QUESTION_FIELDS = ("question_id", "question_type", "question_strategy", "question", "answers")
_ANSWER_FIELDS = ("answer_id", "text", "sub_answers")


def to_records(
    study: native.StudyQuestions,
    images: Sequence[StudyImage],
    split: str,
    source: Provenance | None = None,
    generator: Generator | None = None,
    keep_native: bool = True,
) -> Iterator[QARecord]:
    """A record for each question and image; ids are `patient/study/question/image`.

    Args:
        images: the frontal images of the study, usually.
        keep_native: whether records carry what the way back needs; it is more than half of a
            record, and not wanted where the native files lie beside.
    """
    ids = {"patient_id": study.patient_id, "study_id": study.study_id}
    bare = study.model_copy(update={"questions": []}).to_json()
    more = {name: value for name, value in bare.items() if value != ids.get(name, [])}
    of_study = {EXTRA_STUDY: more} if more else {}
    for question in study.questions:
        answers = [_answer(answer) for answer in question.answers]
        quality = _kept(question) | of_study if keep_native else _grades(question)
        grade = overall_grade(question)
        for image in images:
            yield QARecord(
                dataset="cxr_qba",
                split=split,
                patient_id=study.patient_id,
                study_id=study.study_id,
                image_id=image.image_id,
                image_path=image.path or image.image_id,
                image_hw=image.image_hw,
                view=image.view or None,
                question_id=(
                    f"{study.patient_id}/{study.study_id}/{question.question_id}/{image.image_id}"
                ),
                question=question.question,
                question_type=question.question_type,
                question_strategy=question.question_strategy,
                template_id=question.variables.get("template_id"),
                variables=dict(question.variables) or None,
                answers=answers,
                quality=quality,
                grade=None if grade == UNRATED else grade,
                generator=generator,
                provenance=source,
            )


def from_records(records: Iterable[QARecord]) -> list[native.StudyQuestions]:
    """Question files again, studies and questions in order of first appearance."""
    studies: dict[tuple[str, str], dict[str, Any]] = {}
    seen: set[tuple[str, str, str]] = set()
    for record in records:
        patient, study = record.patient_id or "", record.study_id or ""
        question_id = record.question_id.removeprefix(f"{patient}/{study}/")
        question_id = question_id.removesuffix(f"/{record.image_id}")
        content = studies.setdefault(
            (patient, study),
            {
                "patient_id": patient,
                "study_id": study,
                "questions": [],
                **record.quality.get(EXTRA_STUDY, {}),
            },
        )
        if (patient, study, question_id) in seen:
            continue
        seen.add((patient, study, question_id))
        content["questions"].append(
            {
                "question_id": question_id,
                "question_type": record.question_type,
                "question_strategy": record.question_strategy,
                "question": record.question,
                "answers": _native_answers(record.answers, iter(record.quality[EXTRA_ANSWERS])),
                **record.quality[EXTRA_FIELDS],
            }
        )
    return [native.StudyQuestions.model_validate(content) for content in studies.values()]


def _kept(question: native.Question) -> dict[str, Any]:
    return {
        EXTRA_FIELDS: _without(question.to_json(), _QUESTION_FIELDS),
        EXTRA_ANSWERS: [
            _without(answer.to_json(), _ANSWER_FIELDS) for answer in question.all_answers()
        ],
    }


def _grades(question: native.Question) -> dict[str, Any]:
    found = {"extraction_grade": question.question_quality.get("extraction_grade")}
    if surrogate := question.question_quality.get(SURROGATE):
        found["surrogate_grade"] = surrogate["grade"]
    return found


def _answer(answer: native.Answer) -> Answer:
    modifiers = [(pair[0], pair[1]) for pair in answer.modifiers if len(pair) == 2]
    return Answer(
        answer_id=answer.answer_id,
        answer_type=_TYPES.get(answer.answer_type, "related"),
        level=answer.answer_level,
        text=answer.text,
        name_tag=answer.name_tag,
        labels=answer.obs_entities,
        regions=[r if isinstance(r, str) else str(r.get("region", "")) for r in answer.regions],
        polarity=_POLARITIES.get(answer.positiveness, "unk"),
        certainty=answer.certainty,
        modifiers=modifiers,
        boxes_by_image={
            image_id: [list(box) for box in fuse_duplicates([_pixels(box) for box in place.bboxes])]
            for image_id, place in answer.localization.items()
            if place.bboxes
        },
        sub_answers=[_answer(part) for part in answer.sub_answers],
    )


def _pixels(box: Sequence[float]) -> PixelBox:
    return float(box[0]), float(box[1]), float(box[2]), float(box[3])


def _native_answers(
    answers: Sequence[Answer], extras: Iterator[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Answers with their parts; `extras` has a place for each, before what is below it."""
    found = []
    for answer in answers:
        content = {"answer_id": answer.answer_id, "text": answer.text, **next(extras)}
        parts = _native_answers(answer.sub_answers, extras)
        # A leaf may be written without the field, or with null; extras know.
        if parts or content.pop("has_sub_answers", True):
            content.setdefault("sub_answers", parts)
        found.append(content)
    return found


def _without(content: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    left = {name: value for name, value in content.items() if name not in names}
    if "sub_answers" in names and "sub_answers" not in content:
        left["has_sub_answers"] = False
    elif "sub_answers" in names and content["sub_answers"] is None:
        left["sub_answers"] = None
    return left
