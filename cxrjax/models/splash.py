"""Attention by the splash kernels of JAX (Pallas, TPU), whose masks are rules instead of arrays.

A dense score matrix never exists, blocks that a mask leaves empty are not computed, and padding is
told by segment ids. The rule has to be known when the program is compiled, so it is about slots,
and slots have to lie where the rule says: prompts are padded on the left, which shifts distances
between tokens from row to row. Where a sliding window makes distances count, tokens are put in an
order first in which the distance of two slots is the distance of their tokens.

Source of the kernels: jax.experimental.pallas.ops.tpu.splash_attention. On an NVIDIA GPU the same
rules go, as a mask of one sequence, to cuDNN's flash attention (jax.nn.dot_product_attention).
"""

import dataclasses
import functools
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from cxrjax.models.presets import DecoderConfig, VLMConfig

# How a model attends. "splash_interpreted" runs the kernels without a TPU, far too slowly for
# anything but tests; "cudnn_interpreted" is XLA in the place of cuDNN, on any machine.
AttentionKind = Literal["dense", "splash", "splash_interpreted", "cudnn", "cudnn_interpreted"]
ATTENTION = ("auto", "dense", "splash", "cudnn")
_KINDS = get_args(AttentionKind)

# Under this name `remat` keeps the attention's outputs (layers.py).
SAVED = "attention"
_LANES = 128
# Blocks of queries and keys; larger ones do not leave room in a v5e's 16 MB of VMEM for the
# backward kernel at a head size of 256.
_LARGEST_BLOCK = 512
_OF_CUDNN = ("cudnn", "cudnn_interpreted")
# Of the mesh (cxrjax/distributed/meshes.py): what splits rows, and what splits heads.
_ROW_AXES = ("replica", "data", "fsdp")
_HEAD_AXIS = "tensor"


def resolve_attention(choice: str, device: Any, dtype: str, sizes: VLMConfig) -> AttentionKind:
    """'auto' as the kernels that a device has for a model; other choices stay.

    cuDNN's are chosen on Hopper, where they were measured (docs/log/kernels.md), for activations
    of 16 bits and heads that they take; Ampere's take none of 256.

    Args:
        device: of `jax.devices()`.
        dtype: of the activations.
    """
    if choice == "auto":
        if device.platform == "tpu":
            return "splash"
        heads = [sizes.decoder.head_dim]
        if sizes.vision is not None:
            heads.append(sizes.vision.width // sizes.vision.num_heads)
        taken = dtype != "float32" and all(size <= 256 and size % 8 == 0 for size in heads)
        is_hopper = str(getattr(device, "compute_capability", "")).startswith("9.")
        return "cudnn" if device.platform == "gpu" and is_hopper and taken else "dense"
    if choice not in _KINDS:
        raise ValueError(f"attention {choice!r} is unknown: expected one of {', '.join(ATTENTION)}")
    return choice  # type: ignore[return-value]


@dataclasses.dataclass(frozen=True)
class VisibilityRule:
    """The visibility between slots of [context | question 0 | question 1 ...].

    What `Visibility` (layout.py) says by masks. A slot always sees itself, so that no softmax is
    over nothing; padding sees padding alone, by segment ids.
    """

    num_context: int  # C
    num_questions: int  # Q
    num_slots: int  # slots of a question, L
    num_prefix: int  # P, leading slots of a question that hold its prompt
    causal: bool  # prompts see the past alone; else all of themselves
    # Where not causal, whether the context sees the only question's prompt.
    context_sees_prefix: bool
    # Where causal, (start, stop) of the images in the context; each sees all of itself.
    images: tuple[tuple[int, int], ...]
    # How many slots back a slot sees, itself among them; None: all. Where not causal, context and
    # prompt see each other all the same.
    window: int | None

    @property
    def length(self) -> int:
        return self.num_context + self.num_questions * self.num_slots

    def __call__(self, query: Any, key: Any) -> Any:
        """Returns which queries see which keys: integers to booleans, NumPy's or in a kernel."""
        starts = [self.num_context + i * self.num_slots for i in range(1, self.num_questions)]

        def question(slot: Any) -> Any:
            # Counted, since vectors on a TPU have no integer division.
            return sum(((slot >= start) * 1 for start in starts), slot * 0)

        key_is_context = key < self.num_context
        own = (key >= self.num_context) & (query >= self.num_context)
        if starts:
            own = own & (question(query) == question(key))
        seen = (key <= query) & (key_is_context | own)
        if self.causal:
            distance = query - key
            if starts:  # every question's slots follow the context, wherever they stand
                distance = distance - key_is_context * question(query) * self.num_slots
            if self.window is not None:
                seen &= distance < self.window
            for start, stop in self.images:
                within = (query >= start) & (query < stop) & (key >= start) & (key < stop)
                if self.window is not None:
                    within &= distance < self.window
                seen |= within
            return seen | (query == key)
        if self.window is not None:
            seen &= query - key < self.window
        if self.context_sees_prefix:
            prefix = self.num_context + self.num_prefix
            seen |= (query < prefix) & (key < prefix)
        else:
            offset = self.num_context + question(key) * self.num_slots + self.num_prefix
            seen |= (own & (key < offset)) | ((query < self.num_context) & key_is_context)
        return seen | (query == key)


class SplashLayout(NamedTuple):
    """The facts of a sequence that the kernels need."""

    rule: VisibilityRule  # in global layers
    # In those with a sliding window; None: there are none, or it holds everything.
    local_rule: VisibilityRule | None
    present: Bool[Array, "B S"]  # which tokens are there, [B, S]
    # Which token stands in each slot of the rules' sequence, [B, S]; None: as they are, and a local
    # rule is of layers of another kind (`DecoderConfig.global_head_dim`).
    order: Int[Array, "B S"] | None
    kind: AttentionKind  # what computes it


def make_splash_layout(
    config: DecoderConfig,
    context_mask: Bool[Array, "B C"] | None,
    images: tuple[tuple[int, int], ...],
    num_context: int,
    mask: Bool[Array, "B Q L"],
    num_prefix: int,
    *,
    context_sees_prefix: bool,
    kind: AttentionKind = "splash",
) -> SplashLayout | None:
    """The rules of a batch whose questions stand in their slots; None where slots do not tell.

    That is so under a binding window where the context has padding, or where several questions
    with full prefix attention share a context: such sequences need masks. cuDNN caps no scores
    and has no heads of 512.

    Args:
        config, mask, num_prefix, context_sees_prefix: as in `make_layout`.
        context_mask: which of the context's tokens are there; None: all.
        images: (start, stop) of each image in the context, the same in every row.
    """
    beyond_cudnn = config.attn_softcap is not None or config.global_head_dim is not None
    if kind in _OF_CUDNN and beyond_cudnn:
        return None
    rows, questions, num_slots = mask.shape
    causal = config.prefix_attention != "full"
    rule = VisibilityRule(
        num_context=num_context,
        num_questions=questions,
        num_slots=num_slots,
        num_prefix=num_prefix,
        causal=causal,
        context_sees_prefix=context_sees_prefix and not causal,
        images=images if config.prefix_attention == "causal" else (),
        window=None,
    )
    # Where images see all of themselves in these alone.
    near = dataclasses.replace(rule, images=images) if config.prefix_attention == "local" else None
    context = jnp.ones((rows, num_context), bool) if context_mask is None else context_mask
    present = jnp.concatenate([context, mask.reshape(rows, -1)], axis=1)
    window = config.window
    if window is None or num_context + num_slots <= window:
        return SplashLayout(rule, near, present, None, kind)
    if context_mask is not None or not (causal or rule.context_sees_prefix):
        return None
    if causal:  # each question's tokens directly behind the context, its padding behind them
        text = jnp.argsort(~mask, axis=2, stable=True)
        text = text + num_context + num_slots * jnp.arange(questions)[:, None]
        before = jnp.broadcast_to(jnp.arange(num_context), (rows, num_context))
        order = jnp.concatenate([before, text.reshape(rows, -1)], axis=1)
    else:  # the prompt's padding in front of everything, so that prompts end where they did
        leading = ~present & (jnp.arange(rule.length) < num_context + num_prefix)
        order = jnp.argsort(~leading, axis=1, stable=True)
    local = dataclasses.replace(near or rule, window=window)
    return SplashLayout(rule, local, present, order, kind)


def attend_by_rule(
    q: Float[Array, "B S N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K H"],
    layout: SplashLayout,
    is_local: Bool[Array, ""] | bool,
    softcap: float | None = None,
) -> Float[Array, "B S N H"]:
    """Softmax attention of scaled queries as a layout says; nonsense where a query is padding."""

    def of_rule(rule: VisibilityRule, q: Array, k: Array, v: Array, present: Array) -> Array:
        return _by_kernel(q, k, v, present, rule, softcap, layout.kind)

    if layout.local_rule is None or layout.order is None:
        rule = layout.local_rule if is_local is True and layout.local_rule else layout.rule
        return of_rule(rule, q, k, v, layout.present)

    def ordered(x: Array, order: Int[Array, "B S"]) -> Array:
        return jnp.take_along_axis(x, order[..., None, None], axis=1)

    q, k, v = (ordered(x, layout.order) for x in (q, k, v))
    present = jnp.take_along_axis(layout.present, layout.order, axis=1)
    out = jax.lax.cond(
        is_local,
        functools.partial(of_rule, layout.local_rule),
        functools.partial(of_rule, layout.rule),
        *(q, k, v, present),
    )
    return ordered(out, jnp.argsort(layout.order, axis=1))


def attend_to_all(
    q: Float[Array, "B S N H"],
    k: Float[Array, "B S N H"],
    v: Float[Array, "B S N H"],
    *,
    kind: AttentionKind = "splash",
) -> Float[Array, "B S N H"]:
    """Softmax attention of scaled queries over everything, as in the vision tower."""
    return _by_kernel(q, k, v, None, None, None, kind)


def _by_kernel(
    q: Float[Array, "B S N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K H"],
    present: Bool[Array, "B S"] | None,
    rule: VisibilityRule | None,
    softcap: float | None,
    kind: AttentionKind,
) -> Float[Array, "B S N H"]:
    """Each device runs the kernel on its own rows and heads: XLA cannot split it by itself."""
    rows, length = q.shape[:2]
    segments = jnp.ones((rows, length), jnp.int32) if present is None else present.astype(jnp.int32)
    if kind in _OF_CUDNN:
        implementation: Any = "cudnn" if kind == "cudnn" else "xla"
        attend = functools.partial(_by_cudnn, rule=rule, implementation=implementation)
    else:
        interpret = kind == "splash_interpreted"
        attend = functools.partial(_by_splash, rule=rule, softcap=softcap, interpret=interpret)
    mesh = jax.sharding.get_abstract_mesh()
    row_axes = tuple(name for name in mesh.axis_names if name in _ROW_AXES)
    # Under pmap and shard_map the function is on one device already; pmap's axis has another name.
    if mesh.size == 1 or mesh.manual_axes or not (row_axes or _HEAD_AXIS in mesh.axis_names):
        return attend(q, k, v, segments)
    ways, kv_heads = mesh.shape.get(_HEAD_AXIS, 1), k.shape[2]
    splits = ways > 1 and q.shape[2] % ways == 0 and (kv_heads == 1 or kv_heads % ways == 0)
    of_q = _HEAD_AXIS if splits else None
    of_kv = of_q if kv_heads > 1 else None
    return jax.shard_map(
        attend,
        in_specs=(
            P(row_axes, None, of_q),
            P(row_axes, None, of_kv),
            P(row_axes, None, of_kv),
            P(row_axes),
        ),
        out_specs=P(row_axes, None, of_q),
        check_vma=False,
    )(q, k, v, segments)


def _by_splash(
    q: Float[Array, "B S N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K H"],
    segments: Int[Array, "B S"],
    *,
    rule: VisibilityRule | None,
    softcap: float | None,
    interpret: bool,
) -> Float[Array, "B S N H"]:
    _, length, num_heads, head_dim = q.shape
    block, padded = _block_and_length(length)
    padding = padded - length

    def laid_out(x: Array) -> Array:
        """[B, S, heads, H] to [B, heads, padded S, lanes]: zeros add nothing to a product."""
        widths = ((0, 0), (0, 0), (0, padding), (0, -head_dim % _LANES))
        return jnp.pad(x.transpose(0, 2, 1, 3), widths)

    mask = masks.FullMask((padded, padded)) if rule is None else _RuleMask(padded, rule)
    kernel = kernels.make_splash_mha(
        masks.MultiHeadMask([mask] * num_heads),
        block_sizes=kernels.BlockSizes(
            block_q=block,
            block_kv=block,
            block_kv_compute=block,
            block_q_dkv=block,
            block_kv_dkv=block,
            block_kv_dkv_compute=block,
            block_q_dq=block,
            block_kv_dq=block,
        ),
        attn_logits_soft_cap=softcap,
        head_shards=1,
        q_seq_shards=1,
        residual_checkpoint_name=SAVED,
        interpret=interpret,
    )
    if rule is None and not padding:
        out = jax.vmap(kernel)(laid_out(q), laid_out(k), laid_out(v))
    else:
        ids = jnp.pad(segments, ((0, 0), (0, padding)))
        both = kernels.SegmentIds(ids, ids)
        out = jax.vmap(kernel)(laid_out(q), laid_out(k), laid_out(v), both)
    return out[:, :, :length, :head_dim].transpose(0, 2, 1, 3)


def _by_cudnn(
    q: Float[Array, "B S N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K H"],
    segments: Int[Array, "B S"],
    *,
    rule: VisibilityRule | None,
    implementation: Literal["cudnn", "xla"],
) -> Float[Array, "B S N H"]:
    length = q.shape[1]
    padding = length % 2  # the backward kernel wants even lengths beside a mask
    mask = None
    if rule is not None or padding:
        slots = jnp.arange(length + padding)
        ids = jnp.pad(segments, ((0, 0), (0, padding)), constant_values=-1)
        mask = (ids[:, :, None] == ids[:, None, :])[:, None]
        if rule is not None:
            mask &= rule(slots[:, None], slots[None, :])
    q, k, v = (jnp.pad(x, ((0, 0), (0, padding), (0, 0), (0, 0))) for x in (q, k, v))
    out = jax.nn.dot_product_attention(q, k, v, mask=mask, scale=1.0, implementation=implementation)
    return checkpoint_name(out[:, :length], SAVED)


def _block_and_length(length: int) -> tuple[int, int]:
    """The block and the multiple of it that a sequence is padded to."""
    lanes = -(-length // _LANES)
    blocks = -(-lanes * _LANES // _LARGEST_BLOCK)
    block = -(-lanes // blocks) * _LANES
    return block, blocks * block


@dataclasses.dataclass(frozen=True)
class _RuleMask(masks.Mask):
    """A rule as the kernels take it: `mask_function` is computed within them, never stored."""

    length: int
    mask_function: VisibilityRule

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.length

    @property
    def q_sequence(self) -> np.ndarray:
        return np.arange(self.length, dtype=np.int32)

    def __getitem__(self, block: Any) -> np.ndarray:
        query, key = (np.arange(*cut.indices(self.length)) for cut in block)
        return self.mask_function(query[:, None], key[None, :])


def image_spans(is_image: np.ndarray) -> tuple[tuple[int, int], ...]:
    """(start, stop) of each run of image tokens in a context [C]."""
    edges = np.flatnonzero(np.diff(np.pad(is_image.astype(np.int8), 1)))
    return tuple((int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True))
