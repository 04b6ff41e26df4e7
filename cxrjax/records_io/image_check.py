"""Every image of a data set decoded once before anything is built on it: size, damage, oddities.

Thousands of DICOM files take long, so each verdict is on the disk as soon as it is known: a build
that was interrupted goes on from there, and one that is repeated decodes what has changed.
"""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cxrjax.errors import ForeignError
from cxrjax.files import reading, writing
from cxrjax.images.files import ImageError
from cxrjax.paths import is_file
from cxrjax.progress import progress_bar
from cxrjax.records_io import workers
from cxrjax.records_io.quality import QualityLog, Unusable
from cxrjax.untrusted.foreign_files import read_lines
from cxrjax.untrusted.json_text import parse_object

# In the folder of a build: a line an image, its path, size and time of change, and the verdict.
CHECKS_FILE = "image_checks.jsonl"


@dataclasses.dataclass(frozen=True)
class ImageCheck:
    """The verdict on one file.

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
    paths: Iterable[Path], quality: QualityLog, out: Path, processes: int = 1
) -> dict[Path, ImageCheck]:
    """Decodes every file, over several processes, and notes warnings in `quality`.

    Nothing is set aside here: what depends on an image, and is to be named, is the caller's.

    Args:
        out: folder of the build; `CHECKS_FILE` there has what was found before.

    Raises:
        UserError: the folder cannot be written to.
    """
    paths = sorted(set(paths))
    checks: dict[Path, ImageCheck] = {}
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        known = _read_checks(out / CHECKS_FILE)
        stamps = {path: _stamp(path) for path in paths}
        for path in paths:
            stamp, check = known.get(str(path), (None, None))
            if check is not None and stamp is not None and stamp == stamps[path]:
                checks[path] = check
        new = [path for path in paths if path not in checks]
        with (
            (out / CHECKS_FILE).open("a", encoding="utf-8") as file,
            workers.pool(min(processes, len(new) or 1)) as apply,
        ):
            results = progress_bar(
                apply(_check, new), total=len(new), unit="image", desc="checking"
            )
            for path, check in zip(new, results, strict=True):
                checks[path] = check
                line = {"path": str(path), "stamp": stamps[path], "check": vars(check)}
                file.write(json.dumps(line) + "\n")
                file.flush()
    quality.examined["images"] += len(paths)
    for path in paths:
        quality.warnings.update(checks[path].warnings)
    return checks


def _stamp(path: Path) -> list[int] | None:
    """Size and time of change; None for what is no file, or none that can be reached."""
    if not is_file(path):
        return None
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def _read_checks(file: Path) -> dict[str, tuple[Any, ImageCheck]]:
    """Stamp and verdict by path, of an earlier build; one that was cut off is decoded again."""
    known = {}
    if file.is_file():
        line = b"\n"
        with reading(file, hint="remove it"):
            for _, line in read_lines(file):
                try:
                    entry = parse_object(line)
                    known[entry["path"]] = (entry["stamp"], _from_json(entry["check"]))
                except (ForeignError, KeyError, TypeError, IndexError):
                    continue
        if not line.endswith(b"\n"):
            with file.open("a", encoding="utf-8") as end:
                end.write("\n")
    return known


def _from_json(check: dict[str, Any]) -> ImageCheck:
    image_hw = check["image_hw"]
    size = None if image_hw is None else (image_hw[0], image_hw[1])
    return ImageCheck(size, check["reason"], check["found"], tuple(check["warnings"]))


def _check(path: Path) -> ImageCheck:
    # Not at the top: pydicom takes long, and --help needs none.
    from cxrjax.images.decode import audit_header, audit_image, image_size, read_image

    if not is_file(path):
        return ImageCheck(None, "missing_image", f"{path} is missing")
    try:
        size = image_size(path)
        warnings = (*audit_header(path), *audit_image(read_image(path)))
    except ImageError as error:
        return ImageCheck(None, "unreadable_image", str(error))
    return ImageCheck(size, warnings=warnings)
