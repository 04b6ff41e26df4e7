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
    cut_tag,
    four_or_failure,
    label_of,
    lenient_tag,
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
        r"(?P<box><\s{0,3}loc(?P<body>[-+0-9._,;:\s]*)(?P<end>>?)|<\s{0,3}(?:lo?)?\Z"
        # Without brackets it is one where all of it is there.
        r"|(?<![<\w])loc(?P<bare>(?:[_,;:\s]{1,3}[0-9]{1,9}(?:\.[0-9]{1,9})?){4})(?![_.]?[0-9]))",
        re.IGNORECASE,
    )
    between: ClassVar[re.Pattern[str]] = re.compile(r"[_,;:\s]+")

    def _write(self, grid: list[int]) -> str:
        return "<loc_" + "_".join(str(value) for value in grid) + ">"


_SHARE = r"(?:[01]?\.[0-9]{1,9}|[0-9]{1,3}(?:\.[0-9]{1,9})?\s?%|[01](?![0-9.]))"


class RadVlm(OneByOne):
    """The `radvlm` codec: fractions of the image with two decimals, 1.00 included.

        The opacity is located at [0.12, 0.30, 0.55, 0.71].    x_min y_min x_max y_max

    RadVLM's own code (its data preparation) writes them so. The grid is hundredths. Read leniently,
    parentheses may stand for the brackets, and percents, all four of them, for fractions.
    """

    name: ClassVar[str] = "radvlm"
    frame: ClassVar[Frame] = ImageSteps(100)
    separator: ClassVar[str] = " "
    scale: ClassVar[float] = 100
    edges: ClassVar[str | None] = ""
    # The sign is for `out_of_range`, as of WHOLE.
    exact: ClassVar[re.Pattern[str]] = re.compile(
        r"\[" + ", ".join([r"-?(?:0|[1-9][0-9]{0,8})\.[0-9]{2}"] * 4) + r"\]"
    )
    item: ClassVar[re.Pattern[str]] = re.compile(
        r"(?P<box>\[\s{0,9}(?:(?=[-+.]?[0-9])|(?=[-+.]?\Z))(?P<body>[-+0-9.,;%\s]{0,200})"
        r"(?P<end>\])?"
        # In parentheses it is one where four fractions or percents stand in them.
        rf"|\((?P<bare>\s{{0,9}}(?:{_SHARE}\s{{0,9}}[,;]?\s{{0,9}}){{3}}{_SHARE}\s{{0,9}})\))"
    )
    percents: ClassVar[bool] = True

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


_INSIDE = r"[-+0-9.,;\s]"
_TWO_CORNERS = re.compile(
    rf"\((?P<x_min>{WHOLE}),(?P<y_min>{WHOLE})\),\((?P<x_max>{WHOLE}),(?P<y_max>{WHOLE})\)"
)
_PAIR = re.compile(rf"\({_INSIDE}{{1,40}}\)\s{{0,3}},?\s{{0,3}}\({_INSIDE}{{1,40}}\)")
_FOUR_IN_LIST = re.compile(r"\[\s{0,9}[-+0-9.]{1,12}(?:[,;\s]{1,9}[-+0-9.]{1,12}){3}\s{0,9}\]")
_BETWEEN_CORNERS = re.compile(r"[,;()\[\]\s]+")


def _corners(tags: tuple[str, str], name_tags: tuple[str, str]) -> re.Pattern[str]:
    """Finds boxes between tags, or without them where two pairs of parentheses stand together."""
    return re.compile(
        rf"(?:{re.escape(name_tags[0])}(?P<label>[^<>]{{0,300}}){re.escape(name_tags[1])}\s{{0,3}})?"
        rf"(?P<box>(?P<open>{lenient_tag(tags[0])})(?P<tagged>[-+0-9.,;()\[\]\s]{{0,400}})"
        # What the end of the text may have left of the closing tag.
        rf"(?:(?P<close>{lenient_tag(tags[1])})|{cut_tag(tags[1])})?"
        rf"|\(\s{{0,9}}(?P<first>[-+.0-9]{_INSIDE}{{0,40}})\)\s{{0,3}},?\s{{0,3}}"
        rf"\((?P<second>{_INSIDE}{{0,40}})(?P<end>\))?"
        rf"|{cut_tag(tags[0])})",
        re.IGNORECASE,
    )


class CheXagent(Codec):
    """The `chexagent` codec: two corners between tags, hundredths of the image, 100 included.

        <|ref|>small left effusion<|/ref|><|box|>(55,45),(70,56)<|/box|>    x_min y_min x_max y_max

    CheXagent-2's own code divides them by 100 and multiplies by width and height. Read leniently,
    tags or two pairs of parentheses must say that it is a box, and several may stand in one tag.
    """

    name: ClassVar[str] = "chexagent"
    frame: ClassVar[Frame] = ImageSteps(100)
    separator: ClassVar[str] = ""
    number_pattern: ClassVar[re.Pattern[str]] = _TWO_CORNERS
    max_digits: ClassVar[int] = 3
    tags: ClassVar[tuple[str, str]] = ("<|box|>", "<|/box|>")
    item: ClassVar[re.Pattern[str]] = _corners(tags, ("<|ref|>", "<|/ref|>"))

    def _write(self, grid: list[int]) -> str:
        x_min, y_min, x_max, y_max = grid
        return f"{self.tags[0]}({x_min},{y_min}),({x_max},{y_max}){self.tags[1]}"

    def _candidates(self, text: str) -> Iterator[Candidate]:
        for item in self.item.finditer(text):
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
            if several := _several(item["tagged"] or ""):
                yield from self._split(item, several)
                continue
            exact = self._is_exact(text[start:end])
            read = four_or_failure(start, end, body, exact, label_of(item), _BETWEEN_CORNERS)
            if read.failure == "wrong_arity" and not closed and end == len(text):
                read = Candidate(start, end, "truncated")
            yield read

    def _is_exact(self, written: str) -> bool:
        opening, closing = self.tags
        inside = written.removeprefix(opening).removesuffix(closing)
        whole = len(inside) == len(written) - len(opening) - len(closing)
        return whole and _TWO_CORNERS.fullmatch(inside) is not None

    def _split(self, item: re.Match[str], pairs: list[re.Match[str]]) -> Iterator[Candidate]:
        """Boxes that share a tag, which goes to the first and the last of them."""
        at = item.start("tagged")
        for pair in pairs:
            start = item.start("box") if pair is pairs[0] else at + pair.start()
            end = item.end("box") if pair is pairs[-1] else at + pair.end()
            yield four_or_failure(start, end, pair[0], False, label_of(item), _BETWEEN_CORNERS)


def _several(tagged: str) -> list[re.Match[str]]:
    """Boxes between tags, as pairs of corners or lists of four; [] where there are not several."""
    for one in (_PAIR, _FOUR_IN_LIST):
        found = list(one.finditer(tagged))
        if len(found) > 1 and not one.sub("", tagged).strip(" ,;[]\t\r\n"):
            return found
    return []


class QwenVl(CheXagent):
    """The `qwen_vl` codec: two corners between tags, thousandths of the image, 1,000 included.

        <ref>opacity</ref><box>(120,300),(550,710)</box>    x_min y_min x_max y_max

    Qwen-VL's own code multiplies by width and height and divides by 1,000 (arXiv 2308.12966,
    section 2.2); the model sees the image stretched to a square, which moves no fraction.
    """

    name: ClassVar[str] = "qwen_vl"
    frame: ClassVar[Frame] = ImageSteps(1000)
    max_digits: ClassVar[int] = 4
    tags: ClassVar[tuple[str, str]] = ("<box>", "</box>")
    item: ClassVar[re.Pattern[str]] = _corners(tags, ("<ref>", "</ref>"))


class Qwen2Vl(QwenVl):
    """The `qwen2_vl` codec: Qwen-VL's numbers between other tags (arXiv 2409.12191, section 2.2).

    <|object_ref_start|>opacity<|object_ref_end|><|box_start|>(120,300),(550,710)<|box_end|>

    The model sees both sides resized to multiples of 28, which moves no fraction.
    """

    name: ClassVar[str] = "qwen2_vl"
    tags: ClassVar[tuple[str, str]] = ("<|box_start|>", "<|box_end|>")
    item: ClassVar[re.Pattern[str]] = _corners(tags, ("<|object_ref_start|>", "<|object_ref_end|>"))


def _listed_numbers(comma: str) -> re.Pattern[str]:
    names = ("x_min", "y_min", "x_max", "y_max")
    return re.compile(r"\[" + comma.join(f"(?P<{name}>{WHOLE})" for name in names) + r"\]")


def _tagged_lists(tags: tuple[str, str], name_tags: tuple[str, str]) -> re.Pattern[str]:
    """Finds boxes in lists of lists between tags, or lists of four numbers without them."""
    opening, closing = map(lenient_tag, tags)
    return re.compile(
        rf"(?:{re.escape(name_tags[0])}(?P<label>[^<>]{{0,300}}){re.escape(name_tags[1])}\s{{0,9}})?"
        rf"(?P<box>(?P<open>{opening}\s{{0,9}}(?:\[\s{{0,9}}(?=\[))?)?"
        r"\[\s{0,9}(?:(?=[-+.0-9])|(?=\Z))(?P<body>[-+0-9.,;\s]{0,200})(?P<end>\])?"
        rf"(?P<close>\s{{0,9}}\]?\s{{0,9}}{closing})?"
        # The end of the text before a number.
        rf"|{opening}\s{{0,9}}\[{{0,2}}\Z|{cut_tag(tags[0])})",
        re.IGNORECASE,
    )


class InternVl(Listed):
    """The `internvl` codec: lists between tags, thousandths of the image, 1,000 included.

        <ref>opacity</ref><box>[[120, 300, 550, 710]]</box>    x_min y_min x_max y_max

    Of the image as it is, whatever tiles the model cuts it into (InternVL's documentation).
    """

    name: ClassVar[str] = "internvl"
    frame: ClassVar[Frame] = ImageSteps(1000)
    number_pattern: ClassVar[re.Pattern[str]] = _listed_numbers(", ?")
    max_digits: ClassVar[int] = 4
    edges: ClassVar[str | None] = ""
    tags: ClassVar[tuple[str, str]] = ("<box>", "</box>")
    item: ClassVar[re.Pattern[str]] = _tagged_lists(tags, ("<ref>", "</ref>"))
    # Whether one box may stand between the tags without a list around it.
    single: ClassVar[bool] = False

    def _write_all(self, boxes: list[tuple[list[int], str | None]]) -> str:
        listed = super()._write_all(boxes)
        return listed and f"{self.tags[0]}[{listed}]{self.tags[1]}"

    def _read_list(self, text: str, items: list[re.Match[str]]) -> Iterator[Candidate]:
        opening, closing = self.tags
        whole = text[items[0].start("box") : items[-1].end()]
        nested = whole.startswith(f"{opening}[[") and whole.endswith(f"]]{closing}")
        single = len(items) == 1 and self.single and whole.startswith(f"{opening}[")
        label = label_of(items[0])
        for item in items:
            start, end = item.span("box")
            if item["body"] is None or item["end"] is None:
                yield unclosed(text, start, end)
            else:
                written = text[start:end].removeprefix(opening).removesuffix(closing)
                if nested:
                    written = written[item is items[0] : len(written) - (item is items[-1])]
                exact = (nested or single) and self.number_pattern.fullmatch(written) is not None
                yield four_or_failure(start, end, item["body"], exact, label)


class DeepSeekVl2(InternVl):
    """The `deepseek_vl2` codec: lists between tags, 0 to 999 over the image.

        <|ref|>opacity<|/ref|><|det|>[[120, 300, 550, 710]]<|/det|>    x_min y_min x_max y_max

    DeepSeek-VL2's own code divides by 999 and multiplies by width and height (arXiv 2412.10302).
    """

    name: ClassVar[str] = "deepseek_vl2"
    frame: ClassVar[Frame] = ImageSteps(999)
    max_digits: ClassVar[int] = 3
    tags: ClassVar[tuple[str, str]] = ("<|det|>", "<|/det|>")
    item: ClassVar[re.Pattern[str]] = _tagged_lists(tags, ("<|ref|>", "<|/ref|>"))


class GlmV(InternVl):
    """The `glm_v` codec: lists between tags, thousandths of the image, 1,000 included.

        It is at <|begin_of_box|>[[120,300,550,710]]<|end_of_box|>.    x_min y_min x_max y_max

    GLM-4.1V's, 4.5V's and 4.6V's (arXiv 2507.01006, and their repository); one box may also stand
    there without a list around it.
    """

    name: ClassVar[str] = "glm_v"
    tags: ClassVar[tuple[str, str]] = ("<|begin_of_box|>", "<|end_of_box|>")
    item: ClassVar[re.Pattern[str]] = _tagged_lists(tags, ("<ref>", "</ref>"))
    single: ClassVar[bool] = True


SIDE = 224

_LOCATION = r"<\s{0,3}location\s{0,3}>"
_OPENED = re.compile(r"<location> ?\[")


class Gemex(Listed):
    """The `gemex` codec: a list behind a tag, corners of the 224-pixel frame's pixels.

    The heart is enlarged. <location> [[60, 88, 180, 196]]    x_min y_min x_max y_max
    """

    name: ClassVar[str] = "gemex"
    of_whole_answer: ClassVar[bool] = True
    empty_list: ClassVar[str] = "<location>[]"
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
        r"|<(?:l(?:o(?:c(?:a(?:t(?:i(?:on?)?)?)?)?)?)?)?\Z"
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
