"""Answers as JSON of a client's schema: which schemas can be filled, and with what.

A property is filled by its name and type: boxes (arrays of four numbers, or objects of corners,
label and score), labels, scores, whether there is a box (a boolean, or yes and no), words. Where
the schema wants at least one box, or yes, no or a letter alone, the answer's grammar allows no
other (cxrjax/decoding/answer_forms.py). Numbers are fractions of the image, xyxy, times the
schema's `maximum`; integers without one are pixels.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from cxrjax.apps.serving.refusals import RefusedError, invalid
from cxrjax.decoding.answer_forms import OPTIONS

_CORNERS = {
    name: place
    for place, names in enumerate(
        ("x0 x_min xmin left", "y0 y_min ymin top", "x1 x_max xmax right", "y1 y_max ymax bottom")
    )
    for name in names.split()
}
_BOX = ("box", "bbox", "box_2d", "bbox_2d", "bounding_box")
_LABEL = ("label", "class", "name", "finding")
_SCORE = ("score", "confidence", "probability")
_WORDS = ("text", "answer", "content", "explanation", "reason")
_SCORES = ("scores", "box_scores", "confidences")
_DEEPEST = 8
_YES_OR_NO = re.compile(r"\W*(yes|no)\b")


@dataclasses.dataclass(frozen=True)
class _Found:
    """One box of an answer; `box` is fractions, `size` (height, width) of the image."""

    box: list[float]
    label: str
    score: float
    size: tuple[int, int]


class AnswerSchema:
    """A schema that answers can be written in.

    Attributes:
        form: of `FORMS`, which the answer is held to; None: the model's own.

    Raises:
        RefusedError: it has a property that nothing fills.
    """

    def __init__(self, schema: Any) -> None:
        self._defs = schema.get("$defs", {}) if isinstance(schema, Mapping) else {}
        self._schema = self._of(schema, "schema")
        if self._schema.get("type") != "object" or not self._schema.get("properties"):
            raise _refused("schema", "expected an object with properties")
        self._most = self._least = 0
        self.form: str | None = None
        stand_in = {"text": "", "boxes": [[0.0, 0.0, 1.0, 1.0]]}
        self._choice = ""
        self.fill(stand_in, (1, 1))  # says what cannot be filled
        if self._choice == "option" and self._most:
            raise _refused("letters", "a letter and boxes are answers to two questions; ask twice")
        if self._least:
            self.form = "located"
        elif self._choice and not self._most:
            self.form = self._choice

    def fill(self, line: Mapping[str, Any], size: tuple[int, int]) -> dict[str, Any]:
        """The object for a line of `predict` about an image of (height, width)."""
        boxes = line["boxes"]
        labels, scores = line.get("labels") or [], line.get("box_scores") or []
        found = [
            _Found(
                box,
                (labels[place] if place < len(labels) else None) or "",
                scores[place] if place < len(scores) else 0.0,
                size,
            )
            for place, box in enumerate(boxes)
        ]
        return {
            name: self._value(name, self._of(told, name), line["text"], found)
            for name, told in self._schema["properties"].items()
        }

    def _of(self, told: Any, where: str, depth: int = 0) -> Mapping[str, Any]:
        """A part of the schema behind references and beside null."""
        if not isinstance(told, Mapping) or depth > _DEEPEST:
            raise _refused(where, "expected a schema")
        if "$ref" in told:
            name = str(told["$ref"]).removeprefix("#/$defs/")
            return self._of(self._defs.get(name), where, depth + 1)
        kinds = told.get("anyOf")
        if isinstance(kinds, list):
            some = [one for one in kinds if one != {"type": "null"}]
            return self._of(some[0] if len(some) == 1 else None, where, depth + 1)
        return told

    def _value(self, name: str, told: Mapping[str, Any], text: str, found: list[_Found]) -> Any:
        match told.get("type"):
            case "boolean":
                return bool(found)
            case "string":
                return self._words(name, told, text, found)
            case "array":
                items = told.get("items") or (told.get("prefixItems") or [None])[0]
                return self._list(name, told, self._of(items, name), found)
        raise _refused(name, f"nothing of an answer is a {str(told.get('type'))[:40]}")

    def _words(self, name: str, told: Mapping[str, Any], text: str, found: list[_Found]) -> str:
        if "enum" not in told:
            if name in _WORDS:
                return text
            if name in _LABEL:
                return found[0].label if found else ""
            raise _refused(name, f"words are in {', '.join((*_WORDS, *_LABEL))}")
        known = [str(one) for one in told["enum"]]
        plain = {one.lower() for one in known}
        if plain == {"yes", "no"}:
            self._choice = "yes_no"
            first = _YES_OR_NO.match(text.lower())
            said = first[1] if first else ("yes" if found else "no")
        elif plain and plain <= {*OPTIONS.lower()}:
            self._choice, said = "option", text.strip().lower()
        else:
            raise _refused(name, "the values of an enumeration are yes and no, or letters A to D")
        return next((one for one in known if one.lower() == said), known[0])

    def _list(
        self, name: str, told: Mapping[str, Any], items: Mapping[str, Any], found: list[_Found]
    ) -> list[Any]:
        most = told.get("maxItems")
        best = sorted(found, key=lambda one: -one.score)[:most] if most is not None else found
        kind = items.get("type")
        if name in _SCORES and kind == "number":
            return [one.score for one in best]
        if name == "labels" and kind == "string":
            return [one.label for one in best]
        if kind not in ("array", "object"):
            raise _refused(name, f"a list of {kind} is not of an answer; expected boxes")
        self._most, self._least = 1, max(self._least, told.get("minItems") or 0)
        return [self._box(name, items, one) for one in best]

    def _box(self, name: str, told: Mapping[str, Any], one: _Found) -> Any:
        if told.get("type") == "array":
            number = self._of(told.get("items") or (told.get("prefixItems") or [None])[0], name)
            return [_number(number, one, place) for place in range(4)]
        written: dict[str, Any] = {}
        for key, part in (told.get("properties") or {}).items():
            part = self._of(part, key)
            if key in _CORNERS:
                written[key] = _number(part, one, _CORNERS[key])
            elif key in _BOX and part.get("type") in ("array", "object"):
                written[key] = self._box(key, part, one)
            elif key in _LABEL:
                written[key] = one.label
            elif key in _SCORE:
                written[key] = one.score
            else:
                raise _refused(key, f"a box has {', '.join((*_CORNERS, *_BOX, *_LABEL, *_SCORE))}")
        if not written:
            raise _refused(name, "expected the properties of a box")
        return written


def _number(told: Mapping[str, Any], one: _Found, place: int) -> float:
    kind, most = told.get("type"), told.get("maximum")
    if kind not in ("number", "integer") or not isinstance(most, int | float | None):
        raise _refused("boxes", "coordinates are numbers or integers")
    if kind == "integer":
        return round(one.box[place] * (most or one.size[1 - place % 2]))
    return one.box[place] * (most or 1)


def _refused(name: str, message: str) -> RefusedError:
    text = f"response_format: {name[:60]}: {message}"
    return invalid("response_format", text, "unsupported_schema")
