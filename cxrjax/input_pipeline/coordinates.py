"""Finds the tokens of an answer that say where its boxes are, for the box loss.

The loss reaches boxes by one of these routes (`training.box_route`):

    loc     a coordinate is one of 1,024 `<loc>` tokens (codec paligemma)
    digits  a coordinate is a whole number in digits, a token each (vindr_px, medgemma_json,
            gemex, chexagent)
    none    cross-entropy alone

`auto` is `loc` or `digits`, whichever the codec's notation is.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float, Float32, Int32

from cxrjax.codecs import Codec, get_codec
from cxrjax.errors import UserError
from cxrjax.images.geometry import Geometry
from cxrjax.input_pipeline.tokenizer import Tokenizer

BoxRoute = Literal["loc", "digits", "none"]
BOX_ROUTES: tuple[str, ...] = ("auto", *get_args(BoxRoute))

_DIGITS = "0123456789"
_XYXY = ("x_min", "y_min", "x_max", "y_max")


def resolve_box_route(route: str, codec: str) -> BoxRoute:
    """The route of a configuration, one of `BOX_ROUTES`, with `auto` decided by the codec.

    Raises:
        UserError: no such codec, or its boxes cannot be reached by this route.
    """
    notation = get_codec(codec)
    own: BoxRoute | None = None
    if notation.coordinate_order is not None:
        own = "loc"
    elif notation.number_pattern is not None:
        own = "digits"
    match route:
        case "none":
            return "none"
        case "auto" if own is not None:
            return own
        case "loc" if own == "loc":
            return "loc"
        case "digits" if own == "digits":
            return "digits"
    possible = ("none",) if own is None else ("auto", own, "none")
    raise UserError(
        f"training.box_route={route!r} cannot reach the boxes of data.codec={codec!r}: expected "
        f"one of {', '.join(possible)}"
    )


class DigitCoordinates(NamedTuple):
    """A text's boxes as the digits that write them; n boxes of at most D digits a coordinate."""

    # Token of each digit on the answer axis, x_min, y_min, x_max, y_max, the first digit first; 0
    # in padding.
    positions: Int32[np.ndarray, "n 4 D"]
    # What a digit counts, 1000 of 4 in 4321; 0 in padding.
    place_weights: Float32[np.ndarray, "n 4 D"]
    # `scale`, `offset`: number * scale + offset is a fraction of the model's input.
    scale: Float32[np.ndarray, "4"]
    offset: Float32[np.ndarray, "4"]
    boxes: Float32[np.ndarray, "n 4"]  # what the digits say, xyxy, fractions of the model's input


class DigitFinder:
    """Finds the digits of boxes among the tokens of an answer. Can be pickled.

    Attributes:
        token_ids: of the digits 0 to 9.

    Raises:
        UserError: the tokenizer does not give every digit a token of its own.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        # A digit may have a piece of its own and yet be merged with a neighbour: all pairs.
        # Llama's family puts a space before every text, which is no part of the digits.
        before = "(" if tokenizer.is_llama else ""
        skipped = len(tokenizer.encode(before)) if before else 0

        def encode(digits: str) -> list[int]:
            return tokenizer.encode(before + digits)[skipped:]

        ids = {digit: encode(digit) for digit in _DIGITS}
        for pair in (first + second for first in _DIGITS for second in _DIGITS):
            apart = ids[pair[0]] + ids[pair[1]]
            if encode(pair) != apart or len(apart) != 2:
                raise UserError(
                    f"{tokenizer.name}: {pair!r} is {tokenizer.pieces(pair)}, expected a token for "
                    "each digit; the box loss on digits needs such a tokenizer (Gemma's are), or "
                    "set training.box_route='none'"
                )
        self.token_ids = tuple(ids[digit][0] for digit in _DIGITS)
        self._tokenizer = tokenizer
        # How many digits the text of a token has; pieces such as <h1> have some too.
        self._counts = {token: 1 for token in self.token_ids}

    def find(
        self,
        text: str,
        tokens: Sequence[int] | Int32[np.ndarray, " answer"],
        codec: Codec,
        height: int,
        width: int,
        geometry: Geometry,
    ) -> DigitCoordinates:
        """The digits of all boxes of a text.

        Args:
            text: as the codec wrote it, prose around it.
            tokens: its ids; more may follow that say nothing, such as `<eos>`.
            codec: with a `number_pattern`.
            height, width: of the original image, pixels.
            geometry: how the image was placed into the model's input.

        Raises:
            UserError: a digit of a box is not a token of its own, or a number has more digits
                than the codec's `max_digits`.
        """
        assert codec.number_pattern is not None
        token_of_digit = self._token_of_digit(text, tokens)
        spans = codec.find(text, height, width, geometry, strict=True)
        shape = (len(spans), 4, codec.max_digits)
        positions, weights = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        numbers = np.zeros(shape[:2], np.float64)
        for box, span in enumerate(spans):
            match = codec.number_pattern.search(text, span.start, span.end)
            assert match is not None
            for coordinate, name in enumerate(_XYXY):
                digits = match[name]
                count = len(digits)
                if count > codec.max_digits:
                    raise UserError(
                        f"coordinate {digits} has {count} digits, expected at most "
                        f"{codec.max_digits}; use a smaller copy of the image"
                    )
                first = len(re.findall("[0-9]", text[: match.start(name)]))
                places = token_of_digit[first : first + count]
                if [tokens[place] for place in places] != [self.token_ids[int(d)] for d in digits]:
                    raise UserError(
                        f"{match[0]!r}: the digits of {digits} are not tokens of their own; use a "
                        "tokenizer that splits digits, or set training.box_route='none'"
                    )
                positions[box, coordinate, :count] = places
                weights[box, coordinate, :count] = 10.0 ** np.arange(count - 1, -1, -1)
                numbers[box, coordinate] = int(digits)
        scale, offset = _affine(codec, height, width, geometry)
        return DigitCoordinates(
            positions,
            weights,
            scale.astype(np.float32),
            offset.astype(np.float32),
            (numbers * scale + offset).astype(np.float32),
        )

    def _token_of_digit(
        self, text: str, tokens: Sequence[int] | Int32[np.ndarray, " answer"]
    ) -> Int32[np.ndarray, " digits"]:
        """The index of the token that each digit of the text is in.

        Tokenizers tell offsets in different ways or not at all; that they keep the digits' order
        is enough.
        """
        counts = [self._count(int(token)) for token in tokens]
        found, expected = sum(counts), len(re.findall("[0-9]", text))
        if found != expected:
            raise UserError(
                f"{text[:80]!r} has {expected} digits and its tokens have {found}; the tokenizer "
                "changes the text, so set training.box_route='none'"
            )
        return np.repeat(np.arange(len(counts), dtype=np.int32), counts)

    def _count(self, token: int) -> int:
        if token not in self._counts:
            self._counts[token] = len(re.findall("[0-9]", self._tokenizer.decode([token])))
        return self._counts[token]


def _affine(
    codec: Codec, height: int, width: int, geometry: Geometry
) -> tuple[Float[np.ndarray, "4"], Float[np.ndarray, "4"]]:
    """Scale and offset from a written number to a fraction of the model's input, float64."""
    ends = codec.fractions_of(np.array([[0] * 4, [1] * 4]), height, width, geometry)
    at_zero, at_one = geometry.apply(ends)
    return at_one - at_zero, at_zero
