import numpy as np
import pytest

from cxrjax.images.decode import audit_image


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
    assert audit_image(chest) == []
    warnings = audit_image(255 - chest)
    assert len(warnings) == 1 and warnings[0].startswith("likely inverted")


@pytest.mark.parametrize("level", [0, 128, 255])
def test_flat_image_is_noticed(level):
    flat = np.full((64, 64, 3), level, np.uint8)
    flat[0, 0] = 90
    assert [warning.split(":")[0] for warning in audit_image(flat)] == ["nearly flat"]


@pytest.mark.parametrize("size", [(1, 1), (1, 50), (50, 1), (2, 2), (3, 5)])
def test_tiny_images_are_no_error(size):
    audit_image(np.zeros((*size, 3), np.uint8))
