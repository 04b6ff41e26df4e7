"""A TFDS builder over CXR-QBA's questions in shards: shard by shard, on Apache Beam where wanted.

Reads what pipeline.py or `build --dataset=shards` left, and writes where TFDS keeps its data sets:

    tfds.builder_from_directory("DIR/cxr_qba/1.0.0").as_data_source("train")

An example is one image with its questions, as `records_io/tfds_builders.py` lists them; `index`
is the question's position in all shards of its split together, and `image` is there only where
there is a folder of images. Which process wrote what makes no difference to the examples and their
order (their bytes may differ: protocol buffers keep fields in no order).
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from cxrjax.errors import UserError
from cxrjax.files import read_json_object, reading, write_json, writing
from cxrjax.paths import to_path
from cxrjax.records import parse_record
from cxrjax.records_io.shard_layout import FOLDER
from cxrjax.records_io.shards import read_elements
from cxrjax.records_io.tfds_builders import KEY_RANGE, MANIFEST, CxrRecords, generate
from cxrjax.untrusted.foreign_files import read_bytes
from cxrjax.untrusted.names import path_inside


class _Shard(NamedTuple):
    """One shard, its place in its split, and the step between the keys of two images, by which a
    split's keys fill their range."""

    name: str
    first_image: int
    first_question: int
    key_step: int


class CxrQba(CxrRecords):
    """CXR-QBA: questions on chest radiographs, answered in sentences with boxes and tags.

    Args:
        source: folder with manifest.json and records/ in shards.
        image_root: folder that `image_path` is relative to; None: examples have no image.
        beam: read the shards as a Beam pipeline, whose options go into TFDS's `DownloadConfig`;
            otherwise one after the other, in this process.
        kwargs: of `tfds.core.DatasetBuilder`, such as `data_dir`.
    """

    def __init__(
        self, *, source: str, image_root: str | None = None, beam: bool = False, **kwargs: Any
    ) -> None:
        self._images = None if image_root is None else to_path(image_root)
        self._beam = beam
        super().__init__(source=source, image_root=image_root, **kwargs)

    def _features(self) -> dict[str, Any]:
        features = super()._features()
        if self._images is None:
            del features["image"]
        return features

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        del dl_manager
        manifest = read_json_object(self._source / MANIFEST)
        # A folder that TFDS gives its name only when everything in it is written.
        write_json(to_path(self.data_dir) / MANIFEST, manifest)
        return {
            split: self._examples(_shards(entry["shards"]))
            for split, entry in manifest["splits"].items()
            if entry["questions"]
        }

    def _examples(self, shards: Sequence[_Shard]) -> Any:
        if not self._beam:
            parts = (examples_of(shard, self._source, self._images) for shard in shards)
            return itertools.chain.from_iterable(parts)
        import apache_beam as beam  # in an environment of its own

        return (
            beam.Create(list(shards))
            | beam.Reshuffle()
            | beam.FlatMap(examples_of, self._source, self._images)
        )


def examples_of(
    shard: _Shard, source: Path, images: Path | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(key, example) of each image of a shard.

    Raises:
        UserError: the shard cannot be read, or an image cannot.
    """
    stem = source / FOLDER / shard.name
    numbers = pq.read_table(f"{stem}.parquet", columns=["image"])["image"].to_pylist()
    lines = read_elements(to_path(f"{stem}.array_record"))
    rows = enumerate(zip(numbers, lines, strict=True), start=shard.first_question)
    for number, asked in itertools.groupby(rows, lambda row: row[1][0]):
        questions = []
        for index, (_, line) in asked:
            record = parse_record(line, f"{stem}.array_record:{index - shard.first_question}")
            told = {"question_id": record.question_id, "record": line.decode()}
            questions.append({"index": index, **told})
        example: dict[str, Any] = {
            "image_id": record.image_id,
            "image_path": record.image_path,
            "questions": questions,
        }
        if images is not None:
            example["image"] = _read_image(images, record.image_path)
        yield (shard.first_image + number) * shard.key_step, example


def write_qba_tfds(
    source: Path,
    out: Path,
    image_root: Path | None = None,
    beam_options: Sequence[str] | None = None,
) -> Path:
    """Writes questions in shards as a TFDS data set; does nothing where that was done before.

    Args:
        beam_options: flags of Beam, with the runner; None: without Beam, in this process.

    Returns:
        The folder to read from, `OUT/cxr_qba/1.0.0`.

    Raises:
        UserError: the source is not a finished folder of shards, something in it cannot be read, or
            `out` has the data set from another build.
    """
    manifest = read_json_object(source / MANIFEST)
    if (manifest.get("dataset"), manifest.get("format")) != ("cxr_qba", "array_record"):
        raise UserError(f"{source}: expected questions of cxr_qba in shards (--dataset=shards)")
    root = None if image_root is None else str(image_root)
    how: dict[str, Any] = {}
    if beam_options is not None:
        from apache_beam.options.pipeline_options import PipelineOptions

        how["beam_options"] = PipelineOptions(list(beam_options))
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        builder = CxrQba(
            source=str(source), image_root=root, beam=beam_options is not None, data_dir=str(out)
        )
        return generate(builder, manifest, **how)


def _shards(entries: Sequence[Mapping[str, Any]]) -> list[_Shard]:
    """Returns the shards of a split as the manifest has them."""
    step = KEY_RANGE // sum(entry["images"] for entry in entries)
    shards = []
    first_image = first_question = 0
    for entry in entries:
        shards.append(_Shard(entry["name"], first_image, first_question, step))
        first_image += entry["images"]
        first_question += entry["questions"]
    return shards


def _read_image(root: Path, name: str) -> bytes:
    with reading(root / name, "the image", "is --image_root right?"):
        return read_bytes(path_inside(root, name))
