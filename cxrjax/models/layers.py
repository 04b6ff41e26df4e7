"""Layers: dropout of tokens, matrix products, linear maps, norms, scans, and a box head."""

import functools
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key, UInt32

from cxrjax.models.quantize import QuantizedKernel
from cxrjax.models.splash import SAVED


@flax.struct.dataclass
class TokenDropout:
    """Dropout whose noise is a function of the question alone, not of its place in a batch.

    A sequence is [context tokens | question 0's slots | question 1's slots ...]. The noise of a
    question's slots comes from the question's global index, that of the context from the index of
    the row's first question. So micro-batches, devices and hosts draw what one large batch would.
    """

    context_keys: Key[Array, " B"]  # one key a row, [B]
    # One key a question, [B, Q]; Q = 0 where a sequence is context alone.
    question_keys: Key[Array, "B Q"]
    # How many leading tokens of a sequence are context.
    num_context: int = flax.struct.field(pytree_node=False)
    num_slots: int = flax.struct.field(pytree_node=False)  # slots of a question, L
    # Where the text is packed, the slot in 0 .. Q * L - 1 of each packed token, [B, T].
    packing: Int[Array, "B T"] | None = None
    stream: UInt32[Array, ""] | int = 0  # of this layer and map

    @classmethod
    def of_questions(
        cls,
        key: Key[Array, ""],
        question_index: Int[Array, "B Q"],
        num_context: int,
        num_slots: int,
        packing: Int[Array, "B T"] | None = None,
    ) -> "TokenDropout":
        """Noise for rows that hold the questions of these global indices."""
        keys = jax.vmap(jax.vmap(lambda index: jax.random.fold_in(key, index)))(question_index)
        # Folded once more, so that context and question never share noise.
        context = jax.vmap(lambda k: jax.random.fold_in(k, 1))(keys[:, 0])
        return cls(context, keys, num_context, num_slots, packing)

    def of_context(self) -> "TokenDropout":
        """The noise for a sequence of context tokens alone, as in the vision tower."""
        return self.replace(question_keys=self.question_keys[:, :0])  # type: ignore[attr-defined]

    def of_text(self) -> "TokenDropout":
        """The noise for the questions' slots without the context before them."""
        return self.replace(num_context=0)  # type: ignore[attr-defined]

    def of_images(self, num_images: int) -> "TokenDropout":
        """The noise for the tower where each row has several images: one key an image."""
        images = jnp.arange(num_images)
        keys = jax.vmap(lambda k: jax.vmap(lambda i: jax.random.fold_in(k, i))(images))
        return self.replace(  # type: ignore[attr-defined]
            context_keys=keys(self.context_keys).reshape(-1),
            question_keys=jnp.repeat(self.question_keys, num_images, axis=0),
        )

    def fold_in(self, data: int | Int[Array, ""]) -> "TokenDropout":
        """Another, independent noise: of another layer, or of another linear map."""
        x = jnp.uint32(self.stream) * jnp.uint32(5) + jnp.uint32(data) + jnp.uint32(0xE6546B64)
        return self.replace(stream=_mixed(x))  # type: ignore[attr-defined]

    def __call__(self, x: Float[Array, "B S D"], rate: float) -> Float[Array, "B S D"]:
        """Zeroes entries with probability `rate` and scales the rest by 1 / (1 - rate)."""
        rows, length, width = x.shape
        num_context = self.num_context if self.question_keys.shape[1] else length

        def words(keys: Key[Array, "B n"], count: int) -> UInt32[Array, "B m 2"]:
            """Two words for each of `count` tokens to a key: its own, the token and the stream."""
            of_key = jax.random.key_data(keys)[:, :, None]
            token = jnp.arange(count, dtype=jnp.uint32)
            first = jnp.broadcast_to(of_key[..., 0] ^ self.stream, (*keys.shape, count))
            return jnp.stack([first, of_key[..., 1] + token], axis=-1).reshape(rows, -1, 2)

        of_tokens = [words(self.context_keys[:, None], num_context)]
        if self.question_keys.shape[1]:
            text = words(self.question_keys, self.num_slots)
            if self.packing is not None:
                text = jnp.take_along_axis(text, self.packing[..., None], axis=1)
            of_tokens.append(text)
        kept = _drawn(jnp.concatenate(of_tokens, axis=1), width) >= round(rate * 2**16)
        return jnp.where(kept, x / (1.0 - rate), jnp.zeros((), x.dtype))


def _mixed(x: UInt32[Array, "*n"]) -> UInt32[Array, "*n"]:
    """MurmurHash3's finalizer: every bit reaches every bit."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def _drawn(words: UInt32[Array, "B S 2"], width: int) -> UInt32[Array, "B S D"]:
    """Uniform 16-bit numbers: those of a token are a hash of its words and of their place.

    A counter hash rather than the generator of `jax.random`, whose twenty rounds were a third of a
    step's vector operations; each hash is two numbers. Tokens count from starts and by odd steps of
    their own, so that none repeats another's row.
    """
    start = _mixed(words[..., 0] + _mixed(words[..., 1]))[..., None]
    step = _mixed(words[..., 1] ^ jnp.uint32(0x9E3779B9))[..., None] | jnp.uint32(1)
    hashed = _mixed(start + step * jnp.arange(-(-width // 2), dtype=jnp.uint32))
    return jnp.concatenate([hashed >> 16, hashed & jnp.uint32(0xFFFF)], axis=-1)[..., :width]


def matmul(x: Float[Array, "*batch i"], kernel: Float[Array, "i o"]) -> Float[Array, "*batch o"]:
    """`x @ kernel` with the leading axes flattened.

    The gradient of the kernel then contracts one axis instead of several; XLA's CPU backend does
    the latter through a slow strided copy (docs/log.md).
    """
    return (x.reshape(-1, x.shape[-1]) @ kernel).reshape(*x.shape[:-1], kernel.shape[-1])


def stored_matmul(
    x: Float[Array, "*batch i"], kernel: Float[Array, "i o"] | QuantizedKernel
) -> Float[Array, "*batch o"]:
    """`x @ kernel` in the dtype of `x`, whatever the kernel is stored in."""
    if isinstance(kernel, QuantizedKernel):
        # The gradient of x wants the kernel again: dequantised anew rather than kept, one a layer.
        return jax.checkpoint(lambda x, kernel: matmul(x, kernel.astype(x.dtype)))(x, kernel)
    return matmul(x, kernel.astype(x.dtype))


class Linear(nnx.Module):
    """`x @ kernel + bias`, plus a LoRA branch where one has been put in (lora.py).

    Parameters are kept in their own dtype and cast to the dtype of `x` for the product. A frozen
    kernel can be a `QuantizedKernel`.
    """

    def __init__(
        self, in_features: int, out_features: int, *, rngs: nnx.Rngs, use_bias: bool = False
    ):
        stddev = in_features**-0.5
        self.kernel = nnx.Param(
            stddev * jax.random.normal(rngs.params(), (in_features, out_features))
        )
        self.bias = nnx.data(nnx.Param(jnp.zeros(out_features)) if use_bias else None)
        self.lora: Any = nnx.data(None)

    def __call__(
        self, x: Float[Array, "*batch i"], dropout: TokenDropout | None = None
    ) -> Float[Array, "*batch o"]:
        kernel = self.kernel.get_value()
        y = stored_matmul(x, kernel) if self.lora is None else self.lora(x, kernel, dropout)
        if self.bias is not None:
            y = y + self.bias[...].astype(x.dtype)
        return y


# The parameters of a map that may be infinite.
BOUNDS = ("input_min", "input_max", "output_min", "output_max")


class ClippedLinear(Linear):
    """A linear map without bias whose input and output are kept within bounds.

    The bounds are published with the weights, and trained by nobody: they have no gradient here.
    """

    def __init__(self, in_features: int, out_features: int, *, rngs: nnx.Rngs):
        super().__init__(in_features, out_features, rngs=rngs)
        self.input_min, self.output_min = (nnx.Param(jnp.array(-jnp.inf)) for _ in range(2))
        self.input_max, self.output_max = (nnx.Param(jnp.array(jnp.inf)) for _ in range(2))

    def __call__(
        self, x: Float[Array, "*batch i"], dropout: TokenDropout | None = None
    ) -> Float[Array, "*batch o"]:
        def within(y: Array, least: Any, most: Any) -> Array:
            least, most = (jax.lax.stop_gradient(b[...]).astype(y.dtype) for b in (least, most))
            return jnp.clip(y, least, most)

        y = super().__call__(within(x, self.input_min, self.input_max), dropout)
        return within(y, self.output_min, self.output_max)


class RMSNorm(nnx.Module):
    """RMS norm in float32, scaled by 1 + scale as Gemma's, by scale as Llama's, or not at all."""

    def __init__(self, width: int, eps: float = 1e-6, *, plain: bool = False, scaled: bool = True):
        self.eps, self.plain = eps, plain
        start = jnp.ones(width) if plain else jnp.zeros(width)
        self.scale = nnx.data(nnx.Param(start) if scaled else None)

    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        scale = jnp.ones((), jnp.float32)
        if self.scale is not None:
            scale = self.scale[...].astype(jnp.float32)
            scale = scale if self.plain else 1.0 + scale
        return rms_normed(x, scale, self.eps)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def rms_normed(
    x: Float[Array, "*batch d"], scale: Float[Array, "..."], eps: float
) -> Float[Array, "*batch d"]:
    """`x` over its root mean square, times a scale of [d] or one for all; computed in float32.

    The gradients keep `x` as it came: plain differentiation keeps it and what is computed of it in
    float32, which was most of what a bfloat16 layer keeps.
    """
    normed, _ = _normed(x, eps)
    return (normed * scale).astype(x.dtype)


def _normed(x: Array, eps: float) -> tuple[Array, Array]:
    """The normed float32 `x`, and what it was multiplied by."""
    x32 = x.astype(jnp.float32)
    factor = jax.lax.rsqrt(jnp.mean(x32**2, axis=-1, keepdims=True) + eps)
    return x32 * factor, factor


def _norm_forward(x: Array, scale: Array, eps: float) -> tuple[Array, tuple[Array, Array]]:
    return rms_normed(x, scale, eps), (x, scale)


def _norm_backward(eps: float, kept: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    x, scale = kept
    # Behind a barrier, or XLA would find the forward pass's float32 values and keep them after all.
    x, dy = jax.lax.optimization_barrier((x, dy))
    (normed, factor), dy32 = _normed(x, eps), dy.astype(jnp.float32)
    scaled = dy32 * scale
    dx = factor * (scaled - normed * jnp.mean(scaled * normed, axis=-1, keepdims=True))
    dscale = jnp.sum(dy32 * normed, axis=tuple(range(x.ndim - scale.ndim)))
    return dx.astype(x.dtype), dscale


rms_normed.defvjp(_norm_forward, _norm_backward)


class LayerNorm(nnx.Module):
    """The towers' norm: in float32, with scale and bias."""

    def __init__(self, width: int, eps: float = 1e-6):
        self.eps = eps
        self.scale = nnx.Param(jnp.ones(width))
        self.bias = nnx.Param(jnp.zeros(width))

    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        x32 = x.astype(jnp.float32)
        mean = jnp.mean(x32, axis=-1, keepdims=True)
        variance = jnp.mean((x32 - mean) ** 2, axis=-1, keepdims=True)
        normed = (x32 - mean) * jax.lax.rsqrt(variance + self.eps)
        return (normed * self.scale[...] + self.bias[...]).astype(x.dtype)


_KEEP_ATTENTION = jax.checkpoint_policies.save_only_these_names(SAVED)
_REMAT_POLICIES: dict[str, Callable[..., bool] | None] = {
    "products": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable, _KEEP_ATTENTION
    ),
    "attention": _KEEP_ATTENTION,
    "full": None,
}
# What of a layer is kept for the backward pass, from most memory to least: everything; what comes
# out of matrix products and the attention; what comes out of the attention; the layer's input
# alone. The rest is computed again.
REMAT = ("none", *_REMAT_POLICIES)


def recomputes(remat: str) -> bool:
    """Returns whether a policy repeats matrix products in the backward pass."""
    return remat in ("attention", "full")


def stack_layers(make: Callable[[nnx.Rngs], nnx.Module], depth: int, rngs: nnx.Rngs) -> Any:
    """One module whose parameters carry a leading axis of `depth` layers."""

    @nnx.split_rngs(splits=depth)
    @nnx.vmap(in_axes=(0,), out_axes=0)
    def make_all(rngs: nnx.Rngs) -> nnx.Module:
        return make(rngs)

    return make_all(rngs)


def scan_layers(
    layers: nnx.Module | list[Any],
    apply: Callable[[Any, Array, Int[Array, ""]], tuple[Array, Any]],
    x: Array,
    *,
    remat: str,
    unroll: bool,
    keep: Sequence[int] = (),
) -> tuple[Array, Any]:
    """Applies stacked layers one after the other.

    Args:
        layers: what `stack_layers` returned; or one by one (`take_apart`), for a pass without
            gradients: a server need not cut them out of the stack then.
        apply: (layer, x, layer index) -> (x, output of that layer).
        x: the residual stream.
        remat: a name in `REMAT`: what is kept for the backward pass.
        unroll: write the loop out; on a CPU a rolled scan costs about a fifth more time.
        keep: layers whose residual stream is returned in place of outputs, of which there are none.

    Returns:
        The residual stream and the layers' outputs, stacked.
    """
    if isinstance(layers, list | nnx.List):
        outputs, streams = [], []
        for index, layer in enumerate(layers):
            x, output = apply(layer, x, jnp.asarray(index))
            outputs.append(output)
            streams.append(x)
        if keep:
            return x, jnp.stack([streams[index] for index in keep])
        return x, jax.tree.map(lambda *each: jnp.stack(each), *outputs)
    graphdef, state = nnx.split(layers)
    depth = jax.tree.leaves(state)[0].shape[0]

    def body(x: Array, scanned: tuple[Any, Array]) -> tuple[Array, Any]:
        layer_state, index = scanned
        return apply(nnx.merge(graphdef, layer_state), x, index)

    if remat not in REMAT:
        raise ValueError(f"remat {remat!r} is unknown: expected one of {', '.join(REMAT)}")
    if remat != "none":
        # A scan body is never merged with its neighbours, so the barrier against common
        # subexpression elimination would only cost time.
        body = jax.checkpoint(body, prevent_cse=unroll, policy=_REMAT_POLICIES[remat])
    scanned = (state, jnp.arange(depth))
    if not keep:
        return jax.lax.scan(body, x, scanned, unroll=unroll)

    # Beside the body, so that the backward pass does not keep these at every layer.
    def keeping(carried: tuple[Array, Array], scanned: tuple[Any, Array]) -> tuple[Any, None]:
        x, kept = carried
        x, _ = body(x, scanned)
        here = jnp.asarray(keep) == scanned[1]
        return (x, jnp.where(here.reshape(-1, *[1] * x.ndim), x, kept)), None

    kept = jnp.zeros((len(keep), *x.shape), x.dtype)
    return jax.lax.scan(keeping, (x, kept), scanned, unroll=unroll)[0]


def take_apart(layers: Any) -> list[Any]:
    """The layers of `stack_layers` one by one."""
    graphdef, state = nnx.split(layers)
    depth = jax.tree.leaves(state)[0].shape[0]
    return [
        nnx.merge(graphdef, jax.tree.map(lambda leaf, i=i: leaf[i], state)) for i in range(depth)
    ]


def salt(name: str) -> int:
    """A number for a name, the same in every process (`hash` of a string is not)."""
    return zlib.crc32(name.encode()) & 0x7FFFFFFF
