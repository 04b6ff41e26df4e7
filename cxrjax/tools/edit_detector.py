"""Tells how well a small detector finds simulated lesions, with and without their low frequencies.

    python -m cxrjax.tools.edit_detector --source=FOLDER --out=FILE

Lesions are simulated into the normal radiographs of FOLDER (data/grafts/README.md). From within
what each changed comes one patch of 32 x 32 pixels, and the same place of the untouched radiograph:
a small convolutional network learns to tell them apart on the patients of training and validation
and is asked about those of test. `all`: patches as they are, where a visible lesion should be
found. `high`: what a Gaussian of 2 pixels leaves over, in which only traces of editing and a
lesion's own fine structure can be found. JSON: areas under the ROC curve (0.5: found by chance),
over all lesions and by class.
"""

import argparse
import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from cxrjax import cli
from cxrjax.cli import command_parser
from cxrjax.errors import UserError
from cxrjax.files import replace_text
from cxrjax.progress import progress_bar
from cxrjax.training.workdir import storage_errors

SIDE = 32
# Three passes of 2 pixels halve waves of 7 pixels and leave 4 % of those of 14.
HIGH_PASS, _PASSES = 2.0, 3
# Least difference in grey levels that counts as changed.
_CHANGED = 2
_BATCH = 128
_LEARNING_RATE = 2e-3

Patches = Float[np.ndarray, "n 32 32"]


@dataclasses.dataclass
class PatchPairs:
    """Patches with a lesion and without, one below the other, and the class of the lesion."""

    edited: list[np.ndarray] = dataclasses.field(default_factory=list)
    plain: list[np.ndarray] = dataclasses.field(default_factory=list)
    labels: list[str] = dataclasses.field(default_factory=list)

    def arrays(self, band: int) -> tuple[Patches, Float[np.ndarray, " n"]]:
        """Patches of a band (0 all, 1 high) and 1 where there is a lesion."""
        both = np.stack([*self.edited, *self.plain])[:, band]
        truth = np.repeat(np.array([1, 0], np.float32), len(self.labels))
        return both, truth


def bands(image: Float[np.ndarray, "h w"]) -> Float[np.ndarray, "2 h w"]:
    """The picture less its mean level, and what is left of it above the low frequencies."""
    from scipy import ndimage

    high = image
    for _ in range(_PASSES):
        high = high - ndimage.gaussian_filter(high, HIGH_PASS, mode="nearest")
    return np.stack([image - 0.5, high * 12])


def cut_pairs(
    pairs: PatchPairs,
    plain: np.ndarray,
    edited: np.ndarray,
    lesions: Sequence[Any],
    rng: np.random.Generator,
) -> None:
    """Adds a pair of patches for each lesion, about a pixel that it changed.

    Args:
        plain, edited: uint8 [h, w].
        lesions: with `label` and `box`.
    """
    height, width = plain.shape
    changed = np.abs(edited.astype(int) - plain) >= _CHANGED
    with_bands = [bands(image.astype(np.float32) / 255) for image in (edited, plain)]
    for lesion in lesions:
        x0, y0, x1, y1 = lesion.box
        ys, xs = np.nonzero(changed[y0:y1, x0:x1])
        if len(ys) == 0 or min(height, width) < SIDE:
            continue
        k = int(rng.integers(len(ys)))
        top = int(np.clip(y0 + ys[k] - SIDE // 2, 0, height - SIDE))
        left = int(np.clip(x0 + xs[k] - SIDE // 2, 0, width - SIDE))
        here = np.s_[:, top : top + SIDE, left : left + SIDE]
        pairs.edited.append(with_bands[0][here])
        pairs.plain.append(with_bands[1][here])
        pairs.labels.append(lesion.label)


def train_detector(patches: Patches, truth: Float[np.ndarray, " n"], steps: int, seed: int) -> Any:
    """A function from patches to scores, trained with flips by Adam."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx

    class Detector(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            widths = (1, 16, 32, 48)
            self.convolutions = nnx.List(
                [nnx.Conv(a, b, (3, 3), rngs=rngs) for a, b in itertools.pairwise(widths)]
            )
            self.norms = nnx.List([nnx.GroupNorm(b, num_groups=8, rngs=rngs) for b in widths[1:]])
            self.head = nnx.Linear(2 * widths[-1], 1, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            x = x[..., None]
            for k, (convolution, norm) in enumerate(
                zip(self.convolutions, self.norms, strict=True)
            ):
                x = nnx.relu(norm(convolution(x)))
                if k < 2:
                    x = nnx.avg_pool(x, (2, 2), (2, 2))
            pooled = jnp.concatenate([x.mean(axis=(1, 2)), x.max(axis=(1, 2))], axis=-1)
            return self.head(pooled)[:, 0]

    model = Detector(nnx.Rngs(seed))
    optimizer = nnx.Optimizer(
        model,
        optax.adamw(optax.cosine_decay_schedule(_LEARNING_RATE, steps), weight_decay=1e-3),
        wrt=nnx.Param,
    )

    @nnx.jit
    def step(model: Any, optimizer: Any, x: jax.Array, y: jax.Array) -> None:
        def loss(model: Any) -> jax.Array:
            return optax.sigmoid_binary_cross_entropy(model(x), y).mean()

        optimizer.update(model, nnx.grad(loss)(model))

    rng = np.random.default_rng(seed)
    pairs = len(truth) // 2
    for _ in range(steps):
        # Both of a pair in one batch: what differs is the lesion alone.
        chosen = rng.integers(pairs, size=_BATCH // 2)
        rows = np.concatenate([chosen, chosen + pairs])
        x = patches[rows]
        if rng.random() < 0.5:
            x = x[:, :, ::-1]
        if rng.random() < 0.5:
            x = x[:, ::-1]
        step(model, optimizer, jnp.asarray(x), jnp.asarray(truth[rows]))
    scores = nnx.jit(lambda model, x: model(x))
    return lambda x: np.concatenate(
        [np.asarray(scores(model, jnp.asarray(x[k : k + 512]))) for k in range(0, len(x), 512)]
    )


def area_under_roc(positive: np.ndarray, negative: np.ndarray) -> float:
    """The probability that a positive scores higher than a negative, ties counted half."""
    from scipy import stats

    ranks = stats.rankdata(np.concatenate([positive, negative]))[: len(positive)]
    wins = ranks.sum() - len(positive) * (len(positive) + 1) / 2
    return float(wins / (len(positive) * len(negative)))


def detect(train: PatchPairs, test: PatchPairs, steps: int, seed: int) -> dict[str, Any]:
    """Areas under the curve on `test`, of detectors trained on `train`."""
    found: dict[str, Any] = {"patches": 2 * len(test.labels)}
    for band, name in enumerate(("all", "high")):
        detector = train_detector(*train.arrays(band), steps, seed)
        scores = detector(test.arrays(band)[0])
        edited, plain = scores[: len(test.labels)], scores[len(test.labels) :]
        of_class = {}
        for label in sorted({*test.labels}):
            here = np.array([one == label for one in test.labels])
            of_class[label] = round(area_under_roc(edited[here], plain[here]), 3)
        found[name] = {"auc": round(area_under_roc(edited, plain), 3), "by_class": of_class}
    return found


def collect(flags: argparse.Namespace) -> tuple[PatchPairs, PatchPairs]:
    """PatchPairs of patches of the patients of training and validation, and of those of test."""
    from cxrjax.grafts.build import SPLIT_PERCENTS, normal_images, read_pair
    from cxrjax.grafts.compose import generator, render_graft
    from cxrjax.records_io.quality import QualityLog, Unusable
    from cxrjax.records_io.split import split_by_hash

    train, test = PatchPairs(), PatchPairs()
    images = list(normal_images(flags.source, QualityLog()))
    order = generator(flags.seed, "edit_detector", "normal").permutation(len(images))
    for k in progress_bar(order[: flags.images], "looking for edits", unit="image"):
        image = images[k]
        try:
            plain, mask = read_pair(image, flags.long_side)
        except Unusable:
            continue
        here = split_by_hash(image.patient, flags.seed, SPLIT_PERCENTS) == "test"
        for variant in range(flags.variants):
            key = f"{image.image_id}-{variant}"
            graft = render_graft(plain, mask, flags.seed, key, contrast=flags.contrast)
            rng = generator(flags.seed, key, "normal")
            cut_pairs(test if here else train, plain, graft.image, graft.lesions, rng)
    if not (train.labels and test.labels):
        raise UserError(
            f"{flags.source}: {len(train.labels)} patches to learn from and {len(test.labels)} to "
            "be asked about; expected some of each: give more --images"
        )
    return train, test


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the areas under the curve and prints them."""
    parser = command_parser("tools.edit_detector", __doc__)
    add = parser.add_argument
    add("--source", type=Path, required=True, metavar="FOLDER", help="as of build")
    add("--out", type=Path, required=True, metavar="FILE", help="JSON to write")
    add("--images", type=int, default=400, help="radiographs (default 400)")
    add("--variants", type=int, default=2, help="pictures of each (default 2)")
    add("--steps", type=int, default=300, help="of training (default 300)")
    add("--contrast", type=float, default=1.0, help="as of build (default 1)")
    add("--long_side", type=int, default=512, help="as of build (default 512)")
    add("--seed", type=int, default=0)
    flags = parser.parse_args(argv)
    if min(flags.images, flags.variants, flags.steps) < 1 or not flags.contrast > 0:
        parser.error("--images, --variants and --steps must be at least 1, --contrast above 0")
    train, test = collect(flags)
    found = detect(train, test, flags.steps, flags.seed)
    text = json.dumps(found, indent=2) + "\n"
    with storage_errors(str(flags.out)):
        replace_text(flags.out, text)
    print(text, end="")


if __name__ == "__main__":
    cli.run(main)
