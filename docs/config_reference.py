"""Writes docs/configs.md, every key of a configuration, from cxrjax/training/config.py.

python docs/config_reference.py
"""

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import AfterValidator

from cxrjax.input_pipeline.data_config import SourceConfig
from cxrjax.settings import NameIn
from cxrjax.training.config import ExperimentConfig

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


def choices_of(hint: Any) -> tuple[str, ...]:
    """The names that a key may have, by its annotation; empty: any."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    checks = [each.func for each in get_args(hint) if isinstance(each, AfterValidator)]
    return next((each.choices for each in checks if isinstance(each, NameIn)), ())


def kind_of(hint: Any) -> type:
    """The type of a key's values, None apart."""
    kinds = [each for each in get_args(hint) if each is not type(None)]
    if type(None) in get_args(hint):
        return kind_of(kinds[0])
    return str if get_origin(hint) is Literal else get_origin(hint) or hint


def table(group: type, prefix: str = "") -> list[str]:
    """Rows of the keys right in a group, not of groups within it."""
    rows = ["", "| key | type | default | meaning |", "|---|---|---|---|"]
    said, defaults = comments(group), group()
    plain, annotated = get_type_hints(group), get_type_hints(group, include_extras=True)
    for name, hint in plain.items():
        default = getattr(defaults, name)
        if dataclasses.is_dataclass(default) or isinstance(default, dict):
            continue
        meaning = said[name].rstrip(".")
        if not meaning and group is SourceConfig:
            meaning = f"as `data.{name}`"
        if not meaning and prefix == "decoding.":
            meaning = "see cxrjax/decoding/strategy.py"
        choices = choices_of(annotated[name])
        if not all(choice in meaning for choice in choices):
            meaning = f"{meaning}{'; ' if meaning else ''}one of {', '.join(choices)}"
        meaning = meaning.replace("|", "\\|")
        kind = kind_of(hint).__name__
        rows.append(f"| `{prefix}{name}` | {kind} | `{_text(default)}` | {meaning} |")
    return rows


def _text(value: Any) -> str:
    return "null" if value is None else repr(value).replace("|", "\\|")


def page() -> str:
    """The whole page."""
    lines = [_HEAD, "## Not in a group", *table(ExperimentConfig)]
    for name, group in vars(ExperimentConfig()).items():
        if dataclasses.is_dataclass(group):
            lines += ["", f"## {name}", *table(type(group), f"{name}.")]
            for inner, each in vars(group).items():
                if dataclasses.is_dataclass(each):
                    lines += table(type(each), f"{name}.{inner}.")
        if name == "mixture":
            lines += [_SOURCES.rstrip(), *table(SourceConfig)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
