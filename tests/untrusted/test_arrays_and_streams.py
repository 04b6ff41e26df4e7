"""NumPy files and JSON arrays that are larger than memory."""

import json

import numpy as np
import pytest

from cxrjax.errors import ForeignError
from cxrjax.untrusted.arrays import read_array
from cxrjax.untrusted.json_stream import read_items
from tests.untrusted.conftest import CASES


def npy(shape, kind="<f8", content=b""):
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode() + content


def test_an_array_comes_back(tmp_path):
    for array in (np.arange(6.0).reshape(2, 3), np.zeros((2, 0)), np.ones(3, np.int8)):
        np.save(tmp_path / "a.npy", array)
        if array.size:  # what has no cells cannot be mapped
            np.testing.assert_array_equal(read_array(tmp_path / "a.npy", 6), array)


def test_arrays_that_are_refused(tmp_path, subtests):
    shapes = ((1 << 40, 1 << 20), (1 << 62, 8), (-5,), (10**400,), "(" * 60 + ")" * 60, "()")
    no_arrays = [npy(shape) for shape in shapes]
    no_arrays += [npy((3, 3), content=bytes(71)), npy((2,), "|O", bytes(16)), b"PK\3\4", b""]
    heads = (b"\1\0\xff\xff", b"\2\0\xff\xff\xff\xff", b"\x09\0")
    no_arrays += [b"\x93NUMPY" + head for head in heads]
    others = [(npy((3, 3), content=bytes(72)), "at most 8 numbers")]
    others += [(npy((2,), "<c16", bytes(32)), "expected real numbers")]
    for content, words in [*((one, "no .npy file") for one in no_arrays), *others]:
        (tmp_path / "a.npy").write_bytes(content)
        with subtests.test(content[:99]), pytest.raises(ForeignError, match=words):
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


def test_arrays_of_json_that_are_refused(tmp_path, subtests):
    rows = [(text.encode(), words) for text, words in CASES["arrays_of_json_that_are_refused"]]
    rows += [(b'["\xff"]', "no UTF-8"), (b"[" + b"[" * 300 + b"]" * 300 + b"]", "recursion limit")]
    rows += [(start * 1_000_000, "too deep") for start in (b"[", b'[{"a":')]
    rows += [(b"[" + b"1" * count + b"]", "digits") for count in (5_000, 400)]
    long = [b'["' + b"a" * count + b'"]' for count in (3_000_000, 1_500_000)]
    long += [b"[" + b" " * 3_000_000 + b"1]"]
    rows += [(text, "more than 1,048,576 characters") for text in long]
    for text, words in rows:
        (tmp_path / "a.json").write_bytes(text)
        with subtests.test(text[:99]), pytest.raises(ForeignError, match=words):
            list(read_items(tmp_path / "a.json"))
