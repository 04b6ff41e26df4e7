"""Reads DICOM radiographs as a reading workstation shows them, in 8 bits.

Stored values -> modality LUT or rescale -> VOI LUT or window -> inverted where the photometric
interpretation is MONOCHROME1 (DICOM PS3.3, C.7.6.3.1.2, C.11.1, C.11.2). Where a file records
neither a VOI LUT nor a usable window, the percentiles of `cxrjax.images.dicom` stand in.

Pixels are never flipped or turned: boxes in datasets refer to rows and columns as stored.
"""

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Bool, Float, Integer, UInt8
from pydicom.dataset import Dataset
from pydicom.pixels import apply_modality_lut, apply_voi, get_decoder

from cxrjax.errors import BucketError, ForeignError, UserError
from cxrjax.images.files import AnyFile, ImageError, check_size, one_line, open_file, printable
from cxrjax.untrusted.dicom_files import DicomFile

# Where no window is recorded, these percentiles of the pixels become black and white. Minimum and
# maximum would not do: one dead detector element or a lead marker, and the chest is a grey patch.
# Half a percent on each side is more than markers and dead pixels cover, and less than lung or
# mediastinum do; what lies outside is clipped.
BLACK_PERCENTILE = 0.5
WHITE_PERCENTILE = 99.5
_STRIP = 2**20  # pixels that are looked up at a time


class Levels:
    """The levels of an integer image of at most 16 bits.

    Attributes:
        stored: the image.
        values: ascending without gaps, from 0 or the lowest negative one to the highest.
    """

    stored: Integer[np.ndarray, "h w"]
    values: Integer[np.ndarray, " levels"]

    def __init__(self, stored: Integer[np.ndarray, "h w"]) -> None:
        self.stored = stored
        self._lowest = min(int(stored.min()), 0)
        self.values = np.arange(self._lowest, int(stored.max()) + 1)

    def counts(self) -> Integer[np.ndarray, " levels"]:
        """Pixels that have each level. Costs as much as all the rest of showing an image."""
        counts = np.zeros(len(self.values), np.int64)
        for rows in self._strips():
            places = self._places(rows).ravel()
            counts += np.bincount(places, minlength=len(self.values))
        return counts

    def paint(self, shades: UInt8[np.ndarray, " levels"]) -> UInt8[np.ndarray, "h w"]:
        """The image with each level shown as its shade."""
        painted = np.empty(self.stored.shape, np.uint8)
        for rows in self._strips():
            painted[rows] = np.take(shades, self._places(rows))
        return painted

    def _strips(self) -> Iterator[slice]:
        # NumPy makes 64-bit numbers of whatever it counts or looks up: of a whole image 500 MB.
        height, width = self.stored.shape
        step = max(_STRIP // width, 1)
        return (slice(top, top + step) for top in range(0, height, step))

    def _places(self, rows: slice) -> Integer[np.ndarray, "rows w"]:
        """Returns the index of each pixel's level in `values`."""
        # int32 holds the difference of any two 16-bit values, signed ones too. Without negative
        # ones the pixels themselves will do, and no copy is made.
        strip = self.stored[rows]
        return strip.astype(np.int32) - self._lowest if self._lowest else strip


def percentile_range(
    values: Float[np.ndarray, " levels"] | Integer[np.ndarray, " levels"],
    counts: Integer[np.ndarray, " levels"],
) -> tuple[float, float]:
    """The values that become black and white in an image that records no window.

    `BLACK_PERCENTILE` and `WHITE_PERCENTILE` of the pixels. Where the two coincide (a flat
    background with less than half a percent of anything else) the minimum and maximum.
    `values` need not be ascending. An image without pixels to count gives (0, 0).
    """
    present = counts > 0
    if not present.any():
        return 0.0, 0.0
    order = np.argsort(values[present], kind="stable")
    ascending, cumulative = values[present][order], np.cumsum(counts[present][order])
    # The smallest value with at least this share of the pixels at or below it.
    shares = np.array([BLACK_PERCENTILE, WHITE_PERCENTILE]) / 100 * cumulative[-1]
    low, high = ascending[np.searchsorted(cumulative, shares)]
    if low == high:
        low, high = ascending[0], ascending[-1]
    return float(low), float(high)


def stretch(
    values: Float[np.ndarray, " levels"] | Integer[np.ndarray, " levels"], low: float, high: float
) -> Float[np.ndarray, " levels"]:
    """`low` to 0 and `high` to 1, linearly, clipped. A flat image (low == high) becomes black."""
    if low == high:
        return np.zeros(len(values))
    return np.clip((values - low) / (high - low), 0.0, 1.0)


def to_uint8(fractions: Float[np.ndarray, "*shape"]) -> UInt8[np.ndarray, "*shape"]:
    """Fractions of white, 0 to 1, as the nearest of 256 levels."""
    return np.round(fractions * 255).astype(np.uint8)


def auto_exposed(stored: Integer[np.ndarray, "h w"]) -> UInt8[np.ndarray, "h w"]:
    """An image of at most 16 bits without a window, between its percentiles."""
    levels = Levels(stored)
    low, high = percentile_range(levels.values, levels.counts())
    return levels.paint(to_uint8(stretch(levels.values, low, high)))


# The four bytes after a 128-byte preamble that make a file DICOM (PS3.10, 7.1).
MARKER = b"DICM"
MARKER_START = 128

_DAMAGED = "the file is damaged or cut off, fetch it again"


def dicom_size(path: AnyFile) -> tuple[int, int]:
    """Rows and columns from the header alone; a header-only file will do.

    Raises:
        ImageError: the header cannot be read or has no usable size.
    """
    with _opened(path) as file:
        return _size(path, file.header)


def read_dicom(path: AnyFile) -> UInt8[np.ndarray, "h w *channels"]:
    """The image of a single-frame DICOM file, rows and columns as stored.

    Grey images of 1 to 16 bits stored as uint8 [h, w], colour (RGB, YBR) of 8 bits as [h, w, 3].

    Raises:
        ImageError: no pixel data, several frames, a size beyond `MAX_PIXELS`, an encoding without
            a decoder, data that don't decode in full and within limits, or a malformed value in
            the header.
    """
    with _opened(path) as file:
        stored = _decode(path, file)
        return np.array(stored) if stored.ndim == 3 else _present(file.header, stored)


def dicom_notes(path: AnyFile) -> list[str]:
    """Lists what in the header may surprise, of boxes and looks; see `audit_header`.

    Raises:
        ImageError: as `dicom_size`.
    """
    with _opened(path) as file:
        _size(path, file.header)
        return _notes(file.header)


def _notes(dataset: Dataset) -> list[str]:
    notes = []
    bits = dataset.get("BitsStored")
    if bits and bits > 8:
        notes.append(f"{bits} bits stored, shown in 8")
    photometric = str(dataset.get("PhotometricInterpretation", ""))
    grey = photometric.startswith("MONOCHROME")
    if grey and not dataset.get("VOILUTSequence") and _window(dataset) is None:
        notes.append("no usable window: exposed by percentiles")
    try:
        down, across = map(float, dataset.get("PixelAspectRatio") or (1, 1))
    except (TypeError, ValueError):  # shown as stored in any case
        notes.append("pixel aspect ratio cannot be read, shown as stored")
    else:
        if down != across:
            notes.append(f"pixels are not square (aspect {down:g}:{across:g}), shown as stored")
    if photometric == "MONOCHROME2" and dataset.get("PresentationLUTShape") == "INVERSE":
        notes.append("presentation LUT shape INVERSE beside MONOCHROME2: shown as MONOCHROME2")
    row, column = (*(dataset.get("PatientOrientation") or ()), "", "")[:2]
    if str(row).startswith("R"):
        notes.append("columns run to the patient's right: mirrored against the usual display")
    elif str(row)[:1] in ("H", "F") or str(column).startswith("H"):
        row, column = printable(row, 16), printable(column, 16)
        notes.append(f"stored rotated (patient orientation {row}, {column}), shown as stored")
    return notes


@contextlib.contextmanager
def _opened(path: AnyFile) -> Iterator[DicomFile]:
    """A file with its header read; what pydicom raises in the block on a malformed element becomes
    ImageError."""
    with contextlib.ExitStack() as stack:
        with _reading(path):
            file = DicomFile(stack.enter_context(open_file(path)))
        with _using(path):
            yield file


@contextlib.contextmanager
def _reading(path: AnyFile) -> Iterator[None]:
    try:
        yield
    except BucketError:
        raise
    except OSError as error:
        raise ImageError(f"{path}: cannot be read: {error.strerror or one_line(error)}") from None
    except Exception as error:  # struct.error, EOFError, KeyError and more, by where it was cut
        raise ImageError(f"{path}: unreadable DICOM ({one_line(error)}): {_DAMAGED}") from error


@contextlib.contextmanager
def _using(path: AnyFile) -> Iterator[None]:
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # whatever a malformed value or table leads it to
        raise ImageError(
            f"{path}: unusable size, rescale, window or LUT in the DICOM header "
            f"({one_line(error)}): mend the header, or export the image as PNG"
        ) from error


def _size(path: AnyFile, dataset: Dataset) -> tuple[int, int]:
    height, width = dataset.get("Rows"), dataset.get("Columns")
    if height is None or width is None:
        raise ImageError(
            f"{path}: DICOM without Rows and Columns; expected an image: {_DAMAGED}, or leave it "
            "out if it is a report or a directory"
        )
    check_size(path, int(height), int(width))
    return int(height), int(width)


def _decode(path: AnyFile, file: DicomFile) -> Integer[np.ndarray, "h w *channels"]:
    """Stored values, [h, w] integers, or uint8 [h, w, 3] RGB."""
    _check_description(path, file.header)
    frames = int(file.header.get("NumberOfFrames") or 1)
    if frames > 1:
        raise ImageError(
            f"{path}: DICOM with {printable(frames)} frames; expected a single radiograph: export "
            "the intended frame to its own file"
        )
    with _reading(path):
        if not file.read_pixels():
            raise ForeignError("without pixel data; expected an image, no header or report only")
    syntax = printable(file.syntax.name)
    try:
        decoder = get_decoder(file.syntax)
    except Exception:  # none given, or not one for images
        raise ImageError(
            f"{path}: DICOM transfer syntax {syntax or 'none'} has no decoder: convert "
            "the file to JPEG 2000 or uncompressed"
        ) from None
    if not decoder.is_available:
        raise ImageError(
            f"{path}: no decoder installed for {syntax}: "
            "pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg"
        )
    try:
        return file.decode()
    except UserError:  # of this machine, not of the file
        raise
    except Exception as error:  # each decoder plugin has exceptions of its own
        raise ImageError(
            f"{path}: pixel data ({syntax}) don't decode ({one_line(error)}): {_DAMAGED}"
        ) from error


def _check_description(path: AnyFile, header: Dataset) -> None:
    """Refuses kinds of pixels that are not shown here."""
    _size(path, header)
    photometric = str(header.get("PhotometricInterpretation", "none"))
    allocated, bits = header.get("BitsAllocated"), header.get("BitsStored")
    samples = header.get("SamplesPerPixel")
    grey = photometric in ("MONOCHROME1", "MONOCHROME2") and allocated in (8, 16)
    signed = header.get("PixelRepresentation") == 1
    colour = photometric.startswith(("RGB", "YBR")) and allocated == 8 and not signed
    if not (grey or colour) or samples != (1 if grey else 3):
        raise ImageError(
            f"{path}: DICOM with photometric interpretation {printable(photometric)}, "
            f"{printable(allocated)} bits allocated and {printable(samples)} samples per pixel; "
            "expected grey of 8 or 16 or unsigned colour of three times 8: export the image as PNG"
        )
    if not bits or not 1 <= bits <= allocated or header.get("HighBit", bits - 1) != bits - 1:
        # The standard has retired other positions of the high bit; decoders read them wrongly.
        raise ImageError(
            f"{path}: DICOM with bits stored {printable(bits)} of {allocated} and high bit "
            f"{printable(header.get('HighBit'))}; expected the high bit to be bits stored - 1: "
            "mend the header, or export the image as PNG"
        )


def _present(dataset: Dataset, stored: Integer[np.ndarray, "h w"]) -> UInt8[np.ndarray, "h w"]:
    """Stored values -> what is displayed, through a table over the levels that occur."""
    levels = Levels(stored)
    values = _rescaled(dataset, levels.values)
    padding = _is_padding(dataset, levels.values)
    fractions = _values_of_interest(dataset, values, lambda: np.where(padding, 0, levels.counts()))
    if dataset.PhotometricInterpretation == "MONOCHROME1":
        fractions = 1 - fractions
    # Padding is outside the exposed area; black as air, not the white that inversion would make.
    fractions = np.where(padding, 0.0, fractions)
    return levels.paint(to_uint8(fractions))


def _rescaled(
    dataset: Dataset, values: Integer[np.ndarray, " levels"]
) -> Float[np.ndarray, " levels"] | Integer[np.ndarray, " levels"]:
    """Modality values of stored ones; of slope and intercept either may be missing or empty.

    Raises:
        ValueError: they are no finite numbers.
    """
    if dataset.get("ModalityLUTSequence"):
        return apply_modality_lut(values, dataset)
    slope, intercept = dataset.get("RescaleSlope"), dataset.get("RescaleIntercept")
    if slope is None and intercept is None:
        return values
    slope, intercept = float(1 if slope is None else slope), float(intercept or 0)
    if not np.isfinite([slope, intercept]).all():
        raise ValueError(f"rescale slope {slope}, intercept {intercept}")
    return values * slope + intercept


def _is_padding(
    dataset: Dataset, values: Integer[np.ndarray, " levels"]
) -> Bool[np.ndarray, " levels"]:
    """Marks stored values that are PixelPaddingValue, or between it and PixelPaddingRangeLimit."""
    first = dataset.get("PixelPaddingValue")
    if first is None:
        return np.zeros(len(values), bool)
    last = dataset.get("PixelPaddingRangeLimit")
    ends = (int(first), int(first if last is None else last))
    # A value representation of the other sign turns -2000 into 63536 and back.
    bits = int(dataset.BitsAllocated)
    signed = bool(dataset.get("PixelRepresentation"))
    low, high = sorted((end + 2 ** (bits - 1) * signed) % 2**bits for end in ends)
    low, high = (end - 2 ** (bits - 1) * signed for end in (low, high))
    return (values >= low) & (values <= high)


def _values_of_interest(
    dataset: Dataset,
    values: Float[np.ndarray, " levels"] | Integer[np.ndarray, " levels"],
    counts: Callable[[], Integer[np.ndarray, " levels"]],
) -> Float[np.ndarray, " levels"]:
    """Fraction of white for each modality value: VOI LUT, else window, else percentiles.

    Of several LUTs or windows the first, as viewers do. Pixels are counted for percentiles alone.
    """
    if dataset.get("VOILUTSequence"):
        entries, first, depth = map(int, dataset.VOILUTSequence[0].LUTDescriptor)
        entries = entries or 2**16
        whole = np.round(values).astype(np.int64)
        # As of padding: a value representation of the other sign turns -2048 into 63488.
        twin = first + (-(2**16) if first >= 2**15 else 2**16)
        inside = [((whole >= start) & (whole < start + entries)).any() for start in (first, twin)]
        if inside == [False, True]:
            whole += first - twin
        # The descriptor may state the size of entries in place of their range: 16 bits, and 12 in
        # them. The table's highest entry tells.
        table = apply_voi(np.arange(first, first + entries), dataset)
        depth = min(depth, max(1, int(table.max()).bit_length()))
        return apply_voi(whole, dataset) / (2.0**depth - 1)
    window = _window(dataset)
    if window is None:
        return stretch(values, *percentile_range(values, counts()))
    centre, width = window
    function = str(dataset.get("VOILUTFunction") or "LINEAR")
    if function == "SIGMOID":
        # 1 / (1 + exp(-4 (x - c) / w)), C.11.2.1.3.1, in the form that cannot overflow.
        return (1 + np.tanh(2 * (values - centre) / width)) / 2
    if function == "LINEAR_EXACT":
        return stretch(values, centre - width / 2, centre + width / 2)
    # LINEAR counts the window in whole levels: PS3.3, equations C.11-1 to C.11-3.
    half = max(width - 1, 1e-9) / 2
    return stretch(values, centre - 0.5 - half, centre - 0.5 + half)


def _window(dataset: Dataset) -> tuple[float, float] | None:
    """The first window as (centre, width); None where there is none finite of positive width."""
    pair = []
    for name in ("WindowCenter", "WindowWidth"):
        value = dataset.get(name)
        if value is None or np.size(value) == 0:
            return None
        pair.append(float(np.atleast_1d(value)[0]))
    return (pair[0], pair[1]) if np.isfinite(pair).all() and pair[1] > 0 else None
