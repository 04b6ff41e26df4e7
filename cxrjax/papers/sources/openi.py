"""Radiology reports of the Indiana University collection (OpenI), out of their XML files.

    <AbstractText Label="FINDINGS">...</AbstractText>    also COMPARISON, INDICATION, IMPRESSION
    <parentImage id="CXR1_1_IM-0001-3001">               one element for each image of the report

3,955 reports, public (CC BY-NC-ND 4.0), de-identified with XXXX in the place of names and numbers.
The folder, the archive NLMCXR_reports.tgz, or the wheel of torchxrayvision, which carries it.
"""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from cxrjax.errors import ForeignError, UserError
from cxrjax.files import reading
from cxrjax.papers.sources.report import MAX_REPORT_CHARACTERS
from cxrjax.paths import to_path
from cxrjax.records_io.quality import QualityLog, Unusable, usable_name
from cxrjax.untrusted.archives import TarMember, ZipArchive, read_tar
from cxrjax.untrusted.foreign_files import MIB, open_foreign
from cxrjax.untrusted.xml_text import decode_xml, parse_xml

ARCHIVE_NAME = "NLMCXR_reports.tgz"
# The longest of the collection has some 12 kB; a larger one is no report.
MAX_BYTES = 200_000
# The collection's have 20 MB together, which are put in order in memory; the packed ones 2 MB.
_MAX_TOTAL = 64 * MIB
_MAX_PACKED = 64 * MIB


@dataclasses.dataclass(frozen=True)
class OpenIReport:
    """One report; an empty section is ""."""

    report_id: str  # such as `CXR1`
    findings: str
    impression: str
    indication: str
    comparison: str
    image_ids: tuple[str, ...]  # of the images taken with it, frontal and lateral ones alike
    where: str  # file that it was read from


def read_openi(path: str | Path, quality: QualityLog) -> Iterator[OpenIReport]:
    """Reports by number, one at a time. What is no report is set aside in `quality`.

    Args:
        path: folder of XML files, the archive, or the wheel.

    Raises:
        UserError: the path cannot be read, or holds no XML files.
    """
    path = to_path(path)
    found = False
    first: dict[str, str] = {}
    for name, content, fault in _files(path):
        found = True
        quality.examined["reports"] += 1
        with quality.rejecting(PurePosixPath(name).stem, name):
            if fault is not None:
                raise Unusable("unsafe_member", fault)
            report = parse_openi(content, PurePosixPath(name).name)
            if first.setdefault(report.report_id, name) != name:
                raise Unusable("duplicate_id", f"also in {first[report.report_id]}")
            yield report
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
        text = decode_xml(content)
    except ForeignError as error:
        raise Unusable("bad_encoding", str(error)) from None
    try:
        root = parse_xml(text)
    except ForeignError as error:
        raise Unusable("invalid_record", str(error)) from None
    uid = root.find("uId")
    sections = {
        str(element.get("Label")): " ".join((element.text or "").split())
        for element in root.iter("AbstractText")
    }
    if uid is None or not uid.get("id") or not sections:
        raise Unusable("invalid_record", "no uId or no AbstractText; expected a report of OpenI")
    length = sum(map(len, sections.values()))
    if length > MAX_REPORT_CHARACTERS:
        found = f"{length} characters; expected at most {MAX_REPORT_CHARACTERS}"
        raise Unusable("report_too_long", found)
    for name in (uid.get("id"), *(image.get("id") for image in root.iter("parentImage"))):
        usable_name(name)
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
    """Returns whether a path looks like the collection."""
    if path.is_dir():
        return next(path.glob("*.xml"), None) is not None
    return path.name.endswith((".tgz", ".tar.gz")) or path.name.startswith("torchxrayvision-")


def _files(path: Path) -> Iterator[TarMember]:
    """Every XML file, in the order of their numbers."""
    with reading(path, "reports"):
        if path.is_dir():
            for file in sorted(path.glob("*.xml"), key=lambda file: _by_number(file.name)):
                with open_foreign(file) as opened:
                    yield TarMember(file.name, opened.read(MAX_BYTES + 1), None)
            return
        members: list[TarMember] = []
        total = 0
        for member in read_tar(_wheels(path) if path.suffix == ".whl" else path, MAX_BYTES, ".xml"):
            total += len(member.content)
            if total > _MAX_TOTAL:
                raise ForeignError(f"reports of more than {_MAX_TOTAL:,} bytes; expected 20 MB")
            members.append(member)
        yield from sorted(members, key=lambda member: _by_number(member.name))


def _wheels(path: Path) -> bytes:
    """The archive in torchxrayvision's wheel."""
    with ZipArchive(path, _MAX_PACKED) as wheel:
        names = [name for name in wheel.names if name.endswith(ARCHIVE_NAME)]
        if not names:
            raise ForeignError(f"holds no {ARCHIVE_NAME}; fetch torchxrayvision 1.5.7")
        return wheel.read(names[0])


def _by_number(name: str) -> tuple[int, str]:
    digits = re.match(r"\d{1,9}", PurePosixPath(name).name)
    return (int(digits[0]) if digits else -1, name)
