"""Builder of simulated images with VinDr-CXR-VQA questions: images, box table, records.

Images are rendered in several processes. The output depends on seed, sizes and format only, not on
the number of processes; an interrupted build resumes.
"""

import abc
import hashlib
import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import PIL.Image
from jaxtyping import UInt8

from cxrjax.errors import UserError
from cxrjax.files import file_sha256, hash_lines, writing
from cxrjax.papers.vindr_cxr_vqa.annotation import FindingBox, ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.box_table import write_box_table
from cxrjax.papers.vindr_cxr_vqa.construct.asking import MAX_BOXES
from cxrjax.papers.vindr_cxr_vqa.construct.plan import Assembly
from cxrjax.papers.vindr_cxr_vqa.statistics import PAPER, annotation_values
from cxrjax.paths import remove_tree
from cxrjax.progress import progress_bar
from cxrjax.records import Provenance, QARecord
from cxrjax.records_io import workers
from cxrjax.records_io.builder import Builder, BuildOptions, describe_file
from cxrjax.records_io.quality import PixelBox
from cxrjax.simulation.dense import DenseWriter, plan_dense
from cxrjax.simulation.signs import SimulatedImage

BOX_TABLE = "boxes.csv"
# What a phantom data set imitates; its sizes are free.
PHANTOM_PAPER = {
    name: published
    for name, published in PAPER.items()
    if name in ("classes", "question_types") or name.startswith("polarity_percent/")
}
CHUNK = 16  # images rendered between two updates of the progress bar


def check_flags(**ranges: tuple[float | None, float, float]) -> None:
    """Checks numbers given by flags.

    Args:
        ranges: flag -> (value, or None where it was not given; lowest; highest).

    Raises:
        UserError: a number is outside of its range.
    """
    for name, (value, low, high) in ranges.items():
        if value is not None and not low <= value <= high:
            expected = f"at least {low}" if high == np.inf else f"{low} to {high}"
            raise UserError(f"--{name}={value}: expected {expected}")


def fingerprint(*decisive: Any) -> str:
    """Returns a hash of the given values and of the code, which decide how images look."""
    code = (path for path in Path(__file__).parent.rglob("*.*") if path.suffix != ".pyc")
    return hash_lines([*map(repr, decisive), *map(file_sha256, sorted(code))])


Options = TypeVar("Options", bound=BuildOptions)


class ImageBuilder(Builder[Options]):
    """Renders images in parallel and writes them with their box table, records and questions.

    Attributes:
        records_are: the data set that the records name.
        images: split -> annotations of its images, in order.
    """

    records_are: str = "synthetic"

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.published = PHANTOM_PAPER
        self.images: dict[str, list[ImageAnnotation]] = {}
        self._hashes: dict[str, list[str]] = {}

    @abc.abstractmethod
    def chunks(self) -> Mapping[str, tuple[str, Any]]:
        """Returns name of a chunk -> (its split, the argument of `work`); splits in order."""

    @abc.abstractmethod
    def work(self) -> Callable[[Any], list[dict[str, Any]]]:
        """Returns the function that renders a chunk.

        It returns `save_image` of each image, or `reason`, `item`, `where` and `found` of one that
        cannot be made.
        """

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Returns a hash of everything that decides how an image looks."""

    def tidy(self) -> None:
        remove_tree(self.options.out / "parts")

    def read(self) -> dict[str, Iterable[QARecord]]:
        out = self.options.out
        chunks = self.chunks()
        splits = list(dict.fromkeys(split for split, _ in chunks.values()))
        self.images = {split: [] for split in splits}
        self._hashes = {split: [] for split in splits}
        self.prepare(splits)
        with writing(out):
            for folder in ("images", "parts"):
                (out / folder).mkdir(exist_ok=True)
            for split, entry in self._rendered(chunks):
                if "reason" in entry:
                    told = (entry[name] for name in ("reason", "item", "where", "found"))
                    self.quality.set_aside(*told)
                    continue
                image = self.take(entry)
                self._hashes[split].append(f"{image.image_id} {entry['sha256']}")
                if self._answerable(image):
                    self.images[split].append(image)
            every = [image for split in splits for image in self.images[split]]
            if not every:
                raise self.nothing_left("image")
            write_box_table(out / BOX_TABLE, every)
        seed = self.options.seed
        source = Provenance(source_file=BOX_TABLE, source_sha256=file_sha256(out / BOX_TABLE))
        self._assembly = Assembly(self.records_are, DenseWriter(seed), source)
        return {
            split: progress_bar(
                self.complete(self._assembly.records(plan_dense(images, seed), split)),
                desc=f"{split} questions",
                unit="question",
            )
            for split, images in self.images.items()
        }

    def _rendered(
        self, chunks: Mapping[str, tuple[str, Any]]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields (split, entry) in order, of images rendered now or in an interrupted build."""
        work = {name: chunk for name, (_, chunk) in chunks.items()}
        how = (self.options.out, self.fingerprint(), self.options.processes)
        parts = workers.resumable(self.work(), work, _files, *how)
        with progress_bar(desc="rendering", unit="image") as progress:
            for (split, _), part in zip(chunks.values(), parts, strict=True):
                progress.update(len(part))
                for entry in part:
                    yield split, entry

    def take(self, entry: dict[str, Any]) -> ImageAnnotation:
        """Returns the annotation of an image that was rendered."""
        readers = {name: _finding_boxes(marked) for name, marked in entry["readers"].items()}
        size = tuple(entry["image_hw"])
        found = _finding_boxes(entry["findings"])
        return ImageAnnotation(entry["image_id"], entry["image_path"], size, found, readers)

    def complete(self, records: Iterable[QARecord]) -> Iterable[QARecord]:
        """Adds to the records what only this data set knows."""
        return records

    def _answerable(self, image: ImageAnnotation) -> bool:
        """Checks that the boxes of every class fit one answer; rejects the image otherwise."""
        self.quality.examined["images"] += 1
        for label in image.present:
            count = len(image.boxes_of(label))
            if count > MAX_BOXES:
                found = f"{count} boxes of {label}, expected at most {MAX_BOXES}"
                where = image.image_path
                self.quality.set_aside("too_many_boxes", image.image_id, where, found)
                return False
        return True

    def write_split(self, split: str, records: Iterable[QARecord]) -> dict[str, Any]:
        images_sha256 = hash_lines(self._hashes[split])
        return super().write_split(split, records) | {"images_sha256": images_sha256}

    def balance_rule(self) -> str:
        return (
            "seven questions with no for five with yes in each split, as in VinDr-CXR-VQA's "
            "paper; absent classes are asked about on the images with the fewest questions"
        )

    def values(self) -> dict[str, float | None]:
        return self.counts.values() | annotation_values(self.images)

    def describe(self) -> dict[str, Any]:
        return {
            "templates": self._assembly.generator.version,
            "box_table": describe_file(self.options.out / BOX_TABLE),
        }


def _files(entry: dict[str, Any]) -> list[str]:
    return [entry["image_path"]] if "image_path" in entry else []


def _finding_boxes(pairs: Iterable[tuple[str, list[float]]]) -> list[FindingBox]:
    return [FindingBox(label, (box[0], box[1], box[2], box[3])) for label, box in pairs]


def save_image(one: SimulatedImage, out: Path, image_id: str, image_format: str) -> dict[str, Any]:
    """Writes the image; returns its annotation as JSON stores it."""
    size = one.image.shape
    encoded = to_png(one.image) if image_format == "png" else to_jpeg(one.image)
    path = f"images/{image_id}.{image_format}"
    (out / path).write_bytes(encoded)
    pairs = zip(one.labels, one.boxes, strict=True)
    return {
        "image_id": image_id,
        "image_path": path,
        "image_hw": size,
        "findings": [(label, pixel_box(box, *size)) for label, box in pairs],
        "readers": {
            reader: [(label, pixel_box(box, *size)) for label, box in marked]
            for reader, marked in one.readers.items()
        },
        "sha256": hashlib.sha256(encoded).hexdigest(),
    }


def to_png(image: UInt8[np.ndarray, "h w"]) -> bytes:
    """Encodes without loss. Grain has no repetitions: Huffman codes only are smaller and faster."""
    encoded = io.BytesIO()
    how = {"compress_level": 1, "compress_type": zlib.Z_HUFFMAN_ONLY}
    PIL.Image.fromarray(image).save(encoded, "PNG", **how)
    return encoded.getvalue()


def to_jpeg(image: UInt8[np.ndarray, "h w"], quality: int = 95) -> bytes:
    """Encodes as grey JPEG."""
    encoded = io.BytesIO()
    PIL.Image.fromarray(image).save(encoded, "JPEG", quality=quality)
    return encoded.getvalue()


def pixel_box(box: Iterable[float], height: int, width: int) -> PixelBox:
    """Rounds a box in fractions to whole pixels inside the image, at least one wide and high."""
    x_min, y_min, x_max, y_max = (float(value) for value in box)
    left, right = pixel_span(round(x_min * width), round(x_max * width), width)
    top, bottom = pixel_span(round(y_min * height), round(y_max * height), height)
    return left, top, right, bottom


def pixel_span(low: int, high: int, size: int) -> tuple[int, int]:
    """Moves two edges inside an image of `size` pixels, at least a pixel apart."""
    start = min(max(low, 0), size - 1)
    return start, max(min(high, size), start + 1)
