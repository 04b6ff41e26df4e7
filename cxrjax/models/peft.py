"""LoRA adapters in PEFT's format (https://github.com/huggingface/peft), both ways.

PEFT keeps one pair of matrices a layer where we have them stacked, each the other way round: its
`lora_A.weight` [r, in] is our `a` [in, r] transposed, its `lora_B.weight` [out, r] our `b`. DoRA's
magnitude is the same. Trained `<loc>` rows are PEFT's `trainable_token_indices`: its
`trainable_tokens_delta` holds, in spite of the name, the rows themselves, ours the difference.
"""

import dataclasses
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from cxrjax.errors import UserError
from cxrjax.files import read_json_object
from cxrjax.models import peft_patterns
from cxrjax.models.families import family
from cxrjax.models.hf_config import MOST_CONFIG_BYTES, checked
from cxrjax.models.hf_export import LazyTensor, write_safetensors
from cxrjax.models.hf_import import SafetensorsFiles, abstract_vlm, shortened
from cxrjax.models.hf_layout import (
    TensorRule,
    canonical_name,
    found_prefixes,
    module_prefixes,
    tensor_rules,
    to_ours,
    to_theirs,
    unasked,
    with_prefix,
)
from cxrjax.models.layers import Linear
from cxrjax.models.lora import LoRA, LoRAConfig
from cxrjax.models.partition import parameter_shapes, path_of
from cxrjax.models.presets import NUM_LOC_TOKENS, VLMConfig
from cxrjax.models.vlm import VLM
from cxrjax.paths import to_path
from cxrjax.untrusted.names import shown_value

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_A = ".lora_A.weight"
_TOKENS = "token_adapter.trainable_tokens_delta"
_EMBEDDING = "text.embed_tokens"
# In the weights' metadata: PEFT warns of a key it does not know in its own configuration.
_BASE_KEY = "cxrjax_base_sha256"
# The settings of PEFT's LoraConfig, of every version.
SETTINGS = family.rules(family.table("peft"))
_RANK, _ALPHA = SETTINGS["r"], SETTINGS["lora_alpha"]


@dataclasses.dataclass(frozen=True)
class PeftAdapter:
    """An adapter read from PEFT's files, for a model of one configuration."""

    config: LoRAConfig  # as `apply_lora` takes it; targets and patterns name whole paths
    # Of the adapters' parameters by path (`.../lora/a`); with `decoder/embedder/loc_rows` the
    # trained rows of the `<loc>` tokens themselves, [1024, D]; the parameters of modules that were
    # trained whole (`saved_modules`).
    arrays: dict[str, np.ndarray]
    # Hash of the base it was trained on; None where it was not trained here.
    base_sha256: str | None
    # Embedding and output layer are two; a model that has one table needs `VLM.untie`.
    untied: bool = False


_PROJECTOR = re.compile(r"projector(_out|_norm)?/(kernel|bias|scale)")
_TABLE = TensorRule("decoder/embedder/table", f"{_EMBEDDING}.weight", "same")
_HEAD = TensorRule("decoder/embedder/head", "lm_head.weight", "same")
LOC_ROWS = "decoder/embedder/loc_rows"
# Where a model trains them: as their difference from the table.
LOC_DELTA = "decoder/embedder/loc_delta"


def save_peft(
    directory: str | Path,
    model: VLM,
    base_model: str | None = None,
    *,
    use_rslora: bool = False,
    base_sha256: str | None = None,
    whole: Collection[str] = (),
) -> list[str]:
    """Writes a model's adapters as PEFT does.

    Args:
        directory: made if need be.
        model: with adapters or trained `<loc>` rows.
        base_model: name or path of the Hugging Face model that they belong to.
        use_rslora: say alpha so (the scale of an adapter is the same either way).
        base_sha256: hash of our base directory; `read_peft` returns it.
        whole: paths of the parameters that were trained beside them, which go along
            (`modules_to_save`): all of some of the `saved_modules`.

    Returns:
        The paths of the maps that have an adapter. The box loss's own is in a folder `boxes`.

    Raises:
        UserError: no adapters, one on a projector that goes along whole, rows of an embedding that
            does, or adapters with different dropout or of different kinds, which PEFT cannot say
            in one file.
    """
    directory = to_path(directory)
    loras = {
        path_of(path): module.lora
        for path, module in nnx.iter_modules(model)
        if isinstance(module, Linear) and module.lora is not None
    }
    if not loras:
        raise UserError("the model has no adapters to write; use --to=hf for all its parameters")
    dropout, use_dora = _kind_of_all(loras)
    modules = {path: _module_names(path, model.config) for path in loras}
    stacks = {path: _layers_of(path, model.config) for path in loras}
    tensors = [
        tensor for path, lora in loras.items() for tensor in _lora_tensors(lora, modules[path])
    ]
    saved = [
        name
        for name, rules in saved_modules(model.config).items()
        if {rule.path for rule in rules} <= set(whole)
    ]
    tensors += _saved_tensors(model, saved, loras)
    indices = None
    embedder = model.decoder.embedder
    if embedder.loc_delta is not None:
        start = embedder.loc_token_start
        rows = np.asarray(embedder.table[start : start + NUM_LOC_TOKENS], np.float32)
        rows = rows + np.asarray(embedder.loc_delta[...], np.float32)
        name = with_prefix(_EMBEDDING, module_prefixes(model.config))
        tensors.append(_whole(f"{_PREFIX}{name}.{_TOKENS}", rows))
        indices = {name.rsplit(".", 1)[1]: list(range(start, start + NUM_LOC_TOKENS))}
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "inference_mode": True,
        "lora_dropout": dropout,
        "bias": "none",
        "use_rslora": use_rslora,
        "use_dora": use_dora,
        "trainable_token_indices": indices,
        "modules_to_save": saved or None,
        **_describe_targets(loras, modules, stacks, use_rslora),
    }
    if model.config.decoder.tied and "embed_tokens" in saved:
        described["ensure_weight_tying"] = True  # else PEFT makes two tables of one
    adapters = {directory: (tensors, described)}
    if embedder.lora is not None:
        adapters[directory / "boxes"] = _box_adapter(model, described)
    metadata = {} if base_sha256 is None else {_BASE_KEY: base_sha256}
    for folder, (tensors, described) in adapters.items():
        folder.mkdir(parents=True, exist_ok=True)
        write_safetensors(folder / ADAPTER_WEIGHTS, tensors, metadata)
        text = json.dumps(described, indent=2, sort_keys=True) + "\n"
        (folder / ADAPTER_CONFIG).write_text(text, encoding="utf-8")
    return sorted(loras)


def _box_adapter(model: VLM, beside: Mapping[str, Any]) -> tuple[list[LazyTensor], dict[str, Any]]:
    """The box loss's own adapter (`Embedder.lora`) as LoRA on the output layer, beside another.

    In PEFT words keep their logits and not, as here, their probabilities.
    """
    embedder = model.decoder.embedder
    a, start = np.asarray(embedder.lora.a[...], np.float32), embedder.loc_token_start
    b = np.zeros((embedder.rows.shape[0], a.shape[1]), np.float32)
    b[start : start + NUM_LOC_TOKENS] = np.asarray(embedder.lora.b[...]).T
    names = [
        _PREFIX + with_prefix(f"lm_head.lora_{part}.weight", module_prefixes(model.config))
        for part in "AB"
    ]
    tensors = [_whole(name, x) for name, x in zip(names, (a.T, b), strict=True)]
    kept = ("peft_type", "task_type", "base_model_name_or_path", "inference_mode", "bias")
    described = {key: beside[key] for key in kept}
    return tensors, described | {
        "r": a.shape[1],
        "lora_alpha": a.shape[1],
        "target_modules": ["lm_head"],
    }


def read_peft(directory: str | Path, config: VLMConfig) -> PeftAdapter:
    """An adapter that PEFT has written, for a model of these sizes.

    Raises:
        UserError: not an adapter of PEFT's LoRA, one with a setting that we do not have, one of
            another model, or one without the weights of a module that its settings name.
    """
    directory = to_path(directory)
    path = directory / ADAPTER_CONFIG
    stated = read_json_object(path, MOST_CONFIG_BYTES)
    kind = stated.pop("peft_type", None)
    if kind != "LORA":
        raise UserError(f"{path}: peft_type is {shown_value(kind)}, expected 'LORA'")
    stated = checked(stated, SETTINGS, str(path))
    lacking = [key for key in ("r", "lora_alpha") if key not in stated]
    if lacking:
        raise UserError(f"{path}: {lacking[0]} is missing; save the adapter again")
    if not (directory / ADAPTER_WEIGHTS).is_file():
        raise UserError(
            f"{directory}: no {ADAPTER_WEIGHTS}; adapter_model.bin is a pickle and not read: save "
            "the adapter with safe_serialization=True"
        )
    files = SafetensorsFiles([directory / ADAPTER_WEIGHTS], _canonical_key)
    where = str(directory / ADAPTER_WEIGHTS)
    for what, names in unasked(files.tensors, config).items():
        print(f"{where}: {len(names):,} tensors are left out, of {what}")
        files.leave_out(names)
    parts = found_prefixes(stored.name.removeprefix(_PREFIX) for stored in files.tensors.values())
    adapted = {key.removesuffix(_A) for key in files.tensors if key.endswith(_A)}
    ranks = peft_patterns.read_patterns(stated, "rank_pattern", _RANK, str(path))
    alphas = peft_patterns.read_patterns(stated, "alpha_pattern", _ALPHA, str(path))
    for key, patterns in (("rank_pattern", ranks), ("alpha_pattern", alphas)):
        peft_patterns.check_all_match(patterns, key, config, str(path))
    arrays = _stacked(files, stated, ranks, config, where)
    peft_patterns.check_targets(stated, adapted, config, parts, str(path))
    whole, untied = _read_whole(stated, files, arrays, config, str(path))
    arrays |= whole | _read_rows(stated, files, config, str(path), where)
    if files.tensors:  # what nobody has taken
        names = sorted(stored.name for stored in files.tensors.values())
        raise UserError(
            f"{where}: {len(names)} tensors without a place in this model ({shortened(names)}); "
            "expected LoRA on linear maps of the base it was trained on"
        )
    odd = sorted(path for path, array in arrays.items() if not np.isfinite(array).all())
    if odd:
        raise UserError(f"{where}: numbers that are not finite in {shortened(odd)}; save it again")
    sha256 = files.metadata.get(_BASE_KEY)
    return PeftAdapter(_lora_config(stated, alphas, arrays, config, where), arrays, sha256, untied)


def adapter_parameters(model: VLM, adapter: PeftAdapter) -> dict[str, np.ndarray]:
    """The parameters of `adapter` by path, as a model with its adapters holds them.

    Args:
        model: the base, for the `<loc>` rows that the difference is taken to.
    """
    arrays = {path: array for path, array in adapter.arrays.items() if path != LOC_ROWS}
    if LOC_ROWS in adapter.arrays:
        embedder = model.decoder.embedder
        start = embedder.loc_token_start
        table = np.asarray(embedder.table[start : start + NUM_LOC_TOKENS], np.float32)
        arrays[LOC_DELTA] = adapter.arrays[LOC_ROWS] - table
    return arrays


def _kind_of_all(loras: Mapping[str, LoRA]) -> tuple[float, bool]:
    """Dropout of the adapters, and whether they are DoRA's."""
    kinds = {(lora.dropout, lora.magnitude is not None) for lora in loras.values()}
    if len(kinds) > 1:
        raise UserError(
            f"adapters of {len(kinds)} kinds (dropout, DoRA: {sorted(kinds)}); PEFT has "
            "one for all of them"
        )
    return kinds.pop()


def _rule_of(path: str, config: VLMConfig) -> TensorRule:
    return next(rule for rule in tensor_rules(config) if rule.path == f"{path}/kernel")


def _module_names(path: str, config: VLMConfig) -> list[str]:
    """Transformers' names for a linear map of ours: one module, or one a layer."""
    rule = _rule_of(path, config)
    if not rule.name.endswith(".weight") or rule.transform != "transposed":
        raise UserError(f"{path} has an adapter, and in Hugging Face's model it is no linear map")
    prefixes = module_prefixes(config)
    return [with_prefix(name, prefixes) for name in _canonical_modules(rule, config)]


def _layers_of(path: str, config: VLMConfig) -> list[int] | None:
    """The numbers of the layers in a map's stack; None: all of them, or it is no stack."""
    rule = _rule_of(path, config)
    of_kinds = config.decoder.global_head_dim is not None and path.startswith("decoder/")
    return rule.layers(config) if of_kinds and rule.stacked else None


def _canonical_modules(rule: TensorRule, config: VLMConfig) -> list[str]:
    return [name.removesuffix(".weight") for name in rule.names(config)]


def _layers_without(lora: LoRA) -> frozenset[int]:
    """The layers of a stack whose adapter stands for none: zeros, as `_stacked` puts them in."""
    if lora.a.ndim < 3 or lora.magnitude is not None:
        return frozenset()
    used = np.any(np.asarray(lora.a[...]), axis=(1, 2)) | np.any(
        np.asarray(lora.b[...]), axis=(1, 2)
    )
    # An adapter that has learnt nothing anywhere is one all the same.
    return frozenset(np.flatnonzero(~used).tolist()) if used.any() else frozenset()


def _lora_tensors(lora: LoRA, modules: list[str]) -> Iterator[LazyTensor]:
    # Whole to the host: a slice of each layer would be a program of its own to compile.
    parts = {"lora_A.weight": np.asarray(lora.a[...]), "lora_B.weight": np.asarray(lora.b[...])}
    if lora.magnitude is not None:
        parts["lora_magnitude_vector"] = np.asarray(lora.magnitude[...])
    stacked = lora.a.ndim == 3
    without = _layers_without(lora)
    for layer, module in enumerate(modules):
        if layer in without:
            continue
        for suffix, array in parts.items():
            one = np.asarray(array[layer] if stacked else array, np.float32).T
            yield _whole(f"{_PREFIX}{module}.{suffix}", one)


def _describe_targets(
    loras: Mapping[str, LoRA],
    modules: Mapping[str, list[str]],
    stacks: Mapping[str, list[int] | None],
    use_rslora: bool,
) -> dict[str, Any]:
    """The modules with adapters, the commonest rank and alpha, and who has another."""
    ranks = {path: lora.a.shape[-1] for path, lora in loras.items()}
    alphas = {path: _alpha(lora, use_rslora) for path, lora in loras.items()}
    rank, alpha = _commonest(ranks), _commonest(alphas)
    patterns = {path: _module_pattern(names, stacks[path]) for path, names in modules.items()}
    targets = {
        path: _target(names, stacks[path], _layers_without(loras[path]))
        for path, names in modules.items()
    }
    return {
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": "|".join(targets[path] for path in sorted(targets)),
        "rank_pattern": {patterns[path]: r for path, r in sorted(ranks.items()) if r != rank},
        "alpha_pattern": {patterns[path]: a for path, a in sorted(alphas.items()) if a != alpha},
    }


def _whole(name: str, array: np.ndarray) -> LazyTensor:
    return LazyTensor(name, array.shape, str(array.dtype), lambda: np.ascontiguousarray(array))


def _alpha(lora: LoRA, use_rslora: bool) -> float:
    rank = lora.a.shape[-1]
    alpha = lora.scale * (rank**0.5 if use_rslora else rank)
    # The scale is a quotient: what it came from is the nearest short number.
    alpha = float(f"{alpha:.12g}")
    return int(alpha) if alpha == int(alpha) else alpha


def _commonest(values: Mapping[str, Any]) -> Any:
    found = list(values.values())
    return max(sorted(set(found)), key=found.count)


# What transformers calls the layers of a decoder and of towers, and inner mergers.
_STACKS = "layers?|blocks|deepstack_merger_list"


def _module_pattern(names: list[str], layers: list[int] | None) -> str:
    """A regular expression for the modules of one stack; PEFT wants a full match.

    Args:
        layers: their numbers, where they are not all there are.
    """
    if len(names) == 1:
        return re.escape(names[0])
    first, stack, _, last = re.split(rf"({_STACKS})\.(\d+)\.", names[0], maxsplit=1)
    numbers = r"\d+" if layers is None else f"({'|'.join(map(str, layers))})"
    return rf"{re.escape(first)}{stack}\.{numbers}\.{re.escape(last)}"


def _target(names: list[str], layers: list[int] | None, without: frozenset[int]) -> str:
    """`_module_pattern` of the layers that have an adapter: all but some places of the stack."""
    if without:
        layers = list(range(len(names))) if layers is None else layers
        layers = [layer for place, layer in enumerate(layers) if place not in without]
    return _module_pattern(names, layers)


def _canonical_key(name: str) -> str:
    """`text.layers.0.self_attn.q_proj.lora_A.weight`, whatever version wrote it."""
    key = name.removeprefix(_PREFIX)
    # Written by versions that kept the adapter's name.
    key = re.sub(r"\.(lora_[AB])\.default\.", r".\1.", key)
    key = re.sub(r"\.modules_to_save(\.default)?\.", ".", key)
    key = re.sub(r"\.lora_magnitude_vector(\.default)?(\.weight)?$", ".lora_magnitude_vector", key)
    return canonical_name(key)


def _stacked(
    files: SafetensorsFiles,
    stated: Mapping[str, Any],
    ranks: peft_patterns.Patterns,
    config: VLMConfig,
    where: str,
) -> dict[str, np.ndarray]:
    """LoRA's parameters by our paths, taken out of the files.

    Layers that have no adapter get one of zeros in both matrices: it adds nothing, its gradients
    are zero, so it stays as it is, and `save_peft` leaves it out again.
    """
    arrays: dict[str, np.ndarray] = {}
    suffixes = {"a": "lora_A.weight", "b": "lora_B.weight"}
    if stated.get("use_dora"):
        suffixes["magnitude"] = "lora_magnitude_vector"
    kernels = parameter_shapes(abstract_vlm(config))
    for rule in tensor_rules(config):
        if rule.transform != "transposed":
            continue
        path, modules = rule.path.removesuffix("/kernel"), _canonical_modules(rule, config)
        adapted = [
            m for m in modules if any(f"{m}.{s}" in files.tensors for s in suffixes.values())
        ]
        if not adapted:
            continue
        if "magnitude" in suffixes and len(adapted) < len(modules):
            raise UserError(
                f"{where}: {len(adapted)} of {len(modules)} layers have {path}'s magnitude; layers "
                "are stacked here and have DoRA all or none"
            )
        rank = peft_patterns.value_by_pattern(ranks, modules, stated["r"], config, where)
        inputs, outputs = kernels[rule.path][-2:]
        shapes = {"a": (rank, inputs), "b": (outputs, rank), "magnitude": (outputs,)}
        for ours, suffix in suffixes.items():
            keys = {module: f"{module}.{suffix}" for module in adapted}
            _check_shapes(files, keys.values(), shapes[ours], rank, config, where)
            found = {module: files.read(key) for module, key in keys.items()}
            zeros = np.zeros_like(next(iter(found.values())), np.float32)
            parts = [found.get(module, zeros).astype(np.float32).T for module in modules]
            arrays[f"{path}/lora/{ours}"] = np.stack(parts) if rule.stacked else parts[0]
            files.leave_out(keys.values())
    return arrays


def _check_shapes(
    files: SafetensorsFiles,
    keys: Iterable[str],
    wanted: tuple[int, ...],
    rank: int,
    config: VLMConfig,
    where: str,
) -> None:
    for key in keys:
        name = _PREFIX + with_prefix(key, module_prefixes(config))
        found = files.shapes.get(key)
        if found is None:
            raise UserError(
                f"{where}: {name} is missing, and other parts of the same adapter are; save the "
                "adapter again"
            )
        if found != wanted:
            raise UserError(
                f"{where}: {name} has shape {found}, expected {wanted} for rank {rank}, which "
                f"{ADAPTER_CONFIG} says; the two files do not belong together, or to another model"
            )


def _projector_of(config: VLMConfig) -> str:
    """Returns the name of the projector's module; "" of a model of text alone."""
    return module_prefixes(config).get("projector.", "").rstrip(".").rpartition(".")[2]


def saved_modules(config: VLMConfig) -> dict[str, list[TensorRule]]:
    """The modules that may be trained whole beside adapters (`modules_to_save`), by their names."""
    modules = {"embed_tokens": [_TABLE], "lm_head": [_HEAD]}
    if config.vision is not None:
        rules = [rule for rule in tensor_rules(config) if _PROJECTOR.fullmatch(rule.path)]
        modules[_projector_of(config)] = rules
    return modules


def _modules_named(stated: Mapping[str, Any], config: VLMConfig, where: str) -> set[str]:
    """The `saved_modules` that `modules_to_save` names.

    Raises:
        UserError: another module, or the embedding beside rows of it.
    """
    modules, names = saved_modules(config), stated.get("modules_to_save") or []
    chosen = {str(name).rpartition(".")[2] for name in names}
    if not isinstance(names, list) or not chosen <= modules.keys():
        raise UserError(
            f"{where}: modules_to_save is {shown_value(names)}; only {', '.join(modules)} can be "
            "trained whole, others have adapters: train it without, or merge it by PEFT "
            "(merge_and_unload) and convert the model that comes out"
        )
    if chosen & {"embed_tokens", "lm_head"} and stated.get("trainable_token_indices"):
        raise UserError(
            f"{where}: modules_to_save and trainable_token_indices both name the embedding; "
            "expected one of them"
        )
    return chosen


def _read_whole(
    stated: Mapping[str, Any],
    files: SafetensorsFiles,
    arrays: Mapping[str, np.ndarray],
    config: VLMConfig,
    where: str,
) -> tuple[dict[str, np.ndarray], bool]:
    """The parameters of `modules_to_save`; True if embedding and output layer are two by them.

    Raises:
        UserError: another module, one that is not whole, or one with an adapter as well.
    """
    chosen = _modules_named(stated, config, where)
    embeddings = chosen & {"embed_tokens", "lm_head"}
    tied = bool(embeddings and config.decoder.tied and stated.get("ensure_weight_tying"))
    if tied:  # the output layer may be there again
        chosen = chosen - {"lm_head"} | {"embed_tokens"}
    shapes = parameter_shapes(abstract_vlm(config))
    shapes[_HEAD.path] = shapes[_TABLE.path]
    found = {}
    for module, rules in saved_modules(config).items():
        for rule in rules if module in chosen else ():
            wanted = rule.their_shape(shapes[rule.path], 0)
            if files.shapes.get(rule.name) != wanted:
                name = _PREFIX + with_prefix(rule.name, module_prefixes(config))
                raise UserError(
                    f"{where}: modules_to_save names {module}, and {name} has shape "
                    f"{files.shapes.get(rule.name)}, expected {wanted}; save the adapter again"
                )
            tensor = files.mapped(rule.name).astype(np.float32)
            found[rule.path] = to_ours(tensor, rule.transform)
    if tied and _HEAD.name in files.tensors:
        if not np.array_equal(files.mapped(_HEAD.name), files.mapped(_TABLE.name)):
            raise UserError(
                f"{where}: ensure_weight_tying is True, and the weights of embedding and output "
                "layer differ; save the adapter again"
            )
        chosen.add("lm_head")
    files.leave_out(rule.name for name in chosen for rule in saved_modules(config)[name])
    projector = _projector_of(config)
    if projector in chosen and any(path.startswith("projector") for path in arrays):
        raise UserError(f"{where}: {projector} is saved whole and has an adapter as well")
    return found, bool(embeddings) and not tied and config.decoder.tied


def _saved_tensors(
    model: VLM, saved: Collection[str], loras: Mapping[str, LoRA]
) -> Iterator[LazyTensor]:
    if _projector_of(model.config) in saved and any(p.startswith("projector") for p in loras):
        raise UserError(
            "the projector was trained whole and has an adapter as well, and PEFT has a place for "
            "one of them; use --to=merged"
        )
    if model.decoder.embedder.loc_delta is not None and {"embed_tokens", "lm_head"} & set(saved):
        raise UserError(
            "the embedding was trained whole, and rows of it as well, and PEFT has a place for one "
            "of them; use --to=merged"
        )
    arrays = {path_of(path): leaf for path, leaf in nnx.to_flat_state(nnx.state(model))}
    if model.config.decoder.tied:  # PEFT wants the one table under both names
        arrays[_HEAD.path] = arrays[_TABLE.path]
        saved = {*saved, *(["lm_head"] if "embed_tokens" in saved else [])}
    for module, rules in saved_modules(model.config).items():
        for rule in rules if module in saved else ():
            name = _PREFIX + with_prefix(rule.name, module_prefixes(model.config))
            array = np.asarray(arrays[rule.path].get_value(), np.float32)
            yield _whole(name, to_theirs(array, rule.transform, 0))


def _read_rows(
    stated: Mapping[str, Any], files: SafetensorsFiles, config: VLMConfig, path: str, where: str
) -> dict[str, np.ndarray]:
    """The trained rows of the `<loc>` tokens, where there are any."""
    tokens = f"{_EMBEDDING}.{_TOKENS}"
    if tokens not in files.tensors:
        if not stated.get("trainable_token_indices"):
            return {}
        raise UserError(
            f"{path}: trainable_token_indices names trained rows, and {where} has none; save the "
            "adapter again"
        )
    ids = _trained_ids(stated.get("trainable_token_indices"), config, path)
    if files.shapes[tokens] != (len(ids), config.decoder.width):
        raise UserError(
            f"{where}: trained rows of shape {files.shapes[tokens]}, expected "
            f"{(len(ids), config.decoder.width)}; use the model that the adapter was trained on"
        )
    rows = files.read(tokens).astype(np.float32)[np.argsort(ids)]
    files.leave_out([tokens])
    return {LOC_ROWS: rows}


def _trained_ids(indices: Any, config: VLMConfig, where: str) -> list[int]:
    if isinstance(indices, Mapping):
        table = _EMBEDDING.rpartition(".")[2]
        others = [name for name in indices if name.rpartition(".")[2] != table]
        if others or len(indices) > 1:
            raise UserError(
                f"{where}: trainable_token_indices names {shown_value(list(indices))}, expected "
                f"{table!r} alone"
            )
        indices = next(iter(indices.values()), [])
    ids = indices if isinstance(indices, list) else []
    start = config.loc_token_start
    if start < 0:
        raise UserError(
            f"{where}: trains {len(ids)} rows of the embedding, and this base has no <loc> tokens "
            "whose rows could be read alone; merge the adapter into its model with PEFT "
            "(merge_and_unload) and convert the result"
        )
    whole = all(type(each) is int for each in ids)
    if not whole or sorted(ids) != list(range(start, start + NUM_LOC_TOKENS)):
        raise UserError(
            f"{where}: trains {len(ids)} rows of the embedding; only exactly those of the "
            f"{NUM_LOC_TOKENS} <loc> tokens, ids from {start}, are supported"
        )
    return ids


def _lora_config(
    stated: Mapping[str, Any],
    patterns: peft_patterns.Patterns,
    arrays: Mapping[str, np.ndarray],
    config: VLMConfig,
    where: str,
) -> LoRAConfig:
    paths = sorted(path.removesuffix("/lora/a") for path in arrays if path.endswith("/lora/a"))
    if not paths:
        raise UserError(f"{where}: no LoRA matrices for this model")
    rank, alpha = int(stated["r"]), float(stated["lora_alpha"])
    ranks, alphas = {}, {}
    for path in paths:
        found = arrays[f"{path}/lora/a"].shape[-1]
        if found != rank:
            ranks[re.escape(path)] = found
        own = peft_patterns.value_by_pattern(
            patterns, _canonical_modules(_rule_of(path, config), config), alpha, config, where
        )
        if own != alpha:
            alphas[re.escape(path)] = float(own)
    return LoRAConfig(
        rank=rank,
        alpha=alpha,
        dropout=float(stated.get("lora_dropout") or 0.0),
        targets=tuple(re.escape(path) for path in paths),
        use_rslora=bool(stated.get("use_rslora")),
        use_dora=bool(stated.get("use_dora")),
        rank_pattern=ranks,
        alpha_pattern=alphas,
    )
