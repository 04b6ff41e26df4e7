"""The step on all devices of a mesh, in one of two ways.

jit   XLA sees the whole batch and spreads the work as the shardings say (sharding.py).
pmap  plain data parallelism: every device runs the step on its own part of the batch, with whole
      copies of everything, and sums are added up over the devices by name.
"""

from typing import Any

import jax
from jax.experimental.multihost_utils import (
    global_array_to_host_local_array,
    host_local_array_to_global_array,
)
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from cxrjax.distributed.meshes import BATCH_AXES, batch_shards
from cxrjax.input_pipeline.batch import Batch
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.step import (
    StepFunction,
    StepMetrics,
    TrainState,
    compile_train_step,
    make_train_step,
)

# The name by which a step under `pmap` adds up over devices.
_AXIS = "devices"


def make_parallel_step(
    graphdef: Any, config: ExperimentConfig, steps: int, mesh: Mesh, state: TrainState, frozen: Any
) -> StepFunction:
    """The compiled step of a configuration, as `mesh.strategy` says; its state is donated.

    Args:
        graphdef, config, steps: as in `make_train_step`.
        state, frozen: on the mesh, or their shapes; only the trees and shapes are used.
    """
    if config.mesh.strategy == "pmap":
        function = make_train_step(graphdef, config, steps, axis_name=_AXIS)
        return _compile_pmap_step(function, mesh)
    return compile_train_step(make_train_step(graphdef, config, steps, mesh), mesh, state, frozen)


def _compile_pmap_step(train_step: StepFunction, mesh: Mesh) -> StepFunction:
    """`train_step` under `pmap`.

    It takes and gives the same arrays as the step under `jit` does, so that a run's loop,
    evaluations and checkpoints need not know which of the two they have.
    """
    step = jax.pmap(
        train_step,
        axis_name=_AXIS,
        in_axes=(None, None, 0),
        # One array for all devices, not one each: state and metrics are the same everywhere.
        out_axes=(None, None),
        donate_argnums=0,
        devices=list(mesh.devices.flat),
    )
    by_device = NamedSharding(mesh, P(BATCH_AXES))
    several = jax.process_count() > 1

    @jax.jit
    def cut(batch: Batch) -> Batch:
        """[B, ...] to [devices, B / devices, ...]; every device keeps the images it has."""
        shards = batch_shards(mesh)
        return jax.tree.map(
            lambda x: jax.lax.with_sharding_constraint(
                x.reshape(shards, -1, *x.shape[1:]), by_device
            ),
            batch,
        )

    def parallel_step(
        state: TrainState, frozen: Any, batch: Batch
    ) -> tuple[TrainState, StepMetrics]:
        parts = cut(batch)
        if not several:
            return step(state, frozen, parts)
        # pmap speaks of this host's devices alone.
        parts = global_array_to_host_local_array(parts, mesh, P(BATCH_AXES))
        return host_local_array_to_global_array(step(state, frozen, parts), mesh, P())

    return parallel_step
