"""JSON and XML of annotation tools, read as `json_formats.toml` describes it."""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from cxrjax.apps.annotations import annotation as an
from cxrjax.apps.annotations import xml_formats
from cxrjax.apps.annotations.annotation import WORDS, Annotation, Rejected
from cxrjax.apps.annotations.folder import IMAGE_ENDINGS, Folder, split_of
from cxrjax.apps.annotations.keys import shape_of, shape_of_via3
from cxrjax.errors import ForeignError, UserError
from cxrjax.files import read_packaged
from cxrjax.records_io.quality import Unusable
from cxrjax.untrusted.foreign_files import MIB, read_lines
from cxrjax.untrusted.json_text import parse_json
from cxrjax.untrusted.names import shown, shown_value

Layout = dict[str, Any]
_TABLE = read_packaged(str(__package__), "json_formats.toml")
LAYOUTS: list[Layout] = _TABLE["layout"]
TITLES: dict[str, str] = _TABLE["titles"]
_MOST_IMAGES = 300_000
_SAMPLE = 20  # lines or images, of which one has a box
LINES = (".jsonl", ".ndjson", ".manifest")
_ABSENT: Any = object()
_ATTRIBUTES = ("attributes", "region_attributes", "inference")
# Of CheXlocalize: patient64541_study1_view1_frontal is patient64541/study1/view1_frontal.jpg.
_CHEXPERT = re.compile(r"(patient\d+)_(study\d+)_(view\w+)")


def get(value: Any, path: str) -> Any:
    """The value at a path without [] and {}; `_ABSENT` if there is none."""
    for key in filter(None, path.split(".")):
        if isinstance(value, dict):
            value = value.get(key, _ABSENT)
        elif isinstance(value, list) and key.isdigit():
            value = value[int(key)] if int(key) < len(value) else _ABSENT
        else:
            return _ABSENT
    return value


def reach(value: Any, path: str, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (place, value) of everything at a path.

    Raises:
        ForeignError: something on the way is of another kind.
    """
    key, _, rest = path.partition(".")
    if not path:
        yield place, value
    elif key in ("[]", "{}", "*"):
        kinds: dict[str, tuple[Any, str]] = {
            "[]": (list, "a list"),
            "{}": (dict, "an object"),
            "*": ((list, dict), "a list"),
        }
        kind, name = kinds[key]
        if not isinstance(value, kind):
            told = f"{place or 'the file'} is {shown_value(value)}; expected {name}"
            raise ForeignError(told)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for at, one in items:
            yield from reach(one, rest, f"{place}[{shown(at) if isinstance(at, str) else at}]")
    else:
        found = get(value, key)
        if found is _ABSENT:
            told = f"{shown_value(value)}; expected an object with {key}"
            raise ForeignError(f"{place}: {told}" if place else told)
        yield from reach(found, rest, f"{place}.{key}" if place else key)


def layout_of(content: Any) -> Layout | None:
    """The layout of a file or a line; None if it is of none."""
    return next((layout for layout in LAYOUTS if _fits(content, layout)), None)


def _fits(content: Any, layout: Layout) -> bool:
    if "probe" in layout:
        return PROBES[layout["probe"]](content)
    if any(get(content, key) is _ABSENT for key in layout.get("file", ())):
        return False
    if "without" in layout and get(content, layout["without"]) is not _ABSENT:
        return False
    if "keys" not in layout:
        return True
    images = content if isinstance(content, list) else [content]  # of a line
    if isinstance(content, dict) and layout["images"] == "{}":
        images = list(content.values())
    has_all = (all(get(one, key) is not _ABSENT for key in layout["keys"]) for one in images)
    return any(itertools.islice(has_all, _SAMPLE))  # the first may have no boxes


def _is_chexlocalize(content: Any) -> bool:
    name = next(iter(content), None) if isinstance(content, dict) else None
    return isinstance(name, str) and bool(_CHEXPERT.fullmatch(name))


def documents(folder: Folder, path: Path, most: int = 0) -> Iterator[tuple[str, Any]]:
    """Yields (place, content) of a file of JSON or XML, or of each line; ("", content) of a whole.

    Of a line that is no JSON the content is the ForeignError.

    Args:
        most: bytes of a line; 0: as many as `read_lines` takes.

    Raises:
        OSError, ForeignError: the file cannot be read.
    """
    ending = path.suffix.lower()
    if ending not in LINES:
        is_xml = ending == ".xml"
        xml = xml_formats.content_of(folder.xml(path), folder) if is_xml else None
        yield "", xml if is_xml else folder.json(path)
        return
    for number, line in read_lines(path, most) if most else read_lines(path):
        try:
            yield f":{number}", parse_json(line)
        except ForeignError as error:
            yield f":{number}", error


def kind_of(folder: Folder, path: Path) -> str:
    """The kind of a file's layout; "" if it has none.

    Raises:
        OSError, ForeignError: it cannot be read.
    """
    first = [content for _, content in itertools.islice(documents(folder, path, MIB), _SAMPLE)]
    layout = layout_of(first[0]) if first else None
    if layout is None and path.suffix.lower() in LINES:
        layout = layout_of(first)
    return layout["kind"] if layout else ""


def read(
    kind: str, folder: Folder, path: Path, said: an.Stated, found: an.Annotations
) -> an.Entries:
    """Yields the entries of one file, or of one with a document a line.

    Raises:
        ForeignError: it is of another kind.
        UserError: classes have no names.
    """
    where = folder.where(path)
    for place, content in documents(folder, path):
        entries = _Document(kind, folder, said, found, Annotation("", where, place)).read(content)
        yield from an.guarded(entries, where, place) if place else entries


@dataclasses.dataclass
class _Document:
    """One file, or one line of a file, at `file.place`."""

    kind: str
    folder: Folder
    said: an.Stated
    found: an.Annotations
    file: Annotation
    layout: Layout = dataclasses.field(default_factory=dict)
    names: dict[str, str] = dataclasses.field(default_factory=dict)

    def read(self, content: Any) -> an.Entries:
        if isinstance(content, ForeignError):
            raise content
        layout = layout_of(content)
        if layout is None and self.kind == _GENERIC["kind"]:
            layout = _GENERIC  # an image without boxes is of no form
        if layout is None or layout["kind"] != self.kind:
            raise ForeignError(f"{shown_value(content)}; expected {self.kind}")
        self.layout = layout
        if "prepare" in layout:
            content = PREPARE[layout["prepare"]](content)
        elif isinstance(content, dict) and layout["images"] == "[]":
            content = [content]
        self.names = self._names(content)
        if "join" in layout:
            yield from self._joined(content)
            return
        for place, one in reach(content, layout["images"]):
            yield from an.guarded(self._image(one, place), self.file.file, self._at(place))

    def _at(self, place: str) -> str:
        return f"{self.file.place}: {place}" if place else self.file.place

    def _names(self, content: Any) -> dict[str, str]:
        """Id or number of a class -> its name.

        Raises:
            ForeignError: one has no name, or two.
            UserError: there are none.
        """
        path = self.layout.get("names")
        if not path:
            return {str(number): name for number, name in enumerate(self.said.classes)}
        head = path.partition(".[]")[0]
        if get(content, head.split(".")[0]) is _ABSENT:
            content = {head: []}
        mapping = get(content, path)
        if isinstance(mapping, dict):
            return {key: name for key, name in mapping.items() if isinstance(name, str)}
        names: dict[str, str] = {}
        for number, (place, one) in enumerate(reach(content, path)):
            one = one if isinstance(one, dict) else {}
            key, name = one.get("id", number), one.get("name")
            if not isinstance(key, int | str) or not isinstance(name, str):
                raise ForeignError(f"{place} has no id or no name")
            if names.setdefault(str(key), name) != name:
                raise ForeignError(f"{place}: id {shown_value(key)} has two names")
        if not names and not self.said.label and "join" in self.layout:
            raise UserError(
                f"{self.file.where}: no {head} in it; pass --label=NAME if all boxes are of one"
            )
        return names

    def _about(self, one: Any, place: str) -> Annotation:
        """The name, size, patient, split and reader of an image.

        Raises:
            Unusable: it has no name.
        """
        names = [get(one, path) for path in self.layout.get("image", ())]
        usable = [name for name in names if isinstance(name, str) and name]
        if self.layout["images"] == "" and not self.file.place:
            stem = str(PurePosixPath(self.file.file).with_suffix(""))
            own = re.sub(r"(^|/)ann/(?=[^/]*$)", r"\1img/", stem)
            # Of a file that was renamed or copied after it was annotated the own name counts.
            usable = [own, *usable] if self.folder.has(own) else [*usable, own]
        if not usable:
            told = f"{shown_value(one)}; expected an object with {self.layout['image'][0]}"
            raise Unusable("invalid_record", told)
        image = next((name for name in usable if self.folder.has(name)), usable[0])
        high, wide = (get(one, path) for path in self.layout.get("size", ("?", "?")))
        return dataclasses.replace(
            self.file,
            image=image,
            place=self._at(place),
            image_hw=an.size_of_entry(high, wide),
            patient=said_of(one, "patient"),
            split=split_of(said_of(one, "split")),
            reader=said_of(one, "reader"),
        )

    def _image(self, one: Any, place: str) -> an.Entries:
        image, layout = self._about(one, place), self.layout
        if "solo" in layout:
            yield an.attempt(image, image.place, self._region, one)
            return
        sets, bar, _ = layout.get("regions", "").rpartition("|")
        key, word = layout.get("done", ("", _ABSENT))
        if (bar and not list(reach(one, sets))) or get(one, key) not in (word, _ABSENT, one):
            self.found.quality.warnings["images that nobody has annotated, left out"] += 1
            return
        images = self._slots(one, image)
        yield from (images or {"": image}).values()
        for label in self._tags(one):
            yield dataclasses.replace(image, label=str(label))
        for at, region, reader in self._regions(one):
            named = get(region, layout["slots"]["of"]) if images else ""
            key = "?" if named is _ABSENT else str(named)
            about = images.get(key, self.file) if images else image
            by = dataclasses.replace(
                about, reader=reader or about.reader, label=self._known(region)
            )
            where = self._at(".".join(filter(None, (place, at))))
            if about is self.file:
                told = f"a box of image {shown(key)}, which is none of {', '.join(images)}"
                yield Rejected(by.file, where, Unusable("dangling_id", told))
                continue
            yield an.attempt(by, where, self._region, region)

    def _slots(self, one: Any, image: Annotation) -> dict[str, Annotation]:
        """The images of a task of several by the name that boxes have for each; {} of one."""
        layout = self.layout.get("slots")
        listed = get(one, layout["list"]) if layout else None
        found: dict[str, Annotation] = {}
        for number, slot in enumerate(listed if isinstance(listed, list) else ()):
            names = [get(slot, path) for path in layout["image"]] if layout else []
            name = next((name for name in names if isinstance(name, str)), "")
            high, wide = (get(slot, side) for side in ("height", "width"))
            key = get(slot, layout["name"]) if layout and layout["name"] else number
            size = an.size_of_entry(high, wide)
            found[str(key)] = dataclasses.replace(image, image=name, image_hw=size)
        return found if len(found) > 1 else {}

    def _tags(self, one: Any) -> Iterator[Any]:
        tags = self.layout.get("tags", "")
        flags = get(one, tags) if tags else None
        if isinstance(flags, dict):
            yield from (name for name, on in flags.items() if on is True)
        elif "[]" in tags and get(one, tags.split(".")[0]) is not _ABSENT:
            yield from (label for _, label in reach(one, tags))

    def _regions(self, one: Any) -> Iterator[tuple[str, Any, str]]:
        """Yields (place, region, reader)."""
        layout = self.layout
        if "parallel" in layout:
            yield from self._parallel(one)
            return
        sets, bar, regions = layout["regions"].rpartition("|")
        for at, by in reach(one, sets):
            reader = get(by, layout["reader"]) if bar else ""
            reader = reader if isinstance(reader, str) else ""
            for place, region in reach(by, regions, at):
                many = layout.get("many", ()) if isinstance(region, dict) else ()
                lists = [region[k] if isinstance(region.get(k), list) else [] for k in many]
                for of in itertools.product(*(value or [None] for value in lists)):
                    one_of = dict(zip(many, of, strict=True))
                    yield place, region | one_of if many else region, reader

    def _parallel(self, one: Any) -> Iterator[tuple[str, Any, str]]:
        paths = {
            key: next((p for p in of if get(one, p) is not _ABSENT), of[0])
            for key, given in self.layout["parallel"].items()
            if (of := [given] if isinstance(given, str) else given)
        }
        slots = get(one, slot) if (slot := paths.pop("slot", "")) else []
        lists = {key: [v for _, v in reach(one, f"{path}.[]")] for key, path in paths.items()}
        names, boxes = lists.values()
        slots = slots if isinstance(slots, list) and len(slots) == len(boxes) else []
        if len(names) != len(boxes):
            told = " and ".join(f"{len(lists[key])} {path}" for key, path in paths.items())
            raise Unusable("invalid_record", f"{told}; expected as many")
        sure = _confidences(get(one, paths["shape"].rpartition(".")[0]), len(boxes))
        for number, (label, shape) in enumerate(zip(names, boxes, strict=True)):
            of = slots[number] if slots else "?"
            region = {"label": label, "shape": shape, "slot": of, "confidence": sure[number]}
            yield f"[{number}]", region, ""

    def _region(self, one: Any) -> dict[str, Any]:
        layout = self.layout
        if not isinstance(one, dict):
            raise Unusable("invalid_record", f"{shown_value(one)}; expected an object")
        inside = "shape" if "parallel" in layout else layout.get("shape", "")
        kind = get(one, layout["kind_of"]) if "kind_of" in layout else "" if not inside else None
        value = get(one, inside)
        shape = None
        if value is not _ABSENT and (value or not layout.get("bare")):
            bare = layout.get("bare", False)
            shape = shape_of(value, layout.get("form"), layout.get("units"), kind, bare)
        if shape is None and not layout.get("bare"):
            raise Unusable("missing_box", "neither a bbox nor polygons")
        if shape is not None and "turned" in layout:
            degrees = get(one, layout["turned"])
            shape = shape._replace(degrees=an.numbers_of([0 if degrees is _ABSENT else degrees])[0])
        found: dict[str, Any] = {"shape": shape, "label": self._label(one)}
        found["confidence"] = an.confidence_of(said_of(one, "confidence"))
        if reader := said_of(one, "reader"):
            found["reader"] = reader
        found["prediction"] = an.by_model(said_of(one, "source"))
        if layout.get("model") in one:
            found["prediction"] = bool(one[layout["model"]])
        return found

    def _known(self, one: Any) -> str:
        """The class of a region that may turn out to be unusable; "" where it is not known."""
        try:
            return self._label(one)
        except Unusable:
            return ""

    def _label(self, one: dict[str, Any]) -> str:
        paths = ["label"] if "parallel" in self.layout else self.layout["label"]
        value = next((v for path in paths if (v := get(one, path)) not in (_ABSENT, None)), "")
        looked_up = "names" in self.layout or isinstance(value, int)
        if self.names and looked_up:
            if str(value) not in self.names:
                what = self.layout.get("names", "--classes").partition(".[]")[0]
                told = f"{paths[0]} {shown_value(value)} is not among {what}"
                raise Unusable("unknown_class", told)
            return self.names[str(value)]
        if looked_up or self.said.label:
            if not self.said.label:
                told = f"the class {shown_value(value)} is a number; pass --classes=NAME,NAME"
                raise Unusable("unknown_class", told)
            return self.said.label
        return an.class_of(value)

    def _joined(self, content: Any) -> an.Entries:
        """Images in one list, boxes in another. Ids are compared as text: 7 and "7" are one."""
        layout = self.layout
        images: dict[str, Annotation] = {}
        for place, one in reach(content, layout["images"]):
            key = one.get(layout["id"]) if isinstance(one, dict) else None
            try:
                if not isinstance(key, int | str):
                    told = f"{shown_value(one)}; expected an id and a {layout['image'][0]}"
                    raise Unusable("invalid_record", told)
                image = self._about(one, place)
            except Unusable as why:
                yield Rejected(self.file.file, self._at(place), why)
                continue
            if str(key) in images:  # boxes could be of either
                raise ForeignError(f"{place}: id {shown_value(key)} occurred before")
            images[str(key)] = image
        yield from images.values()
        for place, one in reach(content, layout["regions"]):
            about = images.get(str(get(one, layout["join"])))

            def region(one: Any = one, about: Annotation | None = about) -> dict[str, Any]:
                if about is None and isinstance(one, dict):
                    told = f"{shown_value(one.get(layout['join']))} is not among the images"
                    raise Unusable("dangling_id", f"{layout['join']} {told}")
                return self._region(one)

            yield an.attempt(about or self.file, self._at(place), region)


@functools.lru_cache(4_096)
def _role(key: str) -> frozenset[str]:
    """Roles that a key's name stands for."""
    return frozenset(role for role, words in WORDS["columns"].items() if an.plain(key) in words)


def said_of(one: Any, role: str) -> str:
    """The value under the likeliest of a role's usual names, also among attributes; "" of none."""
    tags = get(one, "tags")
    named = [tag for tag in tags if isinstance(tag, dict)] if isinstance(tags, list) else []
    of_tags = {str(tag.get("name")): tag.get("value") for tag in named}
    for fields in (one, *(get(one, key) for key in _ATTRIBUTES), of_tags):
        found = [
            (WORDS["columns"][role].index(an.plain(key)), str(value))
            for key, value in (fields.items() if isinstance(fields, dict) else ())
            if role in _role(key[:100]) and isinstance(value, str | int | float) and value != ""
        ]
        if found:
            return min(found)[1]
    return ""


def _confidences(one: Any, count: int) -> list[Any]:
    """The list of so many confidences beside lists of boxes and classes; Nones of none."""
    lists = ((key, of) for key, of in one.items()) if isinstance(one, dict) else ()
    found = (of for key, of in lists if "confidence" in _role(str(key)[:100]))
    return next((of for of in found if isinstance(of, list) and len(of) == count), [None] * count)


def _via3(content: dict[str, Any]) -> dict[str, Any]:
    """A project of VIA 3, whose views, files and options go by numbers, as VIA 2 has it."""
    options = {
        str(key): (of.get("aname", ""), of.get("options"))
        for key, of in an.fields(content.get("attribute", {}), "attribute").items()
        if isinstance(of, dict)
    }
    images: dict[str, dict[str, Any]] = {}
    for key in an.fields(content["view"], "view"):
        name = get(content, f"file.{get(content, f'view.{key}.fid_list.0')}.fname")
        images[key] = {"filename": name, "regions": []}
    for one in an.fields(content["metadata"], "metadata").values():
        one = an.fields(one, "an entry of metadata")
        named = {}
        for key, value in an.fields(one.get("av", {}), "av").items():
            name, choices = options.get(key, (key, None))
            chosen = [str(v) for v in str(value).split(",")]
            known = choices if isinstance(choices, dict) else {}
            named[str(name)] = ", ".join(str(known.get(v, v)) for v in chosen)
        region = {"shape_attributes": shape_of_via3(one.get("xy")), "region_attributes": named}
        view = images.setdefault(str(one.get("vid")), {"filename": None, "regions": []})
        view["regions"].append(region)
    return {"images": list(images.values())}


def _sagemaker(content: dict[str, Any]) -> dict[str, Any]:
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


def _encord(content: list[Any]) -> dict[str, Any]:
    units = [unit for _, unit in reach(content, "[].data_units.{}")]
    return {"images": units}


def _chexlocalize(content: dict[str, Any]) -> dict[str, Any]:
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
    try:
        return isinstance(mask, dict) and shape_of(mask, bare=True) is None
    except Unusable:
        return False  # rejected and counted as a region


def _fiftyone(content: dict[str, Any]) -> dict[str, Any]:
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


def _fiftyone_labels(content: dict[str, Any]) -> dict[str, Any]:
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


def _boxes(content: Any) -> dict[str, Any]:
    """Images and boxes under usual names: lists of them in images, or images beside each box."""
    items = _items(content)
    if len(items) > _MOST_IMAGES:
        raise ForeignError(f"{len(items):,} images, at most {_MOST_IMAGES:,} are read of a file")
    return {"images": [_named_image(one) for one in items]}


def _items(content: Any) -> list[Any]:
    items = content if isinstance(content, list) else [content]
    if rows := _rows_of(content):
        return rows
    if isinstance(content, dict) and not said_of(content, "image"):
        lists = {key: value for key, value in content.items() if isinstance(value, list)}
        items = max(lists.values(), key=len, default=[])
        if lists and len(lists) == len(content) and not any(said_of(of, "image") for of in items):
            items = [{"image": name, "boxes": boxes} for name, boxes in lists.items()]
    return items


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
    return {"name": name, "regions": _boxes_of(one) if name else [], "image": one}


def _boxes_of(one: dict[str, Any]) -> list[Any]:
    lists = {an.plain(key): value for key, value in one.items() if isinstance(value, list)}
    listed = [lists[key] for key in WORDS["shapes"]["lists"] if key in lists]
    for boxes in listed:
        if any(isinstance(box, dict) for box in boxes):
            return boxes
        named = (of for of in listed if of is not boxes and len(of) == len(boxes))
        labels = next((of for of in named if not any(isinstance(x, list) for x in of)), None)
        if labels is not None and any(isinstance(box, list) for box in boxes):
            sure = _confidences(one, len(boxes))
            of_each = zip(boxes, labels, sure, strict=True)
            return [{"box": box, "label": label, "confidence": c} for box, label, c in of_each]
    if not listed and not said_of(one, "label"):  # an outline a class, such as of each rib
        named_by_class = {key: v for key, v in one.items() if isinstance(v, list)}
        if named_by_class:
            return [{"points": v, "label": key} for key, v in named_by_class.items() if v]
    return [] if listed else [one]


def _has_boxes(content: Any) -> bool:
    """Returns whether one of the first images has a box, and all have a name."""
    images = [_named_image(one) for one in _items(content)[:_SAMPLE]]
    if not all(one["name"] for one in images):
        return False
    for region in (region for one in images for region in one["regions"][:_SAMPLE]):
        try:
            if isinstance(region, dict) and shape_of(region, kind="", bare=True) is not None:
                return True
        except Unusable:
            continue
    return False


PREPARE: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "via3": _via3,
    "sagemaker": _sagemaker,
    "encord": _encord,
    "chexlocalize": _chexlocalize,
    "fiftyone": _fiftyone,
    "fiftyone_labels": _fiftyone_labels,
    "boxes": _boxes,
}
PROBES: Mapping[str, Callable[[Any], bool]] = {
    "chexlocalize": _is_chexlocalize,
    "boxes": _has_boxes,
}
_GENERIC = next(layout for layout in LAYOUTS if layout["kind"] == "boxes")
