"""Keeps what was made of images as long as there is room: the least recently used goes first."""

import collections
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class ByteLRU(Generic[T]):
    """A cache with a limit of bytes. Can be used from several threads.

    Args:
        most_bytes: of all that is kept; 0 keeps nothing.
        size: bytes of a value.
    """

    def __init__(self, most_bytes: int, size: Callable[[T], int]) -> None:
        self._most, self._size = most_bytes, size
        self._kept: collections.OrderedDict[Hashable, T] = collections.OrderedDict()
        self._lock = threading.Lock()
        self.bytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, key: Hashable) -> T | None:
        """Returns the value stored under the key, or None."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                self.misses += 1
                return None
            self.hits += 1
            self._kept.move_to_end(key)
            return found

    def put(self, key: Hashable, value: T) -> None:
        """Keeps a value, and lets others go for it; one that is too large is not kept."""
        size = self._size(value)
        with self._lock:
            self._drop(key)
            if size > self._most:
                return
            while self.bytes + size > self._most:
                self._drop(next(iter(self._kept)))
            self._kept[key] = value
            self.bytes += size

    def _drop(self, key: Hashable) -> None:
        dropped = self._kept.pop(key, None)
        if dropped is not None:
            self.bytes -= self._size(dropped)
