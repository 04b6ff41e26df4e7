"""Hook of mkdocs: mends in the theme's pages what axe-core finds wrong.

Names for the dialog of the search and for menus, cells in the place of empty headings, and keyboard
focus for what scrolls sideways; colours and underlines are in accessible.css.
"""

import re

_MENU = re.compile(r'(<nav class="md-nav"[^>]*) aria-labelledby="(__nav_\d+(?:_\d+)*)_label"')
_FIXES = (
    (re.compile(r'<div class="md-search"(?=[^>]* role="dialog")'), r'\g<0> aria-label="Search"'),
    (re.compile(r"<th[^>]*></th>"), "<td></td>"),
    (re.compile(r'<(?:pre(?=>)|div class="highlight-ipynb[^"]*")'), r'\g<0> tabindex="0"'),
    # The theme names a menu and the list in it alike.
    (_MENU, r'\1 aria-label="Menu \2"'),
)
# The theme adds boxes that scroll, and buttons for copying, when a page has been loaded.
_FOCUS = """<script>new MutationObserver(() => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) box.tabIndex = 0;
  for (const nav of document.querySelectorAll(".md-code__nav")) nav.role = "none";
}).observe(document.body, {childList: true, subtree: true});</script></body>"""


def on_post_page(output: str, page: object, config: object) -> str:
    """Returns the page with the fixes."""
    for pattern, fixed in _FIXES:
        output = pattern.sub(fixed, output)
    return output.replace("</body>", _FOCUS)
