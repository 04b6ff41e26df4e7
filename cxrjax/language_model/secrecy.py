"""Keeps the key out of whatever servers say: messages, logs and the cache."""

import base64
import html
import re
import urllib.parse

# Letters and digits in a row that no other text shares with a key by chance.
_TELLING = 8
_TELLING_IN_ANSWERS = 16
_ESCAPE = re.compile(r"\\(?:u00|x)([0-9a-fA-F]{2})")


class KeyGuard:
    """Finds a key, or a part of it, in what a server says.

    It is found between other characters and over ends of lines, in any case, and as JSON, HTML,
    addresses, hexadecimal digits and base64 write it.

    Args:
        key: empty, or shorter than 8 letters and digits: no secret, and not looked for.
    """

    def __init__(self, key: str) -> None:
        plain = _letters(key)
        content = key.encode()
        forms = [key, content.hex()]
        for before in range(3):
            # The first and last characters also depend on what stands beside the key.
            coded = base64.b64encode(b"\0" * before + content).decode().rstrip("=")
            forms.append(coded[(0, 2, 3)[before] : -1])
        self._parts = {
            width: {
                form[start : start + width]
                for form in map(_letters, forms)
                for start in range(len(form) - width + 1)
            }
            for width in (_TELLING, _TELLING_IN_ANSWERS)
            if len(plain) >= width
        }

    def is_in(self, text: str) -> bool:
        """Returns whether a message reveals the key: 8 letters or digits of it in a row."""
        return self._find(text, _TELLING)

    def is_in_answer(self, text: str) -> bool:
        """Returns whether an answer reveals the key: 16 in a row, as keys may be made of words."""
        return self._find(text, _TELLING_IN_ANSWERS)

    def _find(self, text: str, width: int) -> bool:
        parts = self._parts.get(width)
        if not parts:
            return False
        decoded = re.sub(r"\\[bfnrt]", " ", text)
        decoded = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), decoded)
        decoded = urllib.parse.unquote(html.unescape(decoded))
        return any(
            seen[start : start + width] in parts
            for seen in map(_letters, {text, decoded})
            for start in range(len(seen) - width + 1)
        )


def _letters(text: str) -> str:
    return re.sub(r"[^0-9a-z]", "", text.lower())
