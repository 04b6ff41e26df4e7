"""Frozen kernels stored in 8 or 4 bits, made whole again for each product (QLoRA's base).

Numbers and tables are qwix's (https://github.com/google/qwix); what is ours is that two 4-bit codes
share a byte on every backend (JAX keeps one to a byte on CPUs), that stacked layers are quantised
one at a time, and that no whole kernel is kept for the backward pass.
"""

import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Integer

QUANTIZED_DTYPES = ("int8", "nf4")
# Rows of an nf4 kernel that share a scale, per output feature (QLoRA's block size: arXiv
# 2305.14314, section 3). Kernels are padded with zeros to a multiple: SigLIP has maps of 588 and
# 4,304 rows.
TILE = 64


@flax.struct.dataclass
class QuantizedKernel:
    """A kernel [*stack, i, o] in 8 or 4 bits a weight; `stack` is the depth of stacked layers."""

    # int8: [*stack, i, o], int8. nf4: [*stack, I / 2, o], uint8, where I is i padded to a multiple
    # of `TILE`: of each tile, the first half's codes in the low four bits.
    codes: Integer[Array, "*stack rows o"]
    # float32; int8: [*stack, 1, o], one an output feature; nf4: [*stack, I / TILE, o].
    scale: Float[Array, "*stack tiles o"]
    in_features: int = flax.struct.field(pytree_node=False)  # i
    qtype: str = flax.struct.field(pytree_node=False)  # one of `QUANTIZED_DTYPES`

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the kernel that it stands for."""
        return (*self.codes.shape[:-2], self.in_features, self.codes.shape[-1])

    @property
    def ndim(self) -> int:
        """The shape of the kernel that it stands for."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Weights, not bytes."""
        return self.codes.size // self.codes.shape[-2] * self.in_features

    def astype(self, dtype: Any) -> Float[Array, "*stack i o"]:
        """The kernel, as near as its codes have it."""
        codes, qtype = self.codes, jnp.int8
        if self.qtype == "nf4":
            *stack, rows, out_features = codes.shape
            tiles = codes.reshape(*stack, 2 * rows // TILE, TILE // 2, out_features)
            tiles = jnp.concatenate([tiles & 15, tiles >> 4], axis=-2)
            codes, qtype = tiles.reshape(*stack, 2 * rows, out_features), "nf4"
        import qwix  # here: what is not quantised does without

        kernel = qwix.dequantize(qwix.QArray(codes, self.scale, qtype=qtype))
        return kernel[..., : self.in_features, :].astype(dtype)


@functools.partial(jax.jit, static_argnames="qtype")
def quantize_kernel(kernel: Float[Array, "*stack i o"], qtype: str) -> QuantizedKernel:
    """Rounds a kernel, stacked layers one after the other.

    Off by at most half a step. int8: 1/255 of the largest weight of the output feature. nf4: 0.152
    of the largest weight of the tile (half the gap between the two lowest of its 16 values).

    The kernel has any floating dtype and at most one stacking axis; `qtype` is one of
    `QUANTIZED_DTYPES`.
    """
    if kernel.ndim > 2:
        return jax.lax.map(lambda one: quantize_kernel(one, qtype), kernel)
    in_features, out_features = kernel.shape
    kernel = kernel.astype(jnp.float32)
    if qtype == "int8":
        import qwix  # here: what is not quantised does without

        found = qwix.quantize(kernel, jnp.int8, channelwise_axes=(1,))
        return QuantizedKernel(found.qvalue, found.scale, in_features, qtype)
    kernel = jnp.pad(kernel, ((0, -in_features % TILE), (0, 0)))
    import qwix  # here: what is not quantised does without

    found = qwix.quantize(kernel, "nf4", channelwise_axes=(1,), tiled_axes={0: TILE})
    tiles = found.qvalue.astype(jnp.uint8).reshape(-1, TILE, out_features)
    low, high = tiles[:, : TILE // 2], tiles[:, TILE // 2 :]
    codes = (low | high << 4).reshape(-1, out_features)
    return QuantizedKernel(codes, found.scale, in_features, qtype)


def quantize_params(params: nnx.State, qtype: str) -> nnx.State:
    """Kernels of linear maps quantised; everything else that is a floating number in bfloat16.

    The rest is norms, biases, embeddings of tokens and positions. One kernel at a time, and of a
    stack one layer at a time, so the peak is `params`, what has become of it, and one layer.
    """

    def convert(path: tuple[Any, ...], leaf: Any) -> Any:
        value = leaf.get_value()
        if path[-1] == "kernel":
            return leaf.replace(quantize_kernel(value, qtype))
        floating = jnp.issubdtype(value.dtype, jnp.floating)
        return leaf.replace(value.astype(jnp.bfloat16)) if floating else leaf

    flat = nnx.to_flat_state(params)
    return nnx.from_flat_state([(path, convert(path, leaf)) for path, leaf in flat])
