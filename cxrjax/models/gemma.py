"""The Gemma decoder over [image | question | question ...] sequences, with a key-value cache."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from cxrjax.models.attention import KeySection, apply_rope, attend
from cxrjax.models.layers import Linear, RMSNorm, TokenDropout, salt, scan_layers, stack_layers
from cxrjax.models.presets import NUM_LOC_TOKENS, DecoderConfig


class SequenceLayout(NamedTuple):
    """Which tokens of a [context | Q x slots] sequence see which; the same in every layer.

    Attributes:
        num_context: N, the image tokens in front. All of them see each other.
        num_prefix: P, the leading slots of a question that hold its prompt.
        positions: of every token of the sequence, [B, S], S = N + Q * L.
        text_mask: True where slot r of a question may see its own slot m, [B, Q, L, L].
        prefix_mask: [B, 1, P] where the context also sees the prompt of the row's only question
            (PaliGemma's full prefix attention); None where the context sees itself alone, so
            that several questions can share it.
    """

    num_context: int
    num_prefix: int
    positions: Int[Array, "B S"]
    text_mask: Bool[Array, "B Q L L"]
    prefix_mask: Bool[Array, "B 1 P"] | None


class LayerCache(NamedTuple):
    """Keys and values of one layer: of the context, of the prompts, of the answers so far.

    Shapes: context [B, K, N, H]; prefix [B, K, Q, P, H]; answer [B, K, Q, A, H].
    """

    context_k: Array
    context_v: Array
    prefix_k: Array
    prefix_v: Array
    answer_k: Array
    answer_v: Array


class Attention(nnx.Module):
    """Multi-query or grouped-query attention with rotary positions."""

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        self.rope_base = config.rope_base
        inner, kv_inner = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = Linear(config.width, inner, rngs=rngs)
        self.k_proj = Linear(config.width, kv_inner, rngs=rngs)
        self.v_proj = Linear(config.width, kv_inner, rngs=rngs)
        self.o_proj = Linear(inner, config.width, rngs=rngs)

    def project(
        self, x: Float[Array, "B S D"], positions: Int[Array, "B S"], dropout: TokenDropout | None
    ) -> tuple[Array, Array, Array]:
        """Rotated and scaled queries, rotated keys, values: [B, S, heads, H] each."""
        drop = (lambda name: dropout.fold_in(salt(name))) if dropout else (lambda name: None)

        def heads(y: Array) -> Array:
            return y.reshape(*y.shape[:2], -1, self.head_dim)

        q = apply_rope(heads(self.q_proj(x, drop("q_proj"))), positions, self.rope_base)
        k = apply_rope(heads(self.k_proj(x, drop("k_proj"))), positions, self.rope_base)
        return q * self.head_dim**-0.5, k, heads(self.v_proj(x, drop("v_proj")))

    def __call__(
        self, x: Float[Array, "B S D"], layout: SequenceLayout, dropout: TokenDropout | None
    ) -> tuple[Array, tuple[Array, Array, Array, Array]]:
        """Attention over a whole sequence; also its context and text keys and values."""
        rows, length, _ = x.shape
        n, questions = layout.num_context, layout.text_mask.shape[1]
        q, k, v = self.project(x, layout.positions, dropout)
        group = self.num_heads // self.num_kv_heads

        context_k, context_v = (y[:, :n].transpose(0, 2, 1, 3) for y in (k, v))
        text_k, text_v = (
            y[:, n:].reshape(rows, questions, -1, *y.shape[2:]).transpose(0, 3, 1, 2, 4)
            for y in (k, v)
        )
        context = KeySection(context_k, context_v)

        def grouped(y: Array, questions: int) -> Array:
            """[B, Q*R, heads, H] to [B, K, Q, G, R, H]."""
            y = y.reshape(rows, questions, -1, self.num_kv_heads, group, self.head_dim)
            return y.transpose(0, 3, 1, 4, 2, 5)

        def flat(y: Array) -> Array:
            """[B, K, Q, G, R, H] to [B, Q*R, heads*H]."""
            return y.transpose(0, 2, 4, 1, 3, 5).reshape(rows, -1, self.num_heads * self.head_dim)

        seen_by_context = [context]
        if layout.prefix_mask is not None:
            p = layout.num_prefix
            mask = layout.prefix_mask[:, :, None]
            seen_by_context.append(KeySection(text_k[..., :p, :], text_v[..., :p, :], mask))
        out = flat(attend(grouped(q[:, :n], 1), seen_by_context))
        if length > n:
            own = KeySection(text_k, text_v, layout.text_mask)
            text_out = attend(grouped(q[:, n:], questions), [context, own])
            out = jnp.concatenate([out, flat(text_out)], axis=1)
        noise = dropout.fold_in(salt("o_proj")) if dropout else None
        return self.o_proj(out, noise), (context_k, context_v, text_k, text_v)

    def decode(
        self,
        x: Float[Array, "B Q D"],
        positions: Int[Array, "B Q"],
        cache: LayerCache,
        prefix_mask: Bool[Array, "B Q P"],
        step: Int[Array, ""],
    ) -> tuple[Array, LayerCache]:
        """One new token for each question; `step` counts the answer tokens before it."""
        rows, questions, _ = x.shape
        q, k, v = self.project(x, positions, None)
        q = q.reshape(rows, questions, 1, self.num_kv_heads, -1, self.head_dim)
        answer_k, answer_v = (
            jax.lax.dynamic_update_slice_in_dim(
                old, new.transpose(0, 2, 1, 3)[:, :, :, None], step, axis=3
            )
            for old, new in ((cache.answer_k, k), (cache.answer_v, v))
        )
        written = (jnp.arange(answer_k.shape[3]) <= step)[None, None, None]
        out = attend(
            q.transpose(0, 3, 1, 4, 2, 5),
            [
                KeySection(cache.context_k, cache.context_v),
                KeySection(cache.prefix_k, cache.prefix_v, prefix_mask[:, :, None]),
                KeySection(answer_k, answer_v, written),
            ],
        )
        out = out.transpose(0, 2, 4, 1, 3, 5).reshape(rows, questions, -1)
        return self.o_proj(out), cache._replace(answer_k=answer_k, answer_v=answer_v)


class MLP(nnx.Module):
    """Gated linear unit with a tanh-approximated GELU."""

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
        self.gate_proj = Linear(config.width, config.mlp_dim, rngs=rngs)
        self.up_proj = Linear(config.width, config.mlp_dim, rngs=rngs)
        self.down_proj = Linear(config.mlp_dim, config.width, rngs=rngs)

    def __call__(
        self, x: Float[Array, "B S D"], dropout: TokenDropout | None = None
    ) -> Float[Array, "B S D"]:
        drop = (lambda name: dropout.fold_in(salt(name))) if dropout else (lambda name: None)
        gate = jax.nn.gelu(self.gate_proj(x, drop("gate_proj")), approximate=True)
        return self.down_proj(gate * self.up_proj(x, drop("up_proj")), drop("down_proj"))


class Block(nnx.Module):
    """Pre-norm transformer block."""

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
        self.attn_norm = RMSNorm(config.width)
        self.attn = Attention(config, rngs)
        self.mlp_norm = RMSNorm(config.width)
        self.mlp = MLP(config, rngs)

    def __call__(
        self, x: Float[Array, "B S D"], layout: SequenceLayout, dropout: TokenDropout | None
    ) -> tuple[Array, tuple[Array, Array, Array, Array]]:
        attended, keys_values = self.attn(self.attn_norm(x), layout, dropout)
        x = x + attended
        return x + self.mlp(self.mlp_norm(x), dropout), keys_values

    def decode(
        self,
        x: Float[Array, "B Q D"],
        positions: Int[Array, "B Q"],
        cache: LayerCache,
        prefix_mask: Bool[Array, "B Q P"],
        step: Int[Array, ""],
    ) -> tuple[Array, LayerCache]:
        attended, cache = self.attn.decode(self.attn_norm(x), positions, cache, prefix_mask, step)
        x = x + attended
        return x + self.mlp(self.mlp_norm(x)), cache


class Embedder(nnx.Module):
    """Token embedding, used again as the output layer.

    `loc_delta`, where `add_loc_delta` has made it, is added to the rows of the `<loc>` tokens on
    both sides, so that these rows train while the table stays frozen.
    """

    def __init__(self, config: DecoderConfig, loc_token_start: int, rngs: nnx.Rngs):
        self.width = config.width
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

    def add_loc_delta(self) -> None:
        """Makes the `<loc>` rows trainable by a difference that starts at zero."""
        self.loc_delta = nnx.Param(jnp.zeros((NUM_LOC_TOKENS, self.width)))

    def encode(self, tokens: Int[Array, "*batch"], dtype: jnp.dtype) -> Float[Array, "*batch D"]:
        """Rows of the tokens, scaled by sqrt(width)."""
        x = self.table[...][tokens]
        if self.loc_delta is not None:
            index = tokens - self.loc_token_start
            is_loc = (index >= 0) & (index < NUM_LOC_TOKENS)
            delta = self.loc_delta[...][jnp.clip(index, 0, NUM_LOC_TOKENS - 1)]
            x = x + jnp.where(is_loc[..., None], delta, 0.0)
        return (x * self.width**0.5).astype(dtype)

    def decode(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """Logits over the whole vocabulary, float32."""
        logits = _float32_logits(hidden, self.table[...])
        if self.loc_delta is None:
            return logits
        delta = _float32_logits(hidden, self.loc_delta[...])
        start, stop = self.loc_token_start, self.loc_token_start + NUM_LOC_TOKENS
        return jnp.concatenate(
            [logits[..., :start], logits[..., start:stop] + delta, logits[..., stop:]], axis=-1
        )

    def decode_loc(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch 1024"]:
        """Logits over the `<loc>` tokens alone, float32."""
        rows = jax.lax.dynamic_slice_in_dim(
            self.table[...], self.loc_token_start, NUM_LOC_TOKENS, axis=0
        )
        if self.loc_delta is not None:
            rows = rows + self.loc_delta[...]
        return _float32_logits(hidden, rows)


def _float32_logits(hidden: Float[Array, "*batch D"], rows: Float[Array, "v D"]) -> Array:
    # Flattened for the same reason as `matmul` in layers.py.
    flat = hidden.reshape(-1, hidden.shape[-1])
    logits = jnp.matmul(flat, rows.T.astype(hidden.dtype), preferred_element_type=jnp.float32)
    return logits.reshape(*hidden.shape[:-1], -1)


class Decoder(nnx.Module):
    """Embedder, blocks and final norm of Gemma 1 (arXiv 2403.08295)."""

    def __init__(
        self,
        config: DecoderConfig,
        loc_token_start: int,
        rngs: nnx.Rngs,
        *,
        remat: bool,
        unroll: bool,
    ):
        self.remat = remat
        self.unroll = unroll
        self.embedder = Embedder(config, loc_token_start, rngs)
        self.layers = stack_layers(lambda r: Block(config, r), config.depth, rngs)
        self.final_norm = RMSNorm(config.width)

    def __call__(
        self,
        x: Float[Array, "B S D"],
        layout: SequenceLayout,
        dropout: TokenDropout | None = None,
        *,
        return_keys: bool = False,
    ) -> tuple[Array, tuple[Array, Array, Array, Array] | None]:
        """The residual stream after the last block (before the final norm).

        With `return_keys`, also every layer's (context_k, context_v, text_k, text_v), stacked.
        """

        def apply(layer: Block, x: Array, index: Int[Array, ""]) -> tuple[Array, object]:
            noise = dropout.fold_in(salt("decoder")).fold_in(index) if dropout else None
            x, keys_values = layer(x, layout, noise)
            return x, keys_values if return_keys else None

        return scan_layers(self.layers, apply, x, remat=self.remat, unroll=self.unroll)

    def blocks(self) -> list[Block]:
        """The blocks one by one: a decode loop is faster on them than on stacked ones."""
        graphdef, state = nnx.split(self.layers)
        depth = jax.tree.leaves(state)[0].shape[0]
        return [
            nnx.merge(graphdef, jax.tree.map(lambda leaf, i=i: leaf[i], state))
            for i in range(depth)
        ]
