"""Makes records of reports: refined, asked about, checked, and tied to boxes (Stages I and II).

A report of less than two sentences is not used (section 3.2). Every question goes through the
filters of `questions.check`; what fails is rejected in the quality log, and nothing replaces it.

Test images are chosen so that diseases have the shares of Figure 7 (sections 3.2 and 7.4). The
paper's test set was cleaned by hand from some 2,331 images to 300, with few healthy ones. Its
shares are of 529 labels (each is a whole number of 529ths), so an image may have several.
"""

import collections
import dataclasses
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from cxrjax.codecs.prose import SIDE
from cxrjax.papers.gemex.construct.facts import words_of
from cxrjax.papers.gemex.construct.pool import pool_of
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
from cxrjax.papers.gemex.statistics import PAPER
from cxrjax.papers.sources.report import ImageReport, RefinedSentence
from cxrjax.records import Answer, QARecord
from cxrjax.records import GeneratorInfo as Maker
from cxrjax.records_io.quality import QualityLog, Unusable

HEALTHY = "Healthy"
TEST_IMAGES = 300
# Figure 7, percent of labels.
_PERCENT = "test_class_percent/"
TARGET_MIX = {
    name.removeprefix(_PERCENT): float(printed.value)  # type: ignore[arg-type]
    for name, printed in PAPER.items()
    if name.startswith(_PERCENT)
}


def classes_of(sentences: Iterable[RefinedSentence]) -> list[str]:
    """Returns classes of Figure 7 that sentences state for certain; `Healthy` without findings.

    An image with findings of other classes alone, or with doubtful ones, has none.
    """
    pool = pool_of(sentences)
    found = {words_of(name).class_name for name in pool.present}
    named = [name for name in TARGET_MIX if name in found]
    return named or ([HEALTHY] if not pool.present and not pool.doubtful else [])


def curate(labels: Mapping[str, Sequence[str]], seed: int, count: int = TEST_IMAGES) -> list[str]:
    """Returns sorted image ids whose labels come nearest to Figure 7, one taken at a time.

    Args:
        labels: image id -> its classes; images without any are skipped.
        seed: decides among images that serve equally well.
        count: how many to choose; all, where there are no more.
    """
    names = list(TARGET_MIX)
    share = np.array(list(TARGET_MIX.values()), np.float64)
    share /= share.sum()
    candidates = sorted(image_id for image_id, found in labels.items() if found)
    if len(candidates) <= count:
        return candidates
    random.Random(f"{seed}/curation").shuffle(candidates)
    rows = np.array([[name in labels[image_id] for name in names] for image_id in candidates], int)
    left = np.ones(len(candidates), bool)
    total = np.zeros(len(names), int)
    for _ in range(count):
        sums = total + rows
        # Squared distance between shares, in units of each class's own share.
        distance = ((sums / sums.sum(1, keepdims=True) - share) ** 2 / share).sum(1)
        best = int(np.argmin(np.where(left, distance, np.inf)))
        left[best] = False
        total += rows[best]
    return sorted(image_id for k, image_id in enumerate(candidates) if not left[k])


MIN_SENTENCES = 2


@dataclasses.dataclass
class GemexConstruction:
    """The parts of a build that turn reports into records, and its counts."""

    refiner: Refiner
    generator: QuestionGenerator
    quality: QualityLog
    # Region -> refined sentences about it (Figure 3).
    regions: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def refine(self, reports: Iterable[ImageReport]) -> Iterator[RefinedReport]:
        """Yields the usable reports, refined."""
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
        """Yields the questions of refined reports."""
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
                    where, found = one.report.where, verdict.found
                    self.quality.set_aside(verdict.reason, question_id, where, found)
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
        for region in draft.regions if report.boxes else ():
            if region not in report.boxes:
                raise Unusable("missing_box", f"no box of {region!r} on this image")
            boxes.append([round(value * SIDE) for value in report.boxes[region]])
        location = location_text(boxes) if boxes else ""
        key = draft.answer if isinstance(draft.answer, str) else list(draft.answer)
        text = assistant_text(key, draft.reason, location)
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
            answers=[Answer(text=text, regions=list(draft.regions))],
            answer_key=key,
            reason=draft.reason,
            generator=Maker(name=self.generator.name, version=self.generator.version),
        )
        return locate(record, report.image_hw) if report.image_hw else record


def findings_of(refined: RefinedReport) -> list[str]:
    """Returns the classes of Figure 7 that a report's image has."""
    return classes_of(refined.refinement.sentences)
