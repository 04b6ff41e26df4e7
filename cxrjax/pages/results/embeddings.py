"""Images as a model sees them, side by side, coloured by the kind of error made on them.

The places are those of `python -m cxrjax.tools.image_features`, or of any other map of its form.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from cxrjax.border.names import shown_value
from cxrjax.errors import UserError
from cxrjax.pages.results.cases import Case
from cxrjax.pages.results.errors import KINDS, MISPLACED, MISSED, RIGHT, SPURIOUS, WRONG
from cxrjax.pages.results.plots import Plot, csv_text, plot_points

_LAYOUT = 'expected {"method", "explained", "images": {image_id: [x, y]}}'
# Gravest first: an image with several questions has the colour of its gravest error. Shapes as
# well as colours, which not everybody tells apart.
_LOOKS = {
    WRONG: ("#ff4d4f", "X"),
    MISSED: ("#b388ff", "v"),
    MISPLACED: ("#ff9f1c", "D"),
    SPURIOUS: ("#4cc9f0", "^"),
    RIGHT: ("#2ecc71", "o"),
}
_NOT_KNOWN = ("not known", ("#9aa4b1", "s"))


def embedding_plots(content: Any, cases: Sequence[Case], systems: Sequence[str]) -> list[Plot]:
    """A figure for each system, each of the images that both the page and the map have.

    Raises:
        UserError: the content is none of a map.
    """
    places = _places(content)
    shown = [case for case in cases if case.image_id in places]
    if not shown:
        return []
    method, explained = str(content.get("method") or "map"), content.get("explained") or []
    labels = [f"{method} {number}" for number in (1, 2)]
    if len(explained) == 2:
        labels = [
            f"{label}, {100 * share:.0f} % of the variance"
            for label, share in zip(labels, explained, strict=True)
        ]
    return [_plot(system, method, labels, places, shown) for system in systems]


def _plot(
    system: str,
    method: str,
    labels: Sequence[str],
    places: Mapping[str, tuple[float, float]],
    cases: Sequence[Case],
) -> Plot:
    looks = {KINDS[kind][0]: look for kind, look in _LOOKS.items()} | dict([_NOT_KNOWN])
    groups: dict[str, list[tuple[float, float, str, str]]] = {name: [] for name in looks}
    rows = []
    for case in cases:
        kind, question = _gravest(case, system)
        x, y = places[case.image_id]
        about = f"{case.image_id}: {kind}"
        groups[kind].append((x, y, f"#q={quote(question, safe='')}", about))
        rows.append((case.image_id, x, y, kind, question))
    groups = {name: points for name, points in groups.items() if points}
    counts = ", ".join(f"{len(points):,} {name}" for name, points in groups.items())
    name = f"embedding/{system}"
    return Plot(
        name=name,
        title=f"Images by what the model sees, errors of {system}",
        summary=f"{method} of {len(cases):,} images: {counts}.",
        csv=csv_text(("image_id", "x", "y", "kind", "question_id"), rows),
        svg=plot_points(name, groups, looks, *labels),
        links=True,
    )


def _gravest(case: Case, system: str) -> tuple[str, str]:
    """What the system did worst on an image, and the question where it did."""
    errors = {
        question.question_id: answer.errors
        for question in case.questions
        if (answer := question.answers.get(system)) is not None
    }
    for kind in _LOOKS:
        for question_id, bits in errors.items():
            if bits & kind:
                return KINDS[kind][0], question_id
    return _NOT_KNOWN[0], case.questions[0].question_id


def _places(content: Any) -> dict[str, tuple[float, float]]:
    images = content.get("images") if isinstance(content, Mapping) else None
    explained = content.get("explained") if isinstance(content, Mapping) else None
    if not isinstance(images, Mapping) or not (explained is None or _are_numbers(explained)):
        raise UserError(f"embedding: {_LAYOUT}")
    for name, place in images.items():
        if not _are_numbers(place) or len(place) != 2:
            raise UserError(f"embedding: {name} is at {shown_value(place)}: {_LAYOUT}")
    return {str(name): (float(x), float(y)) for name, (x, y) in images.items()}


def _are_numbers(found: Any) -> bool:
    return isinstance(found, list) and all(
        isinstance(one, int | float) and math.isfinite(one) and abs(one) < 1e100 for one in found
    )
