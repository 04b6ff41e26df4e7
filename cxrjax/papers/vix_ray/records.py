"""The questions of the paper's three stages about one radiograph, as records (section 4.3).

Stage 1 asks for the findings and stage 2, in the same words, for the impression. Stage 3 is a
dialogue: the findings, then the impression with the first turn as history. Answers are texts
without boxes (section 6).
"""

import dataclasses
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from cxrjax.files import read_packaged
from cxrjax.papers.vix_ray.native import NativeRow
from cxrjax.radiology_text.vietnamese_words import without_diacritics
from cxrjax.records import Answer, GeneratorInfo, Provenance, QARecord, Turn
from cxrjax.records_io.quality import QualityLog

_WORDS = read_packaged(str(__package__), "columns.toml")
VIEW_DEFINITIONS: Mapping[str, str] = _WORDS["view_definitions"]
GENDERS = {"M": "nam", "F": "nữ"}
_STRAIGHT = r"thang|frontal"
_OLDEST = 120


@dataclasses.dataclass(frozen=True)
class VixRayStudy:
    """One radiograph and its report."""

    image_id: str
    split: str
    where: str
    # `findings`, `impression`: NFC, lines and runs of blanks made one blank.
    findings: str
    impression: str
    # `PA`, `AP`, `LATERAL` or None. `sex`: `M`, `F` or None. `age`: years or None.
    view: str | None
    sex: str | None
    age: float | None
    note: str
    image_path: str  # relative to the folder of the build. `image_hw`: pixels; None until known.
    image_sha256: str
    native: Mapping[str, Any]  # the row as it stands, to be written back
    generator: str | None = None
    image_hw: tuple[int, int] | None = None


def understand(
    row: NativeRow, image_path: str, image_sha256: str, quality: QualityLog
) -> VixRayStudy:
    """The study of a row whose image was written to `image_path`."""
    texts = {name: row.values.get(name) for name in ("findings", "impression", "note")}
    for name, text in texts.items():
        if isinstance(text, str) and text != unicodedata.normalize("NFC", text):
            quality.warnings[f"{name} not in Unicode's form NFC, read in it"] += 1
        if isinstance(text, str) and "\N{REPLACEMENT CHARACTER}" in text:
            quality.warnings[f"{name} with a letter that was lost in another encoding"] += 1
    return VixRayStudy(
        image_id=row.image_id,
        split=row.split,
        where=row.where,
        findings=plain(texts["findings"]),
        impression=plain(texts["impression"]),
        view=_view(row, quality),
        sex=_the_one(_named(row.values.get("sex"), _WORDS["sexes"]), "sex", row, quality),
        age=_age(row, quality),
        note=plain(texts["note"]),
        image_path=image_path,
        image_sha256=image_sha256,
        native={"file": row.file, "row": row.row, "columns": dict(row.native)},
        generator=row.generator,
    )


def plain(text: Any) -> str:
    """Text for use: NFC, blanks and line breaks as one blank; "" for what is no text."""
    return " ".join(unicodedata.normalize("NFC", text).split()) if isinstance(text, str) else ""


def _view(row: NativeRow, quality: QualityLog) -> str | None:
    value = row.values.get("view")
    named = _named(value, _WORDS["views"])
    if _named(value, {"PA": _STRAIGHT}):
        if not named:
            quality.warnings["view said to be straight (thẳng), read as PA"] += 1
        named = [*named, "PA"] if named in ([], ["LATERAL"]) else named
    return _the_one(named, "view", row, quality)


def _named(value: Any, words: Mapping[str, str]) -> list[str]:
    """Returns the names of which a word is in the text."""
    text = plain(value).lower()
    text = f"{text}\n{without_diacritics(text)}"
    return [name for name, of in words.items() if re.search(rf"(?<!\w)(?:{of})(?!\w)", text)]


def _the_one(named: list[str], field: str, row: NativeRow, quality: QualityLog) -> str | None:
    if len(named) == 1:
        return named[0]
    _warn_unknown(field, row, row.values.get(field), quality)
    return None


def _age(row: NativeRow, quality: QualityLog) -> float | None:
    value = row.values.get("age")
    if isinstance(value, str):
        # "069Y" is how DICOM has it.
        match = re.fullmatch(r"0*(\d+(?:[.,]\d+)?)\s*(?:y|tuổi|t)?", plain(value).lower())
        value_read = float(match[1].replace(",", ".")) if match else math.nan
    elif isinstance(value, int | float) and not isinstance(value, bool):
        value_read = float(value)
    else:
        value_read = math.nan
    if not 0 <= value_read <= _OLDEST:
        _warn_unknown("age", row, value, quality)
        return None
    return value_read


def _warn_unknown(field: str, row: NativeRow, value: Any, quality: QualityLog) -> None:
    """Counts it, and says where; not what stands there, which may tell who the patient is."""
    missing = value is None or value == "" or (isinstance(value, float) and math.isnan(value))
    quality.warnings[f"{field} {'missing' if missing else 'not understood'}, left null"] += 1
    if not missing:
        quality.warnings[f"{field} not understood: {row.image_id} ({row.where})"] += 1


STAGES = ("stage1", "stage2", "stage3")
FINDINGS, IMPRESSION = "findings", "impression"
# Where a record of stage 1 keeps the row it was read from.
NATIVE_ROW = "native_row"
# Stage 3's second question, as in public scripts that use the data set.
CONCLUDE = "Kết luận từ thông tin trên bệnh nhân bị gì?"
# What tells the stages apart for a model of both, with the prompt formats `*_typed`: their
# questions are the same.
STAGE_TAGS = {FINDINGS: "[Mô tả]", IMPRESSION: "[Kết luận]"}


def prompt(view: str | None, sex: str | None, age: float | None) -> str:
    """The question of section 4.3; what is not known of the patient is left out of it."""
    words = ["Ảnh chụp X-ray"]
    if view is not None:
        words.append(f"{view} ({VIEW_DEFINITIONS[view]})")
    words.append("bệnh nhân")
    if sex is not None:
        words.append(GENDERS[sex])
    text = " ".join(words)
    if age is not None:
        text += f", {age:g} tuổi"
    return f"{text}. Cho biết bệnh nhân bị gì?"


def records(study: VixRayStudy, dataset: str = "vix_ray") -> Iterator[QARecord]:
    """Four records: stage 1, stage 2, and both turns of stage 3, the second with its gold history.

    `question_strategy` is the stage, `question_type` what is asked for.
    """
    asked = prompt(study.view, study.sex, study.age)
    first = Turn(
        question_id=f"{study.image_id}-stage3-{FINDINGS}", question=asked, answer=study.findings
    )
    yield _record(study, dataset, "stage1", FINDINGS, asked, quality={NATIVE_ROW: study.native})
    yield _record(study, dataset, "stage2", IMPRESSION, asked)
    yield _record(study, dataset, "stage3", FINDINGS, asked)
    yield _record(study, dataset, "stage3", IMPRESSION, CONCLUDE, history=[first])


def _record(
    study: VixRayStudy, dataset: str, stage: str, kind: str, question: str, **fields: Any
) -> QARecord:
    file = str(study.native["file"])
    return QARecord(
        dataset=dataset,
        split=study.split,
        image_id=study.image_id,
        image_path=study.image_path,
        image_hw=study.image_hw,
        view=study.view,
        sex=study.sex,
        age=study.age,
        question_id=f"{study.image_id}-{stage}-{kind}",
        question=question,
        question_type=kind,
        question_strategy=stage,
        lang="vi",
        type_prompt=STAGE_TAGS[kind],
        answers=[Answer(text=study.findings if kind == FINDINGS else study.impression)],
        generator=GeneratorInfo(name="grammar", version=study.generator)
        if study.generator
        else None,
        provenance=Provenance(source_file=file),
        **fields,
    )
