"""Headers of weights of others: where tensors lie, checked before anything is made of it.

safetensors: https://github.com/huggingface/safetensors ("Format"). GGUF:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, little-endian, versions 2 and 3. The
reader of the package `gguf` makes Python objects of whatever a file counts, without looking at its
size, and takes 100 times as long.
"""

import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cxrjax.errors import ForeignError
from cxrjax.untrusted.foreign_files import MIB, open_foreign
from cxrjax.untrusted.json_text import parse_object
from cxrjax.untrusted.names import shown, shown_value

# Published ones have 0.2 MiB: a header is Python objects once it is read, of 20 times its size.
_MOST_SAFETENSORS = 8 * MIB
# Gemma 3's have 6 MiB, nearly all of it the 262,144 tokens.
_MOST_GGUF = 16 * MIB
_MOST_ENTRIES = 2**20  # of an array in GGUF's metadata
_MOST_COUNTED = 2**16  # of tensors and of keys
_LONGEST_NAME = 500
_MOST_DIMENSIONS = 8
_LARGEST = 2**53

# https://github.com/huggingface/safetensors/blob/main/safetensors/src/tensor.rs; bytes of one.
_ITEM_BYTES = {
    **{"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1},
    **{"U16": 2, "I16": 2, "F16": 2, "BF16": 2},
    **{"U32": 4, "I32": 4, "F32": 4},
    **{"U64": 8, "I64": 8, "F64": 8, "C64": 8},
}

_GGUF_MAGIC = b"GGUF"
_GGUF_VERSIONS = (2, 3)
_GGUF_STRING, _GGUF_ARRAY = 8, 9
# By GGUF's number of a value's type, as NumPy and struct both name it.
_GGUF_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?QqdK", strict=False))


class Stored(NamedTuple):
    """A tensor in a file."""

    name: str
    dtype: Any  # the format's own name or number of it
    shape: tuple[int, ...]  # outermost axis first
    start: int  # of its bytes in the file


def read_safetensors_header(path: Path) -> tuple[dict[str, Stored], dict[str, str]]:
    """The tensors of a safetensors file by name, in order, and the file's metadata.

    Raises:
        OSError: it cannot be read.
        ForeignError: its header is none, too large, or does not describe exactly the bytes behind
            it: every tensor of its shape and type, one after the other, to the file's end.
    """
    with open_foreign(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise ForeignError(
                f"not a whole safetensors file (a header of {length:,} bytes in a file of {size:,})"
            )
        if length > _MOST_SAFETENSORS:
            raise ForeignError(
                f"a safetensors header of {length:,} bytes, at most {_MOST_SAFETENSORS:,} are read"
            )
        content = parse_object(file.read(length))
    metadata = content.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(x, str) for x in metadata.values()):
        raise ForeignError("not a safetensors file (its __metadata__ is not of texts)")
    entries = [(*_offsets(name, entry), name) for name, entry in content.items()]
    found, end = {}, 0
    for start, stop, name in sorted(entries):
        if start != end:
            raise ForeignError(
                f"not a whole safetensors file ({shown(name)} starts at byte {start:,} of the "
                f"data, expected {end:,})"
            )
        dtype, shape = content[name]["dtype"], tuple(content[name]["shape"])
        found[name] = Stored(name, dtype, shape, 8 + length + start)
        end = stop
    if end != size - 8 - length:
        raise ForeignError(
            f"not a whole safetensors file ({end:,} bytes of tensors by its header, "
            f"{size - 8 - length:,} in the file)"
        )
    return found, metadata


def _offsets(name: str, entry: Any) -> tuple[int, int]:
    """First and last byte of a tensor in the data, where its entry is one."""
    _check_name(name)
    keys = entry.keys() if isinstance(entry, dict) else ()
    if set(keys) != {"dtype", "shape", "data_offsets"}:
        raise ForeignError(f"not a safetensors file ({shown(name)} has no type, shape and offsets)")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        raise ForeignError(
            f"{shown(name)} is of dtype {shown_value(dtype)}, expected one of "
            f"{', '.join(_ITEM_BYTES)}"
        )
    if not (_are_sizes(shape) and len(shape) <= _MOST_DIMENSIONS):
        raise ForeignError(f"{shown(name)} has shape {shown_value(shape)}, which no tensor has")
    if not (_are_sizes(offsets) and len(offsets) == 2):
        raise ForeignError(f"{shown(name)} is at {shown_value(offsets)}, expected two offsets")
    nbytes = math.prod(shape) * _ITEM_BYTES[dtype]
    if offsets[1] - offsets[0] != nbytes:
        raise ForeignError(
            f"{shown(name)} of shape {shape} and type {dtype} has {nbytes:,} bytes, and "
            f"{offsets[1] - offsets[0]:,} are stored"
        )
    return offsets[0], offsets[1]


def _are_sizes(found: Any) -> bool:
    return isinstance(found, list) and all(
        type(number) is int and 0 <= number <= _LARGEST for number in found
    )


def _check_name(name: str) -> None:
    if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        raise ForeignError(
            f"a tensor or key is called {shown(name)}, expected 1 to {_LONGEST_NAME} printable "
            "characters"
        )


class GGUFHeader(NamedTuple):
    """Header of a GGUF file: metadata and the table of tensors."""

    metadata: dict[str, Any]  # by key: numbers, texts, arrays of numbers and lists of texts
    tensors: dict[str, Stored]  # by name, in the file's order; `dtype` is GGML's number of a type


def read_gguf_header(path: Path, block_sizes: Mapping[int, tuple[int, int]]) -> GGUFHeader:
    """The metadata of a GGUF file, and where its tensors lie.

    Args:
        block_sizes: by GGML's number of a type: values and bytes of a block.

    Raises:
        OSError: it cannot be read.
        ForeignError: it is none, is cut short, or counts what is not there.
    """
    with open_foreign(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(_MOST_GGUF)
    if not content.startswith(_GGUF_MAGIC):
        raise ForeignError(
            f"starts with {content[:4]!r}, expected {_GGUF_MAGIC!r}; not a GGUF file"
        )
    try:
        return _gguf_header(_Cursor(content, 4), size, block_sizes)
    except (struct.error, UnicodeDecodeError, ForeignError) as error:
        why = str(error)
        if isinstance(error, struct.error):
            cut = size == len(content)
            why = "it ends within its header" if cut else f"header above {_MOST_GGUF:,} bytes"
        raise ForeignError(
            f"a GGUF file of {size} bytes that ends too early or is damaged ({why})"
        ) from None


class _Cursor:
    """Takes value after value from the beginning of a file."""

    def __init__(self, content: bytes, place: int) -> None:
        self._content, self.place = content, place

    def number(self, code: str) -> Any:
        """Raises struct.error behind the end."""
        (found,) = struct.unpack_from(f"<{code}", self._content, self.place)
        self.place += struct.calcsize(f"<{code}")
        return found

    def take(self, length: int) -> bytes:
        """Raises struct.error behind the end."""
        if length > len(self._content) - self.place:
            raise struct.error
        self.place += length
        return self._content[self.place - length : self.place]

    def text(self) -> str:
        return self.take(self.number("Q")).decode()

    def name(self) -> str:
        name = self.text()
        _check_name(name)
        return name

    def value(self, kind: int) -> Any:
        if kind == _GGUF_STRING:
            return self.text()
        if kind in _GGUF_NUMBERS:
            return self.number(_GGUF_NUMBERS[kind])
        if kind != _GGUF_ARRAY:
            raise ForeignError(f"a value of type {kind}, which the format has not")
        kind, count = self.number("I"), self.number("Q")
        if count > _MOST_ENTRIES:
            raise ForeignError(f"an array of {count:,} entries, at most {_MOST_ENTRIES:,} are read")
        if kind == _GGUF_STRING:
            return [self.text() for _ in range(count)]
        if kind not in _GGUF_NUMBERS:
            raise ForeignError(f"an array of type {kind}, expected numbers or texts")
        dtype = np.dtype(f"<{_GGUF_NUMBERS[kind]}")
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)


def _gguf_header(
    cursor: _Cursor, size: int, block_sizes: Mapping[int, tuple[int, int]]
) -> GGUFHeader:
    version = cursor.number("I")
    if version not in _GGUF_VERSIONS:
        raise ForeignError(f"version {version}, expected one of {_GGUF_VERSIONS}, little-endian")
    num_tensors, num_keys = cursor.number("Q"), cursor.number("Q")
    if max(num_tensors, num_keys) > _MOST_COUNTED:
        raise ForeignError(
            f"{num_tensors:,} tensors and {num_keys:,} keys, at most {_MOST_COUNTED:,} are read"
        )
    metadata: dict[str, Any] = {}
    # Each turn takes bytes of the file, so that what is counted ends with them.
    for _ in range(num_keys):
        key = cursor.name()
        if key in metadata:
            raise ForeignError(f"the key {shown(key)} twice")
        metadata[key] = cursor.value(cursor.number("I"))
    listed: dict[str, Stored] = {}
    for _ in range(num_tensors):
        name, dimensions = cursor.name(), cursor.number("I")
        if name in listed or not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise ForeignError(f"tensor {shown(name)} twice, or of {dimensions} dimensions")
        shape = tuple(cursor.number("Q") for _ in range(dimensions))[::-1]
        listed[name] = Stored(name, cursor.number("I"), shape, cursor.number("Q"))
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not (1 <= alignment <= MIB and alignment.bit_count() == 1):
        raise ForeignError(
            f"general.alignment is {shown_value(alignment)}, expected a power of two"
        )
    begin = cursor.place + -cursor.place % alignment
    end = begin
    for tensor in sorted(listed.values(), key=lambda tensor: tensor.start):
        values, nbytes = block_sizes.get(tensor.dtype, (0, 0))
        if not values or tensor.shape[-1] % values or min(tensor.shape) < 1:
            raise ForeignError(
                f"tensor {shown(tensor.name)} has shape {tensor.shape} and type {tensor.dtype}, "
                "which do not go together"
            )
        start = begin + tensor.start
        if start < end or start % alignment:
            raise ForeignError(f"tensor {shown(tensor.name)} overlaps another or is unaligned")
        end = start + math.prod(tensor.shape) // values * nbytes
        if end > size:
            raise ForeignError(f"tensor {shown(tensor.name)} ends at byte {end:,}")
    return GGUFHeader(
        metadata,
        {name: tensor._replace(start=begin + tensor.start) for name, tensor in listed.items()},
    )
