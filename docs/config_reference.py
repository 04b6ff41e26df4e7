"""Writes docs/configs.md, every key of a configuration, from cxrjax/training/config.py.

python docs/config_reference.py
"""

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

from cxrjax.training.config import ExperimentConfig, SourceConfig, keys_of

PAGE = Path(__file__).parent / "configs.md"
_FIELD = re.compile(r"^    (\w+): .+? = .+?(?:  # (.+))?$")
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


def comments(group: type) -> dict[str, str]:
    """Key -> the comment above it in the source and the one behind it."""
    found: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(group).splitlines():
        if line.strip().startswith("# "):
            above.append(line.strip().removeprefix("# "))
            continue
        if match := _FIELD.match(line):
            key, behind = match.groups()
            found[key] = " ".join([*above, *([behind] if behind else [])])
        above = []
    return found


def table(group: type, prefix: str = "") -> list[str]:
    """Rows of the keys right in a group, not of groups within it."""
    rows = ["", "| key | type | default | meaning |", "|---|---|---|---|"]
    said = comments(group)
    for name, key in keys_of(group).items():
        if dataclasses.is_dataclass(key.kind) or key.kind is dict:
            continue
        meaning = said[name].rstrip(".")
        if not meaning and group is SourceConfig:
            meaning = f"as `data.{name}`"
        if not meaning and prefix == "decoding.":
            meaning = "see cxrjax/decoding/strategy.py"
        choices = key.rule if isinstance(key.rule, tuple) else ()
        if not all(choice in meaning for choice in choices):
            meaning = f"{meaning}{'; ' if meaning else ''}one of {', '.join(choices)}"
        meaning = meaning.replace("|", "\\|")
        kind, default = key.kind.__name__, _text(key.default)
        rows.append(f"| `{prefix}{name}` | {kind} | `{default}` | {meaning} |")
    return rows


def _text(value: Any) -> str:
    return "null" if value is None else repr(value).replace("|", "\\|")


def page() -> str:
    """The whole page."""
    lines = [_HEAD, "## Not in a group", *table(ExperimentConfig)]
    for name, key in keys_of(ExperimentConfig).items():
        if dataclasses.is_dataclass(key.kind):
            lines += ["", f"## {name}", *table(key.kind, f"{name}.")]
            for inner, each in keys_of(key.kind).items():
                if dataclasses.is_dataclass(each.kind):
                    lines += table(each.kind, f"{name}.{inner}.")
        if name == "mixture":
            lines += [_SOURCES.rstrip(), *table(SourceConfig)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
