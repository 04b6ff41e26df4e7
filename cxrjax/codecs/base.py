"""The base of every box codec: verdicts on what was read, and the grid of coordinates.

A codec writes boxes into text in one convention and reads them back. It owns two things, its
grammar and its frame: what the numbers that it writes count (bins of the model's input, pixels of
the original image). This module does the rest, the same way for all of them.

Reading never raises on what a model wrote and never guesses. Each box begun in the text is either
read or counted as one failure (`FailureCategory`); docs/boxes.md ("Reading what a model wrote") has
which, strictly and leniently.
"""

import abc
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float, Int, Num

from cxrjax import boxes as box_arithmetic
from cxrjax.codecs.frames import BoxGeometry, Frame
from cxrjax.codecs.plain import plain
from cxrjax.errors import UserError

FailureCategory = Literal[
    "no_box",
    "malformed",
    "wrong_arity",
    "degenerate",
    "out_of_range",
    "ambiguous_scale",
    "truncated",
    "refusal",
]
FAILURE_CATEGORIES: tuple[FailureCategory, ...] = get_args(FailureCategory)

# What a text without any box is.
NOT_BEGUN: tuple[FailureCategory, ...] = ("no_box", "refusal")

# In an answer; those who want more want something else than an answer.
MOST_BOXES = 1000
# A failure quotes what was found, so that one can see what a model does; a runaway one is cut.
_QUOTE_LENGTH = 80
# Fractions this far outside [0, 1] are float32 rounding (a third of a pixel at 3,000).
_ROUNDING = 1e-4
# In grid steps: a box at the image's border may reach half a step beyond it when it is read back.
_BORDER = 0.5 + 1e-3
_MIN_SHARE_INSIDE = 0.5

# Someone who declines speaks of themselves and of the task; a report that says "unable to exclude
# pneumonia" or "I cannot see an effusion" answers.
_TASK = (
    r"(?:help|assist|comply|answer|respond|interpret|diagnose|analy[sz]e|process|provide|offer"
    r"|give|perform|view|open|access|see (?:the|this|any|an|your) (?:image|x-?ray|radiograph))\b"
)
# Words that call four numbers a corner or a centre, a width and a height, which no codec writes.
_WIDTHS = re.compile(r"(?i)(?<![a-z])c?x(?:_?c?y_?w_?h|, ?c?y, ?w(?:idth)?, ?h(?:eight)?)(?![a-z])")
_REFUSAL = re.compile(
    rf"\b(?:i|we) (?:cannot|can't|can not|won't|will not|do not|don't) {_TASK}"
    rf"|\b(?:i'm|i am|we're|we are) (?:unable|not able) to {_TASK}"
    r"|\b(?:i'm|i am) (?:very )?sorry\b"
    r"|\bas an? (?:ai|(?:large )?language model)\b",
    re.IGNORECASE,
)


class Failure(NamedTuple):
    """A box that was begun and not read, or a text without any (then `start` is 0)."""

    category: FailureCategory  # why (docs/boxes.md)
    text: str  # what was found, at most 80 characters of it
    start: int  # index of its first character in the text


class Decoded(NamedTuple):
    """The boxes and failures of a text."""

    # float32 [n, 4], xyxy as fractions of the original image, in the text's order.
    boxes: Float[np.ndarray, "n 4"]
    # In the text's order; empty exactly when there are boxes and nothing else begun.
    failures: list[Failure]


class BoxSpan(NamedTuple):
    """A box and the characters `text[start:end]` that it was read from; `box` is float32 [4].

    `label` is what the text calls it, in conventions that write a name to each box; `swapped` says
    along which of x and y the corners were written the wrong way round.
    """

    start: int
    end: int
    box: Float[np.ndarray, "4"]
    label: str | None = None
    swapped: tuple[bool, bool] = (False, False)

    @property
    def as_written(self) -> Float[np.ndarray, "4"]:
        """The box with its corners in the order of the text."""
        swapped = np.tile(np.array(self.swapped), 2)
        return np.where(swapped, self.box[[2, 3, 0, 1]], self.box)


class AsWritten(NamedTuple):
    """The boxes of a model's answer, as it wrote them."""

    # The boxes that could be read; `BoxSpan.as_written` has their corners as they stand.
    spans: list[BoxSpan]
    failures: list[Failure]  # as of `Decoded`
    repaired: int  # how many were not written exactly, beside those with swapped corners

    @property
    def parse(self) -> str:
        """`ok`, or the category of the first failure; to have no box is none."""
        broken = (f.category for f in self.failures if f.category != "no_box")
        return next(broken, "ok")


class Candidate(NamedTuple):
    """A box begun at `text[start:end]`, as a codec's grammar sees it."""

    start: int
    end: int
    failure: FailureCategory | None  # why it cannot be read, if so
    # The four numbers as x_min, y_min, x_max, y_max; None where there are no four.
    grid: Sequence[float] | None = None
    exact: bool = False  # whether it is written exactly as the grammar says
    label: str | None = None  # its name, where the grammar has one


class Codec(abc.ABC):
    """Boxes <-> text in one convention. Stateless; `cxrjax.codecs.CODECS` holds one of each."""

    name: ClassVar[str]
    # The grid that its numbers are on.
    frame: ClassVar[Frame]
    # What `encode` puts between two boxes.
    separator: ClassVar[str]
    # Whether y stands before x in the text; `Candidate.grid` has x first all the same.
    y_first: ClassVar[bool] = False
    # What goes before a list of named edges ("x1": 100, ...); None where they have no list.
    edges: ClassVar[str | None] = None
    # What times a number in the text is one on the grid.
    scale: ClassVar[float] = 1
    # Where each coordinate is a token of its own: the k-th one written is entry
    # coordinate_order[k] of (x_min, y_min, x_max, y_max).
    coordinate_order: ClassVar[tuple[int, int, int, int] | None] = None
    # Where each coordinate is a whole number in digits: finds the four in a span of `find`, as
    # groups x_min, y_min, x_max, y_max; and the most digits that one of them may have.
    number_pattern: ClassVar[re.Pattern[str] | None] = None
    max_digits: ClassVar[int] = 0
    # An answer has one list of all its boxes, rather than boxes among its words; the list of an
    # answer without boxes, where it has one too.
    of_whole_answer: ClassVar[bool] = False
    empty_list: ClassVar[str] = ""

    def encode(
        self,
        boxes: Num[Any, "n 4"],
        height: int,
        width: int,
        geometry: BoxGeometry | None = None,
        labels: Sequence[str | None] | None = None,
    ) -> str:
        """Writes boxes as text that `decode` reads back, strict too.

        Args:
            boxes: xyxy, fractions of the original image; corners in order and some extent.
            height, width: of the original image, pixels.
            geometry: how the image was placed into the model's input; None is a plain resize.
            labels: what is seen in each box; written by conventions that have a place for it.

        Returns:
            The boxes in their order, apart by `separator`; "" for none. Read back, a coordinate is
            off by at most half a grid step, or by one and a half where the box is thinner than a
            step and has to be widened to one.

        Raises:
            UserError: a box is not inside the image or the model's input, has no extent, swapped
                corners or NaN; or the size is not positive.
        """
        _check_size(height, width)
        inside = _check_boxes(boxes)
        units = self.frame.to_grid(inside, height, width, geometry)
        largest = np.tile(self.frame.largest(height, width), 2)
        outside = np.any((units[:, 2:] <= -0.5) | (units[:, :2] >= largest[:2] + 0.5), axis=1)
        if outside.any():
            row = inside[int(np.argmax(outside))]
            raise UserError(f"box {_format(row)} is outside the model's input; drop it there")
        # Where a letterbox leaves a margin, no box may be widened into it.
        image = self.frame.to_grid(np.array([[0.0, 0.0, 1.0, 1.0]]), height, width, geometry)[0]
        low, high = np.split(np.clip(np.floor(image + 0.5), 0, largest), 2)
        grid = quantise(units, low, high).tolist()
        if labels is None:
            labels = [None] * len(grid)
        return self._write_all(list(zip(grid, labels, strict=True)))

    def decode(
        self,
        text: str,
        height: int,
        width: int,
        geometry: BoxGeometry | None = None,
        strict: bool = False,
    ) -> Decoded:
        """Reads all boxes of a text. docs/boxes.md has what counts.

        Args:
            height, width: of the original image, pixels.
            geometry: as for `encode`.
            strict: accept the exact grammar alone.

        Raises:
            UserError: the size is not positive. Never because of the text.
        """
        found = self._found(text)
        spans, failures = self._read(text, found, height, width, geometry, strict)
        if not spans:
            return Decoded(np.zeros((0, 4), np.float32), failures)
        return Decoded(np.array([span.box for span in spans], np.float32), failures)

    def find(
        self,
        text: str,
        height: int,
        width: int,
        geometry: BoxGeometry | None = None,
        strict: bool = False,
    ) -> list[BoxSpan]:
        """The boxes that `decode` returns for the same arguments, with where they stand."""
        return self._read(text, self._found(text), height, width, geometry, strict)[0]

    def read_as_written(
        self, text: str, height: int, width: int, geometry: BoxGeometry | None = None
    ) -> AsWritten:
        """Reads a model's answer and hides nothing of what was mended on the way.

        Args and errors are those of `decode`, which is lenient here.
        """
        found = self._found(text)
        spans, failures = self._read(text, found, height, width, geometry, strict=False)
        exact = self._read(text, found, height, width, geometry, strict=True)[0]
        mended = len(spans) - len(exact) - sum(any(span.swapped) for span in spans)
        return AsWritten(spans, failures, max(mended, 0))

    def fractions_of(
        self, numbers: Num[Any, "n 4"], height: int, width: int, geometry: BoxGeometry | None = None
    ) -> Float[np.ndarray, "n 4"]:
        """The fractions that a box's numbers stand for: each number has an affine map of its own.

        Args:
            numbers: x_min, y_min, x_max, y_max as they stand in the text.
            height, width: of the original image, pixels.
            geometry: as for `encode`.

        Returns:
            float64 fractions of the original image, not clipped.
        """
        _check_size(height, width)
        read = self.frame.from_grid(np.asarray(numbers, np.float64), height, width, geometry)
        return np.asarray(read, np.float64)

    def read_numbers(
        self, text: str, height: int, width: int, geometry: BoxGeometry | None = None
    ) -> tuple[Float[np.ndarray, "n 4"], list[list[float]]]:
        """The boxes of four numbers each that a text has, be they off the image or of any scale.

        Args are those of `decode`.

        Returns:
            Boxes as fractions of the original image, not clipped, corners as they stand; and the
            numbers in the text, x before y.
        """
        _check_size(height, width)
        grids = [found.grid for found in self._found(text) if found.grid is not None]
        boxes = self.frame.from_grid(
            np.array(grids, np.float64).reshape(-1, 4), height, width, geometry
        )
        numbers = [[number / self.scale for number in grid] for grid in grids]
        return np.asarray(boxes, np.float64), numbers

    def makers_geometry(self, height: int, width: int) -> BoxGeometry | None:
        """The way in which the convention's own model places an image into its input.

        For reading what that model wrote; None: as a plain resize, or the frame does not ask.
        """
        return None

    def _write_all(self, boxes: list[tuple[list[int], str | None]]) -> str:
        """Boxes on the grid, each with its label, as text."""
        return self.separator.join(self._write(grid) for grid, _ in boxes)

    @abc.abstractmethod
    def _candidates(self, text: str) -> Iterator[Candidate]:
        """Every box begun in the text, in order. Linear time, whatever the text.

        Args:
            text: without white space at its end, so that what reaches its end was cut off there.
        """

    @abc.abstractmethod
    def _write(self, grid: list[int]) -> str:
        """One box (x_min, y_min, x_max, y_max on the grid) as text."""

    def _found(self, text: str) -> list[Candidate]:
        """Candidates, `MOST_BOXES` at most; where more are begun, one failure for the rest."""
        text = text.rstrip()
        found = list(itertools.islice(self._candidates(text), MOST_BOXES + 1))
        if not found or any(one.failure for one in found):
            # It may be in other signs.
            read = plain(text, self.edges, self.y_first)
            if read != text:
                found = list(itertools.islice(self._candidates(read), MOST_BOXES + 1))
                same = [text[one.start : one.end] == read[one.start : one.end] for one in found]
                found = [f._replace(exact=f.exact and s) for f, s in zip(found, same, strict=True)]
        if len(found) > MOST_BOXES:
            found[MOST_BOXES] = Candidate(found[MOST_BOXES].start, len(text), "malformed")
        if _WIDTHS.search(text):
            found = [one._replace(failure=one.failure or "malformed") for one in found]
        return found

    def _read(
        self,
        text: str,
        found: Iterable[Candidate],
        height: int,
        width: int,
        geometry: BoxGeometry | None,
        strict: bool,
    ) -> tuple[list[BoxSpan], list[Failure]]:
        _check_size(height, width)
        grids: list[Sequence[float]] = []
        places: list[tuple[int, int, str | None]] = []
        failures: list[Failure] = []

        def fail(category: FailureCategory, start: int, end: int) -> None:
            failures.append(Failure(category, text[start : min(end, start + _QUOTE_LENGTH)], start))

        for start, end, failure, grid, exact, label in found:
            if strict and not exact and failure in (None, "ambiguous_scale"):
                fail("malformed", start, end)
            elif grid is None or failure is not None:
                fail(failure or "malformed", start, end)
            else:
                grids.append(grid)
                places.append((start, end, label))
        if not grids and not failures:
            fail("refusal" if declines(text) else "no_box", 0, len(text))
        if not grids:
            return [], sorted(failures, key=lambda failure: failure.start)
        numbers = np.array(grids, np.float64).reshape(-1, 4)
        boxes, reasons = self._judge(numbers, height, width, geometry, strict)
        swapped = (numbers[:, :2] > numbers[:, 2:]).tolist()
        spans = []
        for (start, end, label), box, reason, (x, y) in zip(
            places, boxes, reasons, swapped, strict=True
        ):
            if reason is None:
                spans.append(BoxSpan(start, end, box, label, (x, y)))
            else:
                fail(reason, start, end)
        return spans, sorted(failures, key=lambda failure: failure.start)

    def _judge(
        self, grid: np.ndarray, height: int, width: int, geometry: BoxGeometry | None, strict: bool
    ) -> tuple[Float[np.ndarray, "n 4"], list[FailureCategory | None]]:
        """Boxes read from the grid, clipped to the image, and for each why it fails, if it does."""
        degenerate = np.any(grid[:, 2:] <= grid[:, :2], axis=1)
        if not strict:
            grid = box_arithmetic.canonical(grid)
            degenerate = np.any(grid[:, 2:] == grid[:, :2], axis=1)
        read = np.asarray(self.frame.from_grid(grid, height, width, geometry), np.float64)
        boxes = np.clip(read, 0.0, 1.0)
        outside = np.any(boxes[:, 2:] <= boxes[:, :2], axis=1)
        if strict:
            off_grid = (grid < 0) | (grid > np.tile(self.frame.largest(height, width), 2))
            moved = np.abs(self.frame.to_grid(boxes, height, width, geometry) - grid)
            outside |= np.any(off_grid | (moved > _BORDER), axis=1)
        else:
            inside, whole = box_arithmetic.area(boxes), box_arithmetic.area(read)
            outside |= inside < _MIN_SHARE_INSIDE * whole
        reasons: list[FailureCategory | None] = [
            "degenerate" if flat else "out_of_range" if off else None
            for flat, off in zip(degenerate.tolist(), outside.tolist(), strict=True)
        ]
        return boxes.astype(np.float32), reasons


def quantise(
    units: Float[np.ndarray, "*batch 4"], low: Num[np.ndarray, "2"], high: Num[np.ndarray, "2"]
) -> Int[np.ndarray, "*batch 4"]:
    """The nearest place on the grid for each coordinate, never a box without extent.

    A box whose corners round to one place is widened by a step, to the side its middle leans to:
    otherwise a model would be taught to write what `decode` refuses.

    Args:
        units: xyxy in grid steps, unrounded.
        low: the smallest number to use along x and y. high: the largest, above the smallest.
    """
    grid = np.clip(np.floor(units + 0.5), np.tile(low, 2), np.tile(high, 2)).astype(np.int32)
    first, second = grid[..., :2], grid[..., 2:]
    middle = (units[..., :2] + units[..., 2:]) / 2
    flat = first == second
    up = flat & ((middle >= first) | (first == low)) & (second < high)
    return np.concatenate([first - (flat & ~up), second + up], axis=-1)


def _check_size(height: int, width: int) -> None:
    if not (height and width and height > 0 and width > 0):
        raise UserError(
            f"image size {height} x {width}: a box needs the height and width of its image, "
            "in pixels; join them to the record (image_hw)"
        )


def _check_boxes(boxes: Any) -> Float[np.ndarray, "n 4"]:
    """The boxes as float64 within [0, 1]."""
    array = np.asarray(boxes, np.float64)
    if array.ndim != 2 or array.shape[1] != 4:
        raise ValueError(f"boxes of shape {array.shape}: expected [n, 4]")
    for row in array:
        # Written so that NaN fails.
        if not (row.min() >= -_ROUNDING and row.max() <= 1 + _ROUNDING):
            raise UserError(
                f"box {_format(row)} is outside its image: expected fractions of the original "
                "image in [0, 1] (pixels have to be divided by its size)"
            )
        if not (row[2:] > row[:2]).all():
            raise UserError(
                f"box {_format(row)} has no extent: expected x_min < x_max and y_min < y_max"
            )
    return np.clip(array, 0.0, 1.0)


def _format(row: np.ndarray) -> str:
    return "(" + ", ".join(f"{value:.6g}" for value in row) + ")"


def declines(text: str) -> bool:
    """Returns whether an answer is a refusal, or a statement that the model cannot answer."""
    return _REFUSAL.search(" ".join(text.replace("’", "'").split())) is not None
