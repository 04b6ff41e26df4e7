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


# Path of the parameters that the box loss alone trains (lora.box_rank).
BOX_ADAPTER = "decoder/embedder/lora/"


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
    # The same of the box loss's gradient, which is then clipped by itself, at the cost of a second
    # backward pass (none with lora.box_rank); 0: it is clipped with the others.
    clip_box_norm: NotNegativeFloat = 0.0
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
    clips = config.clip_norm > 0 or config.clip_box_norm > 0
    clip = [_clip_by_adapter(config)] if clips else []
    adamw = optax.adamw(
        learning_rate_schedule(config, steps),
        b1=config.b1,
        b2=config.b2,
        weight_decay=config.weight_decay,
        mask=decay_mask,
    )
    return optax.chain(*clip, adamw)


def clip(limit: float, gradients: Any) -> Any:
    """Gradients whose global norm is at most `limit`; 0: as they are."""
    if not limit:
        return gradients
    return optax.clip_by_global_norm(limit).update(gradients, optax.EmptyState())[0]


def _clip_by_adapter(config: OptimizerConfig) -> optax.GradientTransformation:
    """Clips the box loss's own adapter apart from all else, so that neither shortens the other.

    Without one, `clip_box_norm` is for the step, which has the gradient of each term.
    """

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        named, tree = jax.tree_util.tree_flatten_with_path(gradients)
        is_box = [BOX_ADAPTER in meshes.path_name(path) for path, _ in named]
        if not any(is_box):
            return clip(0 if config.clip_box_norm else config.clip_norm, gradients), state
        limits = {False: config.clip_norm, True: config.clip_box_norm or config.clip_norm}
        parts: dict[bool, list[Any]] = {True: [], False: []}
        for (_, gradient), part in zip(named, is_box, strict=True):
            parts[part].append(gradient)
        clipped = {part: iter(clip(limits[part], leaves)) for part, leaves in parts.items()}
        return jax.tree.unflatten(tree, [next(clipped[part]) for part in is_box]), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)
