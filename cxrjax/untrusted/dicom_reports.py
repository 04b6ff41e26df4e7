"""DICOM structured reports of others: regions on images, and the numbers that name those images."""

import io
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pydicom.dataset import Dataset
from pydicom.filereader import dcmread

from cxrjax.errors import ForeignError
from cxrjax.untrusted.dicom_files import Metered
from cxrjax.untrusted.foreign_files import MIB, open_foreign, read_bytes

_MOST = 16 * MIB
_MOST_HEAD = 4 * MIB
_DEEPEST = 50
_MOST_POINTS = 100_000
_REPORTS = "1.2.840.10008.5.1.4.1.1.88."
_MAGIC = b"DICM"
# The code that says a group's finding, of DCM and of SRT; and what a region may be named by else.
_FINDING = ("121071", "F-01710")
_TRACKING = "112039"
# OHIF writes its tool there: "Cornerstone3DTools@^0.1.0:RectangleROI".
_OF_A_VIEWER = re.compile(r"cornerstone\w*@", re.IGNORECASE)
_WITH_POINTS = ("POINT", "MULTIPOINT", "POLYLINE", "CIRCLE", "ELLIPSE")


class ReportRegion(NamedTuple):
    """A region on an image."""

    image_uid: str
    kind: str  # DICOM's graphic type
    points: list[tuple[float, float]]  # (column, row) in pixels
    label: str  # the meaning of its group's finding, else its tracking identifier; "" of neither


class Report(NamedTuple):
    """Regions of a structured report, its patient, and all images that it refers to."""

    patient: str
    images: list[str]
    regions: list[ReportRegion]


def is_report(path: Path) -> bool:
    """Returns whether a file is a DICOM structured report."""
    try:
        return head(path, "SOPClassUID").startswith(_REPORTS)
    except (OSError, ForeignError):
        return False


def head(path: Path, keyword: str) -> str:
    """An element that names a DICOM file, "" where it has none.

    Raises:
        OSError: it cannot be read.
        ForeignError: it is no DICOM file.
    """
    with open_foreign(path) as file:
        if file.read(132)[128:] != _MAGIC:
            raise ForeignError("not a DICOM file")
        file.seek(0)
        try:
            dataset = dcmread(
                Metered(file, _MOST_HEAD),  # type: ignore[arg-type]
                stop_before_pixels=True,
                specific_tags=[keyword],
            )
            return str(dataset.get(keyword, ""))  # converted only now
        except ForeignError:
            raise
        except Exception as error:
            raise ForeignError(f"a damaged DICOM file: {type(error).__name__}") from None


def read_report(path: Path) -> Report:
    """The regions of a structured report.

    Raises:
        OSError: it cannot be read.
        ForeignError: it is none, is damaged, or larger or deeper than any.
    """
    content = read_bytes(path, _MOST)
    if content[128:132] != _MAGIC:
        raise ForeignError("not a DICOM file")
    try:
        dataset = dcmread(Metered(io.BytesIO(content), _MOST))  # type: ignore[arg-type]
        if not str(dataset.get("SOPClassUID", "")).startswith(_REPORTS):
            raise ForeignError("DICOM, and no structured report")
        regions = list(_regions(dataset, "", 0))
        uids = dict.fromkeys(_uids(dataset, 0))
        return Report(str(dataset.get("PatientID", "") or ""), list(uids), regions)
    except ForeignError:
        raise
    except Exception as error:
        raise ForeignError(f"a damaged structured report: {type(error).__name__}") from None


def _items(item: Dataset, depth: int) -> list[Dataset]:
    if depth > _DEEPEST:
        raise ForeignError(f"a structured report of more than {_DEEPEST} floors")
    return list(item.get("ContentSequence") or [])


def _regions(item: Dataset, label: str, depth: int) -> Iterator[ReportRegion]:
    items = _items(item, depth)
    named = {_concept(one): one for one in items}
    finding = next((named[code] for code in _FINDING if code in named), None)
    if finding is not None and finding.get("ConceptCodeSequence"):
        label = str(finding.ConceptCodeSequence[0].get("CodeMeaning", "") or "")
    elif _TRACKING in named and not label:
        label = str(named[_TRACKING].get("TextValue", "") or "")
        if _OF_A_VIEWER.match(label):
            label = ""
    for one in items:
        kind = str(one.get("ValueType", ""))
        if kind == "SCOORD3D":
            raise ForeignError("regions in space (SCOORD3D); expected regions on images (SCOORD)")
        if kind == "SCOORD":
            yield _region(one, label, depth)
        yield from _regions(one, label, depth + 1)


def _concept(item: Dataset) -> str:
    names = item.get("ConceptNameCodeSequence")
    return str(names[0].get("CodeValue", "")) if names else ""


def _region(item: Dataset, label: str, depth: int) -> ReportRegion:
    kind = str(item.get("GraphicType", ""))
    data = [float(value) for value in item.get("GraphicData") or []]
    if kind not in _WITH_POINTS or len(data) % 2 or not 2 <= len(data) <= 2 * _MOST_POINTS:
        raise ForeignError(f"a region of type {kind[:20]!r} with {len(data)} numbers")
    points = list(zip(data[::2], data[1::2], strict=True))
    if kind == "CIRCLE" and len(points) == 2:  # centre, and a point on it
        (x, y), (edge_x, edge_y) = points
        radius = ((x - edge_x) ** 2 + (y - edge_y) ** 2) ** 0.5
        points = [(x - radius, y - radius), (x + radius, y + radius)]
    if kind == "ELLIPSE" and len(points) == 4:  # the ends of one axis, then of the other
        (ax, ay), (bx, by), (cx, cy), (dx, dy) = points
        x, y = (ax + bx) / 2, (ay + by) / 2
        across, down = math.hypot(bx - ax, dx - cx) / 2, math.hypot(by - ay, dy - cy) / 2
        points = [(x - across, y - down), (x + across, y + down)]
    uid = next(iter(_uids(item, depth)), "")
    return ReportRegion(uid, kind, points, label)


def _uids(item: Dataset, depth: int) -> Iterator[str]:
    """SOP Instance UIDs of the images below."""
    for one in _items(item, depth):
        if str(one.get("ValueType", "")) == "IMAGE":
            for reference in one.get("ReferencedSOPSequence") or []:
                yield str(reference.get("ReferencedSOPInstanceUID", ""))
        yield from _uids(one, depth + 1)
