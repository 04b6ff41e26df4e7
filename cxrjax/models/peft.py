"""LoRA adapters in PEFT's format (https://github.com/huggingface/peft), both ways.

PEFT keeps one pair of matrices a layer where we have them stacked, each the other way round: its
`lora_A.weight` [r, in] is our `a` [in, r] transposed, its `lora_B.weight` [out, r] our `b`. DoRA's
magnitude is the same. Trained `<loc>` rows are PEFT's `trainable_token_indices`: its
`trainable_tokens_delta` holds, in spite of the name, the rows themselves, ours the difference.
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from cxrjax.errors import UserError
from cxrjax.files import read_json_object
from cxrjax.models.hf_export import LazyTensor, write_safetensors
from cxrjax.models.hf_import import SafetensorsFiles, shortened
from cxrjax.models.hf_layout import canonical_name, module_prefixes, tensor_rules, with_prefix
from cxrjax.models.layers import Linear
from cxrjax.models.lora import LoRA, LoRAConfig
from cxrjax.models.partition import path_of
from cxrjax.models.presets import NUM_LOC_TOKENS, VLMConfig
from cxrjax.models.vlm import VLM

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_TOKENS = "token_adapter.trainable_tokens_delta"
_EMBEDDING = "text.embed_tokens"
# In the weights' metadata: PEFT warns of a key it does not know in its own configuration.
_BASE_KEY = "cxrjax_base_sha256"
# Settings of PEFT's that change what an adapter does and that we do not have, and the value that
# leaves them off. Settings that only say how training began do not matter.
_OFF: dict[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "fan_in_fan_out": (False, None),
    "modules_to_save": (None, []),
    "lora_bias": (False, None),
    "layer_replication": (None,),
    "target_parameters": (None, []),
    "use_qalora": (False, None),
    "alora_invocation_tokens": (None,),
    "use_bdlora": (None,),
    "arrow_config": (None,),
    "kasa_config": (None,),
    "monteclora_config": (None,),
}


_KINDS: dict[str, tuple[Any, str]] = {
    "r": (int, "a whole number"),
    "lora_alpha": (int | float, "a number"),
    "lora_dropout": (int | float | None, "a number"),
    "rank_pattern": (dict | None, "an object"),
    "alpha_pattern": (dict | None, "an object"),
    "trainable_token_indices": (dict | list | None, "a list, or an object with one"),
}


@dataclasses.dataclass(frozen=True)
class PeftAdapter:
    """An adapter read from PEFT's files, for a model of one configuration.

    Attributes:
        config: as `apply_lora` takes it; targets and patterns name whole paths.
        arrays: of the adapters' parameters by path (`.../lora/a`); with `decoder/embedder/loc_rows`
            the trained rows of the `<loc>` tokens themselves, [1024, D].
        base_sha256: hash of the base it was trained on; None where it was not trained here.
    """

    config: LoRAConfig
    arrays: dict[str, np.ndarray]
    base_sha256: str | None


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
) -> list[str]:
    """Writes a model's adapters as PEFT does.

    Args:
        directory: made if need be.
        model: with adapters or trained `<loc>` rows.
        base_model: name or path of the Hugging Face model that they belong to.
        use_rslora: say alpha so (the scale of an adapter is the same either way).
        base_sha256: hash of our base directory; `read_peft` returns it.

    Returns:
        The paths of the maps that have an adapter.

    Raises:
        UserError: no adapters, or adapters with different dropout or of different kinds, which PEFT
            cannot say in one file.
    """
    directory = Path(directory)
    loras = {
        path_of(path): module.lora
        for path, module in nnx.iter_modules(model)
        if isinstance(module, Linear) and module.lora is not None
    }
    if not loras:
        raise UserError("the model has no adapters to write; use --to=hf for all its parameters")
    dropout, use_dora = _kind_of_all(loras)
    modules = {path: _module_names(path, model.config) for path in loras}
    tensors = [
        tensor for path, lora in loras.items() for tensor in _lora_tensors(lora, modules[path])
    ]
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
        **_describe_targets(loras, modules, use_rslora),
    }
    directory.mkdir(parents=True, exist_ok=True)
    metadata = {} if base_sha256 is None else {_BASE_KEY: base_sha256}
    write_safetensors(directory / ADAPTER_WEIGHTS, tensors, metadata)
    text = json.dumps(described, indent=2, sort_keys=True) + "\n"
    (directory / ADAPTER_CONFIG).write_text(text, encoding="utf-8")
    return sorted(loras)


def read_peft(directory: str | Path, config: VLMConfig) -> PeftAdapter:
    """An adapter that PEFT has written, for a model of these sizes.

    Raises:
        UserError: not an adapter of PEFT's LoRA, one with a setting that we do not have, one of
            another model, or one that not every layer of a stack has.
    """
    directory = Path(directory)
    path = directory / ADAPTER_CONFIG
    stated = read_json_object(path)
    if stated.get("peft_type") != "LORA":
        raise UserError(f"{path}: peft_type is {stated.get('peft_type')!r}, expected 'LORA'")
    for key, (kinds, wanted) in _KINDS.items():
        if not isinstance(stated.get(key), kinds):
            raise UserError(
                f"{path}: {key} is {stated.get(key)!r}, expected {wanted}; save the adapter again"
            )
    for key, off in _OFF.items():
        if key in stated and stated[key] not in off:
            raise UserError(f"{path}: {key} is {stated[key]!r}; adapters with it are not supported")
    if not (directory / ADAPTER_WEIGHTS).is_file():
        raise UserError(
            f"{directory}: no {ADAPTER_WEIGHTS}; adapter_model.bin is a pickle and not read: save "
            "the adapter with safe_serialization=True"
        )
    files = SafetensorsFiles([directory / ADAPTER_WEIGHTS], _canonical_key)
    where = str(directory / ADAPTER_WEIGHTS)
    arrays, unused = _stacked(files, config, where)
    rows = files.read(f"{_EMBEDDING}.{_TOKENS}") if f"{_EMBEDDING}.{_TOKENS}" in unused else None
    unused.discard(f"{_EMBEDDING}.{_TOKENS}")
    if unused:
        names = sorted(files.tensors[key].name for key in unused)
        raise UserError(
            f"{where}: {len(names)} tensors without a place in this model ({shortened(names)}); "
            "expected LoRA on linear maps of the base it was trained on"
        )
    if rows is not None:
        arrays[LOC_ROWS] = _loc_rows(stated.get("trainable_token_indices"), rows, config, where)
    sha256 = files.metadata.get(_BASE_KEY)
    return PeftAdapter(_lora_config(stated, arrays, config, where), arrays, sha256)


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


def _module_names(path: str, config: VLMConfig) -> list[str]:
    """Transformers' names for a linear map of ours: one module, or one a layer."""
    rule = next(rule for rule in tensor_rules(config) if rule.path == f"{path}/kernel")
    if not rule.name.endswith(".weight") or rule.transform != "transposed":
        raise UserError(f"{path} has an adapter, and in Hugging Face's model it is no linear map")
    prefixes = module_prefixes(config)
    return [with_prefix(name.removesuffix(".weight"), prefixes) for name in rule.names(config)]


def _lora_tensors(lora: LoRA, modules: list[str]) -> Iterator[LazyTensor]:
    parts = {"lora_A.weight": lora.a[...], "lora_B.weight": lora.b[...]}
    if lora.magnitude is not None:
        parts["lora_magnitude_vector"] = lora.magnitude[...]
    stacked = lora.a.ndim == 3
    for layer, module in enumerate(modules):
        for suffix, array in parts.items():
            one = np.asarray(array[layer] if stacked else array, np.float32).T
            yield _whole(f"{_PREFIX}{module}.{suffix}", one)


def _describe_targets(
    loras: Mapping[str, LoRA], modules: Mapping[str, list[str]], use_rslora: bool
) -> dict[str, Any]:
    """The modules with adapters, the commonest rank and alpha, and who has another."""
    ranks = {path: lora.a.shape[-1] for path, lora in loras.items()}
    alphas = {path: _alpha(lora, use_rslora) for path, lora in loras.items()}
    rank, alpha = _commonest(ranks), _commonest(alphas)
    patterns = {path: _module_pattern(names) for path, names in modules.items()}
    return {
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": "|".join(patterns[path] for path in sorted(patterns)),
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


def _module_pattern(names: list[str]) -> str:
    """A regular expression for the modules of one stack; PEFT wants a full match."""
    if len(names) == 1:
        return re.escape(names[0])
    first, last = names[0].split("layers.0.", 1)
    return rf"{re.escape(first)}layers\.\d+\.{re.escape(last)}"


def _canonical_key(name: str) -> str:
    """`text.layers.0.self_attn.q_proj.lora_A.weight`, whatever version wrote it."""
    key = name.removeprefix(_PREFIX)
    # Written by versions that kept the adapter's name.
    key = re.sub(r"\.(lora_[AB])\.default\.", r".\1.", key)
    key = re.sub(r"\.lora_magnitude_vector(\.default)?(\.weight)?$", ".lora_magnitude_vector", key)
    return canonical_name(key)


def _stacked(
    files: SafetensorsFiles, config: VLMConfig, where: str
) -> tuple[dict[str, np.ndarray], set[str]]:
    """LoRA's parameters by our paths, and the keys that are none."""
    unused = set(files.tensors)
    arrays: dict[str, np.ndarray] = {}
    for rule in tensor_rules(config):
        if rule.transform != "transposed":
            continue
        path = rule.path.removesuffix("/kernel")
        modules = [name.removesuffix(".weight") for name in rule.names(config)]
        for suffix, ours in (
            ("lora_A.weight", "a"),
            ("lora_B.weight", "b"),
            ("lora_magnitude_vector", "magnitude"),
        ):
            keys = [f"{module}.{suffix}" for module in modules]
            found = [key for key in keys if key in files.tensors]
            if not found:
                continue
            if len(found) < len(keys):
                raise UserError(
                    f"{where}: {len(found)} of {len(keys)} layers have {path}'s {suffix}; layers "
                    "are stacked here and have an adapter all or none"
                )
            shapes = {files.tensors[key].shape for key in keys}
            if len(shapes) > 1:
                raise UserError(
                    f"{where}: {path}'s {suffix} has shapes {sorted(shapes)}; layers are stacked "
                    "here and need one rank"
                )
            parts = [files.read(key).astype(np.float32).T for key in keys]
            arrays[f"{path}/lora/{ours}"] = np.stack(parts) if rule.stacked else parts[0]
            unused -= set(keys)
    return arrays, unused


def _loc_rows(indices: Any, rows: np.ndarray, config: VLMConfig, where: str) -> np.ndarray:
    ids = next(iter(indices.values()), []) if isinstance(indices, Mapping) else indices
    ids = ids if isinstance(ids, list) else []
    start = config.loc_token_start
    if sorted(ids) != list(range(start, start + NUM_LOC_TOKENS)):
        raise UserError(
            f"{where}: trains {len(ids)} rows of the embedding; only exactly those of the "
            f"{NUM_LOC_TOKENS} <loc> tokens, ids from {start}, are supported"
        )
    return rows.astype(np.float32)[np.argsort(ids)]


def _lora_config(
    stated: Mapping[str, Any], arrays: Mapping[str, np.ndarray], config: VLMConfig, where: str
) -> LoRAConfig:
    paths = sorted(path.removesuffix("/lora/a") for path in arrays if path.endswith("/lora/a"))
    if not paths:
        raise UserError(f"{where}: no LoRA matrices for this model")
    rank, alpha = int(stated["r"]), float(stated["lora_alpha"])
    rules = {rule.path: rule for rule in tensor_rules(config)}
    prefixes = module_prefixes(config)
    ranks, alphas = {}, {}
    for path in paths:
        found = arrays[f"{path}/lora/a"].shape[-1]
        module = with_prefix(rules[f"{path}/kernel"].names(config)[0], prefixes).removesuffix(
            ".weight"
        )
        expected = _by_pattern(stated.get("rank_pattern"), module, rank)
        if found != expected:
            raise UserError(
                f"{where}: {path} has rank {found}, and {ADAPTER_CONFIG} says {expected}; the two "
                "files do not belong together"
            )
        if found != rank:
            ranks[re.escape(path)] = found
        own = _by_pattern(stated.get("alpha_pattern"), module, alpha)
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


def _by_pattern(pattern: Mapping[str, Any] | None, module: str, default: Any) -> Any:
    """Looks a module up as PEFT does: the first key that matches from some dot to the end."""
    for key, value in (pattern or {}).items():
        try:
            found = re.match(rf"(.*\.)?({key})$", module)
        except re.error as error:
            raise UserError(f"{ADAPTER_CONFIG}: pattern {key!r} cannot be used: {error}") from None
        if found:
            return value
    return default
