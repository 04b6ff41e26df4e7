"""Where arrays live on a (data, fsdp, tensor) mesh.

A batch is split over data and fsdp. A parameter is split over tensor by a rule on its path, and
over fsdp along its largest dimension that divides; small ones are on every device. The same rules
hold for the optimiser's moments, whose paths end like their parameters'.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from cxrjax.errors import UserError
from cxrjax.training.paths import path_name

AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")

# (path, dimension split over `tensor`): the first rule found in a path holds. Maps that widen are
# split by columns and maps that narrow by rows, so that a block needs one sum over devices for its
# attention and one for its MLP. Keys and values have few heads in these models and stay whole.
TENSOR_RULES: tuple[tuple[str, int | None], ...] = (
    (r"decoder/embedder/(table|loc_delta)$", -2),
    (r"decoder/.*/attn/[kv]_proj/", None),
    (r"/(q|gate|up)_proj/(kernel|lora/b)$", -1),
    (r"decoder/.*/(o|down)_proj/(kernel|lora/a)$", -2),
    (r"vision/.*/(q_proj|k_proj|v_proj|fc1)/(kernel|bias|lora/b)$", -1),
    (r"vision/.*/(out_proj|fc2)/(kernel|lora/a)$", -2),
    (r"/(q|gate|up|o|down|out|k|v)_proj/(bias|lora/(a|b|magnitude))$", None),
    (r"vision/.*/(fc1|fc2)/(bias|lora/(a|b|magnitude))$", None),
    (r"(^|/)(projector|vision/patch_embed|box_head)/", None),
    (r"(^|/)vision/position_embed$", None),
    (r"norm\d?/(scale|bias)$", None),
)

# Below this many elements a parameter costs less to keep everywhere than to gather.
_FSDP_MIN_SIZE = 2**16


def make_mesh(config: ConfigDict, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh of the `mesh` group over all devices, or over those given.

    Raises:
        UserError: the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [config.data, config.fsdp, config.tensor]
    if config.data == -1:
        sizes[0] = max(1, len(devices) // (config.fsdp * config.tensor))
    if math.prod(sizes) != len(devices):
        raise UserError(
            f"mesh data={config.data} fsdp={config.fsdp} tensor={config.tensor} does not fill "
            f"the {len(devices)} devices there are"
        )
    return Mesh(np.asarray(devices).reshape(sizes), AXES)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The first axis over data and fsdp."""
    return NamedSharding(mesh, P(BATCH_AXES))


def check_batch_divides(mesh: Mesh, images: int, accumulation_steps: int) -> None:
    """Every device must get the same number of images of every micro-batch.

    Raises:
        UserError: it would not.
    """
    shards = mesh.shape["data"] * mesh.shape["fsdp"]
    if images % (shards * accumulation_steps):
        raise UserError(
            f"a batch of {images} images does not divide into {accumulation_steps} micro-batches "
            f"over {shards} devices (mesh data x fsdp)"
        )


def put_batch(batch: Any, mesh: Mesh) -> Any:
    """This host's part of a batch (NumPy) as global arrays on the devices."""
    sharding = batch_sharding(mesh)
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, x), batch)


def tree_shardings(
    mesh: Mesh, tree: Any, rules: Sequence[tuple[str, int | None]] = TENSOR_RULES
) -> Any:
    """A sharding for every leaf of a tree of arrays or of their shapes.

    Raises:
        UserError: a leaf that no rule covers, or a dimension that does not divide.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: NamedSharding(mesh, _spec(mesh, path_name(path), leaf.shape, rules)),
        tree,
    )


def _spec(
    mesh: Mesh, path: str, shape: tuple[int, ...], rules: Sequence[tuple[str, int | None]]
) -> P:
    if not shape:  # counters
        return P()
    axes: list[str | None] = [None] * len(shape)
    dimension = _tensor_dimension(path, rules)
    tensor, fsdp = mesh.shape["tensor"], mesh.shape["fsdp"]
    # A dimension of 1 is one scale for all rows of a quantised kernel, whole on every device.
    if dimension is not None and tensor > 1 and shape[dimension] > 1:
        if shape[dimension] % tensor:
            raise UserError(
                f"mesh.tensor={tensor} does not divide dimension {dimension} of {path} {shape}"
            )
        axes[dimension] = "tensor"
    if fsdp > 1 and math.prod(shape) >= _FSDP_MIN_SIZE:
        # The last two dimensions: a leading one counts layers, which a scan takes one by one.
        free = [d for d in (-2, -1) if -d <= len(shape) and axes[d] is None]
        divisible = [d for d in free if shape[d] % fsdp == 0]
        if divisible:
            axes[max(divisible, key=lambda d: shape[d])] = "fsdp"
    return P(*axes)


def _tensor_dimension(path: str, rules: Sequence[tuple[str, int | None]]) -> int | None:
    # The two arrays of a quantised kernel are cut as it would be.
    name = re.sub(r"/kernel/(codes|scale)$", "/kernel", path)
    for rule, dimension in rules:
        if re.search(rule, name):
            return dimension
    raise UserError(f"no sharding rule covers the parameter {path}; add one to TENSOR_RULES")
