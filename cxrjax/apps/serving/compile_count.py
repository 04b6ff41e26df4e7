"""Counts what JAX compiles, or loads from its cache: after warm-up nothing may be."""

import threading

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"
_lock = threading.Lock()
_count = 0
_listening = False


def _hear(event: str, duration_secs: float, **_: object) -> None:
    global _count
    if event == _EVENT:
        with _lock:
            _count += 1


def compile_count() -> int:
    """Programs that this process has compiled since this was called first."""
    global _listening
    with _lock:
        if not _listening:
            jax.monitoring.register_event_duration_secs_listener(_hear)
            _listening = True
        return _count
