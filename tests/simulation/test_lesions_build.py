"""Radiographs with lung masks -> images with simulated lesions, records, questions."""

import csv
import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import PIL.Image
import pytest

from cxrjax.api import training_run
from cxrjax.commands import build, score
from cxrjax.errors import UserError
from cxrjax.images.geometry import is_resize
from cxrjax.papers.vindr_cxr_vqa.box_table import read_box_table
from cxrjax.radiology_text.reading import said_now
from cxrjax.records import read_records
from cxrjax.records_io.quality import QualityLog
from cxrjax.simulation.lesion_reports import lesion_findings
from cxrjax.simulation.lesions import (
    SYNTHETIC,
    LesionBuilder,
    LesionOptions,
    normal_images,
    read_pair,
)
from tests.simulation.rendered_chest import write_folder

CHESTS = 12
FLAGS = ["--dataset=grafts", "--normal_percent=30"]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return write_folder(tmp_path_factory.mktemp("chests") / "source", CHESTS, one_lung=True)


@pytest.fixture(scope="module")
def built(source) -> Path:
    out = source.parent / "built"
    build.main([*FLAGS, f"--source={source}", f"--out={out}"])
    return out


def records_of(out: Path) -> list:
    files = sorted((out / "records").glob("*.jsonl"))
    return [record for file in files for record in read_records(file)]


def rows_of(file: Path) -> list[dict[str, str]]:
    with open(file, newline="") as table:
        return list(csv.DictReader(table))


def test_records_and_counts_say_what_they_are_and_what_is_not_normal(built):
    records = records_of(built)
    assert {r.dataset for r in records} == {"own_grafts"}
    assert all(r.quality == {"synthetic": SYNTHETIC} for r in records)
    assert {r.image_id for r in records} == {f"chest{k}-0" for k in range(CHESTS - 1) if k != 1}
    split_of = {(r.patient_id, r.split) for r in records}
    assert len(split_of) == len({patient for patient, _ in split_of}) == 6
    assert json.loads((built / "manifest.json").read_text())["made"] == SYNTHETIC
    quality = json.loads((built / "quality.json").read_text())
    assert quality["counts"]["one_lung"] == 1 and quality["total"] == 1
    assert quality["examined"]["not normal"] == 1
    counts = json.loads((built / "statistics.json").read_text())
    assert all(count["note"].endswith(SYNTHETIC) for count in counts.values())


def test_boxes_are_those_of_the_lesions_and_three_readers(built):
    lesions = rows_of(built / "lesions.csv")
    in_records = {
        (r.image_id, r.variables["finding"], *map(int, box))
        for r in records_of(built)
        if r.variables
        for box in r.boxes
    }
    columns = ("x_min", "y_min", "x_max", "y_max")
    assert in_records == {
        (one["image_id"], one["label"], *(int(one[c]) for c in columns)) for one in lesions
    }
    table = {image.image_id: image for image in read_box_table(built / "boxes.csv")}
    changed = {one["image_id"] for one in lesions}
    for image_id, image in table.items():
        assert set(image.readers) == {"P1", "P2", "P3"}
        assert all(map(bool, image.readers.values())) == (image_id in changed)


def test_pictures_are_asked_where_their_lungs_are_if_wanted(source, built):
    out = source.parent / "with_lungs"
    build.main([*FLAGS, "--ask_lungs", f"--source={source}", f"--out={out}"])
    plain, more = records_of(built), records_of(out)
    lungs = [r for r in more if r.finding in ("right lung", "left lung", "lungs")]
    assert [r for r in more if r not in lungs] == plain
    assert len(lungs) == 3 * len({r.image_id for r in plain})
    images = {f"{one.image_id}-0": one for one in normal_images(source, QualityLog())}
    for record in lungs:
        assert record.quality == {"synthetic": SYNTHETIC} and record.question_type == "Where"
        mask = read_pair(images[record.image_id], 512)[1]
        assert mask.shape == tuple(record.image_hw)
        marked = np.zeros_like(mask)
        for x0, y0, x1, y1 in np.rint(record.boxes).astype(int):
            marked[y0:y1, x0:x1] = True
        # The boxes hold the lungs that are asked for, and of one lung no other.
        share = (mask & marked).sum() / mask.sum()
        assert share == 1 if record.finding == "lungs" else 0.3 < share < 0.7
    # Sides are the patient's.
    of = {(r.image_id, r.finding): r.boxes for r in lungs}
    for image_id in images.keys() & {r.image_id for r in lungs}:
        right, left = of[image_id, "right lung"][0], of[image_id, "left lung"][0]
        assert right[2] <= left[0] + 1


def test_a_share_is_untouched_in_its_original_proportions(source, built):
    changed = {one["image_id"] for one in rows_of(built / "lesions.csv")}
    images = {f"{one.image_id}-0": one for one in normal_images(source, QualityLog())}
    pictures = {path.stem: path for path in (built / "images").iterdir()}
    assert 0 < len(changed) < len(pictures)
    for image_id, path in pictures.items():
        with PIL.Image.open(path) as picture:
            pixels = np.asarray(picture)
        assert is_resize(pixels.shape, (448, 560)) and min(pixels.shape) == 224
        same = np.array_equal(pixels, read_pair(images[image_id], 512)[0])
        assert same == (image_id not in changed)


@pytest.mark.slow  # several processes
def test_processes_and_other_radiographs_change_nothing(source, built, tmp_path):
    again = LesionBuilder(LesionOptions(source, tmp_path / "two", normal_percent=30, processes=2))
    again.build()
    for name in ("boxes.csv", "lesions.csv"):
        assert (tmp_path / "two" / name).read_bytes() == (built / name).read_bytes()
    fewer = write_folder(tmp_path / "fewer", 5)
    LesionBuilder(LesionOptions(fewer, tmp_path / "five", normal_percent=30)).build()
    for path in (tmp_path / "five" / "images").iterdir():
        assert path.read_bytes() == (built / "images" / path.name).read_bytes()


def test_variants_differ_and_normals_and_held_out_ones_stand_once(source, tmp_path):
    LesionBuilder(LesionOptions(source, tmp_path, normal_percent=30, variants=2)).build()
    pictures = {path.stem: path.read_bytes() for path in (tmp_path / "images").iterdir()}
    second = [name for name in pictures if name.endswith("-1")]
    assert 0 < len(second) < len(pictures) / 2
    assert all(pictures[name] != pictures[name[:-1] + "0"] for name in second)
    split_of = {r.image_id: r.split for r in records_of(tmp_path)}
    assert {split_of[name] for name in second} == {"train"} < set(split_of.values())


def _by_class(rows):
    found = {}
    for label, side, box in rows:
        found.setdefault((label, side), []).append([edge / 100 for edge in box])
    return found


def test_reports_name_what_is_there_and_are_read_so(subtests):
    for case in tomllib.loads(Path(__file__).with_name("lesion_reports.toml").read_text())[
        "reports"
    ]:
        with subtests.test(said=case["said"]):
            before = _by_class(case["before"]) if "before" in case else None
            findings = list(lesion_findings(_by_class(case["now"]), before))
            assert [one["sentence_en"] for one in findings] == case["said"]
            times = case.get("changes", ["current"] * len(findings))
            for one, time in zip(findings, times, strict=True):
                said = said_now(one["sentence_en"])
                assert said and {a.denies for a in said} == {not one["abnormal"]}
                assert {a.time for a in said} == {time}


def test_lesions_of_a_variant_come_grow_shrink_and_go(source, tmp_path):
    lesions, out = tmp_path / "lesions", tmp_path / "reports"
    flags = ["--studies=3", "--long_side=160", f"--source={source}", f"--out={lesions}"]
    build.main([*FLAGS, *flags])
    build.main(
        ["--dataset=grounded_reports", f"--source={lesions}", "--earlier=image", f"--out={out}"]
    )
    records = {record.image_id: record for record in records_of(out)}
    studies = json.loads((lesions / "grounded_reports.json").read_text())
    said = {one.get("progression") for study in studies for one in study["findings"]}
    assert said == {None, "new", "stable", "improved", "worsened", "resolved"}
    for study in studies:
        record = records[study["StudyID"]]
        assert record.dataset == "own_simulated_reports"
        stem, _, number = record.image_id.rpartition("-")
        if number == "0":
            assert record.earlier is None and "PreviousStudyID" not in study
            continue
        before = records[record.earlier.image_id]
        assert before.image_id == study["PreviousStudyID"] == f"{stem}-{int(number) - 1}"
        assert (before.patient_id, before.split) == (record.patient_id, record.split)
        told = re.sub(" <[^ ]*>", "", before.answer_text)
        assert f"Earlier report: {told} The second image" in record.question
        # Unchanged lesions change no pixel.
        boxes = [sorted(map(tuple, one.boxes)) for one in (before, record)]
        images = [
            (lesions / "images" / f"{one.image_id}.png").read_bytes() for one in (before, record)
        ]
        assert (boxes[0] == boxes[1]) == (images[0] == images[1])


def test_scored_the_tables_say_that_lesions_are_simulated(built, tmp_path):
    predictions, scores = tmp_path / "none.jsonl", tmp_path / "scores"
    references = min((built / "records").iterdir(), key=lambda path: path.stat().st_size)
    lines = [
        json.dumps({"question_id": r.question_id, "text": r.answers[0].text, "boxes": []})
        for r in read_records(references)
    ]
    predictions.write_text("\n".join(lines) + "\n")
    flags = [f"--references={references}", f"--predictions={predictions}", f"--out={scores}"]
    score.main(["--benchmark=vindr_cxr_vqa", "--resamples=5", *flags])
    assert SYNTHETIC in (scores / "tables.md").read_text()
    assert SYNTHETIC in (scores / "tables.tex").read_text()
    assert {row["made"] for row in rows_of(scores / "tables.csv")} == {SYNTHETIC}
    metrics = json.loads((scores / "metrics.json").read_text())
    floors = json.loads((scores / "floors.json").read_text())
    for protocols in (*metrics.values(), *floors["figures"].values()):
        assert {f["made"] for p in protocols.values() for f in p.values()} == {SYNTHETIC}


def test_steps_of_training_say_that_lesions_are_simulated(built, capsys):
    def log(dataset: str) -> str:
        three = [SimpleNamespace(dataset=dataset)] * 3
        records = SimpleNamespace(num_records=3, record=three.__getitem__)
        mixture = SimpleNamespace(sources=[SimpleNamespace(records=records)])
        log_line = training_run.log_line_of(mixture)
        log_line("step 5/10  loss 1")
        log_line("5 parameters are trained")
        return capsys.readouterr().out

    assert log("own_grafts") == f"step 5/10  loss 1 ({SYNTHETIC})\n5 parameters are trained\n"
    assert log("lungs") == "step 5/10  loss 1\n5 parameters are trained\n"


@pytest.mark.parametrize(
    "wrong", [{"variants": 0}, {"normal_percent": 101}, {"contrast": 0.0}, {"long_side": 64}]
)
def test_unusable_flags(wrong, tmp_path):
    with pytest.raises(UserError, match=f"--{next(iter(wrong))}"):
        LesionOptions(tmp_path, tmp_path, **wrong)


def test_a_folder_without_masks_is_one_line(source, tmp_path):
    (tmp_path / "images").mkdir()
    for path in (source / "images").iterdir():
        (tmp_path / "images" / path.name).write_bytes(path.read_bytes())
    with pytest.raises(UserError, match="no normal radiograph with a mask left"):
        LesionBuilder(LesionOptions(tmp_path, tmp_path / "out")).build()
