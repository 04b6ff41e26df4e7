import io
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from cxrjax.images import decode
from cxrjax.images.files import MAX_PIXELS
from cxrjax.images.geometry import letterbox, resize

from .conftest import chunk, png_bytes, refusal

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def gradient():
    """A picture without symmetry: 40 x 60, brighter to the right and, less so, to the bottom."""
    return (np.arange(60)[None, :] * 3 + np.arange(40)[:, None]).astype(np.uint8)


def encoded(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def write(tmp_path, data, name="image.bin"):
    path = tmp_path / name
    path.write_bytes(data)
    return path


def test_png_is_read_exactly_whatever_its_colours_and_target(tmp_path, gradient):
    path = write(tmp_path, encoded(Image.fromarray(gradient), "PNG"), "wrong_suffix.jpg")
    image = decode.read_image(path)
    assert image.dtype == np.uint8 and image.shape == (40, 60, 3)
    assert (image == gradient[..., None]).all()
    assert image.flags.writeable and image.flags.c_contiguous
    assert decode.image_size(path) == (40, 60)
    colour = np.stack([gradient, gradient[::-1], gradient[:, ::-1]], axis=-1)
    path = write(tmp_path, encoded(Image.fromarray(colour), "PNG"))
    assert (decode.read_image(path) == colour).all()
    path = write(tmp_path, encoded(Image.fromarray(gradient > 100), "PNG"))
    assert (decode.read_image(path)[..., 0] == np.where(gradient > 100, 255, 0)).all()
    path = write(tmp_path, encoded(Image.fromarray(gradient), "PNG"))
    assert (decode.read_image(path, (2, 2)) == decode.read_image(path)).all()


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg(tmp_path, gradient, mode, progressive):
    picture = Image.fromarray(gradient).convert(mode)
    path = write(tmp_path, encoded(picture, "JPEG", quality=95, progressive=progressive))
    assert np.abs(decode.read_image(path).astype(int) - gradient[..., None]).max() <= 4
    assert decode.image_size(path) == (40, 60)


def test_cmyk_jpeg_and_palette_png(tmp_path):
    # Ink, not light: no ink is white, all of the black ink is black, and a red of full magenta
    # and yellow is red.
    inks = np.zeros((24, 72, 4), np.uint8)
    inks[:, 24:48, 3] = 255
    inks[:, 48:, 1:3] = 255
    picture = Image.fromarray(inks, "CMYK")
    image = decode.read_image(write(tmp_path, encoded(picture, "JPEG", quality=95)))
    for column, expected in ((12, (255, 255, 255)), (36, (0, 0, 0)), (60, (255, 0, 0))):
        assert np.abs(image[12, column].astype(int) - expected).max() <= 6
    indices = np.array([[0, 1], [2, 1]], np.uint8)
    picture = Image.fromarray(indices, "P")
    picture.putpalette([10, 20, 30, 200, 100, 0, 255, 255, 255])
    image = decode.read_image(write(tmp_path, encoded(picture, "PNG")))
    assert image.tolist() == [[[10, 20, 30], [200, 100, 0]], [[255, 255, 255], [200, 100, 0]]]
    path = write(tmp_path, encoded(picture, "PNG", transparency=0))
    assert decode.read_image(path)[0].tolist() == [[0, 0, 0], [200, 100, 0]]
    assert decode.audit_header(path) == ["transparency: composited on black"]


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
def test_alpha_is_composited_on_black(tmp_path, mode):
    values = np.full((1, 3, len(mode) if mode == "LA" else 4), 200, np.uint8)
    values[0, :, -1] = [0, 128, 255]
    path = write(tmp_path, encoded(Image.fromarray(values, mode), "PNG"))
    levels = decode.read_image(path)[0, :, 0].astype(int)
    assert levels[0] == 0 and levels[2] == 200
    assert abs(levels[1] - 200 * 128 / 255) <= 1


@pytest.mark.parametrize("bits", [10, 12, 14, 16])
def test_16_bit_png_uses_the_range_that_is_there(tmp_path, bits):
    ramp = np.linspace(0, 2**bits - 1, 4000).reshape(40, 100).round().astype(np.uint16)
    path = write(tmp_path, encoded(Image.fromarray(ramp), "PNG"))
    image = decode.read_image(path)[..., 0].ravel().astype(int)
    assert (np.diff(image) >= 0).all(), "wrapped"
    # Between the 0.5 and 99.5 percentiles of a ramp: linear, and clipped outside.
    expected = np.clip((np.linspace(0, 1, 4000) - 0.005) / 0.99, 0, 1) * 255
    assert np.abs(image - expected).max() <= 1
    assert decode.audit_header(path) == ["16-bit grey: exposed by percentiles"]


def test_16_bit_png_of_one_level_two_and_many_with_outliers(tmp_path):
    speck = np.full((100, 100), 7, np.uint16)
    flat = decode.read_image(write(tmp_path, encoded(Image.fromarray(speck), "PNG")))
    assert (flat == 0).all()
    speck[50, 50] = 9
    image = decode.read_image(write(tmp_path, encoded(Image.fromarray(speck), "PNG")))
    assert image[50, 50, 0] == 255 and image.sum() == 3 * 255
    chest = np.random.default_rng(0).integers(500, 1500, (200, 200)).astype(np.uint16)
    chest[0, 0], chest[0, 1] = 65535, 0
    image = decode.read_image(write(tmp_path, encoded(Image.fromarray(chest), "PNG")))
    assert image.std() > 60


@pytest.mark.parametrize(("colour_type", "channels"), [(2, 3), (6, 4)])
def test_16_bit_colour_png_is_scaled_not_wrapped(tmp_path, colour_type, channels):
    values = np.full((1, 3, channels), 65535, ">u2")
    values[0, :, 0] = [0, 0x80FF, 0xFFFF]
    rows = zlib.compress(b"\0" + values.tobytes())
    path = write(tmp_path, png_bytes(3, 1, 16, colour_type, chunk(b"IDAT", rows)))
    assert decode.read_image(path)[0, :, 0].tolist() == [0, 0x80, 0xFF]
    assert "16-bit colour: only the high byte is used" in decode.audit_header(path)


# EXIF 2.32, tag 274: where the stored first row and first column are in the displayed picture.
DISPLAYED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a[::-1].swapaxes(0, 1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: a[:, ::-1].swapaxes(0, 1),
}


@pytest.mark.parametrize("orientation", DISPLAYED)
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "PNG16"])
def test_exif_orientation(tmp_path, gradient, orientation, kind):
    exif = Image.Exif()
    exif[274] = orientation
    stored = gradient.astype(np.uint16) * 100 if kind == "PNG16" else gradient
    path = write(tmp_path, encoded(Image.fromarray(stored), kind[:4].rstrip("1"), exif=exif))
    image = decode.read_image(path)
    assert decode.image_size(path) == image.shape[:2]
    unturned = write(tmp_path, encoded(Image.fromarray(stored), kind[:4].rstrip("1")), "plain")
    expected = DISPLAYED[orientation](decode.read_image(unturned))
    assert (image == expected).all()
    notes = [note for note in decode.audit_header(path) if "EXIF" in note]
    assert len(notes) == (orientation != 1)


@pytest.mark.parametrize("orientation", [0, 9, 300])
def test_undefined_exif_orientation_is_upright(tmp_path, gradient, orientation):
    exif = Image.Exif()
    exif[274] = orientation
    path = write(tmp_path, encoded(Image.fromarray(gradient), "PNG", exif=exif))
    assert (decode.read_image(path)[..., 0] == gradient).all()
    assert decode.image_size(path) == (40, 60)


def test_image_size_decodes_no_pixel(tmp_path, monkeypatch, gradient):
    paths = [
        write(tmp_path, encoded(Image.fromarray(gradient), kind), kind) for kind in ("PNG", "JPEG")
    ]

    def fail(self):
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", fail)
    assert [decode.image_size(path) for path in paths] == [(40, 60)] * 2
    assert decode.audit_header(paths[0]) == []


# --- what is refused


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "No such file"),
        (b"", "empty"),
        (b"not an image at all", "not PNG, JPEG or DICOM"),
        (b"\x89PN", "not PNG, JPEG or DICOM"),
        (b"version https://git-lfs", "not PNG, JPEG or DICOM"),
    ],
)
def test_what_is_no_image(tmp_path, data, said):
    path = tmp_path / "nowhere.png" if data is None else write(tmp_path, data)
    for reader in (decode.read_image, decode.image_size, decode.audit_header):
        assert said in refusal(path, reader)


def test_folders_other_formats_and_the_switch_that_hides_truncation(
    tmp_path, gradient, monkeypatch
):
    assert "cannot be read" in refusal(tmp_path)
    path = write(tmp_path, encoded(Image.fromarray(gradient), "TIFF"))
    assert "convert it to PNG" in refusal(path)
    whole = encoded(Image.fromarray(gradient), "JPEG")
    path = write(tmp_path, whole[: len(whole) // 2])
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert "LOAD_TRUNCATED_IMAGES" in refusal(path)


@pytest.fixture
def noise():
    return np.random.default_rng(1).integers(0, 256, (80, 80)).astype(np.uint8)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.95])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "progressive"])
def test_truncated_file(tmp_path, noise, share, kind):
    options = {"progressive": True} if kind == "progressive" else {}
    whole = encoded(Image.fromarray(noise), "PNG" if kind == "PNG" else "JPEG", **options)
    message = refusal(write(tmp_path, whole[: int(len(whole) * share)]))
    assert "damaged or truncated" in message


def test_truncated_jpeg_and_damaged_png_are_refused(tmp_path, noise, gradient):
    for mode in ("L", "RGB"):
        whole = encoded(Image.fromarray(noise).convert(mode), "JPEG")
        assert "truncated" in refusal(write(tmp_path, whole[:-1]))
        path = write(tmp_path, whole[: len(whole) // 2] + b"\xff\xd9")
        # Pillow by itself passes it, the lower part grey; that is what this guards against.
        assert np.asarray(Image.open(path).convert("L"))[-8:].std() == 0
        assert "mid-grey" in refusal(path)
    data = bytearray(encoded(Image.fromarray(noise), "PNG"))
    data[len(data) // 2] ^= 0xFF
    assert "damaged" in refusal(write(tmp_path, bytes(data)))
    refusal(write(tmp_path, png_bytes(0, 5, 8, 0)), decode.image_size)
    frames = [Image.fromarray(gradient), Image.fromarray(gradient[::-1])]
    path = write(tmp_path, encoded(frames[0], "PNG", save_all=True, append_images=frames[1:]))
    assert "animated" in refusal(path)


@pytest.mark.parametrize("side", [8193, 12_000, 100_000])
def test_decompression_bomb_is_refused_by_its_header(tmp_path, side):
    path = write(tmp_path, png_bytes(side, side, 8, 0))
    for reader in (decode.read_image, decode.image_size):
        assert f"more than the {MAX_PIXELS} that are decoded" in refusal(path, reader)
    assert 8192 * 8192 <= MAX_PIXELS < side * side


@pytest.mark.filterwarnings("error")
def test_decompression_bomb_adds_no_second_line_to_the_error(tmp_path, capfd):
    refusal(write(tmp_path, png_bytes(12_000, 12_000, 8, 0)))
    assert capfd.readouterr() == ("", "")


# --- the target hint


def rectangle_jpeg(tmp_path, height, width, box, orientation=1):
    image = np.zeros((height, width), np.uint8)
    image[box[1] : box[3], box[0] : box[2]] = 255
    exif = Image.Exif()
    exif[274] = orientation
    picture = Image.fromarray(image)
    return write(tmp_path, encoded(picture, "JPEG", quality=98, exif=exif), "r.jpg")


@pytest.mark.parametrize(
    ("times", "size", "target", "expected"),
    [
        (2, (1024, 1024), (224, 224), (512, 512)),
        (2, (1024, 1024), (225, 112), (512, 512)),
        (2, (1024, 1024), (256, 256), (512, 512)),
        (2, (1024, 1024), (257, 256), (1024, 1024)),
        (2, (1792, 2400), (224, 224), (448, 600)),
        # 2402 can be halved exactly, not quartered.
        (2, (1792, 2402), (224, 224), (896, 1201)),
        (2, (1023, 1024), (224, 224), (1023, 1024)),
        (2, (448, 448), (224, 224), (448, 448)),
        (2, (200, 200), (224, 224), (200, 200)),
        (1, (1024, 1024), (224, 224), (256, 256)),
        (1, (1024, 1024), (448, 448), (512, 512)),
        (1, (1024, 1024), (513, 448), (1024, 1024)),
        (1, (1792, 2402), (224, 224), (896, 1201)),
    ],
)
def test_target_reduces_only_exactly_and_leaves_it_once_or_twice(
    tmp_path, times, size, target, expected
):
    path = rectangle_jpeg(tmp_path, *size, (10, 20, 150, 160))
    assert decode.read_grey_or_rgb(path, target, times).shape == expected
    assert decode.read_image(path).shape[:2] == decode.image_size(path) == size
    if times == 2:
        assert decode.read_image(path, target).shape[:2] == expected


@pytest.mark.parametrize(("times", "mean", "largest"), [(2, 0.2, 2), (1, 0.8, 21)])
@pytest.mark.parametrize("side", [224, 448])
def test_how_far_a_reduced_radiograph_is_from_the_whole_one(tmp_path, side, times, mean, largest):
    """A radiograph that ships, enlarged, with the noise of a detector."""
    shipped = sorted((ROOT / "data/radiographs/images").glob("*.jpeg"))[::250]
    for number, file in enumerate(shipped):
        large = Image.open(file).convert("L").resize((1024, 1024), Image.Resampling.BICUBIC)
        noise = np.random.default_rng(number).normal(0, 4, (1024, 1024))
        noisy = np.clip(np.asarray(large) + noise, 0, 255).astype(np.uint8)
        path = write(tmp_path, encoded(Image.fromarray(noisy), "JPEG", quality=95), "r.jpg")
        whole, reduced = (
            resize(image, side, side)[0].astype(int)
            for image in (
                decode.read_grey_or_rgb(path),
                decode.read_grey_or_rgb(path, (side, side), times),
            )
        )
        apart = np.abs(whole - reduced)
        assert apart.mean() <= mean and apart.max() <= largest, (file, apart.mean(), apart.max())


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_a_reduced_jpeg_has_its_content_at_the_same_fractions(tmp_path, factor):
    box = (64 * 3, 64 * 5, 64 * 9, 64 * 12)
    path = rectangle_jpeg(tmp_path, 1024, 2048, box)
    image = decode.read_image(path, (1024 // factor // 2, 2048 // factor // 2))[..., 0]
    assert image.shape == (1024 // factor, 2048 // factor)
    expected = np.zeros_like(image)
    x0, y0, x1, y1 = (side // factor for side in box)
    expected[y0:y1, x0:x1] = 255
    # The box lies on the grid at every factor, so that no pixel may be between black and white.
    assert np.abs(image.astype(int) - expected).max() <= 3


def test_targets_are_as_displayed_and_stored_files_read_once(tmp_path, gradient):
    path = rectangle_jpeg(tmp_path, 1024, 512, (0, 0, 512, 64), orientation=6)
    assert decode.image_size(path) == (512, 1024)
    image = decode.read_image(path, (100, 250))
    assert image.shape[:2] == (256, 512)
    assert image[:, -20:].mean() > 250 and image[:, :-40].mean() < 5
    stored = Stored(encoded(Image.fromarray(gradient), "PNG"))
    assert decode.read_image(stored).shape == (40, 60, 3)
    assert stored.opened == 1
    assert "cannot be read: Input/output error" in refusal(Stored(None))


def by_rgb(path):
    """A JPEG's pixels through Pillow's colour conversion."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("subsampling", [0, 2])
def test_a_grey_picture_in_a_colour_jpeg_is_one_channel(tmp_path, gradient, subsampling):
    picture = Image.fromarray(gradient).convert("RGB").resize((96, 64))
    path = write(tmp_path, encoded(picture, "JPEG", subsampling=subsampling), "c.jpg")
    found = decode.read_grey_or_rgb(path)
    assert found.shape == (64, 96)
    np.testing.assert_array_equal(decode.read_image(path), by_rgb(path))
    half = decode.read_grey_or_rgb(path, (16, 24))
    with Image.open(path) as image:
        image.draft("L", (48, 32))
        np.testing.assert_array_equal(half, np.asarray(image))


@pytest.mark.parametrize(
    ("pixels", "is_grey"),
    [
        ([(10, 10, 10)] * 63 + [(60, 10, 10)], False),
        ([(200, 203, 200)] * 64, False),
        ([(0, 0, 0)] * 64, True),
        ([(255, 255, 255)] * 64, True),
    ],
)
def test_any_colour_in_a_jpeg_makes_it_three_channels(tmp_path, pixels, is_grey):
    picture = Image.new("RGB", (8, 8))
    picture.putdata(pixels)
    path = write(tmp_path, encoded(picture, "JPEG", quality=98, subsampling=0), "c.jpg")
    assert (decode.read_grey_or_rgb(path).ndim == 2) == is_grey
    np.testing.assert_array_equal(decode.read_image(path), by_rgb(path))


def test_colours_of_jpeg_are_as_stored_and_equal_channels_grey(tmp_path, gradient):
    """Neutral numbers in its channels are colours, not the lack of them."""
    picture = Image.merge(
        "RGB", [Image.fromarray(gradient)] + [Image.new("L", gradient.shape[::-1], 128)] * 2
    )
    content = encoded(picture, "JPEG", quality=98, subsampling=0, keep_rgb=True)
    path = write(tmp_path, content, "r.jpg")
    assert decode.read_grey_or_rgb(path).ndim == 3
    np.testing.assert_array_equal(decode.read_image(path), by_rgb(path))
    channels = np.repeat(gradient[..., None], 3, axis=2)
    path = write(tmp_path, encoded(Image.fromarray(channels), "PNG"))
    assert (decode.read_grey_or_rgb(path) == gradient).all()
    for channel in range(3):
        spot = channels.copy()
        spot[39, 59, channel] ^= 1
        path = write(tmp_path, encoded(Image.fromarray(spot), "PNG"))
        assert (decode.read_grey_or_rgb(path) == spot).all()


@pytest.mark.parametrize("transform", [resize, letterbox])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "16-bit PNG"])
def test_a_channel_resized_and_repeated_is_three_channels_resized(tmp_path, kind, transform):
    """Bit for bit: training resizes one channel, and nothing it sees may change by that."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (601, 503), np.uint8)
    data = encoded(Image.fromarray(noise), "JPEG" if kind == "JPEG" else "PNG")
    if kind == "16-bit PNG":
        data = encoded(Image.fromarray(noise.astype(np.uint16) * 200), "PNG")
    path = write(tmp_path, data)
    grey, colour = decode.read_grey_or_rgb(path), decode.read_image(path)
    assert grey.ndim == 2 and colour.ndim == 3
    for size in ((224, 224), (448, 448), (97, 61), (700, 601)):
        repeated = decode.three_channels(transform(grey, *size)[0])
        assert repeated.flags.writeable
        np.testing.assert_array_equal(repeated, transform(colour, *size)[0])


class Stored:
    """An image in a shard."""

    def __init__(self, content):
        self.content, self.opened = content, 0

    def __str__(self):
        return "shard[3]"

    def open(self):
        self.opened += 1
        if self.content is None:
            raise OSError(5, "Input/output error")
        return io.BytesIO(self.content)


def rough_chest(height, width):
    """Air in the upper corners, dark lungs, bright midline and abdomen."""
    y, x = np.mgrid[:height, :width] / [[[height]], [[width]]]
    chest = np.full((height, width), 150.0)
    for side in (0.28, 0.72):
        chest[((x - side) / 0.17) ** 2 + ((y - 0.45) / 0.32) ** 2 < 1] = 60
    chest[(y < 0.15) & (np.abs(x - 0.5) > 0.3)] = 10
    chest[np.abs(x - 0.5) < 0.07] = 220
    return np.repeat(chest.astype(np.uint8)[..., None], 3, axis=2)


@pytest.mark.parametrize("size", [(300, 240), (101, 333), (224, 224)])
def test_inversion_is_noticed_and_nothing_else(size):
    chest = rough_chest(*size)
    assert decode.audit_image(chest) == []
    warnings = decode.audit_image(255 - chest)
    assert len(warnings) == 1 and warnings[0].startswith("likely inverted")


@pytest.mark.parametrize("level", [0, 128, 255])
def test_flat_image_is_noticed(level):
    flat = np.full((64, 64, 3), level, np.uint8)
    flat[0, 0] = 90
    assert [warning.split(":")[0] for warning in decode.audit_image(flat)] == ["nearly flat"]


@pytest.mark.parametrize("size", [(1, 1), (1, 50), (50, 1), (2, 2), (3, 5)])
def test_tiny_images_are_no_error(size):
    decode.audit_image(np.zeros((*size, 3), np.uint8))
