"""Settings of others: every key is known, and has a value that can be honoured."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from cxrjax.errors import ForeignError
from cxrjax.untrusted.names import shown, shown_value


class Rule(NamedTuple):
    """Allowed values of a key: those listed in `values`, or those that another field describes."""

    values: tuple[Any, ...] = ()
    most: int | float | None = None  # a number above 0 up to this; a whole one where this is
    keys: Mapping[str, "Rule"] | None = None  # an object with these
    items: tuple[Any, ...] | None = None  # a list of these, at most 1,000

    def allows(self, value: Any) -> bool:
        """Returns whether a value is allowed; objects are left to the caller."""
        # 1 is True and 0.0 is 0, for Python.
        kinds = (int, float) if type(value) in (int, float) else (type(value),)
        if any(type(each) in kinds and each == value for each in self.values):
            return True
        if self.most is not None and type(value) in (int, float):
            whole = type(self.most) is int
            return (type(value) is int or not whole) and 0 < value <= self.most
        if self.items is not None and isinstance(value, list):
            same = {type(each) for each in self.items}
            return len(value) <= _MOST_ITEMS and all(
                type(each) in same and each in self.items for each in value
            )
        return False

    def __str__(self) -> str:
        said = [repr(value) for value in self.values]
        if self.most is not None:
            kind = "a whole number" if type(self.most) is int else "a number"
            said.append(f"{kind} above 0, up to {self.most:,.0f}")
        if self.keys is not None:
            said.append("an object")
        if self.items is not None:
            said.append(f"a list of {', '.join(map(repr, self.items))}")
        return " or ".join(said)


_MOST_ITEMS = 1_000
# Of a key that changes nothing that is computed here, whatever its value.
NO_MATTER = Rule()
# Of a key whose reader looks at the value himself.
CHECKED_LATER = Rule((None,))


def check_settings(
    found: Mapping[str, Any], rules: Mapping[str, Rule], within: str = ""
) -> dict[str, Any]:
    """Validates settings and returns those that have an effect.

    Args:
        within: the keys above, for messages; with a full stop behind each.

    Raises:
        ForeignError: a key without a rule, or a value that breaks its own.
    """
    kept = {}
    for key, value in found.items():
        rule = rules.get(key)
        if rule is None:
            raise ForeignError(
                f"the key {shown(within + key)} is not known here; if it changes nothing that the "
                "model computes, remove it from the file"
            )
        if rule is NO_MATTER:
            continue
        kept[key] = value
        if rule.keys is not None and isinstance(value, Mapping):
            kept[key] = check_settings(value, rule.keys, f"{within}{key}.")
        elif rule is not CHECKED_LATER and not rule.allows(value):
            raise ForeignError(
                f"{within}{key} is {shown_value(value)}, expected {rule}; nothing else is supported"
            )
    return kept
