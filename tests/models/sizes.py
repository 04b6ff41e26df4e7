"""Small models: their sizes, written as changes of others, and their parameters.

Sizes with names are small_sizes.json's.
"""

import copy
import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from cxrjax.models import PRESETS, VLM
from cxrjax.models.hf_config import complete_config
from cxrjax.models.hf_layout import vlm_config
from cxrjax.models.presets import DecoderConfig, VisionConfig, VLMConfig

_ROWS = json.loads(Path(__file__).with_name("small_sizes.json").read_text())


def stated(rows):
    """Sizes of which all that differ from the defaults are stated."""
    vision, decoder = VisionConfig(**rows["vision"]), DecoderConfig(**rows["decoder"])
    return VLMConfig(**rows | {"vision": vision, "decoder": decoder})


PLAIN = stated(_ROWS["plain"])


def changed(sizes, vision=(), decoder=(), **rest):
    """Sizes with other ones of the tower, of the decoder and of the whole."""
    rest = {key: tuple(value) if isinstance(value, list) else value for key, value in rest.items()}
    parts = {
        "vision": dataclasses.replace(sizes.vision, **dict(vision)),
        "decoder": dataclasses.replace(sizes.decoder, **dict(decoder)),
    }
    return dataclasses.replace(sizes, **parts, **rest)


@functools.cache
def named(name):
    row = dict(_ROWS[name])
    return changed(named(row.pop("of")) if "of" in row else PLAIN, **row)


def sizes_of(config, loc_token_start, *contexts):
    """What a configuration of Hugging Face's says."""
    stated = complete_config(copy.deepcopy(config), "config.json")
    return vlm_config(stated, "config.json", loc_token_start, *contexts)


def drawn(build):
    """What `build()` makes, with parameters drawn by NumPy.

    JAX compiles a program for each shape that it draws: seconds a model.
    """
    graph, state = nnx.split(nnx.eval_shape(build))
    draw = np.random.default_rng(7).normal

    def of(leaf):
        scale = leaf.shape[-2] ** -0.5 if leaf.ndim > 1 else 0.1
        return jnp.asarray(draw(0, scale, leaf.shape), leaf.dtype)

    return nnx.merge(graph, jax.tree.map(of, state))


@functools.cache
def _talking_parts(share, vocab_size, width, decoder):
    sizes = changed(
        PRESETS["tiny"],
        vision={"image_size": 16, "patch_size": 8, "width": width, "depth": 1, "mlp_dim": 32},
        decoder={"vocab_size": vocab_size, "width": width, "depth": 2, "head_dim": width // 4}
        | {"mlp_dim": 32, **dict(decoder)},
        loc_token_start=4 if vocab_size > 1028 else -1,
    )
    model = drawn(lambda: VLM(sizes, rngs=nnx.Rngs(2), share=share))
    # Without this an untrained model says one token for ever.
    model.decoder.layers.attn.o_proj.kernel[...] *= 4.0
    # Neighbouring bins start nearly alike: rounding would tell which is likelier.
    table = 0.2 * np.random.default_rng(4).standard_normal((vocab_size, width))
    model.decoder.embedder.table[...] = jnp.asarray(table, jnp.float32)
    return nnx.split(model)


def talking_model(share, vocab_size, width=24, **decoder):
    """A random model whose answers differ, with location tokens from id 4 where there is room."""
    return copy_of(_talking_parts(share, vocab_size, width, tuple(decoder.items())))


def copy_of(parts):
    """A model of its own: those that are merged from one state share its variables."""
    return nnx.merge(parts[0], jax.tree.map(lambda leaf: leaf, parts[1]))


def arrays(model):
    """Parameters by their paths."""
    flat = nnx.to_flat_state(nnx.state(model))
    return {"/".join(map(str, path)): np.asarray(leaf.get_value()) for path, leaf in flat}


def with_arrays(model, values):
    """A copy with arrays in the place of parameters, by path."""
    graphdef, state = nnx.split(model)
    flat = [
        (path, leaf.replace(jnp.asarray(values.get("/".join(map(str, path)), leaf.get_value()))))
        for path, leaf in nnx.to_flat_state(state)
    ]
    return nnx.merge(graphdef, nnx.from_flat_state(flat))
