"""JSON of tools that no path describes, brought into the layouts of `json_formats.toml`."""

import contextlib
import re
from collections.abc import Iterable
from typing import Any

from cxrjax.apps.annotations import annotation as an
from cxrjax.apps.annotations.annotation import WORDS
from cxrjax.apps.annotations.folder import IMAGE_ENDINGS, names_split, split_of
from cxrjax.apps.annotations.json_paths import confidences, get, reach, said_of
from cxrjax.apps.annotations.keys import shape_of, shape_of_via3
from cxrjax.errors import ForeignError
from cxrjax.records_io.quality import Unusable
from cxrjax.untrusted.names import shown, shown_value

_MOST_IMAGES = 300_000
_SAMPLE = 20  # images, of which one has a box
# Of CheXlocalize: patient64541_study1_view1_frontal is patient64541/study1/view1_frontal.jpg.
_CHEXPERT = re.compile(r"(patient\d+)_(study\d+)_(view\w+)")


def via(content: dict[str, Any]) -> dict[str, Any]:
    """A project of VIA 2, with the descriptions of options in place of their numbers."""
    table = get(content, "_via_attributes.region")
    for image in an.fields(content["_via_img_metadata"], "_via_img_metadata").values():
        regions = get(image, "regions")
        listed = regions.values() if isinstance(regions, dict) else regions
        for one in listed if isinstance(listed, Iterable) else ():
            if isinstance(of := get(one, "region_attributes"), dict):
                one["region_attributes"] = an.described(of, table)
    return content


def via3(content: dict[str, Any]) -> dict[str, Any]:
    """A project of VIA 3, whose views, files and options go by numbers, as VIA 2 has it."""
    images: dict[str, dict[str, Any]] = {}
    for key in an.fields(content["view"], "view"):
        name = get(content, f"file.{get(content, f'view.{key}.fid_list.0')}.fname")
        images[key] = {"filename": name, "regions": []}
    for one in an.fields(content["metadata"], "metadata").values():
        one = an.fields(one, "an entry of metadata")
        named = an.described(an.fields(one.get("av", {}), "av"), content.get("attribute"))
        region = {"shape_attributes": shape_of_via3(one.get("xy")), "region_attributes": named}
        view = images.setdefault(str(one.get("vid")), {"filename": None, "regions": []})
        view["regions"].append(region)
    return {"images": list(images.values())}


def sagemaker(content: dict[str, Any]) -> dict[str, Any]:
    """A line of Ground Truth: a job's boxes, and its names of classes under NAME-metadata."""
    jobs = [key for key in content if isinstance(content.get(f"{key}-metadata"), dict)]
    if len(jobs) != 1 or not isinstance(content[jobs[0]], dict):
        raise ForeignError(f"jobs {shown_value(jobs)}; expected one, of boxes")
    about = content[f"{jobs[0]}-metadata"]
    job = content[jobs[0]] | {"source-ref": content["source-ref"]}
    if about.get("human-annotated") == "no":
        boxes = an.entries(job.get("annotations"), "annotations")
        job["annotations"] = [
            one | {"predicted": True} if isinstance(one, dict) else one for one in boxes
        ]
    return {"images": [job], "class-map": about.get("class-map", {})}


def chexlocalize(content: dict[str, Any]) -> dict[str, Any]:
    """Image -> class -> outlines, or a mask in runs, which is empty where the class is absent."""
    images = []
    for key, of in content.items():
        of = an.fields(of, shown(key))
        regions = [
            {"label": label, "shape": shape}
            for label, shapes in of.items()
            if label != "img_size"
            for shape in (shapes if isinstance(shapes, list) else [shapes])
            if not _is_empty(shape)
        ]
        name = _CHEXPERT.sub(r"\1/\2/\3", key)
        size = of.get("img_size")
        images.append({"name": name, "key": key, "size": size, "regions": regions})
    return {"images": images}


def _is_empty(mask: Any) -> bool:
    with contextlib.suppress(Unusable):  # rejected and counted as a region
        return isinstance(mask, dict) and shape_of(mask, bare=True) is None
    return False


def fiftyone(content: dict[str, Any]) -> dict[str, Any]:
    """Samples of FiftyOne with their detections; those with a confidence are a model's."""
    images = []
    for place, one in reach(content, "samples.[]"):
        one = an.fields(one, place)
        found = [
            box | {"predicted": box.get("confidence") is not None} if isinstance(box, dict) else box
            for of in one.values()
            if get(of, "_cls") == "Detections"
            for box in an.entries(get(of, "detections"), f"{place}: detections")
        ]
        tags = one.get("tags")
        named = tags if isinstance(tags, list) else []
        split = next((tag for tag in named if isinstance(tag, str) and split_of(tag)), "")
        images.append(one | {"regions": found, "split": split})
    return {"images": images}


def fiftyone_labels(content: dict[str, Any]) -> dict[str, Any]:
    """FiftyOne's lists of boxes by image, whose classes are numbers or names."""
    names = an.entries(content["classes"], "classes")
    images = []
    for name, boxes in an.fields(content["labels"], "labels").items():
        regions = an.entries([] if boxes is None else boxes, shown(name))
        for one in regions:
            number = get(one, "label")
            if isinstance(number, int) and 0 <= number < len(names):
                one["label"] = names[number]
        images.append({"name": name, "regions": regions})
    return {"images": images}


def boxes(content: Any) -> dict[str, Any]:
    """Images and boxes under usual names: lists of them in images, or images beside each box."""
    items = _items(content)
    if len(items) > _MOST_IMAGES:
        raise ForeignError(f"{len(items):,} images, at most {_MOST_IMAGES:,} are read of a file")
    rows = [one for one in items if isinstance(one, dict)]
    flags = [(one, key) for one in rows for key in one if an.plain(key) == "isvalid"]
    word = an.word_for_valid(one[key] for one, key in flags)
    for one, key in flags:
        one[word] = one.pop(key)
    return {"images": [_named_image(one) for one in items]}


def _items(content: Any) -> list[Any]:
    items = content if isinstance(content, list) else [content]
    if rows := _rows_of(content):
        return rows
    if isinstance(content, dict) and not said_of(content, "image"):
        lists = {key: value for key, value in content.items() if isinstance(value, list)}
        of_images = {key: of for key, of in lists.items() if any(map(_names_file, of[:_SAMPLE]))}
        if len(of_images) > 1:  # such as one a split
            return [
                one | {"split": key} if isinstance(one, dict) and names_split(key) else one
                for key, of in of_images.items()
                for one in of
            ]
        items = max(lists.values(), key=len, default=[])
        if lists and len(lists) == len(content) and not any(said_of(of, "image") for of in items):
            items = [{"image": name, "boxes": boxes} for name, boxes in lists.items()]
    return items


def _names_file(one: Any) -> bool:
    return said_of(one, "image").lower().endswith(IMAGE_ENDINGS)


def _rows_of(content: Any) -> list[dict[str, Any]]:
    """Rows of an object of objects: columns by number, as pandas writes them, or images by name."""
    inside = list(content.values()) if isinstance(content, dict) else []
    if not inside or not all(isinstance(one, dict) for one in inside):
        return []
    if all(name.lower().endswith(IMAGE_ENDINGS) for name in content):
        return [{"image": name, **of} for name, of in content.items()]
    keys = inside[0].keys()
    if len(keys) > _MOST_IMAGES or len(inside) < 2 or any(one.keys() != keys for one in inside):
        return []
    return [{name: of[key] for name, of in content.items()} for key in keys]


def _named_image(one: Any) -> dict[str, Any]:
    name = said_of(one, "image")
    if isinstance(one, dict) and not name.lower().endswith(IMAGE_ENDINGS):  # such as an id
        texts = (text for text in one.values() if isinstance(text, str))
        name = next((text for text in texts if text.lower().endswith(IMAGE_ENDINGS)), name)
    regions = _boxes_of(one) if name else []
    about = one if isinstance(one, dict) else {}
    return about | {"name": name, "regions": regions, "image": one}


def _boxes_of(one: dict[str, Any]) -> list[Any]:
    lists = {an.plain(key): value for key, value in one.items() if isinstance(value, list)}
    listed = [lists[key] for key in WORDS["shapes"]["lists"] if key in lists]
    for boxes in listed:
        if any(isinstance(box, dict) for box in boxes):
            return boxes
        named = (of for of in listed if of is not boxes and len(of) == len(boxes))
        labels = next((of for of in named if not any(isinstance(x, list) for x in of)), None)
        if labels is not None and any(isinstance(box, list) for box in boxes):
            sure = confidences(one, len(boxes))
            of_each = zip(boxes, labels, sure, strict=True)
            return [{"box": box, "label": label, "confidence": c} for box, label, c in of_each]
    if not listed and not said_of(one, "label"):  # an outline a class, such as of each rib
        named_by_class = {key: v for key, v in one.items() if isinstance(v, list)}
        if named_by_class:
            return [{"points": v, "label": key} for key, v in named_by_class.items() if v]
    return [] if listed else [one]


def has_boxes(content: Any) -> bool:
    """Returns whether one of the first images has a box, and all have a name."""
    images = [_named_image(one) for one in _items(content)[:_SAMPLE]]
    if not all(one["name"] for one in images):
        return False
    for region in (region for one in images for region in one["regions"][:_SAMPLE]):
        with contextlib.suppress(Unusable):
            if isinstance(region, dict) and shape_of(region, kind="", bare=True) is not None:
                return True
    return False


def is_chexlocalize(content: Any) -> bool:
    name = next(iter(content), None) if isinstance(content, dict) else None
    return isinstance(name, str) and bool(_CHEXPERT.fullmatch(name))


PREPARE = {
    one.__name__: one
    for one in (via, via3, sagemaker, chexlocalize, fiftyone, fiftyone_labels, boxes)
}
PROBES = {"chexlocalize": is_chexlocalize, "boxes": has_boxes}
