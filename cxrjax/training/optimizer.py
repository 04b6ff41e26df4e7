"""The optimiser: AdamW with a warm-up, a schedule, clipping, and no decay of norms and biases."""

import math
import re
from typing import Any, Literal

import jax
import optax
from pydantic.dataclasses import dataclass

from cxrjax.distributed import meshes
from cxrjax.errors import UserError
from cxrjax.settings import STRICT, NotNegative, NotNegativeFloat, PositiveFloat

# Biases, norms and position embeddings keep their size, and so does what was published to be as it
# is. Stacked layers give even these two axes, so the name decides, not the number of dimensions.
_NO_DECAY = re.compile(
    r"(^|/)((\w+_)?(bias|scale)|position_embed|magnitude|(in|out)put_(min|max))$"
)


@dataclass(frozen=True, config=STRICT)
class OptimizerConfig:
    """The group `optimizer`."""

    name: Literal["adamw"] = "adamw"
    learning_rate: PositiveFloat = 1e-4  # after the warm-up
    warmup_steps: NotNegative = 0  # linear
    # The same as a share of all steps, rounded up; one of the two.
    warmup_ratio: NotNegativeFloat = 0.0
    # Learning rate of its first step; 0: learning_rate / warmup_steps.
    warmup_from: NotNegativeFloat = 0.0
    # 'cosine' (down to end_value at the last step) or 'constant'.
    schedule: Literal["cosine", "constant"] = "cosine"
    end_value: NotNegativeFloat = 0.0
    # Decoupled; biases, norms and position embeddings are spared.
    weight_decay: NotNegativeFloat = 0.01
    clip_norm: NotNegativeFloat = 1.0  # global norm of the gradients; 0: no clipping
    b1: float = 0.9
    b2: float = 0.999


def decay_mask(params: Any) -> Any:
    """True where weight decay applies; the same tree as `params`."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: _NO_DECAY.search(meshes.path_name(path)) is None, params
    )


def learning_rate_schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Learning rate of update number n, counted from 0.

    Args:
        config: the `optimizer` group.
        steps: updates of the whole run; the cosine reaches `end_value` with the last one.

    Raises:
        UserError: the warm-up is given twice, or as more than the whole run.
    """
    if config.warmup_ratio and config.warmup_steps:
        raise UserError("optimizer.warmup_steps and optimizer.warmup_ratio are set; set one to 0")
    if config.warmup_ratio > 1:
        raise UserError(f"optimizer.warmup_ratio={config.warmup_ratio}; expected 0 to 1")
    warmup = config.warmup_steps or math.ceil(config.warmup_ratio * steps)
    peak = config.learning_rate
    # From peak / warmup rather than from 0, which would throw the first batch away.
    start = config.warmup_from or peak / max(1, warmup)
    before = optax.linear_schedule(start, peak, max(1, warmup - 1))
    after = optax.constant_schedule(peak)
    if config.schedule == "cosine":
        after = optax.cosine_decay_schedule(
            peak, max(1, steps - 1 - warmup), alpha=config.end_value / peak
        )
    return optax.join_schedules([before, after], [warmup])


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """The gradient transformation of the `optimizer` group."""
    clip = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm > 0 else []
    adamw = optax.adamw(
        learning_rate_schedule(config, steps),
        b1=config.b1,
        b2=config.b2,
        weight_decay=config.weight_decay,
        mask=decay_mask,
    )
    return optax.chain(*clip, adamw)
