"""Records out of reports: refined, asked about, checked, and tied to boxes (Stages I and II).

A report of less than two sentences is not used (section 3.2). Every question goes through the
filters of `questions.check`; what fails is set aside in the quality log, and nothing replaces it.
"""

import collections
import dataclasses
from collections.abc import Iterable, Iterator

from cxrjax.codecs.prose import SIDE
from cxrjax.papers.gemex.construct.curation import classes_of
from cxrjax.papers.gemex.construct.questions import (
    MAX_QUESTIONS,
    Draft,
    QuestionGenerator,
    RefinedReport,
    check,
)
from cxrjax.papers.gemex.construct.refine import Refiner
from cxrjax.papers.gemex.dialogue import QUESTION_TYPES, assistant_text
from cxrjax.papers.gemex.native import locate, location_text
from cxrjax.papers.sources.report import ImageReport
from cxrjax.records import Answer, QARecord
from cxrjax.records import GeneratorInfo as Maker
from cxrjax.records_io.quality import QualityLog, Unusable

MIN_SENTENCES = 2


@dataclasses.dataclass
class GemexConstruction:
    """What a build's records have in common, and what is counted on the way.

    Attributes:
        regions: region -> refined sentences about it (Figure 3).
    """

    refiner: Refiner
    generator: QuestionGenerator
    quality: QualityLog
    regions: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def refine(self, reports: Iterable[ImageReport]) -> Iterator[RefinedReport]:
        """The usable reports, refined."""
        for report, refinement in self.refiner.refine(self._not_short(reports)):
            self.quality.examined["sentences"] += len(report.sentences)
            for reason, count in sorted(refinement.left_out.items()):
                found = f"{count} of {len(report.sentences)} sentences"
                self.quality.set_aside(reason, report.report_id, report.where, found)
            if len(refinement.sentences) < MIN_SENTENCES:
                found = f"{len(refinement.sentences)} sentences after refining"
                self.quality.set_aside("short_report", report.report_id, report.where, found)
                continue
            self.regions.update(sentence.region for sentence in refinement.sentences)
            yield RefinedReport(report, refinement)

    def records(self, refined: Iterable[RefinedReport], split: str) -> Iterator[QARecord]:
        """The questions of refined reports."""
        for one, drafts in self.generator.generate(refined):
            kept = 0
            for number, draft in enumerate(drafts):
                self.quality.examined["questions"] += 1
                question_id = f"{one.report.image_id}-{number}"
                try:
                    check(draft)
                    yield self._record(one.report, draft, question_id, split)
                    kept += 1
                except Unusable as verdict:
                    self.quality.set_aside(
                        verdict.reason, question_id, one.report.where, verdict.found
                    )
            if kept < MAX_QUESTIONS:
                self.quality.warnings[f"reports with less than {MAX_QUESTIONS} questions"] += 1

    def _not_short(self, reports: Iterable[ImageReport]) -> Iterator[ImageReport]:
        for report in reports:
            count = len(report.sentences)
            if not count:
                found = "no sentence in findings and impression"
                self.quality.set_aside("empty_report", report.report_id, report.where, found)
            elif count < MIN_SENTENCES:
                found = f"{count} sentence; expected at least {MIN_SENTENCES}"
                self.quality.set_aside("short_report", report.report_id, report.where, found)
            else:
                yield report

    def _record(self, report: ImageReport, draft: Draft, question_id: str, split: str) -> QARecord:
        boxes = []
        for region in draft.regions:
            if report.boxes and region not in report.boxes:
                raise Unusable("missing_box", f"no box of {region!r} on this image")
            if report.boxes:
                boxes.append([round(value * SIDE) for value in report.boxes[region]])
        location = location_text(boxes) if boxes else ""
        key = draft.answer if isinstance(draft.answer, str) else list(draft.answer)
        record = QARecord(
            dataset="gemex",
            split=split,
            patient_id=report.patient_id,
            study_id=report.study_id,
            image_id=report.image_id,
            image_path=report.image_path,
            view=report.view,
            sex=report.sex,
            question_id=question_id,
            question=draft.question,
            question_type=draft.question_type,
            content_type=draft.content_type,
            choices=draft.lettered or None,
            type_prompt=QUESTION_TYPES[draft.question_type].instruction,
            template_id=draft.template_id,
            answers=[
                Answer(
                    text=assistant_text(key, draft.reason, location), regions=list(draft.regions)
                )
            ],
            answer_key=key,
            reason=draft.reason,
            generator=Maker(name=self.generator.name, version=self.generator.version),
        )
        return locate(record, report.image_hw) if report.image_hw else record


def findings_of(refined: RefinedReport) -> list[str]:
    """The classes of Figure 7 that a report's image has."""
    return classes_of(refined.refinement.sentences)
