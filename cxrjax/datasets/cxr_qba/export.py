"""Which questions of a study become records, and of which images they are asked."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from cxrjax.datasets.cxr_qba.questions import Question, StudyQuestions
from cxrjax.datasets.cxr_qba.ratings import GRADES, at_least, overall_grade
from cxrjax.datasets.cxr_qba.study import StudyImage
from cxrjax.datasets.cxr_qba.surrogate_rating import KEY as SURROGATE
from cxrjax.datasets.quality import QualityLog
from cxrjax.errors import UserError

_NOT_FRONTAL = "studies without a frontal image, not exported"
_BELOW = "questions below --least_grade, not exported"
_UNRATED = "questions without a grade, not exported"


@dataclasses.dataclass(frozen=True)
class ExportFilter:
    """What is left out.

    Attributes:
        least_grade: the worst grade that is exported; "" exports all, unrated ones too.
        surrogate: whether grades are the surrogate's; else they are of a language model's verdicts.
    """

    least_grade: str = ""
    surrogate: bool = False

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
        shown = frontal or images[:1] or (StudyImage(made.study_id),)
        return made.model_copy(update={"questions": kept}), shown

    def _keeps(self, question: Question, quality: QualityLog) -> bool:
        if not self.least_grade:
            return True
        grade = overall_grade(question)
        if self.surrogate:
            grade = question.question_quality.get(SURROGATE, {}).get("grade")
        kept = at_least(grade, self.least_grade)
        if not kept:
            quality.warnings[_BELOW if grade in GRADES else _UNRATED] += 1
        return kept


def refuse_empty(source: Path, exported: int, quality: QualityLog) -> None:
    """Raises `UserError` where no question was exported: says why."""
    if exported:
        return
    why = [f"{quality.warnings[name]} {name}" for name in (_NOT_FRONTAL, _BELOW, _UNRATED)]
    raise UserError(
        f"{source}: no question left to export: {'; '.join(why)} (a grade needs the verdicts "
        "completeness and question_clarity of question_quality, and entailment, relevance and "
        "answer_clarity of each answer's answer_quality)"
    )
