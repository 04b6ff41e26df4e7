"""Columns of counts in few bytes: most counts are small, and most entries of most columns are 0."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float


class Packed:
    """A column in the smallest form that has it exactly; `np.asarray` returns it as float64.

    Its entries are stored in the smallest type that fits them: all, or those that are not 0 and
    their places.
    """

    __slots__ = ("_length", "_places", "_values")

    def __init__(self, column: Any) -> None:
        values = np.asarray(column, np.float64)
        places = np.flatnonzero(values)
        kind = _smallest(values[places])
        self._length, self._places = len(values), None
        if len(places) * (4 + kind.itemsize) < len(values) * kind.itemsize:
            self._places, values = places.astype(np.int32), values[places]
        self._values = values.astype(kind)

    def __len__(self) -> int:
        return self._length

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Float[np.ndarray, " n"]:
        if self._places is None:
            return self._values.astype(dtype or np.float64)
        column = np.zeros(self._length, dtype or np.float64)
        column[self._places] = self._values
        return column


class PackedParts(Packed):
    """Columns one after another, as one column; joining them would take their memory again."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[Packed]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Float[np.ndarray, " n"]:
        return np.concatenate([np.asarray(part, dtype or np.float64) for part in self._parts])


def _smallest(values: Float[np.ndarray, " n"]) -> np.dtype[Any]:
    """The smallest type that has all the values exactly."""
    if len(values) and (values.min() < 0 or not (values == np.rint(values)).all()):  # NaN too
        return np.dtype(np.float64)
    most = values.max(initial=0)
    kinds = (np.uint8, np.uint16, np.uint32)
    return next((np.dtype(k) for k in kinds if most <= np.iinfo(k).max), np.dtype(np.float64))
