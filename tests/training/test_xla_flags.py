"""libtpu takes the flags; it ends the process at one that it does not know."""

import importlib.util
import os
import subprocess
import sys

import pytest

from cxrjax.training.xla_flags import OVERLAP_FLAGS

_COMPILE = """
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from cxrjax.hardware import parse_topology
from cxrjax.planning.program import tpu_devices
mesh = Mesh(tpu_devices(parse_topology("v5e:2x2")), ("fsdp",))
rows = NamedSharding(mesh, PartitionSpec("fsdp"))
x = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)
text = jax.jit(jnp.matmul, in_shardings=(rows, rows), out_shardings=rows).lower(x, x).compile()
assert "all-gather" in text.as_text()
"""


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="libtpu is not installed")
@pytest.mark.parametrize(("more", "accepted"), [((), True), (("--xla_tpu_no_such=true",), False)])
def test_libtpu_knows_every_flag(more, accepted):
    environment = {**os.environ, "LIBTPU_INIT_ARGS": " ".join((*OVERLAP_FLAGS, *more))}
    ran = subprocess.run(
        [sys.executable, "-c", _COMPILE], env=environment, capture_output=True, text=True
    )
    assert (ran.returncode == 0) == accepted, ran.stderr
    assert accepted or "xla_tpu_no_such" in ran.stdout + ran.stderr
