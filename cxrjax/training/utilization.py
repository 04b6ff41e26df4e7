"""The share of the devices' arithmetic that a run uses (MFU), and of their memory."""

import dataclasses

import jax
from flax import nnx
from jax.sharding import Mesh

from cxrjax.distributed.hardware import chip_of_device
from cxrjax.input_pipeline.batch import Batch
from cxrjax.models import VLM
from cxrjax.models.flops import BatchShape, step_flops, total
from cxrjax.models.layers import recomputes
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.run_info import peak_memory_gb


class StepFlops:
    """Operations that steps need by formula (`cxrjax.models.flops`), recomputation left out.

    Args:
        model: whose step it is; of one that is no VLM nothing is known.
        config: a whole configuration.
        processes: that each have as many rows of a batch as this one.
    """

    def __init__(self, model: nnx.Module, config: ExperimentConfig, processes: int = 1) -> None:
        self._model = _shapes_of(model) if isinstance(model, VLM) else None
        self._config = config
        self._processes = processes
        route = config.box_route
        self._loc_loss = route == "loc"
        # Shape of a batch -> (operations without any answer token, what each of those adds).
        self._known: dict[BatchShape, tuple[float, float]] = {}

    def of(self, batch: Batch, answer_tokens: int) -> float | None:
        """Of the step over all processes; None where the model is no VLM.

        Args:
            batch: this process's rows.
            answer_tokens: in them.
        """
        if self._model is None:
            return None
        images, questions, prefix = batch.prefix_tokens.shape
        shape = BatchShape(
            images=images * self._processes,
            questions=questions,
            prefix=prefix,
            answer=batch.answer_tokens.shape[-1],
            boxes=batch.box_mask.shape[-1],
            packed_length=batch.packed_length,
            answer_tokens=0,
            from_features=batch.images.ndim == 3,
        )
        if shape not in self._known:
            without, with_one = (
                total(
                    step_flops(
                        self._model,
                        self._config.trainable,
                        dataclasses.replace(shape, answer_tokens=count),
                        remat=recomputes(self._config.model.remat),
                        loc_loss=self._loc_loss,
                    )
                ).model
                for count in (0, 1)
            )
            self._known[shape] = (without, with_one - without)
        fixed, each = self._known[shape]
        return fixed + each * answer_tokens * self._processes


def _shapes_of(model: VLM) -> VLM:
    """The model without its numbers, which are not to be held twice."""
    graphdef, state = nnx.split(model)
    return nnx.merge(graphdef, jax.eval_shape(lambda: state))


def peak_flops(config: ExperimentConfig, mesh: Mesh) -> float | None:
    """Operations per second that all devices can do: `training.peak_flops` of each, else what the
    maker publishes for bfloat16; None where neither is known, as of CPUs."""
    device = mesh.devices.flat[0]
    each = config.training.peak_flops
    if each is None:
        chip = chip_of_device(device.device_kind)
        each = None if chip is None else chip.flops
    return None if each is None else each * mesh.size


def memory_figures() -> dict[str, float]:
    """Gigabytes (1e9 bytes), the largest of this process's devices: `hbm_gb` in use and
    `hbm_peak_gb` the most so far. Where the backend does not tell, as on CPUs,
    `host_peak_memory_gb`: the most that this process has held."""
    stats = [found for device in jax.local_devices() if (found := device.memory_stats())]
    if not stats:
        return {"host_peak_memory_gb": peak_memory_gb()}
    names = {"hbm_gb": "bytes_in_use", "hbm_peak_gb": "peak_bytes_in_use"}
    return {
        name: max(found[key] for found in stats) / 1e9
        for name, key in names.items()
        if all(key in found for found in stats)
    }
