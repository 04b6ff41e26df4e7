"""DICOM files of others: the few elements that an image needs, and pixels decoded in a child.

pydicom reads whatever a file says, as long as it says it: it inflates without end, makes a million
elements of eight megabytes, and hands a decoder a codestream of another size than the header's.
Here reads and bytes are counted, values that no image needs are passed over, and pixels that are
more than rows of numbers are decoded in a child process (`cxrjax.untrusted.child`).
"""

import io
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Integer
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import get_frame
from pydicom.filereader import dcmread, read_dataset
from pydicom.tag import BaseTag, Tag
from pydicom.uid import UID, DeflatedExplicitVRLittleEndian, JPEGTransferSyntaxes, RLELossless

from cxrjax.errors import ForeignError
from cxrjax.untrusted.archives import inflate
from cxrjax.untrusted.child import run_in_child
from cxrjax.untrusted.codestreams import codestream_size
from cxrjax.untrusted.foreign_files import MIB

_MOST_IN_HEADER = 8 * MIB  # of what is read before the pixels
_MOST_INFLATED = 160 * MIB  # pixels of the largest image, and what is before them
_MOST_READS = 100_000  # two or three an element, half a second
_LONGEST_VALUE = 4096
_LONGEST_TABLE = MIB  # in which a lookup table of 65,536 levels fits several times
_PREAMBLE = 132

# What a decoder may take: beyond 30 million pixels none needs more, and the largest detectors have
# 20. Of time 8 times what a chest of 2500 x 3000 takes in JPEG 2000, by its pixels and its bytes.
_DECODER_MEMORY = 384 * MIB
_LARGE = 32 * MIB
_SECONDS = 1.5
_SECONDS_A_PIXEL = 1e-7
_SECONDS_A_BYTE = 5e-7
# A frame is no longer than its pixels, times this, and a little.
_MOST_EXPANSION = 2

_PIXEL_DATA = Tag("PixelData")
_PIXELS = (_PIXEL_DATA, Tag("DoubleFloatPixelData"), Tag("FloatPixelData"))
_TABLES = (Tag("ModalityLUTSequence"), Tag("VOILUTSequence"))
# What the pixels are: the child is told these.
_DESCRIPTION = (
    *("Rows", "Columns", "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation"),
)
_ELEMENTS = [
    *_DESCRIPTION,
    *("SpecificCharacterSet", "NumberOfFrames", "PixelAspectRatio", "PatientOrientation"),
    *("RescaleSlope", "RescaleIntercept", "RescaleType", "ModalityLUTSequence"),
    *("WindowCenter", "WindowWidth", "VOILUTFunction", "VOILUTSequence"),
    *("PixelPaddingValue", "PixelPaddingRangeLimit", "PresentationLUTShape"),
]
_ELEMENT_TAGS: list[BaseTag | int] = [Tag(element) for element in _ELEMENTS]


class DicomFile:
    """A DICOM file whose header has been read.

    Attributes:
        header: what says how pixels are stored and shown; nothing else of the file.
        syntax: transfer syntax; empty where none is given.

    Args:
        file: open as long as `read_pixels` may be called.

    Raises:
        ForeignError: the header has too many elements or bytes, or a value too long.
        Exception: whatever pydicom raises on a malformed one.
    """

    def __init__(self, file: io.BufferedIOBase) -> None:
        file.seek(_PREAMBLE)
        self._file = Metered(file, _MOST_IN_HEADER)
        meta = read_dataset(self._file, False, True, stop_when=_after_meta)  # type: ignore[arg-type]
        self.syntax = UID(str(meta.get("TransferSyntaxUID", "")))
        self._encoding = False, True
        if self.syntax == DeflatedExplicitVRLittleEndian:
            inflated = inflate(file.read(), _MOST_INFLATED, -zlib.MAX_WBITS)
            self._file = Metered(io.BytesIO(inflated), _MOST_IN_HEADER)
            self.header = self._read(_at_pixels)
            self.header.file_meta = FileMetaDataset(meta)
        else:
            file.seek(0)
            self.header = dcmread(
                self._file,  # type: ignore[arg-type]
                stop_before_pixels=True,
                specific_tags=_ELEMENTS,
            )
            implicit, little = self.header.original_encoding
            self._encoding = bool(implicit), bool(little)
        for tag in self.header.keys():  # noqa: SIM118 - items() would convert the values
            size = getattr(self.header.get_item(tag), "length", 0)
            most = _LONGEST_TABLE if tag in _TABLES else _LONGEST_VALUE
            if most < size < 0xFFFFFFFF:
                raise ForeignError(f"element {tag} of {size:,} bytes, at most {most:,} are read")

    def read_pixels(self) -> bool:
        """Adds the pixel data to the header, which has their size; says whether there are any.

        Raises:
            As the constructor.
        """
        most = self._plain_size() * (_MOST_EXPANSION if self.syntax.is_encapsulated else 1) + MIB
        self._file.allow(most)
        found = self._read(lambda tag, vr, length: tag != _PIXEL_DATA)
        if not found.get("PixelData"):
            return False
        self.header[_PIXEL_DATA] = found.get_item(_PIXEL_DATA)
        self._file.close()
        return True

    def decode(self) -> Integer[np.ndarray, "h w *channels"]:
        """Stored values of 8 or 16 bits, grey ones, or RGB of 8; `read_pixels` comes before.

        Raises:
            ForeignError: the frame is of another size than the header's, or is not decoded within
                the limits.
            Exception: whatever pydicom raises.
        """
        height, width = int(self.header.Rows), int(self.header.Columns)
        samples = int(self.header.SamplesPerPixel)
        if not self.syntax.is_encapsulated and samples == 1:
            pixels = self.header.pixel_array
            _check_shape(pixels, [height, width], self.header.BitsAllocated)
            return pixels
        element = self.header["PixelData"]
        plain = self._plain_size()
        description = {name: self.header.get(name) for name in _DESCRIPTION}
        arguments = {"syntax": str(self.syntax), "vr": element.VR, "description": description}
        by_pixels, by_bytes = plain * _SECONDS_A_PIXEL, len(element.value) * _SECONDS_A_BYTE
        try:
            found, stored = run_in_child(
                decode_frame,
                element.value,
                arguments,
                seconds=_SECONDS + by_pixels + by_bytes,
                memory=_DECODER_MEMORY,
                most=plain,
            )
        except ForeignError as error:
            if plain < _LARGE:
                raise
            raise ForeignError(
                f"{error}; one of {plain:,} bytes may take more than the {_DECODER_MEMORY // MIB} "
                "MiB that decoders may use: convert it to uncompressed"
            ) from None
        shape = (height, width) if samples == 1 else (height, width, samples)
        dtype = np.dtype(f"{'i' if found.get('signed') else 'u'}{self.header.BitsAllocated // 8}")
        return np.frombuffer(stored, dtype).reshape(shape)

    def _plain_size(self) -> int:
        """Bytes of the pixels where nothing compresses them."""
        header = self.header
        pixels = int(header.Rows) * int(header.Columns) * int(header.SamplesPerPixel)
        return pixels * max(int(header.BitsAllocated) // 8, 1)

    def _read(self, stop_when: Any) -> Dataset:
        return read_dataset(
            self._file,  # type: ignore[arg-type]
            *self._encoding,
            stop_when=stop_when,
            specific_tags=[*_ELEMENT_TAGS, _PIXEL_DATA],
        )


def decode_frame(
    content: bytes, syntax: str, vr: str, description: Mapping[str, Any]
) -> tuple[dict[str, Any], memoryview]:
    """Pixels from their encoding; runs in the child.

    Args:
        content: the value of PixelData.
        description: the elements that say what it holds.

    Raises:
        ForeignError: the codestream is of another size, or cut off.
        Exception: whatever a decoder raises.
    """
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = UID(syntax)
    for name, value in description.items():
        if value is not None:
            setattr(dataset, name, value)
    shape = [dataset.Rows, dataset.Columns, dataset.SamplesPerPixel]
    if UID(syntax).is_encapsulated and syntax != RLELossless:
        _check_codestream(get_frame(content, 0, number_of_frames=1), syntax, *shape)
    dataset.add_new(_PIXEL_DATA, vr, content)
    dataset[_PIXEL_DATA].is_undefined_length = UID(syntax).is_encapsulated
    stored = dataset.pixel_array
    _check_shape(stored, shape[: 2 + (shape[2] > 1)], dataset.BitsAllocated)
    return {"signed": stored.dtype.kind == "i"}, np.ascontiguousarray(stored).data


def _check_shape(stored: np.ndarray, expected: list[int], bits: int) -> None:
    # pydicom takes more pixels than the header has for more frames.
    if list(stored.shape) != expected or stored.dtype.itemsize * 8 != bits:
        found = f"{stored.dtype} of {_times(stored.shape)}"
        raise ForeignError(f"the pixel data are {found}, the header has {_times(expected)}")


def _check_codestream(frame: bytes, syntax: str, rows: int, columns: int, samples: int) -> None:
    """Refuses a frame that says another size than the header, before anything is decoded."""
    size = codestream_size(frame)
    if size != (rows, columns, samples):
        raise ForeignError(
            f"the pixel data are {_times(size)}, the header has {_times((rows, columns, samples))}"
        )
    # The decoder would fill what is missing. Frames are padded to even length, with zero or FF.
    if syntax in JPEGTransferSyntaxes and not frame.rstrip(b"\0\xff").endswith(b"\xff\xd9"):
        raise ForeignError("the JPEG data have no end marker")


def _times(numbers: Any) -> str:
    return " x ".join(f"{number}" for number in numbers)


def _after_meta(tag: BaseTag, vr: str | None, length: int) -> bool:
    return tag.group != 2


def _at_pixels(tag: BaseTag, vr: str | None, length: int) -> bool:
    return tag in _PIXELS


class Metered:
    """A file that gives only so many bytes in so many reads."""

    def __init__(self, file: io.BufferedIOBase, most: int) -> None:
        self._file = file
        self.seek, self.tell, self.close = file.seek, file.tell, file.close
        self.allow(most)

    def allow(self, most: int) -> None:
        """Counts anew."""
        self._bytes, self._reads = most, _MOST_READS

    def read(self, size: int = -1) -> bytes:
        """Bytes, fewer where the file ends.

        Raises:
            ForeignError: these are too many.
        """
        self._reads -= 1
        content = self._file.read(min(size, self._bytes + 1) if size >= 0 else self._bytes + 1)
        self._bytes -= len(content)
        if self._bytes < 0 or self._reads < 0:
            raise ForeignError("its elements have more bytes, or are more, than any image needs")
        return content
