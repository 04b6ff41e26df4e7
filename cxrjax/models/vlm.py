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
        packed_length: int | None = None,
    ) -> Float[Array, "B Q A D"]:
        """Hidden states that predict the answers, after the final norm.

        Args:
            images: uint8 or float in [-1, 1], [B, H, W, 3].
            prefix_tokens, prefix_mask: prompts, padded on the LEFT.
            answer_tokens, answer_mask: answers, padded on the right.
            question_index: global index of each question; only used with `dropout_key`.
            dropout_key: noise of this step; None in evaluation.
            packed_length: with share="image", leave the padding out and compute on sequences of
                so many text tokens; no row may have more. The result is the same.

        Returns:
            Entry a predicts `answer_tokens[..., a]`: entry 0 stands on the last prompt token.
        """
        rows, questions, num_answer = answer_tokens.shape
        num_prefix = prefix_tokens.shape[2]
        num_slots = num_prefix + num_answer
        num_context = self.config.vision.num_tokens
        tokens = jnp.concatenate([prefix_tokens, answer_tokens], axis=2)
        mask = jnp.concatenate([prefix_mask, answer_mask], axis=2)
        packing = None
        if packed_length is not None:
            if self.share != "image":
                raise ValueError("packing needs share='image': else each question is its own row")
            packing = pack(mask, packed_length)

        noise = vision_noise = None
        if dropout_key is not None:
            if question_index is None:
                raise ValueError("dropout needs question_index: its noise belongs to the question")
            noise = TokenDropout.of_questions(
                dropout_key, question_index, num_context, num_slots, packing
            )
            vision_noise = noise.of_context()
            if self.share == "tower":
                noise = TokenDropout.of_questions(
                    dropout_key, question_index.reshape(-1, 1), num_context, num_slots
                )
        context = self.encode_images(images, vision_noise)
        if self.share == "tower":
            context, tokens, mask = self._one_question_a_row(context, tokens, mask)
        x, layout = self._sequence(context, tokens, mask, num_prefix, packing)
        x, _ = self.decoder(x, layout, noise)
        text = x[:, num_context:]
        if packing is not None:
            text = unpack(text, packing, questions * num_slots)
        text = text.reshape(rows, questions, num_slots, -1)
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
        self,
        context: Array,
        tokens: Array,
        mask: Array,
        num_prefix: int,
        packing: Int[Array, "B T"] | None = None,
    ) -> tuple[Array, SequenceLayout]:
        """Embeds [context | questions] and says who sees whom: prefix all, answers what is past."""
        rows, _, num_slots = tokens.shape
        num_context = context.shape[1]
        offsets = jnp.maximum(jnp.cumsum(mask, axis=2, dtype=jnp.int32) - 1, 0)
        slot = jnp.arange(num_slots)
        sees = (slot[None, :] < num_prefix) | (slot[None, :] <= slot[:, None])
        text_mask = mask[:, :, None, :] & sees
        tokens, offsets = tokens.reshape(rows, -1), offsets.reshape(rows, -1)
        if packing is not None:
            tokens, offsets, valid = (
                jnp.take_along_axis(y, packing, axis=1)
                for y in (tokens, offsets, mask.reshape(rows, -1))
            )
            question, slot = packing // num_slots, packing % num_slots
            own = question[:, :, None] == question[:, None, :]
            past = slot[:, None, :] <= slot[:, :, None]
            text_mask = own & valid[:, None, :] & (past | (slot < num_prefix)[:, None, :])
            text_mask = text_mask[:, None]
        positions = jnp.concatenate(
            [
                jnp.broadcast_to(jnp.arange(num_context, dtype=jnp.int32), (rows, num_context)),
                num_context + offsets,
            ],
            axis=1,
        )
        embedded = self.decoder.embedder.encode(tokens, context.dtype)
        layout = SequenceLayout(
            num_context=num_context,
            num_prefix=num_prefix,
            positions=positions,
            text_mask=text_mask,
            prefix_mask=mask[:, :, :num_prefix] if self.share == "tower" else None,
        )
        return jnp.concatenate([context, embedded], axis=1), layout


def pack(mask: Bool[Array, "B Q L"], packed_length: int) -> Int[Array, "B T"]:
    """Which slots, counted through all questions of a row, the packed tokens come from.

    The valid ones in order, then padding. No row may have more valid slots than `packed_length`.
    """
    flat = mask.reshape(mask.shape[0], -1)
    return jnp.argsort(~flat, axis=1, stable=True)[:, :packed_length]


def unpack(
    x: Float[Array, "B T D"], packing: Int[Array, "B T"], num_slots: int
) -> Float[Array, "B S D"]:
    """The packed tokens back in their slots; slots that were left out get some other token."""
    rows, length = packing.shape
    place = jnp.zeros((rows, num_slots), jnp.int32)
    place = place.at[jnp.arange(rows)[:, None], packing].set(jnp.arange(length))
    return jnp.take_along_axis(x, place[..., None], axis=1)
