"""Tables as the world breaks them: each row is read or told apart, or one line says why not."""

import gzip
import time
import zipfile
from pathlib import Path

import pytest

from cxrjax.errors import UserError
from cxrjax.records_io import csv_table
from cxrjax.records_io.csv_table import read_table
from cxrjax.untrusted import archives


def rows(tmp_path, content, name="t.csv"):
    (tmp_path / name).write_bytes(content)
    return list(read_table(tmp_path / name, ("a", "b"), wheel_member="t.csv.gz"))


def test_a_table_in_each_dress(tmp_path):
    plain = 'a,b\r\n1,phổi\r\n\r\n3,"x\n,y"\r\n'.encode()
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as wheel:
        wheel.writestr("t.csv.gz", gzip.compress(plain))
    found = [
        rows(tmp_path, plain),
        rows(tmp_path, b"\xef\xbb\xbf" + plain),
        rows(tmp_path, gzip.compress(plain), "t.csv.gz"),
        list(read_table(tmp_path / "w.whl", ("a", "b"), wheel_member="t.csv.gz")),
    ]
    for one in found:
        assert [(*row.cells.values(), row.fault) for row in one] == [
            ("1", "phổi", None),
            ("3", "x\n,y", None),
        ]
    assert [row.where for row in found[0]] == ["t.csv:2", "t.csv:5"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "column a is missing"),
        (b"a,b,b\n", "column b occurs twice"),
        (",".join(f"c{n}" for n in range(100_000)).encode(), "100,000 columns"),
        (b"a" * 2_000_000, "line 1 has more than 1,048,576 characters"),
        (b"a,b\n1," + b"x" * 2_000_000, "line 2 has more than"),
        (b"a,b\n1," + b"x" * 200_000, r"t\.csv:2: field larger"),
        (b'a,b\n1,2\n3,"4\n' + b"5,6\n" * 200, r"t\.csv:3: a row of more than 100 lines"),
        ("a,b\n1,2\n".encode("utf-16"), "it is UTF-16"),
    ],
)
def test_tables_that_are_refused(tmp_path, content, words):
    start = time.perf_counter()
    with pytest.raises(UserError, match=words) as error:
        rows(tmp_path, content)
    assert time.perf_counter() - start < 2
    assert len(str(error.value)) < 2_000


def test_rows_that_are_told_apart_by_line(tmp_path):
    found = rows(tmp_path, b'a,b\n1\n1,\xff\n1,\0\n1,2\n"1\n2\n3\n')
    assert [(row.where, row.fault and row.fault.reason) for row in found] == [
        ("t.csv:2", "malformed_row"),
        ("t.csv:3", "bad_encoding"),
        ("t.csv:4", "malformed_row"),
        ("t.csv:5", None),
        ("t.csv:6-8", "malformed_row"),  # a quote that is never closed
    ]


@pytest.mark.parametrize(
    "content", [b"nonsense", gzip.compress(b"a,b\n" * 99, mtime=0)[:-5], b"\x1f\x8b"]
)
def test_a_packed_table_that_is_damaged(tmp_path, content):
    with pytest.raises(UserError, match=r"t\.csv\.gz: not a whole archive"):
        rows(tmp_path, content, "t.csv.gz")


def test_a_packed_table_of_next_to_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_table, "_MOST_UNUSABLE", 1_000)
    monkeypatch.setattr(archives, "FREE", 10_000)
    for line in (b"\n", b"1\n"):
        with pytest.raises(UserError, match="more than 1,000 blank lines or broken rows"):
            rows(tmp_path, gzip.compress(b"a,b\n" + line * 4_000), "t.csv.gz")
    with pytest.raises(UserError, match="more than 100 times"):
        rows(tmp_path, gzip.compress(b"a,b\n" + b"1,2\n" * 100_000), "t.csv.gz")


def test_a_wheel_s_member_that_is_packed_a_thousand_times(tmp_path):
    with zipfile.ZipFile(tmp_path / "w.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("t.csv.gz", bytes(3_000_000))
    # At most 200 times is read; what is more counts as not there.
    with pytest.raises(UserError, match=r"no t\.csv\.gz in it"):
        list(read_table(tmp_path / "w.whl", ("a",), wheel_member="t.csv.gz"))


def test_no_table_is_read_from_a_device():
    with pytest.raises(UserError, match="device or pipe"):
        list(read_table(Path("/dev/zero"), ("a",)))
