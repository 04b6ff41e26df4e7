"""Headers of weights: what is there is found, what only claims to be there is refused at once."""

import json
import os
import struct
import time

import numpy as np
import pytest
from safetensors.numpy import save_file

from cxrjax.errors import ForeignError, UserError
from cxrjax.models.hf_import import SafetensorsFiles
from cxrjax.untrusted.weights import read_gguf_header, read_safetensors_header
from tests.untrusted.conftest import CASES

_PAIR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def _safetensors(path, header, data=bytes(16), length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(text) if length is None else length
    path.write_bytes(struct.pack("<Q", length) + text + data)
    return path


def test_tensors_lie_where_the_library_writes_them(tmp_path):
    path = tmp_path / "a.safetensors"
    arrays = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.zeros((0, 4), np.float16)}
    save_file(arrays, path, {"format": "pt"})
    tensors, metadata = read_safetensors_header(path)
    assert metadata == {"format": "pt"}
    found = {name: (t.dtype, t.shape) for name, t in tensors.items()}
    assert found == {"a": ("F16", (0, 4)), "b": ("F32", (2, 3))}
    content = path.read_bytes()[tensors["b"].start :][:24]
    np.testing.assert_array_equal(np.frombuffer(content, np.float32).reshape(2, 3), arrays["b"])


def test_a_safetensors_header_that_lies_is_refused(tmp_path, subtests):
    rows = [(text.encode(), said) for text, said in CASES["safetensors_that_lie"]]
    rows += [(json.dumps({"a" * 501: _PAIR}).encode(), "is called 'aaa")]
    digits = b'{"a":{"dtype":"F32","shape":[%s],"data_offsets":[0,8]}}' % (b"9" * 400)
    rows += [(digits, "digits"), (b"[" * 100_000, "not JSON"), (b"\xff{}", "not UTF-8")]
    for header, said in rows:
        path = _safetensors(tmp_path / "a.safetensors", header)
        with subtests.test(header[:99]):
            with pytest.raises(UserError, match=said) as caught:
                SafetensorsFiles([path])
            message = str(caught.value)
            assert message.startswith(f"{path}: ") and "\n" not in message and len(message) < 500
            assert "fetch the checkpoint again" in message


def test_no_more_of_a_header_is_read_than_there_can_be(tmp_path):
    path = _safetensors(tmp_path / "a", {}, length=2**63)
    with pytest.raises(UserError, match=r"a header of 9,223,372,036,854,775,808 bytes in a file"):
        SafetensorsFiles([path])
    with open(path, "wb") as file:  # a hole, that takes no room
        file.write(struct.pack("<Q", 2**30))
        file.truncate(2**31)
    with pytest.raises(UserError, match="at most 8,388,608 are read"):
        SafetensorsFiles([path])
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(UserError, match="a device or pipe, expected a file"):
            SafetensorsFiles([place])


_BLOCKS = {0: (1, 4), 8: (32, 34)}
_STRING, _ARRAY = 8, 9


def _text(text):
    return struct.pack("<Q", len(text)) + text


def _gguf(path, keys=(), tensors=(), data=bytes(64), counts=None, version=3):
    counts = (len(tensors), len(keys)) if counts is None else counts
    head = b"GGUF" + struct.pack("<IQQ", version, *counts)
    head += b"".join(_text(key) + struct.pack("<I", kind) + value for key, kind, value in keys)
    for name, shape, kind, start in tensors:
        head += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, start)
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return path


def test_what_a_gguf_says_and_where_its_tensors_lie(tmp_path):
    numbers = struct.pack("<IQ3f", 6, 3, 1.0, 2.0, 3.0)
    texts = struct.pack("<IQ", _STRING, 2) + _text(b"a") + _text("ü".encode())
    keys = [(b"n", 4, struct.pack("<I", 7)), (b"x", _ARRAY, numbers), (b"t", _ARRAY, texts)]
    tensors = [(b"second", (32, 1), 8, 32), (b"first", (2, 3), 0, 0)]
    path = _gguf(tmp_path / "a.gguf", keys, tensors, bytes(range(66)))
    metadata, found = read_gguf_header(path, _BLOCKS)
    assert metadata["n"] == 7 and metadata["t"] == ["a", "ü"]
    np.testing.assert_array_equal(metadata["x"], [1, 2, 3])
    read = [(t.name, t.dtype, t.shape) for t in found.values()]
    assert read == [("second", 8, (1, 32)), ("first", 0, (3, 2))]
    content = path.read_bytes()
    assert content[found["first"].start] == 0 and content[found["second"].start] == 32


_ONE = [(b"a", (16,), 0, 0)]


_LIES = [
    # 49 bytes that count to 10^9.
    ({"counts": (0, 10**9), "data": bytes(17)}, "1,000,000,000 keys, at most 65,536"),
    ({"counts": (10**9, 0), "data": bytes(17)}, "1,000,000,000 tensors and 0 keys, at most"),
    ({"counts": (0, 2**16), "keys": [(b"a", 0, b"x")], "data": b""}, "called ''"),
    ({"keys": [(b"a", _ARRAY, struct.pack("<IQ", 0, 10**9))]}, "an array of 1,000,000,000"),
    ({"keys": [(b"a", _ARRAY, struct.pack("<IQ", 0, 2**20))]}, "ends within its header"),
    ({"keys": [(b"a", _ARRAY, struct.pack("<IQ", _STRING, 2**20))]}, "ends within its header"),
    ({"keys": [(b"a", _ARRAY, struct.pack("<IQ", _ARRAY, 1) * 2000)]}, "an array of type 9"),
    ({"keys": [(b"a", 77, b"")]}, "a value of type 77"),
    ({"keys": [(b"a", _STRING, struct.pack("<Q", 2**63))]}, "ends within its header"),
    ({"keys": [(b"a", _STRING, _text(b"\xff"))]}, "utf-8"),
    ({"keys": [(b"a", 0, b"x"), (b"a", 0, b"x")]}, "the key 'a' twice"),
    ({"keys": [(b"general.alignment", 4, bytes(4))]}, "expected a power of two"),
    ({"keys": [(b"general.alignment", 4, struct.pack("<I", 48))]}, "expected a power of two"),
    ({"keys": [(b"general.alignment", 6, struct.pack("<f", 32))]}, "expected a power of two"),
    ({"version": 1}, "version 1"),
    ({"version": 3 << 24}, "little-endian"),
    ({"tensors": _ONE * 2}, "tensor 'a' twice"),
    ({"tensors": [(b"a", (), 0, 0)]}, "of 0 dimensions"),
    ({"tensors": [(b"a", (1,) * 9, 0, 0)]}, "of 9 dimensions"),
    ({"tensors": [(b"a", (0,), 0, 0)]}, "which do not go together"),
    ({"tensors": [(b"a", (33,), 8, 0)]}, "which do not go together"),
    ({"tensors": [(b"a", (32,), 99, 0)]}, "which do not go together"),
    ({"tensors": [(b"a", (2**40, 2**40), 0, 0)]}, "ends at byte"),
    ({"tensors": [(b"a", (16,), 0, 2**63)]}, "ends at byte"),
    ({"tensors": [(b"a", (16,), 0, 32)]}, "ends at byte"),
    ({"tensors": [(b"a", (1,), 0, 8)]}, "unaligned"),
    ({"tensors": [*_ONE, (b"b", (16,), 0, 32)]}, "overlaps another"),
]


def test_a_gguf_that_counts_what_is_not_there_is_refused(tmp_path, subtests):
    for file, said in _LIES:
        path = _gguf(tmp_path / "a.gguf", **file)
        start = time.monotonic()
        with subtests.test(said, file=str(file)[:99]):
            with pytest.raises(ForeignError, match="ends too early or is damaged") as caught:
                read_gguf_header(path, _BLOCKS)
            assert time.monotonic() - start < 1
            assert said in str(caught.value) and len(str(caught.value)) < 300


def test_any_cut_or_changed_byte_of_a_gguf_is_one_line(tmp_path):
    keys = [(b"k", _STRING, _text(b"text")), (b"x", _ARRAY, struct.pack("<IQ2f", 6, 2, 1, 2))]
    whole = _gguf(tmp_path / "a.gguf", keys, _ONE).read_bytes()
    rng = np.random.default_rng(0)
    for round_number in range(400):
        content = bytearray(whole)
        if round_number % 2:
            del content[rng.integers(len(content)) :]
        for place in rng.integers(len(content) or 1, size=rng.integers(1, 4)):
            if content:
                content[place] = rng.choice([0, 1, 127, 255, rng.integers(256)])
        path = tmp_path / "b.gguf"
        path.write_bytes(content)
        try:
            read_gguf_header(path, _BLOCKS)
        except ForeignError as error:
            assert "\n" not in str(error)
