"""Matching of module names by PEFT's settings: patterns with values, and an adapter's targets."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from cxrjax.errors import ForeignError, UserError
from cxrjax.models.hf_import import shortened
from cxrjax.models.hf_layout import module_prefixes, published_prefixes, tensor_rules, with_prefix
from cxrjax.models.presets import VLMConfig
from cxrjax.untrusted.closed_world import Rule
from cxrjax.untrusted.names import shown, shown_value
from cxrjax.untrusted.patterns import full_matches

# A module's name, or how we write all layers of one: nothing that a match could be long about.
_LONGEST_PATTERN, _MOST_PATTERNS = 300, 1_000
_FROM_A_DOT = r"(.*\.)?"
Patterns = list[tuple[re.Pattern[str], Any]]
_SIMPLE_PATTERN = re.compile(
    r"\^?(?:[\w.-]|\\[.-]|\\d\+?|\[[0-9-]+\]\+?|\(\d{1,4}(?:\|\d{1,4})*\))+\$?"
)
# As `save_peft` writes them.
_SIMPLE_TARGETS = re.compile(rf"{_SIMPLE_PATTERN.pattern}(?:\|{_SIMPLE_PATTERN.pattern})*")


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
    for pattern, _ in patterns:
        if not any(_matches(pattern, module, config) for module in _linear_maps(config)):
            name = shown(pattern.pattern.removeprefix(_FROM_A_DOT)[1:-2])
            raise UserError(
                f"{where}: {key} has {name}, which matches no linear map of this model; remove it, "
                "or use the model that the adapter was trained on"
            )


def _linear_maps(config: VLMConfig) -> list[str]:
    """Canonical names of the modules that may have an adapter."""
    return [
        name.removesuffix(".weight")
        for rule in tensor_rules(config)
        if rule.transform == "transposed"
        for name in rule.names(config)
    ]


def _names_of(module: str, config: VLMConfig, *written: Mapping[str, str]) -> set[str]:
    """A module's names in transformers 5 and before, with other names for some of the parts."""
    versions = [module_prefixes(config), published_prefixes(config)]
    return {with_prefix(module, prefixes | dict(*written)) for prefixes in versions}


def _matches(pattern: re.Pattern[str], module: str, config: VLMConfig) -> bool:
    """Looks a module of canonical name up as PEFT does, from some dot to the end."""
    return any(pattern.match(name) for name in _names_of(module, config))


def value_by_pattern(
    patterns: Patterns, modules: list[str], default: Any, config: VLMConfig, where: str
) -> Any:
    """The value of a stack's modules, canonical names: of the first pattern that matches."""
    found = {
        next((value for pattern, value in patterns if _matches(pattern, module, config)), default)
        for module in modules
    }
    if len(found) > 1:
        raise UserError(
            f"{where}: {min(_names_of(modules[0], config))} has another value of a pattern than "
            "the same map of other layers; layers are stacked here and have one rank and alpha"
        )
    return found.pop()


_EXCLUDED, _ALL = "exclude_modules", "all-linear"
_LAYER = re.compile(r"(.*?)\.(\d+)\.")


def check_targets(
    stated: Mapping[str, Any],
    adapted: Collection[str],
    config: VLMConfig,
    written: Mapping[str, str],
    where: str,
) -> None:
    """Compares the modules that have weights with those that the settings name.

    Args:
        adapted: canonical names of those with weights.
        written: names of the model's parts in the weights (`found_prefixes`); of the others those
            of older and newer versions count.

    Raises:
        UserError: weights that PEFT would pass over, or none where it would begin anew; a setting
            that PEFT does not write.
    """
    maps = _linear_maps(config)
    sure = {module: _names_of(module, config, written) for module in maps}
    known = {module: sure[module] | _names_of(module, config) for module in maps}
    chosen = _chosen(stated, sorted(set().union(*known.values())), where)
    for module in sorted(known.keys() & adapted):
        if not known[module] & chosen:
            raise UserError(
                f"{where}: target_modules, {_EXCLUDED} and layers_to_transform give no adapter to "
                f"{min(sure[module])}, and the weights beside it have one; the two files do not "
                "belong together"
            )
    missing = sorted(min(sure[m]) for m in maps if m not in adapted and sure[m] <= chosen)
    if missing:
        raise UserError(
            f"{where}: names {len(adapted) + len(missing):,} modules, and the weights beside it "
            f"lack {len(missing):,} of them ({shortened(missing)}); save the adapter again, or "
            "name only the modules that were trained"
        )


def _chosen(stated: Mapping[str, Any], names: list[str], where: str) -> set[str]:
    """The names that an adapter's settings choose, as PEFT's `check_target_module_exists` does."""
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

    def is_of_layers(name: str) -> bool:
        found = _LAYER.match(name)
        of_stack = found is not None and (not stacks or _ends_in(found[1], stacks))
        return found is not None and of_stack and int(found[2]) in numbers

    chosen = _matching(targets, names, f"{where}: target_modules")
    if numbers:
        chosen = {name for name in chosen if name in targets or is_of_layers(name)}
    saved = _names(stated, "modules_to_save", where)
    within = {n for n in chosen if any(f".{m}." in f".{n}." for m in saved)}
    return chosen - within - _matching(excluded, names, f"{where}: {_EXCLUDED}")


def _matching(setting: list[str] | str, names: list[str], where: str) -> set[str]:
    """The names that a setting means: by their ends, all linear maps, or a regular expression."""
    if not isinstance(setting, str):
        return {name for name in names if _ends_in(name, setting)}
    if setting.lower() == _ALL:
        return set(names)
    if _SIMPLE_TARGETS.fullmatch(setting):
        return {name for name in names if re.fullmatch(setting, name)}
    try:
        return full_matches(setting, names)
    except ForeignError as error:
        raise UserError(
            f"{where} is {shown(setting)}, a regular expression that cannot be used ({error}); "
            "name the modules in a list"
        ) from None


def _names(stated: Mapping[str, Any], key: str, where: str) -> list[str] | str:
    found = stated.get(key) or []
    is_list = isinstance(found, list) and all(isinstance(name, str) for name in found)
    if not isinstance(found, str) and not is_list:
        raise UserError(f"{where}: {key} is {shown_value(found)}, expected names of modules")
    return found


def _ends_in(name: str, endings: Iterable[str]) -> bool:
    return any(name == ending or name.endswith(f".{ending}") for ending in endings)
