"""CVAT for images 1.1: one XML file, an `image` with `box`, `polygon`, `mask` or `ellipse` in it.

https://docs.cvat.ai/docs/manual/advanced/formats/format-cvat/
"""

from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

from cxrjax.apps.annotations import table
from cxrjax.apps.annotations.folder import Folder
from cxrjax.apps.annotations.pascal_voc import read_xml
from cxrjax.errors import ForeignError, UserError
from cxrjax.files import reading
from cxrjax.records_io.quality import PixelBox, Unusable

_SHAPES = ("box", "polygon", "mask", "ellipse")
_NO_AREA = ("polyline", "points", "cuboid", "skeleton")


def is_cvat(root: Element) -> bool:
    """Returns whether a file is in CVAT's XML format."""
    return root.tag == "annotations"


def read(folder: Folder, files: list[Path], said: table.Stated, found: table.Annotations) -> None:
    """Reads all files.

    Raises:
        UserError: one is not CVAT's for images.
    """
    for path in files:
        where = folder.where(path)
        with reading(path):
            root = read_xml(path)
            if not is_cvat(root):
                raise ForeignError(f"<{root.tag}> instead of CVAT's <annotations>")
            if root.find("track") is not None:
                raise ForeignError(
                    "CVAT for video, whose boxes belong to frames; export as 'CVAT for images 1.1'"
                )
        images = root.findall("image")
        for entry in images:
            _read_image(entry, where, said, found)
        if not images:
            raise UserError(f"{path}: no <image> in it; export as 'CVAT for images 1.1'")


def _read_image(entry: Element, where: str, said: table.Stated, found: table.Annotations) -> None:
    name = entry.get("name", "")
    at = f"{where}: {name}"
    if not name:
        raise UserError(f"{where}: an <image> without a name")
    found.add_image(
        table.MarkedImage(
            name, at, table.size_of_entry(entry.get("height"), entry.get("width")), _patient(entry)
        )
    )
    for shape in entry:
        if shape.tag in _SHAPES:
            found.quality.examined["boxes"] += 1
            try:
                label = table.label_of(shape.get("label"))
                found.boxes.append(table.MarkedBox(name, label, _box(shape), at))
            except Unusable as why:
                found.set_aside(why, name, at)
        elif shape.tag in _NO_AREA:
            found.quality.examined["boxes"] += 1
            found.set_aside(Unusable("missing_box", f"a {shape.tag} has no area"), name, at)


def _patient(entry: Element) -> str:
    """The tag's attribute that people add to images for it."""
    for attribute in entry.iter("attribute"):
        if (attribute.get("name") or "").lower() in ("patient", "patient_id"):
            return (attribute.text or "").strip()
    return ""


def _box(shape: Element) -> PixelBox:
    if shape.tag == "box":
        edges = table.numbers_of([shape.get(edge) for edge in ("xtl", "ytl", "xbr", "ybr")], 4)
        return table.turned_box(edges, _rotation(shape))
    if shape.tag == "mask":
        sides = ("left", "top", "width", "height")
        left, top, width, height = table.numbers_of([shape.get(side) for side in sides], 4)
        return left, top, left + width, top + height
    if shape.tag == "ellipse":
        sides = ("cx", "cy", "rx", "ry")
        return table.turned_ellipse(
            table.numbers_of([shape.get(one) for one in sides], 4), _rotation(shape)
        )
    return table.bounds(_points(shape.get("points", "")))


def _rotation(shape: Element) -> float:
    return table.numbers_of([shape.get("rotation", "0")], 1)[0]


def _points(text: str) -> Iterator[tuple[float, float]]:
    for pair in filter(None, text.split(";")):
        x, y = table.numbers_of(pair.split(","), 2)
        yield x, y
