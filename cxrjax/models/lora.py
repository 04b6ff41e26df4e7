"""LoRA: a low-rank branch beside any linear map, put in by rules over parameter paths."""

import dataclasses
import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from cxrjax.errors import UserError
from cxrjax.models.layers import Linear, TokenDropout, matmul


@dataclasses.dataclass(frozen=True)
class LoRAConfig:
    """Rank, alpha and dropout of the branches, and the linear maps that get one.

    `targets` are regular expressions over module paths such as `decoder/layers/attn/q_proj`,
    matched from any '/' to the end: `attn/(q|k|v|o)_proj` names four maps of every block.
    """

    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    targets: Sequence[str] = (r"decoder/layers/attn/(q|k|v|o)_proj",)


class LoRA(nnx.Module):
    """`dropout(x) @ a @ b * alpha / rank` (arXiv 2106.09685, section 4.1).

    `b` starts at zero, so that step 0 equals the base exactly. Dropout acts on the branch's input
    and only where noise is passed in, that is in training.
    """

    def __init__(self, a: Array, b: Array, alpha: float, dropout: float):
        self.a = nnx.Param(a)
        self.b = nnx.Param(b)
        self.scale = alpha / a.shape[-1]
        self.dropout = dropout

    def __call__(
        self, x: Float[Array, "*batch i"], dropout: TokenDropout | None
    ) -> Float[Array, "*batch o"]:
        if dropout is not None and self.dropout > 0:
            x = dropout(x, self.dropout)
        down = matmul(x, self.a[...].astype(x.dtype))
        return matmul(down, self.b[...].astype(x.dtype)) * self.scale


def apply_lora(model: nnx.Module, config: LoRAConfig, rngs: nnx.Rngs) -> list[str]:
    """Puts a LoRA branch beside every linear map that a target names.

    Args:
        model: changed in place.
        config: rank must be at least 1; every target must match something.
        rngs: stream `params` starts the `a` matrices.

    Returns:
        The paths of the maps that got a branch.

    Raises:
        UserError: a target that matches no linear map.
    """
    if config.rank < 1:
        raise UserError(f"lora.rank is {config.rank}: expected at least 1")
    linears = {
        "/".join(map(str, path)): module
        for path, module in nnx.iter_modules(model)
        if isinstance(module, Linear)
    }
    chosen: list[str] = []
    for target in config.targets:
        pattern = re.compile(rf"(?:.*/)?(?:{target})")
        matched = [path for path in sorted(linears) if pattern.fullmatch(path)]
        if not matched:
            raise UserError(
                f"lora.targets: {target!r} matches no linear map; there are "
                + ", ".join(sorted(linears))
            )
        chosen += [path for path in matched if path not in chosen]
    for path in chosen:
        linear = linears[path]
        *stack, in_features, out_features = linear.kernel[...].shape
        # As PEFT: uniform in +-1/sqrt(in_features) (Kaiming with a = sqrt(5)).
        bound = in_features**-0.5
        a = jax.random.uniform(
            rngs.params(), (*stack, in_features, config.rank), minval=-bound, maxval=bound
        )
        b = jnp.zeros((*stack, config.rank, out_features))
        linear.lora = LoRA(a, b, config.alpha, config.dropout)
    return chosen
