"""The Chromium of a test process: one for all, in which each test opens tabs of its own."""

import asyncio
import atexit
import contextlib
import functools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1400, "height": 1000}
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
    loop, new_context = asyncio.get_running_loop(), launched.new_context

    def patient_context(**options: Any) -> Any:
        context = new_context(**options)
        context.set_default_timeout(120_000)  # ms: other tests may keep all cores busy
        return context

    launched.new_context = patient_context

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


class Watched:
    """A tab; notes the addresses that it asks for, errors of its scripts, and its console."""

    def __init__(self, browser: Any, address: str, viewport: dict[str, int] = DESKTOP, **options):
        self.tab = browser.new_context(viewport=viewport, **options).new_page()
        self.asked: list[str] = []
        self.wrong: list[str] = []
        self.told: list[str] = []
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self.tab.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.tab.on("console", lambda message: self.told.append(message.text))
        self.tab.goto(address)

    def asked_only(self, *beginnings: str) -> bool:
        return all(url.startswith(beginnings) for url in self.asked)

    def fits(self) -> bool:
        """Whether nothing is wider than the screen."""
        wide = self.tab.evaluate("document.documentElement.scrollWidth")
        return wide <= self.tab.viewport_size["width"]


def look(tab: Any, name: str) -> None:
    """A screenshot to look at, where a folder for them is named."""
    if folder := os.environ.get("CXRJAX_SCREENSHOTS"):
        tab.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def script(name: str) -> str:
    """What a tab is to evaluate or to show, of the folder `scripts`."""
    return (Path(__file__).parent / "scripts" / name).read_text(encoding="utf-8")
