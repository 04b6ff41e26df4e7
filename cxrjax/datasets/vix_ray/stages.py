"""The questions of the paper's three stages about one radiograph (section 4.3).

Stage 1 asks for the findings and stage 2, in the same words, for the impression. Stage 3 is a
dialogue: the findings, then the impression with the first turn as history. Answers are texts
without boxes (section 6).
"""

from collections.abc import Iterator
from typing import Any

from cxrjax.datasets.vix_ray.study import GENDERS, VIEW_DEFINITIONS, Study
from cxrjax.records import Answer, DatasetName, Generator, Provenance, QARecord, Turn

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


def records(study: Study, dataset: DatasetName = "vix_ray") -> Iterator[QARecord]:
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
    study: Study, dataset: DatasetName, stage: str, kind: str, question: str, **fields: Any
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
        generator=Generator(name="grammar", version=study.generator) if study.generator else None,
        provenance=Provenance(source_file=file),
        **fields,
    )
