"""Writes docs/configs.md, every key of a configuration, from cxrjax/training/config.py.

python docs/config_reference.py
"""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cxrjax.training import config as config_module
from cxrjax.training.mixture_config import source_defaults

PAGE = Path(__file__).parent / "configs.md"
_ASSIGNMENT = re.compile(r"^    (?:\w+ = )?(\w+)\.(\w+) = (.+?)(?:  # (.+))?$")
_HEAD = """\
# Keys of a configuration

A file in `configs/` starts from `default_config()` and changes some of these; the command line
changes single ones, as in `--config.optimizer.learning_rate=1e-3`. A key that is not here is an
error that names the nearest one. Written by `python docs/config_reference.py` from
[cxrjax/training/config.py](../cxrjax/training/config.py).
"""
_SOURCES = """
## mixture.sources.NAME

What `add_source` may say of one source of a mixture; null means what `data` says.
"""


def comments(function: Callable[[], ConfigDict]) -> dict[str, str]:
    """`group.key` as the source writes it -> the comment above it and the one behind it."""
    found: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(function).splitlines():
        if line.strip().startswith("# "):
            above.append(line.strip().removeprefix("# "))
            continue
        match = _ASSIGNMENT.match(line)
        if match:
            group, key, _, behind = match.groups()
            found[f"{group}.{key}"] = " ".join([*above, *([behind] if behind else [])])
        above = []
    return found


def table(node: ConfigDict, group: str, said: dict[str, str]) -> list[str]:
    """Rows of the keys right in a group, not of groups within it."""
    rows = ["", "| key | type | default | meaning |", "|---|---|---|---|"]
    prefix = "" if group == "config" else f"{group}."
    order = list(said)  # the source's, in which one comment may lean on the one before
    for key in sorted(node, key=lambda key: order.index(f"{group}.{key}")):
        value = node[key]
        if isinstance(value, ConfigDict):
            continue
        kind = node.get_type(key).__name__
        meaning = said[f"{group}.{key}"].rstrip(".")
        if not meaning and group == "source":
            meaning = f"as `data.{key}`"
        if not meaning and group == "decoding":
            meaning = "see cxrjax/decoding/strategy.py"
        choices = config_module.CHOICES.get(f"{prefix}{key}")
        if choices and not all(choice in meaning for choice in choices):
            meaning = f"{meaning}{'; ' if meaning else ''}one of {', '.join(choices)}"
        meaning = meaning.replace("|", "\\|")
        rows.append(f"| `{prefix}{key}` | {kind} | `{_text(value)}` | {meaning} |")
    return rows


def _text(value: Any) -> str:
    return "null" if value is None else repr(value).replace("|", "\\|")


def page() -> str:
    """The whole page."""
    config = config_module.default_config()
    said = comments(config_module.default_config)
    lines = [_HEAD, "## Not in a group", *table(config, "config", said)]
    groups = [key.removeprefix("config.") for key in said if key.startswith("config.")]
    for group in groups:
        node = config[group]
        if isinstance(node, ConfigDict):
            lines += ["", f"## {group}", *table(node, group, said)]
        if group == "mixture":
            rows = table(source_defaults(), "source", comments(source_defaults))
            lines += [_SOURCES.rstrip(), *(row.replace("`source.", "`") for row in rows)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
