"""Turns a study's questions into records: which become one, and which images they are about."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from cxrjax.errors import UserError
from cxrjax.papers.cxr_qba import native
from cxrjax.papers.cxr_qba.construct import ratings
from cxrjax.papers.cxr_qba.construct.extraction import StudyImage
from cxrjax.papers.cxr_qba.construct.phrases import NOT_MENTIONED
from cxrjax.papers.cxr_qba.construct.regions import fuse_duplicates
from cxrjax.papers.cxr_qba.native import NativeQuestion, StudyQuestions
from cxrjax.records import Answer, EarlierImage, GeneratorInfo, Provenance, QARecord
from cxrjax.records_io.quality import PixelBox, QualityLog

_NOT_FRONTAL = "studies without a frontal image, not exported"
_BELOW = "questions below --least_grade, not exported"
_UNMENTIONED = "questions that the report does not mention, not exported (--include_unmentioned)"
_UNRATED = "questions without a grade, not exported"


@dataclasses.dataclass(frozen=True)
class ExportFilter:
    """Rules for what an export leaves out."""

    least_grade: str = ""  # the worst grade that is exported; "" exports all, unrated ones too
    # Whether grades are the surrogate's; else they are of a language model's verdicts.
    surrogate: bool = False
    # Whether questions are exported whose answer says only that the report does not mention what is
    # asked.
    unmentioned: bool = True

    def apply(
        self, made: StudyQuestions, images: Sequence[StudyImage], quality: QualityLog
    ) -> tuple[StudyQuestions, Sequence[StudyImage]]:
        """The questions of a study that become records, and the images that they are asked of.

        Without a frontal image there are none; where no view is known, the first image stands for
        the study. What is left out is counted in `quality`.
        """
        frontal = [i for i in images if i.frontal]
        if any(i.view for i in images) and not frontal:
            quality.warnings[_NOT_FRONTAL] += 1
            return made, ()
        if images and not frontal:
            quality.warnings["studies without a known view, asked about their first image"] += 1
        elif not images:
            quality.warnings["studies without images, exported under their own id"] += 1
        quality.examined["questions"] += len(made.questions)
        kept = [question for question in made.questions if self._keeps(question, quality)]
        if not self.unmentioned:
            kept = [_of_the_image(question) for question in kept]
        shown = frontal or images[:1] or (StudyImage(made.study_id),)
        return made.model_copy(update={"questions": kept}), shown

    def _keeps(self, question: NativeQuestion, quality: QualityLog) -> bool:
        if not self.unmentioned and is_unmentioned(question):
            quality.warnings[_UNMENTIONED] += 1
            return False
        if not self.least_grade:
            return True
        grade = ratings.overall_grade(question)
        if self.surrogate:
            grade = question.question_quality.get(ratings.SURROGATE, {}).get("grade")
        kept = ratings.at_least(grade, self.least_grade)
        if not kept:
            quality.warnings[_BELOW if grade in ratings.GRADES else _UNRATED] += 1
        return kept


def is_unmentioned(question: NativeQuestion) -> bool:
    """Returns whether all that a question's main answers say is that nothing is mentioned."""
    main = [answer for answer in question.answers if answer.answer_type == "main_answer"]
    return bool(main) and all(answer.certainty == NOT_MENTIONED for answer in main)


def _of_the_image(question: NativeQuestion) -> NativeQuestion:
    """Returns a question without answers on what is not mentioned."""
    answers = [one for one in question.answers if one.certainty != NOT_MENTIONED]
    return question.model_copy(update={"answers": answers})


def nothing_exported(source: Path, quality: QualityLog) -> UserError:
    """Returns the error for an export without questions: why each was left out."""
    why = [f"{quality.warnings[name]} {name}" for name in (_NOT_FRONTAL, _BELOW, _UNRATED)]
    return UserError(
        f"{source}: no question left to export: {'; '.join(why)} (a grade needs the verdicts "
        "completeness and question_clarity of question_quality, and entailment, relevance and "
        "answer_clarity of each answer's answer_quality)"
    )


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
    generator: GeneratorInfo | None = None,
    keep_native: bool = True,
    earlier: Mapping[str, StudyImage] | None = None,
) -> Iterator[QARecord]:
    """A record for each question and image; ids are `patient/study/question/image`.

    Args:
        images: the frontal images of the study, usually.
        keep_native: whether records carry what the way back needs, boxes on a study's other images
            too; it is more than half of a record, and not wanted where the native files lie beside.
            Nor are then the ids of answers, which count their places, and of templates, nor the
            generator, which the manifest names.
        earlier: images of the patient's earlier studies, by id, that questions on change name.
    """
    ids = {"patient_id": study.patient_id, "study_id": study.study_id}
    bare = study.model_copy(update={"questions": []}).to_json()
    more = {name: value for name, value in bare.items() if value != ids.get(name, [])}
    of_study = {EXTRA_STUDY: more} if more else {}
    for question in study.questions:
        whole = [_answer(answer) for answer in question.answers]
        variables = dict(question.variables)
        if not keep_native:
            variables.pop("template_id", None)  # a field of its own
        quality = _kept(question) | of_study if keep_native else _grades(question)
        grade = ratings.overall_grade(question)
        stem = f"{study.patient_id}/{study.study_id}/{question.question_id}"
        before = (earlier or {}).get(str(variables.get("earlier_image", "")))
        for image in images:
            shown = (image.image_id, str(variables.get("earlier_image", "")))
            answers = whole if keep_native else [_on_images(one, shown) for one in whole]
            yield QARecord(
                dataset="cxr_qba",
                split=split,
                patient_id=study.patient_id,
                study_id=study.study_id,
                image_id=image.image_id,
                image_path=image.path or image.image_id,
                image_hw=image.image_hw,
                earlier=None if before is None else _earlier_image(before),
                view=image.view or None,
                question_id=f"{stem}/{image.image_id}",
                question=question.question,
                question_type=question.question_type,
                question_strategy=question.question_strategy,
                template_id=question.variables.get("template_id") if keep_native else None,
                variables=variables or None,
                answers=answers,
                quality=quality,
                grade=None if grade == ratings.UNRATED else grade,
                generator=generator if keep_native else None,
                provenance=source,
            )


def _earlier_image(image: StudyImage) -> EarlierImage:
    path = image.path or image.image_id
    return EarlierImage(image_id=image.image_id, image_path=path, image_hw=image.image_hw)


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


def _kept(question: native.NativeQuestion) -> dict[str, Any]:
    return {
        EXTRA_FIELDS: _without(question.to_json(), _QUESTION_FIELDS),
        EXTRA_ANSWERS: [
            _without(answer.to_json(), _ANSWER_FIELDS) for answer in question.all_answers()
        ],
    }


def _grades(question: native.NativeQuestion) -> dict[str, Any]:
    found = {"extraction_grade": question.question_quality.get("extraction_grade")}
    if surrogate := question.question_quality.get(ratings.SURROGATE):
        found["surrogate_grade"] = surrogate["grade"]
    return found


def _answer(answer: native.NativeAnswer) -> Answer:
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


_NO_ID = Answer.model_fields["answer_id"].get_default()


def _on_images(
    answer: Answer, image_ids: Sequence[str], above: Mapping[str, Any] | None = None
) -> Answer:
    """The answer with boxes on these images alone: others are asked about by records of their own.

    It has no id. A part whose boxes are those of the answer above it has none: it lies where that
    one does.
    """
    boxes = {name: found for name, found in answer.boxes_by_image.items() if name in image_ids}
    parts = [_on_images(part, image_ids, boxes) for part in answer.sub_answers]
    shown = {} if boxes == above else boxes
    told = {"answer_id": _NO_ID, "boxes_by_image": shown, "sub_answers": parts}
    return answer.model_copy(update=told)


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
