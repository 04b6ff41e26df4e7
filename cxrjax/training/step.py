"""One optimiser step as one pure function, the state it moves on, and how devices share it.

Two strategies compile the function for a mesh:

jit   XLA sees the whole batch and spreads the work as the shardings say (distributed/meshes.py).
pmap  plain data parallelism: every device runs the step on its own part of the batch, with whole
      copies of everything, and sums are added up over the devices by name.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx, struct
from jax.experimental.multihost_utils import (
    global_array_to_host_local_array,
    host_local_array_to_global_array,
)
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int, Key

from cxrjax.distributed import meshes
from cxrjax.models.layers import salt
from cxrjax.models.quantize import QUANTIZED_DTYPES, quantize_params
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.objectives import MultitaskObjective, objective_of
from cxrjax.training.optimizer import clip, learning_rate_schedule, make_optimizer

# The name by which a step under `pmap` adds up over devices.
_AXIS = "devices"


@struct.dataclass
class TrainState:
    """State that a step changes."""

    step: Any  # updates made so far, int32
    trainable: Any  # float32 parameters, an `nnx.State`
    opt_state: Any  # the optimiser's


@struct.dataclass
class StepMetrics:
    """Reported sums of a step."""

    loss: Any  # the whole batch's, as it was before the update
    figures: Any  # sum and count of each figure of the objective over the whole batch
    grad_norm: Any  # global norm of the gradients before clipping
    learning_rate: Any  # of this update

    def sums(self) -> dict[str, tuple[Any, Any]]:
        """Sum and count of each figure by name (`metric_log.step_figures` divides them)."""
        return {
            "loss": (self.loss, 1),
            **self.figures,
            "grad_norm": (self.grad_norm, 1),
            "learning_rate": (self.learning_rate, 1),
        }


# The batch: a `Batch`, or what else the objective takes, images along the first axis of everything.
StepFunction = Callable[[TrainState, Any, Any], tuple[TrainState, StepMetrics]]


def init_state(trainable: Any, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first step; the parameters become float32 whatever they were."""
    trainable = cast_params(trainable, "float32")
    return TrainState(
        step=jnp.zeros((), jnp.int32), trainable=trainable, opt_state=optimizer.init(trainable)
    )


def cast_params(params: Any, dtype: str) -> Any:
    """Parameters stored in another floating dtype, or quantised (`quantize_params`)."""
    if dtype in QUANTIZED_DTYPES:
        return quantize_params(params, dtype)
    return jax.tree.map(
        lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, params
    )


def make_train_step(
    graphdef: Any,
    config: ExperimentConfig,
    steps: int,
    mesh: Mesh | None = None,
    axis_name: str | tuple[str, ...] | None = None,
) -> StepFunction:
    """The pure step function of a configuration; not compiled.

    Args:
        graphdef: of the model, from `cxrjax.models.partition`.
        config: a whole configuration.
        steps: updates of the whole run, for the schedule.
        mesh: keeps the micro-batches spread over the devices; None where a device sees its own
            part of the batch alone.
        axis_name: under `pmap` and `shard_map`, the axes over which the parts are a batch: sums
            and counts are added up over them. None: the function sees the whole batch.

    Returns:
        (state, frozen, batch) -> (state, metrics). The result does not depend on how the batch
        is cut into micro-batches or devices, to float32 rounding. With `training.skip_nonfinite`,
        a loss or gradients that are not finite leave the state as it was, the schedule's count
        included.
    """
    if mesh is not None and mesh.size > 1 and meshes.holds_whole_copies(mesh):
        # XLA would sum the gradients of every layer of every micro-batch; here it is once a step.
        return jax.shard_map(
            make_train_step(graphdef, config, steps, axis_name=meshes.BATCH_AXES),
            mesh=mesh,
            in_specs=(P(), P(), P(meshes.BATCH_AXES)),
            out_specs=P(),
            check_vma=False,
        )
    optimizer = make_optimizer(config.optimizer, steps)
    schedule = learning_rate_schedule(config.optimizer, steps)
    training = config.training
    # Of one device: a chunk of a whole batch would be the smaller, the more devices there are.
    logit_chunk = training.logit_chunk * (1 if mesh is None else meshes.batch_shards(mesh))
    objective = objective_of(config)

    # The box loss's gradient is clipped by itself, and is not that of an adapter of its own.
    apart = config.optimizer.clip_box_norm > 0 and not config.lora.box_rank

    def loss_and_gradients(
        trainable: Any, frozen: Any, batch: Any, key: Any, denominators: Any
    ) -> tuple[tuple[Array, Any], list[Any]]:
        """One forward pass, and a backward pass for the loss, or for the box loss and the rest."""

        def terms(trainable: Any) -> tuple[list[Array], Any]:
            model = nnx.merge(graphdef, trainable, frozen)
            with meshes.mesh_of_kernels(mesh):
                given = model, batch, key, denominators, logit_chunk
                if not apart:
                    loss, figures = objective.loss(*given)
                    return [loss], figures
                assert isinstance(objective, MultitaskObjective)  # `ExperimentConfig.mistakes`
                parts, figures = objective.parts(*given)
                box = parts.pop("box_loss")
                return [sum(parts.values(), jnp.zeros(())), box], figures

        losses, pull_back, figures = jax.vjp(terms, trainable, has_aux=True)
        ones = jnp.eye(len(losses))
        return (sum(losses[1:], losses[0]), figures), [pull_back([*row])[0] for row in ones]

    def over_parts(sums: Any) -> Any:
        return sums if axis_name is None else jax.lax.psum(sums, axis_name)

    def train_step(state: TrainState, frozen: Any, batch: Any) -> tuple[TrainState, StepMetrics]:
        denominators = over_parts(objective.denominators(batch))
        key = dropout_key(training.seed, state.step) if config.lora.dropout > 0 else None

        def of(batch: Any) -> tuple[tuple[Array, Any], Any]:
            return loss_and_gradients(state.trainable, frozen, batch, key, denominators)

        images = jax.tree.leaves(batch)[0].shape[0]
        count = meshes.micro_batches(mesh, images, training.accumulation_steps)
        if count == 1:
            (loss, figures), gradients = of(batch)
        else:
            micro_batches = cut_micro_batches(batch, count, mesh)
            shapes = jax.eval_shape(of, jax.tree.map(lambda x: x[0], micro_batches))
            zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
            ((loss, figures), gradients), _ = jax.lax.scan(
                lambda total, micro: (jax.tree.map(jnp.add, total, of(micro)), None),
                zeros,
                micro_batches,
            )
        (loss, figures), gradients = over_parts(((loss, figures), gradients))
        norm = optax.tree.norm(jax.tree.map(lambda *each: sum(each), *gradients))
        if apart:
            figures = {**figures, "box_grad_norm": (optax.tree.norm(gradients[1]), jnp.ones(()))}
            limits = (config.optimizer.clip_norm, config.optimizer.clip_box_norm)
            gradients = [*map(clip, limits, gradients)]
        gradients = jax.tree.map(lambda *each: sum(each), *gradients)
        metrics = StepMetrics(
            loss=loss,
            figures=figures,
            grad_norm=norm,
            learning_rate=jnp.asarray(schedule(state.step), jnp.float32),
        )
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.trainable)
        trainable = optax.apply_updates(state.trainable, updates)
        updated = TrainState(state.step + 1, trainable, opt_state)
        if training.skip_nonfinite:
            finite = jnp.isfinite(metrics.loss) & jnp.isfinite(metrics.grad_norm)
            updated = jax.tree.map(lambda new, old: jnp.where(finite, new, old), updated, state)
        return updated, metrics

    return train_step


def dropout_key(seed: int, step: Int[Array, ""]) -> Key[Array, ""]:
    """The noise of a step; the model folds in each question's global index."""
    key = jax.random.fold_in(jax.random.key(seed), salt("dropout"))
    return jax.random.fold_in(key, step)


def cut_micro_batches(batch: Any, count: int, mesh: Mesh | None = None) -> Any:
    """[B, ...] to [count, B / count, ...], every device keeping the images it has.

    Micro-batch m takes images m, m + count, ...: contiguous runs would move images between
    devices, since a device holds a contiguous run of the batch.
    """

    def cut(x: Array) -> Array:
        x = jnp.swapaxes(x.reshape(x.shape[0] // count, count, *x.shape[1:]), 0, 1)
        if mesh is not None:
            x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(None, meshes.BATCH_AXES)))
        return x

    return jax.tree.map(cut, batch)


def compile_train_step(
    train_step: StepFunction, mesh: Mesh, state: TrainState, frozen: Any
) -> StepFunction:
    """`train_step` under `jit` on a mesh, its first argument donated.

    Args:
        state, frozen: arrays or their shapes; only the trees and shapes are used.
    """
    state_shardings = meshes.tree_shardings(mesh, state)
    return jax.jit(
        train_step,
        in_shardings=(
            state_shardings,
            meshes.tree_shardings(mesh, frozen),
            meshes.batch_sharding(mesh),
        ),
        out_shardings=(state_shardings, NamedSharding(mesh, P())),
        donate_argnums=0,
    )


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
    by_device = NamedSharding(mesh, P(meshes.BATCH_AXES))
    several = jax.process_count() > 1

    @jax.jit
    def cut(batch: Any) -> Any:
        """[B, ...] to [devices, B / devices, ...]; every device keeps the images it has."""
        shards = meshes.batch_shards(mesh)
        return jax.tree.map(
            lambda x: jax.lax.with_sharding_constraint(
                x.reshape(shards, x.shape[0] // shards, *x.shape[1:]), by_device
            ),
            batch,
        )

    def parallel_step(state: TrainState, frozen: Any, batch: Any) -> tuple[TrainState, StepMetrics]:
        parts = cut(batch)
        if not several:
            # On the mesh again: a state of another sharding would compile the step a second time.
            return jax.device_put(step(state, frozen, parts), NamedSharding(mesh, P()))
        # pmap speaks of this host's devices alone.
        parts = global_array_to_host_local_array(parts, mesh, P(meshes.BATCH_AXES))
        return host_local_array_to_global_array(step(state, frozen, parts), mesh, P())

    return parallel_step
