"""The release's files of each study, in folders and in zip archives.

    p1x/p1xxxxxxx/sxxxxxxxx.scene_graph.json
    p1x/p1xxxxxxx/sxxxxxxxx.qa.json

They may stand below other folders and in several archives, such as one for each p1x and kind. A
study's key is (patient, study). Nothing is unpacked: members are read one by one, and those with
a path that leads out of the archive or of more than `MAX_BYTES` are set aside.

A box stands in the scene graph and again in each answer that points there: it is judged once, and
what becomes of it becomes of it everywhere.
"""

import collections
import contextlib
import dataclasses
import itertools
import json
import math
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pydantic

from cxrjax.errors import ForeignError, UserError
from cxrjax.files import reading
from cxrjax.papers.cxr_qba.construct.checks import check_graph, check_questions
from cxrjax.papers.cxr_qba.native import Native, NativeLocalization, StudyQuestions, StudySceneGraph
from cxrjax.paths import to_path, walk
from cxrjax.records_io.quality import (
    CUT,
    FittedBoxes,
    GivenBox,
    PixelBox,
    QualityLog,
    Unusable,
    fit_boxes,
    usable_json,
    usable_name,
)
from cxrjax.untrusted.archives import ZipArchive
from cxrjax.untrusted.foreign_files import MIB, open_foreign

# Image and box.
_Key = tuple[str, PixelBox]


def fit_study_boxes(
    graph: StudySceneGraph | None,
    questions: StudyQuestions | None,
    sizes: Mapping[str, tuple[int, int]],
    where: str,
    quality: QualityLog,
) -> None:
    """Cuts boxes at their images' edges and takes out what is none, in both objects.

    Args:
        sizes: image id -> (height, width) of images whose size is known.
        where: the file, for `quality`, which gets an entry for every different box taken out and
            counts those that were cut.

    Raises:
        Unusable: `wrong_frame`: most of the study's different boxes do not fit.
    """
    owners = list(_owners(graph, questions))
    labels: dict[_Key, str] = {}
    times: collections.Counter[_Key] = collections.Counter()
    for owner, image_id, place in owners:
        for box in place.bboxes:
            key = _key(image_id, box)
            labels.setdefault(key, f"{owner} on {image_id}:")
            times[key] += 1
    fitted = fit_boxes(
        GivenBox(key, key[1], sizes.get(key[0]), label) for key, label in labels.items()
    )
    if not fitted.cut and not fitted.faults:
        return
    for _, image_id, place in owners:
        _replace(image_id, place, fitted)
    study = graph or questions
    assert study is not None  # there were boxes
    for key, fault in fitted.faults.items():
        found = f"{fault.found}; taken out of {times[key]} places"
        quality.set_aside(fault.reason, f"{study.patient_id}/{study.study_id}", where, found)
    if fitted.cut:
        quality.warnings[CUT] += len(fitted.cut)


def _owners(
    graph: StudySceneGraph | None, questions: StudyQuestions | None
) -> Iterator[tuple[str, str, NativeLocalization]]:
    """(id of what is there, image, place), all of them."""
    localized: list[tuple[str, Mapping[str, NativeLocalization]]] = []
    if graph is not None:
        localized += [(one.obs_id, one.localization) for one in graph.observations.values()]
        localized += [(one.region, one.localization) for one in graph.regions.values()]
        if graph.indication is not None and (answer := graph.indication.answer_for_indication):
            localized.append((answer.obs_id, answer.localization))
    for question in questions.questions if questions is not None else ():
        localized += [
            (f"{question.question_id}, {answer.answer_id}", answer.localization)
            for answer in question.all_answers()
        ]
    for owner, places in localized:
        for image_id, place in places.items():
            yield owner, image_id, place


def _key(image_id: str, box: Sequence[float]) -> _Key:
    # One NaN for all: it equals itself alone.
    x_min, y_min, x_max, y_max = (value if value == value else math.nan for value in box)
    return image_id, (x_min, y_min, x_max, y_max)


def _replace(image_id: str, place: NativeLocalization, fitted: FittedBoxes[_Key]) -> None:
    keys = [_key(image_id, box) for box in place.bboxes]
    if any(key in fitted.cut or key in fitted.faults for key in keys):
        place.bboxes = [
            list(fitted.boxes[key]) if key in fitted.cut else box
            for key, box in zip(keys, place.bboxes, strict=True)
            if key not in fitted.faults
        ]


SCENE_GRAPH = ".scene_graph.json"
QA = ".qa.json"
SUFFIXES = (SCENE_GRAPH, QA)
# A study with 500 questions and three images has some 8 MB.
MAX_BYTES = 16 * MIB
_NAME = re.compile(r"(?:^|/)(?P<patient>[^/]+)/(?P<study>[^/]+?)(?:\.scene_graph|\.qa)\.json$")

Key = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Member:
    """A file in a folder, or in an archive where `archive` is given."""

    name: str
    root: Path
    archive: ZipArchive | None = None

    def read(self) -> bytes:
        """The content.

        Raises:
            Unusable: `unsafe_member`.
            UserError: it cannot be read.
        """
        if self.archive is not None:
            with reading(self.root):
                return self.archive.read(self.name)
        path = self.root / self.name
        if not path.resolve().is_relative_to(self.root.resolve()):
            raise Unusable("unsafe_member", "a link that leads out of the folder")
        with reading(path), open_foreign(path) as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise Unusable("unsafe_member", f"more than {MAX_BYTES} bytes; no study has as many")
        return content


class StudyFiles:
    """Finds and reads studies. Use as a context.

    Args:
        path: folder, zip archive, or folder with zip archives at any depth.
        quality: where what can't be used is set aside.

    Attributes:
        members: (patient, study) -> suffix -> file, by key.
    """

    def __init__(self, path: Path, quality: QualityLog) -> None:
        self._quality = quality
        self._open = contextlib.ExitStack()
        self.members: dict[Key, dict[str, Member]] = {}
        try:
            self._scan(path)
        except BaseException:
            self._open.close()
            raise
        self.members = dict(sorted(self.members.items()))

    def __enter__(self) -> "StudyFiles":
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def read(
        self, key: Key, image_sizes: dict[str, tuple[int, int]] | None = None
    ) -> tuple[StudySceneGraph | None, StudyQuestions | None]:
        """A study's scene graph and questions; None for what is missing or was set aside.

        Boxes that reach beyond their images are cut, and those that are none are taken out.

        Args:
            image_sizes: image id -> (height, width), which boxes are made to fit.
        """
        files = self.members[key]
        graph = self._parse(key, files.get(SCENE_GRAPH), StudySceneGraph)
        questions = self._parse(key, files.get(QA), StudyQuestions)
        assert graph is None or isinstance(graph, StudySceneGraph)
        assert questions is None or isinstance(questions, StudyQuestions)
        where = next((files[suffix].name for suffix in SUFFIXES if suffix in files), "")
        try:
            fit_study_boxes(graph, questions, image_sizes or {}, where, self._quality)
        except Unusable as fault:
            self._quality.set_aside(fault.reason, "/".join(key), where, fault.found)
            return None, None
        return graph, questions

    def _parse(self, key: Key, member: Member | None, kind: type[Native]) -> Native | None:
        if member is None:
            return None
        self._quality.examined["files"] += 1
        try:
            parsed = parse(member.read(), kind)
            if isinstance(parsed, StudySceneGraph):
                check_graph(parsed, key)
                places = _owners(parsed, None)
                rated = [parsed.study_img_localization_quality]
            elif isinstance(parsed, StudyQuestions):
                check_questions(parsed, key)
                places = _owners(None, parsed)
                rated = [one.question_img_localization_quality for one in parsed.questions]
            for image_id in {*itertools.chain(*rated), *(image_id for _, image_id, _ in places)}:
                usable_name(image_id)
        except Unusable as fault:
            self._quality.set_aside(fault.reason, "/".join(key), member.name, fault.found)
            return None
        return parsed

    def _scan(self, path: Path) -> None:
        if path.is_dir():
            for file in sorted(path.rglob("*.json")):
                self._add(Member(file.relative_to(path).as_posix(), path))
            for archive in sorted(path.rglob("*.zip")):
                self._scan_archive(archive)
        elif path.is_file():
            self._scan_archive(path)
        else:
            raise UserError(f"{path}: not there; expected a folder or zip of CXR-QBA's files")

    def _scan_archive(self, path: Path) -> None:
        with reading(path):
            archive = self._open.enter_context(ZipArchive(path, MAX_BYTES))
        for name, fault in archive.refused:
            self._quality.set_aside("unsafe_member", name, path.name, fault)
        for name in sorted(archive.names):
            self._add(Member(name, path, archive))

    def _add(self, member: Member) -> None:
        match = _NAME.search("/" + member.name)
        if match is None:
            return
        suffix = next(suffix for suffix in SUFFIXES if member.name.endswith(suffix))
        files = self.members.setdefault((match["patient"], match["study"]), {})
        if suffix in files:
            self._quality.set_aside(
                "duplicate_id", match["study"], member.name, f"also in {files[suffix].root}"
            )
            return
        files[suffix] = member


def holds_studies(folder: Path) -> bool:
    """Returns whether a file below a folder, or a member of an archive there, is a study's."""
    archives: list[Path] = []
    # Once: a folder of MIMIC-CXR-JPG has 600,000 files.
    for place, _, names in walk(folder):
        if any(name.endswith(SUFFIXES) for name in names):
            return True
        archives += [to_path(place) / name for name in names if name.endswith(".zip")]
    for path in sorted(archives):
        try:
            with ZipArchive(path, MAX_BYTES) as archive:
                if any(name.endswith(SUFFIXES) for name in archive.names):
                    return True
        except (OSError, ForeignError):
            continue  # whoever reads the release will say so
    return False


def parse(content: bytes, kind: type[Native]) -> Native:
    """An object out of a file's bytes.

    Raises:
        Unusable: `bad_encoding` where it is not UTF-8, `invalid_graph` where it is not the object.
    """
    try:
        return kind.model_validate(usable_json(content, "invalid_graph"))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][-12:])
        raise Unusable("invalid_graph", f"{place}: {first['msg']}") from None


def study_path(patient_id: str, study_id: str) -> str:
    """Returns the folder of a study's files: `p10/p10000032/s50414267`."""
    return f"{patient_id[:3]}/{patient_id}/{study_id}"


class StudyArchive:
    """A zip archive that studies' objects are written to, compressed. Use as a context.

    As JSON, most of an object is names of fields and regions: in an archive it is a twentieth.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)

    def __enter__(self) -> "StudyArchive":
        return self

    def __exit__(self, *exception: object) -> None:
        self._archive.close()

    def write(self, native: StudySceneGraph | StudyQuestions) -> None:
        """Adds an object."""
        suffix = SCENE_GRAPH if isinstance(native, StudySceneGraph) else QA
        name = study_path(native.patient_id, native.study_id) + suffix
        # The same bytes whenever it is written.
        entry = zipfile.ZipInfo(name)
        entry.compress_type = zipfile.ZIP_DEFLATED
        self._archive.writestr(entry, json.dumps(native.to_json(True), ensure_ascii=False))
