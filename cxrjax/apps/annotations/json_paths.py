"""Values of JSON by their path, or by the usual names of a role."""

import functools
from collections.abc import Iterator
from typing import Any

from cxrjax.apps.annotations.annotation import WORDS, plain
from cxrjax.apps.annotations.folder import flagged_split, split_of
from cxrjax.errors import ForeignError
from cxrjax.untrusted.names import shown, shown_value

ABSENT: Any = object()
ATTRIBUTES = ("attributes", "region_attributes", "file_attributes", "inference", "flags")
_KINDS: dict[str, tuple[Any, str]] = {
    "[]": (list, "a list"),
    "{}": (dict, "an object"),
    "*": ((list, dict), "a list"),
}


def get(value: Any, path: str) -> Any:
    """The value at a path without [] and {}; `ABSENT` if there is none."""
    for key in filter(None, path.split(".")):
        if isinstance(value, dict):
            value = value.get(key, ABSENT)
        elif isinstance(value, list) and key.isdigit():
            value = value[int(key)] if int(key) < len(value) else ABSENT
        else:
            return ABSENT
    return value


def reach(value: Any, path: str, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (place, value) of everything at a path.

    Raises:
        ForeignError: something on the way is of another kind.
    """
    key, _, rest = path.partition(".")
    if not path:
        yield place, value
    elif key in _KINDS:
        kind, name = _KINDS[key]
        if not isinstance(value, kind):
            told = f"{place or 'the file'} is {shown_value(value)}; expected {name}"
            raise ForeignError(told)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for at, one in items:
            yield from reach(one, rest, f"{place}[{shown(at) if isinstance(at, str) else at}]")
    else:
        found = get(value, key)
        if found is ABSENT:
            told = f"{shown_value(value)}; expected an object with {key}"
            raise ForeignError(f"{place}: {told}" if place else told)
        yield from reach(found, rest, f"{place}.{key}" if place else key)


@functools.lru_cache(4_096)
def _role(key: str) -> frozenset[str]:
    """Roles that a key's name stands for."""
    return frozenset(role for role, words in WORDS["columns"].items() if plain(key) in words)


def fields_of(one: Any) -> list[dict[str, Any]]:
    """An object, the objects of its attributes, and its tags with values as one."""
    tags = get(one, "tags")
    named = [tag for tag in tags if isinstance(tag, dict)] if isinstance(tags, list) else []
    of_tags = {str(tag.get("name")): tag.get("value") for tag in named}
    every = (one, *(get(one, key) for key in ATTRIBUTES), of_tags)
    return [fields for fields in every if isinstance(fields, dict)]


def said_of(one: Any, role: str) -> str:
    """The value under the likeliest of a role's usual names, also among attributes; "" of none."""
    for fields in fields_of(one):
        found = [
            (WORDS["columns"][role].index(plain(key)), str(value))
            for key, value in fields.items()
            if role in _role(key[:100]) and isinstance(value, str | int | float) and value != ""
        ]
        if found:
            return min(found)[1]
    return ""


def split_said(one: Any) -> str:
    """The split that an object states, by its name or by flags; "" of none.

    Raises:
        Unusable: flags of two.
    """
    return split_of(said_of(one, "split")) or flagged_split(one if isinstance(one, dict) else {})


def confidences(one: Any, count: int) -> list[Any]:
    """The list of so many confidences beside lists of boxes and classes; Nones of none."""
    lists = ((key, of) for key, of in one.items()) if isinstance(one, dict) else ()
    found = (of for key, of in lists if "confidence" in _role(str(key)[:100]))
    return next((of for of in found if isinstance(of, list) and len(of) == count), [None] * count)
