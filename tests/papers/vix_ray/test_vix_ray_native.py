"""Parquet rows in and out: complete, or rejected by reason; words of Vietnamese reports."""

import os
import subprocess
import sys
import unicodedata

import pyarrow
import pyarrow.parquet
import pytest

from cxrjax.errors import UserError
from cxrjax.papers.vix_ray.native import find_shards, read_rows
from cxrjax.papers.vix_ray.records import understand
from cxrjax.papers.vix_ray.segmenters import load_segmenter, words
from cxrjax.records_io.quality import QualityLog
from tests.evaluation import made

from .conftest import FINDINGS, png, row, write

CASES = made.cases_of(__file__)


def read(path):
    """(studies, quality log) of a file or folder."""
    quality = QualityLog()
    folder = path if path.is_dir() else path.parent
    rows = list(read_rows(find_shards(folder), quality))
    return [understand(r, "images/x.png", "", quality) for r in rows], quality


def test_rows_are_read_in_order_with_ids_of_their_split(folder):
    studies, quality = read(folder)
    train = [f"vixray-train-{n:05d}" for n in range(5)]
    ids = [*train, "vixray-validation-00000", "vixray-test-00000"]
    assert [s.image_id for s in studies] == ids
    assert studies[3].where == "train-00001-of-00002.parquet row 0"
    assert (studies[0].sex, studies[0].age, studies[0].view) == ("M", 60, "PA")
    assert not quality.entries and quality.examined["rows"] == 7


@pytest.mark.parametrize("names", CASES["column_names"])
def test_column_names_are_known_in_all_their_spellings(tmp_path, names):
    cells = {names.get(name, name): value for name, value in row(**{"Ghi chú": "Ho"}).items()}
    write(tmp_path / "train.parquet", [cells])
    (study,), quality = read(tmp_path)
    assert (study.findings, study.impression, study.age) == (FINDINGS, "Bóng tim to.", 60)
    assert (study.sex, study.view, study.note) == ("M", "PA", "Ho")
    assert not quality.entries and not quality.warnings
    assert {name for name in study.native["columns"]} == set(cells)


def test_columns_of_images_numbers_and_lists(tmp_path):
    write(tmp_path / "train.parquet", [row(image=png(3))])
    (read_row,) = read_rows(find_shards(tmp_path), QualityLog())
    assert read_row.image == png(3) and read_row.native["image"] is None
    write(tmp_path / "train.parquet", [row(findings=7)])
    studies, quality = read(tmp_path)
    assert not studies and quality.entries[0].found == "findings is no text; expected text"
    write(tmp_path / "train.parquet", [row(extra=[1, 2])])
    (study,), quality = read(tmp_path)
    assert "extra" not in study.native["columns"]
    assert any("'extra'" in warning for warning in quality.warnings)


@pytest.mark.parametrize(("value", "sex"), CASES["sexes"])
def test_sexes(tmp_path, value, sex):
    write(tmp_path / "train.parquet", [row(sex=value)])
    (study,), quality = read(tmp_path)
    assert study.sex == sex
    assert bool(quality.warnings) == (sex is None)
    assert study.native["columns"]["sex"] == value  # as it stood, for writing back


@pytest.mark.parametrize(("value", "age"), CASES["ages"])
def test_ages(tmp_path, value, age):
    write(tmp_path / "train.parquet", [row(Ages=value)])
    (study,), quality = read(tmp_path)
    assert study.age == age
    assert any("age" in warning for warning in quality.warnings) == (age is None)


@pytest.mark.parametrize(("value", "view"), CASES["views"])
def test_views(tmp_path, value, view):
    write(tmp_path / "train.parquet", [row(view=value)])
    (study,), _ = read(tmp_path)
    assert study.view == view


def test_text_is_nfc_and_what_is_not_understood_named_by_its_row(tmp_path):
    decomposed = unicodedata.normalize("NFD", "Bóng  tim\nto.")
    write(tmp_path / "train.parquet", [row(findings=decomposed)])
    (study,), quality = read(tmp_path)
    assert study.findings == "Bóng tim to."
    assert study.native["columns"]["findings"] == decomposed
    assert quality.warnings["findings not in Unicode's form NFC, read in it"] == 1
    write(tmp_path / "train.parquet", [row(Ages="60"), row(1, Ages="Nguyễn Văn An")])
    _, quality = read(tmp_path)
    assert quality.warnings["age not understood: vixray-train-00001 (train.parquet row 1)"] == 1
    assert "Nguyễn" not in str(quality.to_json())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"findings": ""}, "missing_text"),
        ({"findings": "  \n"}, "missing_text"),
        ({"impressions": None}, "missing_text"),
        ({"image": {"bytes": None, "path": "1.png"}}, "missing_image"),
        ({"image": {"bytes": b"", "path": "1.png"}}, "missing_image"),
    ],
)
def test_a_row_that_cannot_be_used_is_set_aside_and_the_ids_stay(tmp_path, changes, reason):
    write(tmp_path / "train.parquet", [row(0), row(1, **changes), row(2)])
    studies, quality = read(tmp_path)
    assert [s.image_id for s in studies] == ["vixray-train-00000", "vixray-train-00002"]
    (entry,) = quality.entries
    assert (entry.reason, entry.item) == (reason, "vixray-train-00001")
    assert entry.where == "train.parquet row 1"


def test_text_of_another_encoding_is_set_aside(tmp_path):
    latin = pyarrow.array([FINDINGS.encode("utf-16"), FINDINGS.encode()]).cast(
        pyarrow.string(), safe=False
    )
    table = pyarrow.Table.from_pylist([row(0), row(1)])
    table = table.set_column(table.schema.get_field_index("findings"), "findings", latin)
    pyarrow.parquet.write_table(table, tmp_path / "train.parquet")
    studies, quality = read(tmp_path)
    assert [s.image_id for s in studies] == ["vixray-train-00001"]
    assert quality.entries[0].found == "findings is not UTF-8 text"


@pytest.mark.parametrize(
    ("rows", "name", "message"),
    [
        ([{"findings": "a", "impressions": "b"}], "train.parquet", "0 columns for image"),
        ([row(impression="x")], "train.parquet", "2 columns for impression"),
    ],
)
def test_a_file_of_another_layout_is_refused(tmp_path, rows, name, message):
    write(tmp_path / name, rows)
    with pytest.raises(UserError, match=message):
        read(tmp_path)


def test_one_of_several_files_that_names_no_split_is_refused(tmp_path):
    for name in ("part-0.parquet", "train.parquet"):
        write(tmp_path / name, [row()])
    with pytest.raises(UserError, match=r"part-0\.parquet: begins with no split"):
        read(tmp_path)


def test_a_folder_without_files_and_files_that_are_no_parquet_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"no \*.parquet"):
        find_shards(tmp_path)
    path = write(tmp_path / "train.parquet", [row(n) for n in range(4)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    told = r"train.parquet: not a whole Parquet file .*fetch it again"
    with pytest.raises(UserError, match=told):
        read(tmp_path)
    # Damage within, the footer whole.
    path.write_bytes(whole[:4] + bytes(2000) + whole[2004:])
    with pytest.raises(UserError, match=r"train.parquet: not a whole Parquet file"):
        read(tmp_path)


# VmHWM is this program's own peak; what `resource` reports begins with that of its parent.
_READ_ALL = """
import sys
from pathlib import Path
from cxrjax.records_io.quality import QualityLog
from cxrjax.papers.vix_ray.native import find_shards, read_rows
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
before = peak()
count = sum(1 for _ in read_rows(find_shards(Path(sys.argv[1])), QualityLog()))
print(count, peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_row_group_is_in_memory_and_never_the_file(tmp_path):
    """160 images of a megabyte in row groups of 8; a process of its own, to measure it."""
    rows = [row(image={"bytes": os.urandom(1 << 20), "path": "x"}) for _ in range(160)]
    path = tmp_path / "train.parquet"
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, path, compression="none", row_group_size=8)
    command = [sys.executable, "-c", _READ_ALL, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    count, kilobytes = map(int, run.stdout.split())
    assert count == 160 and kilobytes < 110_000, run.stdout


def test_segmenters_join_syllables_keep_measures_or_say_what_to_do(monkeypatch):
    text = "Tổn thương phổi kẽ, không thấy hình ảnh tràn dịch."
    found = words(load_segmenter("pyvi"), text)
    assert {"Tổn_thương", "hình_ảnh"} <= set(found)
    assert not any(word in ",." for word in found)
    assert found == words(load_segmenter("pyvi"), unicodedata.normalize("NFD", text))
    found = words(load_segmenter("syllables"), "Chỉ số 0,55; nốt 1/3 dưới.")
    assert found == ["Chỉ", "số", "0,55", "nốt", "1/3", "dưới"]
    monkeypatch.delenv("VNCORENLP_DIR", raising=False)
    with pytest.raises(UserError, match="VNCORENLP_DIR is None"):
        load_segmenter("vncorenlp")
    with pytest.raises(UserError, match="expected one of pyvi"):
        load_segmenter("stanza")


def test_vncorenlp_where_it_is_installed():
    pytest.importorskip("py_vncorenlp")
    if "VNCORENLP_DIR" not in os.environ:
        pytest.skip("VNCORENLP_DIR is not set")
    found = words(load_segmenter("vncorenlp"), "Tổn thương phổi kẽ.")
    assert "Tổn_thương" in found
