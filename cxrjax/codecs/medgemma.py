"""Fenced JSON lists of boxes, y first, in thousandths: MedGemma 1.5's and Gemini's.

MedGemma's, of the zero-padded square (Gemini's are of the image itself):

    ```json[{"box_2d":[457,337,610,807],"label":"Cardiomegaly"}]```    y_min x_min y_max x_max

Whole numbers from 0 to 1,000, both included, of the image after it was padded with zeros to a
square, centred (of an odd number of missing rows or columns the smaller half comes first). Grammar
and frame: MedGemma's public notebooks, whose prompt asks for this form; the MedGemma 1.5 paper's
text speaks of [0, 1] instead. The padding belongs to the convention, so `geometry` changes nothing.

What counts as the answer is what follows the thinking part, `<unused94>...<unused95>`, and the last
"Final Answer:". Thinking that never ends is an answer cut off before it began. Exact is a fenced
list of JSON objects with "box_2d" and, if there is one, "label", with or without JSON's optional
spaces; an empty list says that there is no box. Read leniently, the fence, quotes and braces may be
missing and more keys be there, and four numbers within [0, 1] that are not all whole are fractions
of the square. A list of several boxes is shared out among their spans, its brackets with the first
and the last, so that text with the spans replaced has no rest of it.
"""

import json
import re
from collections.abc import Iterator
from typing import ClassVar

from cxrjax.codecs.base import Candidate
from cxrjax.codecs.frames import Frame, ImageSteps, PaddedSquareSteps
from cxrjax.codecs.reading import WHOLE, Listed, four_numbers, unclosed

LARGEST = 1000

# Bounded repeats throughout: the time is linear in the text, whatever the text.
_S = r"[ \t\r\n]{0,60}"
_STRING = r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4}){0,200}"'
_LABEL = rf'"label"{_S}:{_S}{_STRING}'
_BOX = rf'"box_2d"{_S}:{_S}\[' + rf"{_S},".join([rf"{_S}{WHOLE}"] * 4) + rf"{_S}\]"
_EXACT = rf"\{{{_S}(?:{_LABEL}{_S},{_S}{_BOX}|{_BOX}(?:{_S},{_S}{_LABEL})?){_S}\}}"
_OPEN, _CLOSE = rf"```json{_S}\[{_S}", rf"{_S}\]{_S}```"
_ITEM = re.compile(
    rf"(?P<open>{_OPEN})?(?:(?P<exact>{_EXACT})"
    rf"|(?i:(?:\{{[^{{}}\[\]]{{0,300}}?)?[\"']?\bbox_2d[\"']?{_S}[:=]?{_S}(?P<list>\[)?"
    r"(?P<body>[^\[\]{}]{0,200})(?P<end>\])?(?:[^{}\[\]]{0,300}\})?))"
    rf"(?P<close>{_CLOSE})?"
    # The end of the text within the fence, or within the name of the first key.
    r"|(?i:```json\s{0,60}\[?\s{0,60}|[\[,]\s{0,60}\{\s{0,60}[\"']?"
    r"|\{\s{0,60}[\"']b(?:o(?:x(?:_2?)?)?)?)\Z"
)
_NUMBERS = re.compile(
    rf'"box_2d"{_S}:{_S}\[{_S}(?P<y_min>{WHOLE}){_S},{_S}(?P<x_min>{WHOLE}){_S},'
    rf"{_S}(?P<y_max>{WHOLE}){_S},{_S}(?P<x_max>{WHOLE}){_S}\]"
)
_LABEL_TEXT = re.compile(r"label[\"']?\s{0,60}[:=]\s{0,60}[\"']([^\"']{1,200})[\"']", re.IGNORECASE)
_THINKING = re.compile(r"<unused94>.*?(?:<unused95>|(?P<endless>\Z))", re.DOTALL)
_FINAL = re.compile(r"final answer\s{0,9}:", re.IGNORECASE)


class MedGemmaJson(Listed):
    """The `medgemma_json` codec. The grid is thousandths of the padded square."""

    name: ClassVar[str] = "medgemma_json"
    frame: ClassVar[Frame] = PaddedSquareSteps(LARGEST)
    item: ClassVar[re.Pattern[str]] = _ITEM
    number_pattern: ClassVar[re.Pattern[str]] = _NUMBERS
    max_digits: ClassVar[int] = 4

    def _write_all(self, boxes: list[tuple[list[int], str | None]]) -> str:
        if not boxes:
            return ""
        objects = []
        for grid, label in boxes:
            named = "" if label is None else ',"label":' + json.dumps(label, ensure_ascii=False)
            objects.append(f'{{"box_2d":{self._write(grid)}{named}}}')
        return f"```json[{self.separator.join(objects)}]```"

    def _write(self, grid: list[int]) -> str:
        x_min, y_min, x_max, y_max = grid
        return f"[{y_min},{x_min},{y_max},{x_max}]"

    def _candidates(self, text: str) -> Iterator[Candidate]:
        answer, endless = _answer(text)
        yield from super()._candidates(answer)
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
                label = _printable(fields.get("label"))
                yield Candidate(start, end, None, _xyxy(fields["box_2d"]), exact, label)
            elif not (item["list"] and item["end"]):
                yield unclosed(text, start, end)
            else:
                numbers = four_numbers(item["body"])
                if isinstance(numbers, str):
                    yield Candidate(start, end, numbers)
                else:
                    grid = _xyxy(_thousandths(numbers))
                    named = _LABEL_TEXT.search(item[0])
                    yield Candidate(start, end, None, grid, False, named and named[1])


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
    return (" " * ends[-1] + text[ends[-1] :] if ends else text), endless


def _thousandths(numbers: list[float]) -> list[float]:
    """Numbers as written; fractions of the square where they can be nothing else."""
    fractions = all(0 <= x <= 1 for x in numbers) and not all(x.is_integer() for x in numbers)
    return [x * LARGEST for x in numbers] if fractions else numbers


def _printable(label: str | None) -> str | None:
    """Without halves of surrogate pairs, which JSON can spell and no file can hold."""
    return label and label.encode("utf-8", "replace").decode()


def _xyxy(y_first: list[float]) -> tuple[float, float, float, float]:
    y_min, x_min, y_max, x_max = map(float, y_first)
    return x_min, y_min, x_max, y_max


class GeminiJson(MedGemmaJson):
    """The `gemini_json` codec. The grid is thousandths of the image, its far edges included."""

    name: ClassVar[str] = "gemini_json"
    frame: ClassVar[Frame] = ImageSteps(LARGEST)
