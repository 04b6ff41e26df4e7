"""Checks at each call the shapes and types of arrays that a function's annotations declare.

conftest.py has jaxtyping apply it to the package. Other annotations are mypy's: pytrees hold
shardings and tracers in the place of what they declare, and tests hand over bad values on purpose.
"""

from collections.abc import Callable
from typing import Any

import beartype

_CONF = beartype.BeartypeConf(is_pep484_tower=True)  # an int is a float


def check_shapes(function: Callable[..., Any]) -> Callable[..., Any]:
    """What stands in for `function` in jaxtyping's checks; `function` is made for that alone.

    Functions within functions stay as they are: they would be made anew at each call, and take more
    time than all else.
    """
    if "<locals>" in function.__qualname__:
        return function
    hints = {} if function.__name__ == "__init__" else function.__annotations__  # as of pytrees
    function.__annotations__ = {
        name: hint for name, hint in hints.items() if "jaxtyping." in repr(hint)
    }
    return beartype.beartype(conf=_CONF)(function)
