"""A rendered chest with its lung mask, for tests that need no real radiograph."""

import functools
from pathlib import Path

import numpy as np
import PIL.Image
from scipy import ndimage

SIDE = 224


@functools.cache
def rendered_chest(seed=0, side=SIDE, softness=0.012) -> tuple[np.ndarray, np.ndarray]:
    """(radiograph uint8, mask of the lungs): dark lungs with ribs and markings, a heart, grain.

    `softness` of the organs' borders: a Gaussian's width as a share of the side.
    """
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side] / np.float32(side)
    lungs = ((x - 0.29) / 0.15) ** 2 + ((y - 0.5) / 0.31) ** 2 < 1
    lungs |= ((x - 0.71) / 0.15) ** 2 + ((y - 0.5) / 0.33) ** 2 < 1
    lungs &= y < 0.76 + 0.05 * np.abs(x - 0.5)
    heart = ((x - 0.54) / (0.15 + 0.01 * rng.random())) ** 2 + ((y - 0.66) / 0.17) ** 2 < 1
    grey = 0.72 - 0.42 * lungs + 0.36 * (lungs & heart)
    grey += 0.05 * lungs * np.sin(40 * (y + 0.4 * np.abs(x - 0.5)))
    vessels = ndimage.gaussian_filter(rng.standard_normal((side, side)), 1.5)
    grey = ndimage.gaussian_filter(grey, softness * side) + 0.12 * vessels * lungs
    grain = ndimage.gaussian_filter(rng.standard_normal((side, side)), 0.8)
    image = np.clip((grey + 0.03 * grain) * 255, 0, 255).astype(np.uint8)
    image.flags.writeable = lungs.flags.writeable = False
    return image, lungs


def write_folder(source: Path, count: int, one_lung: bool = False) -> Path:
    """Writes rendered chests as `--dataset=grafts` reads them, the last perhaps with one lung."""
    for name in ("images", "masks"):
        (source / name).mkdir(parents=True)
    rows = ["file,patient,finding,width,height"]
    for k in range(count):
        image, mask = rendered_chest(k)
        if one_lung and k == count - 1:
            mask = mask & (np.arange(SIDE) < SIDE // 2)
        PIL.Image.fromarray(image).save(source / "images" / f"chest{k}.png")
        PIL.Image.fromarray(mask.astype(np.uint8) * 255).save(source / "masks" / f"chest{k}.png")
        rows.append(f"chest{k}.png,p{k // 2},{'normal' if k != 1 else 'viral'},560,448")
    (source / "lungs.csv").write_text("\n".join(rows) + "\n")
    return source
