"""Reads the release's tables of its studies: images with views and sizes, and splits.

image_metadata, study_metadata, patient_metadata (.parquet or .csv.gz)    the release's own
mimic-cxr-*-metadata.csv.gz, mimic-cxr-*-split.csv.gz       MIMIC-CXR-JPG's, for what those lack

They lie in the source, in the folder that holds it, or in either one's `metadata/`. Ids may stand
with or without the letter that paths have (p10000032, s50414267).
"""

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cxrjax.errors import ForeignError, UserError
from cxrjax.files import read_json_object
from cxrjax.papers.cxr_qba.construct.extraction import StudyImage
from cxrjax.papers.cxr_qba.construct.sources import mimic_image
from cxrjax.papers.cxr_qba.metadata import read_table
from cxrjax.papers.cxr_qba.native import StudyQuestions, StudySceneGraph, path_id
from cxrjax.papers.cxr_qba.study_files import Key, study_path
from cxrjax.papers.sources import mimic_tables
from cxrjax.records import LARGEST_SIDE
from cxrjax.records_io.statistics import Published
from cxrjax.untrusted.names import file_name

_SPLIT_NAMES = {"val": "validation", "validate": "validation"}


@dataclasses.dataclass(frozen=True)
class ReleaseTables:
    """Images and split of each study; what no table tells is missing."""

    images: Mapping[Key, list[StudyImage]]
    study_splits: Mapping[Key, str]
    patient_splits: Mapping[str, str]

    def images_of(self, key: Key) -> tuple[StudyImage, ...]:
        """A study's images; none where no table has them."""
        return tuple(self.images.get(key, ()))

    def split_of(self, key: Key) -> str:
        """A study's split, "" where no table tells it."""
        return self.study_splits.get(key) or self.patient_splits.get(key[0], "")


def read_release_tables(source: Path) -> ReleaseTables:
    """Reads what lies there.

    Args:
        source: the release's folder or archive.

    Raises:
        UserError: a table cannot be read, or lacks a column.
    """
    places = _places(source)
    mimic = _mimic_images(places)
    images: dict[Key, list[StudyImage]] = collections.defaultdict(list)
    for row in _rows(places, "image", ("patient_id", "study_id", "image_id")):
        key = _key(row)
        image = StudyImage(
            str(row["image_id"]),
            _size(row),
            row.get("view_position") or "",
            row.get("patient_orientation") or "",
        )
        other = mimic.get(image.image_id, (key, image))[1]
        images[key].append(
            dataclasses.replace(
                image,
                image_hw=image.image_hw or other.image_hw,
                view=image.view or other.view,
                orientation=image.orientation or other.orientation,
                path=_path(key, image.image_id),
            )
        )
    if not images:
        for key, image in mimic.values():
            images[key].append(dataclasses.replace(image, path=_path(key, image.image_id)))
    return ReleaseTables(images, _study_splits(places), _patient_splits(places))


def named_images(graph: StudySceneGraph, questions: StudyQuestions) -> tuple[StudyImage, ...]:
    """The images that a study's files speak of, for a study that no table has."""
    names = list(graph.study_img_localization_quality)
    for node in graph.observations.values():
        names += node.localization
    for question in questions.questions:
        names += question.question_img_localization_quality
        for answer in question.all_answers():
            names += answer.localization
    key = (questions.patient_id, questions.study_id)
    return tuple(StudyImage(name, path=_path(key, name)) for name in dict.fromkeys(names))


def stated_counts(source: Path) -> dict[str, Published]:
    """Counts in the release's dataset_info.json under the names that statistics have here.

    They take the place of those on its page, where two are swapped. Of the file nothing
    but its name is published: what has another name is passed over.

    Raises:
        UserError: the file is no JSON object.
    """
    for place in _places(source):
        if (file := place / "dataset_info.json").is_file():
            content = read_json_object(file)
            note = f"{file.name} of the source"
            return {
                name: Published(value, note)
                for name, value in content.items()
                if isinstance(value, int | float) and not isinstance(value, bool)
            }
    return {}


def _places(source: Path) -> list[Path]:
    folder = source if source.is_dir() else source.parent
    around = folder.resolve().parent
    return [folder, folder / "metadata", around, around / "metadata"]


def _rows(places: list[Path], level: str, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for place in places:
        for suffix in ("parquet", "csv.gz"):
            file = place / f"{level}_metadata.{suffix}"
            if not file.is_file():
                continue
            for row in read_table(file):
                if missing := [name for name in columns if name not in row]:
                    raise UserError(
                        f"{file}: has no column {missing[0]!r}; it has {', '.join(row)}"
                    )
                yield row
            return


def _mimic_images(places: list[Path]) -> dict[str, tuple[Key, StudyImage]]:
    columns = ("dicom_id", "subject_id", "study_id", "Rows", "Columns")
    images = {}
    for where, row in mimic_tables.first_rows(places, mimic_tables.METADATA_PATTERN, columns):
        key = (path_id("p", row["subject_id"]), path_id("s", row["study_id"]))
        images[row["dicom_id"]] = (key, mimic_image(row, where))
    return images


def _study_splits(places: list[Path]) -> dict[Key, str]:
    columns = ("subject_id", "study_id", "split")
    splits = {
        (path_id("p", row["subject_id"]), path_id("s", row["study_id"])): _split(row)
        for _, row in mimic_tables.first_rows(places, mimic_tables.SPLIT_PATTERN, columns)
    }
    own = _rows(places, "study", ("patient_id", "study_id"))
    return splits | {_key(row): _split(row) for row in own if row.get("split")}


def _patient_splits(places: list[Path]) -> dict[str, str]:
    rows = _rows(places, "patient", ("patient_id",))
    return {path_id("p", row["patient_id"]): _split(row) for row in rows if row.get("split")}


def _split(row: Mapping[str, Any]) -> str:
    split = _name(row["split"], "split")
    return _SPLIT_NAMES.get(split, split)


def _name(value: Any, column: str) -> str:
    """A cell that becomes a name of files."""
    try:
        return file_name(str(value))
    except ForeignError as error:
        raise UserError(f"a table of the release: {column}: {error}; fetch it again") from None


def _key(row: Mapping[str, Any]) -> Key:
    return path_id("p", row["patient_id"]), path_id("s", row["study_id"])


def _size(row: Mapping[str, Any]) -> tuple[int, int] | None:
    height, width = row.get("height") or 0, row.get("width") or 0
    # What pandas writes for a missing number is none: no comparison with it holds.
    if not (height > 0 and width > 0):
        return None
    if max(height, width) > LARGEST_SIDE:
        raise UserError(f"a table of the release: an image of {height:g} x {width:g} pixels")
    return int(height), int(width)


def _path(key: Key, image_id: str) -> str:
    return f"files/{study_path(*key)}/{_name(image_id, 'image_id')}.jpg"
