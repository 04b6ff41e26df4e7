"""DICOM structured reports whose regions lie on images (TID 1500: SCOORD selected from IMAGE).

A region of whatever form gives the box around its points; its class is the finding of its group
of measurements. Images are found by their SOP Instance UIDs.
"""

from pathlib import Path
from typing import Any

from cxrjax.apps.annotations import annotation as an
from cxrjax.apps.annotations.folder import Folder
from cxrjax.records_io.quality import Unusable
from cxrjax.untrusted.dicom_reports import ReportRegion, read_report


def read(folder: Folder, path: Path, said: an.Stated, found: an.Annotations) -> an.Entries:
    """Yields the entries of one report."""
    by_uid = {uid: folder.where(path) for uid, path in folder.by_uid.items()}
    where = folder.where(path)
    report = read_report(path)
    for uid in report.images:
        if uid in by_uid:
            yield an.Annotation(by_uid[uid], where, patient=report.patient)

    def fields(region: ReportRegion) -> dict[str, Any]:
        if region.image_uid not in by_uid:
            told = f"no image here has the SOP Instance UID {region.image_uid or 'none'}"
            raise Unusable("missing_image", told)
        if region.kind == "POINT":
            raise Unusable("missing_box", "a point has no area")
        shape = an.Shape(an.bounds(region.points))
        return {"shape": shape, "label": said.label or region.label}

    for number, region in enumerate(report.regions):
        name = by_uid.get(region.image_uid, region.image_uid)
        about = an.Annotation(name, where, patient=report.patient)
        yield an.attempt(about, f": region {number + 1}", fields, region)
