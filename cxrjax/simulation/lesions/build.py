"""Real normal radiographs with simulated lesions and VinDr-CXR-VQA questions, on disk.

images/, boxes.csv      pictures, and what three simulated readers marked on them
lesions.csv             each lesion: form, box, contrast-to-noise ratio, radiograph it lies in
records/, questions/    as of phantoms; splits by patient, those that `lungs` has

What comes out depends on each radiograph, its name and the seed: not on the other radiographs, nor
on the number of processes. An interrupted build continues where it stopped.
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
from cxrjax.files import file_sha256, hash_lines
from cxrjax.images.files import ImageError
from cxrjax.images.geometry import resize
from cxrjax.papers.lungs import build
from cxrjax.papers.lungs.masks import find_lungs
from cxrjax.papers.lungs.native import LungImage, is_published, read_folder
from cxrjax.papers.vindr_cxr_vqa.annotation import ImageAnnotation
from cxrjax.records import QARecord, what_is_made
from cxrjax.records_io.builder import SourceOptions
from cxrjax.records_io.quality import QualityLog, Unusable
from cxrjax.simulation.lesions.anatomy import Mask
from cxrjax.simulation.lesions.compose import LEVELS, Graft, generator, render_graft
from cxrjax.simulation.phantoms import findings
from cxrjax.simulation.phantoms.vqa import CHUNK, PictureBuilder, save_picture

LESIONS = "lesions.csv"
BOX = ("x_min", "y_min", "x_max", "y_max")
SMALLEST = 128
# In each record's `quality`: what it is.
SYNTHETIC = what_is_made(["grafts"])


@dataclasses.dataclass(frozen=True)
class GraftOptions(SourceOptions):
    """Flags of simulated lesions in real radiographs; `source` is laid out as for `lungs`.

    Attributes:
        variants: pictures of each training radiograph, with other lesions each; of a held-out one
            there is one.
        normal_percent: share of radiographs that stay as they are, once each.
        contrast: multiplies the contrast-to-noise ratio of every lesion.
        long_side: larger radiographs are reduced to this.
        image_format: png (grey, lossless) or jpg (grey, quality 95).
        ask_lungs: also ask of each picture where its lungs are, as `lungs` does.
    """

    variants: int = 1
    normal_percent: int = 20
    contrast: float = 1.0
    long_side: int = 512
    image_format: Literal["png", "jpg"] = "png"
    ask_lungs: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variants < 1:
            raise UserError(f"--variants={self.variants}: expected at least 1")
        if not 0 <= self.normal_percent <= 100:
            raise UserError(f"--normal_percent={self.normal_percent}: expected 0 to 100")
        if not 0 < self.contrast < 100:
            raise UserError(f"--contrast={self.contrast}: expected a positive number below 100")
        if self.long_side < SMALLEST:
            raise UserError(f"--long_side={self.long_side}: expected at least {SMALLEST} pixels")

    def is_normal(self, image_id: str) -> bool:
        """Says whether a radiograph stays as it is."""
        return generator(self.seed, image_id, "normal").random() * 100 < self.normal_percent


class GraftBuilder(PictureBuilder[GraftOptions]):
    """Simulates lesions into the normal radiographs of a folder with lung masks."""

    dataset = "grafts"
    options_class = GraftOptions
    leaves = f"images/, boxes.csv, {LESIONS}, {PictureBuilder.leaves}"

    def chunks(self) -> Mapping[str, tuple[str, Any]]:
        self.records_are = "grafts" if is_published(self.options.source) else "own_grafts"
        self._patients: dict[str, str] = {}
        self._lesions: list[dict[str, Any]] = []
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
                (images[start : start + CHUNK], self.options.variants if split == "train" else 1),
            )
            for split, images in of_split.items()
            for start in range(0, len(images), CHUNK)
        }

    def work(self) -> Callable[[Any], list[dict[str, Any]]]:
        return functools.partial(_graft_chunk, self.options)

    def fingerprint(self) -> str:
        options = dataclasses.replace(self.options, out=Path(), source=Path(), processes=1)
        files = [path for one in self._read for path in (one.image, *one.masks.values())]
        marks = [f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files]
        parts = (Path(__file__).parent, Path(findings.__file__).parent)
        code = [path for part in parts for path in sorted(part.glob("*.*"))]
        return hash_lines([repr(options), *marks, *map(file_sha256, code)])

    def take(self, entry: dict[str, Any]) -> ImageAnnotation:
        self._patients[entry["image_id"]] = entry["patient"]
        self._lesions += entry["lesions"]
        image = super().take(entry)
        if self.options.ask_lungs:
            self._lungs[image.image_id] = _as_lungs(image, entry)
        return image

    def complete(self, records: Iterable[QARecord]) -> Iterable[QARecord]:
        for image_id, of_image in itertools.groupby(records, lambda record: record.image_id):
            asked = list(of_image)
            if self.options.ask_lungs:
                picture, examined = self._lungs[image_id]
                split, seed = asked[0].split, self.options.seed
                asked += build.lung_records(picture, examined, split, self.records_are, seed)
            known = {
                "patient_id": self._patients[image_id],
                "quality": {"synthetic": SYNTHETIC},
            }
            yield from (record.model_copy(update=known) for record in asked)

    def write_files(self, comparison: Mapping[str, Any]) -> None:
        columns = ["image_id", "source", "patient", "label", "kind", *BOX, "contrast_to_noise"]
        with open(self.options.out / LESIONS, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self._lesions)

    def values(self) -> dict[str, float | None]:
        return super().values() | {"patients": len({*self._patients.values()})}

    def describe(self) -> dict[str, Any]:
        names = ("seed", "variants", "normal_percent", "contrast", "long_side", "image_format")
        return {
            "made": SYNTHETIC,
            **{name: getattr(self.options, name) for name in names},
            "split_percents": build.SPLIT_PERCENTS,
            **super().describe(),
        }


def normal_images(source: Path, quality: QualityLog) -> Iterable[LungImage]:
    """The radiographs of a folder that have a mask and of which nothing but normal is known.

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
    """The radiograph in its original proportions, and the mask of its lungs at the same size.

    Raises:
        Unusable: one cannot be read, is no radiograph or no mask of two lungs.
    """
    try:
        pixels = build.read_radiograph(image.image)
    except ImageError as error:
        raise Unusable("unreadable_image", str(error)) from None
    levels = list(build.read_masks(image.masks).values())
    find_lungs(levels)
    mask = np.logical_or.reduce([2 * one.astype(np.int64) > int(one.max()) for one in levels])
    original = image.original_hw or pixels.shape[:2]
    # One side stays as it was, the other is stretched; what is too large is reduced.
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


def _graft_chunk(options: GraftOptions, chunk: tuple[list[LungImage], int]) -> list[dict[str, Any]]:
    made = []
    images, variants = chunk
    for image in images:
        try:
            made += _graft_image(options, image, variants)
        except Unusable as why:
            told = {"reason": why.reason, "found": why.found}
            made.append({**told, "item": image.name, "where": image.where})
    return made


def _graft_image(options: GraftOptions, image: LungImage, variants: int) -> list[dict[str, Any]]:
    pixels, mask = read_pair(image, options.long_side)
    lungs = find_lungs([mask.astype(np.uint8)])
    normal = options.is_normal(image.image_id)
    made = []
    for variant in range(1 if normal else variants):
        image_id = f"{image.image_id}-{variant}"
        graft = render_graft(
            pixels, mask, options.seed, image_id, [] if normal else None, options.contrast
        )
        entry = save_picture(graft, options.out, image_id, options.image_format)
        entry |= {"patient": image.patient, "lesions": _rows(graft, image_id, image)}
        boxes = np.stack(image.boxes or (lungs.right, lungs.left))
        entry |= {"lungs": boxes.tolist(), "where": image.where}
        made.append(entry)
    return made


def _as_lungs(image: ImageAnnotation, entry: Mapping[str, Any]) -> tuple[LungImage, build.Examined]:
    """A picture as one of `lungs`, of which nobody says whether it is normal."""
    assert image.image_hw is not None
    height, width = image.image_hw
    boxes = (np.array(entry["lungs"]) * [width, height, width, height]).round(2)
    path, patient, where = Path(image.image_path), entry["patient"], entry["where"]
    picture = LungImage(image.image_id, path.name, path, {}, patient, where=where)
    return picture, build.Examined(image.image_path, image.image_hw, boxes, ())


def _rows(graft: Graft, image_id: str, image: LungImage) -> list[dict[str, Any]]:
    return [
        {
            "image_id": image_id,
            "source": image.name,
            "patient": image.patient,
            "label": lesion.label,
            "kind": lesion.kind,
            **dict(zip(BOX, lesion.box, strict=True)),
            "contrast_to_noise": round(lesion.contrast_to_noise, 3)
            if lesion.contrast_to_noise is not None
            else "",
        }
        for lesion in graft.lesions
    ]
