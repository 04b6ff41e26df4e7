"""The Chromium of a test process: one for all, in which each test opens tabs of its own."""

import asyncio
import atexit
import contextlib
import functools
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

_FLAGS = "no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
_FLAGS += "disable-component-update disable-sync"


@functools.cache
def _started() -> tuple[Any, Any]:
    """Playwright's browser, which ends with the process, and its event loop."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    playwright = sync_api.sync_playwright().start()
    launched = playwright.chromium.launch(
        executable_path=path, args=[f"--{flag}" for flag in _FLAGS.split()]
    )
    loop = asyncio.get_running_loop()

    def end() -> None:
        asyncio._set_running_loop(loop)
        launched.close()
        playwright.stop()

    atexit.register(end)
    return launched, loop


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Lends the browser and closes what was opened in it; where there is none, the test skips.

    Playwright marks its event loop as the thread's running one, which it is only meanwhile.
    """
    launched, loop = _started()
    asyncio._set_running_loop(loop)
    try:
        yield launched
    finally:
        for context in launched.contexts:
            context.close()
        asyncio._set_running_loop(None)


@pytest.fixture
def browser():
    with chromium() as lent:
        yield lent
