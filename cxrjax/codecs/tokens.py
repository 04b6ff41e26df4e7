"""Boxes in tokens, bins of the model's input: PaliGemma's, Florence-2's, Kosmos-2's, MAIRA-2's.

A bin is one of what the model sees, so that `geometry` matters here; it is read as its middle.
"""

import re
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int

from cxrjax.codecs.base import Candidate, Codec, FailureCategory
from cxrjax.codecs.frames import BoxGeometry, Frame, InputBins
from cxrjax.images.geometry import center_crop_geometry

NUM_BINS = 1024


def _tokens(name: str) -> re.Pattern[str]:
    """Finds tokens such as <loc0123>, and what the end of the text has left of one."""
    cut = r"\s{0,3}[0-9]{0,9}"
    for character in reversed(name):
        cut = f"(?:{character}{cut})?"
    return re.compile(
        rf"<\s{{0,3}}{name}\s{{0,3}}(?P<bin>[0-9]{{1,9}})\s{{0,3}}>"
        rf"|(?P<cut><\s{{0,3}}{cut}\Z)"
        rf"|<\s{{0,3}}{name}[^<>\s]{{0,40}}>?",
        re.IGNORECASE,
    )


# What may stand between the tokens of one box when reading leniently, and how much of it.
_GAP = " \t,"
_LONGEST_GAP = 3


def bin_centers() -> Float[np.ndarray, "1024"]:
    """The fraction of the model's input that each location token stands for, float32."""
    return ((np.arange(NUM_BINS) + 0.5) / NUM_BINS).astype(np.float32)


class LocationTokens(Codec):
    """Four tokens a box.

    Boxes that follow each other without a gap are read in fours from the first token. If their
    count does not come out even, there is no telling which tokens belong together and none of them
    is read; unless the text ends there: then only the last box is cut off.
    """

    token: ClassVar[re.Pattern[str]]
    exact: ClassVar[re.Pattern[str]]

    def _candidates(self, text: str) -> Iterator[Candidate]:
        run: list[re.Match[str]] = []
        end = 0
        for item in self.token.finditer(text):
            start = item.start()
            if run and (start - end > _LONGEST_GAP or text[end:start].strip(_GAP)):
                yield from self._split(text, run)
                run = []
            run.append(item)
            end = item.end()
        if run:
            yield from self._split(text, run)

    def _label(self, text: str, start: int) -> str | None:
        """Names the boxes that begin there."""
        return None

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
        label = self._label(text, run[0].start())
        for k in range(0, read, 4):
            grid = list(map(float, bins[k : k + 4]))
            if self.y_first:
                grid = [grid[1], grid[0], grid[3], grid[2]]
            start, end = run[k].start(), run[k + 3].end()
            exact = self.exact.fullmatch(text, start, end) is not None
            yield Candidate(start, end, None, grid, exact, label)
        if failure:
            yield Candidate(run[read].start(), run[-1].end(), failure)


class PaliGemma(LocationTokens):
    """The `paligemma` codec: four location tokens, y first, 1,024 bins.

        <loc0123><loc0456><loc0789><loc1023>    y_min x_min y_max x_max

    PaliGemma's paper gives the tokens and their order (arXiv 2407.07726, section 3.2); other code
    rounds a fraction times 1024 and so can emit 1024, a token that does not exist: here the far
    edge belongs to bin 1023.
    """

    name: ClassVar[str] = "paligemma"
    frame: ClassVar[Frame] = InputBins(NUM_BINS)
    # As between the boxes of PaliGemma's own detection answers.
    separator: ClassVar[str] = " ; "
    y_first: ClassVar[bool] = True
    coordinate_order: ClassVar[tuple[int, int, int, int]] = (1, 0, 3, 2)
    token: ClassVar[re.Pattern[str]] = _tokens("loc")
    exact: ClassVar[re.Pattern[str]] = re.compile(r"(?:<loc[0-9]{4}>){4}")

    def from_bins(self, bins: Int[Any, "*any"]) -> Float[np.ndarray, "*any"]:
        """Bins' middles, float32 fractions of the model's input, in the order given."""
        return ((np.asarray(bins, np.float64) + 0.5) / NUM_BINS).astype(np.float32)

    def _write(self, grid: list[int]) -> str:
        return "".join(f"<loc{grid[k]:04d}>" for k in self.coordinate_order)


_POLYGON = re.compile(r"<\s{0,3}poly\s{0,3}>\s{0,3}\Z", re.IGNORECASE)


class Florence2(LocationTokens):
    """The `florence2` codec: four location tokens, x first, 1,000 bins of the stretched image.

        opacity<loc_120><loc_300><loc_550><loc_710>    x_min y_min x_max y_max

    Florence-2's own processor reads a bin as its middle (arXiv 2311.06242, section 3.1). What
    stands right before the boxes, up to another token, is their label.
    """

    name: ClassVar[str] = "florence2"
    frame: ClassVar[Frame] = InputBins(1000)
    separator: ClassVar[str] = ""
    token: ClassVar[re.Pattern[str]] = _tokens("loc_")
    exact: ClassVar[re.Pattern[str]] = re.compile(r"(?:<loc_(?:0|[1-9][0-9]{0,8})>){4}")

    def _write(self, grid: list[int]) -> str:
        return "".join(f"<loc_{number}>" for number in grid)

    def _split(self, text: str, run: list[re.Match[str]]) -> Iterator[Candidate]:
        # Its masks are polygons in the same tokens: as many corners as there are pairs.
        if _POLYGON.search(text, max(0, run[0].start() - 20), run[0].start()):
            yield Candidate(run[0].start(), run[-1].end(), "malformed")
        else:
            yield from super()._split(text, run)

    def _label(self, text: str, start: int) -> str | None:
        before = text[max(0, start - 300) : start]
        return before[before.rfind(">") + 1 :].strip() or None


_PATCH = r"<\s{0,3}patch_index_\s{0,3}[0-9]{1,9}\s{0,3}>"
_PATCHES = re.compile(
    rf"(?=<)(?:<phrase>(?P<label>[^<>]{{0,300}})</phrase>\s{{0,3}}|(?P<next></delimiter_of_multi_objects/>"
    rf"\s{{0,3}}))?(?P<box>(?P<open><\s{{0,3}}object\s{{0,3}}>\s{{0,3}})?"
    rf"(?P<tokens>{_PATCH}(?:[ \t,]{{0,3}}{_PATCH}){{0,7}})"
    r"(?P<cut>[ \t,]{0,3}<\s{0,3}[a-z_0-9]{0,30}\Z)?"
    r"(?P<close>\s{0,3}<\s{0,3}/\s{0,3}object\s{0,3}>)?"
    r"|<\s{0,3}object\s{0,3}>\s{0,3}(?:<[a-z_0-9]{0,30})?\Z|<\s{0,3}patch[a-z_0-9]{0,30}\Z)",
    re.IGNORECASE,
)
_PATCH_NUMBER = re.compile(r"patch_index_\s{0,3}([0-9]{1,9})", re.IGNORECASE)
_EXACT_PATCHES = re.compile(r"(?:<object>)?(?:<patch_index_[0-9]{4}>){2}(?:</object>)?")
_PATCHES_A_SIDE = 32


class Kosmos2(Codec):
    """The `kosmos2` codec: two tokens, those of the corners' patches, of 32 x 32 over the image.

        <phrase>opacity</phrase><object><patch_index_0293><patch_index_0721></object>

    A corner is the middle of its patch; where both corners are in one row or column of patches, the
    box is all of these patches, as in Kosmos-2's own processor (arXiv 2306.14824, section 2.1). The
    image is stretched to a square. Boxes of one phrase stand in one tag, a delimiter between them.
    """

    name: ClassVar[str] = "kosmos2"
    frame: ClassVar[Frame] = InputBins(_PATCHES_A_SIDE)
    separator: ClassVar[str] = ""

    def _write(self, grid: list[int]) -> str:
        corners = (grid[1] * _PATCHES_A_SIDE + grid[0], grid[3] * _PATCHES_A_SIDE + grid[2])
        return "<object>" + "".join(f"<patch_index_{k:04d}>" for k in corners) + "</object>"

    def _candidates(self, text: str) -> Iterator[Candidate]:
        label = None
        for item in _PATCHES.finditer(text):
            start, end = item.span("box")
            if item["next"] is None:
                label = (item["label"] or "").strip() or None
            tokens = _PATCH_NUMBER.findall(item["tokens"] or "")
            if item["cut"] is not None or (len(tokens) < 2 and end == len(text)):
                yield Candidate(start, end, "truncated")
            elif len(tokens) != 2:
                yield Candidate(start, end, "wrong_arity")
            else:
                exact = _EXACT_PATCHES.fullmatch(text, start, end) is not None
                (y_min, x_min), (y_max, x_max) = (
                    divmod(int(token), _PATCHES_A_SIDE) for token in tokens
                )
                grid = [float(x_min), float(y_min), float(x_max), float(y_max)]
                if x_min == x_max or y_min == y_max:
                    grid = [grid[0] - 0.5, grid[1] - 0.5, grid[2] + 0.5, grid[3] + 0.5]
                    exact = False
                yield Candidate(start, end, None, grid, exact, label)


# Bounded repeats: the time is linear in any text; the look ahead makes it short where no < is.
_OPEN, _CLOSE = r"<\s{0,3}box\s{0,3}>", r"<\s{0,3}/\s{0,3}box\s{0,3}>"
_TOKEN = r"<\s{0,3}[xy]\s{0,3}[0-9]{1,9}\s{0,3}>"
_ITEM = re.compile(
    rf"(?=<)(?:(?P<phrase><obj>(?P<label>[^<>]{{0,300}})(?=<))"
    rf"|(?:{_OPEN}\s{{0,3}})?(?P<tokens>{_TOKEN}(?:[ \t,]{{0,3}}{_TOKEN})*)"
    rf"(?P<cut>[ \t,]{{0,3}}<\s{{0,3}}(?:[xy][0-9\s]{{0,9}})?\Z)?(?P<close>\s{{0,3}}{_CLOSE})?"
    r"|(?P<end>(?:<\s{0,3}box\s{0,3}>\s{0,3})?<\s{0,3}(?:b(?:ox?)?|[xy]\s{0,3}[0-9]{0,9})?\Z)"
    rf"|(?P<broken>{_OPEN}[^<>]{{0,100}}(?P<over>{_CLOSE})?)"
    r"|(?P<done></obj>))",
    re.IGNORECASE,
)
_NUMBERED = re.compile(r"([xy])\s{0,3}([0-9]{1,9})", re.IGNORECASE)
_WHOLE = r"(?:0|[1-9][0-9]{0,8})"
_EXACT = re.compile(rf"<box><x{_WHOLE}><y{_WHOLE}><x{_WHOLE}><y{_WHOLE}></box>")


class Maira2(Codec):
    """The `maira2` codec: four tokens between tags, 100 bins of a square cut from the middle.

        <obj>Small left effusion. <box><x55><y45><x70><y56></box></obj>    x_min y_min x_max y_max

    As the model's own public processor. Boxes of one phrase follow each other without a gap; the
    phrase is read as each one's label. It is prose for all that: it stays where a box is replaced,
    and writing boxes adds none. Read leniently, tags and neatness may be missing, as long as four
    tokens x, y, x, y stand together.
    """

    name: ClassVar[str] = "maira2"
    frame: ClassVar[Frame] = InputBins(100)
    separator: ClassVar[str] = ""

    def makers_geometry(self, height: int, width: int) -> BoxGeometry:
        return center_crop_geometry(height, width)

    def _write(self, grid: list[int]) -> str:
        x_min, y_min, x_max, y_max = grid
        return f"<box><x{x_min}><y{y_min}><x{x_max}><y{y_max}></box>"

    def _candidates(self, text: str) -> Iterator[Candidate]:
        label = None
        for item in _ITEM.finditer(text):
            start, end = item.span()
            if item["phrase"] is not None:
                label = item["label"].strip() or None
            elif item["done"] is not None:
                label = None
            elif item["tokens"] is None:
                cut = end == len(text) and item["over"] is None
                yield Candidate(start, end, "truncated" if cut else "malformed")
            else:
                yield _read(text, item, label)


def _read(text: str, item: re.Match[str], label: str | None) -> Candidate:
    start, end = item.span()
    found = _NUMBERED.findall(item["tokens"])
    failure: FailureCategory | None = None
    if item["cut"] is not None or (len(found) < 4 and item["close"] is None and end == len(text)):
        failure = "truncated"
    elif len(found) != 4:
        failure = "wrong_arity"
    elif [axis.lower() for axis, _ in found] != ["x", "y", "x", "y"]:
        failure = "malformed"
    if failure is not None:
        return Candidate(start, end, failure)
    exact = _EXACT.fullmatch(text, start, end) is not None
    return Candidate(start, end, None, [float(number) for _, number in found], exact, label)
