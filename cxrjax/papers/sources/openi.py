"""Radiology reports of the Indiana University collection (OpenI), out of their XML files.

    <AbstractText Label="FINDINGS">...</AbstractText>    also COMPARISON, INDICATION, IMPRESSION
    <parentImage id="CXR1_1_IM-0001-3001">               one element for each image of the report

3,955 reports, public (CC BY-NC-ND 4.0), de-identified with XXXX in the place of names and numbers.
The folder, the archive NLMCXR_reports.tgz, or the wheel of torchxrayvision, which carries it.
"""

import dataclasses
import gzip
import io
import re
import tarfile
import xml.etree.ElementTree as ElementTree
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from cxrjax.errors import UserError
from cxrjax.records_io.quality import QualityLog, Unusable

ARCHIVE_NAME = "NLMCXR_reports.tgz"
# The longest of the collection has some 12 kB; a larger one is no report.
MAX_BYTES = 200_000


@dataclasses.dataclass(frozen=True)
class OpenIReport:
    """One report; an empty section is "".

    Attributes:
        report_id: such as `CXR1`.
        image_ids: of the images taken with it, frontal and lateral ones alike.
        where: file that it was read from.
    """

    report_id: str
    findings: str
    impression: str
    indication: str
    comparison: str
    image_ids: tuple[str, ...]
    where: str


def read_openi(path: str | Path, quality: QualityLog) -> Iterator[OpenIReport]:
    """Reports by number, one at a time. What is no report is set aside in `quality`.

    Args:
        path: folder of XML files, the archive, or the wheel.

    Raises:
        UserError: the path cannot be read, or holds no XML files.
    """
    path = Path(path)
    found = False
    for name, content in _files(path):
        found = True
        quality.examined["reports"] += 1
        try:
            yield parse_openi(content, name)
        except Unusable as verdict:
            quality.set_aside(verdict.reason, Path(name).stem, name, verdict.found)
    if not found:
        raise UserError(f"{path}: found no report (*.xml) in it; expected {ARCHIVE_NAME}")


def parse_openi(content: bytes, where: str) -> OpenIReport:
    """The report that an XML file holds.

    Raises:
        Unusable: too large (`report_too_long`), not in its encoding (`bad_encoding`), no such XML
            (`invalid_record`).
    """
    if len(content) > MAX_BYTES:
        raise Unusable("report_too_long", f"{len(content)} bytes; expected at most {MAX_BYTES}")
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unusable("bad_encoding", f"byte {error.start} is not UTF-8") from None
    try:
        root = ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        raise Unusable("invalid_record", f"not XML: {error}") from None
    uid = root.find("uId")
    sections = {
        str(element.get("Label")): " ".join((element.text or "").split())
        for element in root.iter("AbstractText")
    }
    if uid is None or not uid.get("id") or not sections:
        raise Unusable("invalid_record", "no uId or no AbstractText; expected a report of OpenI")
    return OpenIReport(
        report_id=str(uid.get("id")),
        findings=sections.get("FINDINGS", ""),
        impression=sections.get("IMPRESSION", ""),
        indication=sections.get("INDICATION", ""),
        comparison=sections.get("COMPARISON", ""),
        image_ids=tuple(str(image.get("id")) for image in root.iter("parentImage")),
        where=where,
    )


def is_openi(path: Path) -> bool:
    """Says whether a path looks like the collection."""
    if path.is_dir():
        return next(path.glob("*.xml"), None) is not None
    return path.name.endswith((".tgz", ".tar.gz")) or path.name.startswith("torchxrayvision-")


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every XML file, in the order of their numbers."""
    try:
        if path.is_dir():
            for file in sorted(path.glob("*.xml"), key=lambda file: _by_number(file.name)):
                yield file.name, _head(file)
        elif path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                names = [name for name in wheel.namelist() if name.endswith(ARCHIVE_NAME)]
                if not names:
                    raise UserError(f"{path}: holds no {ARCHIVE_NAME}; fetch torchxrayvision 1.5.7")
                yield from _members(io.BytesIO(wheel.read(names[0])))
        else:
            with open(path, "rb") as archive:
                yield from _members(archive)
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path}: not a whole archive ({error}); fetch it again") from None
    except OSError as error:
        raise UserError(f"{path}: cannot read reports: {error.strerror or error}") from None


def _head(file: Path) -> bytes:
    with open(file, "rb") as opened:
        return opened.read(MAX_BYTES + 1)


def _members(archive: io.BufferedIOBase | io.BytesIO | io.BufferedReader) -> Iterator[tuple]:
    # Read from front to back (gzip cannot go back cheaply), then put in order.
    contents = {}
    with gzip.open(archive) as unpacked:
        with tarfile.open(fileobj=unpacked, mode="r:") as tar:
            for member in tar:
                if member.isfile() and member.name.endswith(".xml"):
                    file = tar.extractfile(member)
                    assert file is not None  # a regular file
                    contents[Path(member.name).name] = file.read(MAX_BYTES + 1)
        # A damaged header looks like the archive's end; the checksum at the file's end tells.
        while unpacked.read(1 << 20):
            pass
    for name in sorted(contents, key=_by_number):
        yield name, contents[name]


def _by_number(name: str) -> tuple[int, str]:
    digits = re.match(r"\d+", name)
    return (int(digits[0]) if digits else -1, name)
