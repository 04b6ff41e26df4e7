"""CVAT for images 1.1: one XML file, an `image` with `box`, `polygon`, `mask`, `ellipse` or `tag`.

https://docs.cvat.ai/docs/manual/advanced/formats/format-cvat/
"""

import collections
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from cxrjax.apps.annotations import annotation as an
from cxrjax.apps.annotations.folder import Folder, split_of
from cxrjax.errors import ForeignError
from cxrjax.records_io.quality import Unusable
from cxrjax.untrusted.names import shown

_SHAPES = ("box", "polygon", "mask", "ellipse")
_NO_AREA = ("polyline", "points", "cuboid", "skeleton")
_PATIENT = ("patient", "patient_id")


def is_cvat(root: Element) -> bool:
    """Returns whether a file is in CVAT's XML format."""
    return root.tag == "annotations"


def read(folder: Folder, path: Path, said: an.Stated, found: an.Annotations) -> an.Entries:
    """Yields the entries of one file."""
    where = folder.where(path)
    root = folder.xml(path)
    if not is_cvat(root):
        raise ForeignError(f"<{root.tag}> instead of CVAT's <annotations>")
    if root.find("track") is not None:
        raise ForeignError(
            "CVAT for video, whose boxes belong to frames; export as 'CVAT for images 1.1'"
        )
    images = root.findall("image")
    if not images:
        raise ForeignError("no <image> in it; export as 'CVAT for images 1.1'")
    kind = (root.findtext("meta/job/type") or "").strip()
    job = root.findtext("meta/job/id")
    reader = "ground truth" if kind == "ground_truth" else f"job {job}" if job else ""
    times: collections.Counter[str] = collections.Counter()
    for entry in images:
        name = entry.get("name", "")
        times[name] += 1
        # A frame that a second job has, such as one of ground truth, stands in the file twice.
        again = f"{reader} {times[name]}".strip() if times[name] > 1 else reader
        yield from _read_image(entry, where, again)


def _read_image(entry: Element, where: str, reader: str) -> an.Entries:
    name = entry.get("name", "")
    image = an.Annotation(
        name,
        where,
        f": {shown(name)[1:-1]}",
        image_hw=an.size_of_entry(entry.get("height"), entry.get("width")),
        patient=_patient(entry),
        split=split_of(entry.get("subset") or ""),
        reader=reader,
    )
    yield image
    for shape in entry:
        is_patient = shape.tag == "tag" and (shape.get("label") or "").lower() in _PATIENT
        if shape.tag != "attribute" and not is_patient:
            yield an.attempt(image, image.place, _marked, shape)


def _marked(shape: Element) -> dict[str, Any]:
    if shape.tag == "tag":
        return {"label": an.label_of(shape.get("label"))}
    if shape.tag not in _SHAPES:
        fault = "has no area" if shape.tag in _NO_AREA else "is no shape of CVAT's"
        raise Unusable("missing_box", f"a {shown(shape.tag)[1:-1]} {fault}")
    return {"label": shape.get("label") or "", "shape": _shape(shape)}


def _patient(entry: Element) -> str:
    """The tag's attribute that people add to images for it."""
    for attribute in entry.iter("attribute"):
        if (attribute.get("name") or "").lower() in _PATIENT:
            return (attribute.text or "").strip()
    return ""


def _shape(shape: Element) -> an.Shape:
    if shape.tag == "polygon":
        return an.Shape(an.bounds(_points(shape.get("points", ""))))
    sides = {
        "box": ("xtl", "ytl", "xbr", "ybr"),
        "mask": ("left", "top", "width", "height"),
        "ellipse": ("cx", "cy", "rx", "ry"),
    }[shape.tag]
    numbers = an.numbers_of([shape.get(side) for side in sides], 4)
    degrees = an.numbers_of([shape.get("rotation", "0")], 1)[0]
    if shape.tag == "mask":
        return an.Shape(numbers, "xywh")
    if shape.tag == "ellipse":
        x, y, across, down = numbers
        return an.Shape((x, y, 2 * across, 2 * down), "cxcywh", degrees=degrees, ellipse=True)
    return an.Shape(numbers, degrees=degrees)


def _points(text: str) -> Iterator[tuple[float, float]]:
    for pair in filter(None, text.split(";")):
        x, y = an.numbers_of(pair.split(","), 2)
        yield x, y
