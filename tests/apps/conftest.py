"""The browser that tests of pages open tabs in."""

from tests.apps.chromium import browser

__all__ = ["browser"]
