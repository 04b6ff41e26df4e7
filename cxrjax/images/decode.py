"""Image files of any kind that radiographs come in -> uint8 [H, W, 3], or [H, W] of grey ones.

PNG and JPEG here, DICOM in `cxrjax.images.dicom`; the kind is told by the file's first bytes, not
by its name. What a file doesn't hold in full is refused: a radiograph with a grey lower half is a
wrong example, not a small one.

- **Size and orientation** are those of the image as displayed: EXIF orientation is applied, by
  `read_image` and `image_size` alike. (A PNG's counts if it stands before the pixels.)
- **Alpha** is composited on black. Air is black on a radiograph; white would put the brightest
  thing in the image where there is nothing.
- **Grey PNG of 16 bits** holds 10, 12, 14 or 16 bits of detector signal in no stated range, so it
  is exposed like a DICOM without a window, by percentiles (`cxrjax.images.dicom`). Colour PNG
  of 16 bits gives its high byte.
- Colour profiles and gamma chunks are ignored.
"""

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Integer, UInt8
from PIL import ExifTags, Image, ImageFile

from cxrjax.errors import BucketError, ForeignError
from cxrjax.images import dicom
from cxrjax.images.files import (
    MAX_PIXELS,
    AnyFile,
    ImageError,
    OpenedFile,
    check_size,
    one_line,
    open_file,
    read_once,
)
from cxrjax.untrusted.codestreams import (
    MOST_JPEG,
    MOST_JPEG_HEADER,
    check_jpeg_header,
    check_png,
    check_scans,
)

# A damaged file has one line from here; Pillow and pydicom would warn in thousands, some of them
# the file's own words. Sizes are judged by `check_size`.
warnings.filterwarnings("ignore", module=r"PIL\.")
warnings.filterwarnings("ignore", module=r"pydicom\.")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

_SIGNATURES = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG"}
_PNG_BIT_DEPTH_AT = 24

# EXIF orientation -> how to turn the stored pixels (EXIF 2.32, tag 274). 1 is upright; values
# that EXIF doesn't define count as 1, as in viewers.
_TURNS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.swapaxes(0, 1),
    6: lambda stored: np.rot90(stored, 3),
    7: lambda stored: stored.swapaxes(0, 1)[::-1, ::-1],
    8: np.rot90,
}
_SIDEWAYS = (5, 6, 7, 8)

# Pixels that are converted at a time: of the largest image every whole copy has 200 MB.
_STRIP = 2**20

_JPEG_START = 2**17  # bytes in which most headers end

# What JPEG decoders paint where a file's data end early but its end marker is there.
_JPEG_FILL = 128
# The value of a colour where a JPEG has none of it.
_NEUTRAL = b"\x80"


def read_image(path: AnyFile, target: tuple[int, int] | None = None) -> UInt8[np.ndarray, "h w 3"]:
    """The image in a PNG, JPEG or DICOM file as it is displayed.

    Args:
        path: the file.
        target: as of `read_grey_or_rgb`.

    Returns:
        uint8 [height, width, 3], RGB, writable; grey images with three equal channels.

    Raises:
        ImageError: the file is missing, empty, not an image, damaged or truncated, larger than
            `MAX_PIXELS`, animated, or (DICOM) without pixel data, with several frames or without
            an installed decoder.
    """
    return three_channels(read_grey_or_rgb(path, target))


def read_grey_or_rgb(
    path: AnyFile, target: tuple[int, int] | None = None, times: int = 2
) -> UInt8[np.ndarray, "h w *channels"]:
    """`read_image`, but [height, width] of a grey image: a third of the work to resize.

    A file with colour channels is grey if they are equal in every pixel.

    Args:
        target: (height, width) that the image is about to be resized to. A JPEG may then come
            back at 1/2, 1/4 or 1/8 of its size, for half the time. Only where that divides height
            and width without a remainder, so that fractions of the image stay exactly what they
            are and boxes need no correction.
        times: the target that is left at least, on each side. From twice on the resized image
            is that of the whole one (off by 2 of 256 levels at most, as measured); of once it
            is off by 0.8 in the mean and by 21 at most.
    """
    with contextlib.suppress(OSError):  # `_kind` tells what is wrong with it
        path = read_once(path)
    if _kind(path) == "DICOM":
        return dicom.read_dicom(path)
    least = None if target is None else (times * target[0], times * target[1])
    found = _stored(path, least, as_luma=True) or _stored(path, least, as_luma=False)
    assert found is not None
    turn, stored = found
    return np.ascontiguousarray(_TURNS[turn](stored)) if turn in _TURNS else stored


def _stored(
    path: AnyFile, least: tuple[int, int] | None, *, as_luma: bool
) -> tuple[int, UInt8[np.ndarray, "h w *channels"]] | None:
    """Returns the EXIF orientation of a PNG or JPEG, and its pixels as they are stored.

    Args:
        least: (height, width) that a JPEG must leave as it is displayed; None: all it has.
        as_luma: take a colour JPEG as stored, a channel of brightness and two of colour. Where
            the two are neutral in every pixel, brightness is what red, green and blue all are; most
            radiographs in colour are such images, and are read in half the time.

    Returns:
        None if a JPEG read as luma has colours.
    """
    with _open(path, whole=True) as image:
        turn = _orientation(image)
        if image.format != "PNG":
            size = None
            if least is not None:
                size = _reduced(image, least if turn not in _SIDEWAYS else least[::-1])
            # Files with this marker are of brightness and colours, by its definition.
            as_luma = as_luma and image.mode == "RGB" and "jfif" in image.info
            if size is not None or as_luma:
                image.draft("YCbCr" if as_luma else None, size)
        image.load()
        if image.format != "PNG":
            _refuse_filled(path, image)
        if image.mode == "YCbCr":
            luma, *colours = image.split()
            neutral = _NEUTRAL * (image.width * image.height)
            if any(colour.tobytes() != neutral for colour in colours):
                return None
            return turn, np.asarray(luma)
        return turn, _to_grey_or_rgb(image)


def three_channels(image: UInt8[np.ndarray, "h w *channels"]) -> UInt8[np.ndarray, "h w 3"]:
    """A grey image with three equal channels; one that has channels as it is."""
    if image.ndim == 3:
        return image
    out = np.empty((*image.shape, 3), np.uint8)
    for rows in _strips(*image.shape):
        # Pillow writes pixels at a time, NumPy's repeat bytes: a third of the time.
        out[rows] = np.asarray(Image.fromarray(image[rows]).convert("RGB"))
    return out


def read_levels(path: AnyFile) -> Integer[np.ndarray, "h w"]:
    """The stored levels of a mask as it is displayed: 16 bits and palettes' numbers as they are.

    Raises:
        ImageError: as `read_image`, or the file is a DICOM image, or in colour.
    """
    if _kind(path) == "DICOM":
        raise ImageError(f"{path}: a DICOM image; expected a mask as PNG")
    with _open(path, whole=True) as image:
        turn = _orientation(image)
        image.load()
        as_stored = image.mode == "P" or image.mode.startswith("I")
        stored = np.array(image) if as_stored else _to_grey_or_rgb(image)
    if stored.ndim == 3:
        raise ImageError(f"{path}: in colour; expected a mask of grey levels or a palette")
    return np.ascontiguousarray(_TURNS[turn](stored)) if turn in _TURNS else stored


def image_size(path: AnyFile) -> tuple[int, int]:
    """(height, width) of what `read_image` gives, from the header; no pixel is decoded.

    Raises:
        ImageError: the file is missing, empty, not an image, or its header is damaged or claims
            more than `MAX_PIXELS`.
    """
    if _kind(path) == "DICOM":
        return dicom.dicom_size(path)
    with _open(path) as image:
        width, height = image.size
        return (width, height) if _orientation(image) in _SIDEWAYS else (height, width)


def audit_header(path: AnyFile) -> list[str]:
    """Lists what people trip over in a header, one phrase each; no pixel is decoded.

    An EXIF orientation other than upright (boxes drawn on the unturned image don't fit), more
    than 8 bits (their range was chosen here), transparency (black now); for a DICOM also no usable
    window, pixels that aren't square, and an image stored mirrored or turned.

    Returns:
        Warnings without the file's name; empty where there is nothing to say.

    Raises:
        ImageError: as `image_size`.
    """
    if _kind(path) == "DICOM":
        return dicom.dicom_notes(path)
    notes = []
    with _open(path) as image:
        turn = _orientation(image)
        if turn in _TURNS:
            notes.append(f"EXIF orientation {turn}: displayed rotated; boxes must fit it")
        if image.format == "PNG":
            with open_file(path) as file:
                depth = file.read(_PNG_BIT_DEPTH_AT + 1)[-1]
            if depth == 16 and image.mode.startswith("I"):
                notes.append("16-bit grey: exposed by percentiles")
            elif depth == 16:
                notes.append("16-bit colour: only the high byte is used")
        if image.has_transparency_data:
            notes.append("transparency: composited on black")
    return notes


def _kind(path: AnyFile) -> str:
    """'PNG', 'JPEG' or 'DICOM' by the first bytes; refuses everything else."""
    try:
        with open_file(path) as file:
            head = file.read(dicom.MARKER_START + len(dicom.MARKER))
    except BucketError:
        raise
    except OSError as error:
        raise ImageError(
            f"{path}: cannot be read: {error.strerror}; expected an image file: check the path, "
            "and that image_root is the folder that image_path is relative to"
        ) from None
    if not head:
        raise ImageError(f"{path}: the file is empty; expected an image: fetch it again")
    if head[dicom.MARKER_START :] == dicom.MARKER:
        return "DICOM"
    for signature, kind in _SIGNATURES.items():
        if head.startswith(signature):
            return kind
    raise ImageError(
        f"{path}: not PNG, JPEG or DICOM (starts with {head[:8]!r}): convert it to PNG; a DICOM "
        "file needs its 128-byte preamble"
    )


@contextlib.contextmanager
def _open(path: AnyFile, whole: bool = False) -> Iterator[ImageFile.ImageFile]:
    """A PNG or JPEG with its header read; what Pillow raises in the block becomes ImageError.

    Args:
        whole: its pixels will be decoded.
    """
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise ImageError(
            f"{path}: PIL.ImageFile.LOAD_TRUNCATED_IMAGES is on in this process and would pass "
            "truncated images off as whole: switch it off where it was switched on"
        )
    kind = _kind(path)
    try:
        with (
            open_file(path) as file,
            Image.open(_checked(file, kind, whole), formats=[kind]) as image,
        ):
            assert isinstance(image, ImageFile.ImageFile)
            check_size(path, image.height, image.width)
            if image.format == "PNG" and getattr(image, "n_frames", 1) > 1:
                raise ImageError(
                    f"{path}: animated PNG; expected a single image: save the intended frame"
                )
            yield image
    except (ImageError, MemoryError):
        raise
    except ForeignError as error:
        raise ImageError(
            f"{path}: unusable {kind} ({error}): save it again without metadata"
        ) from None
    except Image.DecompressionBombError as error:
        raise ImageError(
            f"{path}: more than the {MAX_PIXELS} that are decoded ({one_line(error)}): scale the "
            "image down (and its boxes with it), or check that it is a radiograph"
        ) from None
    except Exception as error:  # OSError, SyntaxError, struct.error, ... by where it is damaged
        raise ImageError(
            f"{path}: damaged or truncated {kind} ({one_line(error)}): fetch it again"
        ) from error


def _checked(file: OpenedFile, kind: str, whole: bool) -> OpenedFile:
    """The file at its start, if Pillow can go through it in little time and memory.

    Raises:
        ForeignError: else.
    """
    if kind == "PNG":
        check_png(file, whole)
    else:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        if whole and size > MOST_JPEG:
            raise ForeignError(f"{size:,} bytes, at most {MOST_JPEG:,} are read")
        # `read` makes room for all that it is asked for: 20 ms for what is not there.
        content = file.read(size if whole else _JPEG_START)
        has_pixels = check_jpeg_header(content)
        if whole:
            check_scans(content)
            return io.BytesIO(content)
        if not has_pixels:
            check_jpeg_header(content + file.read(min(size, MOST_JPEG_HEADER)))
    file.seek(0)
    return file


def _orientation(image: Image.Image) -> int:
    # The base class's method, because a PNG's own would decode the pixels to look behind them.
    return Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1)


def _reduced(image: ImageFile.ImageFile, least: tuple[int, int]) -> tuple[int, int] | None:
    """(width, height) of the smallest exact fraction of a JPEG's size that leaves enough."""
    height, width = image.height, image.width
    for factor in (8, 4, 2):
        exact = height % factor == 0 and width % factor == 0
        if exact and height >= factor * least[0] and width >= factor * least[1]:
            return width // factor, height // factor
    return None


def _refuse_filled(path: AnyFile, image: Image.Image) -> None:
    """Refuses a JPEG whose data ended early although its end marker is in place.

    Pillow notices missing bytes by itself; here the decoder saw an end and filled the rest.
    """
    last_row = np.asarray(image.crop((0, image.height - 1, image.width, image.height)))
    if (last_row == _JPEG_FILL).all():
        raise ImageError(
            f"{path}: the last row of this JPEG is flat mid-grey, which is what a truncated file "
            "decodes to: fetch it again, or save it as PNG if the grey is really there"
        )


def _to_grey_or_rgb(image: Image.Image) -> UInt8[np.ndarray, "h w *channels"]:
    if image.mode.startswith("I"):
        return dicom.auto_exposed(np.asarray(image))
    if image.mode in ("1", "L") and not image.has_transparency_data:
        return np.asarray(image if image.mode == "L" else image.convert("L"))
    width, height = image.size

    def colours(rows: slice) -> np.ndarray:
        strip = image.crop((0, rows.start, width, rows.stop))
        if image.has_transparency_data:
            black = Image.new("RGBA", strip.size, (0, 0, 0, 255))
            strip = Image.alpha_composite(black, strip.convert("RGBA"))
        return np.asarray(strip.convert("RGB"))

    # Grey until a strip is not: three channels of the largest image are 192 MB.
    pixels = np.empty((height, width), np.uint8)
    for rows in _strips(height, width):
        if not _is_grey(strip := colours(rows)):
            break
        pixels[rows] = strip[..., 0]
    else:
        return pixels
    pixels = np.empty((height, width, 3), np.uint8)
    for rows in _strips(height, width):
        pixels[rows] = colours(rows)
    return pixels


def _is_grey(rgb: UInt8[np.ndarray, "h w 3"]) -> bool:
    # By channel: over the last axis, three bytes at a time, it takes several times as long.
    red = rgb[..., 0]
    return bool((red == rgb[..., 1]).all() and (red == rgb[..., 2]).all())


def _strips(height: int, width: int) -> Iterator[slice]:
    """Rows of about `_STRIP` pixels, all of them."""
    step = max(_STRIP // width, 1)
    return (slice(top, min(top + step, height)) for top in range(0, height, step))


# In an upright frontal radiograph the spine and heart are brighter than the air above the
# shoulders. 'Border brighter than centre' taken literally says nothing: on 90 real radiographs
# from many sources it called 44 upright ones inverted, because the centre is mostly dark lung and
# the lower border bright abdomen. This form called none of the 90 inverted, and 85 of them after
# inversion.
_INVERSION_MARGIN = 10
# What `audit_image` says of an image that shows nothing, or hardly anything.
NEARLY_FLAT = "nearly flat: hardly any contrast, perhaps a wrong window"
MOSTLY_WHITE = "mostly white: perhaps a window below its values"
MOSTLY_BLACK = "mostly black: perhaps a window or lookup table above its values"
_FLAT_LEVELS = 8
_WHITE, _MOST_WHITE = 250, 0.5
_BLACK, _MOST_BLACK = 8, 0.7


def audit_image(image: UInt8[np.ndarray, "h w 3"]) -> list[str]:
    """Lists what looks wrong with the pixels of a frontal chest radiograph, one phrase each.

    - likely inverted: the upper corners (outer eighths) are brighter than the midline (middle
      sixth, from about a third down) by more than 10 of 256 levels on average. White
      surroundings that a collimator left, and views other than frontal, can look the same;
    - nearly flat: 99 percent of the pixels lie within 8 levels, as a wrong window leaves them;
    - mostly white or black: over 50 percent of the pixels have 250 levels or more, or over 70
      percent 8 or fewer (at most 2 and 11 percent of each of 90 real radiographs).

    What the header tells is in `audit_header`.

    Returns:
        Warnings without a file name; empty where nothing was noticed.
    """
    warnings = []
    height, width = image.shape[:2]
    top, side = -(-height // 8), -(-width // 8)
    corners = np.mean([image[:top, :side].mean(), image[:top, -side:].mean()])
    rows = slice(5 * height // 16, -(-7 * height // 8))
    columns = slice(5 * width // 12, -(-7 * width // 12))
    midline = image[rows, columns].mean()
    # The wording holds no measurement: builders count how often each warning occurs.
    if corners - midline > _INVERSION_MARGIN:
        warnings.append("likely inverted: upper corners brighter than the midline")
    step = max(1, min(height, width) // 256)  # enough pixels for a percentile
    sample = image[::step, ::step, 1]
    low, high = np.percentile(sample, (0.5, 99.5))
    if high - low < _FLAT_LEVELS:
        warnings.append(NEARLY_FLAT)
    elif (sample >= _WHITE).mean() > _MOST_WHITE:
        warnings.append(MOSTLY_WHITE)
    elif (sample <= _BLACK).mean() > _MOST_BLACK:
        warnings.append(MOSTLY_BLACK)
    return warnings
