"""Real normal radiographs with simulated lesions and VinDr-CXR-VQA questions as a data set.

images/, boxes.csv      images, and what three simulated readers marked on them
lesions.csv             each lesion: form, box, contrast-to-noise ratio, radiograph it lies in
grounded_reports.json   a report on each image (`lesion_reports`); master_table.csv: its patient
records/, questions/    as of phantoms; splits by patient, those that `lungs` has

The output depends on each radiograph, its name and the seed: not on the other radiographs, nor on
the number of processes. An interrupted build resumes.
"""

import csv
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import UInt8

from cxrjax.errors import UserError
from cxrjax.images.files import ImageError
from cxrjax.images.geometry import resize
from cxrjax.paper import what_is_made
from cxrjax.papers.lungs import build
from cxrjax.papers.lungs.masks import find_lungs
from cxrjax.papers.lungs.native import LungImage, is_published, read_folder
from cxrjax.papers.vindr_cxr_vqa.annotation import ImageAnnotation
from cxrjax.paths import to_path
from cxrjax.records import QARecord
from cxrjax.records_io.builder import SourceOptions
from cxrjax.records_io.quality import QualityLog, Unusable
from cxrjax.simulation.builder import CHUNK, ImageBuilder, check_flags, fingerprint, save_image
from cxrjax.simulation.chest import Mask
from cxrjax.simulation.compose import (
    LEVELS,
    LesionImage,
    draw_courses,
    generator,
    simulate_lesions,
)
from cxrjax.simulation.findings import CLASSES, draw_presences
from cxrjax.simulation.lesion_reports import BOX, write_reports

LESIONS = "lesions.csv"
SMALLEST = 128
# In each record's `quality`: what it is.
SYNTHETIC = what_is_made(["grafts"])


@dataclasses.dataclass(frozen=True)
class LesionOptions(SourceOptions):
    """Flags of simulated lesions in real radiographs; `source` is laid out as for `lungs`.

    Attributes:
        variants: images of each training radiograph, with different lesions.
        held_out_variants: images of each held-out radiograph.
        studies: images of each variant, in which its lesions come, grow, shrink and go.
        findings: the only classes to simulate; none: all.
        normal_percent: share of radiographs that stay unchanged, once each.
        contrast: multiplies the contrast-to-noise ratio of every lesion.
        long_side: larger radiographs are reduced to this.
        image_format: png (grey, lossless) or jpg (grey, quality 95).
        ask_lungs: also ask of each image where its lungs are, as `lungs` does.
    """

    variants: int = 1
    held_out_variants: int = 1
    studies: int = 1
    findings: tuple[str, ...] = ()
    normal_percent: int = 20
    contrast: float = 1.0
    long_side: int = 512
    image_format: Literal["png", "jpg"] = "png"
    ask_lungs: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flags(
            variants=(self.variants, 1, np.inf),
            held_out_variants=(self.held_out_variants, 1, np.inf),
            studies=(self.studies, 1, np.inf),
            normal_percent=(self.normal_percent, 0, 100),
            long_side=(self.long_side, SMALLEST, np.inf),
        )
        if unknown := [name for name in self.findings if name not in CLASSES]:
            raise UserError(f"--findings={unknown[0]}: expected one of {', '.join(CLASSES)}")
        if not 0 < self.contrast < 100:
            raise UserError(f"--contrast={self.contrast}: expected a positive number below 100")

    def is_normal(self, image_id: str) -> bool:
        """Decides if a radiograph stays unchanged."""
        return generator(self.seed, image_id, "normal").random() * 100 < self.normal_percent


class LesionBuilder(ImageBuilder[LesionOptions]):
    """Simulates lesions into the normal radiographs of a folder with lung masks."""

    dataset = "grafts"
    options_class = LesionOptions
    leaves = f"images/, boxes.csv, {LESIONS}, grounded_reports.json, {ImageBuilder.leaves}"

    def chunks(self) -> Mapping[str, tuple[str, Any]]:
        options = self.options
        self.records_are = "grafts" if is_published(options.source) else "own_grafts"
        self._entries: dict[str, dict[str, Any]] = {}  # by image
        self._lungs: dict[str, tuple[LungImage, build.Examined]] = {}
        self._read = list(normal_images(self.options.source, self.quality))
        if not self._read:
            raise self.nothing_left(
                "normal radiograph with a mask", "; expected as data/lungs/README.md says"
            )
        self.quality.examined["radiographs"] = self.quality.examined.pop("images")
        of_split: dict[str, list[LungImage]] = {split: [] for split in build.SPLIT_PERCENTS}
        for image in self._read:
            of_split[build.split_of(image, self.options.seed)].append(image)
        return {
            f"{split}-{start:07d}": (
                split,
                (images[start : start + CHUNK], variants),
            )
            for split, images in of_split.items()
            for variants in [options.variants if split == "train" else options.held_out_variants]
            for start in range(0, len(images), CHUNK)
        }

    def work(self) -> Callable[[Any], list[dict[str, Any]]]:
        return functools.partial(_simulate_chunk, self.options)

    def fingerprint(self) -> str:
        options = dataclasses.replace(self.options, out=Path(), source=Path(), processes=1)
        files = [path for one in self._read for path in (one.image, *one.masks.values())]
        marks = [f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files]
        return fingerprint(options, marks)

    def take(self, entry: dict[str, Any]) -> ImageAnnotation:
        self._entries[entry["image_id"]] = entry
        image = super().take(entry)
        if self.options.ask_lungs:
            self._lungs[image.image_id] = _as_lungs(image, entry)
        return image

    def complete(self, records: Iterable[QARecord]) -> Iterable[QARecord]:
        for image_id, of_image in itertools.groupby(records, lambda record: record.image_id):
            asked = list(of_image)
            if self.options.ask_lungs:
                split, name, seed = asked[0].split, self.records_are, self.options.seed
                asked += build.lung_records(*self._lungs[image_id], split, name, seed)
            patient = self._entries[image_id]["patient"]
            known = {"patient_id": patient, "quality": {"synthetic": SYNTHETIC}}
            yield from (record.model_copy(update=known) for record in asked)

    def write_files(self, comparison: Mapping[str, Any]) -> None:
        columns = ["image_id", "source", "patient", "label", "kind", *BOX, "contrast_to_noise"]
        with (self.options.out / LESIONS).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(row for one in self._entries.values() for row in one["lesions"])
        splits = {image.image_id: split for split, of in self.images.items() for image in of}
        write_reports(self.options.out, splits, self._entries)

    def values(self) -> dict[str, float | None]:
        return super().values() | {
            "patients": len({one["patient"] for one in self._entries.values()})
        }

    def describe(self) -> dict[str, Any]:
        names = ["seed", "variants", "normal_percent", "contrast", "long_side", "image_format"]
        names += ["studies"] * (self.options.studies > 1)
        return {
            "made": SYNTHETIC,
            "reports": self.records_are.replace("grafts", "simulated_reports"),
            **{name: getattr(self.options, name) for name in names},
            "split_percents": build.SPLIT_PERCENTS,
            **super().describe(),
        }


def normal_images(source: Path, quality: QualityLog) -> Iterable[LungImage]:
    """Yields the radiographs of a folder that have a mask and no known finding.

    Raises:
        UserError: as `read_folder`.
    """
    for image in read_folder(source, quality):
        if image.finding not in ("", "normal"):
            quality.examined["not normal"] += 1
        elif not image.masks:
            found = f"no mask for {image.name}; expected masks/ to have a file of its name"
            quality.set_aside("missing_mask", image.name, image.where, found)
        elif image.lateral:
            found = f"{image.name}: its name or view says lateral"
            quality.set_aside("lateral_view", image.name, image.where, found)
        else:
            yield image


def read_pair(image: LungImage, long_side: int) -> tuple[UInt8[np.ndarray, "h w"], Mask]:
    """Reads a radiograph in its original proportions, and the mask of its lungs at the same size.

    Raises:
        Unusable: a file cannot be read, is no radiograph or no mask of two lungs.
    """
    try:
        pixels = build.read_radiograph(image.image)
    except ImageError as error:
        raise Unusable("unreadable_image", str(error)) from None
    levels = list(build.read_masks(image.masks).values())
    find_lungs(levels)
    mask = np.logical_or.reduce([2 * one.astype(np.int64) > int(one.max()) for one in levels])
    original = image.original_hw or pixels.shape[:2]
    # One side stays as it was, the other is stretched; large images are reduced.
    scale = max(have / want for have, want in zip(pixels.shape, original, strict=True))
    scale = min(scale, long_side / max(original))
    height, width = (round(side * scale) for side in original)
    if min(height, width) < SMALLEST:
        found = f"{height} x {width} pixels, expected at least {SMALLEST} on each side"
        raise Unusable("size_mismatch", found)
    if pixels.shape != (height, width):
        pixels = resize(pixels, height, width)[0]
    if mask.shape != (height, width):
        mask = resize(mask.astype(np.uint8) * LEVELS, height, width)[0] > LEVELS // 2
    return pixels, mask


def _simulate_chunk(
    options: LesionOptions, chunk: tuple[list[LungImage], int]
) -> list[dict[str, Any]]:
    made = []
    images, variants = chunk
    for image in images:
        try:
            made += _simulate(options, image, variants)
        except Unusable as why:
            told = {"reason": why.reason, "found": why.found}
            made.append({**told, "item": image.name, "where": image.where})
    return made


def _simulate(options: LesionOptions, image: LungImage, variants: int) -> list[dict[str, Any]]:
    pixels, mask = read_pair(image, options.long_side)
    lungs = find_lungs([mask.astype(np.uint8)])
    normal = options.is_normal(image.image_id)
    boxes = np.stack(image.boxes or (lungs.right, lungs.left)).tolist()
    known = {"patient": image.patient, "lungs": boxes, "where": image.where}
    made = []
    for variant in range(1 if normal else variants):
        image_id = f"{image.image_id}-{variant}"
        drawn = generator(options.seed, image_id, "findings")
        presences = [] if normal else draw_presences(drawn, only=options.findings or CLASSES)
        how = pixels, mask, options.seed, image_id, presences, options.contrast
        courses: dict[str, list[float] | None] = {image_id: None}
        if options.studies > 1:
            rng = generator(options.seed, image_id, "courses")
            sizes = enumerate(draw_courses(rng, presences, options.studies))
            courses = {f"{image_id}-{study}": of for study, of in sizes}
        for before, (name, of) in zip(["", *courses], courses.items(), strict=False):
            one = simulate_lesions(*how, of)
            entry = save_image(one, options.out, name, options.image_format)
            rows = _rows(one, name, image)
            made.append({**entry, **known, "follows": before, "lesions": rows})
    return made


def _as_lungs(image: ImageAnnotation, entry: Mapping[str, Any]) -> tuple[LungImage, build.Examined]:
    """Describes an image as one of `lungs`, without saying if it is normal."""
    assert image.image_hw is not None
    height, width = image.image_hw
    boxes = (np.array(entry["lungs"]) * [width, height, width, height]).round(2)
    path, patient, where = to_path(image.image_path), entry["patient"], entry["where"]
    lungs = LungImage(image.image_id, path.name, path, {}, patient, where=where)
    return lungs, build.Examined(image.image_path, image.image_hw, boxes, ())


def _rows(one: LesionImage, image_id: str, image: LungImage) -> list[dict[str, Any]]:
    return [
        {
            "image_id": image_id,
            "source": image.name,
            "patient": image.patient,
            "label": lesion.label,
            "kind": lesion.kind,
            **dict(zip(BOX, lesion.box, strict=True)),
            "contrast_to_noise": ""
            if (ratio := lesion.contrast_to_noise) is None
            else round(ratio, 3),
        }
        for lesion in one.lesions
    ]
