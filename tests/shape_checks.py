"""Checks at each call the shapes and types of arrays that a function's annotations declare.

conftest.py has jaxtyping apply it to the package. Other annotations are mypy's: pytrees hold
shardings and tracers in the place of what they declare, and tests hand over bad values on purpose.
"""

from collections.abc import Callable
from typing import Any

import beartype
import jaxtyping

_CONF = beartype.BeartypeConf(is_pep484_tower=True)  # an int is a float
_jaxtyped = jaxtyping.jaxtyped


def install(packages: list[str]) -> None:
    """Has functions of `packages` checked from their import on, those alone that declare arrays.

    jaxtyping's import hook would wrap each function, and so take as much time as the checks.
    """
    jaxtyping.jaxtyped = _jaxtyped_if_declared  # the hook writes this name before each function
    jaxtyping.install_import_hook(packages, "tests.shape_checks.check_shapes")


def check_shapes(function: Callable[..., Any]) -> Callable[..., Any]:
    """What stands in for `function` in jaxtyping's checks; `function` is made for that alone."""
    function.__annotations__ = _declared_arrays(function)
    return beartype.beartype(conf=_CONF)(function)


def _jaxtyped_if_declared(*args: Any, typechecker: Any) -> Any:
    if args:
        return _jaxtyped(*args, typechecker=typechecker)
    return lambda made: _jaxtyped(made, typechecker=typechecker) if _is_checked(made) else made


def _is_checked(made: Any) -> bool:
    """Classes are pytrees; functions within functions would be wrapped anew at each call."""
    if isinstance(made, type) or "<locals>" in made.__qualname__ or made.__name__ == "__init__":
        return False
    return bool(_declared_arrays(made))


def _declared_arrays(function: Callable[..., Any]) -> dict[str, Any]:
    hints = function.__annotations__
    return {name: hint for name, hint in hints.items() if "jaxtyping." in repr(hint)}
