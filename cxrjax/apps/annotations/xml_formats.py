"""XML of CVAT and of Pascal VOC, brought into layouts of `json_formats.toml`."""

import collections
import re
from collections.abc import Iterator
from typing import Any
from xml.etree.ElementTree import Element

from cxrjax.apps.annotations.folder import Folder
from cxrjax.errors import ForeignError

_FRAME = re.compile(r"frame_(\d{1,8})")
_PATIENT = ("patient", "patient_id")


def content_of(root: Element, folder: Folder) -> dict[str, Any]:
    """The content of a file as a layout describes it; {} of another format.

    Raises:
        ForeignError: its boxes belong to frames that are not here.
    """
    if root.tag == "annotation":
        return {"voc": _children(root), "regions": [_object(one) for one in root.iter("object")]}
    return {"cvat": list(_images(root, folder))} if root.tag == "annotations" else {}


def _children(element: Element | None) -> dict[str, Any]:
    """Texts and elements of an element by their tags."""
    found = {
        one.tag: _children(one) if len(one) else one.text
        for one in (() if element is None else element)
    }
    return {tag: one.strip() if isinstance(one, str) else one for tag, one in found.items()}


def _object(one: Element) -> dict[str, Any]:
    """An object of VOC; roLabelImg's `robndbox` is turned in radians, LabelMe's have points."""
    found = _children(one)
    turned = found.get("robndbox")
    if points := [_children(point) for point in one.iterfind("polygon/pt")]:
        turned = {"points": points}
    return found | ({"bndbox": turned} if isinstance(turned, dict) else {})


def _images(root: Element, folder: Folder) -> Iterator[dict[str, Any]]:
    """Images of CVAT 1.1 (https://docs.cvat.ai/docs/manual/advanced/formats/format-cvat/)."""
    job, kind = root.findtext("meta/job/id"), (root.findtext("meta/job/type") or "").strip()
    reader = "ground truth" if kind == "ground_truth" else f"job {job}" if job else ""
    elements = root.findall("image")
    if (tracks := root.findall("track")) or not elements:
        elements += _frames(folder, tracks)
    times: collections.Counter[str] = collections.Counter()
    for image in elements:
        name = image.get("name", "")
        times[name] += 1
        # A frame that a second job has, such as one of ground truth, is in the file twice.
        again = f"{reader} {times[name]}".strip() if times[name] > 1 else reader
        regions = [
            _region(one)
            for one in image
            if one.tag != "attribute"
            and not (one.tag == "tag" and (one.get("label") or "").lower() in _PATIENT)
        ]
        of_tags = {one.get("name", ""): one.text for one in image.iterfind("tag/attribute")}
        yield {**image.attrib, "reader": again, "attributes": of_tags, "regions": regions}


def _region(shape: Element) -> dict[str, Any]:
    found: dict[str, Any] = {**shape.attrib, "kind": shape.tag}
    found["attributes"] = {one.get("name", ""): one.text for one in shape.iter("attribute")}
    if points := found.pop("points", ""):
        found["points"] = [pair.split(",") for pair in points.split(";") if pair]
    if not {"points", "xtl", "left", "cx"} & found.keys() and shape.tag != "tag":
        found["points"] = [[]]  # of a shape without numbers
    return found


def _frames(folder: Folder, tracks: list[Element]) -> list[Element]:
    """Images out of tracks: frame_000012.png has the shapes of frame 12, but for those outside."""
    frames: dict[str, Element] = {}
    for path in folder.images:
        if named := _FRAME.fullmatch(path.stem.lower()):
            frames[named[1].lstrip("0")] = Element("image", {"name": path.name})
    if not frames or not tracks:
        raise ForeignError(
            "CVAT for video, and no image is named frame_000000; export as 'CVAT for images 1.1'"
            if tracks
            else "no <image> in it; export as 'CVAT for images 1.1'"
        )
    for track in tracks:
        for shape in track:
            number = shape.get("frame", "?")
            if shape.get("outside") != "1":
                shape.set("label", track.get("label", ""))
                missing = Element("image", {"name": f"frame_{number}"})
                frames.setdefault(number.lstrip("0"), missing).append(shape)
    return list(frames.values())
