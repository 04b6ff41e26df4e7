"""The base of real radiographs that ships, asked about patients it was not trained on."""

import json
from pathlib import Path

import numpy as np
import pytest

from cxrjax import build, predict
from cxrjax.boxes import iou
from cxrjax.papers.lungs.native import read_folder
from cxrjax.records import read_records
from cxrjax.records_io.quality import QualityLog

ROOT = Path(__file__).parents[1]
BASE, RADIOGRAPHS = ROOT / "data/real_base", ROOT / "data/radiographs"
IMAGES = 24


def test_it_and_the_radiographs_are_small():
    for folder, most in ((BASE, 12e6), (RADIOGRAPHS / "images", 10e6)):
        assert sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) <= most


def test_no_patient_is_in_two_splits():
    splits: dict[str, set[str]] = {}
    for image in read_folder(RADIOGRAPHS, QualityLog()):
        splits.setdefault(image.patient, set()).add(image.split)
    assert all(len(of) == 1 for of in splits.values())
    assert set().union(*splits.values()) == {"train", "validation"}


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """`asked(ask)`: held-out radiographs' records and answers, the question made of the finding."""
    folder = tmp_path_factory.mktemp("real_base")
    build.main(["--dataset=lungs", f"--source={RADIOGRAPHS}", f"--out={folder}"])
    records = [
        record
        for record in read_records(folder / "records/validation.jsonl")
        if record.finding in ("right lung", "left lung")
    ]
    chosen = sorted({record.image_id for record in records})
    chosen = chosen[:: len(chosen) // IMAGES]
    every = [record for record in records if record.image_id in chosen]

    def ask(wording: str) -> list:
        questions, out = folder / "questions.jsonl", folder / "answers.jsonl"
        lines = []
        for record in every:
            line = json.loads(record.model_dump_json(exclude={"answers"}, exclude_none=True))
            line |= {"question": wording.format(record.finding)}
            lines.append(json.dumps(line) + "\n")
        questions.write_text("".join(lines))
        predict.main(
            [
                *(f"--checkpoint={BASE}", f"--questions={questions}", f"--out={out}"),
                f"--image_root={folder}",
            ]
        )
        return [json.loads(line) for line in out.read_text().splitlines()]

    return every, ask


@pytest.mark.slow
def test_it_finds_the_lungs_of_held_out_patients(asked):
    records, ask = asked
    for wording, least in (("Where is the {}?", 0.88), ("where is the {}", 0.88)):
        answers = ask(wording)
        assert all(answer["parse"] == "ok" for answer in answers)
        boxes = np.array([answer["boxes"][0] for answer in answers])
        size = np.array([[r.image_hw[1], r.image_hw[0]] * 2 for r in records])
        true = np.array([r.boxes[0] for r in records]) / size
        assert np.mean(iou(boxes, true)) > least, wording
        # Never the same box for both lungs, nor the other one's.
        of = {(r.image_id, r.finding): box for r, box in zip(records, boxes, strict=True)}
        for image_id in {r.image_id for r in records}:
            right, left = of[image_id, "right lung"], of[image_id, "left lung"]
            assert right[0] < left[0] and iou(right, left) < 0.2


@pytest.mark.slow
def test_what_it_was_not_taught_is_unknown(asked):
    _, ask = asked
    answers = ask("Where is the stethoscope?")
    assert np.mean([answer["text"] == "Unknown." for answer in answers]) > 0.8
