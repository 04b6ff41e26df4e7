"""Phantom radiographs with VinDr-CXR-VQA questions as a data set."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from cxrjax.errors import UserError
from cxrjax.records_io.builder import BuildOptions
from cxrjax.simulation.builder import CHUNK, ImageBuilder, check_flags, fingerprint, save_image
from cxrjax.simulation.render import SMALLEST, Phantom, render_phantom

SPLITS = ("train", "validation")


@dataclasses.dataclass(frozen=True)
class RenderOptions(BuildOptions):
    """Flags of data sets of phantoms.

    Attributes:
        images: training images.
        validation_images: held-out images, from another stream of seeds.
        long_side: longer side in pixels (default: each image its own).
        normal_percent: share without findings, spread evenly. Of VinDr-CXR's images 71 % are
            normal, of VinDr-CXR-VQA's none.
        conspicuity: contrast of lesions.
    """

    images: int = 3000
    validation_images: int = 300
    long_side: int | None = None
    normal_percent: int = 10
    conspicuity: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flags(
            images=(self.images, 1, np.inf),
            validation_images=(self.validation_images, 1, np.inf),
            normal_percent=(self.normal_percent, 0, 100),
            long_side=(self.long_side, SMALLEST, np.inf),
        )
        if not self.conspicuity > 0:
            raise UserError(f"--conspicuity={self.conspicuity}: expected a positive number")

    def count(self, split: str) -> int:
        """Returns the number of images of a split."""
        return self.images if split == "train" else self.validation_images

    def is_normal(self, index: int) -> bool:
        """Decides if image number `index` of a split has no findings."""
        return (index + 1) * self.normal_percent // 100 > index * self.normal_percent // 100

    def render(self, stream: int, index: int) -> Phantom:
        """Renders image number `index` of a stream of seeds."""
        normal = self.is_normal(index)
        return render_phantom(stream, index, self.long_side, normal, self.conspicuity)


@dataclasses.dataclass(frozen=True)
class PhantomOptions(RenderOptions):
    """Flags of phantoms with VinDr-CXR-VQA's questions.

    Attributes:
        image_format: png (grey, lossless) or jpg (grey, quality 95).
    """

    image_format: Literal["png", "jpg"] = "png"

    def stream(self, split: str) -> int:
        """Returns the phantom seed of a split; no two (seed, split) share one."""
        return len(SPLITS) * self.seed + SPLITS.index(split)


class PhantomBuilder(ImageBuilder[PhantomOptions]):
    """Phantoms with VinDr-CXR-VQA's questions."""

    dataset = "phantom"
    options_class = PhantomOptions

    def chunks(self) -> Mapping[str, tuple[str, Any]]:
        return {
            f"{split}-{start:07d}-{stop:07d}": (split, (split, start, stop))
            for split in SPLITS
            for start in range(0, self.options.count(split), CHUNK)
            for stop in [min(start + CHUNK, self.options.count(split))]
        }

    def work(self) -> Callable[[Any], list[dict[str, Any]]]:
        return functools.partial(_render_chunk, self.options)

    def fingerprint(self) -> str:
        return fingerprint(self._decisive())

    def _decisive(self) -> dict[str, Any]:
        names = ("seed", "long_side", "image_format", "normal_percent", "conspicuity")
        return {name: getattr(self.options, name) for name in names}

    def describe(self) -> dict[str, Any]:
        return self._decisive() | super().describe()


def _render_chunk(options: PhantomOptions, chunk: tuple[str, int, int]) -> list[dict[str, Any]]:
    split, start, stop = chunk
    made = []
    for index in range(start, stop):
        phantom = options.render(options.stream(split), index)
        name = f"phantom-{options.seed}-{split}-{index:06d}"
        made.append(save_image(phantom, options.out, name, options.image_format))
    return made
