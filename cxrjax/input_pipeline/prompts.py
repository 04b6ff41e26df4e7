"""How a record becomes a prompt and the text that should answer it.

A format sees the record and a `BoxText`, and never learns which codec writes the boxes.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from cxrjax.codecs import get_codec, transcode
from cxrjax.errors import UserError
from cxrjax.images import Geometry
from cxrjax.records import QARecord


@dataclasses.dataclass(frozen=True)
class BoxText:
    """Writes boxes of one image as the model is to write them.

    Attributes:
        source: codec of the boxes in the records' answers.
        target: codec of the boxes in the model's answers.
        height, width: size of the original image in pixels.
        geometry: maps fractions of the original to fractions of the model's input.
    """

    source: str
    target: str
    height: int
    width: int
    geometry: Geometry

    def transcode(self, text: str) -> str:
        """The text with each of its boxes rewritten.

        Raises:
            UserError: the text holds something that looks like a box and does not parse.
        """
        return transcode(
            text, self.source, self.target, self.height, self.width, geometry=self.geometry
        )

    def encode(self, pixel_boxes: Sequence[Sequence[float]]) -> list[str]:
        """Each box, given in pixels of the original, as text of its own.

        Raises:
            UserError: a box is empty or leaves the image.
        """
        size = np.array([self.width, self.height, self.width, self.height])
        fractions = np.asarray(pixel_boxes, np.float64).reshape(-1, 4) / size
        return [
            get_codec(self.target).encode(box[None], self.height, self.width, self.geometry)
            for box in fractions
        ]


@dataclasses.dataclass(frozen=True)
class PromptFormat:
    """Attributes:
    prefix: text that the model is given, newline included.
    target: text that it should answer, without end marker.
    """

    prefix: Callable[[QARecord], str]
    target: Callable[[QARecord, BoxText], str]


def _question_prefix(record: QARecord) -> str:
    return record.question + "\n"


def _answer_target(record: QARecord, box_text: BoxText) -> str:
    return box_text.transcode(record.answer_text)


def _finding(record: QARecord) -> str:
    finding = (record.variables or {}).get("finding")
    if not finding:
        raise UserError(
            f"question {record.question_id}: variables.finding is null, and the prompt format "
            "'detect' asks about one finding; leave such records out or use the format 'vqa'"
        )
    return str(finding)


def _detect_prefix(record: QARecord) -> str:
    return f"detect {_finding(record)}\n"


def _detect_target(record: QARecord, box_text: BoxText) -> str:
    finding = _finding(record)
    boxes = box_text.encode(record.boxes)
    return f"{finding} {' '.join(boxes)}" if boxes else "none"


PROMPTS: dict[str, PromptFormat] = {
    # The question as it is written; the answer as it is written, its boxes in the model's codec.
    "vqa": PromptFormat(prefix=_question_prefix, target=_answer_target),
    # PaliGemma's detection prompt (arXiv 2407.07726), one finding at a time. The finding's name
    # comes before its boxes: greedy decoding must decide between words, not between the word
    # "none" and one bin of a thousand (docs/log.md).
    "detect": PromptFormat(prefix=_detect_prefix, target=_detect_target),
}
