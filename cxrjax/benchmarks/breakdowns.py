"""What figures are broken down by, for any benchmark: attributes of questions and images.

A unit (question or image) has one value of an attribute, or none. Broken down, a metric is called
`by_<attribute>/<metric>/<value>`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from cxrjax.metrics.bootstrap import Columns, Estimate, Figure
from cxrjax.records import QARecord

_AGES = (20, 40, 60, 80)
_BOXES = (1, 2, 3, 5, 9)


class JoinedColumns(Mapping[str, Float[np.ndarray, " units"]]):
    """Columns over images and columns over questions as columns over both, images first.

    Each is 0 where the other kind of unit is. Made when asked for: most of them would be zeros.
    """

    def __init__(self, of_images: Columns, of_questions: Columns) -> None:
        self._images, self._questions = of_images, of_questions
        (self._image_count,) = {len(column) for column in of_images.values()}
        (self._question_count,) = {len(column) for column in of_questions.values()}

    def __getitem__(self, name: str) -> Float[np.ndarray, " units"]:
        if name in self._images:
            return np.pad(np.asarray(self._images[name]), (0, self._question_count))
        return np.pad(np.asarray(self._questions[name]), (self._image_count, 0))

    def __iter__(self) -> Iterator[str]:
        yield from self._images
        yield from self._questions

    def __len__(self) -> int:
        return len(self._images) + len(self._questions)


def image_attributes(record: QARecord) -> dict[str, str | None]:
    """Whose image it is and from where it was taken; None where the record does not say."""
    return {"view": record.view, "sex": record.sex, "age": age_band(record.age)}


def age_band(age: float | None) -> str | None:
    """Twenty years: 00-19, 20-39, ..., 80 and more."""
    if age is None:
        return None
    return _band(int(age), (0, *_AGES), width=2)


def boxes_band(boxes: int) -> str:
    """How many boxes an image has: 0, 1, 2, 3-4, 5-8, 9 and more."""
    return _band(boxes, (0, *_BOXES), width=1)


def break_down(
    figures: Mapping[str, Figure],
    attribute: str,
    values: Sequence[str | None],
    keys: Iterable[str] | None = None,
    prefix: str | None = None,
) -> dict[str, Figure | Estimate]:
    """Every figure within every value of an attribute.

    Args:
        figures: whose `n` is the name of a column, so that it is known in every cell.
        values: of the units.
        keys: the rows; default: all values, sorted. One that no unit has is undefined, n = 0.
        prefix: default `by_<attribute>`.
    """
    found = {value for value in values if value is not None}
    nothing = Estimate(None, None, None, 0)
    return {
        f"{prefix or f'by_{attribute}'}/{name}/{key}": (
            replace(figure, within=(attribute, key)) if key in found else nothing
        )
        for key in (sorted(found) if keys is None else keys)
        for name, figure in figures.items()
    }


def _band(number: int, starts: Sequence[int], width: int) -> str:
    place = max(index for index, start in enumerate(starts) if number >= start or not index)
    if place + 1 == len(starts):
        return f"{starts[place]} and more"
    low, high = starts[place], starts[place + 1] - 1
    if low == high:
        return str(low)
    return f"{low:0{width}}-{high}"
