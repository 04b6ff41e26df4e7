"""Reports where a model puts the coordinates of boxes, teacher-forced, unsorted.

The model reads the true answer and says at each coordinate what comes next; nothing is generated.
What is told is kept as the model says it: corners stay swapped, a stray bin stays where it is.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Bool, Float

from cxrjax import boxes
from cxrjax.distributed import hosts
from cxrjax.distributed.meshes import fetch_whole, host_rows, mesh_of_kernels, put_batch
from cxrjax.input_pipeline.batch import Batch, LoadedBatch
from cxrjax.input_pipeline.coordinates import BoxRoute, resolve_box_route
from cxrjax.input_pipeline.examples import ExampleConfig
from cxrjax.input_pipeline.loader import eval_loader
from cxrjax.input_pipeline.sources import QuestionSource
from cxrjax.input_pipeline.tokenizer import Tokenizer
from cxrjax.models import VLM
from cxrjax.training.box_loss import NEAR, XYXY, Coordinates
from cxrjax.training.loss import read_coordinates

HALVES = ("all", "left_half", "right_half")
Report = dict[str, dict[str, Any]]


def make_coordinate_report(
    source: QuestionSource,
    tokenizer: Tokenizer,
    examples: ExampleConfig,
    *,
    images_per_batch: int,
    mesh: Mesh,
    each_batch: Callable[[], None] | None = None,
) -> Callable[[VLM], Report] | None:
    """`coordinate_report` of a model on records; None where no loss reaches their boxes.

    It reads what the answer's tokens say, also of a model whose loss goes by a box head: the text
    is what it answers.

    Questions whose answers are too long for the buckets, or have too many boxes, and those whose
    images cannot be read, are left out and counted.

    Args:
        source: records with answers.
        images_per_batch: over all processes and devices.
        mesh: the model's.
        each_batch: called at each, and may raise to abandon the report.
    """
    if resolve_box_route(examples.box_route, examples.codec) == "none":
        return None
    route = resolve_box_route("auto", examples.codec)
    loader = eval_loader(
        source,
        tokenizer,
        dataclasses.replace(examples, too_long="set_aside", box_route="auto"),
        global_batch_size=images_per_batch,
        rows=None if hosts.alone() else host_rows(mesh, images_per_batch),
        with_answers=True,
    )

    def batches() -> Iterator[LoadedBatch]:
        for loaded in loader:
            if each_batch is not None:
                each_batch()
            yield loaded

    return lambda model: coordinate_report(model, batches(), route, mesh)


def coordinate_report(
    model: VLM, batches: Iterable[LoadedBatch], route: BoxRoute, mesh: Mesh
) -> Report:
    """Figures over all boxes of the batches' answers, and over those in each half of the image.

    Args:
        batches: with answers.
        route: how boxes are written.
        mesh: the model's; of several processes all call this, each with its rows.

    Returns:
        For `all`, `left_half` and `right_half` (of the image, by the target's centre): `n` boxes
        (`all` also has `questions_left_out`, how many could not be read so);
        `swapped_x` and `swapped_y`, shares of expected boxes with swapped corners, and
        `argmax_swapped_x` and `argmax_swapped_y`, of the likeliest ones; of x_min, y_min, x_max,
        y_max each: `mass_within_0.05`, the mean probability within 0.05 of the
        target, `mass_within_0.05_where_right`, the same where the likeliest value is as near,
        `spread`, the mean standard deviation, and `expected_error`, `argmax_error` and
        `median_error`, mean distances from the target; `expected_iou`, `argmax_iou` and
        `median_iou`, mean IoU with swapped boxes as they stand. Fractions of the model's input;
        None where there is no box to tell of.
    """
    graphdef, state = nnx.split(model)
    none = np.zeros((0, 4), np.float32)
    left_out: set[int] = set()
    found, targets = [Coordinates(none, none, none, none, none, none)], [none]
    for loaded in batches:
        batch = put_batch(loaded.batch, mesh)
        coordinates, target, mask = fetch_whole(
            (_read(graphdef, route, mesh, state, batch), batch.target_boxes, batch.box_mask), mesh
        )
        found.append(jax.tree.map(lambda part: part[mask], coordinates))  # noqa: B023
        targets.append(target[mask])
        left_out.update(problem.question_index for problem in loaded.problems)
    whole = jax.tree.map(lambda *parts: np.concatenate(parts), *found)
    report = summarize(whole, np.concatenate(targets))
    report["all"]["questions_left_out"] = len(set().union(*hosts.gather(list(left_out))))
    return report


def _read_impl(graphdef: Any, route: BoxRoute, mesh: Mesh, state: Any, batch: Batch) -> Coordinates:
    # Any: a VLM takes more than the loss asks of a model.
    model: Any = nnx.merge(graphdef, state)
    with mesh_of_kernels(mesh):
        return read_coordinates(model, batch, route)


# One cache of compiled programs for all reports: each evaluation of a run makes one.
_read = jax.jit(_read_impl, static_argnums=(0, 1, 2))


def summarize(found: Coordinates, targets: Float[np.ndarray, "n 4"]) -> Report:
    """The figures of `coordinate_report` for boxes one after the other, NumPy."""
    left = (targets[:, 0] + targets[:, 2]) / 2 < 0.5
    chosen = (np.ones(len(targets), bool), left, ~left)
    return {
        name: _figures(jax.tree.map(lambda part: part[rows], found), targets[rows])  # noqa: B023
        for name, rows in zip(HALVES, chosen, strict=True)
    }


def _figures(found: Coordinates, targets: Float[np.ndarray, "n 4"]) -> dict[str, Any]:
    expected, _, near, spread, likeliest, median = map(np.asarray, found[:6])
    reads = {"expected": expected, "argmax": likeliest, "median": median}
    everywhere = np.ones(targets.shape, bool)
    right = np.abs(likeliest - targets) <= NEAR
    swapped, argmax_swapped = (x[:, :2] > x[:, 2:] for x in (expected, likeliest))
    return {
        "n": len(targets),
        "swapped_x": _mean(swapped[:, 0]),
        "swapped_y": _mean(swapped[:, 1]),
        "argmax_swapped_x": _mean(argmax_swapped[:, 0]),
        "argmax_swapped_y": _mean(argmax_swapped[:, 1]),
        f"mass_within_{NEAR}": _means(near, everywhere),
        f"mass_within_{NEAR}_where_right": _means(near, right),
        "spread": _means(spread, everywhere),
        **{f"{n}_error": _means(np.abs(x - targets), everywhere) for n, x in reads.items()},
        **{f"{n}_iou": _mean(boxes.iou(x, targets, swapped="empty")) for n, x in reads.items()},
    }


def _mean(values: np.ndarray) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _means(values: Float[np.ndarray, "n 4"], mask: Bool[np.ndarray, "n 4"]) -> list[float | None]:
    return [_mean(values[mask[:, k], k]) for k in range(4)]


def named_figures(report: Report) -> dict[str, float | None]:
    """A report as figures for event files: `coordinates/all/swapped_x`, `.../spread/x_min`."""
    figures: dict[str, float | None] = {}
    for half, told in report.items():
        for name, value in told.items():
            if isinstance(value, list):
                each = zip(XYXY, value, strict=True)
                figures |= {f"coordinates/{half}/{name}/{corner}": v for corner, v in each}
            else:
                figures[f"coordinates/{half}/{name}"] = value
    return figures


def swapped_share(figures: Mapping[str, Any]) -> float | None:
    """The larger share of swapped corners of the two axes, of a report's `all`; None if untold."""
    shares = [figures.get(f"coordinates/all/swapped_{axis}") for axis in "xy"]
    return max((share for share in shares if share is not None), default=None)
