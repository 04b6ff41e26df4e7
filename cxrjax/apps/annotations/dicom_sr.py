"""DICOM structured reports whose regions lie on images (TID 1500: SCOORD selected from IMAGE).

A region of whatever form gives the box around its points; its class is the finding of its group
of measurements. Images are found by their SOP Instance UIDs.
"""

from pathlib import Path

from cxrjax.apps.annotations import table
from cxrjax.apps.annotations.folder import Folder
from cxrjax.errors import ForeignError
from cxrjax.files import reading
from cxrjax.records_io.quality import Unusable
from cxrjax.untrusted.dicom_reports import instance_uid, read_report


def read(folder: Folder, files: list[Path], said: table.Stated, found: table.Annotations) -> None:
    """Reads all reports.

    Raises:
        UserError: one cannot be read.
    """
    by_uid: dict[str, str] = {}
    for path in folder.images:
        try:
            uid = instance_uid(path)
        except (OSError, ForeignError):
            continue  # PNG and JPEG have none
        by_uid.setdefault(uid, folder.where(path))
    for path in files:
        where = folder.where(path)
        with reading(path):
            report = read_report(path)
        for uid in report.images:
            if uid in by_uid:
                found.add_image(table.MarkedImage(by_uid[uid], where, None, report.patient))
        for number, region in enumerate(report.regions):
            at = f"{where}: region {number + 1}"
            found.quality.examined["boxes"] += 1
            name = by_uid.get(region.image_uid, "")
            try:
                if not name:
                    told = f"no image here has the SOP Instance UID {region.image_uid or 'none'}"
                    raise Unusable("missing_image", told)
                if region.kind == "POINT":
                    raise Unusable("missing_box", "a point has no area")
                label = table.label_of(said.label or region.label)
                found.boxes.append(table.MarkedBox(name, label, table.bounds(region.points), at))
            except Unusable as why:
                found.set_aside(why, name or region.image_uid, at)
    found.told.append("DICOM SR: boxes around regions, in pixels of the stored image")
