"""A Chromium to open pages in, for tests; where there is none, they are skipped."""

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

_FLAGS = "no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
_FLAGS += "disable-component-update disable-sync"


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Playwright's browser, closed in the end; for a fixture of a module."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs Chromium (Debian's package chromium)")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=path, args=[f"--{flag}" for flag in _FLAGS.split()]
        )
        yield launched
        launched.close()
