"""PaliGemma: images and questions in, hidden states of the answers out."""

from typing import Literal, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from cxrjax.models.gemma import Block, Decoder, LayerCache, SequenceLayout
from cxrjax.models.layers import Linear, TokenDropout
from cxrjax.models.presets import VLMConfig
from cxrjax.models.siglip import VisionTower, normalize_images

ShareMode = Literal["tower", "image"]


class DecodeState(NamedTuple):
    """What a decode step needs of the tokens before it.

    In `share="tower"` every question is a row of its own: B stands for B * Q and Q for 1.
    """

    layers: list[LayerCache]
    prefix_mask: Bool[Array, "B Q P"]
    next_position: Int[Array, "B Q"]


class VLM(nnx.Module):
    """SigLIP tower, linear projector, Gemma decoder (arXiv 2407.07726).

    Several questions of one image go through together, and never see each other.

    Args:
        config: sizes, from `PRESETS`.
        share: what the questions of an image share. "tower": the vision tower runs once, then each
            question stands alone with its own copy of the image tokens, which see its prompt too:
            exactly PaliGemma. "image": the image tokens also go through the decoder once; they see
            each other but no prompt. That is another model, cheaper by a factor of almost Q.
        remat: recompute every layer's activations in the backward pass.
        unroll: write the loop over layers out (see `scan_layers`).
        dtype: of the activations.
    """

    def __init__(
        self,
        config: VLMConfig,
        *,
        rngs: nnx.Rngs,
        share: ShareMode = "tower",
        remat: bool = False,
        unroll: bool = False,
        dtype: str = "float32",
    ):
        if share not in ("tower", "image"):
            raise ValueError(f"share {share!r} is unknown: expected 'tower' or 'image'")
        self.config = config
        self.share = share
        self.dtype = dtype
        self.vision = VisionTower(config.vision, rngs, remat=remat, unroll=unroll)
        self.projector = Linear(config.vision.width, config.decoder.width, use_bias=True, rngs=rngs)
        self.decoder = Decoder(
            config.decoder, config.loc_token_start, rngs, remat=remat, unroll=unroll
        )

    def encode_images(
        self, images: Array, dropout: TokenDropout | None = None
    ) -> Float[Array, "B N D"]:
        """Image tokens in the decoder's width. `images`: uint8, or floats in [-1, 1]."""
        features = self.vision(normalize_images(images, jnp.dtype(self.dtype)), dropout)
        return self.projector(features, dropout)

    def __call__(
        self,
        images: Array,
        prefix_tokens: Int[Array, "B Q P"],
        prefix_mask: Bool[Array, "B Q P"],
        answer_tokens: Int[Array, "B Q A"],
        answer_mask: Bool[Array, "B Q A"],
        question_index: Int[Array, "B Q"] | None = None,
        dropout_key: Key[Array, ""] | None = None,
    ) -> Float[Array, "B Q A D"]:
        """Hidden states that predict the answers, after the final norm.

        Args:
            images: uint8 or float in [-1, 1], [B, H, W, 3].
            prefix_tokens, prefix_mask: prompts, padded on the LEFT.
            answer_tokens, answer_mask: answers, padded on the right.
            question_index: global index of each question; only used with `dropout_key`.
            dropout_key: noise of this step; None in evaluation.

        Returns:
            Entry a predicts `answer_tokens[..., a]`: entry 0 stands on the last prompt token.
        """
        rows, questions, num_answer = answer_tokens.shape
        num_prefix = prefix_tokens.shape[2]
        num_context = self.config.vision.num_tokens
        dropout = None
        if dropout_key is not None:
            if question_index is None:
                raise ValueError("dropout needs question_index: its noise belongs to the question")
            dropout = TokenDropout.of_questions(dropout_key, question_index, num_context)
        context = self.encode_images(images, dropout.of_context() if dropout else None)

        tokens = jnp.concatenate([prefix_tokens, answer_tokens], axis=2)
        mask = jnp.concatenate([prefix_mask, answer_mask], axis=2)
        if self.share == "tower":
            context, tokens, mask = self._one_question_a_row(context, tokens, mask)
            if dropout is not None and dropout_key is not None and question_index is not None:
                dropout = TokenDropout.of_questions(
                    dropout_key, question_index.reshape(-1, 1), num_context
                )
        x, layout = self._sequence(context, tokens, mask, num_prefix)
        x, _ = self.decoder(x, layout, dropout)
        text = x[:, num_context:].reshape(rows, questions, num_prefix + num_answer, -1)
        return self.decoder.final_norm(text[:, :, num_prefix - 1 : -1])

    def logits(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """Float32 logits over the vocabulary."""
        return self.decoder.embedder.decode(hidden)

    def loc_logits(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch 1024"]:
        """Float32 logits over the 1,024 `<loc>` tokens alone."""
        return self.decoder.embedder.decode_loc(hidden)

    def prefill(
        self,
        images: Array,
        prefix_tokens: Int[Array, "B Q P"],
        prefix_mask: Bool[Array, "B Q P"],
        max_answer: int,
    ) -> tuple[Float[Array, "B Q D"], DecodeState]:
        """Reads images and prompts once.

        Returns:
            The hidden state that predicts the first answer token, [B, Q, D], and the state for
            `decode_step` with room for `max_answer` tokens.
        """
        rows, questions, num_prefix = prefix_tokens.shape
        num_context = self.config.vision.num_tokens
        context, tokens, mask = self.encode_images(images), prefix_tokens, prefix_mask
        if self.share == "tower":
            context, tokens, mask = self._one_question_a_row(context, tokens, mask)
        x, layout = self._sequence(context, tokens, mask, num_prefix)
        x, stacked = self.decoder(x, layout, return_keys=True)
        assert stacked is not None
        layers = []
        for context_k, context_v, prefix_k, prefix_v in zip(*stacked, strict=True):
            shape = (*prefix_k.shape[:3], max_answer, prefix_k.shape[4])
            empty = jnp.zeros(shape, prefix_k.dtype)
            layers.append(LayerCache(context_k, context_v, prefix_k, prefix_v, empty, empty))
        last = x[:, num_context:].reshape(rows, questions, num_prefix, -1)[:, :, -1]
        next_position = num_context + jnp.sum(mask, axis=2, dtype=jnp.int32)
        return self.decoder.final_norm(last), DecodeState(layers, mask, next_position)

    def decode_step(
        self,
        blocks: list[Block],
        tokens: Int[Array, "B Q"],
        state: DecodeState,
        step: Int[Array, ""],
    ) -> tuple[Float[Array, "B Q D"], DecodeState]:
        """Appends one token to every answer.

        Args:
            blocks: `self.decoder.blocks()`, taken apart once outside the loop.
            tokens: the answers' newest tokens.
            state: from `prefill` or the step before.
            step: how many answer tokens stand before these.

        Returns:
            The hidden state that predicts the token after it, and the new state.
        """
        shape = tokens.shape
        rows = tokens.reshape(state.next_position.shape)
        x = self.decoder.embedder.encode(rows, jnp.dtype(self.dtype))
        layers = []
        for block, cache in zip(blocks, state.layers, strict=True):
            x, cache = block.decode(x, state.next_position, cache, state.prefix_mask, step)
            layers.append(cache)
        hidden = self.decoder.final_norm(x).reshape(*shape, -1)
        return hidden, state._replace(layers=layers, next_position=state.next_position + 1)

    def _one_question_a_row(
        self, context: Array, tokens: Array, mask: Array
    ) -> tuple[Array, Array, Array]:
        questions, length = tokens.shape[1:]
        return (
            jnp.repeat(context, questions, axis=0),
            tokens.reshape(-1, 1, length),
            mask.reshape(-1, 1, length),
        )

    def _sequence(
        self, context: Array, tokens: Array, mask: Array, num_prefix: int
    ) -> tuple[Array, SequenceLayout]:
        """Embeds [context | questions] and says who sees whom: prefix all, answers what is past."""
        rows, questions, length = tokens.shape
        num_context = context.shape[1]
        embedded = self.decoder.embedder.encode(tokens, context.dtype)
        x = jnp.concatenate([context, embedded.reshape(rows, questions * length, -1)], axis=1)
        offsets = jnp.maximum(jnp.cumsum(mask, axis=2, dtype=jnp.int32) - 1, 0)
        positions = jnp.concatenate(
            [
                jnp.broadcast_to(jnp.arange(num_context, dtype=jnp.int32), (rows, num_context)),
                num_context + offsets.reshape(rows, -1),
            ],
            axis=1,
        )
        slot = jnp.arange(length)
        sees = (slot[None, :] < num_prefix) | (slot[None, :] <= slot[:, None])
        layout = SequenceLayout(
            num_context=num_context,
            num_prefix=num_prefix,
            positions=positions,
            text_mask=mask[:, :, None, :] & sees,
            prefix_mask=mask[:, :, :num_prefix] if self.share == "tower" else None,
        )
        return x, layout
