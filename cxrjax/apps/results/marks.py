"""Marks where an answer and its reference differ, and where box notation stands in both.

A text becomes a list of pieces: plain strings, and (string, kind) where something is to be set
apart. `mark_words` compares words, whatever these mean: "effusion" beside "no effusion" differs by
one word. `mark_facts` compares facts, as rules tell them apart. Kinds after ViX-Ray's appendix D,
whose colours the page has:

    incorrect   other words than the reference has in that place (in both texts)
    added       words that the reference does not have
    missing     words of the reference that the answer does not have
    redundant   facts that the answer has said before
    correct     facts that both have; only where facts are compared
    box         box notation, which is drawn on the image and not compared as text
"""

import difflib
import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import NamedTuple

from cxrjax.radiology_text.facts import FactLabel, align

INCORRECT, ADDED, MISSING, BOX = "incorrect", "added", "missing", "box"

Piece = str | tuple[str, str]
# (answer, reference, language) -> the pieces of both.
Marker = Callable[[str, str, str], tuple[list[Piece], list[Piece]]]

# <loc0123>..., <loc_1_2_3_4>, [[1, 2, 3, 4]] and the like: numbers in brackets, two at least; and
# what is left of location tokens where an answer was cut off.
_NOTATION = re.compile(
    r"(?:<loc[0-9_]+>)+|<loc[0-9_]*>?|\[[\[(\s]*\d[\d.,\s\[\]()]*,[\d.,\s\[\]()]*\]"
)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_WORD = re.compile(r"\w+(?:[.,]\d+)*")
# Beyond this many words a side, finding the differences takes seconds (they are quadratic).
_MAX_WORDS = 2000


class MarkedSpan(NamedTuple):
    """Characters `start` to `end` of a text, to be set apart as `kind`."""

    start: int
    end: int
    kind: str


def mark_words(answer: str, reference: str, lang: str = "en") -> tuple[list[Piece], list[Piece]]:
    """Pieces of the answer and of the reference, with the words that differ set apart.

    Letter case, punctuation and box notation are no difference. Without a reference or an answer,
    or in texts of many thousand words, nothing is marked but boxes.
    """
    sides = answer, reference
    boxes = [[MarkedSpan(*m.span(), BOX) for m in _NOTATION.finditer(side)] for side in sides]
    words = [_words(side, found) for side, found in zip(sides, boxes, strict=True)]
    marked = [list(found) for found in boxes]
    if all(words) and max(map(len, words)) <= _MAX_WORDS:
        said, true = (
            [side[word.start : word.end].lower() for word in found]
            for side, found in zip(sides, words, strict=True)
        )
        matcher = difflib.SequenceMatcher(None, said, true, autojunk=False)
        for tag, *ends in matcher.get_opcodes():
            if tag == "equal":
                continue
            for place, (first, last) in enumerate((ends[:2], ends[2:])):
                if first < last:
                    alone = ADDED if place == 0 else MISSING
                    kind = INCORRECT if tag == "replace" else alone
                    marked[place] += _runs(words[place][first:last], boxes[place], kind)
    return pieces(answer, marked[0]), pieces(reference, marked[1])


def mark_facts(answer: str, reference: str, lang: str) -> tuple[list[Piece], list[Piece]]:
    """Pieces of both texts by the facts in them (`align`), in Unicode's NFC."""
    texts = [unicodedata.normalize("NFC", text) for text in (answer, reference)]
    marked: list[list[MarkedSpan]] = [[], []]
    # Without an answer beside it, a reference has nothing to be marked for.
    for fact in align(texts[0], texts[1], lang) if all(texts) else ():
        kind = ADDED if fact.label is FactLabel.HALLUCINATED else str(fact.label)
        for spans, span in zip(marked, (fact.predicted_span, fact.reference_span), strict=True):
            if span is not None:
                spans.append(MarkedSpan(*span, kind))
    return pieces(texts[0], marked[0]), pieces(texts[1], marked[1])


def pieces(text: str, spans: Iterable[MarkedSpan]) -> list[Piece]:
    """The text cut at spans; of spans that overlap the earlier one counts, the rest is cut off."""
    cut: list[Piece] = []
    at = 0
    for start, end, kind in sorted(spans):
        start = max(start, at)
        if start >= end:
            continue
        if at < start:
            cut.append(text[at:start])
        cut.append((text[start:end], kind))
        at = end
    if at < len(text):
        cut.append(text[at:])
    return cut


def in_words(found: Iterable[Piece]) -> list[Piece]:
    """Replaces box text by the numbers of the boxes: "(1)", "(2)"."""
    worded: list[Piece] = []
    number = 0
    for piece in found:
        if isinstance(piece, str) or piece[1] != BOX:
            worded.append(piece)
            continue
        boxes = max(1, len(_NUMBER.findall(piece[0].replace("_", " "))) // 4)
        told = (f"({one})" for one in range(number + 1, number + boxes + 1))
        worded.append((" ".join(told), BOX))
        number += boxes
    return worded


def _words(text: str, boxes: list[MarkedSpan]) -> list[MarkedSpan]:
    """The words outside boxes."""
    inside = iter([*boxes, MarkedSpan(len(text), len(text), BOX)])
    box = next(inside)
    found = []
    for match in _WORD.finditer(text):
        while box.end <= match.start() and box.start < len(text):
            box = next(inside)
        if match.start() < box.start:
            found.append(MarkedSpan(*match.span(), ""))
    return found


def _runs(words: list[MarkedSpan], boxes: list[MarkedSpan], kind: str) -> list[MarkedSpan]:
    """One span over neighbouring words; boxes between them part it."""
    runs = [MarkedSpan(words[0].start, words[0].end, kind)]
    for word in words[1:]:
        start, end, _ = runs[-1]
        if any(end <= box.start and box.end <= word.start for box in boxes):
            runs.append(MarkedSpan(word.start, word.end, kind))
        else:
            runs[-1] = MarkedSpan(start, word.end, kind)
    return runs
