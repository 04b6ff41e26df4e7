"""The checkpoints of a run: the best and the last ones, written while training goes on.

A checkpoint of step n holds what training changes and nothing that it does not: the trainable
parameters, the optimiser's state, where the data stands, and which frozen base they belong to.
Arrays are kept flat by dotted parameter path, so that the format does not depend on how a library
nests its containers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from cxrjax.errors import UserError
from cxrjax.training.paths import named_leaves
from cxrjax.training.step import TrainState

DIRECTORY = "checkpoints"


class CheckpointStore:
    """Checkpoints under `workdir/checkpoints/<step>`.

    Saving returns as soon as the arrays are copied to the host; a checkpoint counts from the
    moment its directory is renamed into place, so a killed run never leaves half of one.

    Args:
        workdir: of the run.
        best_metric: the evaluation figure whose largest value marks the best checkpoint; of
            equals, the last.
        keep_last: checkpoints kept besides the best one.
        writing: False reads a finished or running run and touches nothing.
    """

    def __init__(
        self, workdir: Path, best_metric: str, keep_last: int = 1, writing: bool = True
    ) -> None:
        def score(metrics: Mapping[str, float | None]) -> float:
            value = metrics.get(best_metric)
            return float("-inf") if value is None else value

        policies = ocp.checkpoint_managers
        self._manager = ocp.CheckpointManager(
            (workdir / DIRECTORY).absolute(),
            options=ocp.CheckpointManagerOptions(
                best_fn=score,
                preservation_policy=policies.AnyPreservationPolicy(
                    [policies.LatestN(keep_last), policies.BestN(get_metric_fn=score, n=1)]
                ),
                create=writing,
                cleanup_tmp_directories=writing,
            ),
            # Told up front, so that a new process can read what another one saved.
            item_handlers={
                "parameters": ocp.StandardCheckpointHandler(),
                "optimizer": ocp.StandardCheckpointHandler(),
                "data": ocp.JsonCheckpointHandler(),
                "base": ocp.JsonCheckpointHandler(),
            },
        )

    def save(
        self,
        step: int,
        state: TrainState,
        data_state: Mapping[str, Any],
        base: Mapping[str, Any],
        metrics: Mapping[str, float | None],
    ) -> None:
        """Begins to save; waits for the one before it.

        Args:
            data_state: of the data iterator after this step's batch; fit for JSON.
            base: which frozen parameters belong to it; fit for JSON.
            metrics: the evaluation's figures at this step; empty if there was none.
        """
        optimizer = {"step": state.step, "opt_state": state.opt_state}
        self._manager.save(
            step,
            args=ocp.args.Composite(
                parameters=ocp.args.StandardSave(flat_arrays(state.trainable)),
                optimizer=ocp.args.StandardSave(flat_arrays(optimizer)),
                data=ocp.args.JsonSave(dict(data_state)),
                base=ocp.args.JsonSave(dict(base)),
            ),
            metrics=dict(metrics),
            force=True,
        )

    def all_steps(self) -> list[int]:
        return sorted(self._manager.all_steps())

    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    def best_step(self) -> int | None:
        """The best checkpoint's step; the last one's where no evaluation has scored any."""
        return self._manager.best_step()

    def restore_state(self, step: int, like: TrainState) -> TrainState:
        """The state of a checkpoint.

        Args:
            like: a state, or its shapes and shardings.

        Raises:
            UserError: it holds other parameters.
        """
        optimizer = {"step": like.step, "opt_state": like.opt_state}
        restored = self._restore(step, optimizer=optimizer)
        return TrainState(
            step=restored["step"],
            trainable=self.restore_parameters(step, like.trainable),
            opt_state=restored["opt_state"],
        )

    def restore_parameters(self, step: int, like: Any) -> Any:
        """The trainable parameters alone, in the tree of `like`."""
        return self._restore(step, parameters=like)

    def restore_json(self, step: int, item: str) -> dict[str, Any]:
        """Item `data` or `base` of a checkpoint."""
        args = ocp.args.Composite(**{item: ocp.args.JsonRestore()})
        return self._manager.restore(step, args=args)[item]

    def _restore(self, step: int, **item: Any) -> Any:
        ((name, like),) = item.items()
        where = f"{self._manager.directory}/{step}/{name}"
        metadata = self._manager.item_metadata(step)[name]
        check_arrays(where, metadata.tree, like)
        args = ocp.args.StandardRestore(abstract_arrays(like))
        restored = self._manager.restore(step, args=ocp.args.Composite(**{name: args}))[name]
        return unflatten(restored, like)

    def close(self) -> None:
        """Waits for what is being saved."""
        self._manager.wait_until_finished()
        self._manager.close()


def flat_arrays(tree: Any) -> dict[str, Any]:
    """`{"decoder.embedder.table": array, ...}` of any pytree."""
    return {name.replace("/", "."): leaf for name, leaf in named_leaves(tree).items()}


def abstract_arrays(tree: Any) -> dict[str, jax.ShapeDtypeStruct]:
    """What to restore: shapes, dtypes and shardings of `flat_arrays(tree)`."""
    return {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))
        for name, leaf in flat_arrays(tree).items()
    }


def unflatten(arrays: Mapping[str, Any], like: Any) -> Any:
    """Inverse of `flat_arrays`: the tree of `like` with these arrays."""
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[n] for n in flat_arrays(like)])


def check_arrays(where: str, found: Mapping[str, Any], like: Any) -> None:
    """Compares names and shapes of saved arrays with those of a tree.

    Raises:
        UserError: names the first difference.
    """
    saved = {name: tuple(leaf.shape) for name, leaf in found.items()}
    wanted = {name: tuple(leaf.shape) for name, leaf in flat_arrays(like).items()}
    for name in sorted(saved.keys() | wanted.keys()):
        if saved.get(name) != wanted.get(name):
            raise UserError(
                f"{where}: {name} is {saved.get(name, 'absent')} there and "
                f"{wanted.get(name, 'absent')} in the configured model; use the configuration "
                "that the checkpoint was made with"
            )
