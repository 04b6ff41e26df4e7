"""The table of boxes: both spellings, compressed, in the wheel; every kind of bad row."""

import gzip
import json
import zipfile
from pathlib import Path

import pytest

from cxrjax.errors import UserError
from cxrjax.papers.vindr_cxr_vqa.annotation import FindingBox
from cxrjax.papers.vindr_cxr_vqa.box_table import WHEEL_MEMBER, read_box_table, write_box_table
from cxrjax.papers.vindr_cxr_vqa.construct.mix import pick_normal
from cxrjax.records_io.quality import QualityLog
from tests.evaluation import made

CASES = made.cases_of(__file__)

SAMPLE = Path(__file__).parents[3] / "data" / "vindr_cxr_vqa" / "sample"
TABLE = SAMPLE / "train.csv"
HEADER = "image_id,class_name,class_id,rad_id,x_min,y_min,x_max,y_max,width,height"


def _table(folder: Path, *rows: str, header: str = HEADER) -> Path:
    path = folder / "train.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_sample():
    images = {image.image_id: image for image in read_box_table(TABLE)}
    assert list(images) == ["sample_normal", "sample_heart", "sample_nodules"]
    assert images["sample_normal"].findings == []
    assert images["sample_normal"].readers == {"S1": [], "S2": [], "S3": []}
    heart = images["sample_heart"]
    assert heart.readers["S3"] == [FindingBox("Cardiomegaly", (688.0, 1369.0, 1649.0, 1828.0))]
    assert heart.present == ["Aortic enlargement", "Cardiomegaly"]
    assert (heart.votes("Cardiomegaly"), heart.votes("Aortic enlargement")) == (3, 1)
    assert heart.image_hw is None
    # From the top, then from the left: the second reader's twin box begins two pixels higher.
    assert images["sample_nodules"].boxes_of("Nodule/Mass")[0] == (510.0, 598.0, 592.0, 680.0)


def test_spellings_of_tables_compressed_or_in_a_wheel(tmp_path):
    quality = QualityLog()
    images = read_box_table(SAMPLE / "annotations_train.csv", quality)
    heart = images[1]
    assert heart.image_hw == (2080, 2336)
    assert heart.present == ["Cardiomegaly"]
    assert list(heart.readers) == ["S1", "S2", "S3"]
    assert quality.counts()["class_not_selected"] == 1
    assert quality.entries[0].where == "annotations_train.csv:6"
    plain = (TABLE).read_bytes()
    packed = tmp_path / "train.csv.gz"
    packed.write_bytes(gzip.compress(plain))
    wheel = tmp_path / "torchxrayvision.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(WHEEL_MEMBER, gzip.compress(plain))
    expected = read_box_table(TABLE)
    assert read_box_table(packed) == expected
    assert read_box_table(wheel) == expected


@pytest.mark.parametrize(("row", "reason", "found"), CASES["bad_rows"])
def test_bad_rows_set_their_image_aside(tmp_path, row, reason, found):
    good = "b,Cardiomegaly,3,R1,1,1,2,2,10,10"
    path = _table(tmp_path, "a,ILD,5,R2,1,1,2,2,10,10", row, good)
    quality = QualityLog()
    images = read_box_table(path, quality)
    assert [image.image_id for image in images] == ["b"]
    (entry,) = quality.entries
    assert (entry.reason, entry.item, entry.where) == (reason, "a", "train.csv:3")
    assert found in entry.found
    assert quality.examined["rows"] == 3
    with pytest.raises(UserError, match=f"train.csv:3: a: {reason}"):
        read_box_table(path)


def test_rows_without_an_image_or_on_the_border_and_as_spreadsheets_write_them(tmp_path):
    quality = QualityLog()
    rows = (",Cardiomegaly,3,R1,1,1,2,2,10,10", "", "b,ILD,5,R1,1,1,2,2,10,10")
    assert [image.image_id for image in read_box_table(_table(tmp_path, *rows), quality)] == ["b"]
    assert [(e.reason, e.where) for e in quality.entries] == [("malformed_row", "train.csv:2")]
    assert quality.examined["rows"] == 2  # a blank line is no row
    path = _table(tmp_path, "a,Cardiomegaly,3,R1,0,0,10,20,10,20")
    assert len(read_box_table(path)[0].findings) == 1
    padded = _table(
        tmp_path, "a, cardiomegaly ,3.0, R1,1,1,2,2,10.0,10.0", "a,NO FINDING,14.0,R2,,,,,10,10"
    )
    (image,) = read_box_table(padded)
    box = FindingBox("Cardiomegaly", (1.0, 1.0, 2.0, 2.0))
    assert image.readers == {"R1": [box], "R2": []} and image.image_hw == (10, 10)


@pytest.mark.parametrize("row", ["a,ILD,5,R1,1,1,2,2,10,10", "a,No finding,14,R2,,,,,10,10"])
def test_a_row_that_stands_twice_counts_once(tmp_path, row):
    quality = QualityLog()
    (image,) = read_box_table(_table(tmp_path, row, row), quality)
    assert len(image.readers) == 1 and len(image.findings) <= 1
    assert [(e.reason, e.where) for e in quality.entries] == [("duplicate_row", "train.csv:3")]


@pytest.mark.parametrize("prefix", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_byte_order_mark_and_line_ends_change_nothing(tmp_path, prefix, newline):
    plain = (TABLE).read_bytes()
    path = tmp_path / "train.csv"
    path.write_bytes(prefix + plain.replace(b"\n", newline))
    quality = QualityLog()
    assert read_box_table(path, quality) == read_box_table(TABLE)
    assert quality.entries == []


def test_a_row_in_another_encoding_is_set_aside_alone(tmp_path):
    rows = [f"{name},ILD,5,R1,1,1,2,2,10,10" for name in ("a", "ảnh", "b", "c")]
    rows[2] = rows[2].replace("R1", "Ré")
    path = tmp_path / "train.csv"
    lines = [HEADER, *rows]
    path.write_bytes(b"\n".join(x.encode("latin-1" if "é" in x else "utf-8") for x in lines))
    quality = QualityLog()
    assert [image.image_id for image in read_box_table(path, quality)] == ["a", "ảnh", "c"]
    (entry,) = quality.entries
    assert (entry.reason, entry.item, entry.where) == ("bad_encoding", "b", "train.csv:4")
    assert entry.found == r"'R\\xe9' is not UTF-8"
    json.dumps(quality.to_json(), ensure_ascii=False).encode()


def test_consensus_without_readers(tmp_path):
    rows = ("a,ILD,1,1,2,2", "a,Rib fracture,1,1,2,2", "b,No finding,,,,")
    path = _table(tmp_path, *rows, header="image_id,class_name,x_min,y_min,x_max,y_max")
    with pytest.raises(UserError, match="column rad_id is missing"):
        read_box_table(path)
    quality = QualityLog()
    images = read_box_table(path, quality, reader="consensus")
    assert [image.readers for image in images] == [
        {"consensus": [FindingBox("ILD", (1.0, 1.0, 2.0, 2.0))]},
        {"consensus": []},
    ]
    assert quality.counts()["class_not_selected"] == len(quality.entries) == 1


@pytest.mark.parametrize(
    ("separator", "encoding", "told"),
    [(";", "utf-8", "semicolons"), ("\t", "utf-8", "tabs"), (",", "utf-16", "UTF-16"),
     (",", "utf-16-le", "UTF-16"), (";", "utf-16", "UTF-16")],
)  # fmt: skip
def test_a_table_separated_or_encoded_otherwise_is_named(tmp_path, separator, encoding, told):
    path = tmp_path / "train.csv"
    text = (TABLE).read_text().replace(",", separator)
    path.write_text(text, encoding=encoding)
    with pytest.raises(UserError, match=rf"train\.csv:1: .*{told}.*; save the table as UTF-8"):
        read_box_table(path)


@pytest.mark.parametrize("image_id", ["../up", "a/b", "a\0b", ".."])
def test_an_id_that_leads_elsewhere_is_set_aside(tmp_path, image_id):
    quality = QualityLog()
    rows = (f"{image_id},ILD,5,R1,1,1,2,2,10,10", "b,ILD,5,R1,1,1,2,2,10,10")
    images = read_box_table(_table(tmp_path, *rows), quality)
    assert [image.image_id for image in images] == ["b"] and len(quality.entries) == 1


def test_broken_files(tmp_path):
    with pytest.raises(UserError, match="column class_name is missing"):
        read_box_table(_table(tmp_path, header="image_id,rad_id,x_min,y_min,x_max,y_max"))
    with pytest.raises(UserError, match="column rad_id occurs twice"):
        read_box_table(_table(tmp_path, header=HEADER + ",rad_ID"))
    with pytest.raises(UserError, match=r"train\.csv:2: a: malformed_row: 3 cells, expected 10"):
        read_box_table(_table(tmp_path, "a,b,c"))
    with pytest.raises(UserError, match="cannot read the table"):
        read_box_table(tmp_path / "missing.csv")
    broken, whole = tmp_path / "broken.csv.gz", gzip.compress(TABLE.read_bytes())
    for content in (whole[:-20], whole[:30] + b"\xff" * 30 + whole[60:]):
        broken.write_bytes(content)
        with pytest.raises(UserError, match=r"broken\.csv\.gz: not a whole archive"):
            read_box_table(broken)
    wheel = tmp_path / "other.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other.py", "")
    with pytest.raises(UserError, match="expected torchxrayvision"):
        read_box_table(wheel)
    wheel.write_bytes(b"no zip")
    with pytest.raises(UserError, match=r"other\.whl"):
        read_box_table(wheel)


def test_tables_are_read_back_and_other_findings_are_not_normal(tmp_path):
    original = read_box_table(TABLE)
    path = tmp_path / "train.csv"
    assert write_box_table(path, original) == 12
    again = read_box_table(path)
    assert [(i.image_id, i.readers) for i in again] == [(i.image_id, i.readers) for i in original]
    # Rows come back reader by reader.
    for left, right in zip(again, original, strict=True):
        assert sorted(f.box for f in left.findings) == sorted(f.box for f in right.findings)
    rows = ("a,Rib fracture,,R1,1,1,2,2,,", "a,No finding,14,R2,,,,,,", "b,No finding,14,R1,,,,,,")
    images = read_box_table(_table(tmp_path, *rows), QualityLog())
    assert [(image.image_id, image.findings, image.normal) for image in images] == [
        ("a", [], False),
        ("b", [], True),
    ]
    assert [image.image_id for image in pick_normal(images, 5, seed=0)] == ["b"]
