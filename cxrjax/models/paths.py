"""Names for the leaves of parameter trees: what rules match and checkpoints are keyed by."""

from typing import Any

import jax


def path_name(path: tuple[Any, ...]) -> str:
    """A leaf's key path joined by '/', as `cxrjax.models.partition.path_of` names parameters."""
    return "/".join(str(_part(key)) for key in path if not _is_variable_value(key))


def named_leaves(tree: Any) -> dict[str, Any]:
    """`{path: leaf}` of any pytree, in the tree's order."""
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _part(key: Any) -> Any:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return key


def _is_variable_value(key: Any) -> bool:
    """NNX puts every array into a variable, which JAX shows as one more step, `.value`."""
    return isinstance(key, jax.tree_util.GetAttrKey) and key.name == "value"
