"""Radiographs with lung masks to a folder of records: where each lung is, and whether it is normal.

records/, questions/    splits by patient: the table's, or train 75 %, validation 10 %, test 15 %
images/                 images whose proportions were restored; the others stay where they are
samples.html            what was built, and examples of what was set aside
"""

import dataclasses
import functools
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from cxrjax.codecs import get_codec
from cxrjax.files import read_packaged, writing
from cxrjax.images.geometry import is_resize, resize
from cxrjax.papers.lungs.masks import find_lungs
from cxrjax.papers.lungs.native import TABLE, LungImage, is_published, read_folder
from cxrjax.paths import relative, to_path
from cxrjax.records import Answer, Provenance, QARecord
from cxrjax.records_io import workers
from cxrjax.records_io.builder import Builder, SourceOptions, describe_file
from cxrjax.records_io.quality import Unusable
from cxrjax.records_io.split import split_by_hash

SPLIT_PERCENTS = {"train": 75, "validation": 10, "test": 15}
# What a box of the table and one of a mask that was scaled down may differ by, of the image's side:
# tips of lungs vanish. Of 3,864 the largest difference is 1.8 %.
_MOST_APART = 0.03
# Mean difference between colour channels, in levels: JPEG leaves less of a grey image.
_MOST_COLOUR = 4
_JPEG_QUALITY = 95
_SQUEEZED = "no original proportions known: left as the file has them"
_SPECKS = "specks of a mask left out"


@dataclasses.dataclass(frozen=True)
class Examined:
    """Results for an image: boxes of the right and the left lung, in pixels of the original; None
    without a mask. `path`: of the image, relative to the build."""

    path: str
    image_hw: tuple[int, int]
    boxes: Float[np.ndarray, "2 4"] | None
    warnings: tuple[str, ...]


class LungsBuilder(Builder[SourceOptions]):
    """Reads a folder with images/, masks/ and perhaps lungs.csv."""

    dataset = "lungs"
    options_class = SourceOptions
    leaves = f"samples.html, images/, {Builder.leaves}"

    def read(self) -> dict[str, list[QARecord]]:
        source, out = self.options.source, self.options.out
        self._images: list[LungImage] = []
        for image in read_folder(source, self.quality):
            self._images.append(image)
        published: str = "lungs" if is_published(source) else "custom"
        records: dict[str, list[QARecord]] = {split: [] for split in SPLIT_PERCENTS}
        with writing(out), workers.pool(min(self.options.processes, len(self._images) or 1)) as go:
            (out / "images").mkdir(parents=True, exist_ok=True)
            found = go(functools.partial(_examine, out), self._images)
            for image, examined in zip(self._images, found, strict=True):
                if isinstance(examined, Unusable):
                    self.quality.set_aside(examined.reason, image.name, image.where, examined.found)
                    continue
                self.quality.warnings.update(examined.warnings)
                split = split_of(image, self.options.seed)
                records[split] += lung_records(image, examined, split, published, self.options.seed)
        if not any(records.values()):
            raise self.nothing_left("image", "; expected images/ and masks/ (data/lungs/README.md)")
        return records

    def values(self) -> dict[str, float | None]:
        return {**self.counts.values(), "patients": len({one.patient for one in self._images})}

    def write_files(self, comparison: Mapping[str, Any]) -> None:
        from cxrjax.papers.lungs.samples import write_samples

        write_samples(self.options.out, self._images, self.quality, self.options.seed)

    def describe(self) -> dict[str, Any]:
        table = self.options.source / TABLE
        return {
            "seed": self.options.seed,
            "split_percents": SPLIT_PERCENTS,
            **({"source": describe_file(table)} if table.is_file() else {}),
        }


def split_of(image: LungImage, seed: int) -> str:
    """The split that the table says, or one drawn for the patient."""
    return image.split or split_by_hash(image.patient, seed, SPLIT_PERCENTS)


def lung_records(
    image: LungImage, examined: Examined, split: str, dataset: str, seed: int
) -> Iterator[QARecord]:
    """Yields a radiograph's questions: on lungs if there are masks; on normality if known."""
    told = read_packaged(str(__package__), "questions.toml")
    for name, answer in _answers(image, examined, told):
        asked = told[name]["ask"]
        normal = name == "normal"
        draw = random.Random(f"{seed}/{image.image_id}/{name}")
        yield QARecord(
            dataset=dataset,
            split=split,
            patient_id=image.patient,
            image_id=image.image_id,
            image_path=examined.path,
            image_hw=examined.image_hw,
            question_id=f"{image.image_id}-{name}",
            question=draw.choice(asked) if split == "train" else asked[0],
            question_type="Yes_No" if normal else "Where",
            variables={"finding": told[name]["finding"]},
            answers=[answer],
            negative_kind="absent_class" if answer.polarity == "neg" else None,
            quality={"shortcuts": told["normal"]["shortcuts"]}
            if normal and dataset == "lungs"
            else {},
            provenance=Provenance(source_file=image.where),
        )


def _answers(
    image: LungImage, examined: Examined, told: Mapping[str, Any]
) -> Iterator[tuple[str, Answer]]:
    """(section of questions.toml, answer) of all that an image is asked."""
    if examined.boxes is not None:
        for name, boxes in (
            ("right_lung", examined.boxes[:1]),
            ("left_lung", examined.boxes[1:]),
            ("lungs", examined.boxes),
        ):
            yield (
                name,
                Answer(
                    text=told[name]["answer"].format(_written(boxes, examined.image_hw)),
                    labels=[told[name]["finding"]],
                    polarity="pos",
                    boxes_by_image={image.image_id: boxes.tolist()},
                ),
            )
    if image.finding:
        is_normal = image.finding == "normal"
        yield (
            "normal",
            Answer(
                text=told["normal"]["yes" if is_normal else "no"],
                labels=[told["normal"]["finding"]],
                polarity="pos" if is_normal else "neg",
            ),
        )


def _written(boxes: Float[np.ndarray, "n 4"], image_hw: tuple[int, int]) -> str:
    height, width = image_hw
    codec = get_codec("vindr_px")
    fractions = boxes / [width, height, width, height]
    return " and ".join(codec.encode(one[None], height, width) for one in fractions)


def _examine(out: Path, image: LungImage) -> Examined | Unusable:
    """Opens an image and its masks, and writes the image where its proportions are restored."""
    try:
        return _examined(out, image)
    except Unusable as why:
        return why


def _examined(out: Path, image: LungImage) -> Examined:
    from cxrjax.images.files import ImageError

    if image.lateral:
        raise Unusable("lateral_view", f"{image.name}: its name or view says lateral")
    if not image.masks and not image.finding:
        found = f"no mask for {image.name}; expected masks/ to have a file of its name"
        raise Unusable("missing_mask", found)
    try:
        pixels = read_radiograph(image.image)
    except ImageError as error:
        raise Unusable("unreadable_image", str(error)) from None
    file_hw = (pixels.shape[0], pixels.shape[1])
    image_hw = image.original_hw or file_hw
    boxes, warnings = None, []
    if image.masks:
        boxes, specks = _boxes(image, file_hw, image_hw)
        height, width = image_hw
        boxes = (boxes * [width, height, width, height]).round(2)
        warnings += [_SPECKS] * bool(specks)
    if image.original_hw is None and image.finding and not image.masks:
        warnings.append(_SQUEEZED)
    path = to_path(relative(image.image, out))
    if not is_resize(file_hw, image_hw):
        path = Path("images") / f"{image.image_id}.jpg"
        _write_restored(out / path, pixels, image_hw)
    return Examined(path.as_posix(), image_hw, boxes, tuple(warnings))


def read_radiograph(path: Path) -> UInt8[np.ndarray, "h w"]:
    """A grey image.

    Raises:
        ImageError: it cannot be decoded.
        Unusable: `colour_image`.
    """
    from cxrjax.images.decode import read_grey_or_rgb

    pixels = read_grey_or_rgb(path)
    if pixels.ndim == 2:
        return pixels
    spread = (pixels.max(axis=2) - pixels.min(axis=2)).mean()
    if spread > _MOST_COLOUR:
        found = f"{path.name} is in colour: channels differ by {spread:.0f} levels in the mean"
        raise Unusable("colour_image", f"{found}; expected a grey radiograph")
    return np.ascontiguousarray(pixels[..., 1])


def _boxes(
    image: LungImage, file_hw: tuple[int, int], image_hw: tuple[int, int]
) -> tuple[Float[np.ndarray, "2 4"], int]:
    """Boxes of the right and the left lung as fractions, and how many specks were left out."""
    levels = read_masks(image.masks)
    for one in levels.values():
        size = (one.shape[0], one.shape[1])
        if size != file_hw and not is_resize(size, image_hw):
            raise Unusable(
                "mask_size",
                f"the mask has {list(size)} (height, width), the image {list(file_hw)}"
                + f" of an original {list(image_hw)}" * (image_hw != file_hw),
            )
    if len({one.shape for one in levels.values()}) > 1:
        raise Unusable("mask_size", "the masks of the two lungs have different sizes")
    lungs = find_lungs(list(levels.values()))
    boxes = np.stack([lungs.right, lungs.left])
    _check_sides(levels, boxes)
    if image.boxes is not None:
        table = np.stack(image.boxes)
        if (apart := np.abs(table - boxes).max()) > _MOST_APART:
            found = f"boxes of the table and of the mask are {apart:.0%} of a side apart"
            raise Unusable("mask_mismatch", f"{found}; expected at most {_MOST_APART:.0%}")
        boxes = table
    return boxes, lungs.specks


def read_masks(masks: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """Stored levels of an image's masks, by side.

    Raises:
        Unusable: there are more than two, or one cannot be decoded or is in colour.
    """
    from cxrjax.images.decode import read_levels
    from cxrjax.images.files import ImageError

    if len(masks) > 2 or (len(masks) == 2 and "" in masks):
        found = f"{len(masks)} masks: {', '.join(sorted(path.name for path in masks.values()))}"
        raise Unusable("three_lungs", f"{found}; expected one of both lungs, or one of each")
    try:
        return {side: read_levels(path) for side, path in masks.items()}
    except ImageError as error:
        raise Unusable("not_a_mask", str(error)) from None


def _check_sides(levels: Mapping[str, np.ndarray], boxes: Float[np.ndarray, "2 4"]) -> None:
    """Refuses masks whose names call the lung on the image's left the left one."""
    middle = (boxes[0, 0] + boxes[1, 2]) / 2
    for side, mask in levels.items():
        columns = np.flatnonzero(mask.any(axis=0))
        at_left = (columns.mean() + 0.5) / mask.shape[1] < middle if side and len(columns) else None
        if at_left is not None and at_left == (side == "left"):
            raise Unusable(
                "lung_sides",
                f"the mask named {side} lies on the image's {'left' if at_left else 'right'}; the "
                "patient's right lung is on the image's left: name both the other way round, or "
                "turn the image",
            )


def _write_restored(
    path: Path, pixels: UInt8[np.ndarray, "h w"], image_hw: tuple[int, int]
) -> None:
    """Writes the image in the original's proportions: one side as it was, the other stretched."""
    from PIL import Image

    scale = max(have / want for have, want in zip(pixels.shape, image_hw, strict=True))
    height, width = (round(side * scale) for side in image_hw)
    restored, _ = resize(pixels, height, width)
    with path.open("wb") as file:
        Image.fromarray(restored).save(file, "JPEG", quality=_JPEG_QUALITY)
