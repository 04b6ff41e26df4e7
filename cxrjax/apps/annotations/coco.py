"""COCO: `images`, `categories` and `annotations` in one JSON file, or one for each split.

Boxes are [x, y, width, height] in pixels; where there is none, the outline's polygons give it.
https://cocodataset.org/#format-data
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cxrjax.apps.annotations import table
from cxrjax.apps.annotations.coordinates import Four, in_pixels, settle
from cxrjax.apps.annotations.folder import Folder
from cxrjax.errors import ForeignError, UserError
from cxrjax.files import reading
from cxrjax.records_io.quality import PixelBox, Unusable
from cxrjax.untrusted.names import shown_value


def is_coco(content: Any) -> bool:
    """Returns whether a JSON file is in COCO's format and has boxes; others have captions."""
    if not isinstance(content, dict) or not {"images", "annotations"} <= content.keys():
        return False
    marked = content["annotations"]
    first = marked[0] if isinstance(marked, list) and marked else None
    return not (isinstance(first, dict) and "caption" in first)


def read(folder: Folder, files: list[Path], said: table.Stated, found: table.Annotations) -> None:
    """Reads all files; ids hold within each.

    Raises:
        UserError: one is not COCO, or the form of its boxes is not clear.
    """
    for path in files:
        with reading(path):
            _read_file(folder, path, said, found)


def _read_file(folder: Folder, path: Path, said: table.Stated, found: table.Annotations) -> None:
    where = folder.where(path)
    content = table.fields(folder.json(path), "the file")
    if not is_coco(content):
        raise ForeignError("no images and annotations in it; expected COCO's")
    names = _categories(content, where, said)
    # Ids as text: some tools write 7 here and "7" there.
    images: dict[str, table.MarkedImage] = {}
    for number, entry in enumerate(table.entries(content["images"], "images")):
        one = table.fields(entry, f"images[{number}]")
        if not isinstance(one.get("file_name"), str) or not isinstance(one.get("id"), int | str):
            raise ForeignError(f"images[{number}] has no id or no file_name")
        key = str(one["id"])
        if key in images:
            raise ForeignError(f"images[{number}]: id {shown_value(one['id'])} occurred before")
        patient = one.get("patient_id", one.get("patient"))
        images[key] = table.MarkedImage(
            one["file_name"],
            f"{where}: images[{number}]",
            table.size_of_entry(one.get("height"), one.get("width")),
            str(patient) if isinstance(patient, str | int) else "",
        )
        found.add_image(images[key])
    # (image, label, four numbers or the box itself, degrees it is turned by, where)
    given: list[tuple[table.MarkedImage, str, Four | PixelBox, float, str]] = []
    for number, entry in enumerate(table.entries(content["annotations"], "annotations")):
        at = f"{where}: annotations[{number}]"
        found.quality.examined["boxes"] += 1
        image = None
        try:
            one = table.fields(entry, f"annotations[{number}]")
            image = images.get(str(one.get("image_id")))
            if image is None:
                told = f"image_id {shown_value(one.get('image_id'))} is not among the images"
                raise Unusable("dangling_id", told)
            label = _label(one, names) if names else table.label_of(said.label)
            given.append((image, label, _box(one, folder, image, at), _rotation(one), at))
        except Unusable as why:
            found.set_aside(why, image.name if image else "?", at)
    fours = [one for _, _, one, _, _ in given if isinstance(one, Four)]
    if fours:
        settled = settle(fours, where, "xywh", None, said.box_form, said.units)
        found.told.append(f"{where}: {settled.why}")
    for image, label, box, turned, at in given:
        if isinstance(box, Four):
            size = image.image_hw or folder.size_or_none(image.name)
            box = table.turned_box(in_pixels(box.numbers, settled, size), turned)
        found.boxes.append(table.MarkedBox(image.name, label, box, at))


def _categories(content: dict[str, Any], where: str, said: table.Stated) -> dict[str, str]:
    names: dict[str, str] = {}
    for number, entry in enumerate(table.entries(content.get("categories", []), "categories")):
        one = table.fields(entry, f"categories[{number}]")
        key, name = one.get("id"), one.get("name")
        if not isinstance(key, int | str) or not isinstance(name, str):
            raise ForeignError(f"categories[{number}] has no id or no name")
        if names.setdefault(str(key), name) != name:
            raise ForeignError(f"categories[{number}]: id {shown_value(key)} has two names")
    if not names and said.label:
        return {}
    if not names:
        raise UserError(f"{where}: no categories in it; pass --label=NAME if all boxes are of one")
    return names


def _label(one: dict[str, Any], names: dict[str, str]) -> str:
    key = one.get("category_id")
    if str(key) not in names:
        raise Unusable("unknown_class", f"category_id {shown_value(key)} is not among categories")
    return table.label_of(names[str(key)])


def _box(one: dict[str, Any], folder: Folder, image: table.MarkedImage, at: str) -> Four | PixelBox:
    if one.get("bbox"):
        if not isinstance(one["bbox"], list):
            raise Unusable("bad_box", f"bbox is {shown_value(one['bbox'])}; expected four numbers")
        size = image.image_hw or folder.size_or_none(image.name)
        return Four(table.numbers_of(one["bbox"], 4), size, at)
    outline = one.get("segmentation")
    if isinstance(outline, list) and outline:
        return table.bounds(_points(outline))
    raise Unusable("missing_box", "neither a bbox nor polygons")


def _rotation(one: dict[str, Any]) -> float:
    """Degrees that CVAT has turned a box by, which its bbox does not show."""
    attributes = one.get("attributes")
    turned = attributes.get("rotation", 0) if isinstance(attributes, dict) else 0
    return table.numbers_of([turned], 1)[0]


def _points(polygons: list[Any]) -> Iterator[tuple[float, float]]:
    for polygon in polygons:
        values = table.numbers_of(polygon if isinstance(polygon, list) else [])
        yield from zip(values[::2], values[1::2], strict=False)
