"""The boxes of a released study, made to lie on its images: one rule for scene graph and questions.

A box stands in the scene graph and again in each answer that points there; it is judged once, and
what becomes of it becomes of it everywhere. A study whose boxes all fit is left as it was.
"""

import collections
from collections.abc import Iterator, Mapping, Sequence

from cxrjax.papers.cxr_qba.native import NativeLocalization, StudyQuestions, StudySceneGraph
from cxrjax.records_io.quality import CUT, FittedBoxes, GivenBox, PixelBox, QualityLog, fit_boxes

# Image and box.
_Key = tuple[str, PixelBox]


def fit_study_boxes(
    graph: StudySceneGraph | None,
    questions: StudyQuestions | None,
    sizes: Mapping[str, tuple[int, int]],
    where: str,
    quality: QualityLog,
) -> None:
    """Cuts boxes at their images' edges and takes out what is none, in both objects.

    Args:
        sizes: image id -> (height, width) of images whose size is known.
        where: the file, for `quality`, which gets an entry for every different box taken out and
            counts those that were cut.

    Raises:
        Unusable: `wrong_frame`: most of the study's different boxes do not fit.
    """
    owners = list(_owners(graph, questions))
    labels: dict[_Key, str] = {}
    times: collections.Counter[_Key] = collections.Counter()
    for owner, image_id, place in owners:
        for box in place.bboxes:
            key = _key(image_id, box)
            labels.setdefault(key, f"{owner} on {image_id}:")
            times[key] += 1
    fitted = fit_boxes(
        GivenBox(key, key[1], sizes.get(key[0]), label) for key, label in labels.items()
    )
    if not fitted.cut and not fitted.faults:
        return
    for _, image_id, place in owners:
        _replace(image_id, place, fitted)
    study = graph or questions
    assert study is not None  # there were boxes
    for key, fault in fitted.faults.items():
        found = f"{fault.found}; taken out of {times[key]} places"
        quality.set_aside(fault.reason, f"{study.patient_id}/{study.study_id}", where, found)
    if fitted.cut:
        quality.warnings[CUT] += len(fitted.cut)


def _owners(
    graph: StudySceneGraph | None, questions: StudyQuestions | None
) -> Iterator[tuple[str, str, NativeLocalization]]:
    """(id of what is there, image, place), all of them."""
    localized: list[tuple[str, Mapping[str, NativeLocalization]]] = []
    if graph is not None:
        localized += [(one.obs_id, one.localization) for one in graph.observations.values()]
        localized += [(one.region, one.localization) for one in graph.regions.values()]
        if graph.indication is not None and (answer := graph.indication.answer_for_indication):
            localized.append((answer.obs_id, answer.localization))
    for question in questions.questions if questions is not None else ():
        localized += [
            (f"{question.question_id}, {answer.answer_id}", answer.localization)
            for answer in question.all_answers()
        ]
    for owner, places in localized:
        for image_id, place in places.items():
            yield owner, image_id, place


def _key(image_id: str, box: Sequence[float]) -> _Key:
    return image_id, (box[0], box[1], box[2], box[3])


def _replace(image_id: str, place: NativeLocalization, fitted: FittedBoxes[_Key]) -> None:
    keys = [_key(image_id, box) for box in place.bboxes]
    if any(key in fitted.cut or key in fitted.faults for key in keys):
        place.bboxes = [
            list(fitted.boxes[key]) if key in fitted.cut else box
            for key, box in zip(keys, place.bboxes, strict=True)
            if key not in fitted.faults
        ]
