"""Detection of the format of a folder's annotations, and its reader."""

import collections
from collections.abc import Callable
from pathlib import Path

from cxrjax.apps.annotations import (
    coco,
    csv_boxes,
    cvat,
    dicom_sr,
    label_studio,
    masks,
    pascal_voc,
    yolo,
)
from cxrjax.apps.annotations.folder import Folder
from cxrjax.apps.annotations.table import Annotations, Stated
from cxrjax.errors import UserError
from cxrjax.records_io.quality import QualityLog
from cxrjax.untrusted.dicom_reports import is_report

Reader = Callable[[Folder, list[Path], Stated, Annotations], None]
# Format -> what people call it, and its reader.
FORMATS: dict[str, tuple[str, Reader]] = {
    "coco": ("COCO", coco.read),
    "pascal_voc": ("Pascal VOC", pascal_voc.read),
    "yolo": ("YOLO", yolo.read),
    "cvat": ("CVAT for images", cvat.read),
    "label_studio": ("Label Studio", label_studio.read),
    "csv": ("a table", csv_boxes.read),
    "dicom_sr": ("DICOM structured reports", dicom_sr.read),
    "masks": ("segmentation masks", masks.read),
}
# Ending of a file that is not read -> what it is, and what to do.
_REMEDIES = {
    **dict.fromkeys((".zip", ".gz", ".tar", ".7z"), "packed: unpack it first"),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "a spreadsheet: save it as CSV (UTF-8)"),
    **dict.fromkeys((".json", ".jsonl"), "JSON of another form: export as COCO or as CSV"),
    **dict.fromkeys((".nii", ".nrrd"), "a volume: save masks as PNG"),
    ".xml": "XML of another form: export as Pascal VOC or as CVAT for images 1.1",
}
_TABLES = (".csv", ".tsv")
_SHOWN = 3


def recognise(folder: Folder) -> dict[str, list[Path]]:
    """Format -> its files, of all formats that a folder has files of.

    Raises:
        UserError: there are none; names what could not be read.
    """
    found: dict[str, list[Path]] = collections.defaultdict(list)
    unread: list[str] = []
    for path in folder.files:
        ending = path.suffix.lower()
        try:
            if ending in (".json", ".xml"):
                kind = _kind(folder, path)
                if kind:
                    found[kind].append(path)
            elif ending in (".dcm", ".dicom", "") and is_report(path):
                found["dicom_sr"].append(path)
        except UserError as error:
            unread.append(str(error))
    if labels := yolo.label_files(folder):
        found["yolo"] = labels
    tables = [path for path in folder.files if path.suffix.lower() in _TABLES]
    with_boxes = [path for path in tables if csv_boxes.looks_like_boxes(path, folder)]
    if with_boxes or (tables and not found):
        found["csv"] = with_boxes or tables
    if not found and (drawn := masks.mask_files(folder)):
        found["masks"] = drawn
    if not found or unread:
        if unread:
            raise UserError(unread[0])
        seen = _not_read(folder)
        raise UserError(
            f"{folder.root}: no annotations found{seen and f'; {seen}'}; expected files of "
            f"{', '.join(told for told, _ in FORMATS.values())}, beside the images"
        )
    return dict(found)


def _not_read(folder: Folder) -> str:
    """Describes the first file in an unsupported format and its remedy; "" if there is none."""
    for path in folder.files:
        remedy = _REMEDIES.get(path.suffix.lower())
        if remedy:
            return f"{folder.where(path)} is {remedy}"
    return ""


def _kind(folder: Folder, path: Path) -> str:
    """The format of a JSON or XML file; "" of another's.

    Raises:
        UserError: it cannot be read.
    """
    if path.suffix.lower() == ".xml":
        root = pascal_voc.read_xml(path)
        return "pascal_voc" if pascal_voc.is_voc(root) else "cvat" if cvat.is_cvat(root) else ""
    content = folder.json(path)
    if coco.is_coco(content):
        return "coco"
    return "label_studio" if label_studio.is_label_studio(content) else ""


def read_annotations(
    folder: Folder, said: Stated, quality: QualityLog, wanted: str = "auto"
) -> tuple[str, Annotations]:
    """The annotations of a folder, and the name of their format.

    Args:
        wanted: a key of `FORMATS`, or "auto".

    Raises:
        UserError: there are none, or of several formats, or they cannot be read.
    """
    found = recognise(folder)
    if wanted == "auto" and len(found) > 1:
        told = "; ".join(
            f"{kind}: {', '.join(folder.where(path) for path in files[:_SHOWN])}"
            for kind, files in found.items()
        )
        raise UserError(
            f"{folder.root}: annotations of {len(found)} formats ({told}); pass --format=NAME, or "
            "the one file as --input"
        )
    kind = next(iter(found)) if wanted == "auto" else wanted
    if kind == "masks" and kind not in found:
        found["masks"] = masks.mask_files(folder)
    if not found.get(kind):
        raise UserError(
            f"{folder.root}: no files of --format={kind}; found {', '.join(found) or 'none'}"
        )
    annotations = Annotations(quality)
    annotations.told.append(
        f"{FORMATS[kind][0]}: {len(found[kind]):,} files, the first {folder.where(found[kind][0])}"
    )
    FORMATS[kind][1](folder, found[kind], said, annotations)
    return kind, annotations
