"""Writes the lung masks of an export of V7's platform as a plain folder of PNGs.

    python -m bench.v7_masks --annotations=DIR --out=DIR

--annotations is one of the exports in which V7's chest X-ray annotations are published:

    Darwin JSON        NAME.json of each image, version 1.0 or 2.0
    COCO               one JSON of all images, polygons or uncompressed run lengths

--out receives masks/NAME.png, a level for each of two lungs, so that lungs that touch stay apart,
and lungs.csv (file, width, height, v7_mask). Beside images/ it is a source of `--dataset=lungs`.
Exports of masks name no images and are not read.
What has class Ignore marks no lung. An annotation without lungs (V7 has none on lateral views) gets
no mask; what cannot be read is rejected, counted and named. `--class_name` is the class that marks
lungs.
"""

import argparse
import csv
import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from cxrjax import cli
from cxrjax.cli import command_parser
from cxrjax.errors import UserError
from cxrjax.files import read_json_object, writing
from cxrjax.paths import in_path, out_path
from cxrjax.records_io.quality import Unusable, usable_name

_MOST_PIXELS = 100_000_000
_MOST_SHOWN = 5

Mask = UInt8[np.ndarray, "h w"]


@dataclasses.dataclass(frozen=True)
class Annotated:
    """Annotation of one image."""

    name: str  # of the mask to write, without suffix; the image's if the export has it
    number: str  # V7's, or the name
    hw: tuple[int, int]  # height and width of the image
    # Functions that each render a part marked as lung: 0 and 1, [h, w].
    lungs: Sequence[Callable[[], Mask]]


def read_export(folder: Path, class_name: str) -> Iterator[tuple[str, Annotated | Unusable]]:
    """Files of an export, each with what is marked or why it cannot be read.

    Raises:
        UserError: the folder holds no export that is known.
    """
    found = sorted(path for path in folder.rglob("*.json") if path.name[0] != ".")
    if not found:
        raise UserError(
            f"{folder}: no *.json in it; expected an export of V7's platform "
            "(python -m bench.v7_masks --help)"
        )
    for path in found:
        name = path.relative_to(folder).as_posix()
        try:
            content = read_json_object(path)
        except UserError as error:
            yield name, Unusable("invalid_record", str(error))
            continue
        if isinstance(content.get("images"), list):
            yield from _coco(name, content, class_name)
        else:
            yield name, _tried(functools.partial(_darwin, content, class_name))


def _tried(read: Callable[[], Annotated]) -> Annotated | Unusable:
    try:
        return read()
    except Unusable as why:
        return why
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        return Unusable("invalid_record", f"not as V7 exports it ({type(error).__name__}: {error})")


def _size(height: Any, width: Any) -> tuple[int, int]:
    if type(height) is not int or type(width) is not int or min(height, width) < 1:
        raise Unusable("bad_size", f"height {height!r}, width {width!r}; expected pixels")
    if height * width > _MOST_PIXELS:
        raise Unusable("bad_size", f"{height} x {width} pixels; expected at most {_MOST_PIXELS:,}")
    return height, width


def _darwin(content: Mapping[str, Any], class_name: str) -> Annotated:
    if "item" in content:  # version 2.0
        slot = content["item"]["slots"][0]
        image = {"filename": content["item"]["name"], **slot}
    else:
        image = content["image"]
    name = str(image.get("original_filename") or image["filename"])
    hw = _size(image["height"], image["width"])
    lungs = []
    for one in content["annotations"]:
        if one["name"] != class_name:
            continue
        shape = one.get("polygon") or one.get("complex_polygon")
        if not shape:
            raise Unusable("invalid_record", f"{class_name} without a polygon")
        paths = shape["paths"] if "paths" in shape else shape["path"]
        paths = paths if isinstance(paths[0], list) else [paths]
        points = [[(float(point["x"]), float(point["y"])) for point in path] for path in paths]
        lungs.append(_polygons(points, hw))
    return Annotated(_stem(name), str(image.get("seq") or _stem(name)), hw, lungs)


def _coco(
    where: str, content: Mapping[str, Any], class_name: str
) -> Iterator[tuple[str, Annotated | Unusable]]:
    names = {one["id"]: one["name"] for one in content.get("categories", [])}
    if class_name not in names.values():
        known = ", ".join(sorted(map(str, names.values())))
        raise UserError(f"{where}: no category {class_name!r}; expected one of {known}")
    of_image: dict[Any, list[Mapping[str, Any]]] = {}
    for one in content.get("annotations", []):
        if names.get(one.get("category_id")) == class_name:
            of_image.setdefault(one.get("image_id"), []).append(one)
    for place, image in enumerate(content["images"]):

        def read(image: Mapping[str, Any] = image) -> Annotated:
            hw = _size(image["height"], image["width"])
            parts = [_segment(one["segmentation"], hw) for one in of_image.get(image["id"], [])]
            return Annotated(_stem(str(image["file_name"])), str(image["id"]), hw, parts)

        yield f"{where}: image {place}", _tried(read)


def _segment(segmentation: Any, hw: tuple[int, int]) -> Callable[[], Mask]:
    if isinstance(segmentation, list):
        return _polygons([[*zip(s[::2], s[1::2], strict=True)] for s in segmentation], hw)
    counts = segmentation["counts"]
    if not isinstance(counts, list):
        raise Unusable("invalid_record", "compressed run lengths; expected a list of counts")
    runs = np.array(counts, np.int64)
    # Its `size` is not read: V7 writes width and height in it, COCO height and width.
    if (runs < 0).any() or runs.sum() != hw[0] * hw[1]:
        raise Unusable("mask_size", f"run lengths of {runs.sum()} pixels on {hw[0]} x {hw[1]}")

    def draw() -> Mask:
        levels = np.repeat(np.arange(len(runs)) % 2, runs).astype(np.uint8)
        return np.ascontiguousarray(levels.reshape(hw[1], hw[0]).T)

    return draw


def _polygons(
    paths: Sequence[Sequence[tuple[float, float]]], hw: tuple[int, int]
) -> Callable[[], Mask]:
    """A part with holes: what lies within an odd number of paths. A pixel's centre is at n."""
    if not paths or any(len(path) < 3 for path in paths):
        raise Unusable("invalid_record", "a polygon of fewer than three points")
    if not all(np.isfinite(np.array(path, np.float64)).all() for path in paths):
        raise Unusable("invalid_record", "a polygon's point is no pair of numbers")

    def draw() -> Mask:
        from PIL import Image, ImageDraw

        whole = np.zeros(hw, np.uint8)
        for path in paths:
            one = Image.new("1", hw[::-1])
            ImageDraw.Draw(one).polygon([(x, y) for x, y in path], fill=1, outline=1)
            whole ^= np.asarray(one, np.uint8)
        return whole

    return draw


def _stem(name: str) -> str:
    """The image's name without folders and ending."""
    plain = name.replace("\\", "/").rpartition("/")[2]
    return usable_name(plain.rpartition(".")[0] or plain)


def levels_of(annotated: Annotated) -> Mask:
    """Two parts get a level each, another number of parts one level."""
    parts = [draw() for draw in annotated.lungs]
    two = len(parts) == 2
    mask = np.zeros(annotated.hw, np.uint8)
    for place, part in enumerate(parts):
        mask[part > 0] = 127 * (place + 1) if two else 255
    return mask


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Flags of the command; leaves with code 2 where they are unusable."""
    parser = command_parser("v7_masks", __doc__)
    parser.prog = "python -m bench.v7_masks"
    add = parser.add_argument
    add("--annotations", type=in_path, required=True, metavar="DIR", help="an export, unpacked")
    add(
        "--out", type=out_path, required=True, metavar="DIR", help="folder for lungs.csv and masks/"
    )
    add("--class_name", default="Lung", metavar="NAME", help="what marks a lung (default Lung)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the masks and prints how many there are and what was rejected."""
    flags = parse_arguments(argv)
    from PIL import Image

    refused: list[tuple[str, Unusable]] = []
    written: dict[str, str] = {}
    without = 0
    with writing(flags.out):
        (flags.out / "masks").mkdir(parents=True, exist_ok=True)
        with (flags.out / "lungs.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["file", "width", "height", "v7_mask"])
            for where, found in read_export(flags.annotations, flags.class_name):
                if isinstance(found, Unusable):
                    refused.append((where, found))
                elif not found.lungs:
                    without += 1
                elif found.name in written:
                    said = f"{found.name!r} is named in {written[found.name]} already"
                    refused.append((where, Unusable("duplicate_id", said)))
                else:
                    written[found.name] = where
                    mask = Image.fromarray(levels_of(found))
                    mask.save(flags.out / "masks" / f"{found.name}.png")
                    height, width = found.hw
                    writer.writerow([found.name, width, height, found.number])
    for where, why in refused[:_MOST_SHOWN]:
        print(f"{where}: {why.reason}: {why.found}")
    counts = Counter(why.reason for _, why in refused)
    told = "".join(f", {n:,} {reason}" for reason, n in sorted(counts.items()))
    print(f"{flags.out}: {len(written):,} masks, {without:,} annotations without lungs{told}")
    if not written:
        raise UserError(f"{flags.annotations}: no annotation of class {flags.class_name!r} is left")


if __name__ == "__main__":
    cli.run(main)
