"""Phantom radiographs with VinDr-CXR-VQA questions, on disk: images, box table, records.

Rendering is spread over processes. What comes out depends on (seed, sizes, format) alone, not on
their number; an interrupted build continues where it stopped.
"""

import abc
import dataclasses
import functools
import hashlib
import io
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import PIL.Image
from jaxtyping import Float, UInt8

from cxrjax.errors import UserError
from cxrjax.files import file_sha256, hash_lines, writing
from cxrjax.papers.vindr_cxr_vqa.annotation import FindingBox, ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.box_table import write_box_table
from cxrjax.papers.vindr_cxr_vqa.construct.asking import MAX_BOXES, plan_dense
from cxrjax.papers.vindr_cxr_vqa.construct.plan import Assembly
from cxrjax.papers.vindr_cxr_vqa.construct.template_writer import DenseWriter
from cxrjax.papers.vindr_cxr_vqa.statistics import PHANTOM_PAPER, annotation_values
from cxrjax.progress import progress_bar
from cxrjax.records import DatasetName, Provenance, QARecord
from cxrjax.records_io import workers
from cxrjax.records_io.builder import Builder, BuildOptions, describe_file
from cxrjax.records_io.quality import PixelBox
from cxrjax.simulation import phantoms
from cxrjax.simulation.phantoms import Phantom, render_phantom
from cxrjax.simulation.phantoms.findings import ReaderFinding
from cxrjax.simulation.phantoms.render import SMALLEST

SPLITS = ("train", "validation")
BOX_TABLE = "boxes.csv"
CHUNK = 16  # images rendered between two marks of progress


@dataclasses.dataclass(frozen=True)
class PictureOptions(BuildOptions):
    """Flags of data sets that are made of phantoms.

    Attributes:
        images: training images.
        validation_images: held-out images, from another stream of seeds.
        long_side: longer side in pixels (default: each image its own).
        normal_percent: share without findings, spread evenly. Of VinDr-CXR's images 71 % are
            normal, of VinDr-CXR-VQA's none.
        conspicuity: contrast of lesions.
    """

    images: int = 3000
    validation_images: int = 300
    long_side: int | None = None
    normal_percent: int = 10
    conspicuity: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.images < 1 or self.validation_images < 1:
            raise UserError(
                f"--images={self.images} --validation_images={self.validation_images}: expected "
                "at least 1 of each"
            )
        if not 0 <= self.normal_percent <= 100:
            raise UserError(f"--normal_percent={self.normal_percent}: expected 0 to 100")
        if not self.conspicuity > 0:
            raise UserError(f"--conspicuity={self.conspicuity}: expected a positive number")
        if self.long_side is not None and self.long_side < SMALLEST:
            raise UserError(f"--long_side={self.long_side}: expected at least {SMALLEST} pixels")

    def count(self, split: str) -> int:
        """Images of a split."""
        return self.images if split == "train" else self.validation_images

    def is_normal(self, index: int) -> bool:
        """Says whether image number `index` of a split is to be without findings."""
        return (index + 1) * self.normal_percent // 100 > index * self.normal_percent // 100

    def draw(
        self, stream: int, index: int, render: Callable[..., Phantom] = render_phantom
    ) -> Phantom:
        """Image number `index` of a stream of seeds."""
        return render(
            stream,
            index,
            long_side=self.long_side,
            normal=self.is_normal(index),
            conspicuity=self.conspicuity,
        )


@dataclasses.dataclass(frozen=True)
class PhantomOptions(PictureOptions):
    """Flags of phantoms with VinDr-CXR-VQA's questions.

    Attributes:
        image_format: png (grey, lossless) or jpg (grey, quality 95).
    """

    image_format: Literal["png", "jpg"] = "png"

    def stream(self, split: str) -> int:
        """The phantom seed of a split. No two (seed, split) share one, whatever the seeds."""
        return len(SPLITS) * self.seed + SPLITS.index(split)

    def fingerprint(self) -> str:
        """A hash of everything that decides how image number i of a split looks."""
        drawn = (self.seed, self.long_side, self.image_format)
        decisive = (*drawn, self.normal_percent, self.conspicuity)
        renderer = sorted(Path(phantoms.__file__).parent.glob("*.*"))
        return hash_lines([repr(decisive), *map(file_sha256, renderer)])


Drawn = TypeVar("Drawn", bound=BuildOptions)


class PictureBuilder(Builder[Drawn]):
    """Draws pictures in parallel and writes them with their box table, records and questions.

    Attributes:
        records_are: the data set that the records name.
        images: split -> annotations of its pictures, in order.
    """

    records_are: DatasetName = "synthetic"

    def __init__(self, options: Drawn) -> None:
        super().__init__(options)
        self.published = PHANTOM_PAPER
        self.images: dict[str, list[ImageAnnotation]] = {}
        self._hashes: dict[str, list[str]] = {}

    @abc.abstractmethod
    def chunks(self) -> Mapping[str, tuple[str, Any]]:
        """Name of a chunk -> its split, and what `work` makes pictures of; splits in order."""

    @abc.abstractmethod
    def work(self) -> Callable[[Any], list[dict[str, Any]]]:
        """Makes the pictures of a chunk: `save_picture` of each, or of one that cannot be made its
        `reason`, `item`, `where` and `found`."""

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """A hash of everything that decides how a picture looks."""

    def tidy(self) -> None:
        shutil.rmtree(self.options.out / "parts")

    def read(self) -> dict[str, Iterable[QARecord]]:
        out = self.options.out
        chunks = self.chunks()
        splits = list(dict.fromkeys(split for split, _ in chunks.values()))
        self.images = {split: [] for split in splits}
        self._hashes = {split: [] for split in splits}
        self.prepare(splits)
        with writing(out):
            (out / "images").mkdir(exist_ok=True)
            (out / "parts").mkdir(exist_ok=True)
            for split, entry in self._drawn(chunks):
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

    def _drawn(self, chunks: Mapping[str, tuple[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
        """(split, entry) in order, drawn or taken up again."""
        options = self.options
        parts = workers.resumable(
            self.work(),
            {name: chunk for name, (_, chunk) in chunks.items()},
            _files,
            options.out,
            self.fingerprint(),
            options.processes,
        )
        with progress_bar(desc="drawing", unit="image") as progress:
            for (split, _), part in zip(chunks.values(), parts, strict=True):
                progress.update(len(part))
                for entry in part:
                    yield split, entry

    def take(self, entry: dict[str, Any]) -> ImageAnnotation:
        """The annotation of a picture that was drawn."""
        return _annotation(entry)

    def complete(self, records: Iterable[QARecord]) -> Iterable[QARecord]:
        """The records with what the data set knows besides."""
        return records

    def _answerable(self, image: ImageAnnotation) -> bool:
        """Says whether every class's boxes fit one answer; notes the image where not."""
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


class PhantomBuilder(PictureBuilder[PhantomOptions]):
    """Phantoms with VinDr-CXR-VQA's questions.

    Args:
        render: as `render_phantom`; a test may put a faster one.
    """

    dataset = "phantom"
    options_class = PhantomOptions

    def __init__(
        self, options: PhantomOptions, render: Callable[..., Phantom] = render_phantom
    ) -> None:
        super().__init__(options)
        self._render = render

    def chunks(self) -> Mapping[str, tuple[str, Any]]:
        return {
            f"{split}-{start:07d}-{stop:07d}": (split, (split, start, stop))
            for split in SPLITS
            for start in range(0, self.options.count(split), CHUNK)
            for stop in [min(start + CHUNK, self.options.count(split))]
        }

    def work(self) -> Callable[[Any], list[dict[str, Any]]]:
        return functools.partial(_render_chunk, self.options, self._render)

    def fingerprint(self) -> str:
        return self.options.fingerprint()

    def describe(self) -> dict[str, Any]:
        names = ("seed", "long_side", "image_format", "normal_percent", "conspicuity")
        return {name: getattr(self.options, name) for name in names} | super().describe()


def _files(entry: dict[str, Any]) -> list[str]:
    return [entry["image_path"]] if "image_path" in entry else []


def _render_chunk(
    options: PhantomOptions, render: Callable[..., Phantom], chunk: tuple[str, int, int]
) -> list[dict[str, Any]]:
    split, start, stop = chunk
    return [
        save_picture(
            options.draw(options.stream(split), index, render),
            options.out,
            f"phantom-{options.seed}-{split}-{index:06d}",
            options.image_format,
        )
        for index in range(start, stop)
    ]


class DrawnPicture(Protocol):
    """A picture with its truth, as `Phantom` has it."""

    @property
    def image(self) -> UInt8[np.ndarray, "h w"]: ...
    @property
    def labels(self) -> list[str]: ...
    @property
    def boxes(self) -> Float[np.ndarray, "n 4"]: ...
    @property
    def readers(self) -> dict[str, list[ReaderFinding]]: ...


def save_picture(
    picture: DrawnPicture, out: Path, image_id: str, image_format: str
) -> dict[str, Any]:
    """Writes the image; returns its annotation as JSON has it."""
    height, width = picture.image.shape
    encoded = to_png(picture.image) if image_format == "png" else to_jpeg(picture.image)
    path = f"images/{image_id}.{image_format}"
    (out / path).write_bytes(encoded)
    truth = [
        (label, pixel_box(box, height, width))
        for label, box in zip(picture.labels, picture.boxes, strict=True)
    ]
    readers = {
        rad_id: [(label, pixel_box(box, height, width)) for label, box in marked]
        for rad_id, marked in picture.readers.items()
    }
    return {
        "image_id": image_id,
        "image_path": path,
        "image_hw": (height, width),
        "findings": truth,
        "readers": readers,
        "sha256": hashlib.sha256(encoded).hexdigest(),
    }


def to_png(image: UInt8[np.ndarray, "h w"]) -> bytes:
    """Encoded without loss; grain leaves nothing to find for matching: Huffman codes alone are
    smaller and faster."""
    encoded = io.BytesIO()
    how = {"compress_level": 1, "compress_type": zlib.Z_HUFFMAN_ONLY}
    PIL.Image.fromarray(image).save(encoded, "PNG", **how)
    return encoded.getvalue()


def to_jpeg(image: UInt8[np.ndarray, "h w"], quality: int = 95) -> bytes:
    """Encoded as grey JPEG."""
    encoded = io.BytesIO()
    PIL.Image.fromarray(image).save(encoded, "JPEG", quality=quality)
    return encoded.getvalue()


def _annotation(entry: dict[str, Any]) -> ImageAnnotation:
    def findings(pairs: Sequence[tuple[str, list[float]]]) -> list[FindingBox]:
        return [FindingBox(label, (box[0], box[1], box[2], box[3])) for label, box in pairs]

    return ImageAnnotation(
        entry["image_id"],
        entry["image_path"],
        tuple(entry["image_hw"]),
        findings(entry["findings"]),
        {rad_id: findings(marked) for rad_id, marked in entry["readers"].items()},
    )


def pixel_box(box: Iterable[float], height: int, width: int) -> PixelBox:
    """A box in fractions as whole pixels inside the image, at least one pixel wide and high."""
    x_min, y_min, x_max, y_max = (float(value) for value in box)
    left, right = _pixel_span(x_min, x_max, width)
    top, bottom = _pixel_span(y_min, y_max, height)
    return left, top, right, bottom


def _pixel_span(low: float, high: float, size: int) -> tuple[int, int]:
    start = min(max(round(low * size), 0), size - 1)
    return start, max(min(round(high * size), size), start + 1)
