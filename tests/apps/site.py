"""`python -m tests.apps.site`: axe-core on pages of build/site, one of each kind (`make docs`)."""

import sys
from pathlib import Path

import pytest

from tests.apps.axe import accessibility_faults
from tests.apps.chromium import chromium

SITE = Path(__file__).parents[2] / "build/site"
# The start, tables, signatures, a notebook, code.
PAGES = ("index", "docs/protocols", "docs/reference/modules", "notebooks/1_tour", "docs/python")


def main() -> int:
    """Prints the violations; the exit code."""
    try:
        with chromium() as browser:
            faults = [
                f"{page}: {fault}"
                for page in PAGES
                for fault in accessibility_faults(browser, (SITE / f"{page}.html").as_uri())
            ]
    except pytest.skip.Exception as missing:
        print(f"Not checked for accessibility: {missing}")
        return 0
    print("\n".join(faults) or f"axe-core: no violation on {len(PAGES)} pages")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
