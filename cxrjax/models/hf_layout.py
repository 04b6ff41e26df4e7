"""Hugging Face's names, shapes and configurations for what we have under our own names.

Arithmetic on names and single tensors, by the tables of `cxrjax/models/families/`: reading and
writing files is elsewhere.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from cxrjax.errors import UserError
from cxrjax.family_tables import family_tables
from cxrjax.models.families import FAMILIES
from cxrjax.models.families.family import Tensors, Transform
from cxrjax.models.presets import IMAGE, DecoderConfig, VLMConfig


def unasked(names: Iterable[str], config: VLMConfig) -> dict[str, list[str]]:
    """Returns the tensors of a checkpoint that are left out on purpose, by what they are.

    Args:
        names: canonical ones.
    """
    patterns = FAMILIES[config.family].left_out(config)
    found = {what: [n for n in names if re.fullmatch(p, n)] for what, p in patterns.items()}
    return {what: some for what, some in found.items() if some}


@functools.cache
def _parts() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Patterns of the prefixes of all families, and their parts; the longest prefixes first."""
    special = {pair for family in FAMILIES.values() for pair in family.special}
    found: dict[str, str] = {}
    for kind in reversed(FAMILIES):
        tables = family_tables("prefixes")[kind]
        for name in ("older", "modules", "published"):
            for part, prefixes in tables.get(name, {}).items():
                every = [prefixes] if isinstance(prefixes, str) else prefixes
                found |= dict.fromkeys(every, part)
    plain = [(re.escape(prefix), found[prefix]) for prefix in sorted(found, key=len, reverse=True)]
    return tuple((re.compile(pattern), part) for pattern, part in [*sorted(special), *plain])


def _prefix(name: str) -> tuple[str, str] | None:
    """Returns the prefix of a tensor's name, and the part of the model that it is of."""
    for pattern, part in _parts():
        if found := pattern.match(name):
            return found[0], part
    return None


def canonical_name(name: str) -> str:
    """Returns one name for a tensor, whatever version wrote it (`text.layers.0.mlp.up_proj...`)."""
    found = _prefix(name)
    return name if found is None else found[1] + name[len(found[0]) :]


def found_prefixes(names: Iterable[str]) -> dict[str, str]:
    """Returns a checkpoint's name for each part: `{"text.": "language_model.model.", ...}`."""
    prefixes: dict[str, str] = {}
    for name in names:
        if found := _prefix(name):
            prefixes.setdefault(found[1], found[0])
    return prefixes


def _of_model(prefixes: Mapping[str, str], config: VLMConfig) -> dict[str, str]:
    """Returns the prefixes of the parts that the model has."""
    without = {"lm_head."} if config.decoder.tied else set()
    without |= set() if config.audio_width else {"audio."}
    return {part: prefix for part, prefix in prefixes.items() if part not in without}


def published_prefixes(config: VLMConfig) -> dict[str, str]:
    """Returns the prefixes of a checkpoint as the family is published; see `found_prefixes`."""
    published = _of_model(family_tables("prefixes")[config.family]["published"], config)
    if not config.decoder.tied:  # of families too that are published with one table
        within = "language_model." if published["text."].startswith("language_model.") else ""
        published.setdefault("lm_head.", f"{within}lm_head.")
    return published


def module_prefixes(config: VLMConfig) -> dict[str, str]:
    """Returns the prefixes of transformers 5's modules, as PEFT's adapters have them."""
    return {"lm_head.": "lm_head.", **family_tables("prefixes")[config.family]["modules"]}


def with_prefix(canonical: str, prefixes: Mapping[str, str]) -> str:
    """Inverse of `canonical_name`, by what `found_prefixes` gave."""
    part, _, rest = canonical.partition(".")
    return prefixes[f"{part}."] + rest


@dataclasses.dataclass(frozen=True)
class TensorRule:
    """The source of one of our parameters."""

    path: str  # ours, '/'-joined; stacked layers have the depth as leading axis
    name: str  # canonical name of the checkpoint's tensor; `{layer}` stands for its number
    transform: Transform  # from their layout to ours

    @property
    def stacked(self) -> bool:
        return "{layer}" in self.name

    def names(self, config: VLMConfig) -> list[str]:
        """Canonical names of its tensors: one, or one of each layer of the decoder or the tower."""
        if not self.stacked:
            return [self.name]
        return [self.name.format(layer=layer) for layer in self.layers(config)]

    def layers(self, config: VLMConfig) -> list[int]:
        """The numbers of the layers that are stacked: all, or those of one kind."""
        part, _, rest = self.path.partition("/")
        if part == "decoder":
            return config.decoder.stacks()[rest.split("/")[0]]
        assert config.vision is not None
        inner = len(config.vision.deepstack)
        return list(range(inner if part == "deepstack" else config.vision.depth))

    def their_shape(self, shape: tuple[int, ...], patch_size: int) -> tuple[int, ...]:
        """Shape of one of its tensors in a checkpoint, from ours, of all layers where stacked."""
        shape = tuple(shape[1:]) if self.stacked else shape
        if self.transform == "transposed":
            return shape[::-1]
        if self.transform == "patches":
            return (shape[1], 3, patch_size, patch_size)
        if self.transform == "frames":
            frames = shape[0] // (3 * patch_size**2)
            return (shape[1], 3, frames, patch_size, patch_size)
        if self.transform == "first":
            return (1,) * (3 - len(shape)) + shape
        return shape


def tensor_rules(config: VLMConfig) -> list[TensorRule]:
    """Returns a rule for every parameter of a model without adapters, in no particular order."""
    rules = _decoder_rules(config.decoder)
    if config.vision is None:
        return rules
    tables = family_tables("tensors")
    for row in (row for name in FAMILIES[config.family].tensors for row in tables[name]):
        tensors = Tensors(*row)
        is_there = tensors.when is None or getattr(config.vision, tensors.when)
        if is_there and (config.audio_width or not tensors.name.startswith("audio.")):
            rules += [TensorRule(*row) for row in tensors.rows()]
    return rules


def _linear(path: str, name: str, *, bias: bool) -> list[TensorRule]:
    rules = [TensorRule(f"{path}/kernel", f"{name}.weight", "transposed")]
    if bias:
        rules.append(TensorRule(f"{path}/bias", f"{name}.bias", "same"))
    return rules


def _decoder_rules(config: DecoderConfig) -> list[TensorRule]:
    rules = [
        TensorRule("decoder/embedder/table", "text.embed_tokens.weight", "same"),
        TensorRule("decoder/final_norm/scale", "text.norm.weight", "same"),
    ]
    if not config.tied:
        rules.append(TensorRule("decoder/embedder/head", "lm_head.weight", "same"))
    norms = {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    if config.post_norms:
        norms |= {
            "attn_post_norm": "post_attention_layernorm",
            "mlp_norm": "pre_feedforward_layernorm",
            "mlp_post_norm": "post_feedforward_layernorm",
        }
    if config.qk_norm:
        norms |= {"attn/q_norm": "self_attn.q_norm", "attn/k_norm": "self_attn.k_norm"}
    if config.per_layer_width:
        norms["per_layer_norm"] = "post_per_layer_input_norm"
        whole = "text.per_layer"
        table = TensorRule("decoder/per_layer/table", "text.embed_tokens_per_layer.weight", "same")
        norm = f"{whole}_projection_norm.weight"
        rules += [table, TensorRule("decoder/per_layer/norm/scale", norm, "same")]
        rules += _linear("decoder/per_layer/projection", f"{whole}_model_projection", bias=False)
    theirs = "text.layers.{layer}"
    for stack, numbers in config.stacks().items():
        ours, sizes = f"decoder/{stack}/", config.of_layer(numbers[0])
        without = {"v_proj"} if sizes.keys_are_values else set()
        without |= {"k_proj", "v_proj", "attn/k_norm"} if sizes.shared_layers else set()
        for norm, name in norms.items():
            if norm not in without:
                rules.append(TensorRule(f"{ours}{norm}/scale", f"{theirs}.{name}.weight", "same"))
        if config.layer_scale:
            rules.append(TensorRule(f"{ours}layer_scale", f"{theirs}.layer_scalar", "same"))
        if config.per_layer_width:
            names = {"gate": "per_layer_input_gate", "proj": "per_layer_projection"}
            for part, name in names.items():
                rules += _linear(f"{ours}per_layer_{part}", f"{theirs}.{name}", bias=False)
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            if part in without:
                continue
            bias = config.qkv_bias and part != "o_proj"
            rules += _linear(f"{ours}attn/{part}", f"{theirs}.self_attn.{part}", bias=bias)
        for part in ("gate_proj", "up_proj", "down_proj"):
            rules += _linear(f"{ours}mlp/{part}", f"{theirs}.mlp.{part}", bias=False)
    return rules


def to_ours(tensor: np.ndarray, transform: Transform) -> np.ndarray:
    """A checkpoint's tensor in our layout; a view where that is possible."""
    if transform == "transposed":
        return tensor.T
    if transform == "patches":  # [width, 3, p, p] to [p * p * 3, width], rows as pixels are cut
        return tensor.transpose(2, 3, 1, 0).reshape(-1, tensor.shape[0])
    if transform == "frames":  # [width, 3, frames, p, p]: a frame's rows behind the other's
        return tensor.transpose(2, 3, 4, 1, 0).reshape(-1, tensor.shape[0])
    if transform == "first":
        return tensor[0, 0] if tensor.shape[1] == 1 else tensor[0]
    return tensor


def to_theirs(array: np.ndarray, transform: Transform, patch_size: int) -> np.ndarray:
    """Inverse of `to_ours`, contiguous."""
    if transform == "transposed":
        return np.ascontiguousarray(array.T)
    if transform == "patches":
        patches = array.reshape(patch_size, patch_size, 3, -1)
        return np.ascontiguousarray(patches.transpose(3, 2, 0, 1))
    if transform == "frames":
        patches = array.reshape(-1, patch_size, patch_size, 3, array.shape[-1])
        return np.ascontiguousarray(patches.transpose(4, 3, 0, 1, 2))
    if transform == "first":
        return np.ascontiguousarray(array.reshape((1,) * (3 - array.ndim) + array.shape))
    return np.ascontiguousarray(array).reshape(array.shape)  # a number would be a vector


def vlm_config(
    config: Mapping[str, Any],
    where: str,
    loc_token_start: int,
    context: tuple[int, ...] = (IMAGE,),
    second_image: tuple[int, ...] = (IMAGE,),
) -> VLMConfig:
    """Returns our sizes from a checkpoint's `config.json`, defaults filled in.

    Args:
        config: from `hf_config.complete_config`.
        where: file, for error messages.
        loc_token_start: id of `<loc0000>`; not in the file.
        context, second_image: what stands before a question; not in the file either.

    Raises:
        UserError: an architecture, or a setting of it, that we do not have; sizes that are none, or
            do not go together.
    """
    family = FAMILIES[config["model_type"]]
    try:
        found = family.sizes(config, where)
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{where}: its sizes make no model ({error}); use the config.json that belongs to the "
            "weights"
        ) from None
    contexts: dict[str, Any] = {"context": context, "second_image": second_image}
    contexts = {} if found.vision is None else contexts
    return dataclasses.replace(
        found, family=family.kind, loc_token_start=loc_token_start, **contexts
    )
