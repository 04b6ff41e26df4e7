"""When the next request may go out."""

import threading
import time


class RateLimit:
    """Spaces requests evenly; threads share it.

    Args:
        per_minute: None: no spacing.
        stop: set when waiting must end.
    """

    def __init__(self, per_minute: float | None, stop: threading.Event) -> None:
        self._interval = 60.0 / per_minute if per_minute else 0.0
        self._stop = stop
        self._next = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Returns when it is this caller's turn, or when all is to stop."""
        while True:
            with self._lock:
                now = time.monotonic()
                ahead = self._next - now
                if ahead <= 0:
                    self._next = now + self._interval
                    return
            if self._stop.wait(ahead):
                return

    def hold(self, seconds: float) -> None:
        """Lets nothing out for a while: the server asked for it."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)
