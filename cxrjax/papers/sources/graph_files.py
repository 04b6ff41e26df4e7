"""Finds and reads scene graphs: files in a folder or members of `scene_graph.zip`.

An archive is read and never unpacked. The release's has some 240,000 graphs.
"""

import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from cxrjax.errors import UserError
from cxrjax.papers.sources.chest_imagenome import (
    MAX_BYTES,
    SUFFIX,
    ImageSceneGraph,
    parse_scene_graph,
    to_report,
)
from cxrjax.papers.sources.mimic_tables import files_beside_images
from cxrjax.papers.sources.report import ImageReport
from cxrjax.records_io.quality import QualityLog, Unusable

# A file, or a member of an archive. Archives stay open: to open one is to read its whole directory.
GraphFile = Path | tuple[zipfile.ZipFile, str]


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
    try:
        if isinstance(place, Path):
            with open(place, "rb") as file:
                content = file.read(MAX_BYTES + 1)
        else:
            with place[0].open(place[1]) as member:
                content = member.read(MAX_BYTES + 1)
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise UserError(f"{_where(place)}: cannot be read: {error}") from None
    return parse_scene_graph(content, _name(place))


def read_reports(
    places: Mapping[str, GraphFile],
    chosen: Collection[str],
    sizes: Mapping[str, tuple[int, int]],
    quality: QualityLog,
) -> Iterator[ImageReport]:
    """Reports of the chosen images, one at a time; unusable graphs are set aside."""
    for image_id in chosen:
        quality.examined["scene graphs"] += 1
        try:
            graph = read_scene_graph(places[image_id])
            if graph.image_id != image_id:
                raise Unusable("invalid_record", "its image_id is not that of the file's name")
            yield to_report(graph, sizes.get(image_id), quality)
        except Unusable as fault:
            quality.set_aside(fault.reason, image_id, _name(places[image_id]), fault.found)


def image_paths(places: Mapping[str, GraphFile], chosen: Collection[str]) -> Iterator[str]:
    """Where MIMIC-CXR-JPG has the chosen images; unusable graphs are passed over."""
    for image_id in chosen:
        try:
            yield read_scene_graph(places[image_id]).image_path
        except Unusable:
            continue  # set aside by `read_reports`


def _in_zip(path: Path, quality: QualityLog) -> Iterator[GraphFile]:
    """The graphs of an archive, which is read and never unpacked."""
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    for member in archive.namelist():
        name = PurePosixPath(member)
        if not _is_graph(name.name):
            continue
        if name.is_absolute() or ".." in name.parts:
            found = "a path that leads out of the archive"
            quality.set_aside("unsafe_member", name.name.removesuffix(SUFFIX), path.name, found)
            continue
        yield archive, member


def _is_graph(name: str) -> bool:
    # Apple's archiver adds "._<name>" to each file.
    return name.endswith(SUFFIX) and not name.startswith("._")


def _name(place: GraphFile) -> str:
    return place.name if isinstance(place, Path) else PurePosixPath(place[1]).name


def _where(place: GraphFile) -> Path | str:
    return place if isinstance(place, Path) else f"{place[0].filename}: {place[1]}"
