"""PEFT's `rank_pattern` and `alpha_pattern`: values for modules that a pattern names."""

import re
from collections.abc import Mapping
from typing import Any

from cxrjax.border.closed_world import Rule
from cxrjax.border.names import shown, shown_value
from cxrjax.errors import UserError
from cxrjax.models.hf_layout import names_of_all_versions, tensor_rules
from cxrjax.models.presets import VLMConfig

# A module's name, or how we write all layers of one: nothing that a match could be long about.
_LONGEST_PATTERN, _MOST_PATTERNS = 300, 1_000
_FROM_A_DOT = r"(.*\.)?"
Patterns = list[tuple[re.Pattern[str], Any]]
_SIMPLE_PATTERN = re.compile(
    r"\^?(?:[\w.-]|\\[.-]|\\d\+?|\[[0-9-]+\]\+?|\(\d{1,4}(?:\|\d{1,4})*\))+\$?"
)


def read_patterns(stated: Mapping[str, Any], key: str, allowed: Rule, where: str) -> Patterns:
    """An object of modules and their values."""
    found = stated.get(key) or {}
    if not isinstance(found, Mapping) or len(found) > _MOST_PATTERNS:
        raise UserError(
            f"{where}: {key} is {shown_value(found)}, expected an object of at most "
            f"{_MOST_PATTERNS:,} modules"
        )
    patterns = []
    for module, value in found.items():
        if len(module) > _LONGEST_PATTERN or not _SIMPLE_PATTERN.fullmatch(module):
            raise UserError(
                f"{where}: pattern {shown(module)} in {key} cannot be used; expected a module's "
                r"name, with \. and \d+ at most"
            )
        if not allowed.allows(value):
            raise UserError(
                f"{where}: {key} of {shown(module)} is {shown_value(value)}, expected {allowed}"
            )
        patterns.append((re.compile(rf"{_FROM_A_DOT}({module})$"), value))
    return patterns


def check_all_match(patterns: Patterns, key: str, config: VLMConfig, where: str) -> None:
    """Refuses a pattern that speaks of no map of this model: its value would be for nothing."""
    modules = [
        name.removesuffix(".weight")
        for rule in tensor_rules(config)
        if rule.transform == "transposed"
        for name in rule.names(config)
    ]
    for pattern, _ in patterns:
        if not any(_matches(pattern, module) for module in modules):
            name = shown(pattern.pattern.removeprefix(_FROM_A_DOT)[1:-2])
            raise UserError(
                f"{where}: {key} has {name}, which matches no linear map of this model; remove it, "
                "or use the model that the adapter was trained on"
            )


def _matches(pattern: re.Pattern[str], module: str) -> bool:
    """Looks one module up as PEFT does, from some dot to the end, under the names of any version.

    Args:
        module: canonical name.
    """
    return any(pattern.match(name) for name in names_of_all_versions(module))


def value_by_pattern(patterns: Patterns, modules: list[str], default: Any, where: str) -> Any:
    """The value of a stack's modules, canonical names: of the first pattern that matches."""
    found = {
        next((value for pattern, value in patterns if _matches(pattern, module)), default)
        for module in modules
    }
    if len(found) > 1:
        raise UserError(
            f"{where}: {names_of_all_versions(modules[0])[0]} has another value of a pattern than "
            "the same map of other layers; layers are stacked here and have one rank and alpha"
        )
    return found.pop()
