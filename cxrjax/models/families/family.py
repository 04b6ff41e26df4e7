"""A family of published models: what two files of this folder state of it, code and tables.

`settings` lists every key of its `config.json`: allowed values, transformers' default, and the
field of ours that it becomes. A key or value that is not in a table is refused by name.
"""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from cxrjax.errors import UserError
from cxrjax.family_tables import family_tables
from cxrjax.models.presets import CLIP_MEAN, CLIP_STD, IMAGENET_MEAN, IMAGENET_STD, VLMConfig
from cxrjax.untrusted.closed_world import CHECKED_LATER, NO_MATTER, Rule

_REQUIRED = object()
MOST_LAYERS = 1_000


class Setting(NamedTuple):
    """One key of a settings file."""

    rule: Rule  # its allowed values
    # Its value where the file leaves it out; of a part, also where it is null.
    default: Any = _REQUIRED
    ours: str | None = None  # the field of our sizes that it becomes
    # Of a part, its keys by its `model_type`; the first is the usual one.
    tables: Mapping[str, "Table"] | None = None


Table = dict[str, Setting]
# Of a key that changes nothing that is computed here; of one that the family's own code checks.
NOTE, _LATER = Setting(NO_MATTER), Setting(CHECKED_LATER)


def key(
    *values: Any,
    most: int | float | None = None,
    items: tuple[Any, ...] | None = None,
    default: Any = _REQUIRED,
    ours: str | None = None,
) -> Setting:
    """Returns a key of these values, which `Rule` describes."""
    return Setting(Rule(values, most, None, items), default, ours)


def part(table: Table, *, null: bool = True, default: Any = _REQUIRED, **others: Table) -> Setting:
    """Returns a key of an object.

    Args:
        table: its keys.
        null: whether null is allowed in its place.
        others: by `model_type`, the same keys with other defaults.
    """
    return Setting(
        Rule((None,) if null else (), keys=rules(table)), default, None, {"": table} | others
    )


def table(name: str) -> Table:
    """Returns the keys that `[settings.NAME]` of a family states, in the form of parts.toml."""
    stated = dict(family_tables("settings")[name])
    found: Table = {}
    for used in stated.pop("use", ()):
        found |= table(used)
    for gone in stated.pop("without", ()):
        del found[gone]
    found |= dict.fromkeys(stated.pop("notes", ()), NOTE)
    found |= dict.fromkeys(stated.pop("off", ()), key(False, None))
    for each, default in stated.pop("defaults", {}).items():
        found[each] = found[each]._replace(default=default)
    return found | {each: _setting(entry) for each, entry in stated.items()}


def _setting(entry: Any) -> Setting:
    if not isinstance(entry, dict):
        return key(*map(_value, entry if isinstance(entry, list) else [entry]))
    stated = {name: _value(value) for name, value in entry.items()}
    if "later" in stated:
        return _LATER
    if "part" in stated:
        kinds = stated.keys() - {"part", "null", "default"}
        stated |= {kind: table(stated[kind]) for kind in kinds}
        return part(table(stated.pop("part")), **stated)
    if "between" in stated:
        first, last = stated.pop("between")
        stated["items"] = range(first, last + 1)
    if "items" in stated:
        stated["items"] = tuple(stated["items"])
    return key(*map(_value, stated.pop("values", ())), **stated)


def _value(stated: Any) -> Any:
    return None if stated == "null" else stated  # which TOML has not


def rules(table: Table) -> dict[str, Rule]:
    """Returns the allowed values of each key."""
    return {name: key.rule for name, key in table.items()}


def complete(table: Table, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings with the defaults of the table where they leave keys out."""
    done = dict(stated)
    for name, entry in table.items():
        lacks = name not in done or (entry.tables is not None and done[name] is None)
        if lacks and entry.default is not _REQUIRED:
            done[name] = copy.deepcopy(entry.default)
        if entry.tables is not None and isinstance(done.get(name), Mapping):
            kind = str(done[name].get("model_type"))
            done[name] = complete(entry.tables.get(kind, entry.tables[""]), done[name])
    return done


def ours(table: Table, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of our sizes that complete settings state."""
    return {entry.ours: values[name] for name, entry in table.items() if entry.ours is not None}


# `frames` are patches of several frames; `first` have one more axis in front, of length 1, and a
# vector two.
Transform = Literal["same", "transposed", "patches", "frames", "first"]


class Tensors(NamedTuple):
    """Tensors of a checkpoint that have one name each way."""

    # "same", "first": an array by itself; "scale": a norm's weight; "norm": weight and bias;
    # "linear", "patches", "frames": a map's weight; "+bias" behind it, and a bias.
    kind: str
    path: str  # of ours, up to `parts`; layers are stacked
    name: str  # canonical name of theirs, up to `parts`; `{layer}` stands for the layer's number
    parts: str  # "ours=theirs", or one name of both; apart by spaces
    when: str | None = None  # the field of the tower's sizes without which they are not there

    def rows(self) -> list[tuple[str, str, Transform]]:
        """Returns (path, name, transform) of each tensor."""
        kind, _, bias = self.kind.partition("+")
        found: list[tuple[str, str, Transform]] = []
        for each in self.parts.split():
            mine, _, theirs = each.partition("=")
            path, name = self.path + mine, self.name + (theirs or mine)
            if kind in ("same", "first"):
                found.append((path, name, kind))  # type: ignore[arg-type]
                continue
            is_norm = kind in ("scale", "norm")
            transform = "same" if is_norm else "transposed" if kind == "linear" else kind
            leaf = "scale" if is_norm else "kernel"
            found.append((f"{path}/{leaf}", f"{name}.weight", transform))  # type: ignore[arg-type]
            if bias or kind == "norm":
                found.append((f"{path}/bias", f"{name}.bias", "same"))
        return found


class Original(NamedTuple):
    """The layout of the makers' own code, which is not read."""

    kinds: tuple[str, ...]  # its `model_type`s
    remedy: str  # where the form for transformers is
    keys: tuple[str, ...] = ()  # of which its `config.json` has one

    def applies(self, config: Mapping[str, Any]) -> bool:
        """Returns whether a configuration is of this layout."""
        return config.get("model_type") in self.kinds or any(key in config for key in self.keys)


@dataclasses.dataclass(frozen=True)
class Family:
    """One `model_type` of transformers."""

    kind: str  # the `model_type`
    named: str  # its name for people
    settings: Table  # of `config.json`, but for `model_type`
    # From complete settings, and the file's name for messages, to ours.
    sizes: Callable[[Mapping[str, Any], str], VLMConfig]
    # Names of the tables of tensors of its tower and its projector (`[tensors]` in the data files);
    # all decoders have the same names.
    tensors: tuple[str, ...]
    special: tuple[tuple[str, str], ...] = ()  # patterns of prefixes that go before, and their part
    images: Table = dataclasses.field(default_factory=dict)  # settings of its image processor
    processor: tuple[str, ...] = ()  # keys of the processor's file that change nothing here
    # The class of image processors has other colours by default than the model.
    needs_colours: bool = False
    # The chat form of a checkpoint, by its complete settings (`chat.CHAT_FORMS`).
    form: Callable[[Mapping[str, Any]], str | None] = lambda values: None
    resize: str | None = None  # its rule in `resize_rules.RESIZE_RULES`
    # Checks and rearranges validated settings before their defaults are filled in.
    prepare: Callable[[dict[str, Any], str], dict[str, Any]] = lambda values, where: values
    has_two_ropes: bool = False  # rotary positions are stated by kind of layer
    # Tensors of a checkpoint that are left out on purpose: a pattern by what they are.
    left_out: Callable[[VLMConfig], Mapping[str, str]] = lambda config: {}
    # Tower and projector of base directories that were written before `sizes` named their family.
    before: tuple[str | None, str] | None = None
    # What its towers have alike, which older base directories do not state.
    tower: dict[str, Any] = dataclasses.field(default_factory=dict)
    # Of `config.json`, parts of which nothing is left in an export.
    left_out_keys: tuple[str, ...] = ()
    # Where the settings do not say so, the embedding is tied if the weights have no output layer:
    # versions of transformers take it one way or the other.
    tied_without_head: bool = False
    # How models in the layout of its makers' own code are recognised.
    original: Original | None = None


# Means and deviations of channels, by the names of `VisionConfig.colours`; "raw": as they are.
_COLOURS = {
    "half": ((0.5,) * 3, (0.5,) * 3),
    "clip": (CLIP_MEAN, CLIP_STD),
    "imagenet": (IMAGENET_MEAN, IMAGENET_STD),
    "raw": ((0, 0, 0), (1, 1, 1)),
}


def tower_of(name: str) -> dict[str, Any]:
    """Returns what a family's towers have alike (`[tower.NAME]`)."""
    return dict(family_tables("tower")[name])


def make_family(kind: str, sizes: Callable[..., VLMConfig], **code: Any) -> Family:
    """Returns the family that `[family.KIND]` states, with what must be computed as code."""
    stated: dict[str, Any] = dict(family_tables("family")[kind])
    images, colours = stated.pop("images", ("images", "half"))
    mean, std = _COLOURS[colours]
    of_images = {**table(images), "image_mean": key(list(mean)), "image_std": key(list(std))}
    if "tower" in stated:
        stated["tower"] = tower_of(stated["tower"])
    if "before" in stated:
        stated["before"] = tuple(map(_value, stated["before"]))
    if "original" in stated:
        original = stated["original"]
        lists = {each: tuple(original.get(each, ())) for each in ("kinds", "keys")}
        stated["original"] = Original(remedy=original["remedy"], **lists)
    if "form" in stated:
        form = stated["form"]
        stated["form"] = lambda values: form
    for name in ("tensors", "processor", "left_out_keys"):
        stated[name] = tuple(stated.get(name, ()))
    stated["special"] = tuple(map(tuple, stated.get("special", ())))
    settings = code.pop("settings", None) or table(kind)
    return Family(kind=kind, sizes=sizes, settings=settings, images=of_images, **stated | code)


def divides(divisor: int, number: int, what: str) -> None:
    """Raises ValueError where a size does not divide another."""
    if number % divisor:
        raise ValueError(f"{what}: {divisor} does not divide {number}")


def expect(where: str, name: str, found: Any, wanted: Any) -> None:
    """Raises UserError where a setting is not the one that is supported."""
    if found != wanted:
        raise UserError(f"{where}: {name} is {found!r}; only {wanted!r} is supported")


def same_tie(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Refuses settings without a part, or with two answers to whether the embedding is tied."""
    for name in ("text_config", "vision_config"):
        if not values.get(name):
            raise UserError(f"{where}: {name} is missing; use the config.json of the weights")
    values = values | {"text_config": dict(values["text_config"])}
    inner = values["text_config"].pop("tie_word_embeddings", None)
    tied = bool(values.get("tie_word_embeddings"))
    if inner is not None and inner != tied:
        raise UserError(
            f"{where}: tie_word_embeddings is {tied}, and text_config has {inner}; remove the one "
            "that is wrong"
        )
    return values


def rope(text: Mapping[str, Any], theta: float) -> dict[str, Any]:
    """Returns the settings of rotary positions, under whichever key they are.

    Args:
        theta: transformers' default.
    """
    found = dict(text.get("rope_scaling") or text.get("rope_parameters") or {})
    kind = found.get("rope_type") or found.get("type") or "default"
    found["rope_type"] = "default" if kind == "mrope" else kind
    stated = found.get("rope_theta")
    found["rope_theta"] = float(text.get("rope_theta", theta) if stated is None else stated)
    return found


def rope_scale(rope: Mapping[str, Any], where: str) -> float:
    """Returns what positions are divided by.

    Raises:
        UserError: positions of another type than plain and linear ones.
    """
    if rope["rope_type"] not in ("default", "linear"):
        raise UserError(f"{where}: rope_type is {rope['rope_type']!r}, expected default or linear")
    return float(rope["factor"]) if rope["rope_type"] == "linear" else 1.0


def global_every(layer_types: list[str], where: str) -> int:
    """Returns the period of global layers.

    Raises:
        UserError: they do not come in even steps.
    """
    is_global = [kind == "full_attention" for kind in layer_types]
    every = is_global.index(True) + 1 if True in is_global else len(layer_types) + 1
    if is_global != [(layer + 1) % every == 0 for layer in range(len(layer_types))]:
        raise UserError(f"{where}: layer_types {layer_types}: expected every n-th layer to be full")
    return every


def kinds_of_layers(depth: int, every: int) -> list[str]:
    """Returns `layer_types` of which the last one of so many is global."""
    return ["sliding_attention" if (n + 1) % every else "full_attention" for n in range(depth)]
