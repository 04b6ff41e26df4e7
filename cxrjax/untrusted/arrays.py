"""NumPy arrays of others: of bounded size, and numbers alone."""

from pathlib import Path

import numpy as np

from cxrjax.errors import ForeignError
from cxrjax.paths import local_copy
from cxrjax.untrusted.foreign_files import open_foreign


def read_array(path: str | Path, most: int) -> np.ndarray:
    """The numbers in a .npy file: a view of it, of which no more is in memory than is looked at.

    Args:
        most: how many there may be.

    Raises:
        OSError: it cannot be read.
        ForeignError: it is no .npy file of numbers, shorter than it says, or has more numbers.
    """
    path = local_copy(path)
    open_foreign(path).close()
    try:
        # Mapped, so that the shape it claims is compared with the file before anything is made.
        with np.errstate(over="ignore"):
            array = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, OverflowError, RecursionError, MemoryError, SyntaxError) as error:
        raise ForeignError(f"no .npy file of numbers ({str(error)[:200]})") from None
    if array.dtype.kind not in "fiu":
        raise ForeignError(f"a .npy file of {array.dtype}; expected real numbers")
    if array.size > most:
        raise ForeignError(f"an array of shape {array.shape}; at most {most:,} numbers are read")
    return array
