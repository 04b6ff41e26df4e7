"""Small formats of JSON: VIA, Supervisely, MD.ai, ChestX-Det, lines for PaliGemma."""

import dataclasses
import re
from pathlib import Path
from typing import Any

from cxrjax.apps.annotations import annotation as an
from cxrjax.apps.annotations.annotation import (
    Annotation,
    Annotations,
    Entries,
    Rejected,
    Shape,
    Stated,
)
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
    if isinstance(content, list):
        first = content[0] if content else None
        keys = first.keys() if isinstance(first, dict) else set()
        return "chestx_det" if {"file_name", "syms", "boxes"} <= keys else ""
    if not isinstance(content, dict):
        return ""
    if "_via_img_metadata" in content:
        return "via"
    if {"labelGroups", "datasets"} <= content.keys():
        return "md_ai"
    if {"objects", "size"} <= content.keys():
        return "supervisely"
    first = next(iter(content.values()), None)
    is_via = isinstance(first, dict) and {"filename", "regions"} <= first.keys()
    return "via" if is_via else ""


def is_paligemma(path: Path) -> bool:
    """Returns whether the first line of a file is an example for PaliGemma."""
    try:
        for _, line in read_lines(path, MIB):
            return {"image", "prefix", "suffix"} <= parse_object(line).keys()
    except (OSError, ForeignError):
        pass
    return False


def read_via(folder: Folder, path: Path, said: Stated, found: Annotations) -> Entries:
    """Yields the entries of a project, or of the annotations exported from one, of VIA 2.

    Raises:
        OSError, ForeignError: it cannot be read.
    """
    where = folder.where(path)
    content = an.fields(folder.json(path), "the file")
    images = content.get("_via_img_metadata", content)
    for key, one in an.fields(images, "the images").items():
        place = f": {shown(key)}"
        try:
            if not isinstance(one, dict) or not isinstance(one.get("filename"), str):
                raise Unusable("invalid_record", f"{shown_value(one)}; expected filename, regions")
            image = Annotation(one["filename"], where, place)
            regions = one.get("regions") or []
            regions = list(regions.values()) if isinstance(regions, dict) else regions
            if not isinstance(regions, list):
                raise Unusable("invalid_record", f"regions is {shown_value(regions)}")
        except Unusable as why:
            yield Rejected(where, place, why)
            continue
        yield image
        for number, region in enumerate(regions):
            at = f"{place}: region {number + 1}"
            try:
                if not isinstance(region, dict):
                    raise Unusable("bad_box", f"{shown_value(region)}; expected a region")
                label = said.label or an.class_of(region.get("region_attributes"))
                shape = shape_of(region.get("shape_attributes") or {})
                if shape is None:
                    raise Unusable("bad_box", "a region without a shape")
                yield dataclasses.replace(image, place=at, label=label, shape=shape)
            except Unusable as why:
                yield Rejected(where, at, why, image.image)


def read_chestx_det(folder: Folder, path: Path, said: Stated, found: Annotations) -> Entries:
    """Yields the entries of a file of ChestX-Det: names of findings beside corners.

    Raises:
        OSError, ForeignError: it cannot be read.
    """
    where = folder.where(path)
    for number, one in enumerate(an.entries(folder.json(path), "the file")):
        place = f": [{number}]"
        try:
            if not isinstance(one, dict) or not isinstance(one.get("file_name"), str):
                raise Unusable("invalid_record", f"{shown_value(one)}; expected file_name")
            names, boxes = one.get("syms", []), one.get("boxes", [])
            if not (isinstance(names, list) and isinstance(boxes, list)):
                raise Unusable("invalid_record", "syms or boxes is not a list")
            if len(names) != len(boxes):
                told = f"{len(names)} syms and {len(boxes)} boxes; expected as many"
                raise Unusable("invalid_record", told)
        except Unusable as why:
            yield Rejected(where, place, why)
            continue
        image = Annotation(one["file_name"], where, place)
        yield image
        for label, box in zip(names, boxes, strict=True):
            try:
                numbers = an.numbers_of(box if isinstance(box, list) else [], 4)
                shape = Shape(numbers, "xyxy", None, exact=False)
                yield dataclasses.replace(image, label=an.label_of(label), shape=shape)
            except Unusable as why:
                yield Rejected(where, place, why, image.image)


def read_supervisely(folder: Folder, path: Path, said: Stated, found: Annotations) -> Entries:
    """Yields the entries of ds/ann/NAME.json, which is about ds/img/NAME.

    Raises:
        OSError, ForeignError: it cannot be read.
    """
    where = folder.where(path)
    content = an.fields(folder.json(path), "the file")
    size = an.fields(content.get("size"), "size")
    name = re.sub(r"(^|/)ann/(?=[^/]*$)", r"\1img/", where.removesuffix(".json"))
    image = Annotation(
        name, where, image_hw=an.size_of_entry(size.get("height"), size.get("width"))
    )
    yield image
    for number, tag in enumerate(an.entries(content.get("tags", []), "tags")):
        label = tag.get("name") if isinstance(tag, dict) else None
        yield dataclasses.replace(image, place=f": tag {number + 1}", label=str(label))
    for number, one in enumerate(an.entries(content["objects"], "objects")):
        place = f": object {number + 1}"
        try:
            one = one if isinstance(one, dict) else {}
            points = one.get("points")
            corners = points.get("exterior") if isinstance(points, dict) else None
            kind = one.get("geometryType")
            if kind not in ("rectangle", "polygon", None) or not isinstance(corners, list):
                told = f"a {shown_value(kind)}; expected rectangles or polygons"
                raise Unusable("missing_box", told)
            pairs = [an.numbers_of(pair if isinstance(pair, list) else [], 2) for pair in corners]
            yield dataclasses.replace(
                image,
                place=place,
                shape=Shape(an.bounds(pairs)),
                label=str(one.get("classTitle", "")),
                reader=str(one.get("labelerLogin") or ""),
            )
        except Unusable as why:
            yield Rejected(where, place, why, name)


def read_md_ai(folder: Folder, path: Path, said: Stated, found: Annotations) -> Entries:
    """Yields the entries of an export of MD.ai, whose images are named by SOP Instance UIDs.

    Raises:
        OSError, ForeignError: it cannot be read.
    """
    where = folder.where(path)
    content = an.fields(folder.json(path), "the file")
    by_uid = names_by_uid(folder)
    names = {
        str(label.get("id")): str(label.get("name", ""))
        for group in an.entries(content["labelGroups"], "labelGroups")
        for label in an.entries(an.fields(group, "a group").get("labels", []), "labels")
        if isinstance(label, dict)
    }
    for source in an.entries(content["datasets"], "datasets"):
        marked = an.entries(an.fields(source, "a dataset").get("annotations", []), "annotations")
        for number, one in enumerate(marked):
            place = f": annotations[{number}]"
            try:
                if not isinstance(one, dict):
                    raise Unusable("invalid_record", f"{shown_value(one)}; expected an object")
                uid = one.get("SOPInstanceUID")
                if not isinstance(uid, str):
                    told = "a label of a study or series; expected one of an image"
                    raise Unusable("missing_image", told)
                if str(one.get("labelId")) not in names:
                    told = f"labelId {shown_value(one.get('labelId'))} is in no group"
                    raise Unusable("unknown_class", told)
                yield Annotation(
                    by_uid.get(uid, uid),
                    where,
                    place,
                    _md_ai_shape(one.get("data")),
                    names[str(one["labelId"])],
                    reader=str(one.get("createdById") or ""),
                    prediction=bool(one.get("modelId")),
                    image_hw=an.size_of_entry(one.get("height"), one.get("width")),
                )
            except Unusable as why:
                yield Rejected(where, place, why)


def _md_ai_shape(data: Any) -> Shape | None:
    if isinstance(data, dict) and "vertices" in data:
        vertices = data["vertices"] if isinstance(data["vertices"], list) else []
        pairs = [an.numbers_of(one if isinstance(one, list) else [], 2) for one in vertices]
        return Shape(an.bounds(pairs))
    if isinstance(data, dict) and not {"width", "height"} <= data.keys():
        raise Unusable("missing_box", f"{shown_value(data)}; expected a box or an outline")
    return shape_of(data) if data else None


def read_paligemma(folder: Folder, path: Path, said: Stated, found: Annotations) -> Entries:
    """Yields the entries of lines {image, prefix, suffix}, whose suffix has boxes as <loc> tokens.

    Raises:
        OSError, ForeignError: it cannot be read.
    """
    where = folder.where(path)
    for number, line in read_lines(path):
        place = f":{number}"
        try:
            one = parse_object(line)
            if not isinstance(one.get("image"), str) or not isinstance(one.get("suffix"), str):
                raise Unusable("invalid_record", "no image or no suffix")
        except (Unusable, ForeignError) as error:
            why = error if isinstance(error, Unusable) else Unusable("invalid_record", str(error))
            yield Rejected(where, place, why)
            continue
        image = Annotation(one["image"], where, place)
        yield image
        for part in filter(str.strip, one["suffix"].split(";")):
            located = _LOCATED.fullmatch(part[:1000].strip())
            if located is None:
                told = f"{shown(part.strip())}; expected four <loc> tokens and a class"
                yield Rejected(where, place, Unusable("bad_box", told), image.image)
                continue
            y0, x0, y1, x1 = (int(located[n]) / _BINS for n in range(1, 5))
            shape = Shape((x0, y0, x1, y1), "xyxy", "fractions")
            yield dataclasses.replace(image, shape=shape, label=located[5])
