"""What files are made of, and how their refusal reads."""

import struct
import zlib

import pytest

from cxrjax.errors import UserError
from cxrjax.images.decode import read_image
from cxrjax.images.files import ImageError


def refusal(path, reader=read_image) -> str:
    """The message of the refusal, which must be one short line that names the file."""
    with pytest.raises(ImageError) as caught:
        reader(path)
    message = str(caught.value)
    assert isinstance(caught.value, UserError)
    assert message.isprintable() and len(message) < 700 and message.startswith(f"{path}: ")
    return message


def chunk(kind: bytes, content: bytes) -> bytes:
    """A chunk of a PNG."""
    length, check = len(content), zlib.crc32(kind + content)
    return struct.pack(">I", length) + kind + content + struct.pack(">I", check)


def png_bytes(width, height, depth, colour_type, *chunks) -> bytes:
    """A PNG of that header and those chunks."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join([chunk(b"IHDR", header), *chunks, chunk(b"IEND", b"")])


def segment(marker: int, content: bytes) -> bytes:
    """A segment of a JPEG."""
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(content) + 2) + content
