"""What two processes of two devices see of each other; `launch/local.py` runs it."""

import argparse
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from cxrjax import cli
from cxrjax.distributed import hosts, meshes
from cxrjax.errors import UserError
from cxrjax.flags import add_options


def main() -> None:
    folder = Path(sys.argv[1])
    parser = argparse.ArgumentParser()
    add_options(parser, hosts.HostFlags)
    hosts.initialize(parser.parse_args(sys.argv[2:]))
    me = jax.process_index()
    assert jax.process_count() == 2 and jax.local_device_count() == 2

    # Of different lengths, and longer than the smallest room.
    assert hosts.gather("x" * (1 + 999 * me)) == ["x", "x" * 1000]
    assert hosts.gather([me, None, "Übung"]) == [[0, None, "Übung"], [1, None, "Übung"]]
    assert hosts.from_first({"first": me}) == {"first": 0}

    hosts.check_same({"base": "abc"})
    with pytest.raises(UserError, match="process 1 has another base than process 0: 'b' and 'a'"):
        hosts.check_same({"data": 1, "base": "ab"[me]})
    hosts.check_shared(folder)
    hosts.wait_for_all("removed")
    assert not list(folder.iterdir())
    own = folder.with_name(f"own{me}")
    own.mkdir()
    with pytest.raises(UserError, match="process 1 of 2 does not see what process 0 writes"):
        hosts.check_shared(own)

    with pytest.raises(UserError, match=r"a\.jsonl: 1 images for 2 processes"):
        meshes.check_enough_images(1, "a.jsonl")
    config = meshes.MeshConfig()
    with pytest.raises(UserError, match="6 images does not divide over 4 devices"):
        meshes.host_rows(meshes.make_mesh(config), 6)
    rows = np.arange(8 * 3).reshape(8, 3)
    dealt = np.asarray(jax.devices())[[0, 2, 1, 3]]  # as a pod may number its devices
    for mesh, mine in (
        (meshes.make_mesh(config), [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (Mesh(dealt.reshape(1, 4, 1, 1), meshes.AXES), [[0, 1, 4, 5], [2, 3, 6, 7]]),
        (Mesh(dealt.reshape(2, 1, 2, 1), meshes.AXES), [[0, 1, 4, 5], [2, 3, 6, 7]]),
        # `tensor` goes over both processes: they load the same rows.
        (Mesh(dealt.reshape(1, 2, 1, 2), meshes.AXES), [[*range(8)], [*range(8)]]),
        (Mesh(dealt.reshape(1, 1, 1, 4), meshes.AXES), [[*range(8)], [*range(8)]]),
    ):
        assert meshes.host_rows(mesh, 8) == mine[me]
        placed = meshes.put_batch({"rows": rows[mine[me]]}, mesh)
        assert placed["rows"].sharding == meshes.batch_sharding(mesh)
        np.testing.assert_array_equal(meshes.fetch_whole(placed, mesh)["rows"], rows)
    kernel = np.arange(512 * 256, dtype=np.float32).reshape(512, 256)
    for shape in ((1, 4, 1, 1), (1, 1, 4, 1), (1, 1, 1, 4), (1, 1, 2, 2)):
        mesh = Mesh(np.asarray(jax.devices()).reshape(shape), meshes.AXES)
        tree = meshes.put_tree(
            {"decoder": {"layers": {"mlp": {"up_proj": {"kernel": kernel}}}}}, mesh
        )
        (leaf,) = jax.tree.leaves(tree)
        assert leaf.addressable_data(0).size == kernel.size // (shape[2] * shape[3])
        np.testing.assert_array_equal(jax.tree.leaves(meshes.fetch_whole(tree, mesh))[0], kernel)
    print(f"process {me} has seen it all")


cli.run(main)
