"""The vision tower, SigLIP's or CLIP's: patches in, one token a patch out."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from cxrjax.models.attention import KeySection, attend
from cxrjax.models.layers import LayerNorm, Linear, TokenDropout, salt, scan_layers, stack_layers
from cxrjax.models.presets import CLIP_MEAN, CLIP_STD, VisionConfig
from cxrjax.models.splash import SAVED, AttentionKind, attend_to_all


def _eps(config: VisionConfig) -> float:
    return 1e-5 if config.kind == "clip" else 1e-6


def _clip_colours(images: Float[Array, "B H W 3"]) -> Float[Array, "B H W 3"]:
    """From [-1, 1] to what CLIP was trained on."""
    mean, std = (np.array(values, np.float32) for values in (CLIP_MEAN, CLIP_STD))
    return ((images.astype(jnp.float32) / 2 + 0.5 - mean) / std).astype(images.dtype)


class VisionAttention(nnx.Module):
    """Full self-attention with biases."""

    def __init__(self, config: VisionConfig, rngs: nnx.Rngs, attention: AttentionKind):
        self.attention = attention
        self.num_heads = config.num_heads
        width = config.width
        self.q_proj = Linear(width, width, use_bias=True, rngs=rngs)
        self.k_proj = Linear(width, width, use_bias=True, rngs=rngs)
        self.v_proj = Linear(width, width, use_bias=True, rngs=rngs)
        self.out_proj = Linear(width, width, use_bias=True, rngs=rngs)

    def __call__(
        self, x: Float[Array, "B N D"], dropout: TokenDropout | None
    ) -> Float[Array, "B N D"]:
        rows, length, width = x.shape
        drop = (lambda name: dropout.fold_in(salt(name))) if dropout else (lambda name: None)

        def heads(y: Array) -> Array:
            return y.reshape(rows, length, self.num_heads, -1)

        q = heads(self.q_proj(x, drop("q_proj")))
        k = heads(self.k_proj(x, drop("k_proj")))
        v = heads(self.v_proj(x, drop("v_proj")))
        q = q * q.shape[-1] ** -0.5
        if self.attention == "dense":
            q, k, v = (y.transpose(0, 2, 1, 3) for y in (q, k, v))
            out = attend(q[:, :, None, None], [KeySection(k, v)])[:, :, 0, 0]
            out = checkpoint_name(out.transpose(0, 2, 1, 3), SAVED)
        else:
            out = attend_to_all(q, k, v, interpret=self.attention == "splash_interpreted")
        return self.out_proj(out.reshape(rows, length, width), drop("out_proj"))


class VisionMLP(nnx.Module):
    """Two linear maps with biases and an approximation of GELU between them."""

    def __init__(self, config: VisionConfig, rngs: nnx.Rngs):
        self.kind = config.kind
        self.fc1 = Linear(config.width, config.mlp_dim, use_bias=True, rngs=rngs)
        self.fc2 = Linear(config.mlp_dim, config.width, use_bias=True, rngs=rngs)

    def __call__(
        self, x: Float[Array, "B N D"], dropout: TokenDropout | None
    ) -> Float[Array, "B N D"]:
        drop = (lambda name: dropout.fold_in(salt(name))) if dropout else (lambda name: None)
        hidden = self.fc1(x, drop("fc1"))
        if self.kind == "clip":  # the sigmoid's approximation, which CLIP was trained with
            hidden = hidden * jax.nn.sigmoid(1.702 * hidden)
        else:
            hidden = jax.nn.gelu(hidden)
        return self.fc2(hidden, drop("fc2"))


class VisionBlock(nnx.Module):
    """Pre-norm transformer block."""

    def __init__(self, config: VisionConfig, rngs: nnx.Rngs, attention: AttentionKind):
        self.norm1 = LayerNorm(config.width, _eps(config))
        self.attn = VisionAttention(config, rngs, attention)
        self.norm2 = LayerNorm(config.width, _eps(config))
        self.mlp = VisionMLP(config, rngs)

    def __call__(
        self, x: Float[Array, "B N D"], dropout: TokenDropout | None
    ) -> Float[Array, "B N D"]:
        x = x + self.attn(self.norm1(x), dropout)
        return x + self.mlp(self.norm2(x), dropout)


class VisionTower(nnx.Module):
    """Images in, one feature vector a patch out, in reading order.

    Sources: SigLIP (arXiv 2303.15343) without its pooling head, as PaliGemma (arXiv 2407.07726);
    CLIP (arXiv 2103.00020) up to the layer before the last, without its class token, as LLaVA
    (arXiv 2310.03744). What of CLIP isn't asked, the last layer and norm, is a parameter all the
    same: it goes in and out with the checkpoint.
    """

    def __init__(
        self,
        config: VisionConfig,
        rngs: nnx.Rngs,
        *,
        remat: str,
        unroll: bool,
        attention: AttentionKind,
    ):
        if config.image_size % config.patch_size:
            raise ValueError(
                f"image size {config.image_size} is no multiple of patch {config.patch_size}"
            )
        self.patch_size = config.patch_size
        self.remat = remat
        self.unroll = unroll
        self.is_clip = config.kind == "clip"
        self.num_layers = config.depth - config.skip_last
        self.patch_embed = Linear(
            config.patch_size**2 * 3, config.width, use_bias=not self.is_clip, rngs=rngs
        )
        self.class_embed = nnx.data(None)
        if self.is_clip:
            drawn = config.width**-0.5 * jax.random.normal(rngs.params(), (config.width,))
            self.class_embed = nnx.data(nnx.Param(drawn))
        self.pre_norm = nnx.data(LayerNorm(config.width, _eps(config)) if self.is_clip else None)
        self.position_embed = nnx.Param(
            config.width**-0.5
            * jax.random.normal(rngs.params(), (config.num_positions, config.width))
        )
        self.layers = stack_layers(lambda r: VisionBlock(config, r, attention), config.depth, rngs)
        self.final_norm = LayerNorm(config.width, _eps(config))

    def __call__(
        self, images: Float[Array, "B H W 3"], dropout: TokenDropout | None = None
    ) -> Float[Array, "B N D"]:
        """Args: images in [-1, 1]; dropout: noise for LoRA branches in training, else None."""
        rows, height, width, _ = images.shape
        p = self.patch_size
        if self.is_clip:
            images = _clip_colours(images)
        patches = images.reshape(rows, height // p, p, width // p, p, 3)
        patches = patches.transpose(0, 1, 3, 2, 4, 5).reshape(rows, -1, p * p * 3)
        x = self.patch_embed(patches)
        if self.class_embed is not None:
            first = jnp.broadcast_to(self.class_embed[...].astype(x.dtype), (rows, 1, x.shape[-1]))
            x = jnp.concatenate([first, x], axis=1)
        x = x + self.position_embed[...].astype(images.dtype)
        if self.pre_norm is not None:
            x = self.pre_norm(x)

        def apply(layer: VisionBlock, x: Array, index: Int[Array, ""]) -> tuple[Array, None]:
            noise = dropout.fold_in(salt("vision")).fold_in(index) if dropout else None
            return layer(x, noise), None

        layers = self.layers
        if self.is_clip:
            graphdef, state = nnx.split(layers)
            layers = nnx.merge(graphdef, jax.tree.map(lambda leaf: leaf[: self.num_layers], state))
        x, _ = scan_layers(layers, apply, x, remat=self.remat, unroll=self.unroll)
        return x[:, 1:] if self.is_clip else self.final_norm(x)

    def resize_positions(self, config: VisionConfig) -> None:
        """Interpolates the position embeddings for images of another size.

        As PaliGemma went from 224 to 448 and 896 pixels (arXiv 2407.07726, section 3.2).
        """
        # CLIP's class token keeps its own.
        whole = self.position_embed[...]
        first, positions = whole[: int(self.is_clip)], whole[int(self.is_clip) :]
        side, wanted = math.isqrt(len(positions)), config.image_size // config.patch_size
        grid = positions.reshape(side, side, -1)
        grid = jax.image.resize(grid, (wanted, wanted, grid.shape[-1]), "bilinear")
        grid = grid.reshape(wanted**2, -1)
        self.position_embed = nnx.Param(jnp.concatenate([first, grid]) if self.is_clip else grid)


def normalize_images(images: Array, dtype: jnp.dtype) -> Float[Array, "B H W 3"]:
    """uint8 in 0..255 to [-1, 1], as SigLIP was trained; floats are taken to be in [-1, 1]."""
    if images.dtype == jnp.uint8:
        return (images.astype(jnp.float32) / 127.5 - 1.0).astype(dtype)
    return images.astype(dtype)
