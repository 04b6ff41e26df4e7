"""The decoder over [context | question | question ...] sequences, with a key-value cache.

The decoders of all families are one: what distinguishes them are fields of `DecoderConfig`.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from cxrjax.errors import UserError
from cxrjax.models.attention import KeySection, apply_rope, attend, rope_frequencies
from cxrjax.models.layers import (
    Linear,
    RMSNorm,
    TokenDropout,
    salt,
    scan_layers,
    stack_layers,
    take_apart,
)
from cxrjax.models.layout import SequenceLayout
from cxrjax.models.presets import NUM_LOC_TOKENS, DecoderConfig
from cxrjax.models.splash import SAVED, attend_by_rule


class LayerCache(NamedTuple):
    """Keys and values of one layer: of the context, of the prompts, of the answers so far.

    Shapes: context [B, K, C, H]; prefix [B, K, Q, P, H]; answer [B, K, Q, A, H].
    """

    context_k: Array
    context_v: Array
    prefix_k: Array
    prefix_v: Array
    answer_k: Array
    answer_v: Array


class DecodeMasks(NamedTuple):
    """Masks of the cache that the newest token of each question sees; no context: all of it."""

    context: Bool[Array, "B Q 1 C"] | None
    prefix: Bool[Array, "B Q 1 P"]
    answer: Bool[Array, "B Q 1 A"]


class Attention(nnx.Module):
    """Multi-query or grouped-query attention with rotary positions."""

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
        self.config = config
        inner, kv_inner = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        bias = config.qkv_bias
        has_keys = not config.shared_layers  # else it reads another layer's

        def of_keys() -> Linear:
            return Linear(config.width, kv_inner, use_bias=bias, rngs=rngs)

        self.q_proj = Linear(config.width, inner, use_bias=bias, rngs=rngs)
        self.k_proj = nnx.data(of_keys() if has_keys else None)
        self.v_proj = nnx.data(of_keys() if has_keys and not config.keys_are_values else None)
        self.o_proj = Linear(inner, config.width, rngs=rngs)
        self.q_norm = nnx.data(_norm(config, config.head_dim) if config.qk_norm else None)
        self.k_norm = nnx.data(
            _norm(config, config.head_dim) if config.qk_norm and has_keys else None
        )
        unscaled = RMSNorm(config.head_dim, config.norm_eps, scaled=False)
        self.v_norm = nnx.data(unscaled if config.value_norm and has_keys else None)

    def project(
        self,
        x: Float[Array, "B S D"],
        positions: Int[Array, "B S"] | Int[Array, "B S 3"],
        is_local: Bool[Array, ""] | bool,
        dropout: TokenDropout | None,
    ) -> tuple[Array, Array, Array]:
        """Rotated and scaled queries, rotated keys, values: [B, S, heads, H] each."""
        noise = _of_queries(dropout)
        assert self.k_proj is not None
        k = self._heads(self.k_proj(x, noise))
        v = k if self.v_proj is None else self._heads(self.v_proj(x, noise))
        if self.k_norm is not None:
            k = self.k_norm(k)
        if self.v_norm is not None:
            v = self.v_norm(v)
        turned = self._turned(k, positions, is_local)
        return self.queries(x, positions, is_local, dropout), turned, v

    def queries(
        self,
        x: Float[Array, "B S D"],
        positions: Int[Array, "B S"] | Int[Array, "B S 3"],
        is_local: Bool[Array, ""] | bool,
        dropout: TokenDropout | None,
    ) -> Float[Array, "B S N H"]:
        """Rotated and scaled queries."""
        config = self.config
        q = self._heads(self.q_proj(x, _of_queries(dropout)))
        if self.q_norm is not None:
            q = self.q_norm(q)
        scale = config.head_dim if config.query_scale is None else config.query_scale
        return self._turned(q, positions, is_local) * scale**-0.5

    def _heads(self, y: Float[Array, "B S i"]) -> Float[Array, "B S N H"]:
        return y.reshape(*y.shape[:2], -1, self.config.head_dim)

    def _turned(
        self,
        y: Float[Array, "B S N H"],
        positions: Int[Array, "B S"] | Int[Array, "B S 3"],
        is_local: Bool[Array, ""] | bool,
    ) -> Float[Array, "B S N H"]:
        """Each pair of a head turned by its token's position."""
        config = self.config
        frequencies: Any = rope_frequencies(
            config.head_dim, config.rope_base, config.rope_scale, config.global_rope_share
        )
        if config.local_rope_base is not None:
            local = rope_frequencies(config.head_dim, config.local_rope_base)
            frequencies = jnp.where(is_local, local, frequencies)
        if positions.ndim == 3:  # each pair of a head turns by its own stream
            positions = positions[..., np.array(config.rope_streams())]
        return apply_rope(y, positions, frequencies)

    def __call__(
        self,
        x: Float[Array, "B S D"],
        layout: SequenceLayout,
        is_local: Bool[Array, ""] | bool,
        dropout: TokenDropout | None,
    ) -> tuple[Array, tuple[Array, Array, Array, Array]]:
        """Attention over a whole sequence; also its context and text keys and values."""
        config = self.config
        rows, length, _ = x.shape
        seen = layout.seen
        if layout.seen_locally is not None and isinstance(is_local, bool):
            seen = layout.seen_locally if is_local else seen
        elif layout.seen_locally is not None:
            seen = jax.tree.map(
                lambda near, far: jnp.where(is_local, near, far), layout.seen_locally, seen
            )
        n, questions = layout.num_context, seen.text.shape[1]
        q, k, v = self.project(x, layout.positions, is_local, dropout)
        group = self._group
        noise = dropout.fold_in(salt("o_proj")) if dropout else None

        context_k, context_v = (y[:, :n].transpose(0, 2, 1, 3) for y in (k, v))
        text_k, text_v = (
            y[:, n:].reshape(rows, questions, -1, *y.shape[2:]).transpose(0, 3, 1, 2, 4)
            for y in (k, v)
        )

        if layout.splash is not None:
            out = attend_by_rule(q, k, v, layout.splash, is_local, config.attn_softcap)
            out = self.o_proj(out.reshape(rows, length, -1), noise)
            return out, (context_k, context_v, text_k, text_v)

        def grouped(y: Array, questions: int) -> Array:
            """[B, Q*R, heads, H] to [B, K, Q, G, R, H]."""
            y = y.reshape(rows, questions, -1, config.num_kv_heads, group, config.head_dim)
            return y.transpose(0, 3, 1, 4, 2, 5)

        def flat(y: Array) -> Array:
            """[B, K, Q, G, R, H] to [B, Q*R, heads*H]."""
            y = y.transpose(0, 2, 4, 1, 3, 5)
            return y.reshape(rows, -1, config.num_heads * config.head_dim)

        parts = []
        if n > 0:
            sections = [KeySection(context_k, context_v, seen.context)]
            if seen.context_to_prefix is not None:
                p = layout.num_prefix
                prefix = (text_k[..., :p, :], text_v[..., :p, :], seen.context_to_prefix)
                sections.append(KeySection(*prefix))
            parts.append(flat(attend(grouped(q[:, :n], 1), sections, config.attn_softcap)))
        if length > n:
            sections = [KeySection(text_k, text_v, seen.text)]
            if n > 0:
                sections.insert(0, KeySection(context_k, context_v, seen.text_to_context))
            text = attend(grouped(q[:, n:], questions), sections, config.attn_softcap)
            parts.append(flat(text))
        out = checkpoint_name(jnp.concatenate(parts, axis=1), SAVED)
        return self.o_proj(out, noise), (context_k, context_v, text_k, text_v)

    def keys_of(
        self,
        x: Float[Array, "B S D"],
        positions: Int[Array, "B S"] | Int[Array, "B S 3"],
        is_local: bool,
    ) -> tuple[Array, Array]:
        """Keys and values of a context, as a cache has them: [B, K, S, H] each."""
        _, k, v = self.project(x, positions, is_local, None)
        return k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)

    def read_behind(
        self,
        x: Float[Array, "B S D"],
        context: tuple[Array, Array],
        layout: SequenceLayout,
        is_local: bool,
        text: tuple[Array, Array] | None = None,
        dropout: TokenDropout | None = None,
    ) -> tuple[Array, tuple[Array, Array]]:
        """Attention of questions behind a context that was read before.

        Args:
            x: of the questions alone.
            context: the context's keys and values in this layer.
            layout: of the whole sequence.
            text: the questions' own, where this layer shares another's.

        Returns:
            What the questions attend to, and their keys and values.
        """
        config = self.config
        rows = x.shape[0]
        local = layout.seen_locally if is_local else None
        seen = layout.seen if local is None else local
        questions = seen.text.shape[1]
        positions = layout.positions[:, layout.num_context :]
        if text is None:
            q, *own = self.project(x, positions, is_local, dropout)
            text_k, text_v = (
                y.reshape(rows, questions, -1, *y.shape[2:]).transpose(0, 3, 1, 2, 4) for y in own
            )
        else:
            q, (text_k, text_v) = self.queries(x, positions, is_local, dropout), text
        q = q.reshape(rows, questions, -1, config.num_kv_heads, self._group, q.shape[3])
        sections = [KeySection(text_k, text_v, seen.text)]
        if layout.num_context:
            sections.insert(0, KeySection(*context, seen.text_to_context))
        out = attend(q.transpose(0, 3, 1, 4, 2, 5), sections, config.attn_softcap)
        out = out.transpose(0, 2, 4, 1, 3, 5).reshape(rows, x.shape[1], -1)
        out = checkpoint_name(out, SAVED)
        noise = dropout.fold_in(salt("o_proj")) if dropout else None
        return self.o_proj(out, noise), (text_k, text_v)

    @property
    def _group(self) -> int:
        """Heads of queries for each of keys and values."""
        return self.config.num_heads // self.config.num_kv_heads

    def decode(
        self,
        x: Float[Array, "B Q D"],
        positions: Int[Array, "B Q"],
        cache: LayerCache,
        masks: DecodeMasks,
        is_local: bool,
        step: Int[Array, "*rows"],
    ) -> tuple[Array, LayerCache]:
        """One new token for each question; `step` counts the answer tokens before it.

        Of a layer that shares another's keys and values, the cache is that one's, with the token.
        """
        rows, questions, _ = x.shape
        answer_k, answer_v = cache.answer_k, cache.answer_v
        if self.k_proj is None:
            q = self.queries(x, positions, is_local, None)
        else:
            q, *own = self.project(x, positions, is_local, None)
            answer_k, answer_v = (
                _put(old, new.transpose(0, 2, 1, 3)[:, :, :, None], step)
                for old, new in zip((answer_k, answer_v), own, strict=True)
            )
        q = q.reshape(rows, questions, 1, self.config.num_kv_heads, -1, self.config.head_dim)
        sections = [
            KeySection(cache.prefix_k, cache.prefix_v, masks.prefix),
            KeySection(answer_k, answer_v, masks.answer),
        ]
        if cache.context_k.shape[2] > 0:
            sections.insert(0, KeySection(cache.context_k, cache.context_v, masks.context))
        out = attend(q.transpose(0, 3, 1, 4, 2, 5), sections, self.config.attn_softcap)
        out = out.transpose(0, 2, 4, 1, 3, 5).reshape(rows, questions, -1)
        return self.o_proj(out), cache._replace(answer_k=answer_k, answer_v=answer_v)


def _put(
    answers: Float[Array, "B K Q A H"], new: Float[Array, "B K Q 1 H"], step: Int[Array, "*rows"]
) -> Array:
    """The answers with one more token, in the same slot of all rows or in each row's own."""
    if step.ndim == 0:
        return jax.lax.dynamic_update_slice_in_dim(answers, new, step, axis=3)
    put = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=2)
    return jax.vmap(put)(answers, new, step)


def _of_queries(dropout: TokenDropout | None) -> TokenDropout | None:
    """One noise for the maps to queries, keys and values, whose input is one: drawn once."""
    return dropout.fold_in(salt("qkv_proj")) if dropout else None


def _norm(config: DecoderConfig, width: int | None = None) -> RMSNorm:
    return RMSNorm(width or config.width, config.norm_eps, plain=config.plain_norms)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def gated(gate: Float[Array, "*batch m"], up: Float[Array, "*batch m"], activation: str) -> Array:
    """SiLU ("silu") or tanh-approximated GELU of the gate, times `up`.

    The gradients keep the two arguments alone: between an MLP's products lies the most of a step's
    memory.
    """
    return (jax.nn.silu(gate) if activation == "silu" else jax.nn.gelu(gate)) * up


def _gated_forward(gate: Array, up: Array, activation: str) -> tuple[Array, tuple[Array, Array]]:
    return gated(gate, up, activation), (gate, up)


def _gated_backward(activation: str, kept: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    gate, up = kept
    # As gradients alone would have it, but for a zero that hangs on dy: without it XLA's CPU
    # backend keeps the forward pass's activation after all, or makes it again long before.
    _, backward = jax.vjp(lambda gate, up: gated.fun(gate, up, activation), gate + 0 * dy, up)
    return backward(dy)


gated.defvjp(_gated_forward, _gated_backward)


class MLP(nnx.Module):
    """Gated linear unit with a tanh-approximated GELU, or a SiLU."""

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
        self.activation = config.activation
        self.gate_proj = Linear(config.width, config.mlp_dim, rngs=rngs)
        self.up_proj = Linear(config.width, config.mlp_dim, rngs=rngs)
        self.down_proj = Linear(config.mlp_dim, config.width, rngs=rngs)

    def __call__(
        self, x: Float[Array, "B S D"], dropout: TokenDropout | None = None
    ) -> Float[Array, "B S D"]:
        drop = (lambda name: dropout.fold_in(salt(name))) if dropout else (lambda name: None)
        gate, up = self.gate_proj(x, drop("gate_proj")), self.up_proj(x, drop("up_proj"))
        return self.down_proj(gated(gate, up, self.activation), drop("down_proj"))


class Block(nnx.Module):
    """Pre-norm transformer block, with norms behind attention and MLP as well where asked for."""

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
        self.attn_norm = _norm(config)
        self.attn = Attention(config, rngs)
        self.attn_post_norm = nnx.data(_norm(config) if config.post_norms else None)
        self.mlp_norm = _norm(config)
        self.mlp = MLP(config, rngs)
        self.mlp_post_norm = nnx.data(_norm(config) if config.post_norms else None)
        # Published, and trained by nobody: it has no gradient here.
        self.layer_scale = nnx.data(nnx.Param(jnp.ones(1)) if config.layer_scale else None)
        given = config.per_layer_width
        self.per_layer_gate = nnx.data(Linear(config.width, given, rngs=rngs) if given else None)
        self.per_layer_proj = nnx.data(Linear(given, config.width, rngs=rngs) if given else None)
        self.per_layer_norm = nnx.data(_norm(config) if given else None)

    def __call__(
        self,
        x: Float[Array, "B S D"],
        layout: SequenceLayout,
        is_local: Bool[Array, ""] | bool,
        dropout: TokenDropout | None,
        given: Float[Array, "B S P"] | None = None,
        *,
        questions_alone: bool = False,
    ) -> tuple[Array, tuple[Array, Array, Array, Array]]:
        """The stream after the block, of all tokens or of the questions' alone, and all keys.

        Args:
            given: what this layer is given of each token besides the stream.
        """
        normed = self.attn_norm(x)
        if not questions_alone or layout.splash is not None:
            attended, keys_values = self.attn(normed, layout, is_local, dropout)
        else:
            n = layout.num_context
            local = bool(is_local)  # of a layer that was taken apart
            context = self.attn.keys_of(normed[:, :n], layout.positions[:, :n], local)
            attended, of_text = self.attn.read_behind(normed[:, n:], context, layout, local)
            keys_values = (*context, *of_text)
        if questions_alone:
            num_text = x.shape[1] - layout.num_context
            x, attended = x[:, -num_text:], attended[:, -num_text:]
            given = None if given is None else given[:, -num_text:]
        return self._add(x, attended, dropout, given), keys_values

    def decode(
        self,
        x: Float[Array, "B Q D"],
        positions: Int[Array, "B Q"],
        cache: LayerCache,
        masks: DecodeMasks,
        is_local: bool,
        step: Int[Array, "*rows"],
        given: Float[Array, "B Q P"] | None,
    ) -> tuple[Array, LayerCache]:
        normed = self.attn_norm(x)
        attended, cache = self.attn.decode(normed, positions, cache, masks, is_local, step)
        return self._add(x, attended, None, given), cache

    def read_behind(
        self,
        x: Float[Array, "B S D"],
        context: tuple[Array, Array],
        layout: SequenceLayout,
        is_local: bool,
        given: Float[Array, "B S P"] | None,
        text: tuple[Array, Array] | None = None,
        dropout: TokenDropout | None = None,
    ) -> tuple[Array, tuple[Array, Array]]:
        attended, keys_values = self.attn.read_behind(
            self.attn_norm(x), context, layout, is_local, text, dropout
        )
        return self._add(x, attended, dropout, given), keys_values

    def _add(
        self, x: Array, attended: Array, dropout: TokenDropout | None, given: Array | None
    ) -> Array:
        """The stream with what attention gave, then the MLP, then the layer's own input, added."""
        if self.attn_post_norm is not None:
            attended = self.attn_post_norm(attended)
        x = x + attended
        y = self.mlp(self.mlp_norm(x), dropout)
        if self.mlp_post_norm is not None:
            y = self.mlp_post_norm(y)
        x = x + y
        if self.per_layer_gate is not None and self.per_layer_proj is not None:
            assert given is not None and self.per_layer_norm is not None
            drop = (lambda name: dropout.fold_in(salt(name))) if dropout else (lambda name: None)
            gate = jax.nn.gelu(self.per_layer_gate(x, drop("per_layer_gate")))
            y = self.per_layer_proj(gate * given, drop("per_layer_proj"))
            x = x + self.per_layer_norm(y)
        if self.layer_scale is None:
            return x
        return x * jax.lax.stop_gradient(self.layer_scale[...]).astype(x.dtype)


class PerLayerInputs(nnx.Module):
    """Per-layer embeddings: an input of every layer besides the residual stream.

    The token's row of a second table, and a map of its embedding; an image's tokens have the row of
    padding, token 0, there.
    """

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
        self.depth, self.width = config.depth, config.per_layer_width
        across = config.depth * config.per_layer_width
        drawn = jax.random.normal(rngs.params(), (config.vocab_size, across))
        self.table = nnx.Param(config.per_layer_width**-0.5 * drawn)
        self.projection = Linear(config.width, across, rngs=rngs)
        self.norm = _norm(config, config.per_layer_width)
        self.scale = config.width**-0.5

    def __call__(
        self,
        tokens: Int[Array, "B S"],
        embedded: Float[Array, "B S D"],
        dropout: TokenDropout | None = None,
    ) -> Float[Array, "n B S P"]:
        dtype = embedded.dtype
        rows = _rows_of(self.table[...], tokens).astype(dtype) * self.width**0.5
        noise = dropout.fold_in(salt("per_layer")) if dropout else None
        mapped = self.projection(embedded, noise) * self.scale

        def by_layer(y: Array) -> Array:
            return y.reshape(*tokens.shape, self.depth, self.width)

        return jnp.moveaxis((self.norm(by_layer(mapped)) + by_layer(rows)) * 2**-0.5, 2, 0)


class BoxAdapter(nnx.Module):
    """A low-rank branch on the logits of the `<loc>` tokens: `hidden @ a @ b`, zero at first."""

    def __init__(self, width: int, rank: int, rngs: nnx.Rngs):
        bound = width**-0.5
        shape = (width, rank)
        self.a = nnx.Param(jax.random.uniform(rngs.params(), shape, minval=-bound, maxval=bound))
        self.b = nnx.Param(jnp.zeros((rank, NUM_LOC_TOKENS)))

    def __call__(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch 1024"]:
        return hidden.astype(jnp.float32) @ self.a[...] @ self.b[...]


class Embedder(nnx.Module):
    """Token embedding, used again as the output layer where there is no other (`head`).

    `loc_delta`, where `add_loc_delta` has made it, is added to the rows of the `<loc>` tokens on
    both sides, so that these rows train while the table stays frozen; with a `head`, on the input's
    alone, as PEFT's trained rows are.

    `lora`, where `add_box_adapter` has made it, moves probability among the `<loc>` tokens, which
    together keep what they had, as does every other token. It stands behind the last layer: nothing
    that later tokens attend to changes.
    """

    def __init__(self, config: DecoderConfig, loc_token_start: int, rngs: nnx.Rngs):
        self.width = config.width
        self.softcap = config.final_softcap
        self.input_scale = config.width**0.5 if config.scale_embeddings else 1.0
        self.loc_token_start = loc_token_start
        table = config.width**-0.5 * jax.random.normal(
            rngs.params(), (config.vocab_size, config.width)
        )
        if loc_token_start >= 0:
            # Random Fourier features of the coordinate: neighbouring bins start as neighbours, so
            # a model trained from nothing need not meet each of 1,024 bins to tell their order.
            bins = (jnp.arange(NUM_LOC_TOKENS) + 0.5) / NUM_LOC_TOKENS
            frequency = 6.0 * jax.random.normal(rngs.params(), (config.width,))
            phase = 2 * jnp.pi * jax.random.uniform(rngs.params(), (config.width,))
            rows = (2.0 / config.width) ** 0.5 * jnp.cos(bins[:, None] * frequency + phase)
            table = jax.lax.dynamic_update_slice_in_dim(table, rows, loc_token_start, axis=0)
        self.table = nnx.Param(table)
        self.loc_delta: Any = nnx.data(None)
        self.lora: Any = nnx.data(None)
        drawn = None
        if not config.tied:
            drawn = config.width**-0.5 * jax.random.normal(rngs.params(), table.shape)
        self.head = nnx.data(None if drawn is None else nnx.Param(drawn))

    @property
    def rows(self) -> Array:
        """The output layer, [V, D]."""
        return self.table[...] if self.head is None else self.head[...]

    def add_loc_delta(self) -> None:
        """Makes the `<loc>` rows trainable by a difference that starts at zero.

        Raises:
            UserError: the vocabulary has no such rows.
        """
        if self.loc_token_start < 0:
            raise UserError("lora.loc_rows: this model's vocabulary has no <loc> tokens to train")
        self.loc_delta = nnx.Param(jnp.zeros((NUM_LOC_TOKENS, self.width)))

    def add_box_adapter(self, rank: int, rngs: nnx.Rngs) -> None:
        """Makes the adapter of the `<loc>` logits; raises UserError without such tokens."""
        if self.loc_token_start < 0:
            raise UserError("lora.box_rank: this model's vocabulary has no <loc> tokens to adapt")
        self.lora = BoxAdapter(self.width, rank, rngs)

    def encode(self, tokens: Int[Array, "*batch"], dtype: jnp.dtype) -> Float[Array, "*batch D"]:
        """Rows of the tokens, scaled by sqrt(width) in Gemma, the product in `dtype`.

        So transformers does, whatever the rows are stored in; in bfloat16 the scale is rounded too.
        """
        x = _rows_of(self.table[...], tokens)
        if self.loc_delta is not None:
            index = tokens - self.loc_token_start
            is_loc = (index >= 0) & (index < NUM_LOC_TOKENS)
            delta = self.loc_delta[...][jnp.clip(index, 0, NUM_LOC_TOKENS - 1)]
            x = x + jnp.where(is_loc[..., None], delta, 0.0)
        return x.astype(dtype) * self.input_scale

    def decode(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """Logits over the whole vocabulary, float32."""
        logits = _float32_logits(hidden, self.rows)
        start, stop = self.loc_token_start, self.loc_token_start + NUM_LOC_TOKENS
        before, loc, after = logits[..., :start], logits[..., start:stop], logits[..., stop:]
        if self.loc_delta is not None and self.head is None:
            loc += _float32_logits(hidden, self.loc_delta[...])
        elif self.lora is None:
            return self._cap(logits)
        if self.lora is None:
            return self._cap(jnp.concatenate([before, loc, after], axis=-1))
        moved, loc = self._cap(loc + self.lora(hidden)), self._cap(loc)
        mass = [jax.nn.logsumexp(part, axis=-1, keepdims=True) for part in (loc, moved)]
        parts = [self._cap(before), moved + mass[0] - mass[1], self._cap(after)]
        return jnp.concatenate(parts, axis=-1)

    def decode_loc(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch 1024"]:
        """Logits over the `<loc>` tokens alone, float32; of an adapter, nothing else's gradient."""
        rows = jax.lax.dynamic_slice_in_dim(self.rows, self.loc_token_start, NUM_LOC_TOKENS, axis=0)
        if self.loc_delta is not None and self.head is None:
            rows = rows + self.loc_delta[...]
        logits = _float32_logits(hidden, rows)
        if self.lora is not None:
            logits, hidden = jax.lax.stop_gradient((logits, hidden))
            logits += self.lora(hidden)
        return self._cap(logits)

    def decode_few(
        self, hidden: Float[Array, "*batch D"], tokens: Sequence[int]
    ) -> Float[Array, "*batch n"]:
        """Logits over a few tokens alone, none of them a `<loc>`, float32."""
        return self._cap(_float32_logits(hidden, self.rows[jnp.asarray(tokens)]))

    def _cap(self, logits: Array) -> Array:
        return logits if self.softcap is None else self.softcap * jnp.tanh(logits / self.softcap)


def _rows_of(table: Float[Array, "V D"], tokens: Int[Array, "*batch"]) -> Float[Array, "*batch D"]:
    """Rows of a table; where it is cut over `fsdp`, each device looks into its own part.

    Left to itself XLA gathers the whole table for a large batch, and sums its gradient whole over
    all devices. Here tokens and their rows go around within a copy of the parameters, and what is
    summed over copies is a device's part.
    """
    mesh = jax.sharding.get_abstract_mesh()
    rows = tuple(name for name in ("replica", "data", "fsdp") if name in mesh.axis_names)
    ways = mesh.shape.get("fsdp", 1)
    splits = tokens.ndim > 1 and tokens.shape[0] % math.prod(mesh.shape[n] for n in rows) == 0
    if ways == 1 or mesh.manual_axes or mesh.shape.get("tensor", 1) > 1 or not splits:
        return table[tokens]
    if table.shape[0] % ways or table.shape[0] < table.shape[1]:
        return table[tokens]

    def of_part(part: Array, tokens: Array) -> Array:
        tokens = jax.lax.all_gather(tokens, "fsdp", axis=0, tiled=True)
        place = tokens - jax.lax.axis_index("fsdp") * part.shape[0]
        here = (place >= 0) & (place < part.shape[0])
        found = jnp.where(here[..., None], part[jnp.where(here, place, 0)], 0)
        return jax.lax.psum_scatter(found, "fsdp", scatter_dimension=0, tiled=True)

    return jax.shard_map(
        of_part, in_specs=(P("fsdp"), P(rows)), out_specs=P(rows), check_vma=False
    )(table, tokens)


def _float32_logits(hidden: Float[Array, "*batch D"], rows: Float[Array, "v D"]) -> Array:
    # Flattened for the same reason as `matmul` in layers.py.
    flat = hidden.reshape(-1, hidden.shape[-1])
    # The table as it lies: a transposed one would be another array of its size.
    last = (((1,), (1,)), ((), ()))
    logits = jax.lax.dot_general(
        flat, rows.astype(hidden.dtype), last, preferred_element_type=jnp.float32
    )
    return logits.reshape(*hidden.shape[:-1], -1)


class Decoder(nnx.Module):
    """Embedder, blocks and final norm.

    Gemma: arXiv 2403.08295, 2408.00118, 2503.19786; Llama 2: 2307.09288; Mistral: 2310.06825.

    The layers are one stack, `layers`; where global ones are of other sizes, they are two, and two
    more where the last ones share keys and values (`DecoderConfig.stacks`).
    """

    def __init__(
        self,
        config: DecoderConfig,
        loc_token_start: int,
        rngs: nnx.Rngs,
        *,
        remat: str,
        unroll: bool,
    ):
        self.config = config
        self.remat = remat
        self.unroll = unroll
        self.embedder = Embedder(config, loc_token_start, rngs)
        # To `nnx`, a part that may be missing is data, whether it is there or not.
        self.layers: Any = nnx.data(None)
        self.local_layers: Any = nnx.data(None)
        self.global_layers: Any = nnx.data(None)
        self.shared_local_layers: Any = nnx.data(None)
        self.shared_global_layers: Any = nnx.data(None)
        for name, numbers in config.stacks().items():
            make = functools.partial(Block, config.of_layer(numbers[0]))
            setattr(self, name, stack_layers(make, len(numbers), rngs))
        given = config.per_layer_width
        self.per_layer = nnx.data(PerLayerInputs(config, rngs) if given else None)
        self.final_norm = _norm(config)

    def __call__(
        self,
        x: Float[Array, "B S D"],
        layout: SequenceLayout,
        dropout: TokenDropout | None = None,
        *,
        return_keys: bool = False,
        blocks: list[Block] | None = None,
        questions_alone: bool = False,
    ) -> tuple[Array, Any]:
        """The residual stream after the last block (before the final norm).

        With `return_keys`, also a list of every layer's (context_k, context_v, text_k, text_v), but
        for those that share another's. With `blocks`, which `blocks()` took apart, there is no
        dropout. With `questions_alone`, and where layers share keys, the stream is that of what
        stands behind the context alone: nobody asks for the rest.
        """
        if blocks is not None:
            keys: dict[int, Any] = {}
            for number, block in enumerate(blocks):
                source, local = self.config.keys_of(number), self.config.is_local(number)
                if source != number:
                    x = self._read_shared(block, x, keys[source], layout, number, local, None)
                    continue
                ends = questions_alone and number + 1 == len(blocks)
                given = layout.of_layer(number)
                x, keys[number] = block(x, layout, local, None, given, questions_alone=ends)
                x = x if ends else _with_deep(x, layout, number)
            return x, list(keys.values())

        depth, shared = self.config.depth, self.config.shared_layers
        are_local = jnp.array([self.config.is_local(layer) for layer in range(depth)])

        def apply(
            layer: Block, x: Array, index: Array, is_local: Array | bool
        ) -> tuple[Array, object]:
            noise = dropout.fold_in(salt("decoder")).fold_in(index) if dropout else None
            x, keys_values = layer(x, layout, is_local, noise, layout.of_layer(index))
            return _with_deep(x, layout, index), keys_values if return_keys or shared else None

        if self.layers is not None:
            x, found = scan_layers(
                self.layers,
                lambda b, x, i: apply(b, x, i, are_local[i]),
                x,
                remat=self.remat,
                unroll=self.unroll,
            )
            return x, _of_each(found, depth) if return_keys else None

        x, found = self._periods(apply, x, self.local_layers, self.global_layers, 0)
        if shared:
            last = {
                is_local: jax.tree.map(lambda y: y[-1, -1], part)
                for is_local, part in zip((True, False), found, strict=True)
            }

            def apply_shared(
                layer: Block, x: Array, index: Array, is_local: bool
            ) -> tuple[Array, None]:
                noise = dropout.fold_in(salt("decoder")).fold_in(index) if dropout else None
                keys = last[is_local]
                return self._read_shared(layer, x, keys, layout, index, is_local, noise), None

            parts = self.shared_local_layers, self.shared_global_layers
            x, _ = self._periods(apply_shared, layout.of_text(x), *parts, depth - shared)
        if not return_keys:
            return x, None
        of_near, of_far = (
            _of_each(part, len(jax.tree.leaves(part)[0]))
            for part in jax.tree.map(lambda y: y.reshape(-1, *y.shape[2:]), found)
        )
        return x, self._in_order(of_near, of_far)

    def _periods(
        self, apply: Callable[..., Any], x: Array, near: Any, far: Any, first: int
    ) -> tuple[Array, Any]:
        """Layers of two kinds: a period's local layers one by one, then its global one.

        Args:
            apply: (layer, x, number, is_local) -> (x, output of that layer).
            near, far: the local and the global layers, stacked.
            first: the number of the first.
        """
        every = self.config.global_every
        near_graph, near = nnx.split(near)
        far_graph, far = nnx.split(far)
        periods = jax.tree.leaves(far)[0].shape[0]
        near, far = (
            jax.tree.map(lambda leaf, n=n: leaf.reshape(periods, n, *leaf.shape[1:]), part)
            for part, n in ((near, every - 1), (far, 1))
        )
        scan = functools.partial(scan_layers, remat=self.remat, unroll=self.unroll)

        def period(x: Array, scanned: tuple[Any, Any, Array]) -> tuple[Array, Any]:
            near, far, first = scanned
            x, of_near = scan(
                nnx.merge(near_graph, near), lambda b, x, i: apply(b, x, first + i, True), x
            )
            x, of_far = scan(
                nnx.merge(far_graph, far), lambda b, x, i: apply(b, x, first + every - 1, False), x
            )
            return x, (of_near, of_far)

        numbers = first + every * jnp.arange(periods)
        return jax.lax.scan(period, x, (near, far, numbers), unroll=self.unroll)

    def _read_shared(
        self,
        block: Block,
        x: Float[Array, "B s D"],
        keys: tuple[Array, Array, Array, Array],
        layout: SequenceLayout,
        number: Int[Array, ""] | int,
        is_local: bool,
        dropout: TokenDropout | None,
    ) -> Float[Array, "B T D"]:
        """The questions' stream after a block that shares another's keys and values."""
        given = layout.of_layer(number)
        x, _ = block.read_behind(
            layout.of_text(x),
            keys[:2],
            layout,
            is_local,
            None if given is None else layout.of_text(given),
            keys[2:],
            None if dropout is None else dropout.of_text(),
        )
        return x

    def decode(
        self,
        blocks: list[Block],
        x: Float[Array, "B Q D"],
        positions: Int[Array, "B Q"],
        caches: list[LayerCache],
        masks: DecodeMasks,
        local_masks: DecodeMasks,
        step: Int[Array, "*rows"],
        tokens: Int[Array, "B Q"],
    ) -> tuple[Array, list[LayerCache]]:
        """One new token for each question through all blocks, which `blocks()` took apart.

        Args:
            x, tokens: the new tokens, embedded and as they are.
            caches: of each layer that does not share another's.
        """
        updated = list(caches)
        per_layer = None if self.per_layer is None else self.per_layer(tokens, x)
        for index, block in enumerate(blocks):
            is_local, source = self.config.is_local(index), self.config.keys_of(index)
            seen = local_masks if is_local else masks
            given = None if per_layer is None else per_layer[index]
            cache = updated[source]
            x, updated[source] = block.decode(x, positions, cache, seen, is_local, step, given)
        return self.final_norm(x), updated

    def read_behind(
        self,
        blocks: list[Block],
        x: Float[Array, "B S D"],
        contexts: list[tuple[Array, Array]],
        layout: SequenceLayout,
    ) -> tuple[Array, list[tuple[Array, Array]]]:
        """The residual stream of questions behind a context that was read before, and their keys.

        Args:
            contexts: keys and values of the context in each layer that does not share another's.
            layout: of context and questions together, but for what layers are given (`per_layer`).
        """
        keys: dict[int, Any] = {}
        for number, block in enumerate(blocks):
            source = self.config.keys_of(number)
            x, of_layer = block.read_behind(
                x,
                contexts[source],
                layout,
                self.config.is_local(number),
                layout.of_layer(number),
                keys.get(source),
            )
            keys.setdefault(source, of_layer)
        return x, list(keys.values())

    def blocks(self) -> list[Block]:
        """The blocks one by one: a decode loop is faster on them than on stacked ones."""
        found: dict[int, Block] = {}
        for name, numbers in self.config.stacks().items():
            found |= zip(numbers, take_apart(getattr(self, name)), strict=True)
        return [found[number] for number in range(self.config.depth)]

    def _in_order(self, local: list[Any], far: list[Any]) -> list[Any]:
        """Merges values of the local and of the global layers into one list, by layer number."""
        parts = {True: iter(local), False: iter(far)}
        count = len(local) + len(far)
        return [next(parts[self.config.is_local(layer)]) for layer in range(count)]


def _of_each(stacked: Any, depth: int) -> list[Any]:
    return [jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(depth)]


def _with_deep(
    x: Float[Array, "B S D"], layout: SequenceLayout, layer: Int[Array, ""] | int
) -> Float[Array, "B S D"]:
    """The stream with what is added behind this layer (`SequenceLayout.deep`)."""
    if layout.deep is None:
        return x
    count = len(layout.deep)
    part = jnp.where(layer < count, layout.deep[jnp.minimum(layer, count - 1)], 0)
    return x.at[:, : layout.num_context].add(part.astype(x.dtype))
