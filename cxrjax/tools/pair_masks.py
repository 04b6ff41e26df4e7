"""Pairs lung masks named by number alone with images, and says how sure each pair is.

    python -m cxrjax.tools.pair_masks --images=DIR --masks=DIR --predicted=DIR --out=DIR

V7 numbers its masks in blocks, in each in the order of the images' names. A mask of a size that one
image alone has is an anchor. Between two anchors of a block the order holds, and masks are matched
with those that some model predicted from the images (`--predicted`, PNGs of the images' names):
the probability of a pair is that of all matchings in order that have it, weighed by the overlap
of its pairs. Those of more than one half are taken, so that none contradicts another. Every fifth
anchor is left out in turn and paired that way, which says how many of such pairs are right.

DIR becomes a source of `--dataset=lungs` beside its images/: lungs.csv (`pair_probability`: 1 of an
anchor) and masks/, named as the images.
"""

import argparse
import csv
import itertools
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from cxrjax import cli
from cxrjax.cli import command_parser
from cxrjax.errors import UserError
from cxrjax.paths import in_path, out_path

Size = tuple[int, int]
_SIDE = 64  # of the masks that are compared
# Of images for each mask between two anchors: with more, they are of two blocks.
_MOST_IMAGES = 6
_FEWEST = 10  # anchors, to learn from what overlap a pair has
_FOLDS = 5


def match_probabilities(weights: Float[np.ndarray, "n m"]) -> Float[np.ndarray, "n m"]:
    """Probability of each pair over all one-to-one matchings that keep the order of both.

    Args:
        weights: of each pair, log of how much likelier it is than none; -inf where it cannot be.
    """
    before = _log_sums(weights)
    after = _log_sums(weights[::-1, ::-1])[::-1, ::-1]
    return np.asarray(np.exp(before[:-1, :-1] + weights + after[1:, 1:] - before[-1, -1]))


def _log_sums(weights: Float[np.ndarray, "n m"]) -> Float[np.ndarray, "a b"]:
    """Log of the summed weights of all matchings of the first i with the first j."""
    rows, columns = weights.shape
    sums = np.zeros((rows + 1, columns + 1))
    for diagonal in range(2, rows + columns + 1):
        i = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        j = diagonal - i
        above, left, both = sums[i - 1, j], sums[i, j - 1], sums[i - 1, j - 1]
        parts = np.stack([above, left, both + weights[i - 1, j - 1], both])
        most = parts.max(axis=0)
        # Matchings with neither of the two are in `above` and in `left`.
        sums[i, j] = most + np.log(np.array([1, 1, 1, -1]) @ np.exp(parts - most))
    return sums


def pair_weights(
    overlaps: Float[np.ndarray, "n m"], anchors: dict[int, int]
) -> Float[np.ndarray, "n m"]:
    """Log likelihood ratios of pair against no pair, by two normal distributions of one variance.

    Raises:
        UserError: too few anchors to learn the distributions from.
    """
    if len(anchors) < _FEWEST:
        raise UserError(
            f"{len(anchors)} masks have a size that one image alone has; expected {_FEWEST} or "
            "more, which tell how well predicted masks fit: give --sizes of more originals"
        )
    rows, columns = list(anchors), list(anchors.values())
    own = overlaps[rows, columns]
    others = overlaps[rows][:, columns][~np.eye(len(rows), dtype=bool)]
    variance = max((own.var() + others.var()) / 2, 1e-6)
    middle = (own.mean() + others.mean()) / 2
    return np.asarray((own.mean() - others.mean()) / variance * (overlaps - middle))


def find_anchors(images: Sequence[Size | None], masks: Sequence[Size]) -> dict[int, int]:
    """Image -> mask of a size that one image and one mask alone have."""
    of_images, of_masks = Counter(images), Counter(masks)
    place = {size: n for n, size in enumerate(masks)}
    return {
        n: place[size]
        for n, size in enumerate(images)
        if size is not None and of_images[size] == of_masks[size] == 1
    }


def pair(
    overlaps: Float[np.ndarray, "n m"], fits: Bool[np.ndarray, "n m"], anchors: dict[int, int]
) -> dict[int, tuple[int, float]]:
    """Image -> its mask and the probability of the pair, for pairs of more than one half.

    Args:
        overlaps: IoU of each image's predicted mask with each mask.
        fits: whether the sizes let them be a pair.
        anchors: pairs that are known.
    """
    weights = np.where(fits, pair_weights(overlaps, anchors), -np.inf)
    # A size may be another image's by chance: its mask does not fit what was predicted.
    anchors = {image: mask for image, mask in anchors.items() if weights[image, mask] > 0}
    found = {image: (mask, 1.0) for image, mask in anchors.items()}
    ordered = sorted(anchors.items(), key=lambda one: one[1])
    for (image, mask), (next_image, next_mask) in itertools.pairwise(ordered):
        if not 0 < next_image - image <= _MOST_IMAGES * (next_mask - mask):
            continue  # another block begins between the two
        between = weights[image + 1 : next_image, mask + 1 : next_mask]
        if between.size:
            probabilities = match_probabilities(between)
            for i, j in zip(*np.nonzero(probabilities > 0.5), strict=True):
                found[image + 1 + int(i)] = (mask + 1 + int(j), float(probabilities[i, j]))
    return found


def check_anchors(
    overlaps: Float[np.ndarray, "n m"], fits: Bool[np.ndarray, "n m"], anchors: dict[int, int]
) -> tuple[int, int, float]:
    """Cross-validates the anchors: those that got a mask without their size, correct, expected."""
    given, right, expected = 0, 0, 0.0
    ordered = sorted(anchors.items())
    for fold in range(_FOLDS):
        held_out = dict(ordered[fold::_FOLDS])
        of_no_size = fits.copy()
        of_no_size[list(held_out)] = True
        found = pair(overlaps, of_no_size, {i: m for i, m in ordered if i not in held_out})
        for image in held_out.keys() & found.keys():
            mask, probability = found[image]
            given, right = given + 1, right + (mask == held_out[image])
            expected += probability
    return given, right, expected


def overlap(
    predicted: Sequence[Bool[np.ndarray, "s s"] | None], masks: Sequence[Bool[np.ndarray, "s s"]]
) -> Float[np.ndarray, "n m"]:
    """IoU of each image's predicted mask with each mask; 0 for an image without one."""
    nothing = np.zeros(_SIDE * _SIDE, np.float32)
    first = np.array([nothing if one is None else one.ravel() for one in predicted], np.float32)
    second = np.array([one.ravel() for one in masks], np.float32)
    shared = first @ second.T
    union = first.sum(axis=1)[:, None] + second.sum(axis=1) - shared
    return np.asarray(shared / np.maximum(union, 1), np.float64)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Flags of the command; leaves with code 2 where they are unusable."""
    parser = command_parser("tools.pair_masks", __doc__)
    add = parser.add_argument
    add("--images", type=in_path, required=True, metavar="DIR", help="images, or squeezed copies")
    add("--masks", type=in_path, required=True, metavar="DIR", help="NUMBER.png of original size")
    add("--predicted", type=in_path, required=True, metavar="DIR", help="NAME.png for NAME.jpeg")
    add("--sizes", type=in_path, metavar="FILE", help="CSV of file, width, height of originals")
    add(
        "--out", type=out_path, required=True, metavar="DIR", help="folder for lungs.csv and masks/"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the pairs and prints how many there are and how sure they are."""
    flags = parse_arguments(argv)
    from cxrjax.images.decode import image_size

    images, masks = _files(flags.images), _files(flags.masks)
    sizes = _sizes(flags.sizes) if flags.sizes else {path.name: image_size(path) for path in images}
    of_images = [sizes.get(path.name) for path in images]
    of_masks = [image_size(path) for path in masks]
    predictions = {path.stem: path for path in _files(flags.predicted)}
    predicted = [
        _small(predictions[one.stem]) if one.stem in predictions else None for one in images
    ]
    overlaps = overlap(predicted, [_small(path) for path in masks])
    fits = np.array([[size in (None, other) for other in of_masks] for size in of_images])
    anchors = find_anchors(of_images, of_masks)
    pairs = pair(overlaps, fits, anchors)
    (flags.out / "masks").mkdir(parents=True, exist_ok=True)
    with (flags.out / "lungs.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "width", "height", "v7_mask", "pair_probability"])
        for place, path in enumerate(images):
            if place not in pairs:
                writer.writerow([path.name, "", "", "", ""])
                continue
            mask, probability = pairs[place]
            height, width = of_masks[mask]
            writer.writerow([path.name, width, height, masks[mask].stem, f"{probability:.4f}"])
            shutil.copyfile(masks[mask], flags.out / "masks" / f"{path.stem}.png")
    aligned = [probability for place, (_, probability) in pairs.items() if place not in anchors]
    given, right, expected = check_anchors(overlaps, fits, anchors)
    print(
        f"{len(images)} images, {len(masks)} masks: {len(anchors)} pairs by a size of their own, "
        f"{len(aligned)} by order and overlap (expected right: {sum(aligned):.1f})\n"
        f"anchors left out in turn: {given} of {len(anchors)} got a mask, {right} the right one "
        f"(expected {expected:.1f})\n"
        f"written: {flags.out / 'lungs.csv'}, masks/"
    )


def _files(folder: Path) -> list[Path]:
    """Files in the order of their names; of numbers alone, in that of their values."""
    found = [path for path in folder.glob("*") if path.is_file() and path.name[0] != "."]
    if not found:
        raise UserError(f"{folder}: no files in it; expected a folder of pictures")
    stems = Counter(path.stem for path in found)
    if (twice := stems.most_common(1)[0])[1] > 1:
        raise UserError(f"{folder}: {twice[1]} files are named {twice[0]}; expected one of a name")
    return sorted(found, key=lambda one: (int(one.stem) if one.stem.isdecimal() else 0, one.name))


def _small(path: Path) -> Bool[np.ndarray, "s s"]:
    from cxrjax.images.decode import read_levels

    marked = read_levels(path) > 0
    rows, columns = (((np.arange(_SIDE) + 0.5) * side / _SIDE).astype(int) for side in marked.shape)
    return np.asarray(marked[np.ix_(rows, columns)])


def _sizes(table: Path) -> dict[str, Size]:
    from cxrjax.records_io.csv_table import parse_size, read_table
    from cxrjax.records_io.quality import Unusable

    sizes = {}
    for row in read_table(table, ["file", "width", "height"]):
        try:
            if row.fault is not None:
                raise row.fault
            if row.cells["width"]:
                sizes[row.cells["file"]] = parse_size(row.cells["height"], row.cells["width"])
        except Unusable as why:
            raise UserError(f"{row.where}: {why.found}") from None
    return sizes


if __name__ == "__main__":
    cli.run(main)
