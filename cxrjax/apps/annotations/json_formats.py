"""JSON and XML of annotation tools, read as `json_formats.toml` describes it."""

import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from cxrjax.apps.annotations import annotation as an
from cxrjax.apps.annotations import xml_formats
from cxrjax.apps.annotations.annotation import Annotation, Rejected
from cxrjax.apps.annotations.folder import Folder
from cxrjax.apps.annotations.json_paths import (
    ABSENT,
    confidences,
    fields_of,
    get,
    reach,
    said_of,
    split_said,
)
from cxrjax.apps.annotations.keys import shape_of
from cxrjax.apps.annotations.prepared_json import PREPARE, PROBES
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
_SAMPLE = 20  # lines or images, of which one tells the layout
_GENERIC = next(layout for layout in LAYOUTS if layout["kind"] == "boxes")
LINES = (".jsonl", ".ndjson", ".manifest")


def layout_of(content: Any) -> Layout | None:
    """The layout of a file or a line; None if it is of none."""
    return next((layout for layout in LAYOUTS if _fits(content, layout)), None)


def _fits(content: Any, layout: Layout) -> bool:
    if "probe" in layout:
        return PROBES[layout["probe"]](content)
    if any(get(content, key) is ABSENT for key in layout.get("file", ())):
        return False
    if "without" in layout and get(content, layout["without"]) is not ABSENT:
        return False
    if "keys" not in layout:
        return True
    images = content if isinstance(content, list) else [content]  # of a line
    if isinstance(content, dict) and layout["images"] == "{}":
        images = list(content.values())
    has_all = (all(get(one, key) is not ABSENT for key in layout["keys"]) for one in images)
    return any(itertools.islice(has_all, _SAMPLE))  # the first may have no boxes


def documents(folder: Folder, path: Path, most: int = 0) -> Iterator[tuple[str, Any]]:
    """Yields (place, content) of a file of JSON or XML, or of each line; ("", content) of a whole.

    Of a line that is no JSON the content is the ForeignError.

    Args:
        most: bytes of a line; 0: as many as `read_lines` takes.

    Raises:
        OSError, ForeignError: the file cannot be read.
    """
    if (ending := path.suffix.lower()) not in LINES:
        is_xml = ending == ".xml"
        yield "", xml_formats.content_of(folder.xml(path), folder) if is_xml else folder.json(path)
        return
    for number, line in read_lines(path, most) if most else read_lines(path):
        try:
            yield f":{number}", parse_json(line)
        except ForeignError as error:
            yield f":{number}", error


def kind_of(folder: Folder, path: Path) -> str:
    """The kind of a file's layout; "" if it has none."""
    first = [content for _, content in itertools.islice(documents(folder, path, MIB), _SAMPLE)]
    layout = layout_of(first[0]) if first else None
    if layout is None and path.suffix.lower() in LINES:
        layout = layout_of(first)
    return layout["kind"] if layout else ""


def read(
    kind: str, folder: Folder, path: Path, said: an.Stated, found: an.Annotations
) -> an.Entries:
    """Yields the entries of one file, or of one with a document a line."""
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
        is_generic = self.kind == _GENERIC["kind"]  # an image without boxes is of no form
        layout = layout_of(content) or (_GENERIC if is_generic else None)
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
        """Id or number of a class -> its name."""
        path = self.layout.get("names")
        if not path:
            return {str(number): name for number, name in enumerate(self.said.classes)}
        head = path.partition(".[]")[0]
        if get(content, head.split(".")[0]) is ABSENT:
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
        """Returns what is known of an image; Unusable if it has no name, or is withdrawn."""
        an.is_denied(*fields_of(one))
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
            split=split_said(one),
            reader=said_of(one, "reader"),
        )

    def _image(self, one: Any, place: str) -> an.Entries:
        image, layout = self._about(one, place), self.layout
        if "solo" in layout:
            yield an.attempt(image, image.place, self._region, one)
            return
        sets, bar, _ = layout.get("regions", "").rpartition("|")
        key, word = layout.get("done", ("", ABSENT))
        if (bar and not list(reach(one, sets))) or get(one, key) not in (word, ABSENT, one):
            self.found.quality.warnings["images that nobody has annotated, left out"] += 1
            return
        images = self._slots(one, image)
        yield from (images or {"": image}).values()
        for label in self._tags(one):
            yield dataclasses.replace(image, label=str(label))
        for at, region, reader in self._regions(one):
            named = get(region, layout["slots"]["of"]) if images else ""
            key = "?" if named is ABSENT else str(named)
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
        elif "[]" in tags and get(one, tags.split(".")[0]) is not ABSENT:
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
            key: next((p for p in of if get(one, p) is not ABSENT), of[0])
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
        sure = confidences(get(one, paths["shape"].rpartition(".")[0]), len(boxes))
        for number, (label, shape) in enumerate(zip(names, boxes, strict=True)):
            of = slots[number] if slots else "?"
            region = {"label": label, "shape": shape, "slot": of, "confidence": sure[number]}
            yield f"[{number}]", region, ""

    def _region(self, one: Any) -> dict[str, Any]:
        layout = self.layout
        if not isinstance(one, dict):
            raise Unusable("invalid_record", f"{shown_value(one)}; expected an object")
        if an.is_denied(*fields_of(one)):
            self.found.quality.warnings[an.DENIED] += 1
            return {"label": ""}
        inside = "shape" if "parallel" in layout else layout.get("shape", "")
        kind = get(one, layout["kind_of"]) if "kind_of" in layout else "" if not inside else None
        value = get(one, inside)
        shape = None
        bare = layout.get("bare", False) or an.is_normal(self._known(one) or "?")
        if value is not ABSENT and (value or not bare):
            shape = shape_of(value, layout.get("form"), layout.get("units"), kind, bare)
        if shape is None and not bare:
            raise Unusable("missing_box", "neither a bbox nor polygons")
        if shape is not None and "turned" in layout:
            degrees = get(one, layout["turned"])
            shape = shape._replace(degrees=an.numbers_of([0 if degrees is ABSENT else degrees])[0])
        found: dict[str, Any] = {"shape": shape, "label": self._label(one)}
        found["confidence"] = an.confidence_of(said_of(one, "confidence"))
        if reader := said_of(one, "reader"):
            found["reader"] = reader
        found["prediction"] = an.by_model(said_of(one, "source"), said_of(one, "predicted"))
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
        value = next((v for path in paths if (v := get(one, path)) not in (ABSENT, None)), "")
        if value == "" and self.layout is _GENERIC:
            value = said_of(one, "label")
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
        faults: dict[str, Unusable] = {}
        for place, one in reach(content, layout["images"]):
            key = one.get(layout["id"]) if isinstance(one, dict) else None
            try:
                if not isinstance(key, int | str):
                    told = f"{shown_value(one)}; expected an id and a {layout['image'][0]}"
                    raise Unusable("invalid_record", told)
                image = self._about(one, place)
            except Unusable as why:
                faults[str(key)] = why
                yield Rejected(self.file.file, self._at(place), why)
                continue
            if str(key) in images:  # boxes could be of either
                raise ForeignError(f"{place}: id {shown_value(key)} occurred before")
            images[str(key)] = image
        yield from images.values()
        for place, one in reach(content, layout["regions"]):
            about = images.get(str(get(one, layout["join"])))
            if about is None and isinstance(one, dict):
                told = f"{shown_value(one.get(layout['join']))} is not among the images"
                fault = Unusable("dangling_id", f"{layout['join']} {told}")
                fault = faults.get(str(get(one, layout["join"])), fault)
                yield Rejected(self.file.file, self._at(place), fault)
            else:
                yield an.attempt(about or self.file, self._at(place), self._region, one)
