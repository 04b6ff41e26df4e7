"""Fenced JSON lists of boxes, y first, in thousandths: MedGemma 1.5's and Gemini's.

MedGemma's, of the zero-padded square (Gemini's are of the image itself):

    ```json[{"box_2d":[457,337,610,807],"label":"Cardiomegaly"}]```    y_min x_min y_max x_max

Whole numbers from 0 to 1,000, both included, of the image after it was padded with zeros to a
square, centred (of an odd number of missing rows or columns the smaller half comes first). Grammar
and frame: MedGemma's public notebooks, whose prompt asks for this form; the MedGemma 1.5 paper's
text speaks of [0, 1] instead. The padding belongs to the convention, so `geometry` changes nothing.

What counts as the answer is what follows the thinking part, `<unused94>...<unused95>`, and the last
"Final Answer:" that lists something. Thinking that never ends is an answer cut off before it began.
Exact is a fenced list of JSON objects with "box_2d" and, if there is one, "label", with or without
JSON's optional spaces; an empty list says that there is no box. Read leniently, the fence, quotes
and braces may be missing and more keys be there, the whole list may be quoted, a quoted key may be
another name of a box (`_OTHER_KEYS`) or all keys be missing, null or an empty list stands for no
box, two corners or several boxes may stand in a list of their own, and MedGemma's four numbers
within [0, 1] that are not all whole are fractions of the square, as its paper has them; nothing is
published of Gemini's. A list of several boxes is shared out among their spans, its brackets with
the first and the last, so that text with the spans replaced has no rest of it.

Qwen2.5-VL and Qwen3-VL write the same under "bbox_2d", x first, in other frames.
"""

import json
import re
from collections.abc import Iterator
from typing import ClassVar

from cxrjax.codecs import frames
from cxrjax.codecs.base import Candidate
from cxrjax.codecs.plain import x_or_y_first
from cxrjax.codecs.reading import WHOLE, Listed, are_fractions, four_numbers, unclosed

LARGEST = 1000

# Bounded repeats throughout: the time is linear in the text, whatever the text.
_S = r"[ \t\r\n]{0,60}"
_STRING = r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4}){0,200}"'
_LABEL = rf'"label"{_S}:{_S}{_STRING}'
_NUMBER = r"-?[0-9]{1,5}(?:\.[0-9]{0,6})?%?"
_OPEN, _CLOSE = rf"```json{_S}\[{_S}", rf"{_S}\]{_S}```"
# Names that models give a box's numbers in place of the one that their format has. "box_2d" is none
# of them: where the format writes x first, nobody knows the order of numbers under that key.
_OTHER_KEYS = (
    r"(?:b?box(?:es)?|bbox2d|bounding_?box(?:es)?(?:_2d)?|box_?coordinates|coordinates|coords)"
)
_COORDINATES = ("x_min", "y_min", "x_max", "y_max")


def _items(key: str, keys: str) -> re.Pattern[str]:
    """Finds objects with a box, and what comes near them.

    Args:
        key: what the box stands under. keys: a pattern of what it may stand under, leniently.
    """
    box = rf'"{key}"{_S}:{_S}\[' + rf"{_S},".join([rf"{_S}{WHOLE}"] * 4) + rf"{_S}\]"
    exact = rf"\{{{_S}(?:{_LABEL}{_S},{_S}{box}|{box}(?:{_S},{_S}{_LABEL})?){_S}\}}"
    return re.compile(
        rf"(?P<open>{_OPEN})?(?:(?P<exact>{exact})"
        rf"|(?i:(?:\{{[^{{}}\[\]]{{0,300}}?)?"
        rf"(?:[\"']?\b{keys}[\"']?{_S}[:=]?|[\"']{_OTHER_KEYS}[\"']{_S}:){_S}"
        # None, a list of boxes or of two corners, or a list in quotes without its brackets.
        rf"(?:(?P<none>null|none|\[{_S}(?:(?:null|none){_S},?{_S}){{0,4}}\])"
        rf"|[\"']?(?P<nested>\[{_S}(?:\[[^\[\]{{}}]{{0,200}}\]{_S},?{_S}){{1,50}}\])[\"']?"
        r"|[\"'](?P<quoted>[-+0-9.,;\s]{7,200})[\"']"
        r"|(?P<list>[\"']?\[)?(?P<body>[^\[\]{}]{0,200})(?P<end>\][\"']?)?)"
        r"(?:[^{}\[\]]{0,300}\})?))"
        rf"(?P<close>{_CLOSE})?"
        # The end of the text within the fence, or within the name of the first key.
        r"|(?i:```json\s{0,60}\[?\s{0,60}|[\[,]\s{0,60}\{\s{0,60}[\"']?"
        r"|\{\s{0,60}[\"']b{1,2}(?:o(?:x(?:_2?)?)?)?)\Z"
    )


def _numbers(key: str, order: tuple[int, int, int, int]) -> re.Pattern[str]:
    groups = [f"{_S}(?P<{_COORDINATES[k]}>{WHOLE})" for k in order]
    return re.compile(rf'"{key}"{_S}:{_S}\[' + f"{_S},".join(groups) + rf"{_S}\]")


_BARE = re.compile(rf"\[{_S}({_NUMBER}(?:{_S},{_S}{_NUMBER}){{3}}){_S}\]")
_INNER = re.compile(r"\[([^\[\]]{0,200})\]")
_QUOTES = str.maketrans("", "", "\"'")
_LABEL_TEXT = re.compile(r"label[\"']?\s{0,60}[:=]\s{0,60}[\"']([^\"']{1,200})[\"']", re.IGNORECASE)
_THINKING = re.compile(r"<unused94>.*?(?:<unused95>|(?P<endless>\Z))", re.DOTALL)
_FINAL = re.compile(r"final answer\s{0,9}:", re.IGNORECASE)


class MedGemmaJson(Listed):
    """The `medgemma_json` codec. The grid is thousandths of the padded square."""

    name: ClassVar[str] = "medgemma_json"
    of_whole_answer: ClassVar[bool] = True
    y_first: ClassVar[bool] = True
    frame: ClassVar[frames.Frame] = frames.PaddedSquareSteps(LARGEST)
    key: ClassVar[str] = "box_2d"
    edges: ClassVar[str | None] = '"box_2d":'
    item: ClassVar[re.Pattern[str]] = _items("box_2d", "b?box_2d")
    number_pattern: ClassVar[re.Pattern[str]] = _numbers("box_2d", (1, 0, 3, 2))
    max_digits: ClassVar[int] = 4
    # Whether fractions of 1 are documented too.
    fractions: ClassVar[bool] = True
    percent: ClassVar[bool] = True

    def _write_all(self, boxes: list[tuple[list[int], str | None]]) -> str:
        if not boxes:
            return ""
        objects = []
        for grid, label in boxes:
            named = "" if label is None else ',"label":' + json.dumps(label, ensure_ascii=False)
            objects.append(f'{{"{self.key}":{self._write(grid)}{named}}}')
        return f"```json[{self.separator.join(objects)}]```"

    def _write(self, grid: list[int]) -> str:
        return "[" + ",".join(map(str, x_or_y_first(grid, self.y_first))) + "]"

    def _candidates(self, text: str) -> Iterator[Candidate]:
        answer, endless = _answer(text)
        found = list(super()._candidates(answer))
        if not found and "_2d" not in answer:
            # Without any key, lists of four numbers are its boxes.
            found = [self._read_body(*m.span(), m[1], m) for m in _BARE.finditer(answer)]
        yield from found
        if endless is not None:
            yield Candidate(endless, len(text), "truncated")

    def _read_list(self, text: str, items: list[re.Match[str]]) -> Iterator[Candidate]:
        """Exact where all of the objects and the fence around them are."""
        fenced = items[0]["open"] is not None and items[-1]["close"] is not None
        exact = fenced and all(item["exact"] is not None for item in items)
        for item in items:
            start, end = item.span()
            if item["exact"] is not None:
                fields = json.loads(item["exact"])
                grid = x_or_y_first([float(n) for n in fields[self.key]], self.y_first)
                yield Candidate(start, end, None, grid, exact, _printable(fields.get("label")))
            elif item["none"] is not None:
                continue
            elif item["nested"] is not None:
                yield from self._read_nested(item)
            elif item["quoted"] is not None:
                yield self._read_body(start, end, item["quoted"], item)
            elif not (item["list"] and item["end"]):
                yield unclosed(text, start, end)
            else:
                yield self._read_body(start, end, item["body"], item)

    def _read_nested(self, item: re.Match[str]) -> Iterator[Candidate]:
        """Two corners, or boxes that share what is around them, the first and the last of them."""
        start, end = item.span()
        inner = list(_INNER.finditer(item["nested"]))
        if len(inner) == 2 and all(found[1].count(",") == 1 for found in inner):
            yield self._read_body(start, end, f"{inner[0][1]},{inner[1][1]}", item)
            return
        at = item.start("nested")
        for found in inner:
            first, last = found is inner[0], found is inner[-1]
            begin = start if first else at + found.start()
            yield self._read_body(begin, end if last else at + found.end(), found[1], item)

    def _read_body(self, start: int, end: int, body: str, item: re.Match[str]) -> Candidate:
        """The box whose numbers, quoted or not, are in `body`."""
        percent = self.percent and body.count("%") == 4
        numbers = four_numbers(body.translate(_QUOTES).replace("%", "" if percent else "%"))
        if isinstance(numbers, str):
            return Candidate(start, end, numbers)
        if percent:
            numbers = [number * LARGEST / 100 for number in numbers]
        if self.fractions and are_fractions(numbers) and min(numbers) >= 0:
            numbers = [number * LARGEST for number in numbers]
        grid = x_or_y_first(numbers, self.y_first)
        if are_fractions(numbers):
            return Candidate(start, end, "ambiguous_scale", grid)
        named = _LABEL_TEXT.search(item[0])
        return Candidate(start, end, None, grid, False, named and named[1])


def _answer(text: str) -> tuple[str, int | None]:
    """The text with all that is no answer blanked out, in place; where endless thinking begins."""
    endless = None
    if "<unused94>" in text:
        last = None
        pieces, done = [], 0
        for last in _THINKING.finditer(text):
            pieces += [text[done : last.start()], " " * len(last[0])]
            done = last.end()
        text = "".join([*pieces, text[done:]])
        if last is not None and last["endless"] is not None:
            endless = last.start()
    ends = [match.end() for match in _FINAL.finditer(text)]
    if ends:
        # One that says in prose what an earlier one has in a list takes nothing back.
        stops = [*ends[1:], len(text)]
        listed = [end for end, stop in zip(ends, stops, strict=True) if "[" in text[end:stop]]
        last_end = (listed or ends)[-1]
        text = " " * last_end + text[last_end:]
    return text, endless


def _printable(label: str | None) -> str | None:
    """Removes halves of surrogate pairs, which JSON can spell but no file can hold."""
    return label and label.encode("utf-8", "replace").decode()


class GeminiJson(MedGemmaJson):
    """The `gemini_json` codec. The grid is thousandths of the image, its far edges included."""

    name: ClassVar[str] = "gemini_json"
    frame: ClassVar[frames.Frame] = frames.ImageSteps(LARGEST)
    fractions: ClassVar[bool] = False


class Qwen25Vl(MedGemmaJson):
    """The `qwen2.5_vl` codec: JSON, x first, pixels of the model's input.

        ```json[{"bbox_2d":[120,300,550,710],"label":"opacity"}]```    x_min y_min x_max y_max

    The input is the image with both sides resized to multiples of 28 (`frames.smart_resize`), as
    Qwen2.5-VL's own code and notebooks do (arXiv 2502.13923, section 2.2.1), with the limits of its
    published processor. Who sets other limits has other pixels: give boxes as fractions then.
    """

    name: ClassVar[str] = "qwen2.5_vl"
    frame: ClassVar[frames.Frame] = frames.SmartResizedPixels()
    y_first: ClassVar[bool] = False
    fractions: ClassVar[bool] = False
    percent: ClassVar[bool] = False  # of an input that the text does not tell
    max_digits: ClassVar[int] = 5
    key: ClassVar[str] = "bbox_2d"
    edges: ClassVar[str | None] = '"bbox_2d":'
    item: ClassVar[re.Pattern[str]] = _items("bbox_2d", "bbox_2d")
    number_pattern: ClassVar[re.Pattern[str]] = _numbers("bbox_2d", (0, 1, 2, 3))


class Qwen25VlInput(Qwen25Vl):
    """The codecs `qwen2.5_vl_448` and `qwen2.5_vl_HEIGHTxWIDTH[,HEIGHTxWIDTH...]`: of given inputs.

    As Qwen2.5-VL is shown images here, each on its nearest grid; `smart_resize` leaves such an
    input as it is, so that its numbers are those that the model was taught.
    """

    def __init__(self, *grids: tuple[int, int]) -> None:
        sizes = ",".join(f"{height}x{width}" for height, width in grids)
        # The one size that has a name of its own.
        name = "448" if sizes == "448x448" else sizes
        self.name = f"qwen2.5_vl_{name}"  # type: ignore[misc]  # of each, here
        self.frame = frames.InputPixels(*grids)  # type: ignore[misc]
        self.max_digits = len(str(max(map(max, grids))))  # type: ignore[misc]


class Qwen3Vl(Qwen25Vl):
    """The `qwen3_vl` codec: Qwen2.5-VL's JSON, thousandths of the input, 1,000 included.

    Qwen3-VL's own notebooks divide by 1,000 and multiply by width and height, of an image that
    fills the input. Of a padded one (`geometry`) they are thousandths with the padding, which the
    model sees as a part of the image.
    """

    name: ClassVar[str] = "qwen3_vl"
    frame: ClassVar[frames.Frame] = frames.InputSteps(LARGEST)
    percent: ClassVar[bool] = True
    max_digits: ClassVar[int] = 4
