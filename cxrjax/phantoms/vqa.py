"""Phantom radiographs with VinDr-CXR-VQA questions, on disk: images, box table, records.

Rendering is spread over processes. What comes out depends on (seed, sizes, format) alone, not on
their number; an interrupted build continues where it stopped.
"""

import dataclasses
import functools
import hashlib
import io
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import PIL.Image
import tqdm

from cxrjax import phantoms
from cxrjax.errors import UserError
from cxrjax.files import file_sha256, hash_lines, writing
from cxrjax.papers.vindr_cxr_vqa.annotation import FindingBox, ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.box_table import write_box_table
from cxrjax.papers.vindr_cxr_vqa.construct.dense_writer import DenseWriter
from cxrjax.papers.vindr_cxr_vqa.construct.plan import Assembly
from cxrjax.papers.vindr_cxr_vqa.construct.questions import MAX_BOXES, plan_dense
from cxrjax.papers.vindr_cxr_vqa.statistics import PHANTOM_PAPER, annotation_values
from cxrjax.phantoms import Phantom, render_phantom
from cxrjax.phantoms.render import SMALLEST
from cxrjax.records import Provenance
from cxrjax.records_io import workers
from cxrjax.records_io.builder import finish_build, prepare_folder, write_split
from cxrjax.records_io.quality import PixelBox, QualityLog
from cxrjax.records_io.statistics import RecordStatistics, compare

SPLITS = ("train", "validation")
BOX_TABLE = "boxes.csv"
IMAGE_FORMATS = ("png", "jpg")
_JPEG_QUALITY = 95
_CHUNK = 16  # images rendered between two marks of progress


@dataclasses.dataclass(frozen=True)
class PhantomBuild:
    """What to render.

    Attributes:
        images: number of training images.
        validation_images: number of held-out images, from another stream of seeds.
        long_side: longer side of the images in pixels; None leaves each its own size.
        image_format: "png" (grey, lossless) or "jpg" (grey, quality 95).
        processes: worker processes; 1 renders in this one.
        normal_percent: share of images without findings, spread evenly over the indices. Of
            VinDr-CXR's images 71 % are normal, of VinDr-CXR-VQA's none.
        conspicuity: as of `render_phantom`.
    """

    out: Path
    images: int
    validation_images: int
    seed: int = 0
    long_side: int | None = None
    image_format: str = "png"
    processes: int = 1
    normal_percent: int = 10
    conspicuity: float = 1.0

    def __post_init__(self) -> None:
        if self.images < 1 or self.validation_images < 1:
            raise UserError(
                f"--images={self.images} --validation_images={self.validation_images}: expected "
                "at least 1 of each"
            )
        if self.seed < 0:
            raise UserError(f"--seed={self.seed}: expected 0 or more")
        if self.processes < 1:
            raise UserError(f"--processes={self.processes}: expected at least 1")
        if not 0 <= self.normal_percent <= 100:
            raise UserError(f"--normal_percent={self.normal_percent}: expected 0 to 100")
        if not self.conspicuity > 0:
            raise UserError(f"--conspicuity={self.conspicuity}: expected a positive number")
        if self.long_side is not None and self.long_side < SMALLEST:
            raise UserError(f"--long_side={self.long_side}: expected at least {SMALLEST} pixels")
        if self.image_format not in IMAGE_FORMATS:
            raise UserError(f"--image_format={self.image_format}: expected one of {IMAGE_FORMATS}")

    def stream(self, split: str) -> int:
        """The phantom seed of a split. No two (seed, split) share one, whatever the seeds."""
        return len(SPLITS) * self.seed + SPLITS.index(split)

    def count(self, split: str) -> int:
        """Images of a split."""
        return self.images if split == "train" else self.validation_images

    def is_normal(self, index: int) -> bool:
        """Whether image number `index` of a split is to be without findings."""
        return (index + 1) * self.normal_percent // 100 > index * self.normal_percent // 100

    def fingerprint(self) -> str:
        """Of everything that decides how image number i of a split looks."""
        decisive = (
            self.seed,
            self.long_side,
            self.image_format,
            self.normal_percent,
            self.conspicuity,
        )
        renderer = sorted(Path(phantoms.__file__).parent.glob("*.py"))
        return hash_lines([repr(decisive), *map(file_sha256, renderer)])


@dataclasses.dataclass(frozen=True)
class _Chunk:
    """Images `start` to `stop` of a split: what one worker renders at a time."""

    split: str
    start: int
    stop: int

    @property
    def name(self) -> str:
        return f"{self.split}-{self.start:07d}-{self.stop:07d}.json"


def build_phantom_dataset(
    build: PhantomBuild, render: Callable[..., Phantom] = render_phantom
) -> None:
    """Renders images and writes them with their box table, records, questions and statistics.

    Args:
        render: as `render_phantom`; a test may put a faster one.

    Raises:
        UserError: the folder cannot be written.
    """
    out = build.out
    prepare_folder(out, SPLITS)
    quality = QualityLog()
    images: dict[str, list[ImageAnnotation]] = {split: [] for split in SPLITS}
    hashes: dict[str, list[str]] = {split: [] for split in SPLITS}
    with writing(out):
        (out / "images").mkdir(exist_ok=True)
        (out / "parts").mkdir(exist_ok=True)
        for split, image, sha256 in _rendered(build, render):
            hashes[split].append(f"{image.image_id} {sha256}")
            if _answerable(image, quality):
                images[split].append(image)
        _write(build, images, hashes, quality)
        shutil.rmtree(out / "parts")


def _write(
    build: PhantomBuild,
    images: dict[str, list[ImageAnnotation]],
    hashes: dict[str, list[str]],
    quality: QualityLog,
) -> None:
    out = build.out
    write_box_table(out / BOX_TABLE, [image for split in SPLITS for image in images[split]])
    table_sha256 = file_sha256(out / BOX_TABLE)
    source = Provenance(source_file=BOX_TABLE, source_sha256=table_sha256)
    assembly = Assembly("synthetic", DenseWriter(build.seed), source)
    statistics = RecordStatistics()
    splits: dict[str, Any] = {}
    for split in SPLITS:
        records = assembly.records(plan_dense(images[split], build.seed), split)
        progress = tqdm.tqdm(records, desc=f"{split} questions", unit="question")
        splits[split] = write_split(out, split, progress, statistics)
        splits[split]["images_sha256"] = hash_lines(hashes[split])
    values = statistics.values() | annotation_values(images)
    finish_build(
        out,
        quality,
        compare(values, PHANTOM_PAPER),
        {
            "dataset": "phantom",
            "seed": build.seed,
            "long_side": build.long_side,
            "image_format": build.image_format,
            "normal_percent": build.normal_percent,
            "conspicuity": build.conspicuity,
            "templates": assembly.generator.version,
            "box_table": {"path": BOX_TABLE, "sha256": table_sha256},
            "splits": splits,
        },
    )


def _answerable(image: ImageAnnotation, quality: QualityLog) -> bool:
    """Whether every class's boxes fit one answer; notes the image where they do not."""
    quality.examined["images"] += 1
    for label in image.present:
        count = len(image.boxes_of(label))
        if count > MAX_BOXES:
            found = f"{count} boxes of {label}, expected at most {MAX_BOXES}"
            quality.set_aside("too_many_boxes", image.image_id, image.image_path, found)
            return False
    return True


def _rendered(
    build: PhantomBuild, render: Callable[..., Phantom]
) -> Iterator[tuple[str, ImageAnnotation, str]]:
    """(split, annotation, SHA-256 of the image file) in order, rendered or taken up again."""
    chunks = [
        _Chunk(split, start, min(start + _CHUNK, build.count(split)))
        for split in SPLITS
        for start in range(0, build.count(split), _CHUNK)
    ]
    work = functools.partial(_render_chunk, build, build.fingerprint(), render)
    total = build.images + build.validation_images
    with workers.pool(build.processes) as apply, tqdm.tqdm(total=total, unit="image") as progress:
        for chunk, part in zip(chunks, apply(work, chunks), strict=True):
            progress.update(len(part))
            for entry in part:
                yield chunk.split, _annotation(entry), entry["sha256"]


def _render_chunk(
    build: PhantomBuild, fingerprint: str, render: Callable[..., Phantom], chunk: _Chunk
) -> Sequence[dict[str, Any]]:
    """Renders and writes some images, unless an earlier, interrupted build did."""
    part = build.out / "parts" / chunk.name
    if part.exists():
        done = json.loads(part.read_text())
        there = all((build.out / image["image_path"]).is_file() for image in done["images"])
        if done["fingerprint"] == fingerprint and there:
            return done["images"]
    entries = []
    for index in range(chunk.start, chunk.stop):
        picture = render(
            build.stream(chunk.split),
            index,
            long_side=build.long_side,
            normal=build.is_normal(index),
            conspicuity=build.conspicuity,
        )
        entries.append(_save(picture, build, f"phantom-{build.seed}-{chunk.split}-{index:06d}"))
    # Written aside and renamed: a part is there only when all of its images are.
    aside = part.with_suffix(".tmp")
    aside.write_text(json.dumps({"fingerprint": fingerprint, "images": entries}))
    os.replace(aside, part)
    return entries


def _save(picture: Phantom, build: PhantomBuild, image_id: str) -> dict[str, Any]:
    """Writes the image; returns its annotation as JSON has it."""
    height, width = picture.image.shape
    encoded = io.BytesIO()
    file = PIL.Image.fromarray(picture.image)
    if build.image_format == "png":
        # Grain leaves nothing to find for matching: Huffman codes alone are smaller and faster.
        file.save(encoded, "PNG", compress_level=1, compress_type=zlib.Z_HUFFMAN_ONLY)
    else:
        file.save(encoded, "JPEG", quality=_JPEG_QUALITY)
    path = f"images/{image_id}.{build.image_format}"
    (build.out / path).write_bytes(encoded.getvalue())
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
        "sha256": hashlib.sha256(encoded.getvalue()).hexdigest(),
    }


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
