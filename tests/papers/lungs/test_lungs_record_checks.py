"""Lung records checked by rules of their own: those that ship agree, planted faults do not."""

import shutil
from pathlib import Path

import pytest

from cxrjax.papers.lungs.build import LungsBuilder
from cxrjax.papers.lungs.record_checks import check_record
from cxrjax.records import read_records
from cxrjax.records_io.builder import SourceOptions
from tests.papers.cases import data

CHECKED = 2_000
IMAGES = 600
RADIOGRAPHS = Path(__file__).parents[3] / "data" / "radiographs"


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Of the first images of the folder's table, to be quick."""
    folder = tmp_path_factory.mktemp("lungs")
    with open(RADIOGRAPHS / "lungs.csv", encoding="utf-8") as table:
        lines = [line for line, _ in zip(table, range(IMAGES + 1), strict=False)]
    for part in ("images", "masks"):
        (folder / "in" / part).mkdir(parents=True)
    for line in lines[1:]:
        stem = line.partition(".")[0]
        for file in RADIOGRAPHS.glob(f"*/{stem}.*"):
            shutil.copy(file, folder / "in" / file.parent.name / file.name)
    (folder / "in" / "lungs.csv").write_text("".join(lines), encoding="utf-8")
    out = folder / "out"
    LungsBuilder(SourceOptions(folder / "in", out, processes=1)).build()
    return [r for file in sorted(out.glob("records/*.jsonl")) for r in read_records(file)]


def test_none_of_two_thousand_records_contradicts_itself(records):
    assert len(records) >= CHECKED
    assert {r.question_type for r in records} >= {"Where"}
    assert {r.question_id: told for r in records if (told := check_record(r))} == {}


def test_yes_and_no_to_a_normal_film(records):
    asked = records[0].model_copy(deep=True, update={"question_type": "Yes_No"})
    asked.question = "Is this chest X-ray normal?"
    for text, polarity, right in data(__file__)["yes_and_no_to_a_normal_film"]:
        asked.answers[0].text, asked.answers[0].polarity = text, polarity
        assert (check_record(asked) == []) == right, text


def mirrored(record):
    _, width = record.image_hw
    boxes = [[width - x1, y0, width - x0, y1] for x0, y0, x1, y1 in record.boxes]
    written = " and ".join("<loc_{:.0f}_{:.0f}_{:.0f}_{:.0f}>".format(*box) for box in boxes)
    text = record.answer_text.partition("<")[0] + written + "."
    return with_answer(record, text=text, boxes_by_image={record.image_id: boxes})


def with_answer(record, **fields):
    answer = record.answers[0].model_copy(update=fields)
    return record.model_copy(update={"answers": [answer]})


def asking(record, question):
    return record.model_copy(update={"question": question})


def reworded(record, old, new):
    return with_answer(record, text=record.answer_text.replace(old, new))


@pytest.mark.parametrize(
    ("finding", "spoil", "told"),
    [
        ("right lung", mirrored, "names the right side, where no box is"),
        ("left lung", mirrored, "names the left side, where no box is"),
        ("lungs", mirrored, "is not left of"),
        ("right lung", lambda r: reworded(r, "right", "left"), "another side"),
        ("lungs", lambda r: reworded(r, "lungs are", "lungs is"), "lungs is"),
        ("lungs", lambda r: with_answer(r, boxes_by_image={r.image_id: r.boxes[:1]}), "boxes to"),
        ("left lung", lambda r: reworded(r, "<loc_", "<loc_1"), "not the record's"),
        ("left lung", lambda r: asking(r, "Where are the lungs?"), "boxes to"),
        ("left lung", lambda r: asking(r, "Where is an left lung?"), "an left"),
        ("left lung", lambda r: r.model_copy(update={"image_hw": (50, 50)}), "beyond the image"),
    ],
)  # fmt: skip
def test_planted_faults_are_found(records, finding, spoil, told):
    own = [spoil(record) for record in records if record.finding == finding][:200]
    assert own
    found = [any(told in fault for fault in check_record(record)) for record in own]
    assert sum(found) >= 0.9 * len(own), check_record(own[0])
