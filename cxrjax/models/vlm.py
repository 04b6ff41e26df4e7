"""Models that see: images and questions in, hidden states out."""

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from cxrjax.models import siglip
from cxrjax.models.gemma import Block, DecodeMasks, Decoder, LayerCache
from cxrjax.models.layers import (
    LayerNorm,
    Linear,
    RMSNorm,
    TokenDropout,
    salt,
    stack_layers,
    take_apart,
)
from cxrjax.models.layout import Context, SequenceLayout, image_of_token, make_layout
from cxrjax.models.presets import IMAGE, VLMConfig
from cxrjax.models.splash import AttentionKind, image_spans, make_splash_layout

ShareMode = Literal["tower", "image"]


class DecodeState(NamedTuple):
    """The state of the tokens before a decode step.

    In `share="tower"` every question is a row of its own: B stands for B * Q and Q for 1.
    """

    layers: list[LayerCache]
    prefix_mask: Bool[Array, "B Q P"]
    next_position: Int[Array, "B Q"]
    context_mask: Bool[Array, "B C"] | None = None


class VLM(nnx.Module):
    """Tower, projector, decoder.

    Several questions of one image go through together, and never see each other. What stands
    before the question, the image among it, is the context.

    Args:
        config: sizes, from `PRESETS`.
        share: what the questions of an image share. "tower": the vision tower runs once, then each
            question stands alone with its own copy of the context. "image": the context also goes
            through the decoder once, which is cheaper by a factor of almost Q. Where attention is
            causal the two give the same. With full prefix attention "tower" is the published
            model, whose image tokens see the prompt; with "image" they see each other alone, which
            is another model.
        remat: a name in `layers.REMAT`: what of every layer is kept for the backward pass.
        unroll: write the loop over layers out (see `scan_layers`).
        dtype: of the activations.
        attention: "splash" by TPU kernels that keep no scores ("cudnn": by an NVIDIA GPU's, with
            activations in bfloat16 or float16), in the tower and in the decoder where slots tell
            who sees whom; that is not so in packed sequences, with contexts that differ by row,
            and in a few under a window (`make_splash_layout`). Those, and decoding token by
            token, are dense all the same.
    """

    def __init__(
        self,
        config: VLMConfig,
        *,
        rngs: nnx.Rngs,
        share: ShareMode = "tower",
        remat: str = "none",
        unroll: bool = False,
        dtype: str = "float32",
        attention: AttentionKind = "dense",
    ):
        if share not in ("tower", "image"):
            raise ValueError(f"share {share!r} is unknown: expected 'tower' or 'image'")
        self.config = config
        self.share = share
        self.dtype = dtype
        self.attention = attention
        vision, width = config.vision, config.decoder.width
        self.vision = nnx.data(
            None
            if vision is None
            else siglip.VisionTower(vision, rngs, remat=remat, unroll=unroll, attention=attention)
        )
        kind = config.projector if vision is not None else None
        given = 0 if vision is None else vision.merged_width
        # Two maps meet in the decoder's width, a merger's in that of what it is given.
        between = given if kind == "merger" else width
        is_normed = kind in ("normed", "unscaled")
        has_bias = not is_normed and kind != "plain"
        norm: Any = None
        if vision is not None and kind == "merger":
            norm = siglip.tower_norm(vision)
        elif vision is not None and is_normed:
            norm = RMSNorm(vision.width, scaled=kind != "unscaled")
        elif vision is not None and kind == "normed_mlp":
            norm = LayerNorm(vision.merged_width, 1e-5)
        self.projector_norm = nnx.data(norm)
        self.projector = nnx.data(
            None if kind is None else Linear(given, between, use_bias=has_bias, rngs=rngs)
        )
        self.projector_out = nnx.data(
            Linear(between, width, use_bias=True, rngs=rngs)
            if kind in ("mlp", "normed_mlp", "merger")
            else None
        )
        self.deepstack: Any = nnx.data(None)
        if vision is not None and vision.deepstack:
            self.deepstack = nnx.data(
                stack_layers(
                    lambda r: siglip.DeepMerger(vision, width, r), len(vision.deepstack), rngs
                )
            )
        sound = config.audio_width
        self.audio = nnx.data(Linear(sound, width, rngs=rngs) if sound else None)
        self.decoder = Decoder(
            config.decoder, config.loc_token_start, rngs, remat=remat, unroll=unroll
        )

    def untie(self) -> None:
        """Gives the output layer rows of its own, which start as the embedding's."""
        embedder = self.decoder.embedder
        if embedder.head is None:
            # A copy: where both are trained, both are donated to the step.
            embedder.head = nnx.Param(jnp.copy(embedder.table[...]))
            decoder = dataclasses.replace(self.config.decoder, tied=False)
            self.config = dataclasses.replace(self.config, decoder=decoder)
            self.decoder.config = decoder

    def without_box_adapter(self) -> "VLM":
        """Returns a copy with the same parameters but those of `Embedder.lora`."""
        if self.decoder.embedder.lora is None:
            return self
        model = copy.copy(self)
        model.decoder = copy.copy(self.decoder)
        model.decoder.embedder = copy.copy(self.decoder.embedder)
        model.decoder.embedder.lora = None
        return model

    def of_batch(self, images: Any) -> "VLM":
        """Returns a copy with the same parameters for images of this size."""
        sizes = self.config.of_batch(images)
        if sizes is self.config:
            return self
        model = copy.copy(self)
        model.config = sizes
        if self.vision is not None and sizes.vision is not None:
            model.vision = copy.copy(self.vision)
            model.vision.config = sizes.vision
        return model

    def encode_images(
        self, images: Array, dropout: TokenDropout | None = None
    ) -> Float[Array, "B N D"]:
        """Image tokens in the decoder's width.

        Args:
            images: uint8, or floats in [-1, 1], [B, H, W, 3]; [B, I, H, W, 3] with several
                images a row, whose tokens then follow one another; or what `image_features` gave
                for one image a row, [B, N, V].

        Returns:
            Behind the tokens, along the last axis, stands what is added to them within the decoder
            (`VisionConfig.deepstack`), a width each.
        """
        vision = self.config.vision
        if self.projector is None or vision is None:
            raise ValueError("this model has no vision tower: it takes no images")
        rows, several = images.shape[0], images.ndim == 5
        if several:
            dropout = None if dropout is None else dropout.of_images(images.shape[1])
            images = images.reshape(-1, *images.shape[2:])
        features = images if images.ndim == 3 else self.image_features(images, dropout)
        # Of the last layer, and of those within the tower.
        parts = 1 + len(vision.deepstack)
        features, *inner = jnp.split(features.astype(self.dtype), parts, axis=-1)
        if self.projector_norm is not None:
            # Patch by patch, where a token has several.
            scale = self.projector_norm.scale
            width = vision.width if scale is None else scale.shape[-1]
            of_patches = features.reshape(*features.shape[:2], -1, width)
            features = self.projector_norm(of_patches).reshape(features.shape)
        tokens = self.projector(features, dropout)
        if self.projector_out is not None:
            second = None if dropout is None else dropout.fold_in(salt("projector_out"))
            tokens = self.projector_out(jax.nn.gelu(tokens, approximate=False), second)
        if inner:
            drop = None if dropout is None else dropout.fold_in(salt("deepstack"))
            deep = [
                merger(part, None if drop is None else drop.fold_in(number))
                for number, (merger, part) in enumerate(
                    zip(take_apart(self.deepstack), inner, strict=True)
                )
            ]
            tokens = jnp.concatenate([tokens, *deep], axis=-1)
        return tokens.reshape(rows, -1, tokens.shape[-1]) if several else tokens

    def image_features(
        self, images: Array, dropout: TokenDropout | None = None
    ) -> Float[Array, "B N V"]:
        """The projector's input: the tower's features, of squares together if pooled.

        Args:
            images: uint8, or floats in [-1, 1], [B, H, W, 3].
        """
        self = self.of_batch(images)
        config = self.config.vision
        if config is None or self.vision is None:
            raise ValueError("this model has no vision tower: it takes no images")
        rows, tiles = images.shape[0], config.num_tiles
        images = siglip.normalize_images(images, jnp.dtype(self.dtype))
        if config.tile_size is not None:
            images = siglip.cut_tiles(images, config.tile_size)
            dropout = None if dropout is None else dropout.of_images(tiles)
        features = self.vision(images, dropout)
        if config.pool > 1 and not config.merges:  # whose tower gives whole tokens
            (down, across), pool = config.token_grid, config.pool
            squares = features.reshape(features.shape[0], down, pool, across, pool, -1)
            if config.side_by_side:
                squares = squares.transpose(0, 1, 3, 2, 4, 5)
                return squares.reshape(rows, tiles * down * across, -1)
            features = jnp.mean(squares, axis=(2, 4))
            features = features.reshape(features.shape[0], down * across, -1)
        return self.vision.standardize(features) if config.post_norms else features

    def __call__(
        self,
        images: Array | None,
        prefix_tokens: Int[Array, "B Q P"],
        prefix_mask: Bool[Array, "B Q P"],
        answer_tokens: Int[Array, "B Q A"],
        answer_mask: Bool[Array, "B Q A"],
        question_index: Int[Array, "B Q"] | None = None,
        dropout_key: Key[Array, ""] | None = None,
        packed_length: int | None = None,
        context_tokens: Int[Array, "B C"] | None = None,
        context_mask: Bool[Array, "B C"] | None = None,
    ) -> Float[Array, "B Q A D"]:
        """Hidden states that predict the answers, after the final norm.

        Args:
            images: as in `encode_images`; None for a model of text alone.
            prefix_tokens, prefix_mask: prompts, padded on the LEFT.
            answer_tokens, answer_mask: answers, padded on the right.
            question_index: global index of each question; only used with `dropout_key`.
            dropout_key: noise of this step; None in evaluation.
            packed_length: with share="image", leave the padding out and compute on sequences of
                so many text tokens; no row may have more. The result is the same.
            context_tokens: what stands before the questions, `IMAGE` in the place of each image
                token; None: the preset's `context`, the same in every row.
            context_mask: which of them are there; None: all.

        Returns:
            Entry a predicts `answer_tokens[..., a]`: entry 0 stands on the last prompt token.
        """
        self = self.of_batch(images)
        rows, questions, num_answer = answer_tokens.shape
        num_prefix = prefix_tokens.shape[2]
        num_slots = num_prefix + num_answer
        num_context = self._num_context(context_tokens)
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
        embedded, context = self._context(rows, images, context_tokens, context_mask, vision_noise)
        if self.share == "tower":
            embedded, context, tokens, mask = _one_question_a_row(embedded, context, tokens, mask)
        x, layout = self._sequence(
            embedded,
            context,
            tokens,
            mask,
            num_prefix,
            packing,
            noise,
            is_preset_context=context_tokens is None,
        )
        x, _ = self.decoder(x, layout, noise)
        text = layout.of_text(x)
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

    def token_logits(
        self, hidden: Float[Array, "*batch D"], tokens: Sequence[int]
    ) -> Float[Array, "*batch n"]:
        """Float32 logits over a few tokens alone, none of them a `<loc>`."""
        return self.decoder.embedder.decode_few(hidden, tokens)

    def prefill(
        self,
        images: Array | None,
        prefix_tokens: Int[Array, "B Q P"],
        prefix_mask: Bool[Array, "B Q P"],
        max_answer: int,
        context_tokens: Int[Array, "B C"] | None = None,
        context_mask: Bool[Array, "B C"] | None = None,
        blocks: list[Block] | None = None,
    ) -> tuple[Float[Array, "B Q D"], DecodeState]:
        """Reads images and prompts once.

        Args:
            images: as in `encode_images`.
            blocks: `self.decoder.blocks()`, where they were taken apart before.

        Returns:
            The hidden state that predicts the first answer token, [B, Q, D], and the state for
            `decode_step` with room for `max_answer` tokens.
        """
        self = self.of_batch(images)
        rows, questions, num_prefix = prefix_tokens.shape
        tokens, mask = prefix_tokens, prefix_mask
        embedded, context = self._context(rows, images, context_tokens, context_mask, None)
        if self.share == "tower":
            embedded, context, tokens, mask = _one_question_a_row(embedded, context, tokens, mask)
        x, layout = self._sequence(
            embedded, context, tokens, mask, num_prefix, is_preset_context=context_tokens is None
        )
        num_text = x.shape[1] - context.num_tokens
        # Of what stands before the questions, the last layer need not go beyond keys and values.
        x, keys = self.decoder(x, layout, return_keys=True, blocks=blocks, questions_alone=True)
        layers = [_with_room(max_answer, *of_layer) for of_layer in keys]
        last = x[:, -num_text:].reshape(rows, questions, num_prefix, -1)[:, :, -1]
        next_position = context.length() + jnp.sum(mask, axis=2, dtype=jnp.int32)
        state = DecodeState(layers, mask, next_position, context.mask)
        return self.decoder.final_norm(last), state

    def read_questions(
        self,
        blocks: list[Block],
        contexts: list[tuple[Array, Array]],
        prefix_tokens: Int[Array, "B Q P"],
        prefix_mask: Bool[Array, "B Q P"],
        max_answer: int,
        context_mask: Bool[Array, "B C"] | None = None,
        context_tokens: Int[Array, "B C"] | None = None,
    ) -> tuple[Float[Array, "B Q D"], DecodeState]:
        """`prefill` where the context was read before: by `share="image"`, or causal attention.

        Args:
            contexts: keys and values of the context in each layer, from a state of `prefill`.
            context_mask, context_tokens: as in `__call__`.
        """
        num_prefix = prefix_tokens.shape[2]
        context = Context(contexts[0][0].shape[2], None, context_mask)
        if self._grid is not None:
            tokens = self._tokens_of(context_tokens)
            context = context._replace(image=image_of_token(tokens == IMAGE), grid=self._grid)
        layout = make_layout(
            self.config.decoder, context, prefix_mask, num_prefix, context_sees_prefix=False
        )
        tokens = prefix_tokens.reshape(prefix_tokens.shape[0], -1)
        x = self.decoder.embedder.encode(tokens, jnp.dtype(self.dtype))
        if self.decoder.per_layer is not None:
            layout = layout._replace(per_layer=self.decoder.per_layer(tokens, x))
        x, keys = self.decoder.read_behind(blocks, x, contexts, layout)
        layers = [
            _with_room(max_answer, *of_context, *of_text)
            for of_context, of_text in zip(contexts, keys, strict=True)
        ]
        last = x.reshape(*prefix_tokens.shape, -1)[:, :, -1]
        next_position = context.length() + jnp.sum(prefix_mask, axis=2, dtype=jnp.int32)
        state = DecodeState(layers, prefix_mask, next_position, context_mask)
        return self.decoder.final_norm(last), state

    def decode_step(
        self,
        blocks: list[Block],
        tokens: Int[Array, "B Q"],
        state: DecodeState,
        step: Int[Array, "*rows"],
    ) -> tuple[Float[Array, "B Q D"], DecodeState]:
        """Appends one token to every answer.

        Args:
            blocks: `self.decoder.blocks()`, taken apart once outside the loop.
            tokens: the answers' newest tokens.
            state: from `prefill` or the step before.
            step: how many answer tokens stand before these; of each row, [B], or of all.

        Returns:
            The hidden state that predicts the token after it, and the new state.
        """
        shape = tokens.shape
        rows = tokens.reshape(state.next_position.shape)
        x = self.decoder.embedder.encode(rows, jnp.dtype(self.dtype))
        masks, local_masks = self._decode_masks(state, step)
        hidden, layers = self.decoder.decode(
            blocks, x, state.next_position, state.layers, masks, local_masks, step, rows
        )
        state = state._replace(layers=layers, next_position=state.next_position + 1)
        return hidden.reshape(*shape, -1), state

    def _decode_masks(
        self, state: DecodeState, step: Int[Array, "*rows"]
    ) -> tuple[DecodeMasks, DecodeMasks]:
        """The masks of the newest tokens in global layers, and in those with a sliding window."""
        cache = state.layers[0]
        num_context, num_prefix, num_answer = (
            y.shape[-2] for y in (cache.context_k, cache.prefix_k, cache.answer_k)
        )
        here = state.next_position[..., None]  # [B, Q, 1]
        slot = jnp.arange(num_answer)
        step = step.reshape(-1, 1, 1, 1)
        present = state.context_mask
        masks = DecodeMasks(
            context=None if present is None else present[:, None, None],
            prefix=state.prefix_mask[:, :, None],
            answer=slot <= step,
        )
        window = self.config.decoder.window
        if window is None or num_context + num_prefix + num_answer <= window:
            return masks, masks
        context = Context(num_context, None, present)
        context_position = context.positions(here.shape[0])[:, None]
        near_context = here - context_position < window
        # Prompts end right before the answers, and answers before the newest token.
        near_prefix = step + num_prefix - jnp.arange(num_prefix) < window
        near_answer = step - slot < window
        local = DecodeMasks(
            context=near_context[:, :, None]
            if masks.context is None
            else masks.context & near_context[:, :, None],
            prefix=masks.prefix & near_prefix,
            answer=masks.answer & near_answer,
        )
        return masks, local

    def _num_context(self, context_tokens: Array | None) -> int:
        return self.config.num_context if context_tokens is None else context_tokens.shape[1]

    def _context(
        self,
        rows: int,
        images: Array | None,
        context_tokens: Int[Array, "B C"] | None,
        context_mask: Bool[Array, "B C"] | None,
        dropout: TokenDropout | None,
    ) -> tuple[Float[Array, "B C D"], Context]:
        """The embedded context: image tokens in their places among the text, as wide as these."""
        dtype = jnp.dtype(self.dtype)
        features = None if images is None else self.encode_images(images, dropout)
        if context_tokens is None and self.config.context == (IMAGE,) and features is not None:
            return features, Context(features.shape[1], None, context_mask, self._grid)
        tokens = self._tokens_of(context_tokens)
        is_image = tokens == IMAGE
        num_tokens = tokens.shape[1]
        embedded = self.decoder.embedder.encode(jnp.maximum(tokens, 0), dtype)
        embedded = jnp.broadcast_to(embedded, (rows, num_tokens, embedded.shape[-1]))
        if features is not None:
            place = jnp.clip(jnp.cumsum(is_image, axis=1) - 1, 0, features.shape[1] - 1)
            place = jnp.broadcast_to(place, (rows, num_tokens))[..., None]
            in_place = jnp.take_along_axis(features, place, axis=1)
            more = features.shape[-1] - embedded.shape[-1]  # nothing of text within the decoder
            embedded = jnp.pad(embedded, ((0, 0), (0, 0), (0, more)))
            embedded = jnp.where(is_image[..., None], in_place, embedded)
        image, ids = image_of_token(is_image), jnp.where(is_image, 0, tokens)
        return embedded, Context(num_tokens, image, context_mask, self._grid, ids)

    @property
    def _grid(self) -> tuple[int, int] | None:
        """Rows and columns of an image's tokens, where the decoder tells them."""
        vision = self.config.vision
        if vision is None or not self.config.decoder.rope_sections:
            return None
        return vision.token_grid

    def _tokens_of(self, context_tokens: Int[Array, "B C"] | None) -> Int[Array, "b C"]:
        if context_tokens is not None:
            return context_tokens
        return jnp.asarray(self._preset_context(), jnp.int32)[None]

    def _preset_context(self) -> np.ndarray:
        """The preset's context with `IMAGE` as often as an image has tokens."""
        return _in_tokens(self.config, self.config.context)

    def _sequence(
        self,
        embedded: Array,
        context: Context,
        tokens: Array,
        mask: Array,
        num_prefix: int,
        packing: Int[Array, "B T"] | None = None,
        noise: TokenDropout | None = None,
        *,
        is_preset_context: bool,
    ) -> tuple[Array, SequenceLayout]:
        """The embedded sequence [context | questions] and its layout."""
        layout = make_layout(
            self.config.decoder,
            context,
            mask,
            num_prefix,
            context_sees_prefix=self.share == "tower",
            packing=packing,
        )
        if self.attention != "dense" and packing is None and is_preset_context:
            splash = make_splash_layout(
                self.config.decoder,
                context.mask,
                image_spans(self._preset_context() == IMAGE),
                context.num_tokens,
                mask,
                num_prefix,
                context_sees_prefix=self.share == "tower",
                kind=self.attention,
            )
            layout = layout._replace(splash=splash)
        tokens = tokens.reshape(tokens.shape[0], -1)
        if packing is not None:
            tokens = jnp.take_along_axis(tokens, packing, axis=1)
        text = self.decoder.embedder.encode(tokens, embedded.dtype)
        embedded, *deep = jnp.split(embedded, embedded.shape[-1] // text.shape[-1], axis=-1)
        if deep:
            layout = layout._replace(deep=jnp.stack(deep))
        x = jnp.concatenate([embedded, text], axis=1)
        if self.decoder.per_layer is not None:
            front = jnp.zeros((1, context.num_tokens), jnp.int32)
            front = front if context.tokens is None else context.tokens
            front = jnp.broadcast_to(front, (tokens.shape[0], context.num_tokens))
            tokens = jnp.concatenate([front, tokens], axis=1)
            layout = layout._replace(per_layer=self.decoder.per_layer(tokens, x, noise))
        return x, layout


def _with_room(
    max_answer: int, context_k: Array, context_v: Array, prefix_k: Array, prefix_v: Array
) -> LayerCache:
    """A layer's cache with room for answers."""
    shape = (*prefix_k.shape[:3], max_answer, prefix_k.shape[4])
    empty = jnp.zeros(shape, prefix_k.dtype)
    return LayerCache(context_k, context_v, prefix_k, prefix_v, empty, empty)


def context_of_two(
    config: VLMConfig, has_second: Bool[Array, " B"]
) -> tuple[Int[Array, "B C"], Bool[Array, "B C"]]:
    """`context_tokens` and `context_mask` of rows with two images, of which the second may lack.

    A row without it has the context of one image: the same answers, but for rounding.

    Args:
        has_second: which rows have a second image.
    """
    first = config.context.index(IMAGE) + 1
    parts = [config.context[:first], config.second_image, config.context[first:]]
    tokens = [_in_tokens(config, part) for part in parts]
    is_second = np.repeat([False, True, False], [len(part) for part in tokens])
    mask = jnp.where(is_second, jnp.asarray(has_second)[:, None], True)
    return jnp.broadcast_to(jnp.asarray(np.concatenate(tokens)), mask.shape), mask


def _in_tokens(config: VLMConfig, context: Sequence[int]) -> np.ndarray:
    times = 0 if config.vision is None else config.vision.num_tokens
    runs = [[token] * (times if token == IMAGE else 1) for token in context]
    return np.array([token for run in runs for token in run], np.int32)


def _one_question_a_row(
    embedded: Array, context: Context, tokens: Array, mask: Array
) -> tuple[Array, Context, Array, Array]:
    """Every question in a row of its own, with a copy of the context."""
    questions, length = tokens.shape[1:]

    def repeated(y: Array | None) -> Array | None:
        if y is None or y.shape[0] == 1 < embedded.shape[0]:
            return y
        return jnp.repeat(y, questions, axis=0)

    context = context._replace(
        image=repeated(context.image), mask=repeated(context.mask), tokens=repeated(context.tokens)
    )
    return (
        jnp.repeat(embedded, questions, axis=0),
        context,
        tokens.reshape(-1, 1, length),
        mask.reshape(-1, 1, length),
    )


def pack(mask: Bool[Array, "B Q L"], packed_length: int) -> Int[Array, "B T"]:
    """The slots, counted through all questions of a row, that the packed tokens come from.

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
