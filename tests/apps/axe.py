"""What axe-core finds wrong with a page for people who see, hear or point otherwise.

    faults = accessibility_faults(browser, page.as_uri())

`vendor/axe.min.js` is axe-core (MPL-2.0, vendor/axe.LICENSE.txt) as npm has it; `npm ci && npm run
renew` in cxrjax/apps/vendor takes it anew. It is part of the tests alone.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
AXE_SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
WIDTHS = (390, 1280)
SCHEMES = ("light", "dark")


def accessibility_faults(
    browser: Any,
    address: str,
    *states: Callable[[Any], None],
    widths: Sequence[int] = WIDTHS,
    schemes: Sequence[str] = SCHEMES,
) -> list[str]:
    """Returns the violations on a page, at each width in light and in dark.

    A line each: width, scheme, rule, and the first elements. Each of the states is brought about in
    the tab, one after the other: it waits, or opens what is closed.
    """
    faults = []
    for scheme in schemes:
        tab = browser.new_context(color_scheme=scheme, bypass_csp=True).new_page()
        for width in widths:
            tab.set_viewport_size({"width": width, "height": 900})
            tab.goto(address)
            for reach in states or [lambda tab: None]:
                reach(tab)
                faults += [f"{width} {scheme}: {one}" for one in faults_of(tab)]
    return faults


def faults_of(tab: Any) -> list[str]:
    """The same of a tab as it is now; its context must have been made with bypass_csp=True."""
    if not tab.evaluate("'axe' in window"):
        tab.add_script_tag(path=str(AXE))
    found = tab.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        f"{one['id']} ({one['impact']}) {len(one['nodes'])}: "
        + "; ".join(node["html"][:160] for node in one["nodes"][:3])
        for one in found
    ]
