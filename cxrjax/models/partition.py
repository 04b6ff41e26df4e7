"""Names for the leaves of parameter trees: what rules match and checkpoints are keyed by."""

import re
from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx

from cxrjax.errors import UserError
from cxrjax.models.quantize import QuantizedKernel


def path_of(path: Sequence[Any]) -> str:
    """A parameter's name: its path joined by '/', such as `decoder/layers/attn/q_proj/kernel`."""
    return "/".join(str(part) for part in path)


def parameter_shapes(model: nnx.Module) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter by its path; stacked layers carry the depth as a leading axis."""
    _, state = nnx.split(model)
    return {path_of(path): tuple(leaf.shape) for path, leaf in nnx.to_flat_state(state)}


def partition(model: nnx.Module, rules: Sequence[str]) -> tuple[Any, nnx.State, nnx.State]:
    """Splits a model by regular expressions over parameter paths.

    Args:
        model: any NNX module; arrays may be abstract.
        rules: a parameter trains where one of them is found in its path (`re.search`): `lora/`
            means adapters, `.*` means all.

    Returns:
        (graphdef, trainable, frozen); `nnx.merge(graphdef, trainable, frozen)` is the model again.

    Raises:
        UserError: a rule that no parameter matches.
    """
    paths = parameter_shapes(model)
    for rule in rules:
        if not any(re.search(rule, path) for path in paths):
            raise UserError(
                f"trainable: rule {rule!r} matches no parameter; examples of paths: "
                + ", ".join(sorted(paths)[:8])
            )

    def trains(path: Sequence[Any], _: Any) -> bool:
        return any(re.search(rule, path_of(path)) for rule in rules)

    graphdef, trainable, *rest = nnx.split(model, trains, ...)
    return graphdef, trainable, rest[0]


def count_parameters(state: Any) -> int:
    """Counts the numbers in a pytree of arrays or shapes; weights of a quantised kernel."""
    leaves = jax.tree.leaves(state, is_leaf=lambda leaf: isinstance(leaf, QuantizedKernel))
    return sum(int(leaf.size) for leaf in leaves)
