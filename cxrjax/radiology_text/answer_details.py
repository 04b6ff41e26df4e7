"""Reads how many and which place an answer gives, whatever it says is there."""

import functools
import re
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from cxrjax.files import read_packaged
from cxrjax.radiology_text.answers import without_reason
from cxrjax.radiology_text.lexicon import load_english, pattern, plain_text

# Boxes whose middle is this near to the image's (fractions of its width) are on neither side.
_MIDLINE = 0.05
# Of an answer, in which its place is looked for.
_LONGEST = 2000
_NOTATION = re.compile(r"<[^<>]*>|\[[^\[\]]*\]")
_NUMBER = pattern("number_in_answer")
_SIDES = ("left", "right")
_BOTH = frozenset(("both", "bilateral", "bilaterally"))


class SaidPlace(NamedTuple):
    """A place on the patient's body: `left` and `right`, and names of `reference/regions.json`."""

    sides: frozenset[str]
    regions: frozenset[str]


def count_said(text: str) -> int | None:
    """The first number that an answer gives in words or digits, boxes aside; None without one."""
    plain = _NOTATION.sub(" ", plain_text(without_reason(text)))
    for found in _NUMBER.finditer(plain):
        if found["digits"]:
            return int(found["digits"])
        if (number := _words().get(found["word"])) is not None:
            return number
    return None


def place_said(text: str, boxes: Float[np.ndarray, "n 4"], asked: str = "") -> SaidPlace:
    """The place that an answer gives: what it names, else the sides of its boxes.

    Args:
        boxes: xyxy fractions of an image as displayed, the patient's right on its left.
        asked: the finding, whose own name ("Pleural effusion") names no place.
    """
    named = _named_place(text, asked)
    if named.sides or named.regions:
        return named
    middles = boxes[:, [0, 2]].mean(axis=1) - 0.5
    sides = {_SIDES[middle < 0] for middle in middles.tolist() if abs(middle) > _MIDLINE}
    return SaidPlace(frozenset(sides), frozenset())


@functools.lru_cache(maxsize=4096)  # most answers give their place in few words
def _named_place(text: str, asked: str) -> SaidPlace:
    english = load_english()
    plain = plain_text(without_reason(text)).replace(plain_text(asked) or "\n", " ")
    tokens = english.read_tokens(plain, 0, min(len(plain), _LONGEST)).tokens
    regions = {match.payload for match in english.definitions.region_names.find(tokens)}
    words = {token.lemma for token in tokens} | set(" ".join(regions).split())
    sides = {side for side in _SIDES if side in words or words & _BOTH}
    return SaidPlace(frozenset(sides), frozenset(regions))


@functools.cache
def _words() -> dict[str, int]:
    counts = read_packaged(str(__package__), "reference/cues_en.toml")["words"]["counts"]
    return {word: number for number, words in enumerate(counts) for word in words}
