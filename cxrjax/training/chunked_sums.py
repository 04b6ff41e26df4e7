"""Sums over many items that are computed a few at a time, with their gradients.

The logits of a vocabulary of 262 thousand for every answer token of a batch are more than a chip
has room for; here they exist for a chunk of the tokens at a time, forward and backward.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from cxrjax.input_pipeline.batch import ArrayLike


def sum_in_chunks(
    sums: Callable[..., tuple[Array, Any]],
    items: tuple[ArrayLike, ...],
    mask: Bool[ArrayLike, "B N"],
    chunk: int,
) -> tuple[Array, Any]:
    """`sums(*items, mask)` over a few items at a time.

    Each row's valid items are moved to its front and chunks without any are skipped, so that
    padding costs no logits. Chunks run along the second axis: the first may be sharded.

    Where a gradient is asked for, a chunk's is taken right behind its sums, while its logits are
    there: they are computed once, and all that waits for the backward pass is a gradient of the
    size of the states.

    Args:
        sums: takes slices of the items and of the mask, returns a scalar sum and another or a tree
            of them. The first is differentiated with respect to the first item and to what `sums`
            closes over; the others are only reported.
        items: [B, N, ...] each.
        chunk: items at a time, over all rows.
    """
    rows, length = mask.shape
    width = min(max(1, chunk // rows), length)
    padding = -length % width
    order = jnp.argsort(~mask, axis=1, stable=True)

    def cut(x: ArrayLike) -> Array:
        """[B, N, ...] sorted, padded and cut into [chunks, B, width, ...]."""
        x = jax.vmap(lambda row, index: row[index])(x, order)
        x = jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(rows, -1, width, *x.shape[2:]), 1, 0)

    states, *rest = (cut(x) for x in (*items, mask))
    # What `sums` closes over has to be an argument for a gradient to reach it.
    of_chunk, closed_over = jax.closure_convert(sums, states[0], *(x[0] for x in rest))

    @jax.custom_vjp
    def total(states: Array, rest: list[Array], closed_over: list[Array]) -> tuple[Array, Any]:
        return _scan_chunks(of_chunk, states, rest, closed_over, None)[0]

    def forward(states: Any, rest: Any, closed_over: list[Any]) -> tuple[Any, Any]:
        # A frozen table is closed over as well; its gradient would be as large as itself.
        wanted = [x.perturbed for x in closed_over]
        values = (states.value, [x.value for x in rest], [x.value for x in closed_over])
        return _scan_chunks(of_chunk, *values, wanted)

    def backward(gradients: tuple[Array, list[Any]], cotangents: tuple[Any, Any]) -> Any:
        of_states, of_closed_over = gradients
        if isinstance(cotangents[0], jax.custom_derivatives.SymbolicZero):
            return None, None, None
        scaled = functools.partial(
            jax.tree.map, lambda g: (g.astype(jnp.float32) * cotangents[0]).astype(g.dtype)
        )
        return scaled(of_states), None, scaled(of_closed_over)

    total.defvjp(forward, backward, symbolic_zeros=True)
    return total(states, rest, closed_over)


def _scan_chunks(
    sums: Callable[..., tuple[Array, Any]],
    states: Float[Array, "chunks B width ..."],
    rest: list[Array],
    closed_over: list[Array],
    wanted: list[bool] | None,
) -> tuple[tuple[Array, Any], Any]:
    """Sums over chunks of `sums(states, *rest, *closed_over)`, and gradients of the first.

    Args:
        rest: what goes with the states; the last is the mask.
        wanted: which of `closed_over` want a gradient; None: there is no gradient at all.

    Returns:
        The sums, and None or their gradients: of the states, [chunks, B, width, ...]; of
        `closed_over`, None where not wanted.
    """
    number = [] if wanted is None else [i for i, is_wanted in enumerate(wanted) if is_wanted]

    def of_chunk(states: Array, rest: tuple[Array, ...]) -> tuple[Any, Any]:
        if wanted is None:
            return sums(states, *rest, *closed_over), None

        def first(states: Array, parameters: list[Array]) -> tuple[Array, Any]:
            replaced = list(closed_over)
            for i, parameter in zip(number, parameters, strict=True):
                replaced[i] = parameter
            return sums(states, *rest, *replaced)

        parameters = [closed_over[i] for i in number]
        (value, other), gradients = jax.value_and_grad(first, argnums=(0, 1), has_aux=True)(
            states, parameters
        )
        return (value, other), gradients

    shapes = jax.eval_shape(of_chunk, states[0], [x[0] for x in rest])
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def add_chunk(carry: Any, chunk: tuple[Array, list[Array]]) -> tuple[Any, Any]:
        present = jnp.any(chunk[1][-1])
        found, gradients = jax.lax.cond(present, of_chunk, lambda *_: zeros, *chunk)
        of_states, of_parameters = (None, None) if gradients is None else gradients
        return jax.tree.map(jnp.add, carry, (found, of_parameters)), of_states

    start = (zeros[0], None if zeros[1] is None else zeros[1][1])
    (found, of_parameters), of_states = jax.lax.scan(add_chunk, start, (states, rest))
    if of_parameters is None:
        return found, None
    of_closed_over: list[Any] = [None] * len(closed_over)
    for i, gradient in zip(number, of_parameters, strict=True):
        of_closed_over[i] = gradient
    return found, (of_states, of_closed_over)
