"""Several LoRA adapters on one base, mixed in one batch: each row goes through its own.

The adapters' matrices lie stacked, the first of each stack in zeros: the base itself. A row's are
gathered by the number of its adapter. Smaller ranks are filled up with zeros, and so are maps that
an adapter leaves alone, which changes nothing.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from cxrjax.errors import UserError
from cxrjax.models import VLM
from cxrjax.models.gemma import Embedder
from cxrjax.models.layers import Linear, TokenDropout, stored_matmul
from cxrjax.models.lora import LoRA
from cxrjax.models.partition import path_of


class MixedLoRA(nnx.Module):
    """Several LoRAs in a `Linear`, of which each row of a batch uses one.

    Attributes:
        a, b: [*stack, M, i, r] and [*stack, M, r, o]; `stack` is the depth of stacked layers.
        scale: [*stack, M].
        which: the adapter of each row, [*stack, B]; set while a program is traced.
    """

    def __init__(self, a: Array, b: Array, scale: Array) -> None:
        self.a, self.b, self.scale = nnx.Param(a), nnx.Param(b), nnx.Param(scale)
        self.which: Any = nnx.data(None)

    def __call__(
        self, x: Float[Array, "*batch i"], kernel: Any, dropout: TokenDropout | None
    ) -> Float[Array, "*batch o"]:
        """The map of `x`, whose first axis are rows or a multiple of them, without bias."""
        rows = x.reshape(self.which.shape[0], -1, x.shape[-1])
        a, b = (y[...][self.which].astype(x.dtype) for y in (self.a, self.b))
        scale = self.scale[...][self.which].astype(x.dtype)[:, None, None]
        branch = jnp.matmul(jnp.matmul(rows, a), b) * scale
        return stored_matmul(x, kernel) + branch.reshape(*x.shape[:-1], -1)


class MixedEmbedder(Embedder):
    """An embedder with trained rows of location tokens for each adapter, [M, 1024, D]."""

    def __init__(self, embedder: Embedder, rows: Array) -> None:
        self.width, self.softcap = embedder.width, embedder.softcap
        self.input_scale, self.head = embedder.input_scale, embedder.head
        self.loc_token_start = embedder.loc_token_start
        self.table = embedder.table
        self.loc_delta = self.lora = nnx.data(None)
        self.loc_rows = nnx.Param(rows)
        self.which: Any = nnx.data(None)

    def encode(self, tokens: Int[Array, "*batch"], dtype: Any) -> Float[Array, "*batch D"]:
        x = self.table[...][tokens]
        index = tokens - self.loc_token_start
        is_loc = (index >= 0) & (index < self.loc_rows.shape[1])
        row = self.which.reshape(-1, *[1] * (tokens.ndim - 1))
        delta = self.loc_rows[...][row, jnp.clip(index, 0, self.loc_rows.shape[1] - 1)]
        x = x + jnp.where(is_loc[..., None], delta, 0.0)
        return x.astype(dtype) * self.input_scale

    def decode(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        softcap, self.softcap = self.softcap, None
        logits = super().decode(hidden)
        self.softcap = softcap
        if self.head is not None:
            return self._cap(logits)
        rows = self.loc_rows[...][self.which].astype(hidden.dtype)
        states = hidden.reshape(len(rows), -1, hidden.shape[-1])
        delta = jnp.einsum("bqd,bvd->bqv", states, rows, preferred_element_type=jnp.float32)
        start, stop = self.loc_token_start, self.loc_token_start + rows.shape[1]
        delta = delta.reshape(*hidden.shape[:-1], -1)
        return self._cap(logits.at[..., start:stop].add(delta))


def choose_adapters(modules: Sequence[nnx.Module], which: Int[Array, " B"]) -> None:
    """Sets the adapter of each row. Traceable."""
    for module in modules:
        for _, inner in nnx.iter_modules(module):
            if isinstance(inner, MixedLoRA):
                stack = inner.scale.shape[:-1]
                inner.which = jnp.broadcast_to(which, (*stack, *which.shape))
            elif isinstance(inner, MixedEmbedder):
                inner.which = which


class AdapterParts(NamedTuple):
    """Parameters of an adapter: LoRAs by path, rows [1024, D] of location tokens."""

    loras: dict[str, LoRA]
    rows: Array | None


def adapter_parts(model: VLM) -> AdapterParts:
    """The adapter of a model.

    Raises:
        UserError: it is of a kind that cannot be mixed (DoRA, an adapter of the box loss).
    """
    if model.decoder.embedder.lora is not None:
        raise UserError(
            "--adapter: adapters of the box loss (lora.box_rank) cannot be mixed; serve it alone "
            "with --workdir"
        )
    loras = {
        path_of(path): module.lora
        for path, module in nnx.iter_modules(model)
        if isinstance(module, Linear) and module.lora is not None
    }
    if any(lora.magnitude is not None for lora in loras.values()):
        raise UserError("--adapter: DoRA adapters cannot be mixed; merge it (convert --to=merged)")
    delta = model.decoder.embedder.loc_delta
    return AdapterParts(loras, None if delta is None else delta[...])


def mix_adapters(base: VLM, adapters: Sequence[AdapterParts]) -> None:
    """Puts stacked adapters into a base without adapters, in place."""
    linears = {
        path_of(path): module
        for path, module in nnx.iter_modules(base)
        if isinstance(module, Linear)
    }
    for path in sorted({path for one in adapters for path in one.loras}):
        linear = linears[path]
        loras = [one.loras.get(path) for one in adapters]
        linear.lora = _stacked(linear.kernel.get_value().shape, loras)
    found = [one.rows for one in adapters if one.rows is not None]
    if found:
        none = jnp.zeros_like(found[0])
        stacked = jnp.stack([none, *(none if one.rows is None else one.rows for one in adapters)])
        base.decoder.embedder = MixedEmbedder(base.decoder.embedder, stacked)


def _stacked(shape: tuple[int, ...], loras: Sequence[Any]) -> MixedLoRA:
    *stack, inner, outer = shape
    rank = max(lora.a.shape[-1] for lora in loras if lora is not None)
    a, b = [jnp.zeros((*stack, inner, rank))], [jnp.zeros((*stack, rank, outer))]
    for lora in loras:
        if lora is None:
            a, b = [*a, a[0]], [*b, b[0]]
            continue
        missing = rank - lora.a.shape[-1]
        none = [(0, 0)] * len(stack)
        a.append(jnp.pad(lora.a[...], [*none, (0, 0), (0, missing)]))
        b.append(jnp.pad(lora.b[...], [*none, (0, missing), (0, 0)]))
    scales = jnp.array([0.0, *(0.0 if lora is None else lora.scale for lora in loras)])
    axis = len(stack)
    return MixedLoRA(
        jnp.stack(a, axis=axis),
        jnp.stack(b, axis=axis),
        jnp.broadcast_to(scales, (*stack, len(scales))),
    )
