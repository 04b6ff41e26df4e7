"""TFDS builders over the folder that a build wrote: ArrayRecord shards for random access.

An example is one image with all its questions, images in the order in which the records file first
names them:

    image_id, image_path          as the records have them
    image                         the image file's bytes (PNG, JPEG or DICOM), untouched
    questions                     sequence of
        index                     position of the record in the records file
        question_id
        record                    the record as one line of JSON (data/README.md)

`tfds.builder_from_directory(DIR).as_data_source("train")` reads them anywhere. Beside the shards
lie the records files, the build's manifest and images.json, so that a training run groups, checks
and orders questions without reading a pixel (cxrjax.input_pipeline.stored_images).
"""

import functools
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from cxrjax.errors import UserError
from cxrjax.files import read_json_object, reading, replace_text, writing
from cxrjax.images.decode import image_size
from cxrjax.paper import find_paper
from cxrjax.paths import copy_file, to_path
from cxrjax.progress import progress_bar
from cxrjax.records import QARecord, format_record, read_records
from cxrjax.records_io.builder import records_files
from cxrjax.untrusted.foreign_files import read_bytes

IMAGES_FILE = "images.json"
MANIFEST = "manifest.json"
# TFDS sorts by key within buckets that part the range of 128-bit keys. Keys spread over all of it
# fill the buckets evenly; keys 0, 1, 2, ... would all fall into the first, and into memory.
KEY_RANGE = 2**128


class CxrRecords(tfds.core.GeneratorBasedBuilder):
    """Chest radiographs with questions, answers and boxes, of any data set in records.

    Args:
        source: folder of a finished build.
        image_root: folder that `image_path` is relative to; by default the build's.
        kwargs: of `tfds.core.DatasetBuilder`, such as `data_dir`.
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "One image with its questions an example."}

    def __init__(self, *, source: str, image_root: str | None = None, **kwargs: Any) -> None:
        self._source = to_path(source)
        self._image_root = to_path(source if image_root is None else image_root)
        super().__init__(**{"file_format": "array_record"} | kwargs)

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.__doc__,
            features=tfds.features.FeaturesDict(self._features()),
            disable_shuffling=True,
        )

    def _features(self) -> dict[str, Any]:
        text = tfds.features.Text()
        question = {"index": np.int64, "question_id": text, "record": text}
        return {
            "image_id": text,
            "image_path": text,
            "image": tfds.features.Tensor(shape=(), dtype=np.object_),
            "questions": tfds.features.Sequence(question),
        }

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, Any]]]:
        del dl_manager
        # A folder that TFDS gives its name only when everything in it is written.
        folder = to_path(self.data_dir)
        (folder / "records").mkdir()
        splits, index = {}, {}
        for file in records_files(self._source):
            images = _by_image(file)
            paths = [self._image_root / image_path for _, image_path in images]
            index[file.stem] = [
                [image_id, image_path, image_size(path)]
                for (image_id, image_path), path in zip(images, paths, strict=True)
            ]
            splits[file.stem] = self._generate_examples(file.stem, images)
            copy_file(file, folder / "records" / file.name)
        copy_file(self._source / MANIFEST, folder / MANIFEST)
        replace_text(folder / IMAGES_FILE, json.dumps(index))
        return splits

    def _generate_examples(
        self, split: str, images: dict[tuple[str, str], list[tuple[int, QARecord]]]
    ) -> Iterator[tuple[int, Any]]:
        progress = progress_bar(images.items(), desc=split, unit="image")
        for number, ((image_id, image_path), asked) in enumerate(progress):
            questions = [
                {
                    "index": index,
                    "question_id": record.question_id,
                    "record": format_record(record),
                }
                for index, record in asked
            ]
            yield (
                number * (KEY_RANGE // len(images)),
                {
                    "image_id": image_id,
                    "image_path": image_path,
                    "image": _content(self._image_root / image_path),
                    "questions": questions,
                },
            )


def _content(path: Path) -> bytes:
    with reading(path):
        return read_bytes(path)


@functools.cache
def _builder_of(dataset: str) -> type[CxrRecords]:
    """A builder under the data set's own name where it has a description; else `CxrRecords`."""
    if description := find_paper(dataset).tfds:
        name = dataset.title().replace("_", "")
        return type(name, (CxrRecords,), {"__doc__": description, "__module__": __name__})
    return CxrRecords


def write_tfds(source: Path, out: Path, image_root: Path | None = None) -> Path:
    """Writes a build as a TFDS data set; does nothing where that was done before.

    Args:
        image_root: folder that `image_path` is relative to; by default the build's.

    Returns:
        The folder to read from, `OUT/<name>/1.0.0`.

    Raises:
        UserError: the source is not a finished build, an image in it cannot be read, or `out` has
            the data set from another build.
    """
    manifest = read_json_object(source / MANIFEST)
    files = records_files(source)
    names = {record.dataset for file in files for record in read_records(file)}
    builder_class = _builder_of(names.pop()) if len(names) == 1 else CxrRecords
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        root = None if image_root is None else str(image_root)
        builder = builder_class(source=str(source), image_root=root, data_dir=str(out))
        return generate(builder, manifest)


def generate(builder: tfds.core.DatasetBuilder, manifest: Mapping[str, Any], **how: Any) -> Path:
    """Writes a data set through TFDS, unless it exists.

    A run that is killed leaves a folder named `incomplete...`, which TFDS does not read and the
    next run removes.

    Args:
        manifest: of the build, a copy of which the builder leaves beside its shards.
        how: of `tfds.download.DownloadConfig`.

    Returns:
        The folder to read from.

    Raises:
        UserError: the folder holds another build.
    """
    folder = to_path(builder.data_dir)
    if folder.is_dir():
        if read_json_object(folder / MANIFEST) != manifest:
            raise UserError(f"{folder}: of another build; remove it or choose another --out")
        return folder
    for unfinished in folder.parent.glob(f"incomplete.*_{folder.name}"):
        shutil.rmtree(unfinished)
    tfds.disable_progress_bar()  # ours knows how much there is
    # Nothing is downloaded; TFDS wants a folder for it all the same.
    with tempfile.TemporaryDirectory() as downloads:
        builder.download_and_prepare(
            download_dir=downloads, download_config=tfds.download.DownloadConfig(**how)
        )
    return folder


def _by_image(file: Path) -> dict[tuple[str, str], list[tuple[int, QARecord]]]:
    """(image id, path) in order of first appearance -> (position in the file, record)."""
    images: dict[tuple[str, str], list[tuple[int, QARecord]]] = {}
    for index, record in enumerate(read_records(file)):
        images.setdefault((record.image_id, record.image_path), []).append((index, record))
    return images
