"""JSON of others: of bounded size and depth, in UTF-8, without half characters."""

import codecs
import json
import re
from typing import Any

from cxrjax.errors import ForeignError
from cxrjax.untrusted.foreign_files import MOST_BYTES, decode_text

# Objects, lists and what stands in them; so many empty objects take 450 MB of memory.
MOST_ENTRIES = 4_000_000
# float() overflows beyond 308 digits, and nothing that is read here counts so far.
_MOST_DIGITS = 308
_TOO_LONG = re.compile(rb"(?<![0-9])[0-9]{%d}" % (_MOST_DIGITS + 1))
_DIGIT = re.compile(rb"[0-9]")
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)


def check_json(text: str | bytes, most: int = MOST_BYTES) -> bytes:
    """The bytes of JSON text for a parser that bounds depth itself, as pydantic's does.

    Args:
        most: bytes that the text may have.

    Returns:
        UTF-8 without a byte order mark.

    Raises:
        ForeignError: not UTF-8, too long, more than `MOST_ENTRIES`, half of a surrogate pair, or a
            number of more than 308 digits.
    """
    try:
        content = text.encode() if isinstance(text, str) else text
    except UnicodeEncodeError:
        raise ForeignError("not JSON: it contains half of a surrogate pair") from None
    decode_text(content)
    if len(content) > most:
        raise ForeignError(f"JSON of {len(content):,} bytes, at most {most:,} are read")
    if len(content) > MOST_ENTRIES:
        entries = sum(map(content.count, (b",", b"[", b"{")))
        if entries > MOST_ENTRIES:
            raise ForeignError(f"JSON of {entries:,} entries, at most {MOST_ENTRIES:,} are read")
    # A number of that many digits covers one of these places; most lines are shorter than that.
    possible = _DIGIT.search(content[_MOST_DIGITS :: _MOST_DIGITS + 1])
    # What a model has said may have as many digits as it likes.
    if possible and _TOO_LONG.search(content) and _TOO_LONG.search(_STRING.sub(b"", content)):
        raise ForeignError(f"not usable JSON: a number of more than {_MOST_DIGITS} digits")
    return content.removeprefix(codecs.BOM_UTF8)


def parse_json(text: str | bytes, most: int = MOST_BYTES, finite: bool = False) -> Any:
    """Parses JSON text. NaN and infinities are accepted as numbers, as Python writes them.

    Args:
        most: bytes that the text may have.
        finite: refuse NaN and infinities.

    Raises:
        ForeignError: it is not JSON in UTF-8, too long, nested deeper than 200, holds half of a
            surrogate pair, or an integer of more than 308 digits.
    """
    import pydantic_core  # here: who reads nothing can do without

    content = check_json(text, most)
    try:
        return pydantic_core.from_json(content, allow_inf_nan=not finite)
    except ValueError as error:
        raise ForeignError(f"not JSON ({error})") from None


def parse_object(text: str | bytes, most: int = MOST_BYTES) -> dict[str, Any]:
    """`parse_json` of an object.

    Raises:
        ForeignError: as `parse_json`, or it is something else.
    """
    content = parse_json(text, most)
    if not isinstance(content, dict):
        raise ForeignError(f"expected a JSON object, found {type(content).__name__}")
    return content


# A whole pair, half of one, any other escape.
_ESCAPES = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.",
    re.DOTALL,
)


def without_half_characters(text: bytes) -> bytes:
    """JSON with U+FFFD in the place of each escaped half of a surrogate pair."""
    if b"\\u" not in text:
        return text
    return _ESCAPES.sub(lambda found: b"\\ufffd" if found["half"] else found[0], text)


def repeated_keys(text: str | bytes) -> list[str]:
    """The keys that some object of JSON text has more than once; parsers keep the last value.

    Args:
        text: what `parse_json` has read without an error.
    """
    repeated: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        keys = {key for key, _ in pairs}
        if len(keys) < len(pairs):
            names = [key for key, _ in pairs]
            repeated.extend(key for key in dict.fromkeys(names) if names.count(key) > 1)

    # As strings: a number's size and a NaN were judged when the text was parsed.
    json.loads(check_json(text), object_pairs_hook=note, parse_int=str, parse_float=str)
    return repeated
