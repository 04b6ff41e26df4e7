"""Noise at fixed scales of the picture, so that a texture looks alike at every size."""

import numpy as np
from PIL import Image

from cxrjax.datasets.phantom.canvas import Field


def smooth_noise(
    rng: np.random.Generator, shape: tuple[int, int], cells_y: int, cells_x: int
) -> Field:
    """Noise of unit variance on a coarse grid, enlarged to the shape; float32."""
    grid = rng.standard_normal((max(cells_y, 2), max(cells_x, 2)), dtype=np.float32)
    enlarged = Image.fromarray(grid).resize((shape[1], shape[0]), Image.Resampling.BICUBIC)
    return np.asarray(enlarged)


def fractal_noise(
    rng: np.random.Generator, shape: tuple[int, int], cells: tuple[int, ...], decay: float = 0.6
) -> Field:
    """A sum of `smooth_noise` with growing numbers of cells, each `decay` times the one before."""
    total = np.zeros((cells[-1], cells[-1]), np.float32)
    weight = 1.0
    for count in cells:
        total += np.float32(weight) * smooth_noise(rng, total.shape, count, count)
        weight *= decay
    enlarged = Image.fromarray(total).resize((shape[1], shape[0]), Image.Resampling.BICUBIC)
    return np.asarray(enlarged)


def ridges(noise: Field, width: float) -> Field:
    """Bright lines where the noise crosses zero, 0 to 1: a net, as thickened septa look."""
    return np.exp(-np.square(noise / np.float32(width)))
