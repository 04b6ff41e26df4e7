"""The vision tower: patches of images to features. Its variants are fields of `VisionConfig`."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from cxrjax.models import presets
from cxrjax.models.attention import KeySection, apply_rope, attend, rope_frequencies
from cxrjax.models.layers import (
    ClippedLinear,
    LayerNorm,
    Linear,
    RMSNorm,
    TokenDropout,
    salt,
    scan_layers,
    stack_layers,
)
from cxrjax.models.splash import SAVED, AttentionKind, attend_to_all
from cxrjax.models.windows import Windows, make_windows

# Of towers in windows: there are no others.
_ROPE_BASE = 10_000.0
# Their patches are of this many frames, which are the same of an image.
_FRAMES = 2


def tower_norm(config: presets.VisionConfig) -> LayerNorm | RMSNorm:
    """A norm of patches, as the tower's layers and mergers have."""
    if config.norm == "rms":
        return RMSNorm(config.width, config.norm_eps, plain=True)
    return LayerNorm(config.width, config.norm_eps)


# What towers were trained on; the others take what is within [-1, 1] as it is.
_COLOURS = {
    "clip": (presets.CLIP_MEAN, presets.CLIP_STD),
    "imagenet": (presets.IMAGENET_MEAN, presets.IMAGENET_STD),
}


def _own_colours(colours: str, images: Float[Array, "B H W 3"]) -> Float[Array, "B H W 3"]:
    """Rescales images from [-1, 1] to the colour range that the tower was trained on."""
    mean, std = (np.array(values, np.float32) for values in _COLOURS[colours])
    return ((images.astype(jnp.float32) / 2 + 0.5 - mean) / std).astype(images.dtype)


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu_tanh": jax.nn.gelu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "silu": jax.nn.silu,
}


class VisionAttention(nnx.Module):
    """Self-attention over all of an image; in `WindowedAttention` also over parts.

    With biases; with `post_norms` without, each head's queries, keys and values normed, queries and
    keys then turned by row and column.
    """

    def __init__(self, config: presets.VisionConfig, rngs: nnx.Rngs, attention: AttentionKind):
        self.attention = attention
        self.num_heads = config.num_heads
        self.turns = config.post_norms
        width, head_dim = config.width, config.width // config.num_heads
        self.q_proj = _linear(config, width, width, rngs)
        self.k_proj = _linear(config, width, width, rngs)
        self.v_proj = _linear(config, width, width, rngs)
        self.out_proj = _linear(config, width, width, rngs)
        self.q_norm = nnx.data(RMSNorm(head_dim, plain=True) if self.turns else None)
        self.k_norm = nnx.data(RMSNorm(head_dim, plain=True) if self.turns else None)
        self.v_norm = nnx.data(RMSNorm(head_dim, scaled=False) if self.turns else None)

    def __call__(
        self, x: Float[Array, "B N D"], dropout: TokenDropout | None, columns: int
    ) -> Float[Array, "B N D"]:
        """Args: columns: of the image's patches."""
        rows, length, width = x.shape
        drop = (lambda name: dropout.fold_in(salt(name))) if dropout else (lambda name: None)

        def heads(y: Array) -> Array:
            return y.reshape(rows, length, self.num_heads, -1)

        q = heads(self.q_proj(x, drop("q_proj")))
        k = heads(self.k_proj(x, drop("k_proj")))
        v = heads(self.v_proj(x, drop("v_proj")))
        if self.q_norm is not None and self.k_norm is not None and self.v_norm is not None:
            q, k, v = self.q_norm(q), self.k_norm(k), self.v_norm(v)
            q, k = (_by_row_and_column(y, columns) for y in (q, k))
        else:
            q = q * q.shape[-1] ** -0.5
        if self.attention == "dense":
            out = checkpoint_name(_dense(q, k, v), SAVED)
        else:
            out = attend_to_all(q, k, v, kind=self.attention)
        return self.out_proj(out.reshape(rows, length, width), drop("out_proj"))


def _linear(config: presets.VisionConfig, ins: int, outs: int, rngs: nnx.Rngs) -> Linear:
    """A map of a layer, some of which have no bias, and of these some bounds."""
    if config.clipped:
        return ClippedLinear(ins, outs, rngs=rngs)
    return Linear(ins, outs, use_bias=not config.post_norms, rngs=rngs)


def _by_row_and_column(x: Float[Array, "B N H h"], across: int) -> Float[Array, "B N H h"]:
    """The first half of a head turned by its patch's column, of so many, the second by its row."""
    rows, columns = np.divmod(np.arange(x.shape[1]), across)
    frequencies = rope_frequencies(x.shape[-1] // 2, presets.AXIAL_ROPE_BASE)
    halves = jnp.split(x, 2, axis=-1)
    turned = [
        apply_rope(half, place[None], frequencies)
        for half, place in zip(halves, (columns, rows), strict=True)
    ]
    return jnp.concatenate(turned, axis=-1)


def _dense(
    q: Float[Array, "B N H h"],
    k: Float[Array, "B N H h"],
    v: Float[Array, "B N H h"],
    seen: Bool[Array, "b M"] | None = None,
) -> Float[Array, "B N H h"]:
    """Attention of scaled queries; `seen`: which keys there are."""
    q, k, v = (y.transpose(0, 2, 1, 3) for y in (q, k, v))
    mask = None if seen is None else seen[:, None, None]
    out = attend(q[:, :, None, None], [KeySection(k, v, mask)])[:, :, 0, 0]
    return out.transpose(0, 2, 1, 3)


class WindowedAttention(nnx.Module):
    """Attention in windows: one map for queries, keys and values, turned by row and column."""

    def __init__(self, config: presets.VisionConfig, rngs: nnx.Rngs, attention: AttentionKind):
        self.attention = attention
        self.num_heads = config.num_heads
        self.qkv_proj = Linear(config.width, 3 * config.width, use_bias=True, rngs=rngs)
        self.out_proj = Linear(config.width, config.width, use_bias=True, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "B S D"],
        dropout: TokenDropout | None,
        windows: Windows,
        is_local: Bool[Array, ""],
    ) -> Float[Array, "B S D"]:
        """Args: x: in the windows' order; is_local: windows see only themselves."""
        rows, length, width = x.shape
        drop = (lambda name: dropout.fold_in(salt(name))) if dropout else (lambda name: None)
        qkv = self.qkv_proj(x, drop("qkv_proj")).reshape(rows, length, 3, self.num_heads, -1)
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        # The first half of a head's pairs turns by the row, the second by the column.
        frequencies = rope_frequencies(q.shape[-1] // 2, _ROPE_BASE)
        positions = np.stack([windows.rows, windows.columns]).repeat(len(frequencies), axis=0).T
        frequencies = np.tile(frequencies, 2)
        q, k = (apply_rope(y, positions[None], frequencies) for y in (q, k))
        q = q * q.shape[-1] ** -0.5
        inside = windows.inside

        def within(q: Array, k: Array, v: Array) -> Array:
            q, k, v = (y.reshape(rows * windows.count, -1, *y.shape[2:]) for y in (q, k, v))
            seen = None if inside is None else jnp.tile(jnp.asarray(inside), (rows, 1))
            return _dense(q, k, v, seen).reshape(rows, length, *q.shape[2:])

        def everywhere(q: Array, k: Array, v: Array) -> Array:
            if inside is not None or self.attention == "dense":
                seen = None if inside is None else jnp.asarray(inside).reshape(1, -1)
                return _dense(q, k, v, seen)
            return attend_to_all(q, k, v, kind=self.attention)

        if windows.count == 1:
            out = everywhere(q, k, v)
        else:
            out = jax.lax.cond(is_local, within, everywhere, q, k, v)
        out = checkpoint_name(out, SAVED)
        return self.out_proj(out.reshape(rows, length, width), drop("out_proj"))


class GatedVisionMLP(nnx.Module):
    """A gated unit."""

    def __init__(self, config: presets.VisionConfig, rngs: nnx.Rngs):
        width, inner = config.width, config.mlp_dim
        self.activation = _ACTIVATIONS[config.activation]
        self.gate_proj = _linear(config, width, inner, rngs)
        self.up_proj = _linear(config, width, inner, rngs)
        self.down_proj = _linear(config, inner, width, rngs)

    def __call__(
        self, x: Float[Array, "B N D"], dropout: TokenDropout | None
    ) -> Float[Array, "B N D"]:
        drop = (lambda name: dropout.fold_in(salt(name))) if dropout else (lambda name: None)
        gate = self.activation(self.gate_proj(x, drop("gate_proj")))
        return self.down_proj(gate * self.up_proj(x, drop("up_proj")), drop("down_proj"))


class VisionMLP(nnx.Module):
    """Two linear maps with biases and an activation between them."""

    def __init__(self, config: presets.VisionConfig, rngs: nnx.Rngs):
        self.activation = _ACTIVATIONS[config.activation]
        self.fc1 = Linear(config.width, config.mlp_dim, use_bias=True, rngs=rngs)
        self.fc2 = Linear(config.mlp_dim, config.width, use_bias=True, rngs=rngs)

    def __call__(
        self, x: Float[Array, "B N D"], dropout: TokenDropout | None
    ) -> Float[Array, "B N D"]:
        drop = (lambda name: dropout.fold_in(salt(name))) if dropout else (lambda name: None)
        hidden = self.fc1(x, drop("fc1"))
        return self.fc2(self.activation(hidden), drop("fc2"))


class VisionBlock(nnx.Module):
    """Pre-norm transformer block; some with norms behind attention and MLP as well."""

    def __init__(self, config: presets.VisionConfig, rngs: nnx.Rngs, attention: AttentionKind):
        of_whole = WindowedAttention if config.merges else VisionAttention
        self.norm1 = tower_norm(config)
        self.attn = of_whole(config, rngs, attention)
        self.norm2 = tower_norm(config)
        self.mlp = (GatedVisionMLP if config.gated else VisionMLP)(config, rngs)
        scaled, post_norms = config.layer_scale, config.post_norms
        ones = jnp.ones(config.width)
        self.attn_scale = nnx.data(nnx.Param(0.1 * ones) if scaled else None)
        self.mlp_scale = nnx.data(nnx.Param(0.1 * ones) if scaled else None)
        self.attn_post_norm = nnx.data(tower_norm(config) if post_norms else None)
        self.mlp_post_norm = nnx.data(tower_norm(config) if post_norms else None)

    def __call__(
        self, x: Float[Array, "B N D"], dropout: TokenDropout | None, *parts: Any
    ) -> Float[Array, "B N D"]:
        """Args: parts: what the attention is given besides."""
        attended = self.attn(self.norm1(x), dropout, *parts)
        if self.attn_scale is not None and self.mlp_scale is not None:
            x = x + self.attn_scale[...].astype(x.dtype) * attended
            return x + self.mlp_scale[...].astype(x.dtype) * self.mlp(self.norm2(x), dropout)
        x = x + (attended if self.attn_post_norm is None else self.attn_post_norm(attended))
        y = self.mlp(self.norm2(x), dropout)
        return x + (y if self.mlp_post_norm is None else self.mlp_post_norm(y))


class DeepMerger(nnx.Module):
    """Merger of an inner layer (DeepStack): a token's patches normed together, and two maps."""

    def __init__(self, config: presets.VisionConfig, width: int, rngs: nnx.Rngs):
        self.norm = LayerNorm(config.merged_width, config.norm_eps)
        self.fc1 = Linear(config.merged_width, config.merged_width, use_bias=True, rngs=rngs)
        self.fc2 = Linear(config.merged_width, width, use_bias=True, rngs=rngs)

    def __call__(
        self, x: Float[Array, "B N V"], dropout: TokenDropout | None
    ) -> Float[Array, "B N D"]:
        drop = (lambda name: dropout.fold_in(salt(name))) if dropout else (lambda name: None)
        hidden = jax.nn.gelu(self.fc1(self.norm(x), drop("fc1")), approximate=False)
        return self.fc2(hidden, drop("fc2"))


class VisionTower(nnx.Module):
    """Images in, one feature vector a patch or token out, in reading order.

    Sources: SigLIP (arXiv 2303.15343) without its pooling head, as in arXiv 2407.07726;
    CLIP (arXiv 2103.00020) up to the layer before the last, without its class token, as in arXiv
    2310.03744; in windows (arXiv 2502.13923, 2511.21631), of which the patches of a token come side
    by side, as the merger wants them; with a table of each direction's positions, of which patches
    add a row each; without layers: a patch is a token, its numbers normed, mapped, and normed
    before and after its place is added. What isn't asked, such as a last layer or norm, is a
    parameter all the same: it goes in and out with the checkpoint.
    """

    def __init__(
        self,
        config: presets.VisionConfig,
        rngs: nnx.Rngs,
        *,
        remat: str,
        unroll: bool,
        attention: AttentionKind,
    ):
        if config.image_size % config.patch_size and not config.side_by_side:
            raise ValueError(
                f"image size {config.image_size} is not a multiple of patch {config.patch_size}"
            )
        unit = config.patch_size * config.pool
        wants_whole = config.merges or config.post_norms
        if wants_whole and any(side % unit for side in config.image_hw):
            raise ValueError(
                f"image size {config.image_hw} is not a multiple of {config.pool} patches of "
                f"{config.patch_size}"
            )
        if config.image_width is not None and not config.any_size and config.tile_size is None:
            raise ValueError(f"images of {config.image_hw} in a tower of square ones")
        self.config = config
        self.patch_size = config.patch_size
        self.remat = remat
        self.unroll = unroll
        self.num_layers = config.depth - config.skip_last
        self.patch_embed = Linear(
            config.patch_size**2 * 3 * (_FRAMES if config.merges else 1),
            config.width,
            use_bias=config.patch_bias,
            rngs=rngs,
        )
        self.is_bare = config.depth == 0
        self.has_table = config.most_positions > 0  # of each direction
        numbers = config.patch_size**2 * 3
        self.patch_norm = nnx.data(LayerNorm(numbers, config.norm_eps) if self.is_bare else None)
        self.class_embed = nnx.data(None)
        if config.class_token:
            drawn = config.width**-0.5 * jax.random.normal(rngs.params(), (config.width,))
            self.class_embed = nnx.data(nnx.Param(drawn))
        ends = (
            LayerNorm(config.width, config.norm_eps) if there else None
            for there in (config.pre_norm, config.final_norm)
        )
        self.pre_norm: Any = nnx.data(next(ends))
        self.position_embed: Any = nnx.data(None)
        if config.position_side is not None or not config.merges:
            rows = (config.position_side or 0) ** 2 or config.num_positions
            table: tuple[int, ...] = (rows,)
            if self.has_table:
                table = (config.most_positions, 2) if self.is_bare else (2, config.most_positions)
            drawn = jax.random.normal(rngs.params(), (*table, config.width))
            self.position_embed = nnx.data(nnx.Param(config.width**-0.5 * drawn))
        self.layers: Any = nnx.data(None)
        if not self.is_bare:
            self.layers = stack_layers(
                lambda r: VisionBlock(config, r, attention), config.depth, rngs
            )
        self.final_norm: Any = nnx.data(next(ends))
        # Published, and trained by nobody: they have no gradient here.
        own = config.standardized
        self.feature_bias = nnx.data(nnx.Param(jnp.zeros(config.width)) if own else None)
        self.feature_scale = nnx.data(nnx.Param(jnp.ones(config.width)) if own else None)

    def __call__(
        self, images: Float[Array, "B H W 3"], dropout: TokenDropout | None = None
    ) -> Float[Array, "B N V"]:
        """Args: images in [-1, 1]; dropout: noise for LoRA branches in training, else None."""
        rows, height, width, _ = images.shape
        p = self.patch_size
        if self.config.colours in _COLOURS:
            images = _own_colours(self.config.colours, images)
        images = images[:, : height // p * p, : width // p * p]  # of whole patches
        patches = images.reshape(rows, height // p, p, width // p, p, 3)
        patches = patches.transpose(0, 1, 3, 2, 4, 5).reshape(rows, -1, p * p * 3)
        if self.config.merges:
            return self._in_windows(jnp.concatenate([patches] * _FRAMES, axis=-1), dropout)
        if self.is_bare:
            return self._placed(patches)
        x = self.patch_embed(patches)
        if self.class_embed is not None:
            first = jnp.broadcast_to(self.class_embed[...].astype(x.dtype), (rows, 1, x.shape[-1]))
            x = jnp.concatenate([first, x], axis=1)
        positions = self.position_embed[...].astype(x.dtype)
        x = x + (self._of_directions(positions) if self.has_table else positions)
        if self.pre_norm is not None:
            x = self.pre_norm(x)

        columns = self.config.patch_grid[1]

        def apply(layer: VisionBlock, x: Array, index: Int[Array, ""]) -> tuple[Array, None]:
            noise = dropout.fold_in(salt("vision")).fold_in(index) if dropout else None
            return layer(x, noise, columns), None

        layers = self.layers
        if self.config.skip_last and isinstance(layers, nnx.List):
            layers = layers[: self.num_layers]
        elif self.config.skip_last:
            graphdef, state = nnx.split(layers)
            layers = nnx.merge(graphdef, jax.tree.map(lambda leaf: leaf[: self.num_layers], state))
        x, _ = scan_layers(layers, apply, x, remat=self.remat, unroll=self.unroll)
        if self.config.class_token:
            return x[:, 1:]
        return x if self.final_norm is None else self.final_norm(x)

    def _placed(self, patches: Float[Array, "B N p"]) -> Float[Array, "B N V"]:
        """The features of a model without layers, whose pixels are from 0 to 1."""
        assert self.patch_norm is not None and self.pre_norm is not None
        x = self.pre_norm(self.patch_embed(self.patch_norm(patches / 2 + 0.5)))
        table = self.position_embed[...].astype(x.dtype).swapaxes(0, 1)
        return self.final_norm(x + self._of_directions(table))

    def _of_directions(self, table: Float[Array, "2 M D"]) -> Float[Array, "N D"]:
        """Position embedding of each patch: the sum of its column's and its row's embedding."""
        rows, columns = self.config.patch_grid
        across, down = table[0, :columns], table[1, :rows]
        return (down[:, None] + across[None]).reshape(rows * columns, -1)

    def standardize(self, pooled: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        """Pooled features, scaled, and shifted by the checkpoint's own."""
        x = pooled.astype(jnp.float32) * pooled.shape[-1] ** 0.5
        if self.feature_bias is not None and self.feature_scale is not None:
            bias, scale = (
                jax.lax.stop_gradient(each[...]).astype(jnp.float32)
                for each in (self.feature_bias, self.feature_scale)
            )
            x = (x - bias) * scale
        return x.astype(pooled.dtype)

    def _in_windows(
        self, patches: Float[Array, "B N p"], dropout: TokenDropout | None
    ) -> Float[Array, "B T V"]:
        """The layers over patches in the order of their windows, and tokens of what comes out."""
        config = self.config
        windows = make_windows(config.patch_grid, config.pool, config.window)
        x = self.patch_embed(patches)
        if self.position_embed is not None:
            x = x + self._stretched_positions().astype(x.dtype)
        x = x[:, windows.order]
        local_layers = jnp.array([config.is_local(layer) for layer in range(config.depth)])

        def apply(layer: VisionBlock, x: Array, index: Int[Array, ""]) -> tuple[Array, None]:
            noise = dropout.fold_in(salt("vision")).fold_in(index) if dropout else None
            return layer(x, noise, windows, local_layers[index]), None

        x, kept = scan_layers(
            self.layers, apply, x, remat=self.remat, unroll=self.unroll, keep=config.deepstack
        )
        parts = [x] if kept is None else [x, *kept]
        shape = (x.shape[0], config.num_tokens, config.merged_width)
        return jnp.concatenate([part[:, windows.back].reshape(shape) for part in parts], axis=-1)

    def _stretched_positions(self) -> Float[Array, "N D"]:
        """The table between its corners, at as many places as there are patches."""
        config, table = self.config, self.position_embed[...].astype(jnp.float32)
        assert config.position_side is not None
        table = table.reshape(config.position_side, config.position_side, -1)
        down, across = (_between(side, config.position_side) for side in config.patch_grid)
        return jnp.einsum("rs,ct,std->rcd", down, across, table).reshape(-1, table.shape[-1])

    def resize_positions(self, config: presets.VisionConfig) -> None:
        """Interpolates the position embeddings, where there are any, for images of another size.

        As arXiv 2407.07726, section 3.2, goes from 224 to 448 and 896 pixels.
        """
        if self.position_embed is None or self.config.merges or self.has_table:
            return  # nothing depends on the size
        # A class token keeps its own.
        whole, has_class = self.position_embed[...], config.class_token
        first, positions = whole[: int(has_class)], whole[int(has_class) :]
        side, wanted = math.isqrt(len(positions)), config.patch_grid[0]
        grid = positions.reshape(side, side, -1)
        grid = jax.image.resize(grid, (wanted, wanted, grid.shape[-1]), "bilinear")
        grid = grid.reshape(wanted**2, -1)
        self.position_embed = nnx.Param(jnp.concatenate([first, grid]) if has_class else grid)


def _between(places: int, knots: int) -> Float[np.ndarray, "p k"]:
    """Weights of knots at places evenly from the first knot to the last (linear between them)."""
    at = np.arange(places, dtype=np.float32) * ((knots - 1) / max(places - 1, 1))
    return np.maximum(1 - np.abs(at[:, None] - np.arange(knots)), 0).astype(np.float32)


def normalize_images(images: Array, dtype: jnp.dtype) -> Float[Array, "B H W 3"]:
    """uint8 in 0..255 to [-1, 1], as SigLIP was trained; floats are taken to be in [-1, 1]."""
    if images.dtype == jnp.uint8:
        return (images.astype(jnp.float32) / 127.5 - 1.0).astype(dtype)
    return images.astype(dtype)


def cut_tiles(images: Float[Array, "B H W 3"], tile: int) -> Float[Array, "n t t 3"]:
    """Each image's tiles in reading order, and then the whole image as small as a tile."""
    rows, height, width, _ = images.shape
    tiles = images.reshape(rows, height // tile, tile, width // tile, tile, 3)
    tiles = tiles.transpose(0, 1, 3, 2, 4, 5).reshape(rows, -1, tile, tile, 3)
    whole = jax.image.resize(images, (rows, tile, tile, 3), "cubic")
    whole = jnp.clip(whole, -1, 1).astype(images.dtype)  # bicubic weights overshoot at edges
    return jnp.concatenate([tiles, whole[:, None]], axis=1).reshape(-1, tile, tile, 3)
