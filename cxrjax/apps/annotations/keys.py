"""Shapes by the names of their keys: boxes, outlines, ellipses and masks, of columns or of JSON."""

import base64
import binascii
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cxrjax.apps.annotations.annotation import WORDS, Shape, bounds, numbers_of, plain
from cxrjax.apps.annotations.coordinates import Form, Units
from cxrjax.errors import ForeignError
from cxrjax.records_io.quality import Unusable
from cxrjax.untrusted.archives import inflate
from cxrjax.untrusted.json_text import parse_json
from cxrjax.untrusted.names import shown, shown_value

_NO_AREA = frozenset(WORDS["shapes"]["no_area"])
_WITHIN: list[str] = WORDS["shapes"]["within"]
_LONGEST_RUNS = 2_000_000  # characters of a mask in runs
_MOST_BITMAP = 16_000_000  # bytes
_MODES: dict[str, Form] = {"0": "xyxy", "1": "xywh"}  # of Detectron2
_PNG = 24  # bytes up to the sides of a PNG


def four_of(names: Sequence[str]) -> tuple[tuple[int, ...], Form] | None:
    """Places of a box's four numbers among names (as `plain` has them), and their form."""
    for four, form in WORDS["forms"]["fours"]:
        groups = [WORDS["numbers"][number] for number in four.split()]
        found = [next((names.index(n) for n in group if n in names), None) for group in groups]
        places = tuple(place for place in found if place is not None)
        if len(places) == 4:
            return places, form
    return None


def units_in(words: str) -> Units | None:
    """The units that words state, such as names of columns; None if they state none."""
    return next((units for word, units in WORDS["units"].items() if word in words), None)


def shape_of(
    value: Any,
    form: Form | None = None,
    units: Units | None = None,
    kind: Any = None,
    bare: bool = False,
) -> Shape | None:
    """The shape that a value of JSON holds; None of an empty one.

    Args:
        form: of four numbers without names, or named x, y, width and height.
        units: of all numbers; None: outlines are in pixels, and of boxes it is detected.
        kind: of the shape, as the tool calls it; None: under "name".
        bare: an object without a shape is empty.

    Raises:
        Unusable: it is no box, outline, ellipse or mask.
    """
    if isinstance(value, list):
        is_flat = not any(isinstance(one, list | dict) for one in value)
        if is_flat and len(value) == 4:
            return Shape(numbers_of(value, 4), form, units, exact=units is not None)
        if is_flat and value and (len(value) < 6 or len(value) % 2):  # such as of a turned box
            told = f"{shown_value(value)}; expected four numbers, or three points and more"
            raise Unusable("bad_box", told)
        return _outline(_points(value), units) if value else None
    if not isinstance(value, dict):
        raise Unusable("bad_box", f"{shown_value(value)}; expected a box")
    kind = value.get("name") if kind is None else kind
    form = _MODES.get(str(value.get("bbox_mode")), form)
    if isinstance(kind, str) and kind in _NO_AREA:
        raise Unusable("missing_box", f"a {shown(kind)[1:-1]} has no area")
    if "all_points_x" in value:
        xs, ys = (numbers_of(value.get(f"all_points_{axis}") or []) for axis in "xy")
        return _outline(zip(xs, ys, strict=False), units)
    if "counts" in value:
        return _runs(value)
    if {"data", "origin"} <= value.keys():
        return _bitmap(value)
    if ellipse := _ellipse(value, units, kind):
        return ellipse
    names = {plain(key): key for key in value if isinstance(key, str)}
    if found := four_of(list(names)):
        keys = list(names.values())
        numbers = numbers_of([value[keys[place]] for place in found[0]], 4)
        form = form if found[1] == "xywh" and form == "cxcywh" else found[1]
        units = units or units_in(str(value.get("unit") or value.get("units") or "").lower())
        return Shape(numbers, form, units, exact=units is not None)
    for key in _WITHIN:
        if isinstance(inside := value.get(names.get(key, "")), list | dict) and inside:
            return shape_of(inside, form, units, "", bare)
    if value and all(isinstance(one, dict) and {"x", "y"} <= one.keys() for one in value.values()):
        return _outline(_points(list(value.values())), units)  # points by their numbers
    if not value or bare:
        return None
    raise Unusable("bad_box", f"{shown_value(value)}; expected the four numbers of a box")


def shape_of_via3(xy: Any) -> dict[str, Any]:
    """VIA 3's shape [kind, numbers...] as VIA 2 has it."""
    kind, *rest = xy if isinstance(xy, list) and xy else (None,)
    names = ("point", "rect", "circle", "ellipse", "line", "polyline", "polygon")
    name = names[kind - 1] if isinstance(kind, int) and 1 <= kind <= 7 else "nothing"
    keys = {"rect": "x y width height", "circle": "cx cy r", "ellipse": "cx cy rx ry"}.get(name)
    if keys:
        return {"name": name, **dict(zip(keys.split(), rest, strict=False))}
    return {"name": name, "all_points_x": rest[::2], "all_points_y": rest[1::2]}


def _outline(points: Iterator[tuple[float, float]], units: Units | None) -> Shape:
    return Shape(bounds(points), "xyxy", units or "pixels")


def _points(value: Any) -> Iterator[tuple[float, float]]:
    """Yields the points of polygons: pairs, objects with x and y, or numbers in a row."""
    if isinstance(value, dict):
        yield tuple(numbers_of([value.get("x"), value.get("y")], 2))  # type: ignore[misc]
    elif isinstance(value, list) and any(isinstance(one, list | dict) for one in value):
        yield from itertools.chain.from_iterable(map(_points, value))
    else:
        numbers = numbers_of(value if isinstance(value, list) else [])
        yield from zip(numbers[::2], numbers[1::2], strict=False)


def _ellipse(value: dict[str, Any], units: Units | None, kind: Any) -> Shape | None:
    """Circles and ellipses of VIA, CVAT, V7 and LabelMe (a point of its rim), and turned boxes."""
    turned = "angle" in value and {"cx", "cy", "w", "h"} <= value.keys()
    centre, radius, angle = map(value.get, ("center", "radius", "angle"))
    if isinstance(centre, dict) and isinstance(radius, dict):
        sides = [*map(centre.get, "xy"), *map(radius.get, "xy")]
    elif {"cx", "cy"} <= value.keys() and {"r", "rx"} & value.keys():
        sides = [value["cx"], value["cy"], *(value.get(r, value.get("r")) for r in ("rx", "ry"))]
        angle = value.get("theta")
    elif {"radiusX", "radiusY"} <= value.keys():
        sides, angle = [value.get(key) for key in ("x", "y", "radiusX", "radiusY")], 0
    elif turned:
        sides = [value["cx"], value["cy"], *(numbers_of([value[s]], 1)[0] / 2 for s in "wh")]
    elif kind == "circle":
        (x, y), rim = [*_points(value.get("points")), (math.nan, math.nan)][:2]
        sides = [x, y, math.dist((x, y), rim), math.dist((x, y), rim)]
    else:
        return None
    x, y, across, down = numbers_of(sides, 4)
    box, degrees = (x, y, 2 * across, 2 * down), math.degrees(numbers_of([angle or 0], 1)[0])
    return Shape(box, "cxcywh", units or "pixels", degrees=degrees, ellipse=not turned)


def _bitmap(value: dict[str, Any]) -> Shape:
    """Supervisely's: a packed PNG that is as large as what it marks, and its upper left corner."""
    x, y = numbers_of(value["origin"] if isinstance(value["origin"], list) else [], 2)
    try:
        start = inflate(base64.b64decode(str(value["data"])), _MOST_BITMAP)
    except (binascii.Error, ValueError, ForeignError):
        start = b""
    if len(start) < _PNG or start[:4] != b"\x89PNG":
        raise Unusable("bad_box", "a bitmap that is no packed PNG")
    wide, high = (int.from_bytes(start[at : at + 4]) for at in (16, 20))
    return Shape((x, y, x + wide, y + high))


def _runs(value: dict[str, Any]) -> Shape | None:
    """The box of COCO's mask in runs, which go down its columns; None of an empty one."""
    high, wide = numbers_of(value["size"] if isinstance(value.get("size"), list) else [], 2)
    counts = value["counts"]
    if isinstance(counts, str):
        counts = _unpacked(counts[: _LONGEST_RUNS + 1])
    runs = np.array(numbers_of(counts if isinstance(counts, list) else [], None) or [0])
    stops = np.cumsum(runs)
    if (runs < 0).any() or stops[-1] > high * wide or high < 1:
        told = f"a mask in runs of {stops[-1]:,.0f} pixels, of {high:g} x {wide:g}"
        raise Unusable("bad_box", told)
    marked = (np.arange(len(runs)) % 2 == 1) & (runs > 0)
    if not marked.any():
        return None
    starts, last = (stops - runs)[marked], stops[marked] - 1
    top, bottom = (starts % high).min(), (last % high).max() + 1
    if (starts // high < last // high).any():
        top, bottom = 0.0, high
    return Shape((float(starts[0] // high), float(top), float(last[-1] // high) + 1, float(bottom)))


def _unpacked(text: str) -> list[int]:
    """Runs out of COCO's letters: 5 bits each, from the third run on less the one before last."""
    runs: list[int] = []
    value = shift = 0
    for sign in text.encode("ascii", "replace"):
        bits = sign - 48
        if not 0 <= bits < 64 or shift > 50 or len(text) > _LONGEST_RUNS:
            raise Unusable("bad_box", f"{shown(text)} is no mask in runs")
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    return runs


def value_of_cell(text: str) -> Any:
    """The list or object in a table's cell, as JSON or as Python prints it, else Unusable."""
    try:
        return parse_json(text)
    except ForeignError:
        pass
    try:
        return parse_json(_as_json(text))
    except ForeignError:
        raise Unusable("bad_box", f"{shown(text)} is neither JSON nor a list of Python") from None


def listed(value: Any) -> list[Any]:
    """The boxes of a cell: a list, one, or (Hugging Face) an object with a list a key."""
    of = list(value.values()) if isinstance(value, dict) else []
    is_table = len(of) > 1 and all(isinstance(one, list) and len(one) == len(of[0]) for one in of)
    if is_table and (not of[0] or any(isinstance(one[0], list) for one in of)):
        return [dict(zip(value, row, strict=True)) for row in zip(*of, strict=True)]
    return value if isinstance(value, list) else [value]


def cell_of(text: str) -> Any:
    """The list or object of a cell that starts like one, else its text."""
    return value_of_cell(text) if text.startswith(("[", "{")) else text


def _as_json(text: str) -> str:
    """Text with Python's strings and constants as JSON has them."""
    parts = text.split("'")
    if len(parts) % 2 == 0:
        return text
    for place, part in enumerate(parts):
        for python, other in (("None", "null"), ("True", "true"), ("False", "false")):
            part = part if place % 2 else part.replace(python, other)
        parts[place] = json.dumps(part) if place % 2 else part
    return "".join(parts).replace("(", "[").replace(")", "]")
