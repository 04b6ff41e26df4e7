"""Any source of grounded reports to records; what is broken is rejected with a reason."""

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cxrjax.codecs import CODECS
from cxrjax.metrics.text import tokens
from cxrjax.papers.grounded_reports.sources import EXPECTED, WORDS, ReportDraft, read_source
from cxrjax.records import EarlierImage, QARecord
from cxrjax.records_io.builder import Builder, SourceOptions
from cxrjax.records_io.quality import REASONS, Unusable, check_box
from cxrjax.records_io.split import by_split

_HAN = re.compile(r"[\u4e00-\u9fff]")
_LANGUAGES = {name: frozenset(words.split()) for name, words in WORDS["languages"].items()}


@dataclasses.dataclass(frozen=True)
class ReportsOptions(SourceOptions):
    """Flags of grounded reports; data/grounded_reports/README.md describes the sources.

    Attributes:
        language: of PadChest-GR's sentences.
        earlier: put the patient's earlier report into the question, or show its image, too.
        lateral: show the lateral view where no earlier image is shown.
        images: folder with MIMIC-CXR-JPG's files/ and its metadata table, which has dates.
    """

    language: Literal["en", "es"] = "en"
    earlier: Literal["none", "report", "image"] = "none"
    lateral: bool = False
    images: Path | None = None


class GroundedReportsBuilder(Builder[ReportsOptions]):
    """Reads reports, and divides patients where no table does."""

    dataset = "grounded_reports"
    options_class = ReportsOptions

    def read(self) -> dict[str, list[QARecord]]:
        self.quality.reasons = REASONS | WORDS["reasons"]
        records = []
        for draft in read_source(self.options, self.quality):
            self.quality.examined["reports"] += 1
            file = draft.record.provenance and draft.record.provenance.source_file
            with self.quality.rejecting(draft.record.image_id, str(file)):
                check_report(draft, self.options.language)
                records.append(finish(draft, self.options))
        if not records:
            raise self.nothing_left("report", f"; {EXPECTED}")
        where = f"{self.options.source}"
        return by_split(records, self.options.seed, where, "add patients", self.quality)

    def describe(self) -> dict[str, Any]:
        return {name: getattr(self.options, name) for name in ("seed", "language", "earlier")}


def words_by_language(text: str) -> dict[str, int]:
    """Counts the words of a sentence that tell a language, by language."""
    said = tokens(text)
    counts = {name: sum(word in words for word in said) for name, words in _LANGUAGES.items()}
    counts["zh"] = len(_HAN.findall(text))
    return {name: count for name, count in counts.items() if count}


def check_report(draft: ReportDraft, lang: str) -> None:
    """Refuses a report that is broken, with one of the reasons of quality.json.

    Raises:
        Unusable: names the sentence and what was found.
    """
    record = draft.record
    for number, one in enumerate(record.answers, 1):
        where = f"sentence {number}"
        if one.boxes_by_image and not one.text:
            raise Unusable("box_without_sentence", f"{where} has boxes and no words")
        if other := one.boxes_by_image.keys() - {record.image_id}:
            found = f"{where} has boxes in {min(other)}; expected {record.image_id}"
            raise Unusable("box_in_other_image", found)
        for x0, y0, x1, y1 in one.boxes_by_image.get(record.image_id, ()):
            check_box((x0, y0, x1, y1), record.image_hw, f"{where}:")
        counts = words_by_language(one.text)
        most = min(counts.pop(lang, 0), 1)  # one word of another language may be a name or Latin
        for found in (name for name, count in counts.items() if count > most):
            raise Unusable("mixed_languages", f"{where} is in {found}; expected {lang}")
    if not record.answer_text.strip():
        raise Unusable("no_sentence", "no sentence of findings; expected at least one")
    earlier, date = draft.earlier or draft, draft.earlier and draft.earlier.date
    if date and draft.date and date > draft.date:
        found = f"earlier study {earlier.record.study_id} is of {date}; this one is of {draft.date}"
        raise Unusable("later_earlier_study", found)
    patients = {str(one.patient_id) for one in (earlier.record, record) if one.patient_id}
    if draft.earlier and (earlier.record.image_id == record.image_id or len(patients) > 1):
        found = f"earlier image {earlier.record.image_id}, patients {sorted(patients)}"
        raise Unusable("wrong_earlier_study", f"{found}; expected another image of one patient")


def finish(draft: ReportDraft, options: ReportsOptions) -> QARecord:
    """Returns the record: request with what is known before, boxes behind each sentence's words."""
    record, lang = draft.record, options.language
    words = {name: of[lang] for name, of in WORDS["question"].items()}
    earlier = draft.earlier.record if draft.earlier and options.earlier != "none" else None
    said = dict(record.variables or {}) | {"earlier": earlier.answer_text if earlier else ""}
    request = [words["ask"], *(f"{words[name]} {text}" for name, text in said.items() if text)]
    second, kind = record.earlier, "lateral_image"
    if earlier and options.earlier == "image":
        path, size = earlier.image_path, earlier.image_hw
        second = EarlierImage(image_id=earlier.image_id, image_path=path, image_hw=size)
        kind = "earlier_image"
    request += [words[kind]] if second else []
    height, width = record.image_hw or (1, 1)
    sentences = []
    for number, one in enumerate(one for one in record.answers if one.text):
        boxes = np.array(one.boxes_by_image.get(record.image_id, ())).reshape(-1, 4)
        boxes = boxes / [width, height, width, height]
        shown = (CODECS["paligemma"].encode(box[None], height, width) for box in boxes)
        text = " ".join([one.text, *shown])
        sentences.append(one.model_copy(update={"answer_id": f"s{number}", "text": text}))
    update = {"question": " ".join(request), "answers": sentences, "earlier": second, "lang": lang}
    return record.model_copy(update=update)
