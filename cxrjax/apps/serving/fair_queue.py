"""Fair queue: one queue per client, which are served in turn."""

import collections
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class QueueFullError(Exception):
    """No more may wait: to be told to come again."""


class FairQueue(Generic[T]):
    """Waiting items, of bounded number. Not locked: its owner is.

    Args:
        most: that may wait, over all clients.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: collections.OrderedDict[Hashable, collections.deque[T]] = (
            collections.OrderedDict()
        )
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, client: Hashable, items: list[T]) -> None:
        """Adds items behind those of their client: all of them or none.

        Raises:
            QueueFullError: there is no room for them.
        """
        if self._count + len(items) > self._most:
            raise QueueFullError
        self._waiting.setdefault(client, collections.deque()).extend(items)
        self._count += len(items)

    def pop(self) -> T | None:
        """The oldest item of the client whose turn it is."""
        if not self._waiting:
            return None
        client, items = self._waiting.popitem(last=False)
        item = items.popleft()
        self._count -= 1
        if items:  # behind all others
            self._waiting[client] = items
        return item

    def remove(self, gone: Callable[[T], bool]) -> list[T]:
        """Takes out the items of which `gone` is true."""
        removed: list[T] = []
        for client, items in list(self._waiting.items()):
            removed += [item for item in items if gone(item)]
            kept = collections.deque(item for item in items if not gone(item))
            if kept:
                self._waiting[client] = kept
            else:
                del self._waiting[client]
        self._count = sum(map(len, self._waiting.values()))
        return removed
