"""Sentences of answers and references, each with its boxes.

Boxes in the text belong to the sentence that they are in or behind. Boxes beside the text, and
lists of the whole answer's boxes, belong to every sentence.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from cxrjax.codecs import CODECS, Codec
from cxrjax.codecs.prose import SIDE
from cxrjax.evaluation.predictions import Prediction, read_boxes
from cxrjax.radiology_text.lexicon import split_sentences
from cxrjax.records import QARecord

Boxes = Float[np.ndarray, "_ 4"]
Places = Sequence[tuple[int, int]]

_LOCATION = "<location"  # the tag before boxes of a whole answer
# Tags between statements, and other notation of boxes: tokens, tags, lists of numbers.
_PARTS = re.compile(r"</?(?:answer|reason|location|obj)>", re.IGNORECASE)
# Short enough that a text of brackets alone takes no longer than its length.
_NOTATION = re.compile(r"<[^<>]{0,200}>|\[[\s\d.,;\[\]-]{0,400}\]|\([\s\d.,-]{0,200}\)")
_MOST_SENTENCES = 200  # more than any answer with content has


class GroundedSentence(NamedTuple):
    """A sentence without notation, and its boxes: float64 [n, 4], fractions of the image."""

    text: str
    boxes: Boxes


@dataclass(frozen=True)
class ReferenceText:
    """The main answers of a record."""

    sentences: tuple[GroundedSentence, ...]
    lang: str
    image_hw: tuple[int, int]  # height and width of its image; 224 x 224 where they are not known
    codec: Codec  # reads answers without boxes of their own, unless another one is requested
    cluster: tuple[str, str] = ("", "")  # of its record

    @property
    def text(self) -> str:
        """The words of all sentences."""
        return plain_text(self.sentences)


def plain_text(sentences: Sequence[GroundedSentence]) -> str:
    """Returns the words of the sentences."""
    return " ".join(sentence.text for sentence in sentences)


def cluster_of(record: QARecord) -> tuple[str, str]:
    """The cluster of a record: its patient, or its image where no patient is known."""
    return ("patient", record.patient_id) if record.patient_id else ("image", record.image_id)


def reference_text(record: QARecord) -> ReferenceText:
    """Reads the main answers, each a text with boxes of its own."""
    height, width = size = record.image_hw or (SIDE, SIDE)
    codec = CODECS[record.codec]
    found: list[GroundedSentence] = []
    for answer in record.answers:
        if answer.answer_type == "main":
            pixels = answer.boxes_by_image.get(record.image_id, [])
            boxes = np.array(pixels, np.float64).reshape(-1, 4) / [width, height, width, height]
            line = Prediction(
                record.question_id, answer.text, boxes if pixels else None, None, "ok"
            )
            found += read_sentences(line, codec, size, record.question_id)
    return ReferenceText(tuple(found), record.lang, size, codec, cluster_of(record))


def read_sentences(
    line: Prediction, codec: Codec, image_hw: tuple[int, int], where: str
) -> tuple[GroundedSentence, ...]:
    """Reads the sentences of a line, at most 200.

    Args:
        codec: finds boxes in the text, which are those of the line where that gives as many.
        where: the file, for error messages.
    """
    read = read_boxes(line, codec, *image_hw, where)
    places = read.places
    if places is None and len(read.boxes):
        geometry = codec.makers_geometry(*image_hw)
        written = codec.read_as_written(line.text, *image_hw, geometry).spans
        if len(written) == len(read.boxes):
            places = tuple((span.start, span.end) for span in written)
        elif written:
            line = replace(line, boxes=None, labels=None, box_scores=None)
            return read_sentences(line, codec, image_hw, where)
    words = without_notation(line.text, places or ())
    # What ends in a colon ("Final Answer:") announces what was removed.
    spans = [
        s for s in split_sentences(words) if words[slice(*s)].rstrip(" \n`")[-1:] not in ("", ":")
    ]
    spans = spans[:_MOST_SENTENCES]
    if codec.of_whole_answer or _LOCATION in line.text.lower():
        places = None
    owners = _owners(spans, words, places) if places else None
    return tuple(
        GroundedSentence(
            " ".join(words[slice(*span)].split()),
            read.boxes if owners is None else read.boxes[[owner == n for owner in owners]],
        )
        for n, span in enumerate(spans)
    )


def without_notation(text: str, places: Places) -> str:
    """Returns the text with blanks for box notation, in `places` or what looks like it; its length
    is the same.

    Tags between statements become new lines.
    """
    pieces, at = [], 0
    for start, end in sorted(places):
        pieces += [text[at:start], " " * (end - max(at, start))]
        at = max(at, end)
    text = "".join([*pieces, text[at:]])
    text = _PARTS.sub(lambda found: "\n\n" + " " * (len(found[0]) - 2), text)
    return _NOTATION.sub(lambda found: " " * len(found[0]), text)


def _owners(spans: Places, words: str, places: Places) -> list[int]:
    """The sentence of each box."""
    starts = [end - len(words[start:end].lstrip()) for start, end in spans]
    owners: list[int] = []
    leading: set[int] = set()  # sentences with boxes before their words
    for place, _ in places:
        owner = max((n for n, (start, _) in enumerate(spans) if start <= place), default=0)
        # Before a sentence's first word it is of the one before, unless that begins with its own.
        if owner and place < starts[owner] and owner - 1 not in leading:
            owner -= 1
        elif place < starts[owner]:
            leading.add(owner)
        owners.append(owner)
    return owners
