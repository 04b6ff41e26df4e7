"""Chest ImaGenome's scene graphs, one JSON file an image: sentences and boxes of 29 regions.

    <dicom_id>_SceneGraph.json: image_id, viewpoint, patient_id, study_id, gender, ...,
    objects[{object_id, bbox_name, x1, y1, x2, y2, original_x1, ...}],
    attributes[{bbox_name, object_id, phrases[], phrase_IDs[], ...}], relationships[]

`original_*` are pixels of the image; `x1` to `y2` are on a frame of 224 on which the image is
placed whole and centred (the data set's documentation), or stretched. Writing a graph gives the
file again, up to the order of keys. Graphs are files in a folder or members of `scene_graph.zip`,
which is read and never unpacked: the release's has some 240,000.
"""

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from scipy.stats import theilslopes

from cxrjax.codecs.prose import SIDE
from cxrjax.files import reading
from cxrjax.papers.sources import report
from cxrjax.papers.sources.mimic_tables import files_beside_images
from cxrjax.papers.sources.regions import Box, load_regions
from cxrjax.records_io.quality import (
    CUT,
    ROUNDING,
    QualityLog,
    Unusable,
    cut_box,
    usable_json,
    usable_name,
)
from cxrjax.untrusted.archives import ZipArchive
from cxrjax.untrusted.foreign_files import open_foreign

SUFFIX = "_SceneGraph.json"
# The release's largest have 400 kB.
MAX_BYTES = 8_000_000
# On the frame of 224, by rounding to whole pixels on both.
_TOLERANCE = 3.0
_NUMBER = re.compile(r"[0-9]{1,20}")
_CORNERS = ("x1", "y1", "x2", "y2")


@dataclasses.dataclass(frozen=True)
class ImageSceneGraph:
    """One image's graph."""

    content: Mapping[str, Any]  # the file's object
    where: str  # its name

    @property
    def image_id(self) -> str:
        """The DICOM id."""
        return str(self.content["image_id"])

    @property
    def patient_id(self) -> str:
        """The id as MIMIC's paths have it: `p10000032`."""
        return f"p{self.content['patient_id']}"

    @property
    def study_id(self) -> str:
        """The id as MIMIC's paths have it: `s50414267`."""
        return f"s{self.content['study_id']}"

    @property
    def image_path(self) -> str:
        """MIMIC-CXR-JPG's path of the image."""
        patient = self.patient_id
        return f"files/{patient[:3]}/{patient}/{self.study_id}/{self.image_id}.jpg"


def parse_scene_graph(content: bytes, where: str) -> ImageSceneGraph:
    """The graph that a file's bytes hold; raises `Unusable` where they hold none."""
    if len(content) > MAX_BYTES:
        raise Unusable("report_too_long", f"more than {MAX_BYTES} bytes")
    graph = usable_json(content)
    if not isinstance(graph, dict):
        raise Unusable("invalid_record", f"a JSON {type(graph).__name__}; expected an object")
    for name in ("image_id", "patient_id", "study_id", "objects", "attributes"):
        if name not in graph:
            raise Unusable("invalid_record", f"without {name}; found {sorted(graph)}")
    for name in ("patient_id", "study_id"):
        if not _NUMBER.fullmatch(str(graph[name])):
            raise Unusable("invalid_record", f"{name} {str(graph[name])[:40]!r}; expected a number")
    usable_name(graph["image_id"])
    for name in ("objects", "attributes"):
        entries = graph[name]
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise Unusable("invalid_record", f"{name} is no list of objects")
    return ImageSceneGraph(graph, where)


def to_report(
    graph: ImageSceneGraph, image_hw: tuple[int, int] | None, quality: QualityLog
) -> report.ImageReport:
    """Sentences with regions, and the regions' boxes as fractions of the image.

    Boxes that are none, and ids and names that lead nowhere, are set aside in `quality`; the rest
    of the graph is used. (The release has boxes without area and some beyond the image.)

    Args:
        image_hw: (height, width) in pixels; None: estimated from the two frames of the boxes.

    Raises:
        Unusable: most boxes are in a wrong frame, or the report is too long.
    """
    regions = load_regions()
    size = image_hw or _estimate_size(graph)
    boxes: dict[str, Box] = {}
    objects: dict[str, str] = {}
    faults: list[Unusable] = []
    for entry in graph.content["objects"]:
        name = str(entry.get("bbox_name"))
        if name not in regions.sources:
            quality.set_aside("unknown_region", graph.image_id, graph.where, repr(name)[:80])
            continue
        objects[str(entry.get("object_id"))] = name
        try:
            boxes[name] = box_on_image(entry, size)
            quality.warnings[CUT] += _reaches_beyond(entry, size)
        except Unusable as fault:
            faults.append(fault)
    if len(faults) > len(boxes):
        raise Unusable(faults[0].reason, f"{len(faults)} boxes, of which {faults[0].found}")
    for one in faults:
        quality.set_aside(one.reason, graph.image_id, graph.where, one.found)
    sentences = _sentences(graph, objects, quality)
    total = sum(len(sentence.text) for sentence in sentences)
    if total > report.MAX_REPORT_CHARACTERS:
        raise Unusable("report_too_long", f"{total} characters")
    return report.ImageReport(
        report_id=graph.image_id,
        image_id=graph.image_id,
        image_path=graph.image_path,
        sentences=tuple(sentences),
        boxes=regions.boxes(boxes),
        image_hw=image_hw,
        patient_id=graph.patient_id,
        study_id=graph.study_id,
        view=_text(graph.content.get("viewpoint")),
        sex=_text(graph.content.get("gender")),
        where=graph.where,
    )


def _sentences(
    graph: ImageSceneGraph, objects: Mapping[str, str], quality: QualityLog
) -> list[report.ReportSentence]:
    """Each phrase once, in the report's order, with the regions it stands at."""
    regions = load_regions()
    texts: dict[str, str] = {}
    places: dict[str, set[str]] = {}
    for entry in graph.content["attributes"]:
        object_id, phrases = str(entry.get("object_id")), entry.get("phrases")
        ids = entry.get("phrase_IDs") or phrases
        if not isinstance(phrases, list) or not isinstance(ids, list) or len(phrases) != len(ids):
            found = "phrases and phrase_IDs are no lists of one length"
            quality.set_aside("invalid_record", graph.image_id, graph.where, found)
            continue
        name = objects.get(object_id)
        if name is None:
            found = f"attributes of object {object_id[-40:]!r}, which objects does not have"
            quality.set_aside("dangling_id", graph.image_id, graph.where, found)
            # The object is one that was not detected; what it is called still says where.
            named = str(entry.get("bbox_name"))
            name = named if named in regions.sources else None
        region = regions.from_source(name) if name else None
        for phrase_id, phrase in zip(ids, phrases, strict=True):
            if isinstance(phrase, str) and (text := report.plain_sentence(phrase)):
                texts.setdefault(str(phrase_id), text)
                places.setdefault(str(phrase_id), set()).update([region] if region else [])
    return [
        report.ReportSentence(texts[key], tuple(regions.combine(places[key])))
        for key in sorted(texts, key=_phrase_order)
    ]


def _phrase_order(phrase_id: str) -> tuple[int, str]:
    number = re.search(r"(\d{1,9})\D*$", phrase_id)
    return (int(number[1]) if number else -1, phrase_id)


def box_on_image(entry: Mapping[str, Any], size: tuple[float, float]) -> Box:
    """An object's box as fractions of the image of `size` (height, width).

    It may reach beyond the image, into the black on either side that the frame of 224 has, and is
    cut at its edges.

    Raises:
        Unusable: it is no box (`bad_box`), does not fit a frame or its own other frame
            (`wrong_frame`), or lies beside the image (`box_outside_image`).
    """
    height, width = size
    small, original = _numbers(entry, ""), _numbers(entry, "original_")
    name = entry.get("bbox_name")
    if not all(-_TOLERANCE <= value <= SIDE + _TOLERANCE for value in small):
        raise Unusable("wrong_frame", f"{name}: {small} does not lie on the frame of {SIDE}")
    scale = (width, height, width, height)
    fractions = [value / side for value, side in zip(original, scale, strict=True)]
    longer = max(size)
    padding = ((longer - width) / 2, (longer - height) / 2) * 2
    placed = [(value + pad) / longer for value, pad in zip(original, padding, strict=True)]
    if not any(
        all(abs(a * SIDE - b) <= _TOLERANCE for a, b in zip(one, small, strict=True))
        for one in (fractions, placed)
    ):
        raise Unusable(
            "wrong_frame",
            f"{name}: {small} on {SIDE} pixels and {original} on {width:g} x {height:g} differ",
        )
    x_min, y_min, x_max, y_max = original
    left, top, right, bottom = cut_box((x_min, y_min, x_max, y_max), size, str(name))
    return left / width, top / height, right / width, bottom / height


def _reaches_beyond(entry: Mapping[str, Any], size: tuple[float, float]) -> bool:
    """Returns whether `box_on_image` clips a box by more than rounding, at estimated sizes too."""
    height, width = size
    x_min, y_min, x_max, y_max = original_box(entry)
    return max(-x_min, -y_min, x_max - width, y_max - height) > ROUNDING


def original_box(entry: Mapping[str, Any]) -> Box:
    """An object's box in pixels of the image, whole numbers as such.

    Raises:
        Unusable: `bad_box`, four numbers are missing.
    """
    _numbers(entry, "original_")
    x_min, y_min, x_max, y_max = (entry[f"original_{corner}"] for corner in _CORNERS)
    return x_min, y_min, x_max, y_max


def _numbers(entry: Mapping[str, Any], prefix: str) -> list[float]:
    values: list[Any] = [entry.get(prefix + corner) for corner in _CORNERS]
    # A whole number may be too long for a float.
    if not all(type(value) in (int, float) and -1e9 < value < 1e9 for value in values):
        raise Unusable("bad_box", f"{entry.get('bbox_name')}: {prefix}{_CORNERS} are not numbers")
    return [float(value) for value in values]


def _estimate_size(graph: ImageSceneGraph) -> tuple[float, float]:
    """(height, width) of the image out of its boxes' two frames: scale and offset along each axis.

    Good to some pixels: the small frame holds whole numbers. By medians, which a few boxes that are
    wrong do not move.
    """
    boxes = []
    for entry in graph.content["objects"]:
        try:
            boxes.append((_numbers(entry, ""), _numbers(entry, "original_")))
        except Unusable:
            continue  # set aside where it is read
    if len(boxes) < 2:
        raise Unusable("wrong_frame", "too few boxes to tell the image's size from")
    sides = []
    for axis in (1, 0):
        small = [one[k] for one, _ in boxes for k in (axis, axis + 2)]
        original = [one[k] for _, one in boxes for k in (axis, axis + 2)]
        if min(small) == max(small):
            raise Unusable("wrong_frame", "boxes without extent")
        scale, start, _, _ = theilslopes(original, small, method="joint")
        # The offset is black on either side, in pixels of the image.
        sides.append(float(scale * SIDE - 2 * max(-start, 0.0)))
    if min(sides) <= 0:
        raise Unusable("wrong_frame", f"the boxes' two frames give a size of {sides}")
    return sides[0], sides[1]


def _text(value: Any) -> str | None:
    return str(value) if value is not None else None


# A file, or a member of an archive. Archives stay open: to open one is to read its whole directory.
GraphFile = Path | tuple[ZipArchive, str]


def find_scene_graphs(source: Path, quality: QualityLog) -> dict[str, GraphFile]:
    """DICOM id -> where its graph is, at a folder or in a zip.

    Members of a zip whose path leads out of it, and further graphs of an image, are set aside.
    Images' folders are not searched: MIMIC-CXR-JPG has half a million.
    """
    if source.suffix == ".zip" and source.is_file():
        places = list(_in_zip(source, quality))
    elif source.is_dir():
        files = sorted(files_beside_images(source))
        plain = (file for file in files if _is_graph(file.name))
        archives = (file for file in files if fnmatch(file.name, "*scene_graph*.zip"))
        places = [*plain, *(place for file in archives for place in _in_zip(file, quality))]
    else:
        return {}
    found: dict[str, GraphFile] = {}
    for place in places:
        image_id = _name(place).removesuffix(SUFFIX)
        if image_id not in found:
            found[image_id] = place
        elif isinstance(place, Path) or isinstance(found[image_id], tuple):
            # An archive that lies beside what was unpacked of it says nothing new.
            quality.set_aside("duplicate_id", image_id, str(_where(place)), "a second graph of it")
    return found


def read_scene_graph(place: GraphFile) -> ImageSceneGraph:
    """The graph of a file.

    Raises:
        Unusable: it is too large, not UTF-8, or no scene graph.
        UserError: it cannot be read.
    """
    with reading(place if isinstance(place, Path) else place[0].path):
        if isinstance(place, Path):
            with open_foreign(place) as file:
                content = file.read(MAX_BYTES + 1)
        else:
            content = place[0].read(place[1])
    return parse_scene_graph(content, _name(place))


def read_reports(
    places: Mapping[str, GraphFile],
    chosen: Collection[str],
    sizes: Mapping[str, tuple[int, int]],
    quality: QualityLog,
) -> Iterator[report.ImageReport]:
    """Reports of the chosen images, one at a time; unusable graphs are set aside."""
    for image_id in chosen:
        quality.examined["scene graphs"] += 1
        with quality.rejecting(image_id, _name(places[image_id])):
            graph = read_scene_graph(places[image_id])
            if graph.image_id != image_id:
                raise Unusable("invalid_record", "its image_id is not that of the file's name")
            yield to_report(graph, sizes.get(image_id), quality)


def image_paths(places: Mapping[str, GraphFile], chosen: Collection[str]) -> Iterator[str]:
    """Returns MIMIC-CXR-JPG's paths of the chosen images; unusable graphs are passed over."""
    for image_id in chosen:
        try:
            yield read_scene_graph(places[image_id]).image_path
        except Unusable:
            continue  # set aside by `read_reports`


def _in_zip(path: Path, quality: QualityLog) -> Iterator[GraphFile]:
    """The graphs of an archive, which is read and never unpacked."""
    with reading(path):
        archive = ZipArchive(path, MAX_BYTES)
    for name, fault in archive.refused:
        if _is_graph(name := PurePosixPath(name).name):
            quality.set_aside("unsafe_member", name.removesuffix(SUFFIX), path.name, fault)
    yield from ((archive, name) for name in archive.names if _is_graph(PurePosixPath(name).name))


def _is_graph(name: str) -> bool:
    # Apple's archiver adds "._<name>" to each file.
    return name.endswith(SUFFIX) and not name.startswith("._")


def _name(place: GraphFile) -> str:
    return place.name if isinstance(place, Path) else PurePosixPath(place[1]).name


def _where(place: GraphFile) -> Path | str:
    return place if isinstance(place, Path) else f"{place[0].path}: {place[1]}"
