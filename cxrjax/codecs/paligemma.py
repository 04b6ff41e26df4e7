"""PaliGemma's boxes: four location tokens, y first, 1,024 bins of the model's input.

    <loc0123><loc0456><loc0789><loc1023>    y_min x_min y_max x_max

Bin b holds the fractions from b/1024 up to (b+1)/1024 and is read as its middle. PaliGemma's paper
gives the tokens and their order (arXiv 2407.07726, section 3.2); other code rounds a fraction times
1024 and so can emit 1024, a token that does not exist: here the far edge belongs to bin 1023.
Letterbox or resize, a bin is one of what the model sees, so `geometry` matters here.

Boxes that follow each other without a gap are read in fours from the first token. If their count
does not come out even, there is no telling which tokens belong together and none of them is read;
unless the text ends there: then only the last box is cut off.
"""

import re
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int

from cxrjax.codecs.base import Candidate, Codec, FailureCategory
from cxrjax.codecs.frames import Frame, InputBins

NUM_BINS = 1024

_ITEM = re.compile(
    r"<\s{0,3}loc\s{0,3}(?P<bin>[0-9]{1,9})\s{0,3}>"
    r"|(?P<cut><\s{0,3}(?:l(?:o(?:c\s{0,3}[0-9]{0,9})?)?)?\Z)"
    r"|<\s{0,3}loc[^<>\s]{0,40}>?",
    re.IGNORECASE,
)
_EXACT = re.compile(r"(?:<loc[0-9]{4}>){4}")
# What may stand between the tokens of one box when reading leniently, and how much of it.
_GAP = " \t,"
_LONGEST_GAP = 3


def bin_centers() -> Float[np.ndarray, "1024"]:
    """The fraction of the model's input that each location token stands for, float32."""
    return ((np.arange(NUM_BINS) + 0.5) / NUM_BINS).astype(np.float32)


class PaliGemma(Codec):
    """The `paligemma` codec. The grid is the bins; whole numbers are their middles."""

    name: ClassVar[str] = "paligemma"
    frame: ClassVar[Frame] = InputBins(NUM_BINS)
    # As between the boxes of PaliGemma's own detection answers.
    separator: ClassVar[str] = " ; "
    coordinate_order: ClassVar[tuple[int, int, int, int]] = (1, 0, 3, 2)

    def from_bins(self, bins: Int[Any, "*any"]) -> Float[np.ndarray, "*any"]:
        """Bins' middles, float32 fractions of the model's input, in the order given."""
        return ((np.asarray(bins, np.float64) + 0.5) / NUM_BINS).astype(np.float32)

    def _write(self, grid: list[int]) -> str:
        return "".join(f"<loc{grid[k]:04d}>" for k in self.coordinate_order)

    def _candidates(self, text: str) -> Iterator[Candidate]:
        run: list[re.Match[str]] = []
        end = 0
        for item in _ITEM.finditer(text):
            start = item.start()
            if run and (start - end > _LONGEST_GAP or text[end:start].strip(_GAP)):
                yield from self._split(text, run)
                run = []
            run.append(item)
            end = item.end()
        if run:
            yield from self._split(text, run)

    def _split(self, text: str, run: list[re.Match[str]]) -> Iterator[Candidate]:
        """The boxes of adjacent tokens."""
        bins = [item["bin"] for item in run]
        cut = run[-1]["cut"] is not None
        tokens = len(run) - cut
        failure: FailureCategory | None = None
        if None in bins[:tokens]:
            failure = "malformed"
        elif cut or tokens % 4:
            failure = "truncated" if run[-1].end() == len(text) else "wrong_arity"
        read = tokens - tokens % 4 if failure in (None, "truncated") else 0
        for k in range(0, read, 4):
            y_min, x_min, y_max, x_max = map(float, bins[k : k + 4])
            start, end = run[k].start(), run[k + 3].end()
            exact = _EXACT.fullmatch(text, start, end) is not None
            yield Candidate(start, end, None, (x_min, y_min, x_max, y_max), exact)
        if failure:
            yield Candidate(run[read].start(), run[-1].end(), failure)
