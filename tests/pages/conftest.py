"""The browser that tests of pages open tabs in."""

from tests.pages.chromium import browser

__all__ = ["browser"]
