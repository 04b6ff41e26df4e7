"""Matching of module names by PEFT's settings: patterns with values, and an adapter's targets."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from cxrjax.errors import UserError
from cxrjax.models.hf_layout import names_of_all_versions, tensor_rules
from cxrjax.models.presets import VLMConfig
from cxrjax.untrusted.closed_world import Rule
from cxrjax.untrusted.names import shown, shown_value

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


_EXCLUDED = "exclude_modules"
_LAYER = re.compile(r"(.*?)\.(\d+)\.")


def check_targets(stated: Mapping[str, Any], modules: Iterable[str], where: str) -> None:
    """Refuses weights of a module that the settings leave out: PEFT would pass them over.

    `target_modules` and `exclude_modules` are compared where they are lists of names. In their
    place PEFT takes any regular expression, which a stranger could make run for hours: then the
    weights alone say which modules are meant.

    Args:
        modules: that have weights, canonical names.

    Raises:
        UserError: names the first module, or a setting that PEFT does not write.
    """
    targets, excluded, stacks = (
        _names(stated, key, where) for key in ("target_modules", _EXCLUDED, "layers_pattern")
    )
    stacks = [stacks] if isinstance(stacks, str) else stacks
    numbers = stated.get("layers_to_transform")
    numbers = [numbers] if type(numbers) is int else numbers or []
    is_list = isinstance(numbers, list) and all(type(number) is int for number in numbers)
    if not is_list or (numbers and isinstance(targets, str)):
        raise UserError(
            f"{where}: layers_to_transform is {shown_value(stated['layers_to_transform'])}, "
            "expected numbers of layers, and with them a list of target_modules"
        )
    for module in modules:
        names = names_of_all_versions(module)
        left_out = not isinstance(excluded, str) and any(_ends_in(n, excluded) for n in names)
        wanted = isinstance(targets, str) or any(_ends_in(name, targets) for name in names)
        if numbers and not any(name in targets for name in names):
            layers = [found for found in map(_LAYER.match, names) if found is not None]
            layers = [found for found in layers if not stacks or _ends_in(found[1], stacks)]
            wanted = wanted and any(int(found[2]) in numbers for found in layers)
        if left_out or not wanted:
            raise UserError(
                f"{where}: target_modules, {_EXCLUDED} and layers_to_transform give no adapter to "
                f"{names[0]}, and the weights beside it have one; the two files do not belong "
                "together"
            )


def _names(stated: Mapping[str, Any], key: str, where: str) -> list[str] | str:
    found = stated.get(key) or []
    is_list = isinstance(found, list) and all(isinstance(name, str) for name in found)
    if not isinstance(found, str) and not is_list:
        raise UserError(f"{where}: {key} is {shown_value(found)}, expected names of modules")
    return found


def _ends_in(name: str, endings: Iterable[str]) -> bool:
    return any(name == ending or name.endswith(f".{ending}") for ending in endings)
