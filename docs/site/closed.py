"""Hook of mkdocs: a page that would load anything from another host fails the build."""

import re

_LOADED = re.compile(
    r'<(?:script|img|iframe)[^>]*\ssrc="?(?:https?:)?//[^">]*|<link[^>]*stylesheet[^>]*//[^>]*'
)


def on_post_page(output: str, page: object, config: object) -> str:
    """Returns the page as it is.

    Raises:
        ValueError: it loads something from another host.
    """
    found = _LOADED.search(output)
    if found:
        raise ValueError(
            f"{page}: loads from another host, which a reader may not have: {found[0]}"
        )
    return output
