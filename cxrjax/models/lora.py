"""LoRA: a low-rank branch beside any linear map, put in by rules over parameter paths."""

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Any

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
    """`x @ kernel + dropout(x) @ a @ b * alpha / rank` (arXiv 2106.09685, section 4.1).

    `b` starts at zero, so that step 0 equals the base exactly. Dropout acts on the branch's input
    and only where noise is passed in, that is in training.
    """

    def __init__(self, a: Array, b: Array, alpha: float, dropout: float):
        self.a = nnx.Param(a)
        self.b = nnx.Param(b)
        self.scale = alpha / a.shape[-1]
        self.dropout = dropout

    def __call__(
        self,
        x: Float[Array, "*batch i"],
        kernel: Float[Array, "i o"],
        dropout: TokenDropout | None,
    ) -> Float[Array, "*batch o"]:
        """The map of `x` by the frozen kernel and the branch, without bias."""
        a, b = self.a[...].astype(x.dtype), self.b[...].astype(x.dtype)
        dropped = x
        if dropout is not None and self.dropout > 0:
            dropped = dropout(x, self.dropout)
        elif folding_pays(x.size // x.shape[-1], *kernel.shape) and x.dtype == jnp.float32:
            return folded_matmul(x, kernel, a, b, self.scale)
        return matmul(x, kernel) + matmul(matmul(dropped, a), b) * self.scale


def folding_pays(tokens: int, in_features: int, out_features: int) -> bool:
    """Whether `x @ (kernel + scale * a @ b)` is cheaper than the branch beside `x @ kernel`.

    Multiplications, forward and backward, beyond those of the kernel alone, with tokens T, rank r
    and features i and o:

        beside:  3 T r (i + o)                 the two products, twice more for the gradients
        folded:  2 T r (i + o) + 2 r i o       gradients of a and b; a @ b, again in the backward

    The rule wants the saving, T (i + o), to be twice the cost, 2 i o: adding to the kernel takes
    time that the count leaves out. The rank drops out. Measured on two CPU cores at T = 2,500 and
    r = 16, gradients included: a fifth to a third less time for kernels of 128x128 to 512x512
    (docs/log.md). Folding rounds the sum to the dtype of `x`, so it is for float32 alone: bfloat16
    would swallow the branch.
    """
    return tokens * (in_features + out_features) >= 4 * in_features * out_features


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def folded_matmul(
    x: Float[Array, "*batch i"],
    kernel: Float[Array, "i o"],
    a: Float[Array, "i r"],
    b: Float[Array, "r o"],
    scale: float,
) -> Float[Array, "*batch o"]:
    """`x @ (kernel + scale * a @ b)`; the gradients of `a` and `b` go through small products.

    Plain differentiation would build the kernel's own gradient on the way to those of `a` and `b`.
    """
    return matmul(x, kernel + scale * (a @ b))


def _folded_forward(x: Array, kernel: Array, a: Array, b: Array, scale: float) -> tuple[Array, Any]:
    # The folded kernel is made again in the backward pass: cheap, and one less per layer to keep.
    return folded_matmul(x, kernel, a, b, scale), (x, kernel, a, b)


def _folded_backward(scale: float, kept: Any, dy: Array) -> tuple[Array, Array, Array, Array]:
    x, kernel, a, b = kept
    dx = matmul(dy, (kernel + scale * (a @ b)).T)
    x, dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    dkernel = x.T @ dy  # the compiler drops it where the kernel is frozen
    (in_features, out_features), rank = kernel.shape, a.shape[-1]
    if in_features * out_features < 2 * rank * (in_features + out_features):
        return dx, dkernel, scale * (dkernel @ b.T), scale * (a.T @ dkernel)
    return dx, dkernel, x.T @ (scale * (dy @ b.T)), (scale * (x @ a)).T @ dy


folded_matmul.defvjp(_folded_forward, _folded_backward)


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
