"""The release as people have it: what its tables, or MIMIC-CXR-JPG's in their place, tell."""

import gzip
import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cxrjax import build
from cxrjax.errors import UserError
from cxrjax.papers.cxr_qba.build import DANGLING, SPLIT_NOT_TOLD, QbaBuilder, QbaOptions
from cxrjax.records import read_records

SIZES = {"synthetic-0001": (1200, 1000), "synthetic-0002": (900, 1100)}
SIZES["synthetic-0004"] = (1024, 1024)


@pytest.fixture
def release(sample, tmp_path):
    """A copy of the sample release, to be changed."""
    return shutil.copytree(sample / "release", tmp_path / "release")


def built(source, out):
    """(split -> records, quality.json)."""
    QbaBuilder(QbaOptions(source, out)).build()
    files = sorted((out / "records").glob("*.jsonl"))
    records = {path.stem: list(read_records(path)) for path in files}
    return records, json.loads((out / "quality.json").read_text())


def change(release, level, old, new):
    path = release / "metadata" / f"{level}_metadata.csv.gz"
    with gzip.open(path, "rt") as file:
        text = file.read()
    assert old in text
    with gzip.open(path, "wt") as file:
        file.write(text.replace(old, new))


def sizes(records):
    return {r.image_id: r.image_hw for own in records.values() for r in own}


def test_ids_without_their_letter(release, tmp_path):
    for level in ("image", "study"):
        change(release, level, "p1999", "1999")
        change(release, level, ",s5999", ",5999")
    records, _ = built(release, tmp_path / "out")
    assert set(records) == {"train"} and sizes(records) == SIZES
    record = records["train"][0]
    assert (record.patient_id, record.study_id) == ("p19990001", "s59990001")
    assert record.image_path == "files/p19/p19990001/s59990001/synthetic-0001.jpg"


def test_a_table_as_pandas_writes_it(release, tmp_path):
    """Ids as numbers, sizes with a fraction, NaN where there is none."""
    names = ["synthetic-0001", "synthetic-0002", "synthetic-0004"]
    columns = {
        "patient_id": pa.array([19990001, 19990001, 19990002]),
        "study_id": pa.array([59990001, 59990001, 59990002]),
        "image_id": names,
        "view_position": ["PA", "AP", "PA"],
        "height": pa.array([1200.0, float("nan"), 1024.0]),
        "width": pa.array([1000.0, 1100.0, 1024.0]),
    }
    pq.write_table(pa.table(columns), release / "metadata" / "image_metadata.parquet")
    records, quality = built(release, tmp_path / "out")
    assert sizes(records) == {**SIZES, "synthetic-0002": None}
    assert quality["warnings"]["images of which no table tells the size"] == 1


def test_tables_beside_the_folder(release, tmp_path):
    (release / "scenes").mkdir()
    shutil.move(release / "p19", release / "scenes")
    records, _ = built(release / "scenes", tmp_path / "out")
    assert set(records) == {"train"} and sizes(records) == SIZES


def test_a_split_that_the_patients_table_tells(release, tmp_path):
    change(release, "study", "split", "other")
    with gzip.open(release / "metadata" / "patient_metadata.csv.gz", "wt") as file:
        file.write("patient_id,split\n19990001,val\n19990002,test\n")
    records, _ = built(release, tmp_path / "out")
    assert {split: {r.patient_id for r in own} for split, own in records.items()} == {
        "test": {"p19990002"},
        "validation": {"p19990001"},
    }


@pytest.mark.parametrize("own_table", ["without sizes", "missing"])
def test_mimic_s_tables_tell_what_the_release_s_do_not(release, tmp_path, own_table):
    if own_table == "missing":
        shutil.rmtree(release / "metadata")
    else:
        change(release, "image", "height,width", "h,w")
        change(release, "study", "split", "other")
    rows = [
        f"{image_id},1999000{patient},5999000{patient},{view},{height},{width}"
        for image_id, patient, view, height, width in (
            ("synthetic-0001", 1, "PA", 1200, 1000),
            ("synthetic-0002", 1, "AP", 900, 1100),
            ("synthetic-0003", 1, "LATERAL", 1200, 1000),
            ("synthetic-0004", 2, "PA", 1024, 1024),
        )
    ]
    header = "dicom_id,subject_id,study_id,ViewPosition,Rows,Columns"
    with gzip.open(release / "mimic-cxr-2.0.0-metadata.csv.gz", "wt") as file:
        file.write("\n".join([header, *rows]) + "\n")
    with gzip.open(release / "mimic-cxr-2.0.0-split.csv.gz", "wt") as file:
        file.write("dicom_id,study_id,subject_id,split\nd,59990001,19990001,validate\n")
        file.write("d,59990002,19990002,test\n")
    records, quality = built(release, tmp_path / "out")
    assert sizes(records) == SIZES and set(records) == {"validation", "test"}
    assert quality["warnings"]["images of which no table tells the size"] == 0


def test_without_any_table(release, tmp_path):
    """Images are those that the files speak of; that nothing more is known, quality.json says."""
    shutil.rmtree(release / "metadata")
    records, quality = built(release, tmp_path / "out")
    assert sizes(records) == {"synthetic-0001": None, "synthetic-0004": None}
    told = quality["warnings"]
    assert told[SPLIT_NOT_TOLD] == told["studies of which no table tells the images"] == 2
    assert told["studies without a known view, asked about their first image"] == 2


def test_sizes_that_no_table_tells_are_counted(release, tmp_path):
    change(release, "image", "height,width", "h,w")
    _, quality = built(release, tmp_path / "out")
    assert quality["warnings"]["images of which no table tells the size"] == 4


def test_a_study_that_lacks_a_file(release, tmp_path):
    next(release.rglob("s59990001.scene_graph.json")).unlink()
    next(release.rglob("s59990002.qa.json")).unlink()
    records, quality = built(release, tmp_path / "out")
    assert {r.study_id for r in records["train"]} == {"s59990001"}
    assert quality["warnings"]["studies without a .scene_graph.json"] == 1
    (entry,) = quality["set_aside"]
    assert (entry["reason"], entry["item"]) == ("missing_file", "p19990002/s59990002")


def test_questions_about_observations_that_are_not_there(release, tmp_path):
    path = next(release.rglob("s59990001.qa.json"))
    content = json.loads(path.read_text())
    content["questions"][0]["obs_ids"] += ["OIND", "O99"]
    content["questions"][1]["obs_ids"] += ["OIND"]
    path.write_text(json.dumps(content))
    _, quality = built(release, tmp_path / "out")
    assert quality["warnings"][DANGLING] == 1


def test_a_table_without_a_column(release, tmp_path):
    change(release, "image", "patient_id", "subject")
    with pytest.raises(UserError, match=r"no column 'patient_id'; it has subject, study_id, image"):
        built(release, tmp_path / "out")


def test_nothing_that_can_be_used(release, tmp_path):
    for path in release.rglob("*.json"):
        path.write_text("{}")
    with pytest.raises(UserError, match=r"no study left to use; .*'invalid_graph': 4.*patient_id"):
        built(release, tmp_path / "out")


def test_lean_records_are_the_same_but_for_the_way_back(release, tmp_path):
    whole, _ = built(release, tmp_path / "whole")
    flags = ["--dataset=cxr_qba", f"--source={release}", f"--out={tmp_path / 'lean'}", "--lean"]
    build.main(flags)
    lean = list(read_records(tmp_path / "lean" / "records" / "train.jsonl"))

    def own(answer, image_id, above=None):
        """Boxes on the record's image; a part that lies where the answer above does has none."""
        boxes = {k: v for k, v in answer.boxes_by_image.items() if k == image_id}
        parts = [own(part, image_id, boxes) for part in answer.sub_answers]
        shown = {} if boxes == above else boxes
        told = {"answer_id": "a0", "boxes_by_image": shown, "sub_answers": parts}
        return answer.model_copy(update=told)

    def bare(record):
        """Without what only the way back needs."""
        answers = [own(answer, record.image_id) for answer in record.answers]
        variables = {k: v for k, v in (record.variables or {}).items() if k != "template_id"}
        update = {"quality": {}, "answers": answers, "variables": variables or None}
        update |= {"template_id": None, "generator": None}
        return record.model_copy(update=update)

    assert not any("template_id" in (r.variables or {}) for r in lean)
    assert [r.model_copy(update={"quality": {}}) for r in lean] == [bare(r) for r in whole["train"]]
    sizes = [(tmp_path / n / "records" / "train.jsonl").stat().st_size for n in ("lean", "whole")]
    assert sizes[0] < 0.4 * sizes[1]
    assert not (tmp_path / "lean" / "questions" / "train.jsonl").exists()
    assert (tmp_path / "lean" / "questions").is_dir()


def test_counts_that_the_release_states(release, tmp_path):
    (release / "dataset_info.json").write_text('{"questions": 11, "name": "x", "grade/A": 1}')
    built(release, tmp_path / "out")
    statistics = json.loads((tmp_path / "out" / "statistics.json").read_text())
    assert (statistics["questions"]["value"], statistics["questions"]["paper"]) == (10, 11)
    assert "dataset_info.json" in statistics["questions"]["note"]
    assert statistics["studies"]["paper"] == 227_239
