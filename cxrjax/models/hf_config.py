"""Hugging Face's configurations: a closed world, completed by transformers' defaults.

A key that its family's tables do not list (`cxrjax/models/families/`) is refused, as is a value
that our models cannot honour: what we read means to us what it means to transformers 5. Sizes have
bounds, since the library makes lists as long as a file says.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cxrjax.errors import ForeignError, UserError
from cxrjax.files import read_json_object
from cxrjax.models.families import FAMILIES, Family
from cxrjax.models.families.family import complete, rules
from cxrjax.paths import to_path
from cxrjax.untrusted.closed_world import NO_MATTER, Rule, check_settings
from cxrjax.untrusted.foreign_files import MIB
from cxrjax.untrusted.names import shown_value

CONFIG_FILE = "config.json"
# The settings of images: a file of its own, or since transformers 5 a part of another.
_PREPROCESSOR, _PROCESSOR = "preprocessor_config.json", "processor_config.json"
MOST_CONFIG_BYTES = MIB  # they have some kB
# What makers of quantised copies put into config.json, or beside it.
_QUANTISED = ("quantization_config", "quantization", "compression_config")
_QUANTISED_FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")


def read_config(directory: str | Path) -> dict[str, Any]:
    """Reads `config.json`, with transformers' defaults filled in (published ones leave most out).

    Raises:
        UserError: it is not there, is damaged, of an architecture that we do not have, or has a
            key or a value that we do not have; so has the preprocessor's file beside it.
    """
    directory = to_path(directory)
    stated = read_json_object(directory / CONFIG_FILE, MOST_CONFIG_BYTES)
    for name in _QUANTISED_FILES:
        if (directory / name).is_file():
            raise _quantised(str(directory), name)
    found = complete_config(stated, str(directory / CONFIG_FILE))
    family = FAMILIES[found["model_type"]]
    images = rules(family.images)
    notes = ("processor_class", "image_seq_length", *family.processor)
    processor = {"image_processor": Rule((None,), keys=images), **dict.fromkeys(notes, NO_MATTER)}
    for name, allowed in ((_PREPROCESSOR, images), (_PROCESSOR, processor)):
        path = directory / name
        if path.is_file():
            settings = checked(read_json_object(path, MOST_CONFIG_BYTES), allowed, str(path))
            of_images = settings.get("image_processor") if name == _PROCESSOR else settings
            if family.needs_colours and of_images:
                _check_colours(of_images, str(path))
    return found


def _check_colours(settings: Mapping[str, Any], where: str) -> None:
    for key in ("image_mean", "image_std"):
        if key not in settings:
            raise UserError(
                f"{where}: {key} is missing, and the class would use CLIP's, which the model was "
                "not trained with; use the file that belongs to the weights"
            )


def family_of(kind: Any, where: str) -> Family:
    """Returns the family of a `model_type`.

    Raises:
        UserError: there is none.
    """
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise UserError(
            f"{where}: model_type is {shown_value(kind)}, expected one of {', '.join(FAMILIES)}"
        )
    return FAMILIES[kind]


def complete_config(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Validates a configuration and fills in transformers' defaults; ignored keys are left out.

    Raises:
        UserError: an architecture, a key or a value that we do not have.
    """
    kind = config.get("model_type")
    for family in FAMILIES.values():
        if family.original is not None and family.original.applies(config):
            raise UserError(
                f"{where}: model_type is {shown_value(kind)} in the layout of its makers' own "
                f"code; take the form for transformers, {family.original.remedy}"
            )
    family = family_of(kind, where)
    for part in (config, config.get("text_config"), config.get("vision_config")):
        for key in _QUANTISED:
            if isinstance(part, Mapping) and part.get(key):
                raise _quantised(where, key, part[key])
    stated = {key: value for key, value in config.items() if key != "model_type"}
    values = family.prepare(checked(stated, rules(family.settings), where), where)
    _check_rope(values.get("text_config") or values, where, family)
    return {"model_type": kind, **complete(family.settings, values)}


def _quantised(where: str, key: str, found: Any = None) -> UserError:
    """The error of weights that were stored in a few bits each."""
    method = found.get("quant_method") if isinstance(found, Mapping) else None
    by = f" by {shown_value(method)}" if isinstance(method, str) else ""
    return UserError(
        f"{where}: {key}: a copy quantised{by}, which is not read; take the model's unquantised "
        "weights, and set model.frozen_dtype=nf4 to hold them in 4 bits"
    )


def _check_rope(text: Mapping[str, Any], where: str, family: Family) -> None:
    """Refuses what one version of transformers reads of rotary positions and another passes over.

    Raises:
        UserError: two places for the same, or two kinds in one; of a family whose layers have two
            sorts of positions, a kind under the older key, or one that is of neither sort.
    """
    places = {key: text.get(key) or {} for key in ("rope_scaling", "rope_parameters")}
    if all(places.values()):
        raise UserError(
            f"{where}: rope_scaling and rope_parameters are both there, and the first would make "
            "the second count for nothing; remove one"
        )
    for key, place in places.items():
        sorts = {part: place.get(part) or {} for part in ("full_attention", "sliding_attention")}
        has_sorts = any(sorts.values())
        if has_sorts and set(place) - set(sorts):
            extra = ", ".join(sorted(set(place) - set(sorts)))
            raise UserError(f"{where}: {key} has {extra} beside its sorts of layers; remove them")
        if family.has_two_ropes and key == "rope_parameters" and place and not has_sorts:
            raise UserError(
                f"{where}: rope_parameters of {family.named} are full_attention's and "
                "sliding_attention's; what stands beside them counts for nothing"
            )
        for part in (place, *sorts.values()):
            older = part.get("type")
            older = None if older == "mrope" else older  # a name for what is default
            if older is not None and (
                family.has_two_ropes or older != part.get("rope_type", older)
            ):
                raise UserError(
                    f"{where}: {key} has type {older!r}, which not every version of transformers "
                    "reads here; name it rope_type"
                )


def checked(found: Mapping[str, Any], rules: Mapping[str, Rule], where: str) -> dict[str, Any]:
    """Validates settings, with the file in its message.

    Raises:
        UserError: a key or a value that we do not have.
    """
    try:
        return check_settings(found, rules)
    except ForeignError as error:
        raise UserError(f"{where}: {error}") from None
