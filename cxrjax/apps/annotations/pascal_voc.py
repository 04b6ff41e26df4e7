"""Pascal VOC: an XML file an image, an `object` a box with xmin, ymin, xmax, ymax.

roLabelImg's `robndbox` (centre, size, angle in radians) gives the box around the turned one.
"""

import math
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from cxrjax.apps.annotations import annotation as an
from cxrjax.apps.annotations.folder import Folder
from cxrjax.errors import ForeignError

_EDGES = ("xmin", "ymin", "xmax", "ymax")
_TURNED = ("cx", "cy", "w", "h", "angle")


def is_voc(root: Element) -> bool:
    """Returns whether a file is in Pascal VOC's format."""
    return root.tag == "annotation"


def read(folder: Folder, path: Path, said: an.Stated, found: an.Annotations) -> an.Entries:
    """Yields the entries of one file."""
    where = folder.where(path)
    root = folder.xml(path)
    if not is_voc(root):
        raise ForeignError(f"<{root.tag}> instead of Pascal VOC's <annotation>")
    name = (root.findtext("filename") or "").strip() or path.stem
    if folder.has(path.stem) and not (folder.has(name) and _same(folder, name, path.stem)):
        name = path.stem  # renamed or copied after it was annotated
    size = an.size_of_entry(root.findtext("size/height"), root.findtext("size/width"))
    image = an.Annotation(name, where, image_hw=size)
    yield image
    for number, one in enumerate(root.iter("object")):
        yield an.attempt(image, f": object {number + 1}", _object, one)


def _object(one: Element) -> dict[str, Any]:
    sure = an.number_or_none(one.findtext("confidence") or one.findtext("score"))
    return {"label": one.findtext("name") or "", "shape": _shape(one), "confidence": sure}


def _shape(one: Element) -> an.Shape:
    turned = one.find("robndbox")
    if turned is None:
        texts = [one.findtext(f"bndbox/{edge}") for edge in _EDGES]
        return an.Shape(an.numbers_of(texts, 4), "xyxy", None, exact=False)
    numbers = an.numbers_of([turned.findtext(side) for side in _TURNED], 5)
    return an.Shape(numbers[:4], "cxcywh", degrees=math.degrees(numbers[4]))


def _same(folder: Folder, first: str, second: str) -> bool:
    return folder.image(first) == folder.image(second)
