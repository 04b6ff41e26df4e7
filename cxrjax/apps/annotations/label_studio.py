"""Label Studio's JSON, JSON-MIN and CSV: a task an image or several, regions in percent of it.

Of one annotator's annotations of a task the newest counts; other annotators are other readers.
https://labelstud.io/guide/export
"""

import contextlib
import dataclasses
import re
from collections.abc import Container
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from cxrjax.apps.annotations import annotation as an
from cxrjax.apps.annotations.annotation import Annotation, Rejected, Shape
from cxrjax.apps.annotations.folder import Folder
from cxrjax.apps.annotations.json_paths import get, said_of, split_said
from cxrjax.apps.annotations.keys import cell_of, shape_of
from cxrjax.apps.annotations.masks import boxes_of_brush
from cxrjax.apps.annotations.tables import table as read_table
from cxrjax.errors import ForeignError
from cxrjax.records_io.quality import Unusable
from cxrjax.untrusted.names import shown_value

# Uploads get eight characters in front of their names.
_UPLOADED = re.compile(r"^[0-9a-f]{8}-(.+)$")
# "labels": of a region that another control drew.
_SHAPES = {"rectanglelabels", "polygonlabels", "ellipselabels", "labels", "choices"}
_HAS_AREA = {"width", "points", "radiusX"}
_SIDES = ("original_height", "original_width")
_POINTERS = ("item_index", "to_name")
# Drawn without a class, which a result of "labels" with the same id has.
_DRAWN = {"rectangle", "polygon", "ellipse", "brush", "keypoint"}
# Some data is no image: texts, ids.
_ADDRESS = re.compile(r"(?i)://|^/data/|\.(?:png|jpe?g|dcm|dicom)(?:$|\?)")


def is_label_studio(content: Any) -> bool:
    """Returns whether a JSON file is in Label Studio's format."""
    first = content[0] if isinstance(content, list) and content else None
    return isinstance(first, dict) and (isinstance(first.get("data"), dict) or _is_min(first))


def is_table(path: Path, folder: Folder) -> bool:
    """Returns whether a table is Label Studio's."""
    with contextlib.suppress(ForeignError, OSError):
        return _is_min(read_table(path, folder, 1).header)
    return False


def _is_min(fields: Container[str]) -> bool:
    return "annotation_id" in fields and "annotator" in fields


def _tasks(folder: Folder, path: Path) -> list[Any]:
    """The tasks of a file; rows of JSON-MIN and of tables, one an annotation, become tasks."""
    if path.suffix.lower() == ".json":
        tasks = an.entries(folder.json(path), "the file")
        if not is_label_studio(tasks):
            raise ForeignError("no tasks of Label Studio in it")
    else:
        table = read_table(path, folder)
        cells = ([_value(cell) for cell in of] for _, of in table.rows)
        tasks = [dict(zip(table.header, of, strict=False)) for of in cells]
        tasks += [Unusable("malformed_row", f"line {line}: {why}") for line, why in table.broken]
    return [_task(one) if isinstance(one, dict) and "data" not in one else one for one in tasks]


def _value(cell: str) -> Any:
    try:
        return cell_of(cell)
    except Unusable:
        return [{"unreadable": cell}]


def _task(row: dict[str, Any]) -> dict[str, Any]:
    """A task out of a row with a field a control, which holds a list of regions."""
    results = []
    for value in row.values():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                kinds = (key for key in one if _is_kind(key))
                result = {"type": next(kinds, "a region"), "value": one}
                results.append(result | {key: one.get(key) for key in (*_SIDES, *_POINTERS)})
    done = {"completed_by": row.get("annotator", ""), "result": results}
    return {"data": row, "annotations": [done]}


def read(folder: Folder, path: Path, said: an.Stated, found: an.Annotations) -> an.Entries:
    """Yields the entries of one file."""
    where = folder.where(path)
    tasks = _tasks(folder, path)
    undone = several = 0
    for number, task in enumerate(tasks):
        base = Annotation("", where, f": [{number}]")
        try:
            if isinstance(task, Unusable):
                raise task
            current, older = _annotations(an.fields(task, f"[{number}]"))
            an.is_denied(task, task.get("data"), task.get("meta"))
            undone += not current and not task.get("predictions")
            several += bool(older)
            yield from _read_task(task, current, older, base, folder)
        except (Unusable, ForeignError) as error:
            yield Rejected(where, base.place, an.as_unusable(error))
    for count, told in (
        (undone, "without an annotation left out (cancelled ones do not count)"),
        (several, "with several annotations of one annotator, of which the newest counts"),
    ):
        found.told += [f"{where}: {an.counted(count, 'task')} {told}"] * bool(count)


def _is_kind(word: str) -> bool:
    """Returns whether a word is a kind of regions with a class."""
    return word.endswith("labels") or word in ("choices", "brush", "a region")


Done = dict[str, Any]


def _annotations(task: dict[str, Any]) -> tuple[dict[str, Done], list[Done]]:
    """Annotator -> the newest annotation, and older ones."""
    given = task.get("annotations", task.get("completions", []))
    listed = [one for one in an.entries(given, "annotations") if isinstance(one, dict)]
    done = [one for one in listed if not one.get("was_cancelled")]
    done.sort(key=lambda one: str(one.get("updated_at") or one.get("created_at") or ""))
    by_reader: dict[str, Done] = {}
    older = []
    for one in done:
        who = one.get("completed_by", "")
        who = who.get("email", who.get("id", "")) if isinstance(who, dict) else who
        if str(who) in by_reader:
            older.append(by_reader[str(who)])
        by_reader[str(who)] = one
    return by_reader, older


def _read_task(
    task: Done, current: dict[str, Done], older: list[Done], base: Annotation, folder: Folder
) -> an.Entries:
    data = an.fields(task.get("data"), "data")
    images = _Images(data, folder)
    base = dataclasses.replace(base, patient=said_of(data, "patient"), split=split_said(data))
    for reader, done in current.items():
        yield from _read_results(done, dataclasses.replace(base, reader=reader), images)
    guesses = [one for one in task.get("predictions") or [] if isinstance(one, dict)]
    beaten = [(one, "replaced_annotation", "a newer one of the same annotator") for one in older]
    beaten += [(one, "prediction", "an annotation") for one in guesses if current]
    for one, reason, winner in beaten:
        why = Unusable(reason, f"{winner} counts")
        yield from (Rejected(base.file, base.place, why) for _ in _regions(one))
    if not current:
        for one in guesses:
            score = an.confidence_of(one.get("score"))
            by = dataclasses.replace(base, prediction=True, confidence=score)
            yield from _read_results(one, by, images)


def _results(done: Done) -> list[dict[str, Any]]:
    return [one for one in an.entries(done.get("result", []), "result") if isinstance(one, dict)]


def _regions(done: Done) -> list[dict[str, Any]]:
    """Results that are regions; one that is drawn and labelled apart is two of them."""
    results = _results(done)
    labelled = {str(one.get("id")) for one in results if str(one.get("type")).endswith("labels")}
    kinds = ((str(one.get("type")), one) for one in results)
    return [
        one
        for kind, one in kinds
        if _is_kind(kind) or (kind in _DRAWN and str(one.get("id")) not in labelled)
    ]


def _read_results(done: Done, base: Annotation, images: "_Images") -> an.Entries:
    sizes: dict[str, tuple[int, int]] = {}
    for one in _results(done):
        if size := an.size_of_entry(*map(one.get, _SIDES)):
            with contextlib.suppress(Unusable):
                sizes.setdefault(images.of(one), size)
    if not images.every:
        raise Unusable("dangling_id", f"data names no image: {shown_value(images.data)}")
    for name in images.every:
        yield dataclasses.replace(base, image=name, image_hw=sizes.get(name))
    for one in _regions(done):
        about = base
        try:
            name = images.of(one)
            about = dataclasses.replace(base, image=name, image_hw=sizes.get(name))
            an.is_denied(one, one.get("value"), one.get("meta"))
            labels = [str(label) for label in _labels(one)]
            about = dataclasses.replace(about, label=labels[0])
            for shape in _shapes(one, about.image_hw):
                for label in labels:
                    yield dataclasses.replace(about, label=label, shape=shape)
        except (Unusable, ForeignError) as error:
            why = an.as_unusable(error)
            yield Rejected(base.file, base.place, why, about.image, about.label)


def _labels(one: dict[str, Any]) -> list[Any]:
    kind = str(one.get("type"))
    labels = get(one, f"value.{kind}")
    if kind in _DRAWN:
        raise Unusable("unknown_class", f"a {kind} without a label")
    if not isinstance(labels, list) or not labels:
        raise Unusable("unknown_class", f"no label: {shown_value(labels)}")
    return labels


class _Images:
    """The images of a task: one or several, by the name of the control that shows each."""

    def __init__(self, data: dict[str, Any], folder: Folder) -> None:
        self.data = data
        self._folder = folder
        self._by_key = {
            key: [self._name(one) for one in (value if isinstance(value, list) else [value])]
            for key, value in data.items()
            if _addresses(value, key)
        }
        if not self._by_key and isinstance(data.get("image"), str):
            self._by_key = {"image": [self._name(data["image"])]}
        self.every = list(dict.fromkeys(name for of in self._by_key.values() for name in of))

    def of(self, result: dict[str, Any]) -> str:
        """The image that a result is about.

        Raises:
            Unusable: several could be.
        """
        control = result.get("to_name")
        control = control if isinstance(control, str) else ""
        keys = [control] if control in self._by_key else []
        close = an.plain(control)
        if close and not keys:
            plain = {key: an.plain(key) for key in self._by_key}
            keys = [key for key, name in plain.items() if name in close or close in name]
        if len(keys) != 1:
            keys = list(self._by_key)
        names = [name for key in keys for name in self._by_key[key]]
        index = result.get("item_index")
        if len(keys) == 1 and isinstance(index, int) and 0 <= index < len(names):
            return names[index]
        if len(names) != 1:
            told = f"to_name {shown_value(control)} and item_index {shown_value(index)}"
            raise Unusable("dangling_id", f"{told} name none of {len(names)} images of the task")
        return names[0]

    def _name(self, address: str) -> str:
        """The image's name in the folder, out of an address."""
        try:
            parts = urlsplit(address)
        except ValueError:  # half an address of IPv6
            raise Unusable("missing_image", f"no address: {shown_value(address)}") from None
        local = parse_qs(parts.query).get("d")
        path = local[0] if local else unquote(parts.path if parts.scheme else address)
        uploaded = _UPLOADED.match(PurePosixPath(path).name)
        if uploaded and not self._folder.has(path) and self._folder.has(uploaded[1]):
            return uploaded[1]
        return path


def _addresses(value: Any, key: str) -> bool:
    """Returns whether a field of a task holds images."""
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(one, str) and one for one in values):
        return False
    return all(_ADDRESS.search(one) for one in values) or key.lower() in ("image", "images", "img")


def _shapes(one: dict[str, Any], image_hw: tuple[int, int] | None) -> list[Shape | None]:
    """A region in percent of its image, or the parts of a brush's mask."""
    kind, value = str(one.get("type")), one.get("value")
    if kind == "choices":
        return [None]  # a class of the whole image
    if kind == "brushlabels" and isinstance(value, dict):
        return [Shape(box) for box in boxes_of_brush(value.get("rle"), image_hw)]
    if not isinstance(value, dict) or kind not in _SHAPES or not _HAS_AREA & value.keys():
        raise Unusable("missing_box", f"{kind}: expected rectangles, polygons or ellipses")
    rotation = one.get("image_rotation") or 0
    if an.number_or_none(rotation) != 0:
        told = f"the image was rotated by {shown_value(rotation)} degrees in the tool"
        raise Unusable("wrong_frame", told)
    shape = shape_of(value, None, "percent", "")
    if shape is None or "points" in value:
        return [shape]
    degrees = an.numbers_of([value.get("rotation") or 0], 1)[0]
    return [shape._replace(degrees=degrees, pivot="centre" if shape.ellipse else "corner")]
