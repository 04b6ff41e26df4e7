"""Lays out a [context | question | question ...] sequence: who stands where and sees whom.

Masks are built from the structure: a question sees the context and itself and is never compared
with another one, so that nothing of the size of the whole sequence squared exists.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cxrjax.models.presets import DecoderConfig
from cxrjax.models.splash import SplashLayout


class Visibility(NamedTuple):
    """True where a query may see a key."""

    context: Bool[Array, "..."] | None  # the context sees itself, [B, 1, C, C]; None: all of it
    # The context sees the prompt of the row's only question, [B, 1, 1, P]; None: it sees no
    # question, so that several can share it.
    context_to_prefix: Bool[Array, "..."] | None
    # Slot r of a question sees the context, [B, Q, L, C]; None: all of it.
    text_to_context: Bool[Array, "..."] | None
    text: Bool[Array, "B Q L L"]  # slot r of a question sees its own slot m, [B, Q, L, L]


class SequenceLayout(NamedTuple):
    """Everything the decoder needs to know of a sequence besides its embeddings."""

    num_context: int  # C, the tokens in front that all questions share
    num_prefix: int  # P, the leading slots of a question that hold its prompt
    # Of every token of the sequence, [B, S], S = C + Q * L; or its time, row and column, [B, S, 3]
    # (`DecoderConfig.rope_sections`).
    positions: Int[Array, "B S"] | Int[Array, "B S 3"]
    seen: Visibility  # in the global layers
    # In the layers with a sliding window; None where they see the same: the window holds
    # everything, or no layer has one. Where layers are of one kind, its masks are where those of
    # `seen` are.
    seen_locally: Visibility | None
    # The same by rules, for the kernels of splash.py; None: masks alone tell.
    splash: SplashLayout | None = None
    # What is added to the context behind each of the first layers, [n, B, C, D].
    deep: Float[Array, "n B C D"] | None = None
    # What each layer is given of the decoder's tokens besides their embeddings, [n, B, S, P]
    # (`DecoderConfig.per_layer_width`).
    per_layer: Float[Array, "n B S P"] | None = None

    def of_text(self, x: Float[Array, "B s D"]) -> Float[Array, "B T D"]:
        """Returns the part of a stream behind the context, which may have been dropped already."""
        return x[:, x.shape[1] - (self.positions.shape[1] - self.num_context) :]

    def of_layer(self, layer: Int[Array, ""] | int) -> Float[Array, "B S P"] | None:
        """Returns layer number `layer`'s per-layer input, or None for models without one."""
        return None if self.per_layer is None else self.per_layer[layer]


class Context(NamedTuple):
    """The tokens that all questions of a row share."""

    num_tokens: int  # C
    # Which image a token belongs to, counted from 0, and -1 for text, [B or 1, C]; None: all belong
    # to one image.
    image: Int[Array, "b C"] | None
    mask: Bool[Array, "B C"] | None  # which tokens are there, [B, C]; None: all of them
    # Rows and columns of an image's tokens, where these count; else None. Text goes on behind an
    # image after as many positions as it has rows or columns, not tokens.
    grid: tuple[int, int] | None = None
    # Their ids, 0 for those of images, [B or 1, C]; None: all are of images.
    tokens: Int[Array, "b C"] | None = None

    def positions(self, rows: int) -> Int[Array, "B C"]:
        """Logical position of every token: padding takes none."""
        if self.mask is None:
            count = jnp.arange(self.num_tokens, dtype=jnp.int32)
            return jnp.broadcast_to(count, (rows, self.num_tokens))
        return jnp.maximum(jnp.cumsum(self.mask, axis=1, dtype=jnp.int32) - 1, 0)

    def length(self) -> Int[Array, "b 1"] | int:
        """The position of what follows, in each row: the number of its tokens, without `grid`."""
        if self.grid is not None:
            return jnp.sum(self._advances(self.grid), axis=1, keepdims=True, dtype=jnp.int32)
        if self.mask is None:
            return self.num_tokens
        return jnp.sum(self.mask, axis=1, keepdims=True, dtype=jnp.int32)

    def in_streams(self, rows: int, grid: tuple[int, int]) -> Int[Array, "B C 3"]:
        """Time, row and column of every token, as arXiv 2409.12191, fig. 3, counts.

        Of text all three are the same; an image stands still, and its rows and columns count from
        where it begins.
        """
        advances = self._advances(grid)
        begins = jnp.cumsum(advances, axis=1, dtype=jnp.int32) - advances
        place = self._place_in_image(grid)
        steps = jnp.stack([jnp.zeros_like(place), place // grid[1], place % grid[1]], axis=-1)
        streams = begins[..., None] + steps
        return jnp.broadcast_to(streams, (rows, self.num_tokens, 3))

    def _place_in_image(self, grid: tuple[int, int]) -> Int[Array, "b C"]:
        """The number of each token within its image; 0 for text."""
        size = grid[0] * grid[1]
        if self.image is None:
            return jnp.arange(self.num_tokens, dtype=jnp.int32)[None] % size
        is_image = self.image >= 0
        return jnp.where(is_image, (jnp.cumsum(is_image, axis=1) - 1) % size, 0)

    def _advances(self, grid: tuple[int, int]) -> Int[Array, "b C"]:
        """Position increments per token: 1 for text; for images their longer side at the end."""
        place, last = self._place_in_image(grid), grid[0] * grid[1] - 1
        is_text = jnp.zeros_like(place, bool) if self.image is None else self.image < 0
        advances = jnp.where(is_text, 1, jnp.where(place == last, max(grid), 0))
        return advances if self.mask is None else jnp.where(self.mask, advances, 0)


def image_of_token(is_image: Bool[Array, "b C"]) -> Int[Array, "b C"]:
    """Numbers the images of a row: each run of image tokens is one; -1 for text."""
    before = jnp.pad(is_image, ((0, 0), (1, 0)))[:, :-1]
    number = jnp.cumsum(is_image & ~before, axis=1, dtype=jnp.int32) - 1
    return jnp.where(is_image, number, -1)


def make_layout(
    config: DecoderConfig,
    context: Context,
    mask: Bool[Array, "B Q L"],
    num_prefix: int,
    *,
    context_sees_prefix: bool,
    packing: Int[Array, "B T"] | None = None,
) -> SequenceLayout:
    """The layout of a batch.

    Args:
        config: its `prefix_attention` and `window` decide.
        mask: which slots of the questions are there, prompts padded on the left.
        num_prefix: P, slots of the prompt.
        context_sees_prefix: with "full" prefix attention, whether the context sees the prompt of
            its only question.
        packing: flat slot of each packed token (`pack` in vlm.py); the text is then one sequence
            of T tokens whose questions still do not see each other.
    """
    rows, _, num_slots = mask.shape
    causal = config.prefix_attention != "full"
    offset = jnp.maximum(jnp.cumsum(mask, axis=2, dtype=jnp.int32) - 1, 0)
    slot = jnp.broadcast_to(jnp.arange(num_slots), mask.shape)
    own = jnp.ones((), bool)
    if packing is not None:
        offset, valid = (
            jnp.take_along_axis(y.reshape(rows, -1), packing, axis=1)[:, None]
            for y in (offset, mask)
        )
        question, slot = (packing // num_slots)[:, None], (packing % num_slots)[:, None]
        own = question[..., :, None] == question[..., None, :]
    else:
        valid = mask

    # Text: the past, and with "full" prefix attention all of the prompt.
    in_prefix = slot < num_prefix
    text = own & valid[..., None, :] & (slot[..., None, :] <= slot[..., :, None])
    if not causal:
        text |= own & (valid & in_prefix)[..., None, :]

    present = None if context.mask is None else context.mask[:, None, None, :]
    among = present
    sees_images_whole = config.prefix_attention in ("causal", "local")
    if causal and context.num_tokens and (context.image is not None or not sees_images_whole):
        allowed = _past(context.num_tokens)
        if sees_images_whole and context.image is not None:
            within = context.image[:, :, None] == context.image[:, None, :]
            allowed |= within & (context.image >= 0)[:, None, :]
        among = allowed[:, None] if present is None else allowed[:, None] & present
    to_prefix = None
    if context_sees_prefix and not causal:
        to_prefix = (mask[:, :, :num_prefix])[:, :, None]
    seen = far = Visibility(among, to_prefix, present, text)
    if config.prefix_attention == "local" and context.num_tokens:  # images: in local layers alone
        past = _past(context.num_tokens)[:, None]
        far = seen._replace(context=past if present is None else past & present)

    context_positions = context.positions(rows)
    length = context.length()
    text_positions = offset + (length if isinstance(length, int) else length[:, :, None])
    positions = jnp.concatenate([context_positions, text_positions.reshape(rows, -1)], axis=1)
    if context.grid is not None:
        of_text = jnp.repeat(positions[:, context.num_tokens :, None], 3, axis=2)
        positions = jnp.concatenate([context.in_streams(rows, context.grid), of_text], axis=1)

    local = None if far is seen else seen
    window = config.window
    if window is not None and context.num_tokens + num_slots > window:
        local, everywhere = _windowed(
            seen, context_positions, text_positions, in_prefix, window, causal=causal
        )
        far = everywhere if far is seen else far
    return SequenceLayout(context.num_tokens, num_prefix, positions, far, local)


def _past(length: int) -> Bool[Array, "1 C C"]:
    index = jnp.arange(length)
    return (index[None, :] <= index[:, None])[None]


def _windowed(
    seen: Visibility,
    context_positions: Int[Array, "B C"],
    text_positions: Int[Array, "B Q L"],
    in_prefix: Bool[Array, "B Q L"],
    window: int,
    *,
    causal: bool,
) -> tuple[Visibility, Visibility]:
    """The visibility in local layers, and `seen` again with a mask wherever those have one.

    A token sees those less than `window` before it. Where prefix attention is full, image and
    prompt see all of each other all the same, as transformers has it.
    """

    def near(query: Array, key: Array) -> Array:
        return query[..., :, None] - key[..., None, :] < window

    to_context = near(text_positions, context_positions[:, None])
    text = near(text_positions, text_positions)
    among = None
    if causal:
        among = near(context_positions, context_positions)[:, None]
    else:
        to_context |= in_prefix[..., None]
        text |= in_prefix[..., :, None] & in_prefix[..., None, :]

    def both(local: Array | None, everywhere: Array | None) -> tuple[Array | None, Array | None]:
        if local is None:
            return everywhere, everywhere
        if everywhere is None:
            return local, jnp.ones_like(local)
        local = local & everywhere
        return local, jnp.broadcast_to(everywhere, local.shape)

    local_among, far_among = both(among, seen.context)
    local_to, far_to = both(to_context, seen.text_to_context)
    return (
        Visibility(local_among, seen.context_to_prefix, local_to, text & seen.text),
        Visibility(far_among, seen.context_to_prefix, far_to, seen.text),
    )
