"""Headers of compressed images, parsed before anything decodes them.

Sizes in JPEG, JPEG-LS and JPEG 2000 codestreams, and how many segments, scans and chunks a decoder
would have to go through.
"""

import re
import struct
from collections.abc import Iterator
from io import BufferedIOBase

from cxrjax.errors import ForeignError
from cxrjax.untrusted.foreign_files import MIB

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
# Pillow holds what tells about an image, and joins parts of it again and again.
_MOST_PARTS = 500
_MOST_ABOUT = 16 * MIB
MOST_JPEG_HEADER = _MOST_ABOUT
_MOST_JUNK = 2**16  # Pillow passes over it byte by byte
_MOST_PIXELS = 8192 * 8192  # more are refused as such
_MOST_DECODED = 288 * MIB  # as many pixels of red, green, blue and transparency of 8 bits
_MOST_CHUNKS = 2**17
MOST_JPEG = 128 * MIB
# A scan goes over all pixels. Progressive files have about ten.
_FEW_SCANS = 20
_MOST_SCANNED = 400_000_000

_START_OF_FRAME = frozenset({*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC})
_START_OF_SCAN, _END = 0xDA, 0xD9
_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})  # markers that nothing follows
_MARKER = re.compile(rb"\xff[^\x00\xff]")
# In coded data FF is followed by 00, or is a restart marker.
_MARKER_IN_SCAN = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_JPEG_2000_BOX = b"\0\0\0\x0cjP  "


def codestream_size(content: bytes) -> tuple[int, int, int]:
    """(height, width, components) of a JPEG, JPEG-LS or JPEG 2000 codestream or JP2 file.

    Raises:
        ForeignError: it is none, or says no size.
    """
    try:
        if content.startswith(_JPEG_2000_BOX):
            content = content[_codestream_start(content) :]
        if content.startswith(b"\xff\x4f\xff\x51"):
            right, bottom, left, top = struct.unpack_from(">4I", content, 8)
            return bottom - top, right - left, struct.unpack_from(">H", content, 40)[0]
        for marker, start, _ in _segments(content):
            if marker in _START_OF_FRAME:
                height, width, components = struct.unpack_from(">HHB", content, start + 1)
                return height, width, components
            if marker == _START_OF_SCAN:
                break
    except struct.error:
        pass
    raise ForeignError("the pixel data are not a JPEG or JPEG 2000 that states its size")


def _codestream_start(content: bytes) -> int:
    """Returns the offset of the first codestream of a JP2 file; the file's end if it has none."""
    place = 0
    for _ in range(_MOST_PARTS):
        length, kind = struct.unpack_from(">I4s", content, place)
        head = 8
        if length == 1:
            length, head = struct.unpack_from(">Q", content, place + 8)[0], 16
        if kind == b"jp2c":
            return place + head
        if length < head:
            break
        place += length
    return len(content)


def _segments(content: bytes) -> Iterator[tuple[int, int, int]]:
    """(marker, where what follows it starts, its size) in a JPEG, up to the first scan.

    Raises:
        ForeignError: there are too many, or too much between them.
    """
    place, junk = 2, 0
    for _ in range(_MOST_PARTS):
        found = _MARKER.search(content, place)
        junk += max((found.start() if found else len(content)) - place, 0)
        if junk > _MOST_JUNK:
            raise ForeignError(f"{junk:,} stray bytes before its pixels")
        if found is None:
            return
        marker, place = content[found.end() - 1], found.end()
        if marker in _ALONE:
            continue
        size = int.from_bytes(content[place : place + 2])
        yield marker, place + 2, size - 2
        if marker in (_START_OF_SCAN, _END):
            return
        place += size
    raise ForeignError(f"more than {_MOST_PARTS} segments before its pixels")


def check_jpeg_header(content: bytes) -> bool:
    """Refuses a JPEG file whose header would cost more than it can be worth.

    Args:
        content: the start of the file.

    Returns:
        Whether its pixels begin in there; if not, what comes has not been looked at.

    Raises:
        ForeignError: it has too many segments, or too many bytes in them.
    """
    last, end = 0, 0
    for marker, start, size in _segments(content):
        last, end = marker, start + size
    if end > MOST_JPEG_HEADER:
        most = f"at most {MOST_JPEG_HEADER:,} are read"
        raise ForeignError(f"{end:,} bytes before its pixels, {most}")
    return last == _START_OF_SCAN


def check_scans(content: bytes) -> None:
    """Refuses a JPEG file whose pixels are gone over too often.

    Raises:
        ForeignError: as it says.
    """
    if content.count(b"\xff\xda") <= _FEW_SCANS:  # so few bytes that look like one
        return
    place = scans = pixels = 0
    for marker, start, size in _segments(content):
        if marker in _START_OF_FRAME and start + 5 <= len(content):
            height, width = struct.unpack_from(">HH", content, start + 1)
            pixels = height * width
        if marker == _START_OF_SCAN:
            scans, place = 1, start + size
    while scans and (found := _MARKER_IN_SCAN.search(content, place)):
        marker, place = content[found.end() - 1], found.end()
        if marker == _END:
            return
        if marker in _ALONE:
            continue
        scans += marker == _START_OF_SCAN
        place += int.from_bytes(content[place : place + 2])
        if (scans > _FEW_SCANS and scans * pixels > _MOST_SCANNED) or scans > _MOST_PARTS:
            raise ForeignError(f"more than {scans - 1} scans of {pixels:,} pixels")


def check_png(file: BufferedIOBase, whole: bool) -> None:
    """Refuses a PNG file with more in it than its pixels can need.

    Args:
        whole: look behind the pixels too.

    Raises:
        ForeignError: it has too many chunks, or too many bytes in them.
    """
    file.seek(len(PNG_SIGNATURE) + 8)
    described = file.read(10)
    if len(described) < 10:
        return  # Pillow says what is wrong with it
    width, height, bits, colour = struct.unpack(">IIBB", described)
    plain = height * (width * bits * _CHANNELS.get(colour, 4) // 8 + 2)
    if whole and plain > _MOST_DECODED and width * height <= _MOST_PIXELS:
        told = f"{plain:,} bytes of pixels, at most {_MOST_DECODED:,}; save 8 bits a channel"
        raise ForeignError(told)
    place = len(PNG_SIGNATURE)
    pixels = about = parts = 0
    for _ in range(_MOST_CHUNKS):
        file.seek(place)
        head = file.read(8)
        if len(head) < 8:
            return
        size, kind = int.from_bytes(head[:4]), head[4:]
        if kind == b"IEND" or (kind == b"IDAT" and not whole):
            return
        if kind == b"IDAT":
            pixels += size
        else:
            about, parts = about + size, parts + 1
        if about > _MOST_ABOUT or parts > _MOST_PARTS:
            raise ForeignError(f"{about:,} bytes in {parts:,} chunks besides its pixels")
        if pixels > plain + plain // 4 + MIB:
            raise ForeignError(f"{pixels:,} compressed bytes for {plain:,} of pixels")
        place += size + 12
    raise ForeignError(f"more than {_MOST_CHUNKS:,} chunks")
