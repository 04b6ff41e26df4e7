"""The release as people have it: what its tables, or MIMIC-CXR-JPG's in their place, tell."""

import gzip
import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cxrjax.commands.build import main
from cxrjax.errors import UserError
from cxrjax.papers.cxr_qba.build import DANGLING, SPLIT_NOT_TOLD
from cxrjax.records import read_records
from tests.papers.cases import data, write_files

SIZES = {"synthetic-0001": (1200, 1000), "synthetic-0002": (900, 1100)}
SIZES["synthetic-0004"] = (1024, 1024)


@pytest.fixture
def release(sample, tmp_path):
    """A copy of the sample release, to be changed."""
    return shutil.copytree(sample / "release", tmp_path / "release")


@pytest.fixture
def build(built, release, tmp_path):
    """`build()`: the release as it was left, built."""
    return lambda source=release: built(source, tmp_path / "out")


def change(release, level, old, new):
    path = release / "metadata" / f"{level}_metadata.csv.gz"
    text = gzip.decompress(path.read_bytes()).decode()
    assert old in text
    write_files(path.parent, {path.name: text.replace(old, new)})


def sizes(built):
    return {record.image_id: record.image_hw for record in built.records}


def test_ids_without_their_letter(release, build):
    for level in ("image", "study"):
        change(release, level, "p1999", "1999")
        change(release, level, ",s5999", ",5999")
    made = build()
    assert set(made.splits) == {"train"} and sizes(made) == SIZES
    record = made.records[0]
    assert (record.patient_id, record.study_id) == ("p19990001", "s59990001")
    assert record.image_path == "files/p19/p19990001/s59990001/synthetic-0001.jpg"


def test_a_table_as_pandas_writes_it(release, build):
    """Ids as numbers, sizes with a fraction, NaN where there is none."""
    columns = {"patient_id": [19990001, 19990001, 19990002], "image_id": list(SIZES)}
    columns |= {"study_id": [59990001, 59990001, 59990002], "view_position": ["PA", "AP", "PA"]}
    columns["height"] = pa.array([1200.0, float("nan"), 1024.0])
    columns["width"] = pa.array([1000.0, 1100.0, 1024.0])
    pq.write_table(pa.table(columns), release / "metadata" / "image_metadata.parquet")
    made = build()
    assert sizes(made) == {**SIZES, "synthetic-0002": None}
    assert made.quality["warnings"]["images of which no table tells the size"] == 1


def test_tables_beside_the_folder(release, build):
    (release / "scenes").mkdir()
    shutil.move(release / "p19", release / "scenes")
    made = build(release / "scenes")
    assert set(made.splits) == {"train"} and sizes(made) == SIZES


def test_a_split_that_the_patients_table_tells(release, build):
    change(release, "study", "split", "other")
    patients = "patient_id,split\n19990001,val\n19990002,test\n"
    write_files(release / "metadata", {"patient_metadata.csv.gz": patients})
    patients = {split: {r.patient_id for r in own} for split, own in build().splits.items()}
    assert patients == {"test": {"p19990002"}, "validation": {"p19990001"}}


@pytest.mark.parametrize("own_table", ["without sizes", "missing"])
def test_mimic_s_tables_tell_what_the_release_s_do_not(release, build, own_table):
    if own_table == "missing":
        shutil.rmtree(release / "metadata")
    else:
        change(release, "image", "height,width", "h,w")
        change(release, "study", "split", "other")
    write_files(release, data(__file__)["tables"])
    made = build()
    assert sizes(made) == SIZES and set(made.splits) == {"validation", "test"}
    assert made.quality["warnings"]["images of which no table tells the size"] == 0


def test_without_any_table(release, build):
    """Images are those that the files speak of; that nothing more is known, quality.json says."""
    shutil.rmtree(release / "metadata")
    made = build()
    assert sizes(made) == {"synthetic-0001": None, "synthetic-0004": None}
    told = made.quality["warnings"]
    assert told[SPLIT_NOT_TOLD] == told["studies of which no table tells the images"] == 2
    assert told["studies without a known view, asked about their first image"] == 2


def test_sizes_that_no_table_tells_are_counted(release, build):
    change(release, "image", "height,width", "h,w")
    assert build().quality["warnings"]["images of which no table tells the size"] == 4


def test_an_image_in_two_rows_costs_its_study(release, build):
    row = "p19990001,s59990001,synthetic-0001,PA,,True,1200,1000,INCOMPLETE_LOCALIZATION\n"
    change(release, "image", row, row * 2)
    made = build()
    assert made.quality["counts"]["duplicate_id"] == 1
    assert {record.study_id for record in made.records} == {"s59990002"}


def test_a_study_that_lacks_a_file(release, build):
    next(release.rglob("s59990001.scene_graph.json")).unlink()
    next(release.rglob("s59990002.qa.json")).unlink()
    made = build()
    assert {r.study_id for r in made.splits["train"]} == {"s59990001"}
    assert made.quality["warnings"]["studies without a .scene_graph.json"] == 1
    (entry,) = made.quality["set_aside"]
    assert (entry["reason"], entry["item"]) == ("missing_file", "p19990002/s59990002")


def test_questions_about_observations_that_are_not_there(release, build):
    path = next(release.rglob("s59990001.qa.json"))
    content = json.loads(path.read_text())
    content["questions"][0]["obs_ids"] += ["OIND", "O99"]
    content["questions"][1]["obs_ids"] += ["OIND"]
    path.write_text(json.dumps(content))
    assert build().quality["warnings"][DANGLING] == 1


def test_a_table_without_a_column(release, build):
    change(release, "image", "patient_id", "subject")
    with pytest.raises(UserError, match=r"no column 'patient_id'; it has subject, study_id, image"):
        build()


def test_nothing_that_can_be_used(release, build):
    for path in release.rglob("*.json"):
        path.write_text("{}")
    with pytest.raises(UserError, match=r"no study left; .*'invalid_graph': 4.*patient_id"):
        build()


def test_lean_records_are_the_same_but_for_the_way_back(release, build, tmp_path):
    whole = build()
    flags = ["--dataset=cxr_qba", f"--source={release}", f"--out={tmp_path / 'lean'}", "--lean"]
    main(flags)
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
    assert [r.model_copy(update={"quality": {}}) for r in lean] == [bare(r) for r in whole.records]
    sizes = [(tmp_path / n / "records" / "train.jsonl").stat().st_size for n in ("lean", "out")]
    assert sizes[0] < 0.4 * sizes[1]
    assert not (tmp_path / "lean" / "questions" / "train.jsonl").exists()
    assert (tmp_path / "lean" / "questions").is_dir()


def test_counts_that_the_release_states(release, build):
    (release / "dataset_info.json").write_text('{"questions": 11, "name": "x", "grade/A": 1}')
    statistics = build().statistics
    assert (statistics["questions"]["value"], statistics["questions"]["paper"]) == (10, 11)
    assert "dataset_info.json" in statistics["questions"]["note"]
    assert statistics["studies"]["paper"] == 227_239
