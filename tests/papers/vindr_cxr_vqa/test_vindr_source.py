"""Layouts of VinDr-CXR's annotations and images, size tables, and what is wrong with them."""

import shutil
from pathlib import Path

import numpy as np
import PIL.Image
import pydicom
import pytest
from pydicom.data import get_testdata_file

from cxrjax.commands import build
from cxrjax.errors import UserError
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.input_pipeline.usable_records import check_records
from cxrjax.papers.vindr_cxr_vqa.annotation import ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.box_table import check_image_labels, read_box_table
from cxrjax.papers.vindr_cxr_vqa.source import find_source, read_official_test, sample_test300
from cxrjax.records import read_records
from cxrjax.records_io.csv_table import read_size_table
from cxrjax.records_io.quality import QualityLog
from tests.evaluation import made

SAMPLE = Path(__file__).parents[3] / "data" / "vindr_cxr_vqa" / "sample"
TABLE = SAMPLE / "train.csv"
# Heights and widths under which the sample's boxes lie within their images.
HEART, NODULES = (2080, 2336), (2400, 2000)
SIZES = {"sample_normal": (2500, 2048), "sample_heart": HEART, "sample_nodules": NODULES}


@pytest.fixture
def physionet(tmp_path) -> Path:
    """The sample in PhysioNet's layout: training and test annotations and image labels."""
    return shutil.copytree(Path(__file__).with_name("physionet"), tmp_path / "vindr-cxr")


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def _dicom(path: Path, size: tuple[int, int]) -> None:
    dataset = pydicom.dcmread(get_testdata_file("CT_small.dcm"))
    dataset.Rows, dataset.Columns = size
    dataset.PixelData = np.arange(size[0] * size[1], dtype=np.uint16).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.save_as(path)


def _png(path: Path, size: tuple[int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(np.zeros(size, np.uint8)).save(path)


def _size_table(path: Path, sizes: dict) -> Path:
    lines = ["image_id,dim0,dim1", *(f"{name},{h},{w}" for name, (h, w) in sizes.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


def _build(source: Path, out: Path, *flags: str) -> list:
    common = ["--dataset=vindr_cxr_vqa", f"--source={source}", f"--out={out}", "--processes=1"]
    build.main([*common, *flags])
    return [r for name in ("train", "validation") for r in read_records(_split(out, name))]


def _split(out: Path, name: str) -> Path:
    return out / "records" / f"{name}.jsonl"


def _quality(out: Path) -> dict:
    return made.read_json(out / "quality.json")


def test_physionet_layout_gives_what_the_kaggle_table_gives(physionet, tmp_path):
    source = find_source(physionet)
    assert source.table == physionet / "annotations/annotations_train.csv"
    ours = {i.image_id: i.readers for i in read_box_table(source.table, QualityLog())}
    assert ours == {i.image_id: i.readers for i in read_box_table(TABLE)}
    records = _build(physionet, tmp_path / "out", "--strict")
    kaggle = _build(TABLE, tmp_path / "kaggle")
    # Questions are dealt over all images, and this layout brings the official test's too.
    assert {(r.image_id, r.split) for r in records} == {(r.image_id, r.split) for r in kaggle}
    assert all(ours[r.image_id].keys() == r.readers.keys() for r in records)
    assert _quality(tmp_path / "out")["warnings"] == {}


def test_physionet_tables_in_the_folder_itself(physionet):
    for file in (physionet / "annotations").iterdir():
        file.rename(physionet / file.name)
    source = find_source(physionet)
    assert source.table == physionet / "annotations_train.csv"
    assert source.labels == physionet / "image_labels_train.csv"
    assert source.test is not None and source.test.labels == physionet / "image_labels_test.csv"


def test_labels_that_contradict_boxes_are_counted(physionet):
    table = physionet / "annotations/annotations_train.csv"
    lines = table.read_text().splitlines()
    heart = next(k for k, line in enumerate(lines) if "sample_heart,S1,Cardiomegaly" in line)
    lines[heart] = "sample_heart,S1,ILD," + lines[heart].split(",", 3)[3]
    table.write_text("\n".join([*lines, "elsewhere,S1,No finding,,,,"]) + "\n")
    labels = physionet / "annotations/image_labels_train.csv"
    more = ["nowhere,S1" + ",0" * 28, "sample_normal,S1" + ",0" * 28, "x,S1" + ",2" * 28, "x"]
    labels.write_text("\n".join([*labels.read_text().splitlines(), *more]) + "\n")
    quality = QualityLog()
    check_image_labels(labels, read_box_table(table), quality)
    assert quality.warnings == {
        "image labels: Cardiomegaly labelled, without a box": 1,
        "image labels: ILD boxed, and not labelled": 1,
        "image labels of an image and reader without rows of boxes": 1,
        "rows of boxes of an image and reader without image labels": 1,
    }
    reasons = ("duplicate_row", 12), ("malformed_row", 13), ("malformed_row", 14)
    found = [(entry.reason, entry.where) for entry in quality.entries]
    assert found == [(reason, f"image_labels_train.csv:{line}") for reason, line in reasons]


def test_official_test_is_a_consensus_of_its_own(physionet):
    source = find_source(physionet)
    assert source.test is not None
    quality = QualityLog()
    images = read_official_test(source.test, quality)
    assert [(i.image_id, i.present, list(i.readers)) for i in images] == [
        ("t1", ["ILD"], ["consensus"]),
        ("t2", [], ["consensus"]),
    ]
    assert not quality.entries and not quality.warnings
    _replace(source.test.table, "ILD", "Edema")
    read_official_test(source.test, quality)
    assert quality.warnings == {"image labels: ILD labelled, without a box": 1}


def test_test300_is_a_seeded_sample_whatever_the_order():
    images = [ImageAnnotation(f"{k:04d}", "", None, [], {}) for k in range(3000)]
    sample = sample_test300(images, seed=1)
    assert len({image.image_id for image in sample}) == 300
    assert sample_test300(images[::-1], seed=1) == sample
    assert sample_test300(images, seed=2) != sample
    assert sample_test300(images[:20], seed=1) == images[:20]


def test_dicom_png_and_resized_folders_build_the_same_records(tmp_path):
    """Sizes from the DICOM header, a PNG's, a size table beside small PNGs, or that alone."""
    (tmp_path / "dicom").mkdir()
    built = []
    for kind in ("dicom", "png", "resized", "table"):
        source = tmp_path / kind
        source.mkdir(exist_ok=True)
        (source / "train.csv").write_bytes((TABLE).read_bytes())
        for name, size in SIZES.items():
            if kind == "dicom":
                _dicom(source / "train" / f"{name}.dicom", size)
            elif kind == "png":
                _png(source / "images" / f"{name}.png", size)
            elif kind == "resized":
                scale = 512 / max(size)
                small = tuple(round(side * scale) for side in size)
                _png(source / "train" / f"{name}.png", small)
        flags = []
        if kind == "resized":
            _size_table(source / "train_meta.csv", SIZES)  # found by its name
        if kind == "table":
            flags = [f"--sizes={_size_table(tmp_path / 'sizes.csv', SIZES)}"]
        records = _build(source, tmp_path / "out" / kind, "--strict", *flags)
        sizes = {r.image_id: r.image_hw for r in records}
        assert sizes == {"sample_heart": HEART, "sample_nodules": NODULES}
        built.append([r.model_copy(update={"image_path": "", "provenance": None}) for r in records])
        if kind != "table":
            check = check_records(RecordSource(_split(tmp_path / "out" / kind, "train")))
            assert not check.quality.entries
    assert built[0] == built[1] == built[2] == built[3]


def _source_with(tmp_path: Path, sizes: dict) -> Path:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.csv").write_bytes((TABLE).read_bytes())
    for name, size in sizes.items():
        _png(source / "images" / f"{name}.png", size)
    return source


def test_pictures_that_are_no_resize_of_the_original_are_set_aside(tmp_path):
    source = _source_with(tmp_path, {"sample_heart": (208, 234), "sample_nodules": (512, 512)})
    _size_table(source / "train_meta.csv", SIZES)
    records = _build(source, tmp_path / "out")
    assert {r.image_id for r in records} == {"sample_heart"}
    (entry,) = _quality(tmp_path / "out")["set_aside"]
    assert (entry["reason"], entry["item"]) == ("size_mismatch", "sample_nodules")
    assert "[512, 512]" in entry["found"] and "[2400, 2000]" in entry["found"]


def test_an_image_in_two_folders_or_formats_is_set_aside(tmp_path):
    source = _source_with(tmp_path, SIZES)
    _png(source / "train" / "sample_heart.png", (4, 4))
    _png(source / "train" / "nobody.png", (4, 4))
    records = _build(source, tmp_path / "out")
    assert {r.image_id for r in records} == {"sample_nodules"}
    quality = _quality(tmp_path / "out")
    (entry,) = quality["set_aside"]
    assert (entry["reason"], entry["item"]) == ("duplicate_id", "sample_heart")
    assert "images/sample_heart.png and" in entry["where"]
    # The normal image and the stray one.
    assert quality["warnings"]["image files that nothing is asked about"] == 2


def test_an_image_without_a_size_in_the_table_is_set_aside(tmp_path):
    source = _source_with(tmp_path, SIZES)
    _size_table(source / "train_meta.csv", {"sample_heart": HEART})
    assert {r.image_id for r in _build(source, tmp_path / "out")} == {"sample_heart"}
    assert _quality(tmp_path / "out")["counts"]["unknown_size"] == 1


def test_size_tables_and_their_bad_rows(tmp_path):
    path = tmp_path / "sizes.csv"
    rows = ["a,10,20", "a,10,20", "b,1,2", "b,1,3", "c,0,1", "d,x,1", "e,1", "f,3.0,4.0"]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(["image_id,height,width", *rows]).encode())
    quality = QualityLog()
    assert read_size_table(path, quality) == {"a": (10, 20), "f": (3, 4)}
    assert [(e.reason, e.item, e.where) for e in quality.entries] == [
        ("duplicate_id", "b", "sizes.csv:5"),
        ("bad_size", "c", "sizes.csv:6"),
        ("bad_size", "d", "sizes.csv:7"),
        ("malformed_row", "e", "sizes.csv:8"),
    ]
    path.write_text("image_id,dim1,dim0\na,20,10\n")
    assert read_size_table(path, QualityLog()) == {"a": (10, 20)}
    for text, told in (
        ("width\na,20", "column height is missing"),
        ("width,height", "no usable size"),
    ):
        path.write_text(f"image_id,{text}\n")
        with pytest.raises(UserError, match=told):
            read_size_table(path, QualityLog())


def test_sizes_join_a_finished_build_by_a_table_alone(tmp_path):
    without = _build(TABLE, tmp_path / "built")
    assert all(record.image_hw is None for record in without)
    check = check_records(RecordSource(_split(tmp_path / "built", "train")))
    assert len(check.indices) == check.quality.examined["questions"]  # refused until joined
    sizes = _size_table(tmp_path / "sizes.csv", SIZES)
    common = ["--dataset=sizes", f"--source={tmp_path / 'built'}", f"--sizes={sizes}"]
    build.main([*common, f"--out={tmp_path / 'joined'}", "--strict"])
    for name in ("train", "validation"):
        joined = list(read_records(_split(tmp_path / "joined", name)))
        before = list(read_records(_split(tmp_path / "built", name)))
        assert [r.image_hw for r in joined] == [SIZES[r.image_id] for r in before]
        root = tmp_path / "joined"
        for old, new in zip(before, joined, strict=True):
            assert (root / new.image_path).resolve() == tmp_path / "built" / old.image_path
            update = {"image_hw": None, "image_path": old.image_path}
            assert new.model_copy(update=update) == old
        questions = list(read_records(tmp_path / "joined" / "questions" / f"{name}.jsonl"))
        assert [q.image_hw for q in questions] == [r.image_hw for r in joined]
    # Known, and another; too small for the boxes; not in the table.
    _size_table(sizes, {"sample_heart": (2080, 2337), "sample_nodules": NODULES})
    common[1] = f"--source={tmp_path / 'joined'}"
    with pytest.raises(UserError, match=r"found with --strict: \{"):
        build.main([*common, f"--out={tmp_path / 'again'}", "--strict"])
    assert _quality(tmp_path / "again")["counts"]["size_mismatch"] == 4
    common[1] = f"--source={tmp_path / 'built'}"
    _size_table(sizes, {"sample_heart": (9, 9)})
    with pytest.raises(UserError, match="'box_outside_image': 4, 'unknown_size': 4"):
        build.main([*common, f"--out={tmp_path / 'none'}"])
    with pytest.raises(UserError, match="choose another"):
        build.main([*common, f"--out={tmp_path / 'built'}"])
    with pytest.raises(UserError, match="no records"):
        build.main(["--dataset=sizes", f"--source={SAMPLE}", common[2], f"--out={tmp_path / 'x'}"])
    with pytest.raises(UserError, match="needs --sizes"):
        build.main([*common[:2], f"--out={tmp_path / 'x'}"])


def test_strict_ends_with_an_error_but_not_for_classes_left_out(tmp_path):
    table = tmp_path / "train.csv"
    table.write_text((TABLE).read_text() + "sample_heart,ILD\n")
    with pytest.raises(UserError, match=r"quality\.json: found with --strict: .*malformed_row"):
        _build(table, tmp_path / "out", "--strict")
    assert (tmp_path / "out" / "manifest.json").is_file()
    assert {r.image_id for r in _build(table, tmp_path / "out")} == {"sample_nodules"}
    records = _build(SAMPLE / "annotations_train.csv", tmp_path, "--strict")
    assert records and _quality(tmp_path)["counts"]["class_not_selected"] == 1
