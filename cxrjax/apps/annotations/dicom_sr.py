"""DICOM structured reports whose regions lie on images (TID 1500: SCOORD selected from IMAGE).

A region of whatever form gives the box around its points; its class is the finding of its group
of measurements. Images are found by their SOP Instance UIDs.
"""

from pathlib import Path

from cxrjax.apps.annotations import annotation as an
from cxrjax.apps.annotations.annotation import Annotation, Annotations, Entries, Rejected, Stated
from cxrjax.apps.annotations.folder import Folder
from cxrjax.errors import ForeignError
from cxrjax.records_io.quality import Unusable
from cxrjax.untrusted.dicom_reports import instance_uid, read_report


def names_by_uid(folder: Folder) -> dict[str, str]:
    """SOP Instance UID -> the image that has it."""
    if "uids" not in folder.cache:
        by_uid: dict[str, str] = {}
        for path in folder.images:
            try:
                by_uid.setdefault(instance_uid(path), folder.where(path))
            except (OSError, ForeignError):
                continue  # PNG and JPEG have none
        folder.cache["uids"] = by_uid
    found: dict[str, str] = folder.cache["uids"]
    return found


def read(folder: Folder, path: Path, said: Stated, found: Annotations) -> Entries:
    """Yields the entries of one report.

    Raises:
        OSError, ForeignError: it cannot be read.
    """
    by_uid = names_by_uid(folder)
    where = folder.where(path)
    report = read_report(path)
    for uid in report.images:
        if uid in by_uid:
            yield Annotation(by_uid[uid], where, patient=report.patient)
    for number, region in enumerate(report.regions):
        place = f": region {number + 1}"
        name = by_uid.get(region.image_uid, "")
        try:
            if not name:
                told = f"no image here has the SOP Instance UID {region.image_uid or 'none'}"
                raise Unusable("missing_image", told)
            if region.kind == "POINT":
                raise Unusable("missing_box", "a point has no area")
            label = said.label or region.label
            shape = an.Shape(an.bounds(region.points))
            yield Annotation(name, where, place, shape, label, patient=report.patient)
        except Unusable as why:
            yield Rejected(where, place, why, name or region.image_uid)
