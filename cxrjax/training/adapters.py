"""Adapters as a configuration asks for them: new ones, or filled with what another run trained."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from cxrjax.errors import UserError
from cxrjax.models import VLM, LoRAConfig, apply_lora
from cxrjax.models.layers import BoxHead, Linear, salt
from cxrjax.models.lora import parse_pattern
from cxrjax.models.partition import path_of
from cxrjax.models.peft import LOC_DELTA, adapter_parameters, read_peft
from cxrjax.training.config import ExperimentConfig


def add_adapters(model: VLM, config: ExperimentConfig) -> None:
    """Gives the model LoRA adapters, rows for location tokens and a box head, where configured."""
    settings = config.lora
    if settings.rank > 0:
        lora = LoRAConfig(
            rank=settings.rank,
            alpha=settings.alpha,
            dropout=settings.dropout,
            targets=tuple(settings.targets),
            use_rslora=settings.use_rslora,
            use_dora=settings.use_dora,
            rank_pattern=parse_pattern(settings.rank_pattern, "lora.rank_pattern"),
            alpha_pattern=parse_pattern(settings.alpha_pattern, "lora.alpha_pattern"),
        )
        key = jax.random.fold_in(jax.random.key(config.training.seed), salt("lora"))
        apply_lora(model, lora, nnx.Rngs(key))
    if settings.loc_rows:
        model.decoder.embedder.add_loc_delta()
    if config.model.box_head:
        key = jax.random.fold_in(jax.random.key(config.training.seed), salt("box_head"))
        model.box_head = BoxHead(model.config.decoder.width, nnx.Rngs(key))


def fill_adapters(
    model: VLM, config: ExperimentConfig, base: str, new_model: Callable[[], VLM]
) -> None:
    """Gives the model's adapters the values that the configured PEFT adapter has, if there is one.

    Args:
        base: the model's hash.
        new_model: makes the same model without adapters; only its shapes are asked for.

    Raises:
        UserError: the adapter is of another base, or not what is configured.
    """
    directory = config.lora.init_from
    if directory is None:
        return
    adapter = read_peft(directory, model.config)
    if adapter.base_sha256 not in (None, base):
        raise UserError(
            f"{directory}: trained on a base with hash {adapter.base_sha256[:12]}, and this one "
            f"has hash {base[:12]}; use the base it was trained on"
        )

    def as_it_was() -> VLM:
        model = new_model()
        apply_lora(model, adapter.config, nnx.Rngs(0))
        return model

    trained = adapter_parameters(model, adapter)
    leaves = {
        path_of(path): (path, leaf)
        for path, leaf in nnx.to_flat_state(nnx.state(model))
        if "/lora/" in path_of(path) or path_of(path) == LOC_DELTA
    }
    theirs = _adapter_scales(nnx.eval_shape(as_it_was))
    theirs |= {name: array.shape for name, array in trained.items()}
    ours = _adapter_scales(model)
    ours |= {name: leaf.get_value().shape for name, (_, leaf) in leaves.items()}
    names = sorted(theirs.keys() | ours.keys())
    differing = [name for name in names if theirs.get(name) != ours.get(name)]
    if differing:
        first = differing[0]
        raise UserError(
            f"lora.init_from={directory}: not the adapters that are configured, {len(differing)} "
            f"differences, such as {first}: {theirs.get(first)} there, {ours.get(first)} "
            "configured; set lora.rank, alpha, targets and the rest as the adapter has them"
        )
    filled = [(path, leaf.replace(jnp.asarray(trained[n]))) for n, (path, leaf) in leaves.items()]
    nnx.update(model, nnx.from_flat_state(filled))


def _adapter_scales(model: VLM) -> dict[str, Any]:
    """The factor of every adapter by the path of its map."""
    return {
        path_of(path): module.lora.scale
        for path, module in nnx.iter_modules(model)
        if isinstance(module, Linear) and module.lora is not None
    }


def adapter_reference(config: ExperimentConfig) -> dict[str, Any]:
    """Settings that must be the same for adapters to mean the same."""
    if config.lora.rank == 0:
        return {}
    keys = ("rank", "alpha", "use_rslora", "rank_pattern", "alpha_pattern")
    return {"lora": {key: _plain(getattr(config.lora, key)) for key in keys}}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
