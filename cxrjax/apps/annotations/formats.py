"""Detection of the format of a folder's annotations, and its reader."""

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

from cxrjax.apps.annotations import annotation as an
from cxrjax.apps.annotations import (
    chat,
    csv_boxes,
    dicom_sr,
    json_formats,
    label_studio,
    masks,
    yolo,
)
from cxrjax.apps.annotations.annotation import WORDS, Annotation, Annotations, Rejected, Stated
from cxrjax.apps.annotations.coordinates import Form, Four, Settled, Units, in_pixels, settle
from cxrjax.apps.annotations.folder import Folder
from cxrjax.errors import ForeignError, UserError, first_line
from cxrjax.records_io.quality import QualityLog, Unusable
from cxrjax.untrusted.dicom_reports import head, is_report

Reader = Callable[[Folder, Path, Stated, Annotations], an.Entries]


# Formats with a file an image, the form of whose boxes is detected from all of them.
ONE_IMAGE_A_FILE = ("labelme", "darwin", "supervisely", "superannotate", "pascal_voc")
# Format -> what yields the entries of one file; raises ForeignError or OSError of one that cannot
# be read or is of another kind, UserError where classes or columns are not clear.
FORMATS: dict[str, Reader] = {
    **{kind: functools.partial(json_formats.read, kind) for kind in json_formats.TITLES},
    **{"chat": chat.read, "yolo": yolo.read, "label_studio": label_studio.read},
    **{"csv": csv_boxes.read, "dicom_sr": dicom_sr.read, "masks": masks.read},
}
_TITLES = json_formats.TITLES | WORDS["titles"]
_TABLES = (".csv", ".tsv")
_Group = tuple[str, Form | None, Units | None]  # a source, and what its names state
_SHOWN = 3


def recognise(folder: Folder) -> tuple[dict[str, list[Path]], dict[Path, str]]:
    """Format -> its files, of all formats that a folder has files of, and files with faults.

    Raises:
        UserError: there are none; names what could not be read.
    """
    found: dict[str, list[Path]] = collections.defaultdict(list)
    unread: dict[Path, str] = {}
    for path in folder.files:
        try:
            if kind := _kind(folder, path):
                found[kind].append(path)
        except (ForeignError, OSError) as error:
            unread[path] = first_line(error)
    if labels := yolo.label_files(folder):
        found["yolo"] = labels
    tables = [path for path in folder.files if path.suffix.lower() in _TABLES]
    if exported := [path for path in tables if label_studio.is_table(path, folder)]:
        found["label_studio"] += exported
        tables = []
    texts = [path for path in folder.files if path.suffix.lower() == ".txt"]
    texts = [] if found or tables else texts
    with_boxes = [path for path in tables + texts if csv_boxes.looks_like_boxes(path, folder)]
    if with_boxes or (tables and not found):
        found["csv"] = with_boxes or tables
    if not found and not unread and (drawn := masks.mask_files(folder)):
        found["masks"] = drawn
    if not found:
        for path, why in unread.items():
            raise UserError(f"{folder.where(path)}: {why}")
        seen = _not_read(folder)
        raise UserError(
            f"{folder.root}: no annotations found{seen and f'; {seen}'}; expected files of "
            "COCO, Pascal VOC, YOLO, CVAT, Label Studio, a table or another format that `cxrjax "
            "import --help` lists, beside the images (masks in a folder whose name contains mask)"
        )
    return dict(found), unread


def _not_read(folder: Folder) -> str:
    """Describes the first file in an unsupported format and its remedy; "" if there is none."""
    for path in folder.files:
        kinds = [path.name.lower(), path.suffix.lower()]
        with contextlib.suppress(OSError, ForeignError):
            kinds.append(head(path, "SOPClassUID"))
        for kind in kinds:
            if remedy := WORDS["remedies"].get(kind):
                return f"{folder.where(path)} is {remedy}"
    return ""


def _kind(folder: Folder, path: Path) -> str:
    """The format of a file that is told by its content; "" of another's."""
    ending = path.suffix.lower()
    if ending == ".xml":
        return json_formats.kind_of(folder, path)
    if ending in (".json", *json_formats.LINES):
        if ending == ".json" and label_studio.is_label_studio(folder.json(path)):
            return "label_studio"
        return json_formats.kind_of(folder, path) or chat.kind_of(folder, path)
    return "dicom_sr" if ending in (".dcm", ".dicom", "") and is_report(path) else ""


def read_annotations(
    folder: Folder, said: Stated, quality: QualityLog, wanted: str = "auto"
) -> tuple[str, Annotations]:
    """The annotations of a folder with boxes in pixels, and the name of their format.

    A file that cannot be read is rejected and counted, unless none can.

    Args:
        wanted: a key of `FORMATS`, or "auto".

    Raises:
        UserError: there are none, or of several formats, or what they mean is not clear.
    """
    found, unread = recognise(folder)
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
    files = found.get(kind)
    if not files:
        raise UserError(
            f"{folder.root}: no files of --format={kind}; found {', '.join(found) or 'none'}"
        )
    annotations = Annotations(quality)
    title, form = _TITLES[kind], WORDS["forms"].get(kind, "")
    first = folder.where(files[0])
    annotations.told.append(f"{title}: {an.counted(len(files), 'file')}, the first {first}")
    if form:
        annotations.told.append(f"{title}: {form}")
    for path, why in unread.items():
        annotations.add(Rejected(folder.where(path), "", Unusable("unreadable_file", why)))
    for name, why in folder.refused:
        annotations.add(Rejected(name, "", Unusable("invalid_record", why)))
    unreadable = []
    for path in files:
        try:
            for entry in FORMATS[kind](folder, path, said, annotations):
                annotations.add(entry)
        except (ForeignError, OSError) as error:
            line = getattr(error, "line", None)
            place = f":{line}" if line else ""
            why = first_line(error)
            unreadable.append(f"{path}{place}: {why}")
            fault = Unusable("unreadable_file", why)
            annotations.add(Rejected(folder.where(path), place, fault))
    if not annotations.kept and unreadable:
        raise UserError(unreadable[0])
    _find_images(folder, annotations)
    joint = kind in ("yolo", *ONE_IMAGE_A_FILE)
    _place_boxes(folder, annotations, said, title if joint else "")
    return kind, annotations


def _find_images(folder: Folder, found: Annotations) -> None:
    """Rejects entries whose image is not there; UserError if none is."""
    names = list(dict.fromkeys(entry.image for entry in found.kept))
    if told := folder.match_affixes(names):
        found.told.append(told)
    faults: dict[str, Unusable] = {}
    for name in names:
        try:
            folder.image(name)
        except Unusable as why:
            faults[name] = why
    if names and len(faults) == len(names) and len(names) > 1:
        seen = f", such as {folder.images[0].name}" if folder.images else ""
        for name, reason in folder.refused[:1]:
            seen += f"; not used: {name} ({reason})"
        raise UserError(
            f"{folder.root}: none of the {len(names):,} images that the annotations name is there, "
            f"the first {names[0]!a}; found {len(folder.images):,} images{seen}; rename them, or "
            "pass --images=FOLDER"
        )
    for entry in found.kept:
        if entry.image in faults:
            found.reject(entry, faults[entry.image])
    found.kept = [entry for entry in found.kept if entry.image not in faults]


def _place_boxes(folder: Folder, found: Annotations, said: Stated, joint: str) -> None:
    """Replaces shapes by boxes in pixels, once the form of a source's numbers is settled."""
    unsure: dict[_Group, list[Annotation]] = collections.defaultdict(list)
    for entry in found.boxes:
        if entry.shape is not None and not entry.shape.exact:
            unsure[joint or entry.file, entry.shape.form, entry.shape.units].append(entry)
    settled: dict[_Group, Settled] = {}
    for group, members in unsure.items():
        fours = [
            Four(one.shape.numbers, one.image_hw or folder.size_or_none(one.image), one.where)
            for one in members
            if one.shape is not None
        ]
        settled[group] = settle(fours, *group, said.box_form, said.units)
        found.told.append(f"{group[0]}: {settled[group].why}")
    kept = []
    for entry in found.kept:
        if (shape := entry.shape) is not None:
            form = Settled(shape.form or "xyxy", shape.units or "pixels", "")
            if not shape.exact:
                form = settled[joint or entry.file, shape.form, shape.units]
            size = entry.image_hw or folder.size_or_none(entry.image)
            if size is None and form.units != "pixels":
                told = "the image of this box has no size"
                found.reject(entry, Unusable("unreadable_image", told))
                continue
            box = an.turned(in_pixels(shape.numbers, form, size), shape)
            if box != shape.numbers:
                shape = shape._replace(numbers=box, degrees=0.0, exact=True)
                entry = dataclasses.replace(entry, shape=shape)
        kept.append(entry)
    found.kept = kept
