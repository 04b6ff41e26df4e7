"""Pascal VOC: an XML file an image, an `object` a box with xmin, ymin, xmax, ymax.

roLabelImg's `robndbox` (centre, size, angle in radians) gives the box around the turned one.
"""

import dataclasses
import math
from pathlib import Path
from xml.etree.ElementTree import Element

from cxrjax.apps.annotations import annotation as an
from cxrjax.apps.annotations.annotation import Annotation, Annotations, Entries, Rejected, Stated
from cxrjax.apps.annotations.folder import Folder
from cxrjax.errors import ForeignError
from cxrjax.records_io.quality import Unusable

_EDGES = ("xmin", "ymin", "xmax", "ymax")
_TURNED = ("cx", "cy", "w", "h", "angle")


def is_voc(root: Element) -> bool:
    """Returns whether a file is in Pascal VOC's format."""
    return root.tag == "annotation"


def read(folder: Folder, path: Path, said: Stated, found: Annotations) -> Entries:
    """Yields the entries of one file.

    Raises:
        ForeignError: it is not Pascal VOC.
    """
    where = folder.where(path)
    root = folder.xml(path)
    if not is_voc(root):
        raise ForeignError(f"<{root.tag}> instead of Pascal VOC's <annotation>")
    name = (root.findtext("filename") or "").strip() or path.stem
    if folder.has(path.stem) and not (folder.has(name) and _same(folder, name, path.stem)):
        name = path.stem  # renamed or copied after it was annotated
    size = an.size_of_entry(root.findtext("size/height"), root.findtext("size/width"))
    image = Annotation(name, where, image_hw=size)
    yield image
    for number, one in enumerate(root.iter("object")):
        place = f": object {number + 1}"
        try:
            label, shape = one.findtext("name") or "", _shape(one)
            sure = an.number_or_none(one.findtext("confidence") or one.findtext("score"))
            yield dataclasses.replace(image, place=place, label=label, shape=shape, confidence=sure)
        except Unusable as why:
            yield Rejected(where, place, why, name)


def _shape(one: Element) -> an.Shape:
    turned = one.find("robndbox")
    if turned is None:
        texts = [one.findtext(f"bndbox/{edge}") for edge in _EDGES]
        return an.Shape(an.numbers_of(texts, 4), "xyxy", None, exact=False)
    numbers = an.numbers_of([turned.findtext(side) for side in _TURNED], 5)
    return an.Shape(numbers[:4], "cxcywh", degrees=math.degrees(numbers[4]))


def _same(folder: Folder, first: str, second: str) -> bool:
    return folder.image(first) == folder.image(second)
