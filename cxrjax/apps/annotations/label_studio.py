"""Label Studio's JSON: a task an image, rectangles and polygons in percent of it.

https://labelstud.io/guide/export
"""

import math
import re
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from cxrjax.apps.annotations import table
from cxrjax.apps.annotations.folder import Folder
from cxrjax.errors import ForeignError, UserError
from cxrjax.files import reading
from cxrjax.records_io.quality import PixelBox, Unusable
from cxrjax.untrusted.names import shown_value

# Uploads get eight characters in front of their names.
_UPLOADED = re.compile(r"^[0-9a-f]{8}-(.+)$")
# "labels": of a region that another control drew.
_SHAPES = {"rectanglelabels", "polygonlabels", "ellipselabels", "labels"}
_NO_BOXES = {"brushlabels", "keypointlabels"}
_HAS_AREA = {"width", "points", "radiusX"}
_PATIENT = ("patient_id", "patient", "patientid", "PatientID")


def is_label_studio(content: Any) -> bool:
    """Returns whether a JSON file is in Label Studio's format."""
    first = content[0] if isinstance(content, list) and content else None
    if not isinstance(first, dict):
        return False
    return isinstance(first.get("data"), dict) or _is_min(first)


def _is_min(first: dict[str, Any]) -> bool:
    return "annotation_id" in first and "annotator" in first


def read(folder: Folder, files: list[Path], said: table.Stated, found: table.Annotations) -> None:
    """Reads all files.

    Raises:
        UserError: one is not Label Studio's.
    """
    several = undone = 0
    for path in files:
        where = folder.where(path)
        with reading(path):
            tasks = table.entries(folder.json(path), "the file")
            if not is_label_studio(tasks):
                raise ForeignError("no tasks of Label Studio in it")
            if _is_min(tasks[0]) and "data" not in tasks[0]:
                raise ForeignError("Label Studio's JSON-MIN; export as JSON")
            for number, task in enumerate(tasks):
                annotations = _read_task(
                    table.fields(task, f"[{number}]"), f"{where}: [{number}]", folder, found
                )
                undone += not annotations
                several += annotations > 1
    found.told.append("Label Studio: boxes are xywh, in percent, as the format has them")
    if undone:
        found.told.append(
            f"Label Studio: {undone:,} tasks without an annotation left out (cancelled ones and "
            "predictions do not count)"
        )
    if several:
        found.told.append(f"Label Studio: of {several:,} tasks with several annotations the newest")


def _read_task(task: dict[str, Any], at: str, folder: Folder, found: table.Annotations) -> int:
    """Reads one; says how many annotations it had."""
    data = table.fields(task.get("data"), "data")
    done = [
        one
        for one in table.entries(
            task.get("annotations", task.get("completions", [])), "annotations"
        )
        if isinstance(one, dict) and not one.get("was_cancelled")
    ]
    if not done:
        return 0  # nobody has looked at it
    newest = max(done, key=lambda one: str(one.get("updated_at") or one.get("created_at") or ""))
    results = [
        one for one in table.entries(newest.get("result", []), "result") if isinstance(one, dict)
    ]
    name = _image_name(data, results, folder, at)
    sizes = [
        table.size_of_entry(one.get("original_height"), one.get("original_width"))
        for one in results
    ]
    size = next(filter(None, sizes), None)
    patient = next((data[key] for key in _PATIENT if isinstance(data.get(key), str | int)), "")
    found.add_image(table.MarkedImage(name, at, size, str(patient)))
    known = size or folder.size_or_none(name)
    for one in results:
        kind = one.get("type")
        value = one.get("value")
        if kind not in _SHAPES | _NO_BOXES:
            continue
        found.quality.examined["boxes"] += 1
        try:
            if not isinstance(value, dict) or kind not in _SHAPES or not _HAS_AREA & value.keys():
                told = f"{kind}: expected rectangles, polygons or ellipses"
                raise Unusable("missing_box", told)
            labels = value.get(kind)
            if not isinstance(labels, list) or not labels:
                raise Unusable("unknown_class", f"no label: {shown_value(labels)}")
            if known is None:
                continue  # told once for the image, by whoever opens it
            box = _box(value, known, int(one.get("image_rotation") or 0))
            for label in labels:
                found.boxes.append(table.MarkedBox(name, table.label_of(label), box, at))
        except Unusable as why:
            found.set_aside(why, name, at)
    return len(done)


def _image_name(
    data: dict[str, Any], results: list[dict[str, Any]], folder: Folder, at: str
) -> str:
    """The image's name in the folder, out of an address."""
    key = next((one["to_name"] for one in results if one.get("to_name") in data), None)
    texts = [data[key]] if key else [data.get("image"), *data.values()]
    address = next((text for text in texts if isinstance(text, str) and text), None)
    if address is None:
        raise UserError(f"{at}: data names no image: {shown_value(data)}")
    parts = urlsplit(address)
    local = parse_qs(parts.query).get("d")
    path = local[0] if local else unquote(parts.path if parts.scheme else address)
    uploaded = _UPLOADED.match(PurePosixPath(path).name)
    if uploaded and folder.size_or_none(path) is None and folder.size_or_none(uploaded[1]):
        return uploaded[1]
    return path


def _box(value: dict[str, Any], image_hw: tuple[int, int], turned: int) -> PixelBox:
    """Pixels, of a shape in percent."""
    if turned:
        raise Unusable("wrong_frame", f"the image was rotated by {turned} degrees in the tool")
    height, width = image_hw
    if "points" in value:
        points = [table.numbers_of(point, 2) for point in table.entries(value["points"], "points")]
        box = table.bounds([(x * width / 100, y * height / 100) for x, y in points])
    elif "radiusX" in value:
        names = ("x", "y", "radiusX", "radiusY")
        x, y, across, down = table.numbers_of([value.get(name) for name in names], 4)
        ellipse = (x * width, y * height, across * width, down * height)
        box = table.turned_ellipse([one / 100 for one in ellipse], _rotation(value))
    else:
        names = ("x", "y", "width", "height")
        x, y, across, down = table.numbers_of([value.get(name) for name in names], 4)
        angle = math.radians(_rotation(value))
        # It turns about its upper left corner, in pixels.
        left, top = x * width / 100, y * height / 100
        across, down = across * width / 100, down * height / 100
        cos, sin = math.cos(angle), math.sin(angle)
        box = table.bounds(
            [
                (left + a * cos - d * sin, top + a * sin + d * cos)
                for a, d in ((0, 0), (across, 0), (across, down), (0, down))
            ]
        )
    x_min, y_min, x_max, y_max = box
    return round(x_min, 2), round(y_min, 2), round(x_max, 2), round(y_max, 2)


def _rotation(value: dict[str, Any]) -> float:
    return table.numbers_of([value.get("rotation") or 0], 1)[0]
