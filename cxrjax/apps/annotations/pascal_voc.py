"""Pascal VOC: an XML file an image, an `object` a box with xmin, ymin, xmax, ymax."""

from pathlib import Path
from xml.etree.ElementTree import Element

from cxrjax.apps.annotations import table
from cxrjax.apps.annotations.coordinates import Four, in_pixels, settle
from cxrjax.apps.annotations.folder import Folder
from cxrjax.errors import ForeignError
from cxrjax.files import reading
from cxrjax.records_io.quality import Unusable
from cxrjax.untrusted.foreign_files import read_bytes
from cxrjax.untrusted.xml_text import decode_xml, parse_xml

_EDGES = ("xmin", "ymin", "xmax", "ymax")


def read_xml(path: Path) -> Element:
    """The root of an XML file.

    Raises:
        UserError: it cannot be read.
    """
    with reading(path):
        return parse_xml(decode_xml(read_bytes(path)))


def is_voc(root: Element) -> bool:
    """Returns whether a file is in Pascal VOC's format."""
    return root.tag == "annotation"


def read(folder: Folder, files: list[Path], said: table.Stated, found: table.Annotations) -> None:
    """Reads all files.

    Raises:
        UserError: one is not Pascal VOC, or the form of the boxes is not clear.
    """
    given: list[tuple[table.MarkedImage, str, Four]] = []
    for path in files:
        where = folder.where(path)
        with reading(path):
            root = read_xml(path)
            if not is_voc(root):
                raise ForeignError(f"<{root.tag}> instead of Pascal VOC's <annotation>")
        name = (root.findtext("filename") or "").strip() or path.stem
        if folder.has(path.stem) and not (folder.has(name) and _same(folder, name, path.stem)):
            name = path.stem  # renamed or copied after it was annotated
        size = table.size_of_entry(root.findtext("size/height"), root.findtext("size/width"))
        image = table.MarkedImage(name, where, size)
        found.add_image(image)
        for number, one in enumerate(root.iter("object")):
            found.quality.examined["boxes"] += 1
            at = f"{where}: object {number + 1}"
            try:
                label = table.label_of(one.findtext("name"))
                texts = [one.findtext(f"bndbox/{edge}") for edge in _EDGES]
                numbers = table.numbers_of(texts, 4)
            except Unusable as why:
                found.set_aside(why, name, at)
                continue
            known = size or folder.size_or_none(name)
            given.append((image, label, Four(numbers, known, at)))
    if not given:
        return
    fours = [four for _, _, four in given]
    settled = settle(fours, "Pascal VOC", "xyxy", None, said.box_form, said.units)
    found.told.append(f"Pascal VOC: {settled.why}")
    for image, label, four in given:
        box = in_pixels(four.numbers, settled, four.image_hw)
        found.boxes.append(table.MarkedBox(image.name, label, box, four.where))


def _same(folder: Folder, first: str, second: str) -> bool:
    return folder.image(first) == folder.image(second)
