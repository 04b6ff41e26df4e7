"""Boxes within an answer's prose, in brackets, tags or braces, one by one or in lists.

All but LLaVA's are of the whole image, so that the model's input plays no part and `geometry`
changes nothing. A phrase in tags right before a box is its label; it is prose for all that: it
stays where a box is replaced, and writing boxes adds none. Read leniently, spaces, separators and
neatness may differ, and tags may be missing where what is left can only be a box. A list of several
boxes is shared out among their spans, tags and brackets with the first and the last.
"""

import re
from collections.abc import Iterator
from typing import ClassVar

from cxrjax.codecs.base import Candidate, Codec
from cxrjax.codecs.frames import Frame, ImagePixels, ImageSteps, PaddedSquareSteps
from cxrjax.codecs.reading import (
    WHOLE,
    Listed,
    OneByOne,
    four_numbers,
    four_or_failure,
    label_of,
    unclosed,
)

# Bounded repeats throughout: the time is linear in the text, whatever the text. A body begins like
# a number: letters in brackets are the options of an answer.


class VinDrPixels(OneByOne):
    """The `vindr_px` codec: corners of the original image's pixels.

        The Lung Opacity is located at <loc_1365_1304_1772_1646>.    x_min y_min x_max y_max

    An x lies in [0, width], a y in [0, height], both edges included, as corners of pixels rather
    than pixels are meant. VinDr-CXR-VQA (arXiv 2511.00504v2), section 2.1 and figure 2.
    """

    name: ClassVar[str] = "vindr_px"
    frame: ClassVar[Frame] = ImagePixels()
    separator: ClassVar[str] = " "
    exact: ClassVar[re.Pattern[str]] = re.compile(
        rf"<loc_(?P<x_min>{WHOLE})_(?P<y_min>{WHOLE})_(?P<x_max>{WHOLE})_(?P<y_max>{WHOLE})>"
    )
    number_pattern: ClassVar[re.Pattern[str]] = exact
    max_digits: ClassVar[int] = 5
    item: ClassVar[re.Pattern[str]] = re.compile(
        r"(?P<box><\s{0,3}loc(?P<body>[-+0-9._,;:\s]*)(?P<end>>?)|<\s{0,3}(?:lo?)?\Z)",
        re.IGNORECASE,
    )
    between: ClassVar[re.Pattern[str]] = re.compile(r"[_,;:\s]+")

    def _write(self, grid: list[int]) -> str:
        return "<loc_" + "_".join(str(value) for value in grid) + ">"


class RadVlm(OneByOne):
    """The `radvlm` codec: fractions of the image with two decimals, 1.00 included.

        The opacity is located at [0.12, 0.30, 0.55, 0.71].    x_min y_min x_max y_max

    RadVLM's own code (its data preparation) writes them so. The grid is hundredths.
    """

    name: ClassVar[str] = "radvlm"
    frame: ClassVar[Frame] = ImageSteps(100)
    separator: ClassVar[str] = " "
    scale: ClassVar[float] = 100
    # The sign is for `out_of_range`, as of WHOLE.
    exact: ClassVar[re.Pattern[str]] = re.compile(
        r"\[" + ", ".join([r"-?(?:0|[1-9][0-9]{0,8})\.[0-9]{2}"] * 4) + r"\]"
    )
    item: ClassVar[re.Pattern[str]] = re.compile(
        r"(?P<box>\[\s{0,9}(?:(?=[-+.]?[0-9])|(?=[-+.]?\Z))(?P<body>[-+0-9.,;\s]{0,200})"
        r"(?P<end>\])?)"
    )

    def _write(self, grid: list[int]) -> str:
        return "[" + ", ".join(f"{value // 100}.{value % 100:02d}" for value in grid) + "]"


class Llava(RadVlm):
    """The `llava` codec: LLaVA-1.5's, written as RadVLM's, of the padded square.

    LLaVA-1.5 pads images to a square, centred, before it looks, and was tuned on boxes of that
    square (its public training data and its issue tracker; the paper gives the form alone, arXiv
    2310.03744). The padding belongs to the convention, so `geometry` changes nothing.
    """

    name: ClassVar[str] = "llava"
    frame: ClassVar[Frame] = PaddedSquareSteps(100)


class MiniGpt(OneByOne):
    """The `minigpt` codec: MiniGPT-v2's, which MiniGPT-Med kept; hundredths, 100 included.

        <p>opacity</p> {<12><30><55><71>}    x_min y_min x_max y_max

    Of the image stretched to the model's square (arXiv 2310.09478, section 2.3).
    """

    name: ClassVar[str] = "minigpt"
    frame: ClassVar[Frame] = ImageSteps(100)
    separator: ClassVar[str] = "<delim>"
    exact: ClassVar[re.Pattern[str]] = re.compile(
        rf"\{{<(?P<x_min>{WHOLE})><(?P<y_min>{WHOLE})><(?P<x_max>{WHOLE})><(?P<y_max>{WHOLE})>\}}"
    )
    number_pattern: ClassVar[re.Pattern[str]] = exact
    max_digits: ClassVar[int] = 3
    item: ClassVar[re.Pattern[str]] = re.compile(
        r"(?:<p>(?P<label>[^<>]{0,300})</p>\s{0,9})?"
        r"(?P<box>\{\s{0,9}(?:(?=[<\-+.0-9])|(?=\Z))(?P<body>[-+0-9.,;<>\s]{0,120})(?P<end>\})?)"
    )
    between: ClassVar[re.Pattern[str]] = re.compile(r"[<>,;\s]+")

    def _write(self, grid: list[int]) -> str:
        return "{" + "".join(f"<{value}>" for value in grid) + "}"


_BOX_TAG, _END_TAG = r"<\s{0,3}\|?box\|?\s{0,3}>", r"<\s{0,3}\|?/\s{0,3}box\|?\s{0,3}>"
_INSIDE = r"[-+0-9.,;\s]"
_TWO_CORNERS = re.compile(
    rf"\((?P<x_min>{WHOLE}),(?P<y_min>{WHOLE})\),\((?P<x_max>{WHOLE}),(?P<y_max>{WHOLE})\)"
)
_EXACT_CORNERS = re.compile(rf"<\|box\|>\({WHOLE},{WHOLE}\),\({WHOLE},{WHOLE}\)<\|/box\|>")
_CORNERS = re.compile(
    r"(?:<\|ref\|>(?P<label>[^<>]{0,300})<\|/ref\|>\s{0,3})?"
    rf"(?P<box>(?P<open>{_BOX_TAG})(?P<tagged>[-+0-9.,;()\[\]\s]{{0,120}})"
    # What the end of the text may have left of the closing tag.
    rf"(?:(?P<close>{_END_TAG})|<\s{{0,3}}\|?/?\s{{0,3}}(?:b(?:ox?)?)?\|?\Z)?"
    rf"|\(\s{{0,9}}(?P<first>[-+.0-9]{_INSIDE}{{0,40}})\)\s{{0,3}},?\s{{0,3}}"
    rf"\((?P<second>{_INSIDE}{{0,40}})(?P<end>\))?"
    r"|<\s{0,3}(?:\|(?:b(?:o(?:x\|?)?)?)?)?\Z)",
    re.IGNORECASE,
)
_BETWEEN_CORNERS = re.compile(r"[,;()\[\]\s]+")


class CheXagent(Codec):
    """The `chexagent` codec: two corners between tags, hundredths of the image, 100 included.

        <|ref|>small left effusion<|/ref|><|box|>(55,45),(70,56)<|/box|>    x_min y_min x_max y_max

    CheXagent-2's own code divides them by 100 and multiplies by width and height. Read leniently,
    tags or two pairs of parentheses must say that it is a box.
    """

    name: ClassVar[str] = "chexagent"
    frame: ClassVar[Frame] = ImageSteps(100)
    separator: ClassVar[str] = ""
    number_pattern: ClassVar[re.Pattern[str]] = _TWO_CORNERS
    max_digits: ClassVar[int] = 3

    def _write(self, grid: list[int]) -> str:
        x_min, y_min, x_max, y_max = grid
        return f"<|box|>({x_min},{y_min}),({x_max},{y_max})<|/box|>"

    def _candidates(self, text: str) -> Iterator[Candidate]:
        for item in _CORNERS.finditer(text):
            start, end = item.span("box")
            body = item["tagged"]
            if body is None and item["first"] is not None:
                body = f"{item['first']} {item['second']}"
            closed = item["close"] is not None or item["end"] is not None
            if body is None or (
                not closed and end == len(text) and not body.rstrip().endswith(")")
            ):
                yield Candidate(start, end, "truncated")
                continue
            numbers = four_numbers(body, _BETWEEN_CORNERS)
            if isinstance(numbers, str):
                cut = numbers == "wrong_arity" and not closed and end == len(text)
                yield Candidate(start, end, "truncated" if cut else numbers)
            else:
                exact = _EXACT_CORNERS.fullmatch(text, start, end) is not None
                yield Candidate(start, end, None, numbers, exact, label_of(item))


def _listed_numbers(comma: str) -> re.Pattern[str]:
    names = ("x_min", "y_min", "x_max", "y_max")
    return re.compile(r"\[" + comma.join(f"(?P<{name}>{WHOLE})" for name in names) + r"\]")


_TAG, _UNTAG = r"<\s{0,3}box\s{0,3}>", r"<\s{0,3}/\s{0,3}box\s{0,3}>"
_LISTED_BOX = r"\[" + ", ".join([WHOLE] * 4) + r"\]"
_EXACT_LISTED = re.compile(rf"(?:<box>\[)?{_LISTED_BOX}(?:\]</box>)?")


class InternVl(Listed):
    """The `internvl` codec: lists between tags, thousandths of the image, 1,000 included.

        <ref>opacity</ref><box>[[120, 300, 550, 710]]</box>    x_min y_min x_max y_max

    Of the image as it is, whatever tiles the model cuts it into (InternVL's documentation).
    """

    name: ClassVar[str] = "internvl"
    frame: ClassVar[Frame] = ImageSteps(1000)
    number_pattern: ClassVar[re.Pattern[str]] = _listed_numbers(", ")
    max_digits: ClassVar[int] = 4
    item: ClassVar[re.Pattern[str]] = re.compile(
        r"(?:<ref>(?P<label>[^<>]{0,300})</ref>\s{0,9})?"
        rf"(?P<box>(?P<open>{_TAG}\s{{0,9}}(?:\[\s{{0,9}}(?=\[))?)?"
        r"\[\s{0,9}(?:(?=[-+.0-9])|(?=\Z))(?P<body>[-+0-9.,;\s]{0,200})(?P<end>\])?"
        rf"(?P<close>\s{{0,9}}\]?\s{{0,9}}{_UNTAG})?"
        # The end of the text before a number.
        rf"|{_TAG}\s{{0,9}}\[{{0,2}}\Z|<(?:b(?:ox?)?)?\Z)",
        re.IGNORECASE,
    )

    def _write_all(self, boxes: list[tuple[list[int], str | None]]) -> str:
        listed = super()._write_all(boxes)
        return listed and f"<box>[{listed}]</box>"

    def _read_list(self, text: str, items: list[re.Match[str]]) -> Iterator[Candidate]:
        whole = text[items[0].start("box") : items[-1].end()]
        exact = whole.startswith("<box>[[") and whole.endswith("]]</box>")
        label = label_of(items[0])
        for item in items:
            start, end = item.span("box")
            if item["body"] is None or item["end"] is None:
                yield unclosed(text, start, end)
            else:
                own = exact and _EXACT_LISTED.fullmatch(text, start, end) is not None
                yield four_or_failure(start, end, item["body"], own, label)


SIDE = 224

_LOCATION = r"<\s{0,3}location\s{0,3}>"
_OPENED = re.compile(r"<location> ?\[")


class Gemex(Listed):
    """The `gemex` codec: a list behind a tag, corners of the 224-pixel frame's pixels.

    The heart is enlarged. <location> [[60, 88, 180, 196]]    x_min y_min x_max y_max
    """

    name: ClassVar[str] = "gemex"
    frame: ClassVar[Frame] = ImageSteps(SIDE)
    number_pattern: ClassVar[re.Pattern[str]] = _listed_numbers(", ?")
    max_digits: ClassVar[int] = 3
    item: ClassVar[re.Pattern[str]] = re.compile(
        rf"(?P<open>(?i:{_LOCATION})\s{{0,60}}(?:\[\s{{0,9}}(?=\[))?)?"
        rf"(?:(?P<exact>\[{', ?'.join([WHOLE] * 4)}\])"
        r"|\[\s{0,9}(?:(?=[-+.0-9])|(?=\Z))(?P<body>[-+0-9.,;\s]{0,200})(?P<end>\])?)"
        r"(?P<close>\s{0,9}\])?"
        # The end of the text before a number.
        rf"|(?i:{_LOCATION})\s{{0,60}}(?:\[\s{{0,9}}){{0,2}}\Z"
        r"|<(?:l(?:o(?:c(?:a(?:t(?:i(?:on?)?)?)?)?)?)?)?\Z",
    )

    def _write_all(self, boxes: list[tuple[list[int], str | None]]) -> str:
        listed = super()._write_all(boxes)
        return listed and f"<location>[{listed}]"

    def _read_list(self, text: str, items: list[re.Match[str]]) -> Iterator[Candidate]:
        opened = items[0]["open"] is not None and _OPENED.fullmatch(items[0]["open"]) is not None
        exact = opened and items[-1]["close"] is not None and all(item["exact"] for item in items)
        for item in items:
            start, end = item.span()
            if item["exact"] is None and item["end"] is None:
                yield unclosed(text, start, end)
            else:
                body = item["exact"][1:-1] if item["exact"] else item["body"]
                yield four_or_failure(start, end, body, exact)
