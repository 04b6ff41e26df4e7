"""Hugging Face's names, shapes and configurations for what we have under our own names.

Pure tables and arithmetic on names and single tensors: reading and writing files is elsewhere.
Facts from the public configurations and state dicts of transformers' `paligemma`, `gemma3`,
`gemma3_text`, `gemma4`, `gemma4_unified`, `llava`, `internvl`, `qwen2_5_vl` and `qwen3_vl`.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from cxrjax.errors import UserError
from cxrjax.models.presets import IMAGE, DecoderConfig, VisionConfig, VLMConfig
from cxrjax.untrusted.names import shown_value

# `frames` are patches of several frames.
# `first` have one more axis in front, of length 1, and a vector two.
Transform = Literal["same", "transposed", "patches", "frames", "first"]

# By `model_type`.
ARCHITECTURES = (
    *("paligemma", "gemma3", "gemma3_text", "gemma4", "gemma4_unified"),
    *("llava", "internvl", "qwen2_5_vl", "qwen3_vl"),
)
# Qwen-VL takes images of any size; ours are of one, which its configuration does not have: 16
# tokens along a side.
_QWEN_SIDES = {"qwen2_5_vl": 448, "qwen3_vl": 512}
# So does Gemma 4; of the squares of whole tokens the largest within 280 tokens, its default.
_GEMMA4_TOKENS = 16

# Up to here rotary positions of type "dynamic" are plain ones; nothing here is as long.
_LONGEST_PLAIN = 16_384

# Prefixes that transformers' versions have given to the same parts, in files and in modules.
_PARTS = (
    (r"(?:model\.)?vision_tower\.(?:vision_model\.)?", "vision."),
    (r"(?:model\.)?multi_modal_projector\.", "projector."),
    (r"(?:model\.)?(?:vision_embedder\.|embed_vision\.(?=patch_|pos_))", "vision."),
    (r"(?:model\.)?embed_vision\.(?:multimodal_embedder\.)?", "projector."),
    (r"(?:model\.)?embed_audio\.", "audio."),
    (r"(?:model\.)?visual\.merger\.", "projector."),
    (r"(?:model\.)?visual\.", "vision."),
    (r"language_model\.model\.|model\.language_model\.|model\.", "text."),
    (r"(?:language_model\.)?lm_head\.", "lm_head."),
)

# As published checkpoints have them, which every version reads.
_PUBLISHED = {
    "vision.": "vision_tower.vision_model.",
    "projector.": "multi_modal_projector.",
    "text.": "language_model.model.",
}
# As the modules of transformers 5 are called, and so PEFT's.
_MODULES = {
    "vision.": "model.vision_tower.",
    "projector.": "model.multi_modal_projector.",
    "text.": "model.language_model.",
}

# The same of Qwen-VL, whose projector is a part of the tower.
_QWEN_PUBLISHED = {"vision.": "visual.", "projector.": "visual.merger.", "text.": "model."}
_QWEN_MODULES = {
    "vision.": "model.visual.",
    "projector.": "model.visual.merger.",
    "text.": "model.language_model.",
}

# The same of Gemma 4, whose files and modules have one name.
_GEMMA4 = {
    "vision.": "model.vision_tower.",
    "projector.": "model.embed_vision.",
    "text.": "model.language_model.",
}
# Of its 12B, which has a part for sound too.
_GEMMA4_BARE = _GEMMA4 | {"vision.": "model.vision_embedder.", "audio.": "model.embed_audio."}
_GEMMA4_BARE_MODULES = _GEMMA4_BARE | {
    "vision.": "model.embed_vision.",
    "projector.": "model.embed_vision.multimodal_embedder.",
}

# All of them, as patterns in an adapter's settings may have any.
_ALL_PREFIXES = {
    "vision.": (
        *("model.vision_tower.", "model.vision_tower.vision_model."),
        *("vision_tower.vision_model.", "vision_tower.", "model.visual.", "visual."),
        *("model.embed_vision.", "embed_vision.", "model.vision_embedder.", "vision_embedder."),
    ),
    "projector.": (
        *("model.multi_modal_projector.", "multi_modal_projector."),
        *("model.visual.merger.", "visual.merger.", "model.embed_vision.", "embed_vision."),
        *("model.embed_vision.multimodal_embedder.", "embed_vision.multimodal_embedder."),
    ),
    "text.": ("model.language_model.", "language_model.model.", "model.", "language_model."),
    "audio.": ("model.embed_audio.", "embed_audio."),
}


# What Gemma 4's small sizes have and nothing asks here: a tower for sounds with its map, and keys
# and values of layers that read another's.
_SOUNDS = r"audio\..*|text\.(audio_tower|embed_audio)\..*"
_OF_KEYS = r"text\.layers\.({})\.self_attn\.(k_proj|v_proj|k_norm|v_norm)\..*"


def unasked(names: Iterable[str], config: VLMConfig) -> dict[str, list[str]]:
    """The tensors of a checkpoint that are left out on purpose, by what they are.

    Args:
        names: canonical ones.
    """
    if config.vision is None or config.vision.kind != "gemma4":
        return {}
    shared = [n for n in range(config.decoder.depth) if config.decoder.keys_of(n) != n]
    patterns = {"the tower for sounds": _SOUNDS}
    if shared:
        patterns["keys that no layer reads"] = _OF_KEYS.format("|".join(map(str, shared)))
    found = {what: [n for n in names if re.fullmatch(p, n)] for what, p in patterns.items()}
    return {what: some for what, some in found.items() if some}


def canonical_name(name: str) -> str:
    """One name for a tensor whatever version wrote it: `text.layers.0.mlp.up_proj.weight`."""
    for pattern, part in _PARTS:
        found = re.match(pattern, name)
        if found:
            return part + name[found.end() :]
    return name


def found_prefixes(names: Iterable[str]) -> dict[str, str]:
    """A checkpoint's name for each part: `{"text.": "language_model.model.", ...}`."""
    prefixes: dict[str, str] = {}
    for name in names:
        for pattern, part in _PARTS:
            found = re.match(pattern, name)
            if found:
                prefixes.setdefault(part, found[0])
                break
    return prefixes


def published_prefixes(config: VLMConfig) -> dict[str, str]:
    """The prefixes of a checkpoint as models of this kind are published; see `found_prefixes`."""
    if config.vision is None:
        return {"text.": "model."}
    if config.vision.merges:
        published = _QWEN_PUBLISHED if config.vision.kind == "qwen" else _QWEN_MODULES
        return published | ({} if config.decoder.tied else {"lm_head.": "lm_head."})
    if config.vision.kind == "gemma4":
        return dict(_GEMMA4)
    if config.vision.kind == "patches":
        missing = () if config.audio_width else ("audio.",)
        return {part: name for part, name in _GEMMA4_BARE.items() if part not in missing}
    published = dict(_PUBLISHED)
    if config.vision.kind == "internvl":
        published["vision."] = "vision_tower."
    return published | ({} if config.decoder.tied else {"lm_head.": "language_model.lm_head."})


def module_prefixes(config: VLMConfig) -> dict[str, str]:
    """The prefixes of transformers 5's modules, as PEFT's adapters have them (`found_prefixes`)."""
    if config.vision is None:
        return {"text.": "model."}
    own = {"gemma4": _GEMMA4, "patches": _GEMMA4_BARE_MODULES}
    others = _QWEN_MODULES if config.vision.merges else _MODULES
    return dict(own.get(config.vision.kind, others))


def names_of_all_versions(canonical: str) -> list[str]:
    """Every name that some version of transformers has given to a module, today's first."""
    part, _, rest = canonical.partition(".")
    return [prefix + rest for prefix in _ALL_PREFIXES[f"{part}."]]


def with_prefix(canonical: str, prefixes: Mapping[str, str]) -> str:
    """Inverse of `canonical_name`, by what `found_prefixes` gave."""
    part, _, rest = canonical.partition(".")
    return prefixes[f"{part}."] + rest


# Qwen3-VL's mergers of inner layers, which its tower has.
_DEEPSTACK = "vision.deepstack_merger_list."


@dataclasses.dataclass(frozen=True)
class TensorRule:
    """The source of one of our parameters.

    Attributes:
        path: ours, '/'-joined; stacked layers have the depth as leading axis.
        name: canonical name of the checkpoint's tensor; `{layer}` stands for its number.
        transform: from their layout to ours.
    """

    path: str
    name: str
    transform: Transform

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
        parts = config.vision if self.name.startswith("vision.") else config.decoder
        assert parts is not None
        numbers = list(range(parts.depth))
        if self.name.startswith(_DEEPSTACK) and config.vision is not None:
            numbers = list(range(len(config.vision.deepstack)))
        of_decoder, _, rest = self.path.partition("/")
        if of_decoder == "decoder":
            numbers = config.decoder.stacks()[rest.split("/")[0]]
        return numbers

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
    """A rule for every parameter of a model without adapters, in no particular order."""
    rules = _decoder_rules(config.decoder)
    if config.vision is None:
        return rules
    if config.vision.kind == "qwen":
        rules += _qwen_vision_rules()
    elif config.vision.kind == "qwen3":
        rules += _qwen3_vision_rules(config.vision)
    elif config.vision.kind == "internvl":
        rules += _internvl_vision_rules()
    elif config.vision.kind == "gemma4":
        rules += _gemma4_vision_rules(config.vision)
    elif config.vision.kind == "patches":
        rules += _patches_rules()
    else:
        rules += _vision_rules(is_clip=config.vision.kind == "clip")
    if config.vision.kind == "qwen3":
        rules += _norm("projector_norm", "projector.norm")
        rules += _linear("projector", "projector.linear_fc1", bias=True)
        rules += _linear("projector_out", "projector.linear_fc2", bias=True)
    elif config.projector == "merger":
        rules.append(TensorRule("projector_norm/scale", "projector.ln_q.weight", "same"))
        rules += _linear("projector", "projector.mlp.0", bias=True)
        rules += _linear("projector_out", "projector.mlp.2", bias=True)
    elif config.projector in ("mlp", "normed_mlp"):
        if config.projector == "normed_mlp":
            rules += _norm("projector_norm", "projector.layer_norm")
        rules += _linear("projector", "projector.linear_1", bias=True)
        rules += _linear("projector_out", "projector.linear_2", bias=True)
    elif config.projector == "linear":
        rules += _linear("projector", "projector.linear", bias=True)
    elif config.projector == "unscaled":
        rules += _linear("projector", "projector.embedding_projection", bias=False)
    else:
        rules.append(TensorRule("projector/kernel", "projector.mm_input_projection_weight", "same"))
        rules.append(
            TensorRule("projector_norm/scale", "projector.mm_soft_emb_norm.weight", "same")
        )
    if config.audio_width:
        rules += _linear("audio", "audio.embedding_projection", bias=False)
    return rules


def _linear(path: str, name: str, *, bias: bool) -> list[TensorRule]:
    rules = [TensorRule(f"{path}/kernel", f"{name}.weight", "transposed")]
    if bias:
        rules.append(TensorRule(f"{path}/bias", f"{name}.bias", "same"))
    return rules


def _norm(path: str, name: str) -> list[TensorRule]:
    """Rules for the scale and bias of a norm."""
    return [
        TensorRule(f"{path}/scale", f"{name}.weight", "same"),
        TensorRule(f"{path}/bias", f"{name}.bias", "same"),
    ]


_PATCH_BIAS = ("patch_embed/bias", "patch_embedding.bias")


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


def _vision_rules(*, is_clip: bool) -> list[TensorRule]:
    rules = [
        TensorRule(
            "vision/patch_embed/kernel", "vision.embeddings.patch_embedding.weight", "patches"
        ),
        TensorRule("vision/position_embed", "vision.embeddings.position_embedding.weight", "same"),
    ]
    other = ("class_embed", "class_embedding") if is_clip else _PATCH_BIAS
    rules.append(TensorRule(f"vision/{other[0]}", f"vision.embeddings.{other[1]}", "same"))
    ours, theirs = "vision/layers", "vision.encoder.layers.{layer}"
    norms = {
        f"{ours}/norm1": f"{theirs}.layer_norm1",
        f"{ours}/norm2": f"{theirs}.layer_norm2",
        "vision/final_norm": "vision.post_layernorm",
    }
    if is_clip:
        norms["vision/pre_norm"] = "vision.pre_layrnorm"  # spelled so
    for norm, name in norms.items():
        rules += _norm(norm, name)
    for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
        rules += _linear(f"{ours}/attn/{part}", f"{theirs}.self_attn.{part}", bias=True)
    for part in ("fc1", "fc2"):
        rules += _linear(f"{ours}/mlp/{part}", f"{theirs}.mlp.{part}", bias=True)
    return rules


def _qwen_vision_rules() -> list[TensorRule]:
    ours, theirs = "vision/layers", "vision.blocks.{layer}"
    rules = [TensorRule("vision/patch_embed/kernel", "vision.patch_embed.proj.weight", "frames")]
    for norm in ("norm1", "norm2"):
        rules.append(TensorRule(f"{ours}/{norm}/scale", f"{theirs}.{norm}.weight", "same"))
    rules += _linear(f"{ours}/attn/qkv_proj", f"{theirs}.attn.qkv", bias=True)
    rules += _linear(f"{ours}/attn/out_proj", f"{theirs}.attn.proj", bias=True)
    for part in ("gate_proj", "up_proj", "down_proj"):
        rules += _linear(f"{ours}/mlp/{part}", f"{theirs}.mlp.{part}", bias=True)
    return rules


def _internvl_vision_rules() -> list[TensorRule]:
    rules = [
        TensorRule(
            "vision/patch_embed/kernel",
            "vision.embeddings.patch_embeddings.projection.weight",
            "patches",
        ),
        TensorRule(
            "vision/patch_embed/bias", "vision.embeddings.patch_embeddings.projection.bias", "same"
        ),
        TensorRule("vision/position_embed", "vision.embeddings.position_embeddings", "first"),
        TensorRule("vision/class_embed", "vision.embeddings.cls_token", "first"),
    ]
    ours, theirs = "vision/layers", "vision.encoder.layer.{layer}"
    rules += _norm(f"{ours}/norm1", f"{theirs}.layernorm_before")
    rules += _norm(f"{ours}/norm2", f"{theirs}.layernorm_after")
    for scale, name in (("attn_scale", "lambda_1"), ("mlp_scale", "lambda_2")):
        rules.append(TensorRule(f"{ours}/{scale}", f"{theirs}.{name}", "same"))
    for part in ("q_proj", "k_proj", "v_proj"):
        rules += _linear(f"{ours}/attn/{part}", f"{theirs}.attention.{part}", bias=True)
    rules += _linear(f"{ours}/attn/out_proj", f"{theirs}.attention.projection_layer", bias=True)
    for part in ("fc1", "fc2"):
        rules += _linear(f"{ours}/mlp/{part}", f"{theirs}.mlp.{part}", bias=True)
    return rules


def _qwen3_vision_rules(config: VisionConfig) -> list[TensorRule]:
    ours, theirs = "vision/layers", "vision.blocks.{layer}"
    rules = [
        TensorRule("vision/patch_embed/kernel", "vision.patch_embed.proj.weight", "frames"),
        TensorRule("vision/patch_embed/bias", "vision.patch_embed.proj.bias", "same"),
        TensorRule("vision/position_embed", "vision.pos_embed.weight", "same"),
    ]
    for norm in ("norm1", "norm2"):
        rules += _norm(f"{ours}/{norm}", f"{theirs}.{norm}")
    rules += _linear(f"{ours}/attn/qkv_proj", f"{theirs}.attn.qkv", bias=True)
    rules += _linear(f"{ours}/attn/out_proj", f"{theirs}.attn.proj", bias=True)
    for part in ("fc1", "fc2"):
        rules += _linear(f"{ours}/mlp/{part}", f"{theirs}.mlp.linear_{part}", bias=True)
    if config.deepstack:
        rules += _norm("deepstack/norm", f"{_DEEPSTACK}{{layer}}.norm")
        for part in ("fc1", "fc2"):
            rules += _linear(f"deepstack/{part}", f"{_DEEPSTACK}{{layer}}.linear_{part}", bias=True)
    return rules


def _gemma4_vision_rules(config: VisionConfig) -> list[TensorRule]:
    embedder = "vision.patch_embedder"
    rules = _linear("vision/patch_embed", f"{embedder}.input_proj", bias=False)
    table = f"{embedder}.position_embedding_table"
    rules.append(TensorRule("vision/position_embed", table, "same"))
    for part in ("bias", "scale") if config.standardized else ():
        rules.append(TensorRule(f"vision/feature_{part}", f"vision.std_{part}", "same"))
    ours, theirs = "vision/layers", "vision.encoder.layers.{layer}"
    norms = {
        "norm1": "input_layernorm",
        "attn_post_norm": "post_attention_layernorm",
        "norm2": "pre_feedforward_layernorm",
        "mlp_post_norm": "post_feedforward_layernorm",
        "attn/q_norm": "self_attn.q_norm",
        "attn/k_norm": "self_attn.k_norm",
    }
    for norm, name in norms.items():
        rules.append(TensorRule(f"{ours}/{norm}/scale", f"{theirs}.{name}.weight", "same"))
    maps = {
        f"attn/{part}": f"self_attn.{part.replace('out', 'o')}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj")
    } | {f"mlp/{part}": f"mlp.{part}" for part in ("gate_proj", "up_proj", "down_proj")}
    for part, name in maps.items():
        rules += _linear(f"{ours}/{part}", f"{theirs}.{name}.linear", bias=False)
        for bound in ("input_min", "input_max", "output_min", "output_max"):
            if config.clipped:
                rule = TensorRule(f"{ours}/{part}/{bound}", f"{theirs}.{name}.{bound}", "same")
                rules.append(rule)
    return rules


def _patches_rules() -> list[TensorRule]:
    rules = _linear("vision/patch_embed", "vision.patch_dense", bias=True)
    rules.append(TensorRule("vision/position_embed", "vision.pos_embedding", "same"))
    norms = {"patch_norm": "patch_ln1", "pre_norm": "patch_ln2", "final_norm": "pos_norm"}
    for norm, name in norms.items():
        rules.append(TensorRule(f"vision/{norm}/scale", f"vision.{name}.weight", "same"))
        rules.append(TensorRule(f"vision/{norm}/bias", f"vision.{name}.bias", "same"))
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
    """Our sizes from a checkpoint's `config.json`, defaults filled in.

    Args:
        config: as `transformers.AutoConfig.from_pretrained(directory).to_dict()` gives it.
        where: file, for error messages.
        loc_token_start: id of `<loc0000>`; not in the file.
        context, second_image: what stands before a question; not in the file either.

    Raises:
        UserError: an architecture, or a setting of it, that we do not have; sizes that are none, or
            do not go together.
    """
    check_architecture(config.get("model_type"), where)
    try:
        found = _vlm_config(config, where, loc_token_start, context)
        return (
            found if found.vision is None else dataclasses.replace(found, second_image=second_image)
        )
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{where}: its sizes make no model ({error}); use the config.json that belongs to the "
            "weights"
        ) from None


def _check_divides(divisor: int, number: int, what: str) -> None:
    if number % divisor:
        raise ValueError(f"{what}: {divisor} does not divide {number}")


def _vlm_config(
    config: Mapping[str, Any], where: str, loc_token_start: int, context: tuple[int, ...]
) -> VLMConfig:
    kind = config["model_type"]
    if kind == "gemma3_text":
        return VLMConfig(None, _decoder(config, where), loc_token_start, context=())
    if kind == "internvl":
        return _internvl(config, where, loc_token_start, context)
    if kind in _QWEN_SIDES:
        return _qwen(config, loc_token_start, context)
    if kind in ("gemma4", "gemma4_unified"):
        return _gemma4(config, where, loc_token_start, context)
    vision, text = config["vision_config"], config["text_config"]
    side, rest = divmod(vision["image_size"], vision["patch_size"])
    if rest:
        raise ValueError(f"images of {vision['image_size']}, patches of {vision['patch_size']}")
    if kind == "llava":
        return _llava(config, where, loc_token_start, context)
    pool = 1
    if kind == "gemma3":
        tokens = config["mm_tokens_per_image"]
        pool = side // math.isqrt(tokens)
        if (side // pool) ** 2 != tokens or side % pool:
            raise ValueError(f"{side} x {side} patches, mm_tokens_per_image {tokens}")
    _expect(where, "vision_config.hidden_act", vision["hidden_act"], "gelu_pytorch_tanh")
    _expect(where, "vision_config.layer_norm_eps", vision["layer_norm_eps"], 1e-6)
    _check_divides(vision["num_attention_heads"], vision["hidden_size"], "heads of the tower")
    tower = VisionConfig(
        image_size=vision["image_size"],
        patch_size=vision["patch_size"],
        width=vision["hidden_size"],
        depth=vision["num_hidden_layers"],
        num_heads=vision["num_attention_heads"],
        mlp_dim=vision["intermediate_size"],
        pool=pool,
    )
    return VLMConfig(
        tower,
        _decoder(text, where),
        loc_token_start,
        context=context,
        projector="normed" if kind == "gemma3" else "linear",
    )


def _llava(
    config: Mapping[str, Any], where: str, loc_token_start: int, context: tuple[int, ...]
) -> VLMConfig:
    vision, text = config["vision_config"], config["text_config"]
    layer = config["vision_feature_layer"]
    if not -vision["num_hidden_layers"] <= layer < 0:
        raise ValueError(f"vision_feature_layer {layer} of {vision['num_hidden_layers']} layers")
    if vision["image_size"] % vision["patch_size"]:
        raise ValueError(f"images of {vision['image_size']}, patches of {vision['patch_size']}")
    _check_divides(vision["num_attention_heads"], vision["hidden_size"], "heads of the tower")
    tower = VisionConfig(
        image_size=vision["image_size"],
        patch_size=vision["patch_size"],
        width=vision["hidden_size"],
        depth=vision["num_hidden_layers"],
        num_heads=vision["num_attention_heads"],
        mlp_dim=vision["intermediate_size"],
        kind="clip",
        skip_last=-layer - 1,
    )
    decoder = _llama(text, where)
    return VLMConfig(tower, decoder, loc_token_start, context=context, projector="mlp")


def _internvl(
    config: Mapping[str, Any], where: str, loc_token_start: int, context: tuple[int, ...]
) -> VLMConfig:
    vision, text = config["vision_config"], config["text_config"]
    sides, patches = set(_pair(vision["image_size"])), set(_pair(vision["patch_size"]))
    if len(sides) != 1 or len(patches) != 1:
        raise ValueError(f"images of {vision['image_size']}, patches of {vision['patch_size']}")
    (size,), (patch,) = sides, patches
    pool = round(1 / config["downsample_ratio"])
    _check_divides(patch * pool, size, "tokens of an image")
    tokens = (size // patch // pool) ** 2
    if config["image_seq_length"] != tokens:
        raise ValueError(f"image_seq_length {config['image_seq_length']}, {tokens} tokens")
    _check_divides(vision["num_attention_heads"], vision["hidden_size"], "heads of the tower")
    tower = VisionConfig(
        image_size=size,
        patch_size=patch,
        width=vision["hidden_size"],
        depth=vision["num_hidden_layers"],
        num_heads=vision["num_attention_heads"],
        mlp_dim=vision["intermediate_size"],
        pool=pool,
        kind="internvl",
    )
    heads, width = text["num_attention_heads"], text["hidden_size"]
    _check_divides(text["num_key_value_heads"], heads, "heads of keys and values")
    _check_divides(2 * heads, width, "halves of heads")
    rope, longest = text["rope_parameters"], text["max_position_embeddings"]
    if rope["rope_type"] == "dynamic" and longest < _LONGEST_PLAIN:
        raise UserError(
            f"{where}: rope_type 'dynamic' with max_position_embeddings {longest}; below "
            f"{_LONGEST_PLAIN:,} it may change positions that occur here, which is not supported"
        )
    decoder = DecoderConfig(
        vocab_size=text["vocab_size"],
        width=width,
        depth=text["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=text["num_key_value_heads"],
        head_dim=width // heads,
        mlp_dim=text["intermediate_size"],
        rope_base=float(rope["rope_theta"]),
        prefix_attention="past",
        norm_eps=float(text["rms_norm_eps"]),
        plain_norms=True,
        activation="silu",
        scale_embeddings=False,
        tied=bool(config["tie_word_embeddings"]),
        qkv_bias=True,
    )
    return VLMConfig(tower, decoder, loc_token_start, context=context, projector="normed_mlp")


def _pair(size: Any) -> tuple[int, int]:
    """Height and width, which older files state as one."""
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return height, width


def _qwen(config: Mapping[str, Any], loc_token_start: int, context: tuple[int, ...]) -> VLMConfig:
    kind, vision, text = config["model_type"], config["vision_config"], config["text_config"]
    if vision["out_hidden_size"] != text["hidden_size"]:
        raise ValueError(
            f"out_hidden_size {vision['out_hidden_size']}, hidden_size {text['hidden_size']}"
        )
    _check_divides(vision["num_heads"], vision["hidden_size"], "heads of the tower")
    _check_divides(4, vision["hidden_size"] // vision["num_heads"], "quarters of the tower's heads")
    unit = vision["patch_size"] * vision["spatial_merge_size"]
    tower = VisionConfig(
        # The nearest that whole tokens fill, where patches are of another size.
        image_size=max(_QWEN_SIDES[kind] // unit, 1) * unit,
        patch_size=vision["patch_size"],
        width=vision["hidden_size"],
        depth=vision["depth"],
        num_heads=vision["num_heads"],
        mlp_dim=vision["intermediate_size"],
        pool=vision["spatial_merge_size"],
        kind="qwen" if kind == "qwen2_5_vl" else "qwen3",
        **(_windows(vision, unit) if kind == "qwen2_5_vl" else _positions(vision, text)),
    )
    heads, width = text["num_attention_heads"], text["hidden_size"]
    _check_divides(text["num_key_value_heads"], heads, "heads of keys and values")
    rope = text["rope_parameters"]
    own: dict[str, Any]
    if kind == "qwen2_5_vl":
        _check_divides(2 * heads, width, "halves of heads")
        own = {"head_dim": width // heads, "qkv_bias": True}
        sections = (16, 24, 24)  # its code's default
    else:
        own = {"head_dim": text["head_dim"], "qk_norm": True, "rope_interleaved": True}
        sections = (24, 20, 20)
    decoder = DecoderConfig(
        vocab_size=text["vocab_size"],
        width=width,
        depth=text["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=text["num_key_value_heads"],
        mlp_dim=text["intermediate_size"],
        rope_base=float(rope["rope_theta"]),
        rope_sections=tuple(rope.get("mrope_section", sections)),
        prefix_attention="past",
        norm_eps=float(text["rms_norm_eps"]),
        plain_norms=True,
        activation="silu",
        scale_embeddings=False,
        tied=bool(config["tie_word_embeddings"]),
        **own,
    )
    if len(decoder.rope_sections) != 3:
        raise ValueError(f"mrope_section {list(decoder.rope_sections)}, expected three")
    return VLMConfig(tower, decoder, loc_token_start, context=context, projector="merger")


def _windows(vision: Mapping[str, Any], unit: int) -> dict[str, Any]:
    """Settings of Qwen2.5-VL's windowed attention. `unit`: pixels along a side of a token."""
    if vision["window_size"] < unit:
        raise ValueError(f"window_size {vision['window_size']}, tokens of {unit} pixels")
    return {
        # As its code rounds it: to whole tokens.
        "window": vision["window_size"] // unit * vision["spatial_merge_size"],
        "full_every": _full_every(vision["fullatt_block_indexes"], vision["depth"]),
    }


def _positions(vision: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of Qwen3-VL's position table and of the layers that it taps."""
    rows, deepstack = vision["num_position_embeddings"], list(vision["deepstack_visual_indexes"])
    if math.isqrt(rows) ** 2 != rows:
        raise ValueError(f"num_position_embeddings {rows} is not a square number")
    in_order = deepstack == sorted(set(deepstack)) and max(deepstack, default=0) < vision["depth"]
    if not in_order or len(deepstack) > text["num_hidden_layers"]:
        raise ValueError(
            f"deepstack_visual_indexes {deepstack} of {vision['depth']} layers, for "
            f"{text['num_hidden_layers']} of the decoder"
        )
    return {"position_side": math.isqrt(rows), "deepstack": tuple(deepstack)}


def _gemma4(
    config: Mapping[str, Any], where: str, loc_token_start: int, context: tuple[int, ...]
) -> VLMConfig:
    is_bare = config["model_type"] == "gemma4_unified"
    tower = (_gemma4_patches if is_bare else _gemma4_tower)(config["vision_config"], where)
    if tower.most_positions < tower.image_size // tower.patch_size:
        raise ValueError(
            f"{tower.most_positions} positions, {tower.image_size // tower.patch_size} patches"
        )
    # The small sizes' whole tower for sounds is left out (`unasked`).
    sound = config.get("audio_config") if is_bare else None
    return VLMConfig(
        tower,
        _gemma4_decoder(config["text_config"], where),
        loc_token_start,
        context=context,
        projector="unscaled",
        audio_width=sound["audio_embed_dim"] if sound else 0,
    )


def _gemma4_patches(vision: Mapping[str, Any], where: str) -> VisionConfig:
    width = vision["mm_embed_dim"]
    _expect(where, "vision_config.output_proj_dims", vision["output_proj_dims"], width)
    patch = vision["patch_size"] * vision["pooling_kernel_size"]
    return VisionConfig(
        image_size=_GEMMA4_TOKENS * patch,
        patch_size=patch,
        width=width,
        depth=0,
        num_heads=1,
        mlp_dim=0,
        kind="patches",
        most_positions=vision["mm_posemb_size"],
    )


def _gemma4_tower(vision: Mapping[str, Any], where: str) -> VisionConfig:
    heads, width = vision["num_attention_heads"], vision["hidden_size"]
    _expect(where, "vision_config.num_key_value_heads", vision["num_key_value_heads"], heads)
    if vision["head_dim"] * heads != width:
        raise ValueError(f"{heads} heads of {vision['head_dim']} in a tower of width {width}")
    _check_divides(4, vision["head_dim"], "quarters of the tower's heads")
    pool = vision["pooling_kernel_size"]
    return VisionConfig(
        image_size=_GEMMA4_TOKENS * pool * vision["patch_size"],
        patch_size=vision["patch_size"],
        width=width,
        depth=vision["num_hidden_layers"],
        num_heads=heads,
        mlp_dim=vision["intermediate_size"],
        pool=pool,
        kind="gemma4",
        most_positions=vision["position_embedding_size"],
        standardized=bool(vision["standardize"]),
        clipped=bool(vision["use_clipped_linears"]),
    )


def _gemma4_decoder(text: Mapping[str, Any], where: str) -> DecoderConfig:
    # The 12B knows no such keys, which are of the small sizes.
    given, shared = (
        text.get(key, 0) or 0 for key in ("hidden_size_per_layer_input", "num_kv_shared_layers")
    )
    if given:
        rows = text["vocab_size_per_layer_input"]
        _expect(where, "vocab_size_per_layer_input", rows, text["vocab_size"])
    wide = 2 if text.get("use_double_wide_mlp") else 1
    heads = text["num_attention_heads"]
    far, near = (text["rope_parameters"][f"{kind}_attention"] for kind in ("full", "sliding"))
    far = {"factor": 1.0, "partial_rotary_factor": 1.0} | far
    if far["rope_type"] == "default":  # by which the library reads neither
        far |= {"factor": 1.0, "partial_rotary_factor": 1.0}
    every = _global_every(text["layer_types"], where)
    if shared % every or shared >= text["num_hidden_layers"]:
        raise UserError(
            f"{where}: num_kv_shared_layers is {shared}; expected a multiple of {every}, after so "
            f"many layers a global one comes, and fewer than all {text['num_hidden_layers']}"
        )
    global_heads = _heads_of_global_layers(text, every)
    decoder = DecoderConfig(
        vocab_size=text["vocab_size"],
        width=text["hidden_size"],
        depth=text["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=text["num_key_value_heads"],
        head_dim=text["head_dim"],
        mlp_dim=text["intermediate_size"],
        query_scale=1.0,
        rope_base=float(far["rope_theta"]),
        rope_scale=float(far["factor"]),
        local_rope_base=float(near["rope_theta"]),
        window=text["sliding_window"],
        global_every=every,
        final_softcap=text["final_logit_softcapping"],
        post_norms=True,
        qk_norm=True,
        prefix_attention="local" if text["use_bidirectional_attention"] == "vision" else "past",
        plain_norms=True,
        global_head_dim=global_heads["head_dim"],
        global_kv_heads=global_heads["num_key_value_heads"],
        global_rope_share=float(far["partial_rotary_factor"]),
        keys_are_values=bool(text["attention_k_eq_v"]),
        value_norm=True,
        layer_scale=True,
        shared_layers=shared,
        shared_mlp_dim=wide * text["intermediate_size"] if shared else None,
        per_layer_width=given,
    )
    for layer in (0, every - 1):
        sizes = decoder.of_layer(layer)
        _check_divides(sizes.num_kv_heads, heads, "heads of keys and values")
        _check_divides(2, sizes.head_dim, "halves of a head")
    return decoder


def _heads_of_global_layers(text: Mapping[str, Any], every: int) -> dict[str, int]:
    """Returns head_dim and key-value heads of the global layers; local ones have the decoder's."""
    usual = {key: text[key] for key in ("head_dim", "num_key_value_heads")}
    own = {int(layer): found for layer, found in (text.get("per_layer_config") or {}).items()}
    depth = text["num_hidden_layers"]
    found = [usual | own.get(layer, {}) for layer in range(depth)]
    wanted = [found[every - 1] if (layer + 1) % every == 0 else usual for layer in range(depth)]
    if every > depth or found != wanted or wanted[every - 1].keys() != usual.keys():
        raise ValueError(
            f"per_layer_config {own}: expected the same head_dim and num_key_value_heads for every "
            "full_attention layer, and nothing for the others"
        )
    return found[every - 1]


def _full_every(indexes: list[int], depth: int) -> int:
    """The period of the layers that see whole images: of so many layers the last one does."""
    full = sorted({index for index in indexes if index < depth})
    every = full[0] + 1 if full else depth + 1
    if full != list(range(every - 1, depth, every)):
        raise ValueError(f"fullatt_block_indexes {full} of {depth} layers have no period")
    return every


def _llama(text: Mapping[str, Any], where: str) -> DecoderConfig:
    """The decoder's sizes from Llama's or Mistral's configuration."""
    rope = text["rope_parameters"]
    heads = text["num_attention_heads"]
    head_dim = text["head_dim"] or text["hidden_size"] // heads
    _check_divides(text["num_key_value_heads"], heads, "heads of keys and values")
    _check_divides(2, head_dim, "halves of a head")
    # Mistral's first version had a window, in every layer; Llama has no such key.
    window = text.get("sliding_window") if text["model_type"] == "mistral" else None
    if rope["rope_type"] not in ("default", "linear"):
        raise UserError(f"{where}: rope_type is {rope['rope_type']!r}, expected default or linear")
    return DecoderConfig(
        vocab_size=text["vocab_size"],
        width=text["hidden_size"],
        depth=text["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=text["num_key_value_heads"],
        head_dim=head_dim,
        mlp_dim=text["intermediate_size"],
        rope_base=float(rope["rope_theta"]),
        rope_scale=float(rope["factor"]) if rope["rope_type"] == "linear" else 1.0,
        window=window,
        global_every=1 if window is None else text["num_hidden_layers"] + 1,
        prefix_attention="past",
        norm_eps=float(text["rms_norm_eps"]),
        plain_norms=True,
        activation="silu",
        scale_embeddings=False,
        tied=False,
    )


def check_architecture(model_type: Any, where: str) -> None:
    """Raises UserError for a kind of model that we do not have."""
    if model_type not in ARCHITECTURES:
        raise UserError(
            f"{where}: model_type is {shown_value(model_type)}, expected one of "
            f"{', '.join(ARCHITECTURES)}"
        )


def _decoder(text: Mapping[str, Any], where: str) -> DecoderConfig:
    """The decoder's sizes from a text configuration."""
    kind = text["model_type"]
    # PaliGemma sees its prompt in both directions, Gemma 3 has no token look ahead.
    bidirectional = bool(text.get("use_bidirectional_attention"))
    _expect(where, "use_bidirectional_attention", bidirectional, kind != "gemma3_text")
    activation = text.get("hidden_activation") or text.get("hidden_act") or "gelu_pytorch_tanh"
    _expect(where, "hidden_activation", activation, "gelu_pytorch_tanh")
    _expect(where, "rms_norm_eps", text["rms_norm_eps"], 1e-6)
    _expect(where, "attention_bias", text.get("attention_bias", False), False)
    sizes = DecoderConfig(
        vocab_size=text["vocab_size"],
        width=text["hidden_size"],
        depth=text["num_hidden_layers"],
        num_heads=text["num_attention_heads"],
        num_kv_heads=text["num_key_value_heads"],
        head_dim=text["head_dim"],
        mlp_dim=text["intermediate_size"],
    )
    _check_divides(sizes.num_kv_heads, sizes.num_heads, "heads of keys and values")
    _check_divides(2, sizes.head_dim, "halves of a head")
    rope = text["rope_parameters"]
    if kind != "gemma3_text":
        _expect(where, "rope_type", rope["rope_type"], "default")
    if kind == "gemma":
        return dataclasses.replace(sizes, rope_base=float(rope["rope_theta"]))
    if len(text["layer_types"]) != sizes.depth:
        raise ValueError(f"{len(text['layer_types'])} layer_types for {sizes.depth} layers")
    sizes = dataclasses.replace(
        sizes,
        query_scale=float(text["query_pre_attn_scalar"]),
        window=text["sliding_window"],
        global_every=_global_every(text["layer_types"], where),
        attn_softcap=text["attn_logit_softcapping"],
        final_softcap=text["final_logit_softcapping"],
        post_norms=True,
    )
    if kind == "gemma2":
        return dataclasses.replace(sizes, rope_base=float(rope["rope_theta"]))
    far, near = rope["full_attention"], rope["sliding_attention"]
    _expect(where, "rope_type of local layers", near["rope_type"], "default")
    if far["rope_type"] not in ("default", "linear"):
        raise UserError(f"{where}: rope_type is {far['rope_type']!r}, expected default or linear")
    return dataclasses.replace(
        sizes,
        rope_base=float(far["rope_theta"]),
        rope_scale=float(far["factor"]) if far["rope_type"] == "linear" else 1.0,
        local_rope_base=float(near["rope_theta"]),
        qk_norm=True,
        prefix_attention="causal",
    )


def _global_every(layer_types: list[str], where: str) -> int:
    """The period of global layers.

    Raises:
        UserError: they do not come in even steps.
    """
    is_global = [kind == "full_attention" for kind in layer_types]
    every = is_global.index(True) + 1 if True in is_global else len(layer_types) + 1
    if is_global != [(layer + 1) % every == 0 for layer in range(len(layer_types))]:
        raise UserError(f"{where}: layer_types {layer_types}: expected every n-th layer to be full")
    return every


def _expect(where: str, key: str, found: Any, wanted: Any) -> None:
    if found != wanted:
        raise UserError(f"{where}: {key} is {found!r}; only {wanted!r} is supported")
