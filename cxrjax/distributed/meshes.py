"""Meshes: how they are made, which rows a host loads, and how arrays get onto and off them."""

import contextlib
import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from pydantic import AfterValidator
from pydantic.dataclasses import dataclass

from cxrjax.errors import UserError
from cxrjax.settings import STRICT, Positive

AXES = ("replica", "data", "fsdp", "tensor")
BATCH_AXES = ("replica", "data", "fsdp")

# (path, dimension split over `tensor`): the first rule found in a path holds. Maps that widen are
# split by columns and maps that narrow by rows, so that a block needs one sum over devices for its
# attention and one for its MLP. Keys and values have few heads in these models and stay whole.
TENSOR_RULES: tuple[tuple[str, int | None], ...] = (
    (r"decoder/(embedder|per_layer)/(table|head|loc_delta)$", -2),
    (r"decoder/.*/attn/[kv]_proj/", None),
    (r"/(q|gate|up)_proj/(kernel|lora/b)$", -1),
    (r"(decoder/.*/o|/down)_proj/(kernel|lora/a)$", -2),
    (r"vision/.*/qkv_proj/", None),  # its columns are of three kinds
    (r"vision/.*/(q_proj|k_proj|v_proj|fc1)/(kernel|bias|lora/b)$", -1),
    (r"vision/.*/(out_proj|fc2)/(kernel|lora/a)$", -2),
    (r"/(q|gate|up|o|down|out|k|v)_proj/(bias|lora/(a|b|magnitude))$", None),
    (r"vision/.*/(fc1|fc2)/(bias|lora/(a|b|magnitude))$", None),
    (r"(^|/)(projector|projector_out|deepstack|audio|vision/patch_embed)/", None),
    (r"decoder/(.*/per_layer_(gate|proj)|per_layer/projection|embedder/lora)/", None),
    (r"(^|/)vision/(position|class)_embed$", None),
    (r"(^|/)((layer|attn|mlp)_scale|feature_(scale|bias)|(in|out)put_(min|max))$", None),
    (r"norm\d?/(scale|bias)$", None),
)

# Below this many elements a parameter costs less to keep everywhere than to gather.
_FSDP_MIN_SIZE = 2**16


def _fills(devices: int) -> int:
    if devices == 0 or devices < -1:
        raise ValueError("expected -1 or a number above 0")
    return devices


@dataclass(frozen=True, config=STRICT)
class MeshConfig:
    """The group `mesh` of a configuration: devices along each axis, and how they work together."""

    # Devices along each axis; cxrjax/distributed/meshes.py explains the axes.
    replica: Positive = 1  # copies on each slice
    # TPU slices, joined by a data-centre network, or groups of processes that stand in for them:
    # each has whole copies of the model, and only gradients pass between them.
    slices: Positive = 1
    data: Annotated[int, AfterValidator(_fills)] = -1  # -1: all devices that the others leave
    # Devices that share out parameters and optimiser state; fewer where there are fewer (data=-1).
    fsdp: Positive = 1
    tensor: Positive = 1  # devices that split each matrix product
    # 'jit': XLA spreads the step over the mesh. 'pmap': every device runs the step on its part of
    # the batch, with all parameters; the data axis alone.
    strategy: Literal["jit", "pmap"] = "jit"


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh of the `mesh` group over all devices, or over those given.

    Devices of a TPU are arranged so that the axes to the right, which talk most, are neighbours.

    Raises:
        UserError: the sizes do not multiply to the number of devices, there are other slices than
            the configuration has, or the strategy has no use for an axis.
    """
    devices = jax.devices() if devices is None else devices
    sizes = mesh_sizes(config, len(devices), f"the {len(devices)} devices there are")
    shape = tuple(sizes.values())
    if devices[0].platform != "tpu" or config.strategy == "pmap":
        processes = len({device.process_index for device in devices})
        if processes > 1 and processes % config.slices:
            raise UserError(f"mesh.slices={config.slices} does not divide {processes} processes")
        return Mesh(np.asarray(devices).reshape(shape), AXES)
    slices = len({getattr(device, "slice_index", 0) for device in devices})
    if slices != config.slices:
        raise UserError(
            f"mesh.slices={config.slices}, and the devices are of {slices} slices; set "
            f"mesh.slices={slices}, so that each has whole copies of the model"
        )
    if slices == 1:
        arranged = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
        return Mesh(arranged, AXES)
    arranged = mesh_utils.create_hybrid_device_mesh(
        (config.replica, *shape[1:]),
        (slices, 1, 1, 1),
        devices,
        allow_split_physical_axes=True,
    )
    return Mesh(arranged, AXES)


def mesh_sizes(config: MeshConfig, count: int, devices: str) -> dict[str, int]:
    """The size of each axis of the `mesh` group over so many devices, `data=-1` worked out.

    Raises:
        UserError: the sizes do not multiply to `count`, or the strategy has no use for an axis.
    """
    sizes = {axis: getattr(config, axis) for axis in AXES}
    sizes["replica"] *= config.slices
    named = " ".join(f"{axis}={size}" for axis, size in sizes.items())
    if config.strategy == "pmap" and any(sizes[axis] > 1 for axis in AXES if axis != "data"):
        raise UserError(
            f"mesh {named}: strategy 'pmap' keeps everything on every device and has only the data "
            "axis; set the others to 1, or mesh.strategy=jit"
        )
    if config.data == -1:
        share = max(1, count // (sizes["replica"] * config.tensor))
        if config.fsdp % share == 0:
            sizes["fsdp"] = share
        sizes["data"] = max(1, share // sizes["fsdp"])
    if math.prod(sizes.values()) != count:
        raise UserError(f"mesh {named} does not fill {devices}")
    return sizes


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The first axis over replica, data and fsdp."""
    return NamedSharding(mesh, P(BATCH_AXES))


def batch_shards(mesh: Mesh | AbstractMesh) -> int:
    """Parts that a batch is split into."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def holds_whole_copies(mesh: Mesh) -> bool:
    """Returns whether every device has all parameters, so that the mesh splits only batches."""
    return mesh.shape["fsdp"] == mesh.shape["tensor"] == 1


def cache_sharding(mesh: Mesh, kv_heads: int) -> NamedSharding:
    """The sharding of a key-value cache [B, K, ...]: rows as the batch, heads over tensor.

    Where it does not, as with PaliGemma's one head, each device of a tensor group has all heads.
    """
    heads = "tensor" if kv_heads % mesh.shape["tensor"] == 0 else None
    return NamedSharding(mesh, P(BATCH_AXES, heads))


def mesh_of_kernels(mesh: Mesh | None) -> contextlib.AbstractContextManager[Any]:
    """Sets the mesh over which kernels of splash.py are sharded: XLA cannot split them."""
    if mesh is None:
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


def micro_batches(mesh: Mesh | AbstractMesh | None, images: int, most: int) -> int:
    """Returns into how many micro-batches a batch is cut: `most`, or fewer where devices share it.

    Args:
        mesh: None: one device has all images.
        images: of a batch; a device's share divides into the result.
    """
    share = images if mesh is None else images // batch_shards(mesh)
    return max(count for count in range(1, most + 1) if share % count == 0)


def check_batch_divides(
    mesh: Mesh | AbstractMesh, images: int, questions: int | None = None
) -> None:
    """Every device must get the same number of images.

    Args:
        images: of a batch.
        questions: `training.batch_questions`, where that is what says how large a batch is.

    Raises:
        UserError: it would not; it names keys and values with which it would.
    """
    shards = batch_shards(mesh)
    if images % shards == 0:
        return
    more = -(-images // shards) * shards
    ways = [f"--config.training.batch_images={more}"]
    if questions is not None:
        ways = [f"--config.training.batch_questions={more * questions // images}"]
    raise UserError(
        f"a batch of {images} images does not divide over {shards} devices "
        f"(mesh {' x '.join(BATCH_AXES)}): set {' or '.join(ways)}"
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
    if dimension is not None and tensor > 1:
        # The scales of a quantised kernel's rows are few, and need not divide as its rows do.
        may_stay_whole = path.endswith("/kernel/scale") and dimension == -2
        if shape[dimension] % tensor == 0:
            axes[dimension] = "tensor"
        elif not may_stay_whole:
            raise UserError(
                f"mesh.tensor={tensor} does not divide dimension {dimension} of {path} {shape}"
            )
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


def host_rows(mesh: Mesh, batch_size: int) -> list[int]:
    """The rows of a global batch that are on this host's devices, ascending.

    Hosts that share rows (`tensor` goes over several of them) load the same ones.

    Raises:
        UserError: the mesh does not divide the batch.
    """
    shards = batch_shards(mesh)
    if batch_size < 1 or batch_size % shards:
        raise UserError(
            f"a batch of {batch_size} images does not divide over {shards} devices "
            f"(mesh {' x '.join(BATCH_AXES)}) of {jax.process_count()} processes"
        )
    parts = batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    rows = np.arange(batch_size)
    return sorted({int(row) for part in parts if part is not None for row in rows[part]})


def check_enough_images(images: int, where: str) -> None:
    """Raises UserError where there are fewer images, from `where`, than processes."""
    if images < jax.process_count():
        raise UserError(
            f"{where}: {images} images for {jax.process_count()} processes; start at most "
            f"{images} of them"
        )


def put_tree(tree: Any, mesh: Mesh) -> Any:
    """Parameters or a train state on the mesh by the sharding rules.

    Args:
        tree: of whole arrays, the same in every process, or on a mesh of all of them already.
    """
    shardings = tree_shardings(mesh, tree)
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)
    # device_put would first send every array to every process, to see that they are the same.
    return jax.tree.map(_put_whole, tree, shardings)


def _put_whole(x: Any, sharding: NamedSharding) -> jax.Array:
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return jax.device_put(x, sharding)
    whole = np.asarray(x)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def fetch_whole(tree: Any, mesh: Mesh) -> Any:
    """Arrays on the mesh as whole NumPy arrays, in every process. Called by all of them."""
    if jax.process_count() > 1:
        tree = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, P()))(tree)
    return jax.tree.map(np.asarray, tree)


def path_name(path: tuple[Any, ...]) -> str:
    """A leaf's key path joined by '/', as `cxrjax.models.partition.path_of` names
    parameters."""
    return "/".join(str(_part(key)) for key in path if not _is_variable_value(key))


def named_leaves(tree: Any) -> dict[str, Any]:
    """`{path: leaf}` of any pytree, in the tree's order."""
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _part(key: Any) -> Any:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return key


def _is_variable_value(key: Any) -> bool:
    """NNX puts every array into a variable, which JAX shows as one more step, `.value`."""
    return isinstance(key, jax.tree_util.GetAttrKey) and key.name == "value"
