"""Images beside a source: found by MIMIC-CXR-JPG's paths, checked, tied to records and reports."""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from cxrjax.papers.gemex import native
from cxrjax.papers.sources.report import ImageReport
from cxrjax.records import QARecord
from cxrjax.records_io.image_check import ImageCheck, check_images
from cxrjax.records_io.quality import QualityLog, Unusable

Checks = Mapping[str, tuple[Path, ImageCheck]]


def check(
    paths: Iterable[str], images: Path, out: Path, quality: QualityLog, processes: int
) -> Checks:
    """Path in the source -> (image file, what it is), before anything else is read."""
    files = {path: _image_file(images, path) for path in sorted(set(paths))}
    checks = check_images(files.values(), quality, out, processes)
    return {path: (file, checks[file]) for path, file in files.items()}


def records_with_images(
    records: Iterable[QARecord], checks: Checks, out: Path, quality: QualityLog
) -> Iterator[QARecord]:
    """Records with size and path of their images; those of an unusable image are set aside."""
    for record in records:
        file, check = checks[record.image_path]
        try:
            size = check.size()
        except Unusable as verdict:
            quality.set_aside(verdict.reason, record.question_id, str(file), verdict.found)
            continue
        path = os.path.relpath(file, out)
        yield native.locate(record, size).model_copy(update={"image_path": path})


def reports_with_images(
    reports: Iterable[ImageReport], checks: Checks, out: Path, quality: QualityLog
) -> Iterator[ImageReport]:
    """Reports with size and path of their images; one of an unusable image is set aside."""
    for report in reports:
        file, check = checks[report.image_path]
        try:
            size = check.size()
            if report.image_hw not in (None, size):
                found = f"the table has {report.image_hw}, the file {size} (height, width)"
                raise Unusable("size_mismatch", found)
        except Unusable as verdict:
            quality.set_aside(verdict.reason, report.image_id, str(file), verdict.found)
            continue
        path = os.path.relpath(file, out)
        yield dataclasses.replace(report, image_path=path, image_hw=size)


def images_beside(source: Path) -> Path | None:
    """The folder that holds files/p10/... or p10/..., None where there is none."""
    if not source.is_dir():
        return None
    return source if (source / "files").is_dir() or next(source.glob("p1[0-9]"), None) else None


def _image_file(images: Path, path: str) -> Path:
    plain = images / path
    return plain if plain.exists() else images / "files" / path
