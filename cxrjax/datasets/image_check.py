"""Every image of a data set decoded once before anything is built on it: size, damage, oddities."""

import collections
import dataclasses
from collections.abc import Iterable
from pathlib import Path

import tqdm

from cxrjax.datasets import workers
from cxrjax.datasets.quality import QualityLog, Unusable
from cxrjax.images import ImageError, audit_header, audit_image, image_size, read_image


@dataclasses.dataclass(frozen=True)
class ImageCheck:
    """What one file is.

    Attributes:
        image_hw: (height, width) as displayed; None where the file cannot be used.
        reason, found: then a reason of quality.json and what was found; else empty.
        warnings: what looks odd and does not prevent its use.
    """

    image_hw: tuple[int, int] | None
    reason: str = ""
    found: str = ""
    warnings: tuple[str, ...] = ()

    def size(self) -> tuple[int, int]:
        """(height, width).

        Raises:
            Unusable: the file is missing or cannot be decoded.
        """
        if self.image_hw is None:
            raise Unusable(self.reason, self.found)
        return self.image_hw


def check_images(
    paths: Iterable[Path], quality: QualityLog, processes: int = 1
) -> dict[Path, ImageCheck]:
    """Decodes every file, over several processes, and notes warnings in `quality`.

    Nothing is set aside here: what depends on an image, and is to be named, is the caller's.
    """
    paths = sorted(set(paths))
    checks = {}
    warnings: collections.Counter[str] = collections.Counter()
    with workers.pool(min(processes, len(paths) or 1)) as apply:
        results = tqdm.tqdm(apply(_check, paths), total=len(paths), unit="image", desc="checking")
        for path, check in zip(paths, results, strict=True):
            checks[path] = check
            warnings.update(check.warnings)
    quality.examined["images"] += len(paths)
    quality.warnings.update(warnings)
    return checks


def _check(path: Path) -> ImageCheck:
    if not path.is_file():
        return ImageCheck(None, "missing_image", f"{path} is not there")
    try:
        size = image_size(path)
        warnings = (*audit_header(path), *audit_image(read_image(path)))
    except ImageError as error:
        return ImageCheck(None, "unreadable_image", str(error))
    return ImageCheck(size, warnings=warnings)
