"""NumPy files and JSON arrays that are larger than memory."""

import json

import numpy as np
import pytest

from cxrjax.border.arrays import read_array
from cxrjax.border.json_stream import read_items
from cxrjax.errors import ForeignError


def npy(shape, kind="<f8", content=b""):
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode() + content


def test_an_array_comes_back(tmp_path):
    for array in (np.arange(6.0).reshape(2, 3), np.zeros((2, 0)), np.ones(3, np.int8)):
        np.save(tmp_path / "a.npy", array)
        if array.size:  # what has no cells cannot be mapped
            np.testing.assert_array_equal(read_array(tmp_path / "a.npy", 6), array)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (npy((1 << 40, 1 << 20)), "no .npy file"),
        (npy((1 << 62, 8)), "no .npy file"),
        (npy((-5,)), "no .npy file"),
        (npy((10**400,)), "no .npy file"),
        (npy((3, 3), content=bytes(71)), "no .npy file"),
        (npy((3, 3), content=bytes(72)), "at most 8 numbers"),
        (npy((2,), "|O", bytes(16)), "no .npy file"),
        (npy((2,), "<c16", bytes(32)), "expected real numbers"),
        (npy("(" * 60 + ")" * 60), "no .npy file"),
        (npy("()"), "no .npy file"),
        (b"PK\3\4", "no .npy file"),
        (b"\x93NUMPY\1\0\xff\xff", "no .npy file"),
        (b"\x93NUMPY\2\0\xff\xff\xff\xff", "no .npy file"),
        (b"\x93NUMPY\x09\0", "no .npy file"),
        (b"", "no .npy file"),
    ],
)
def test_arrays_that_are_refused(tmp_path, content, words):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(ForeignError, match=words):
        read_array(tmp_path / "a.npy", 8)


def test_items_come_one_by_one(tmp_path):
    path = tmp_path / "a.json"
    items = [{"a": [1, 2.5, None, "phổi"], "b": {}}, 1, "x" * 999, []] * 500
    for text in (json.dumps(items), "\ufeff" + json.dumps(items, indent=2, ensure_ascii=False)):
        path.write_text(text, encoding="utf-8")
        for longest in (999 + 2, 2_000, 2**20):
            assert list(read_items(path, longest)) == items
    path.write_text(" [ ] ")
    assert list(read_items(path)) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "not a whole JSON array"),
        (b"[{", "not a whole JSON array"),
        (b"[1", "not a whole JSON array"),
        (b"[1 2]", "after item 0"),
        (b"[1,]", "item 1"),
        (b"[1] [2]", "more comes after its end"),
        (b'["\xff"]', "no UTF-8"),
        (b"{}", "expected a JSON list"),
        (b"7", "expected a JSON list"),
        (b"[" + b"[" * 300 + b"]" * 300 + b"]", "recursion limit"),
        (b"[" * 1_000_000, "too deep"),
        (b'[{"a":' * 1_000_000, "too deep"),
        (b"[" + b"1" * 5_000 + b"]", "digits"),
        (b"[" + b"1" * 400 + b"]", "digits"),
        (b'["\\ud800"]', "item 0"),
        (b'["' + b"a" * 3_000_000 + b'"]', "more than 1,048,576 characters"),
        (b'["' + b"a" * 1_500_000 + b'"]', "more than 1,048,576 characters"),
        (b"[" + b" " * 3_000_000 + b"1]", "more than 1,048,576 characters"),
    ],
)
def test_arrays_of_json_that_are_refused(tmp_path, text, words):
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(ForeignError, match=words):
        list(read_items(tmp_path / "a.json"))
