"""COCO: `images`, `categories` and `annotations` in one JSON file, or one for each split.

Boxes are [x, y, width, height] in pixels; where there is none, the outline's polygons give it.
https://cocodataset.org/#format-data
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cxrjax.apps.annotations import annotation as an
from cxrjax.apps.annotations.folder import Folder
from cxrjax.errors import ForeignError, UserError
from cxrjax.records_io.quality import Unusable
from cxrjax.untrusted.names import shown_value


def is_coco(content: Any) -> bool:
    """Returns whether a JSON file is in COCO's format and has boxes; others have captions."""
    if not isinstance(content, dict) or not {"images", "annotations"} <= content.keys():
        return False
    marked = content["annotations"]
    first = marked[0] if isinstance(marked, list) and marked else None
    return not (isinstance(first, dict) and "caption" in first)


def read(folder: Folder, path: Path, said: an.Stated, found: an.Annotations) -> an.Entries:
    """Yields the entries of one file, within which its ids hold.

    Raises:
        UserError: it names no classes.
    """
    where = folder.where(path)
    content = an.fields(folder.json(path), "the file")
    if not is_coco(content):
        raise ForeignError("no images and annotations in it; expected COCO's")
    names = _categories(content, where, said)
    # Ids as text: some tools write 7 here and "7" there.
    images: dict[str, an.Annotation] = {}
    for number, one in enumerate(an.entries(content["images"], "images")):
        place = f": images[{number}]"
        image = an.attempt(an.Annotation("", where), place, _image, one)
        if isinstance(image, an.Annotation):
            if str(one["id"]) in images:  # boxes could be of either
                raise ForeignError(f"{place[2:]}: id {shown_value(one['id'])} occurred before")
            images[str(one["id"])] = image
        else:
            yield image
    yield from images.values()
    for number, one in enumerate(an.entries(content["annotations"], "annotations")):
        about = images.get(str(one.get("image_id"))) if isinstance(one, dict) else None
        place = f": annotations[{number}]"
        yield an.attempt(
            about or an.Annotation("", where), place, _box, one, about, names, said.label
        )


def _image(one: Any) -> dict[str, Any]:
    key, name = (one.get("id"), one.get("file_name")) if isinstance(one, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(key, int | str):
        raise Unusable("invalid_record", f"{shown_value(one)}; expected an id and a file_name")
    size = an.size_of_entry(one.get("height"), one.get("width"))
    patient = one.get("patient_id", one.get("patient"))
    patient = str(patient) if isinstance(patient, str | int) else ""
    return {"image": name, "image_hw": size, "patient": patient}


def _box(
    one: Any, about: an.Annotation | None, names: dict[str, str], label: str
) -> dict[str, Any]:
    if not isinstance(one, dict):
        raise Unusable("invalid_record", f"{shown_value(one)}; expected an object")
    if about is None:
        told = f"image_id {shown_value(one.get('image_id'))} is not among the images"
        raise Unusable("dangling_id", told)
    key = one.get("category_id")
    if names and str(key) not in names:
        raise Unusable("unknown_class", f"category_id {shown_value(key)} is not among categories")
    return {
        "shape": _shape(one),
        "label": names[str(key)] if names else label,
        "confidence": an.number_or_none(one.get("score")),
        "reader": _reader(one),
    }


def _categories(content: dict[str, Any], where: str, said: an.Stated) -> dict[str, str]:
    names: dict[str, str] = {}
    for number, entry in enumerate(an.entries(content.get("categories", []), "categories")):
        one = an.fields(entry, f"categories[{number}]")
        key, name = one.get("id"), one.get("name")
        if not isinstance(key, int | str) or not isinstance(name, str):
            raise ForeignError(f"categories[{number}] has no id or no name")
        if names.setdefault(str(key), name) != name:
            raise ForeignError(f"categories[{number}]: id {shown_value(key)} has two names")
    if not names and not said.label:
        raise UserError(f"{where}: no categories in it; pass --label=NAME if all boxes are of one")
    return names


def _reader(one: dict[str, Any]) -> str:
    """The reader of a box, under any of the usual names, also among its attributes."""
    attributes = one.get("attributes")
    for fields in (one, attributes if isinstance(attributes, dict) else {}):
        for key, value in fields.items():
            if (
                an.plain(key) in an.WORDS["columns"]["reader"]
                and isinstance(value, str | int)
                and value != ""
            ):
                return str(value)
    return ""


def _shape(one: dict[str, Any]) -> an.Shape:
    if one.get("bbox"):
        if not isinstance(one["bbox"], list):
            raise Unusable("bad_box", f"bbox is {shown_value(one['bbox'])}; expected four numbers")
        numbers = an.numbers_of(one["bbox"], 4)
        return an.Shape(numbers, "xywh", None, _rotation(one), exact=False)
    outline = one.get("segmentation")
    if isinstance(outline, list) and outline:
        return an.Shape(an.bounds(_points(outline)))
    raise Unusable("missing_box", "neither a bbox nor polygons")


def _rotation(one: dict[str, Any]) -> float:
    """Degrees that CVAT has turned a box by, which its bbox does not show."""
    attributes = one.get("attributes")
    turned = attributes.get("rotation", 0) if isinstance(attributes, dict) else 0
    return an.numbers_of([turned], 1)[0]


def _points(polygons: list[Any]) -> Iterator[tuple[float, float]]:
    for polygon in polygons:
        values = an.numbers_of(polygon if isinstance(polygon, list) else [])
        yield from zip(values[::2], values[1::2], strict=False)
