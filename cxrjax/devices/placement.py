"""Which rows of a batch this host loads, and how host arrays get onto a mesh of several hosts."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from cxrjax.devices.sharding import BATCH_AXES, batch_sharding, batch_shards, tree_shardings
from cxrjax.errors import UserError


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
    """Every process must have something to do.

    Args:
        where: the images are from, for the message.

    Raises:
        UserError: there are fewer images than processes.
    """
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
