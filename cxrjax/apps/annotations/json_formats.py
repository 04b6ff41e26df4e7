"""Small formats of JSON: VIA, Supervisely, MD.ai, ChestX-Det, lines for PaliGemma."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cxrjax.apps.annotations import annotation as an
from cxrjax.apps.annotations.annotation import Annotation, Shape
from cxrjax.apps.annotations.dicom_sr import names_by_uid
from cxrjax.apps.annotations.folder import Folder
from cxrjax.apps.annotations.keys import shape_of
from cxrjax.errors import ForeignError
from cxrjax.records_io.quality import Unusable
from cxrjax.untrusted.foreign_files import MIB, read_lines
from cxrjax.untrusted.json_text import parse_object
from cxrjax.untrusted.names import shown, shown_value

_LOCATED = re.compile(r"\s*<loc(\d{4})><loc(\d{4})><loc(\d{4})><loc(\d{4})>(?:<seg\d{3}>)*\s*(.*)")
_BINS = 1024  # of PaliGemma's coordinates


def kind_of(content: Any, path: Path) -> str:
    """The format of a file's JSON; "" if it is none of these."""
    first = next(iter(content), None) if isinstance(content, list) else None
    if isinstance(first, dict) and {"file_name", "syms", "boxes"} <= first.keys():
        return "chestx_det"
    if not isinstance(content, dict):
        return ""
    if {"labelGroups", "datasets"} <= content.keys():
        return "md_ai"
    if {"objects", "size"} <= content.keys():
        return "supervisely"
    first = next(iter(content.values()), None)
    is_export = isinstance(first, dict) and {"filename", "regions"} <= first.keys()
    return "via" if is_export or "_via_img_metadata" in content else ""


def is_paligemma(path: Path) -> bool:
    """Returns whether the first line of a file is an example for PaliGemma."""
    try:
        for _, line in read_lines(path, MIB):
            return {"image", "prefix", "suffix"} <= parse_object(line).keys()
    except (OSError, ForeignError):
        pass
    return False


def _pairs(points: Any) -> Shape:
    """The box around pairs of numbers."""
    pairs = [an.numbers_of(one, 2) for one in _list(points, "points")]
    return Shape(an.bounds(pairs))


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise Unusable("invalid_record", f"{what} is {shown_value(value)}; expected a list")
    return value


def _named(one: Any, key: str) -> str:
    """The text of a field."""
    if not isinstance(one, dict) or not isinstance(one.get(key), str):
        raise Unusable("invalid_record", f"{shown_value(one)}; expected an object with {key}")
    return str(one[key])


def read_via(folder: Folder, path: Path, said: an.Stated, found: an.Annotations) -> an.Entries:
    """Yields the entries of a project, or of the annotations exported from one, of VIA 2."""
    where = folder.where(path)
    content = an.fields(folder.json(path), "the file")
    images = an.fields(content.get("_via_img_metadata", content), "the images")
    for key, one in images.items():
        place = f": {shown(key)}"

        def regions(one: Any = one, place: str = place) -> Iterator[an.Entry]:
            image = Annotation(_named(one, "filename"), where, place)
            given = one.get("regions") or []
            given = list(given.values()) if isinstance(given, dict) else _list(given, "regions")
            yield image
            for number, region in enumerate(given):
                at = f"{place}: region {number + 1}"
                yield an.attempt(image, at, _via_region, region, said)

        yield from an.guarded(regions(), where, place)


def _via_region(region: Any, said: an.Stated) -> dict[str, Any]:
    fields = region if isinstance(region, dict) else {}
    shape = shape_of(fields.get("shape_attributes") or {})
    if shape is None:
        raise Unusable("bad_box", "a region without a shape")
    return {"label": said.label or an.class_of(fields.get("region_attributes")), "shape": shape}


def read_chestx_det(
    folder: Folder, path: Path, said: an.Stated, found: an.Annotations
) -> an.Entries:
    """Yields the entries of a file of ChestX-Det: names of findings beside corners."""
    where = folder.where(path)
    for number, one in enumerate(an.entries(folder.json(path), "the file")):
        place = f": [{number}]"

        def boxes(one: Any = one, place: str = place) -> Iterator[an.Entry]:
            image = Annotation(_named(one, "file_name"), where, place)
            names, boxes = (_list(one.get(key, []), key) for key in ("syms", "boxes"))
            if len(names) != len(boxes):
                told = f"{len(names)} syms and {len(boxes)} boxes; expected as many"
                raise Unusable("invalid_record", told)
            yield image
            for label, box in zip(names, boxes, strict=True):
                yield an.attempt(image, place, _corners, label, box)

        yield from an.guarded(boxes(), where, place)


def _corners(label: Any, box: Any) -> dict[str, Any]:
    shape = Shape(an.numbers_of(_list(box, "a box"), 4), "xyxy", None, exact=False)
    return {"label": an.label_of(label), "shape": shape}


def read_supervisely(
    folder: Folder, path: Path, said: an.Stated, found: an.Annotations
) -> an.Entries:
    """Yields the entries of ds/ann/NAME.json, which is about ds/img/NAME."""
    where = folder.where(path)
    content = an.fields(folder.json(path), "the file")
    size = an.fields(content.get("size"), "size")
    name = re.sub(r"(^|/)ann/(?=[^/]*$)", r"\1img/", where.removesuffix(".json"))
    hw = an.size_of_entry(size.get("height"), size.get("width"))
    image = Annotation(name, where, image_hw=hw)
    yield image
    for number, tag in enumerate(an.entries(content.get("tags", []), "tags")):
        label = tag.get("name") if isinstance(tag, dict) else None
        yield dataclasses.replace(image, place=f": tag {number + 1}", label=str(label))
    for number, one in enumerate(an.entries(content["objects"], "objects")):
        yield an.attempt(image, f": object {number + 1}", _supervisely_object, one)


def _supervisely_object(one: Any) -> dict[str, Any]:
    one = one if isinstance(one, dict) else {}
    points, kind = one.get("points"), one.get("geometryType")
    if kind not in ("rectangle", "polygon", None) or not isinstance(points, dict):
        raise Unusable("missing_box", f"a {shown_value(kind)}; expected rectangles or polygons")
    shape, reader = _pairs(points.get("exterior")), str(one.get("labelerLogin") or "")
    return {"label": str(one.get("classTitle", "")), "shape": shape, "reader": reader}


def read_md_ai(folder: Folder, path: Path, said: an.Stated, found: an.Annotations) -> an.Entries:
    """Yields the entries of an export of MD.ai, whose images are named by SOP Instance UIDs."""
    where = folder.where(path)
    content = an.fields(folder.json(path), "the file")
    by_uid = names_by_uid(folder)
    names = {
        str(label.get("id")): str(label.get("name", ""))
        for group in an.entries(content["labelGroups"], "labelGroups")
        for label in an.entries(an.fields(group, "a group").get("labels", []), "labels")
        if isinstance(label, dict)
    }

    def fields(one: Any) -> dict[str, Any]:
        uid = _named(one, "SOPInstanceUID")
        if str(one.get("labelId")) not in names:
            raise Unusable("unknown_class", f"labelId {shown_value(one.get('labelId'))} is unknown")
        return {
            "image": by_uid.get(uid, uid),
            "shape": _md_ai_shape(one.get("data")),
            "label": names[str(one["labelId"])],
            "reader": str(one.get("createdById") or ""),
            "prediction": bool(one.get("modelId")),
            "image_hw": an.size_of_entry(one.get("height"), one.get("width")),
        }

    for source in an.entries(content["datasets"], "datasets"):
        marked = an.entries(an.fields(source, "a dataset").get("annotations", []), "annotations")
        for number, one in enumerate(marked):
            yield an.attempt(Annotation("", where), f": annotations[{number}]", fields, one)


def _md_ai_shape(data: Any) -> Shape | None:
    if isinstance(data, dict) and "vertices" in data:
        return _pairs(data["vertices"])
    if isinstance(data, dict) and not {"width", "height"} <= data.keys():
        raise Unusable("missing_box", f"{shown_value(data)}; expected a box or an outline")
    return shape_of(data) if data else None


def read_paligemma(
    folder: Folder, path: Path, said: an.Stated, found: an.Annotations
) -> an.Entries:
    """Yields the entries of lines {image, prefix, suffix}, with boxes as <loc> tokens."""
    where = folder.where(path)
    for number, line in read_lines(path):
        place = f":{number}"

        def boxes(line: bytes = line, place: str = place) -> Iterator[an.Entry]:
            one = parse_object(line)
            image = Annotation(_named(one, "image"), where, place)
            parts = filter(str.strip, _named(one, "suffix").split(";"))
            yield image
            for part in parts:
                yield an.attempt(image, place, _located, part)

        yield from an.guarded(boxes(), where, place)


def _located(part: str) -> dict[str, Any]:
    found = _LOCATED.fullmatch(part[:1000].strip())
    if found is None:
        told = f"{shown(part.strip())}; expected four <loc> tokens and a class"
        raise Unusable("bad_box", told)
    y0, x0, y1, x1 = (int(found[n]) / _BINS for n in range(1, 5))
    return {"label": found[5], "shape": Shape((x0, y0, x1, y1), "xyxy", "fractions")}
