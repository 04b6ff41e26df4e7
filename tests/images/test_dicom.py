import io
import subprocess
import sys

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate, generate_frames
from pydicom.pixels import apply_windowing, get_decoder
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    DigitalXRayImageStorageForPresentation,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLosslessSV1,
    RLELossless,
    generate_uid,
)

from cxrjax.images.decode import audit_header, image_size, read_image
from cxrjax.images.files import ImageError

from .conftest import refusal, segment


def dataset_of(stored, bits, **elements):
    """A single-frame grey dataset of those stored values; `elements` override or add."""
    stored = np.asarray(stored)
    signed = stored.dtype.kind == "i"
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.SOPClassUID = DigitalXRayImageStorageForPresentation
    dataset.SOPInstanceUID = generate_uid()
    dataset.Rows, dataset.Columns = stored.shape[:2]
    dataset.SamplesPerPixel = 1
    dataset.PhotometricInterpretation = "MONOCHROME2"
    dataset.BitsAllocated = 8 if bits <= 8 else 16
    dataset.BitsStored = bits
    dataset.HighBit = bits - 1
    dataset.PixelRepresentation = int(signed)
    width = dataset.BitsAllocated // 8
    dataset.PixelData = stored.astype(f"<{'i' if signed else 'u'}{width}").tobytes()
    for name, value in elements.items():
        if value is None:
            delattr(dataset, name)
        else:
            setattr(dataset, name, value)
    return dataset


def save(tmp_path, dataset, syntax=ExplicitVRLittleEndian, name="image.dcm"):
    if syntax in (JPEG2000Lossless, RLELossless):
        plugin = "pylibjpeg" if syntax == JPEG2000Lossless else "pydicom"
        dataset.compress(syntax, encoding_plugin=plugin)
    dataset.file_meta.TransferSyntaxUID = syntax
    path = tmp_path / name
    pydicom.dcmwrite(path, dataset, enforce_file_format=True)
    return path


def grey(path):
    image = read_image(path)
    assert image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3
    assert (image == image[..., :1]).all()
    assert image_size(path) == image.shape[:2]
    return image[..., 0]


def ramp(bits, signed=False):
    """Every level of that many bits, or 4,096 of them, in 64 columns."""
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    values = np.linspace(low, high, 4096).round().reshape(64, 64)
    return values.astype(np.int16 if signed else np.uint16)


SYNTAXES = [
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    DeflatedExplicitVRLittleEndian,
    RLELossless,
    JPEG2000Lossless,
]


@pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda uid: uid.name)
@pytest.mark.parametrize("bits", [8, 10, 12, 14, 15, 16])
@pytest.mark.parametrize("signed", [False, True])
def test_every_bit_depth_in_every_encoding(tmp_path, syntax, bits, signed):
    stored = ramp(bits, signed)
    # A window over all levels, so that what is expected needs no percentile.
    window = {"WindowCenter": float(stored.min()) + 2 ** (bits - 1), "WindowWidth": 2**bits}
    path = save(tmp_path, dataset_of(stored, bits, **window), syntax)
    expected = (stored.astype(float) - stored.min()) / (2**bits - 1) * 255
    assert np.abs(grey(path) - expected).max() <= 0.5 + 1e-6


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID", None])
@pytest.mark.parametrize(("centre", "width"), [(2048, 4096), (600, 300), (3000.5, 77), (500, 2)])
def test_window_agrees_with_pydicom(tmp_path, function, centre, width):
    dataset = dataset_of(ramp(12), 12, WindowCenter=centre, WindowWidth=width)
    if function:
        dataset.VOILUTFunction = function
    expected = apply_windowing(ramp(12), dataset) / 4095 * 255
    assert np.abs(grey(save(tmp_path, dataset)) - expected).max() <= 0.5 + 1e-6


def test_negative_slopes_and_outliers_without_a_window(tmp_path):
    path = save(tmp_path, dataset_of(ramp(12), 12, RescaleSlope=-1, RescaleIntercept=4095))
    assert (grey(path)[0, 0], grey(path)[-1, -1]) == (255, 0)
    chest = np.random.default_rng(0).integers(1000, 2000, (256, 256)).astype(np.uint16)
    clean = grey(save(tmp_path, dataset_of(chest, 16), name="clean"))
    chest[:4, :40] = 65535  # a lead marker, a quarter of a percent
    chest[100, 100] = 0  # a dead detector element
    spoilt = grey(save(tmp_path, dataset_of(chest, 16)))
    assert spoilt[0, 0] == 255 and spoilt[100, 100] == 0
    assert np.abs(clean[8:].astype(int) - spoilt[8:]).max(where=chest[8:] > 0, initial=0) <= 2


def lut_sequence(first, entries, depth):
    item = Dataset()
    item.LUTDescriptor = [len(entries), first, depth]
    item.LUTData = np.asarray(entries).astype("<u2").tobytes()
    return [item]


LEVELS = ramp(12).astype(int)
_FALLING = np.arange(4096)[::-1]
# From level 100 on, ending at three quarters of white; flat outside.
_RISING = np.linspace(0, 0.75 * 1023, 256).round().astype(int)
_OF_16 = Dataset()
_OF_16.update(lut_sequence(0, _FALLING * 16, 16)[0])
_OF_16.ModalityLUTType = "US"
_WHOLE = {"WindowCenter": 2048, "WindowWidth": 4096}
SHOWN = {
    "a window of one level is a threshold": (
        {"WindowCenter": 1000, "WindowWidth": 1},
        np.where(LEVELS > 999.5, 255, 0),
    ),
    "MONOCHROME1 is the inverse": (
        {"PhotometricInterpretation": "MONOCHROME1", "WindowCenter": 1000, "WindowWidth": 1500},
        255 - np.clip((LEVELS - 999.5) / 1499 + 0.5, 0, 1) * 255,
    ),
    "overlay bits above the stored ones are ignored": (
        _WHOLE | {"PixelData": (ramp(12) | 0xF000).tobytes()},
        LEVELS / 4095 * 255,
    ),
    "the first of several windows counts": (
        {"WindowCenter": [700, 9], "WindowWidth": [400, 9]},
        np.clip((LEVELS - 699.5) / 399 + 0.5, 0, 1) * 255,
    ),
    "rescale comes before the window": (
        {"RescaleSlope": 2, "RescaleIntercept": -1024, "WindowCenter": 1000, "WindowWidth": 2000},
        np.clip((LEVELS * 2.0 - 1024 - 999.5) / 1999 + 0.5, 0, 1) * 255,
    ),
    "a rescale may lack its intercept, or have an empty one": (
        {"RescaleSlope": 2, "RescaleIntercept": "", "WindowCenter": 1000, "WindowWidth": 2000},
        np.clip((LEVELS * 2.0 - 999.5) / 1999 + 0.5, 0, 1) * 255,
    ),
    "a VOI LUT goes before the window": (
        _WHOLE | {"VOILUTSequence": lut_sequence(100, _RISING, 10)},
        _RISING[np.clip(LEVELS - 100, 0, 255)] / 1023 * 255,
    ),
    "a VOI LUT comes after rescale": (
        {"VOILUTSequence": lut_sequence(0, _FALLING, 12)}
        | {"RescaleSlope": 1, "RescaleIntercept": -1000},
        (4095 - np.clip(LEVELS - 1000, 0, 4095)) / 4095 * 255,
    ),
    "a VOI LUT of 12 bits that is declared as of 16": (
        {"VOILUTSequence": lut_sequence(0, _FALLING, 16)},
        (4095 - LEVELS) / 4095 * 255,
    ),
    "a VOI LUT whose first level, -2048, is written without its sign": (
        {"VOILUTSequence": lut_sequence(63488, _FALLING, 12)}
        | {"RescaleSlope": 1, "RescaleIntercept": -2048},
        (4095 - LEVELS) / 4095 * 255,
    ),
    "a modality LUT comes before the window": (
        {"ModalityLUTSequence": [_OF_16], "WindowCenter": 32768, "WindowWidth": 65536},
        _FALLING[LEVELS] * 16 / 65535 * 255,
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_levels_are_shown_as_the_standard_says(tmp_path, name):
    elements, expected = SHOWN[name]
    path = save(tmp_path, dataset_of(ramp(12), 12, **elements))
    assert np.abs(grey(path) - expected).max() <= 0.5 + 1e-6


@pytest.mark.parametrize(
    "window", [{}, *({"WindowCenter": 5, "WindowWidth": wide} for wide in (0, "nan", "inf"))]
)
def test_without_a_window_the_percentiles_are_black_and_white(tmp_path, window):
    path = save(tmp_path, dataset_of(ramp(14), 14, **window))
    expected = np.clip((np.linspace(0, 1, 4096).reshape(64, 64) - 0.005) / 0.99, 0, 1) * 255
    assert np.abs(grey(path) - expected).max() <= 1
    assert "no usable window: exposed by percentiles" in audit_header(path)


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_padding_is_black_and_does_not_count_for_exposure(tmp_path, photometric):
    stored = np.random.default_rng(0).integers(1000, 2000, (100, 100)).astype(np.uint16)
    kept = stored[:, 30:].copy()
    stored[:, :30] = 0
    stored[:, 10:20] = 5
    elements = {"PhotometricInterpretation": photometric}
    alone = grey(save(tmp_path, dataset_of(kept, 12, **elements), name="alone"))
    elements |= {"PixelPaddingValue": 0, "PixelPaddingRangeLimit": 10}
    padded = grey(save(tmp_path, dataset_of(stored, 12, **elements)))
    assert (padded[:, :30] == 0).all()
    assert (padded[:, 30:] == alone).all()


@pytest.mark.parametrize(("value", "signed"), [(63536, 1), (-2000, 1), (-2, 0), (65534, 0)])
def test_padding_may_have_the_other_sign(tmp_path, value, signed):
    levels = np.random.default_rng(0).integers(0, 1000, (100, 100))
    stored = levels.astype(np.int16 if signed else np.uint16)
    stored[:, :30] = -2000 if signed else 65534
    dataset = dataset_of(stored, 16, PixelRepresentation=signed)
    dataset.add_new("PixelPaddingValue", "US" if value > 0 else "SS", value)
    assert (grey(save(tmp_path, dataset))[:, :30] == 0).all()


def test_colour_and_notes_of_the_header(tmp_path):
    colour = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype(np.uint8)
    elements = {"PhotometricInterpretation": "RGB", "SamplesPerPixel": 3}
    path = save(tmp_path, dataset_of(colour, 8, **elements, PlanarConfiguration=0))
    assert (read_image(path) == colour).all()
    elements |= {"PixelRepresentation": 1}
    signed = save(tmp_path, dataset_of(colour, 8, **elements, PlanarConfiguration=0))
    with pytest.raises(ImageError, match="expected grey of 8 or 16 or unsigned colour"):
        read_image(signed)
    window = {"WindowCenter": 2048, "WindowWidth": 4096}
    usual = dataset_of(ramp(8), 8, **window, PatientOrientation=["L", "F"])
    assert audit_header(save(tmp_path, usual)) == []
    usual.PresentationLUTShape = "INVERSE"
    assert "INVERSE beside MONOCHROME2" in audit_header(save(tmp_path, usual))[0]
    odd = dataset_of(ramp(12), 12, **window, PatientOrientation=["R", "F"], PixelAspectRatio=[1, 2])
    notes = " / ".join(audit_header(save(tmp_path, odd)))
    assert "12 bits" in notes and "mirrored" in notes and "not square" in notes
    turned = dataset_of(ramp(8), 8, **window, PatientOrientation=["F", "R"])
    assert "rotated" in audit_header(save(tmp_path, turned))[0]


@pytest.mark.parametrize("mode", ["L", "YCbCr"])
def test_jpeg_baseline(tmp_path, mode):
    picture = np.tile(np.arange(0, 240, 4, dtype=np.uint8), (40, 1))
    buffer = io.BytesIO()
    Image.fromarray(picture).convert("L" if mode == "L" else "RGB").save(buffer, "JPEG", quality=95)
    dataset = dataset_of(picture, 8, WindowCenter=128, WindowWidth=256)
    if mode == "YCbCr":
        dataset.PhotometricInterpretation, dataset.SamplesPerPixel = "YBR_FULL_422", 3
        dataset.PlanarConfiguration = 0
    dataset.PixelData = encapsulate([buffer.getvalue()])
    path = save(tmp_path, dataset, JPEGBaseline8Bit)
    assert np.abs(read_image(path).astype(int) - picture[..., None]).max() <= 4


def lossless_jpeg(stored, bits):
    """A lossless JPEG (process 14, selection value 1) by ITU-T T.81, annex H.

    Written here because no installed encoder writes it, and most chest units do.
    """

    height, width = stored.shape
    # 17 categories of difference, each with its own number as a code of 5 bits.
    huffman = bytes([0] + [0, 0, 0, 0, 17] + [0] * 11) + bytes(range(17))
    frame = bytes([bits]) + height.to_bytes(2, "big") + width.to_bytes(2, "big")
    head = b"\xff\xd8" + segment(0xC3, frame + bytes([1, 1, 0x11, 0])) + segment(0xC4, huffman)
    head += segment(0xDA, bytes([1, 1, 0, 1, 0, 0]))
    code = []
    values = stored.astype(int)
    for y in range(height):
        for x in range(width):
            above = values[y - 1, 0] if y else 2 ** (bits - 1)
            difference = (values[y, x] - (values[y, x - 1] if x else above)) % 65536
            difference -= 65536 * (difference > 32768)
            size = abs(int(difference)).bit_length()
            code.append(f"{size:05b}")
            if 0 < size < 16 or difference == -32768:
                extra = difference if difference > 0 else difference + 2**size - 1
                code.append(f"{extra:0{size}b}")
    data = "".join(code)
    data += "1" * (-len(data) % 8)
    packed = int(data, 2).to_bytes(len(data) // 8, "big")
    return head + packed.replace(b"\xff", b"\xff\x00") + b"\xff\xd9"


@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
@pytest.mark.parametrize("keep", [1, 0.5])
def test_lossless_jpeg(tmp_path, bits, keep):
    stored = np.random.default_rng(0).integers(0, 2**bits, (24, 40)).astype(np.uint16)
    window = {"WindowCenter": 2 ** (bits - 1), "WindowWidth": 2**bits}
    dataset = dataset_of(stored, bits, **window)
    frame = lossless_jpeg(stored, bits)
    dataset.PixelData = encapsulate([frame[: int(len(frame) * keep)]])
    path = save(tmp_path, dataset, JPEGLosslessSV1)
    if keep < 1:
        # The decoder would return a whole picture.
        assert "no end marker" in refusal(path)
    else:
        expected = stored / (2**bits - 1) * 255
        assert np.abs(grey(path) - expected).max() <= 0.5 + 1e-6


def test_headers_cut_or_without_pixels(tmp_path):
    path = save(tmp_path, dataset_of(ramp(12), 12, PixelData=None, Rows=3000, Columns=2500))
    assert image_size(path) == (3000, 2500)
    assert "without pixel data" in refusal(path)
    path = save(tmp_path, dataset_of(ramp(12), 12))
    path.write_bytes(path.read_bytes()[:200])
    for reader in (read_image, image_size):
        refusal(path, reader)


EVERY_READER = (read_image, image_size, audit_header)


@pytest.mark.parametrize(
    ("elements", "said", "readers"),
    [
        ({"Rows": 32, "NumberOfFrames": 2}, "2 frames", [read_image]),
        # More pixels than the header has are no frames.
        ({"Rows": 1}, "the pixel data", [read_image]),
        ({"Rows": 15}, "the pixel data", [read_image]),
        ({"Rows": 32}, "the pixel data", [read_image]),
        ({"Rows": None}, "without Rows and Columns", EVERY_READER),
        ({"Columns": None}, "without Rows and Columns", EVERY_READER),
        ({"Rows": 60_000, "Columns": 60_000}, "60000 x 60000 pixels", [read_image, image_size]),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "", [read_image]),
        ({"PhotometricInterpretation": None}, "", [read_image]),
        ({"BitsAllocated": 32, "BitsStored": 32, "HighBit": 31}, "", [read_image]),
        ({"HighBit": 15}, "", [read_image]),
        ({"BitsStored": None}, "", [read_image]),
        ({"VOILUTSequence": lut_sequence(0, [1, 2, 3], 5)}, "LUT", [read_image]),
    ],
)
def test_a_header_that_describes_no_image(tmp_path, elements, said, readers):
    path = save(tmp_path, dataset_of(ramp(12), 12, **elements))
    for reader in readers:
        assert said in refusal(path, reader)


@pytest.mark.parametrize("cut", [1, 100, 4000, 64 * 64 * 2, 64 * 64 * 2 + 6])
def test_truncated_uncompressed_file(tmp_path, cut):
    path = save(tmp_path, dataset_of(ramp(12), 12))
    path.write_bytes(path.read_bytes()[:-cut])
    assert "cut off" in refusal(path)


@pytest.mark.filterwarnings("ignore:End of file reached")
@pytest.mark.parametrize("cut", [10, 1000, 3000])
def test_truncated_jpeg_2000_file(tmp_path, cut):
    noise = np.random.default_rng(0).integers(0, 4096, (64, 64)).astype(np.uint16)
    path = save(tmp_path, dataset_of(noise, 12), JPEG2000Lossless)
    path.write_bytes(path.read_bytes()[:-cut])
    assert "cut off" in refusal(path)


def encapsulated(noise, syntax):
    """A dataset of 8-bit noise in that encoding, and its one frame."""
    dataset = dataset_of(noise, 8, WindowCenter=128, WindowWidth=256)
    if syntax == JPEGBaseline8Bit:
        buffer = io.BytesIO()
        Image.fromarray(noise).save(buffer, "JPEG")
        return dataset, buffer.getvalue()
    dataset.compress(syntax, encoding_plugin="pydicom" if syntax == RLELossless else "pylibjpeg")
    return dataset, next(generate_frames(dataset.PixelData, number_of_frames=1))


@pytest.mark.parametrize("keep", [0.3, 0.9, 0.99])
@pytest.mark.parametrize("syntax", [JPEG2000Lossless, JPEGBaseline8Bit, RLELossless])
def test_truncated_frame(tmp_path, syntax, keep):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64)).astype(np.uint8)
    dataset, frame = encapsulated(noise, syntax)
    path = tmp_path / "cut.dcm"

    def write(data):
        dataset.PixelData = encapsulate([data])
        dataset.file_meta.TransferSyntaxUID = syntax
        pydicom.dcmwrite(path, dataset, enforce_file_format=True)

    write(frame)
    assert grey(path).shape == (64, 64)
    write(frame[: int(len(frame) * keep)])
    assert "cut off" in refusal(path)


def test_codestreams_of_another_size_or_of_no_image(tmp_path):
    dataset = dataset_of(ramp(12), 12)
    dataset.compress(JPEG2000Lossless, encoding_plugin="pylibjpeg")
    dataset.Rows = 32
    path = tmp_path / "size.dcm"
    pydicom.dcmwrite(path, dataset, enforce_file_format=True)
    refusal(path)
    dataset = dataset_of(ramp(12), 12)
    dataset.PixelData = encapsulate([b"\0" * 100])
    path = save(tmp_path, dataset, pydicom.uid.MPEG2MPML)
    assert "MPEG2" in refusal(path)


def test_missing_decoder_plugin_says_what_to_install(tmp_path):
    path = save(tmp_path, dataset_of(ramp(12), 12), JPEG2000Lossless)
    program = (
        "import sys\n"
        "from pydicom.pixels import get_decoder\n"
        "from pydicom.uid import JPEG2000Lossless\n"
        "decoder = get_decoder(JPEG2000Lossless)\n"
        "for plugin in decoder.available_plugins: decoder.remove_plugin(plugin)\n"
        "from cxrjax.images.decode import ImageError, read_image\n"
        "try: read_image(sys.argv[1])\n"
        "except ImageError as error: print(error)"
    )
    command = [sys.executable, "-c", program, str(path)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "pip install pylibjpeg" in run.stdout and len(run.stdout.splitlines()) == 1
    assert get_decoder(JPEG2000Lossless).is_available


@pytest.mark.parametrize(
    ("name", "value", "damaged", "readers"),
    [
        ("WindowCenter", b"DS\x04\x001234", b"DS\x04\x0012x4", (read_image, audit_header)),
        ("RescaleSlope", b"DS\x04\x001234", b"DS\x04\x0012x4", (read_image,)),
        ("RescaleSlope", b"DS\x04\x001234", b"DS\x04\x00nan ", (read_image,)),
        ("NumberOfFrames", b"IS\x02\x0077", b"IS\x02\x007x", (read_image,)),
    ],
)
def test_malformed_numbers(tmp_path, name, value, damaged, readers):
    """`value` and `damaged` with type and length before them: UIDs are of random digits."""
    given = {"WindowWidth": 4096, "RescaleIntercept": 0, name: value[4:].decode()}
    path = save(tmp_path, dataset_of(ramp(12), 12, **given))
    content = path.read_bytes()
    assert content.count(value) == 1
    path.write_bytes(content.replace(value, damaged))
    for reader in readers:
        assert "in the DICOM header" in refusal(path, reader)


@pytest.mark.parametrize("ratio", [[17], [1, 2, 3]])
def test_an_aspect_ratio_that_is_none_is_noted(tmp_path, ratio):
    path = save(tmp_path, dataset_of(ramp(8), 8, PixelAspectRatio=ratio))
    assert "aspect ratio cannot be read" in " / ".join(audit_header(path))
