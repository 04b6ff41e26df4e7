"""Boxes by the names of their numbers: columns of a table, keys of an object, VIA's shapes."""

import json
from collections.abc import Sequence
from typing import Any

from cxrjax.apps.annotations.annotation import WORDS, Shape, bounds, numbers_of, plain
from cxrjax.apps.annotations.coordinates import Form
from cxrjax.errors import ForeignError
from cxrjax.records_io.quality import Unusable
from cxrjax.untrusted.json_text import parse_json
from cxrjax.untrusted.names import shown, shown_value

# Shapes of VIA without an area.
_NO_AREA = ("point", "polyline")


def four_of(names: Sequence[str]) -> tuple[tuple[int, ...], Form] | None:
    """Places of a box's four numbers among names (as `plain` has them), and their form."""
    for four, form in WORDS["forms"]["fours"]:
        groups = [WORDS["numbers"][number] for number in four.split()]
        found = [next((names.index(n) for n in group if n in names), None) for group in groups]
        places = tuple(place for place in found if place is not None)
        if len(places) == 4:
            return places, form
    return None


def shape_of(value: Any, form: Form | None = None) -> Shape | None:
    """The shape that a value of JSON holds; None of an empty one.

    Args:
        form: of four numbers without names.

    Raises:
        Unusable: it is no box, outline, circle or ellipse.
    """
    if isinstance(value, list):
        return Shape(numbers_of(value, 4), form, None, exact=False) if value else None
    if not isinstance(value, dict):
        raise Unusable("bad_box", f"{shown_value(value)}; expected a box")
    if not value:
        return None
    kind = value.get("name")
    if "all_points_x" in value:
        if kind in _NO_AREA:
            raise Unusable("missing_box", f"a {kind} has no area")
        xs, ys = (numbers_of(value.get(f"all_points_{axis}") or []) for axis in "xy")
        return Shape(bounds(zip(xs, ys, strict=False)))
    if kind in _NO_AREA:
        raise Unusable("missing_box", f"a {kind} has no area")
    if {"cx", "cy"} <= value.keys() and {"r", "rx", "ry"} & value.keys():
        across, down = (value.get(radius, value.get("r")) for radius in ("rx", "ry"))
        x, y, across, down = numbers_of([value["cx"], value["cy"], across, down], 4)
        degrees = numbers_of([value.get("theta") or 0], 1)[0] * 57.29577951308232
        box = (x, y, 2 * across, 2 * down)
        return Shape(box, "cxcywh", degrees=degrees, ellipse=True)
    names = {plain(key): key for key in value if isinstance(key, str)}
    found = four_of(list(names))
    if found is None:
        raise Unusable("bad_box", f"{shown_value(value)}; expected the four numbers of a box")
    keys = list(names.values())
    numbers = numbers_of([value[keys[place]] for place in found[0]], 4)
    return Shape(numbers, found[1], None, exact=False)


def value_of_cell(text: str) -> Any:
    """The list or object in a table's cell, as JSON or as Python prints it.

    Raises:
        Unusable: it is neither.
    """
    try:
        return parse_json(text)
    except ForeignError:
        pass
    try:
        return parse_json(_as_json(text))
    except ForeignError:
        raise Unusable("bad_box", f"{shown(text)} is neither JSON nor a list of Python") from None


def _as_json(text: str) -> str:
    """Text with Python's strings and constants as JSON has them."""
    parts = text.split("'")
    if len(parts) % 2 == 0:
        return text
    return (
        "".join(
            json.dumps(part)
            if place % 2
            else part.replace("None", "null").replace("True", "true").replace("False", "false")
            for place, part in enumerate(parts)
        )
        .replace("(", "[")
        .replace(")", "]")
    )
