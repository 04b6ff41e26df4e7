"""Small files that would take all memory or time are refused in one line, and cost little."""

import contextlib
import io
import os
import resource
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    DigitalXRayImageStorageForPresentation,
    ExplicitVRLittleEndian,
    HTJ2KLossless,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
)

from cxrjax.errors import ForeignError
from cxrjax.images.decode import audit_header, image_size, read_image
from cxrjax.images.files import ImageError
from cxrjax.untrusted.codestreams import codestream_size

from . import conftest
from .conftest import chunk, png_bytes, segment
from .test_dicom import dataset_of

SIDE = 65_500
MB = 2**20


@contextlib.contextmanager
def within_budget(memory=500 * MB, seconds=2.0):
    """Memory beyond what the process has is not given; processor time is looked at."""
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    own = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    start = time.process_time()
    resource.setrlimit(resource.RLIMIT_DATA, (own + memory, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)
    assert time.process_time() - start < seconds


def refusal(path, reader=read_image):
    with within_budget():
        return conftest.refusal(path, reader)


def jpeg_frame(marker, bits, height, width):
    return segment(marker, struct.pack(">BHHB", bits, height, width, 1) + b"\x01\x11\0")


def lossless_jpeg(side):
    codes = segment(0xC4, bytes([0, 0, 0, 0, 0, 17] + [0] * 11) + bytes(range(17)))
    scan = segment(0xDA, bytes([1, 1, 0, 1, 0, 0]))
    return b"\xff\xd8" + jpeg_frame(0xC3, 16, side, side) + codes + scan + bytes(400) + b"\xff\xd9"


def jpeg_ls(side):
    scan = segment(0xDA, bytes([1, 1, 0, 0, 0, 0]))
    return b"\xff\xd8" + jpeg_frame(0xF7, 16, side, side) + scan + bytes(400) + b"\xff\xd9"


def baseline_jpeg(side):
    out = io.BytesIO()
    Image.new("L", (64, 64)).save(out, "JPEG")
    content = out.getvalue()
    place = content.index(b"\xff\xc0") + 5
    return content[:place] + struct.pack(">HH", side, side) + content[place + 4 :]


def jpeg_2000(side, tile=None, components=1):
    """A codestream of 64 x 64 whose size says something else."""
    dataset = described()
    dataset.compress(JPEG2000Lossless, encoding_plugin="pylibjpeg")
    content = bytearray(next(pydicom.encaps.generate_frames(dataset.PixelData, number_of_frames=1)))
    struct.pack_into(">4I", content, 8, side, side, 0, 0)
    struct.pack_into(">2I", content, 24, tile or side, tile or side)
    struct.pack_into(">H", content, 40, components)
    return bytes(content)


def described(stored=None, **elements):
    """A file's elements and, unless others are given, 64 x 64 pixels of 16 bits, all 0."""
    stored = np.zeros((64, 64), np.uint16) if stored is None else stored
    elements = {"SOPInstanceUID": "1.2.3", **elements}
    return dataset_of(stored, 8 * stored.dtype.itemsize, **elements)


BYTES = np.zeros((64, 64), np.uint8)


def save(tmp_path, dataset, syntax=ExplicitVRLittleEndian, frames=None):
    if frames is not None:
        dataset.PixelData = encapsulate(frames, has_bot=len(frames) == 1)
        dataset["PixelData"].is_undefined_length = True
    dataset.file_meta.TransferSyntaxUID = syntax
    path = tmp_path / "attack.dcm"
    pydicom.dcmwrite(path, dataset, enforce_file_format=True)
    return path


STREAMS = {
    "lossless JPEG": (JPEGLosslessSV1, lossless_jpeg(SIDE), np.uint16),
    "JPEG": (JPEGBaseline8Bit, baseline_jpeg(SIDE), np.uint8),
    "JPEG-LS": (JPEGLSLossless, jpeg_ls(SIDE), np.uint16),
    "JPEG 2000": (JPEG2000Lossless, jpeg_2000(SIDE), np.uint16),
    "JPEG 2000 in tiles": (JPEG2000Lossless, jpeg_2000(SIDE, 256), np.uint16),
    "high throughput": (HTJ2KLossless, jpeg_2000(SIDE), np.uint16),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_codestream_that_is_larger_than_its_header(tmp_path, name):
    syntax, stream, dtype = STREAMS[name]
    path = save(tmp_path, described(np.zeros((64, 64), dtype)), syntax, [stream])
    assert path.stat().st_size < 2000
    assert f"are {SIDE} x {SIDE} x 1, the header has 64 x 64" in refusal(path)


def test_a_second_size_behind_the_first(tmp_path):
    """A decoder that takes the last one meets the limits of the child."""
    stream = b"\xff\xd8" + jpeg_frame(0xC3, 16, 64, 64) + lossless_jpeg(SIDE)[2:]
    refusal(save(tmp_path, described(), JPEGLosslessSV1, [stream]))


@pytest.mark.parametrize("components", [0, 3, 16384])
def test_a_codestream_of_more_components(tmp_path, components):
    stream = jpeg_2000(64, components=components)
    path = save(tmp_path, described(), JPEG2000Lossless, [stream])
    assert f"64 x 64 x {components}" in refusal(path)


def test_a_tile_a_pixel(tmp_path):
    stream = jpeg_2000(4096, 16)  # 65,536 of them
    path = save(tmp_path, described(np.zeros((4096, 4096), np.uint16)), JPEG2000Lossless, [stream])
    refusal(path)


def test_the_largest_size_in_few_bytes(tmp_path):
    """8192 x 8192 is a size that is read; a decoder takes 700 MB for it."""
    dataset = described(Rows=8192, Columns=8192)
    path = save(tmp_path, dataset, JPEG2000Lossless, [jpeg_2000(8192)])
    assert image_size(path) == (8192, 8192)
    assert "384 MiB" in refusal(path)


def test_segments_that_unpack_to_more_than_the_image(tmp_path):
    segments = b"\x81\x00" * 20_000_000
    head = struct.pack("<16I", 2, 64, 64 + len(segments) // 2, *[0] * 13)
    path = save(tmp_path, described(), RLELossless, [head + segments])
    assert "than any image needs" in refusal(path)


def test_a_frame_in_a_million_fragments(tmp_path):
    dataset = described(np.zeros((1024, 1024), np.uint16))
    empty = bytes.fromhex("feff00e000000000")
    path = save(tmp_path, dataset, JPEG2000Lossless, [jpeg_2000(1024)])
    content = path.read_bytes()
    end = content.rindex(bytes.fromhex("feffdde0"))
    path.write_bytes(content[:end] + empty * 500_000 + content[end:])
    refusal(path)


def deflated(path, content):
    """A file whose elements, those of `content`, are deflated."""
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    dataset.SOPClassUID, dataset.SOPInstanceUID = DigitalXRayImageStorageForPresentation, "1.2.3"
    pydicom.dcmwrite(path, dataset, enforce_file_format=True)
    start = path.read_bytes()
    place = 144 + struct.unpack_from("<I", start, 140)[0]
    squeezed = zlib.compressobj(9, wbits=-15)
    parts = [start[:place]]
    parts += [squeezed.compress(part) for part in content]
    path.write_bytes(b"".join([*parts, squeezed.flush()]))
    return path


def element(group, number, vr, content, size=None):
    return struct.pack("<HH2sHI", group, number, vr, 0, size or len(content)) + content


def inserted(path, tag, content):
    """The file with so many bytes before an element."""
    whole = path.read_bytes()
    place = whole.index(bytes.fromhex(tag))
    path.write_bytes(whole[:place] + content + whole[place:])
    return path


@pytest.mark.parametrize("reader", [image_size, audit_header, read_image])
def test_a_deflated_file_that_inflates_without_end(tmp_path, reader):
    private = element(9, 0x1010, b"OB", b"", 0xFFFFFFF0)
    path = deflated(tmp_path / "bomb", [private, *[bytes(MB)] * 200])
    assert path.stat().st_size < 400_000
    assert "inflates to more than" in refusal(path, reader)


def test_deflated_pixels_without_end(tmp_path):
    whole = save(tmp_path, described(BYTES)).read_bytes()
    header = whole[whole.index(bytes.fromhex("28000200")) : -4096 - 12]
    pixels = element(0x7FE0, 0x10, b"OB", b"", 0xFFFFFFF0)
    path = deflated(tmp_path / "bomb", [header, pixels, *[bytes(MB)] * 60])
    assert image_size(path) == (64, 64)
    assert "than any image needs" in refusal(path)


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, ImplicitVRLittleEndian])
@pytest.mark.parametrize("reader", [image_size, read_image])
def test_a_header_of_a_million_elements(tmp_path, reader, syntax):
    path = save(tmp_path, described(BYTES), syntax)
    vr = b"LO\0\0" if syntax == ExplicitVRLittleEndian else bytes(4)
    elements = b"".join(struct.pack("<HH", 9, n % 65536) + vr for n in range(1_000_000))
    assert "than any image needs" in refusal(inserted(path, "08001600", elements), reader)


def test_sequences_within_sequences(tmp_path):
    nested = bytes.fromhex("09001010") + b"SQ\0\0" + b"\xff" * 4 + bytes.fromhex("feff00e0ffffffff")
    path = inserted(save(tmp_path, described(BYTES)), "28000200", nested * 20_000)
    for reader in (image_size, read_image):
        refusal(path, reader)


def test_a_number_of_a_million_values(tmp_path):
    path = save(tmp_path, described(BYTES), ImplicitVRLittleEndian)
    many = b"1\\" * 2_000_000
    window = bytes.fromhex("28005010") + struct.pack("<I", len(many)) + many
    assert "at most 4,096 are read" in refusal(inserted(path, "28001000", window), audit_header)


def test_a_lookup_table_of_any_length(tmp_path):
    item = Dataset()
    item.LUTDescriptor, item.LUTData = [0, 0, 16], bytes(2 * 65536)
    dataset = described()
    dataset.VOILUTSequence = [item] * 20
    assert "at most 1,048,576 are read" in refusal(save(tmp_path, dataset))


def test_an_element_that_claims_four_gigabytes(tmp_path):
    claims = element(0x28, 0x3010, b"SQ", b"", 0xFFFFFFF0)
    path = inserted(save(tmp_path, described(BYTES)), "28000200", claims)
    with open(path, "r+b") as file:
        file.truncate(8 * 2**30)  # sparse
    for reader in (image_size, read_image):
        refusal(path, reader)


@pytest.mark.parametrize(
    ("tag", "vr"),
    [
        ("28001000", b"IS"),  # Rows
        ("28000200", b"LO"),  # SamplesPerPixel
        ("28000400", b"LO"),  # PhotometricInterpretation
        ("28000101", b"LO"),  # BitsStored
        ("28000201", b"IS"),  # HighBit
        ("20002000", b"LO"),  # PatientOrientation
    ],
)
@pytest.mark.parametrize("value", [b"9" * 4000, b"H\x1b[31m\nx" * 400])
@pytest.mark.filterwarnings("ignore")
def test_a_value_of_a_header_is_printed_plain_and_short(tmp_path, tag, vr, value):
    orientation = {"PatientOrientation": ["H", "F"]}
    path = save(tmp_path, described(BYTES, **orientation))
    content = path.read_bytes()
    place = content.index(bytes.fromhex(tag))
    end = place + 8 + struct.unpack_from("<H", content, place + 6)[0]
    value = bytes.fromhex(tag) + vr + struct.pack("<H", len(value)) + value
    path.write_bytes(content[:place] + value + content[end:])
    for reader in (image_size, audit_header, read_image):
        with contextlib.suppress(ImageError):
            said = reader(path)
            assert reader is not audit_header or all(
                len(note) < 200 and note.isprintable() for note in said
            )
            continue
        refusal(path, reader)


def test_a_size_beyond_what_any_format_has(tmp_path):
    for stream in (
        b"",
        b"\xff\xd8",
        b"\xff\x4f\xff\x51\0\0",
        b"\0\0\0\x0cjP  \0\0\0\x01",
        b"\xff" * 99,
    ):
        with pytest.raises(ForeignError, match="not a JPEG or JPEG 2000"):
            codestream_size(stream)
    boxes = b"\0\0\0\x0cjP  \r\n\x87\n" + b"\0\0\0\x08free" * 3
    stream = jpeg_2000(640)
    assert codestream_size(stream) == (640, 640, 1)
    assert codestream_size(boxes + b"\0\0\0\0jp2c" + stream) == (640, 640, 1)
    assert codestream_size(boxes + b"\0\0\0\x01jp2c" + bytes(8) + stream) == (640, 640, 1)


# --- PNG and JPEG


def png(*chunks, behind=()):
    """A picture of 8 x 8 with chunks before its pixels, and behind them."""
    pixels = chunk(b"IDAT", zlib.compress(bytes(72)))
    return png_bytes(8, 8, 8, 0, *chunks, pixels, *behind)


def text_chunk(size):
    return chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(size)))


def exif(entries, size):
    """So many entries, the value of each all of the rest."""
    start = 10 + 12 * entries + 4
    head = b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">H", entries)
    table = b"".join(struct.pack(">HHII", n + 1, 7, size, start) for n in range(entries))
    return head + table + bytes(4 + size)


# Made when they are asked for: it takes time.
PNG_ATTACKS = {
    "text": lambda: png(*[text_chunk(1_000_000)] * 80),
    "text behind": lambda: png(behind=[text_chunk(1_000_000)] * 80),
    "profiles": lambda: png(*[chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(MB - 9)))] * 2000),
    "chunks": lambda: png(*[chunk(b"abCd", b"")] * 300_000),
    "chunks behind": lambda: png(behind=[chunk(b"abCd", b"")] * 300_000),
    "empty pixels": lambda: png(*[chunk(b"IDAT", b"")] * 300_000),
    "pixels": lambda: png(*[chunk(b"IDAT", zlib.compress(bytes(MB), 0))] * 20),
}


def meet(path, content):
    """The file is refused, and costs little as well where its size alone is asked for."""
    path.write_bytes(content)
    refusal(path)
    with contextlib.suppress(ImageError), within_budget():
        image_size(path)


@pytest.mark.parametrize("name", PNG_ATTACKS)
def test_a_png_with_more_in_it_than_pixels(tmp_path, name):
    meet(tmp_path / "attack.png", PNG_ATTACKS[name]())


def jpeg(*segments):
    """A picture of 64 x 64 with segments at its start."""
    content = baseline_jpeg(64)
    return content[:2] + b"".join(segments) + content[2:]


def scans(count, side=4000, between=b""):
    """A progressive picture whose last scan comes again and again, the first time before that."""
    out = io.BytesIO()
    Image.new("L", (side, side), 99).save(out, "JPEG", progressive=True)
    content = out.getvalue()
    last = content[content.rindex(b"\xff\xda") : -2]
    return content[:-2] + last + between + last * (count - 1) + content[-2:]


JPEG_ATTACKS = {
    "segments": lambda: jpeg(segment(0xE5, b"") * 2_000_000),
    "fill": lambda: jpeg(b"\xff" * 20_000_000),
    "junk": lambda: jpeg(bytes(20_000_000)),
    "EXIF": lambda: jpeg(*[segment(0xE1, b"Exif\0\0" + bytes(65_000))] * 900),
    "scans": lambda: scans(3000),
    "scans behind a false end": lambda: scans(3000, between=segment(0xE5, b"\xff\xd9" * 9)),
}


@pytest.mark.parametrize("name", JPEG_ATTACKS)
def test_a_jpeg_with_more_in_it_than_pixels(tmp_path, name):
    meet(tmp_path / "attack.jpg", JPEG_ATTACKS[name]())


@pytest.mark.filterwarnings("ignore")
def test_values_that_are_all_of_a_file_are_no_warnings(tmp_path):
    """60,000 entries of EXIF, each of 300,000 bytes, and a million digits that are none."""
    program = (
        "import sys\nfrom cxrjax.images.decode import *\nfor path in sys.argv[1:]:\n"
        "    try: read_image(path)\n    except ImageError as error: print(error, file=sys.stderr)"
    )
    entries = exif(20_000, 300_000)
    text = zlib.compress(b"\n\n\n" + exif(9_000, 90_000).hex().encode())
    image = described(BYTES, WindowCenter=5, WindowWidth=9)
    dicom = save(tmp_path, image).read_bytes()
    contents = [
        png(chunk(b"eXIf", entries[6:])),
        png(chunk(b"zTXt", b"Raw profile type exif\0\0" + text)),
        jpeg(segment(0xE1, exif(2_000, 30_000)), *[segment(0xE1, bytes(60_000))] * 20),
        dicom.replace(b"DS\x02\x005 ", b"DS\x02\x005\x1b"),
    ]
    paths = [tmp_path / str(number) for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
        with contextlib.suppress(ImageError), within_budget():
            read_image(path)
    command = [sys.executable, "-c", program, *paths]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "warn" not in run.stderr.lower() and "\x1b" not in run.stderr


def test_what_programs_write_beside_pixels_is_let_pass(tmp_path):
    path = tmp_path / "image"
    path.write_bytes(png(*[text_chunk(10_000)] * 40, behind=[text_chunk(10_000)] * 40))
    assert read_image(path).shape == (8, 8, 3)
    many = [segment(0xE2, b"ICC_PROFILE\0" + bytes([n, 9]) + bytes(60_000)) for n in range(1, 10)]
    path.write_bytes(jpeg(segment(0xE1, exif(20, 30_000)), *many, b"\xff" * 9))
    assert read_image(path).shape == (64, 64, 3)
    path.write_bytes(scans(3, 200))
    assert read_image(path).shape == (200, 200, 3)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "I;16", "P", "LA"])
def test_the_largest_image_stays_within_memory(tmp_path, mode):
    path = tmp_path / "large.png"
    Image.new(mode, (8192, 8192)).save(path, compress_level=1)
    # A process of its own: what others left to the allocator would count.
    program = (
        "import sys\n"
        "from tests.images import test_image_attacks as attacks\n"
        "with attacks.within_budget(seconds=60):\n"
        "    assert attacks.read_image(sys.argv[1]).shape == (8192, 8192, 3)"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-c", program, path], cwd=root, env=environment, check=True)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/stdin", "/tmp", "a\0b", "\ud800", "x" * 5000])
def test_what_is_no_file(path):
    for reader in (read_image, image_size, audit_header):
        with pytest.raises(ImageError, match="cannot be read"):
            reader(path)
