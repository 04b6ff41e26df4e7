"""Unknown and removed keys of a configuration, and keys that exclude each other."""

import difflib
import functools
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any

from cxrjax.errors import UserError
from cxrjax.files import read_packaged

# What the dotted keys of a mixture's sources begin with.
SOURCES = "mixture.sources."


def other_names() -> dict[str, str]:
    """Names that other trainers give some keys -> the key."""
    keys = read_packaged("cxrjax.training", "other_names.toml")
    return {name: key for key, names in keys.items() for name in names}


@functools.cache
def removed_keys() -> dict[str, dict[str, Any]]:
    """Keys and values that earlier versions had -> what became of them."""
    return read_packaged("cxrjax.training", "removed_keys.toml")


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Returns the message about a key, dotted or bare, that is not among the known ones."""
    if (removed := removed_keys().get(key)) and "why" in removed:
        return f"configuration key {key!r} was removed, as {removed['why']}; leave it out"
    if meant := other_names().get(key.rpartition(".")[2]):
        return f"unknown configuration key {key!r}; did you mean {meant!r}?"
    by_name = {name if "." in key else name.rpartition(".")[2]: name for name in known}
    near = difflib.get_close_matches(key, by_name, n=1, cutoff=0.5)
    hint = f"did you mean {by_name[near[0]]!r}?" if near else "docs/configs.md lists all"
    return f"unknown configuration key {key!r}; {hint}"


def renew(nested: dict[str, Any]) -> None:
    """Reads a nested configuration of an earlier version as of this one, in place.

    Raises:
        UserError: a removed key, or a removed value of a key, that means another thing.
    """
    for name, removed in removed_keys().items():
        path, _, gone = name.partition("=")
        *groups, key = path.split(".")
        group: Any = nested
        for each in groups:
            group = group.get(each) if isinstance(group, Mapping) else None
        if not isinstance(group, dict) or key not in group:
            continue
        value = group[key]
        if gone and str(value) != gone:
            continue
        if "becomes" in removed:
            group[key] = removed["becomes"]
        elif gone or value != removed["kept"]:
            remedy = "set another" if gone else f"this version has {removed['kept']!r}"
            raise UserError(
                f"{path}={value!r}: removed, as {removed['why']} (docs/log/boxes.md, 'Objectives "
                f"that left'); {remedy}; commit {removed['commit']} reads it"
            )
        else:
            del group[key]


def broken_rules(config: Any) -> Iterator[str]:
    """Yields the messages of the rules of key_rules.toml that a configuration breaks."""
    for rule in read_packaged(str(__package__), "key_rules.toml")["rule"]:
        if all(_is(attrgetter(key)(config), wanted) for key, wanted in rule["when"].items()):
            yield rule["message"].format(**vars(config))


def _is(value: Any, wanted: bool | str | list[str]) -> bool:
    """Returns whether a key is as a rule says (key_rules.toml has the form)."""
    if isinstance(wanted, bool):
        return bool(value) is wanted
    if isinstance(wanted, list):
        return any(_is(value, each) for each in wanted)
    return fnmatchcase(str(value), wanted.removeprefix("!")) is not wanted.startswith("!")
