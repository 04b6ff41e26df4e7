"""Features of images in files: written, read, and refused where they are not what was written."""

import jax.numpy as jnp
import numpy as np
import pytest

from cxrjax.errors import UserError
from cxrjax.images.files import ImageError
from cxrjax.input_pipeline.caches import FeatureCache


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


def test_features_of_another_tower_are_refused(tmp_path, image):
    cache = FeatureCache(tmp_path / "features", 4, 3, "float32")
    cache.write(cache.file_of(image), np.ones((3, 4), np.float32))
    with pytest.raises(UserError, match=r"shape \(3, 4\), expected \(4, 3\)"):
        cache.read(image)


def test_an_image_that_is_not_there(tmp_path):
    with pytest.raises(ImageError, match=r"lost\.png: cannot be read"):
        FeatureCache(tmp_path, 3, 4, "float32").read(tmp_path / "lost.png")
