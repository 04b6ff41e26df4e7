"""The viewer of radiographs that pages share: OpenSeadragon, and what is ours on top of it.

`viewer.js` says how a page uses it. Everything is inline: a page needs no network and no second
file. OpenSeadragon is BSD-3-Clause (vendor/openseadragon.LICENSE.txt); `npm ci && npm run renew` in
`vendor/` takes it from npm anew, and tests hold its file against `OPENSEADRAGON_SHA256`.
"""

from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from cxrjax.untrusted.foreign_files import read_text

_HERE = Path(__file__).parent
OPENSEADRAGON = _HERE / "vendor" / "openseadragon.min.js"
OPENSEADRAGON_SHA256 = "14d587cd3ee7c4861f1a41077ce642029364a21029956ba635bd8fb1202cf9ad"


class ViewerParts(NamedTuple):
    """Parts of the viewer that a page includes: `style` in <style>, `script` in <script>."""

    style: Markup
    script: Markup


def viewer_parts() -> ViewerParts:
    """The viewer's style sheet and scripts, the library first."""
    # The map of its source isn't ours to serve.
    library = read_text(OPENSEADRAGON).partition("//# sourceMappingURL")[0]
    own = read_text(_HERE / "viewer.js")
    return ViewerParts(Markup(read_text(_HERE / "viewer.css")), Markup(f"{library}\n{own}"))
