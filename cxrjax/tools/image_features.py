"""Shows which radiographs look alike to a model: its vision tower's features in two dimensions.

    python -m cxrjax.tools.image_features --workdir=DIR | --checkpoint=DIR --records=FILE --out=FILE

Each image's features are averaged over its patches; FILE has of each image its first two principal
components: {"method": "PCA", "explained": [share of the variance, share], "images": {image_id: [x,
y]}}. `report` draws what stands in embedding.json of its work directory, coloured by kind of error;
so it draws any other method's map of this form too.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from cxrjax import cli
from cxrjax.cli import command_parser
from cxrjax.errors import UserError
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.progress import progress_bar


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Flags of the command; leaves with code 2 where they are unusable."""
    parser = command_parser("tools.image_features", __doc__)
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--workdir", type=Path, help="a training run: its best checkpoint")
    model.add_argument("--checkpoint", type=Path, help="a base model's directory")
    add = parser.add_argument
    add("--step", type=int, help="of a training run, another checkpoint than the best")
    add("--records", type=Path, required=True, metavar="FILE", help="records or questions")
    add("--image_root", type=Path, help="what image_path is relative to (data/README.md)")
    add("--images_per_batch", type=int, default=8, help="at a time (default 8)")
    add("--out", type=Path, required=True, metavar="FILE", help="JSON to write")
    flags = parser.parse_args(argv)
    if flags.images_per_batch < 1:
        parser.error("--images_per_batch must be at least 1")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the map and prints how much of the variance it shows."""
    flags = parse_arguments(argv)
    # After the flags: --help stays quick.
    from flax import nnx

    from cxrjax.input_pipeline.examples import load_image
    from cxrjax.runners.own_model import open_model
    from cxrjax.training.workdir import write_json

    opened = open_model(flags.workdir or flags.checkpoint, flags.step)
    model = opened.generator.model
    if model.vision is None:
        raise UserError(f"{flags.workdir or flags.checkpoint}: a model without a vision tower")

    @nnx.jit
    def features_of(model: Any, images: Any) -> Any:
        return model.image_features(images).astype("float32").mean(axis=1)

    records = RecordSource(flags.records, flags.image_root)
    images = {one.image_id: one for _, one in records.records()}
    by_grid: dict[tuple[int, int], list[str]] = {}
    for name, one in images.items():
        by_grid.setdefault(opened.examples.on_grid_of(one.image_hw).image_hw, []).append(name)
    size = flags.images_per_batch
    batches = [
        names[start : start + size]
        for names in by_grid.values()
        for start in range(0, len(names), size)
    ]
    made: dict[str, Float[np.ndarray, " n"]] = {}
    for names in progress_bar(batches, desc="features of images", unit="batch"):
        part = [
            load_image(
                records.image_of(images[name]), opened.examples, image_hw=images[name].image_hw
            )
            for name in names
        ]
        filled = np.stack(part + part[:1] * (size - len(part)))  # one shape a grid, one program
        made |= dict(zip(names, np.asarray(features_of(model, filled)), strict=False))
    found = embedding({name: made[name] for name in images})
    write_json(flags.out, found)
    shares = " and ".join(f"{100 * share:.0f} %" for share in found["explained"])
    print(f"{flags.out}: {len(images):,} images; two components with {shares} of the variance")


def embedding(features: Mapping[str, Float[np.ndarray, " n"]]) -> dict[str, Any]:
    """The first two principal components of some images' features.

    The sign of a component is one of two: the image that lies furthest out is on the positive side.

    Raises:
        UserError: of fewer than three images.
    """
    if len(features) < 3:
        raise UserError(f"features of {len(features)} images: expected three at least")
    values = np.stack([*features.values()]).astype(np.float64)
    left, singular, _ = np.linalg.svd(values - values.mean(axis=0), full_matrices=False)
    places = left[:, :2] * singular[:2]
    furthest = np.abs(places).argmax(axis=0)
    places *= np.where(places[furthest, [0, 1]] < 0, -1, 1)
    total = float((singular**2).sum())
    return {
        "method": "PCA",
        "explained": [float(one**2) / total if total else 0.0 for one in singular[:2]],
        "images": {
            name: [round(float(x), 5), round(float(y), 5)]
            for name, (x, y) in zip(features, places, strict=True)
        },
    }


if __name__ == "__main__":
    cli.run(main)
