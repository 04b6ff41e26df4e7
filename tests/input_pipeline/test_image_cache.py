"""Prepared images and features on disk: written, read, and made again or refused where broken."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from cxrjax.errors import UserError
from cxrjax.images.files import ImageError
from cxrjax.input_pipeline import examples
from cxrjax.input_pipeline.caches import FeatureCache, ImageCache
from cxrjax.input_pipeline.examples import ExampleConfig, load_image


def _config(folder, size=24, geometry="resize", cached=True, times=2):
    cache = ImageCache(folder / "cache", size, geometry, jpeg_times=times) if cached else None
    return ExampleConfig(size, geometry=geometry, image_cache=cache, jpeg_times=times)


@pytest.fixture
def picture(tmp_path):
    """`picture(name, channels, seed)` writes an image file of 60 x 40 pixels."""

    def write(name="a.png", channels=(), seed=0):
        path = tmp_path / name
        pixels = np.random.default_rng(seed).integers(0, 256, (60, 40, *channels), np.uint8)
        Image.fromarray(pixels).save(path)
        return path

    return write


@pytest.fixture
def decoded(monkeypatch):
    """The files that were decoded, in their order."""
    found, read = [], examples.read_grey_or_rgb

    def note(path, *target):
        found.append(path)
        return read(path, *target)

    monkeypatch.setattr(examples, "read_grey_or_rgb", note)
    return found


@pytest.mark.parametrize("geometry", ["resize", "letterbox"])
@pytest.mark.parametrize(("name", "channels"), [("a.png", ()), ("b.png", (3,)), ("c.jpg", (3,))])
def test_the_second_visit_decodes_nothing_and_has_the_same_pixels(
    tmp_path, picture, decoded, name, channels, geometry
):
    path = picture(name, channels)
    plain = load_image(path, _config(tmp_path, geometry=geometry, cached=False))
    config = _config(tmp_path, geometry=geometry)
    for _ in range(3):
        found = load_image(path, config)
        assert found.dtype == np.uint8 and found.shape == (24, 24, 3)
        np.testing.assert_array_equal(found, plain)
    assert decoded == [path, path]  # once without the cache
    (kept,) = (tmp_path / "cache").rglob("*.npy")
    assert np.load(kept).shape == ((24, 24, 3) if channels else (24, 24))


def test_each_size_has_its_own_and_a_changed_file_is_decoded_again(tmp_path, picture, decoded):
    path = picture("a.jpg")
    ways = ((24, "resize", 2), (24, "letterbox", 2), (16, "resize", 2), (16, "resize", 1))
    found = set()
    for size, geometry, times in ways * 2:
        config = _config(tmp_path, size, geometry, times=times)
        plain = _config(tmp_path, size, geometry, cached=False, times=times)
        np.testing.assert_array_equal(load_image(path, config), load_image(path, plain))
        found.add(load_image(path, plain).tobytes())
    assert len(found) == 4 and len(decoded) == 4 + 16
    assert len(list((tmp_path / "cache").iterdir())) == 4
    config = _config(tmp_path)
    before = load_image(picture(seed=1), config)
    os.utime(tmp_path / "a.png", ns=(1, 1))
    load_image(tmp_path / "a.png", config)
    after = load_image(picture(seed=2), config)
    assert len(decoded) == 4 + 16 + 3 and not np.array_equal(before, after)


@settings(max_examples=30)
@given(st.binary(max_size=200), st.integers(0, 700))
def test_a_damaged_file_of_the_cache_is_made_again(tmp_path_factory, garbage, kept):
    folder = tmp_path_factory.mktemp("damaged")
    pixels = np.arange(24 * 24, dtype=np.uint8).reshape(24, 24)
    image, cache = folder / "image", ImageCache(folder / "cache", 24, "resize")
    image.write_bytes(b"what an image file holds")
    cache.get(image, lambda: pixels)
    (file,) = (folder / "cache").rglob("*.npy")
    file.write_bytes(file.read_bytes()[:kept] or garbage)
    for _ in range(2):
        np.testing.assert_array_equal(cache.get(image, lambda: pixels), pixels)
    np.testing.assert_array_equal(np.load(file), pixels)


def test_threads_at_the_same_image_do_not_meet(tmp_path):
    images = [tmp_path / f"image{number}" for number in range(40)]
    for image in images:
        image.write_bytes(image.name.encode())
    cache = ImageCache(tmp_path / "cache", 64, "resize")
    together = threading.Barrier(8, timeout=60)

    def visit(_):
        for number, image in enumerate(images):
            together.wait()
            pixels = np.full((64, 64), number, np.uint8)
            np.testing.assert_array_equal(cache.get(image, pixels.copy), pixels)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(visit, range(8)))
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert len(files) == 40 and all(path.suffix == ".npy" for path in files)
    assert sorted(int(np.load(path)[0, 0]) for path in files) == list(range(40))


def test_a_stored_file_is_known_by_its_content(tmp_path, picture, decoded):
    class Stored:
        def __init__(self, path, name):
            self.path, self.name = path, name

        def __str__(self):
            return self.name

        def open(self):
            return open(self.path, "rb")

    config = _config(tmp_path)
    path = picture()
    first = load_image(Stored(path, "shard 1, image 5"), config)
    np.testing.assert_array_equal(load_image(Stored(path, "shard 2, image 0"), config), first)
    assert len(decoded) == 1


def test_what_cannot_be_read_or_is_of_another_tower_is_told(tmp_path, picture, image):
    config = _config(tmp_path)
    with pytest.raises(ImageError, match=r"lost\.png"):
        load_image(tmp_path / "lost.png", config)
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(ImageError, match=r"broken\.png"):
        load_image(broken, config)
    assert not list(tmp_path.rglob("*.npy"))
    (tmp_path / "cache").write_text("a file where the folder belongs")
    with pytest.raises(UserError, match=r"data\.image_cache: .* cannot be written: .*leave data"):
        load_image(picture(), config)
    cache = FeatureCache(tmp_path / "features", 4, 3, "float32")
    cache.write(cache.file_of(image), np.ones((3, 4), np.float32))
    with pytest.raises(UserError, match=r"shape \(3, 4\), expected \(4, 3\)"):
        cache.read(image)
    with pytest.raises(ImageError, match=r"lost\.png: cannot be read"):
        FeatureCache(tmp_path, 3, 4, "float32").read(tmp_path / "lost.png")


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "image.png"
    path.write_bytes(b"what an image file holds")
    return path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_written_is_read(tmp_path, image, dtype):
    cache = FeatureCache(tmp_path / "features", 3, 4, dtype)
    features = np.arange(12).reshape(3, 4).astype(jnp.dtype(dtype))
    assert cache.read(image) is None
    cache.write(cache.file_of(image), features)
    found = cache.read(image)
    assert found.dtype == features.dtype
    np.testing.assert_array_equal(found, features)
    assert len(list((tmp_path / "features").rglob("*.*"))) == 1


@pytest.mark.parametrize("kept", [0, 5, 100, -1])
def test_a_damaged_file_is_told(tmp_path, image, kept):
    cache = FeatureCache(tmp_path / "features", 3, 4, "float32")
    file = cache.file_of(image)
    cache.write(file, np.ones((3, 4), np.float32))
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"damaged .*; remove it and start again"):
        cache.read(image)
