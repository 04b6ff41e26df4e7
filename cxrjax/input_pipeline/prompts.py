"""Prompt formats: a record becomes a prompt and the text that should answer it.

A format sees the record and a `BoxText`, and never learns which codec writes the boxes.
"""

import dataclasses
import re
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from cxrjax.codecs import get_codec, transcode
from cxrjax.errors import UserError
from cxrjax.files import read_packaged
from cxrjax.images.geometry import Geometry
from cxrjax.input_pipeline.augment import ImageChange
from cxrjax.input_pipeline.chat import CHAT_FORMS, ChatForm
from cxrjax.input_pipeline.wording import UNKNOWN_ANSWER, UNKNOWN_TYPE
from cxrjax.records import Answer, QARecord


@dataclasses.dataclass(frozen=True)
class BoxText:
    """Writes boxes of one image as the model is to write them."""

    source: str  # codec of the boxes in the records' answers
    target: str  # codec of the boxes in the model's answers
    # `height`, `width`: size of the original image in pixels.
    height: int
    width: int
    geometry: Geometry  # maps fractions of the original to fractions of the model's input
    change: ImageChange | None = None  # of the image in training, which its boxes follow

    def transcode(self, text: str) -> str:
        """The text with each of its boxes rewritten.

        Raises:
            UserError: the text holds something that looks like a box and does not parse.
        """
        return transcode(
            text,
            self.source,
            self.target,
            self.height,
            self.width,
            geometry=self.geometry,
            move=None if self.change is None else self.change.of_boxes,
        )

    def encode(self, pixel_boxes: Sequence[Sequence[float]]) -> list[str]:
        """Each box, given in pixels of the original, as text of its own.

        Raises:
            UserError: a box is empty or leaves the image.
        """
        return [
            get_codec(self.target).encode(box[None], self.height, self.width, self.geometry)
            for box in self._fractions(pixel_boxes)
        ]

    def encode_list(self, pixel_boxes: Sequence[Sequence[float]], label: str) -> str:
        """All boxes, given as in `encode`, as one text, each under this name where it has a place.

        Raises:
            UserError: a box is empty or leaves the image.
        """
        return get_codec(self.target).encode(
            self._fractions(pixel_boxes),
            self.height,
            self.width,
            self.geometry,
            labels=[label] * len(pixel_boxes),
        )

    def _fractions(self, pixel_boxes: Sequence[Sequence[float]]) -> Float[np.ndarray, "n 4"]:
        size = np.array([self.width, self.height, self.width, self.height])
        boxes = np.asarray(pixel_boxes, np.float64).reshape(-1, 4) / size
        return boxes if self.change is None else self.change.of_boxes(boxes)


_Target = Callable[[QARecord, BoxText], str]
# Between an answer and its reason; only what stands before it is the answer.
REASONING = "\nReasoning: "


@dataclasses.dataclass(frozen=True)
class PromptFormat:
    """The form of a question to the model, and of its answer."""

    # Text that the model is given after what all questions of an image share, newline included.
    prefix: Callable[[QARecord], str]
    target: Callable[[QARecord, BoxText], str]  # text that it should answer, without end marker
    # Whether the prefix begins with `<bos>`; in a conversation the image stands before the
    # question, and `<bos>` before the image.
    begins: bool = True
    end: str | None = None  # the piece that ends the answer; None: the tokenizer's end of sequence
    needs_finding: bool = False  # whether it can only ask questions that are about one finding
    gives_reason: bool = False  # whether `REASONING` and a reason follow the answer


def _history(record: QARecord) -> list[tuple[str, str]]:
    """(question, answer) of the earlier turns."""
    turns = []
    for turn in record.history:
        if turn.answer is None:
            raise UserError(
                f"question {record.question_id}: continues {turn.question_id}, whose answer is "
                "null; ask both in one questions file, or join an answer to history"
            )
        turns.append((turn.question, turn.answer))
    return turns


def _question(record: QARecord) -> str:
    return record.question


def _question_prefix(record: QARecord) -> str:
    turns = [line for turn in _history(record) for line in turn]
    return "\n".join([*turns, record.question]) + "\n"


def _answer_target(record: QARecord, box_text: BoxText) -> str:
    return box_text.transcode(record.answer_text)


def _grounded_target(record: QARecord, box_text: BoxText) -> str:
    """Each part of the answer with its boxes on the record's image behind it.

    For data sets whose boxes stand beside the text and not in it (CXR-QBA).
    """
    parts = []
    for answer in record.answers:
        if answer.answer_type == "main":
            boxes = box_text.encode(answer.boxes_by_image.get(record.image_id, []))
            parts.append(" ".join([answer.text, *boxes]))
    return " ".join(parts)


# A line break ends PaliGemma's prompt; its tokens of places and images are boxes and pictures.
_CONTROL = re.compile(r"[\n\r]|<(?:loc|seg)\d+>|</?(?:bos|eos|pad|unk|image|mask)>")


def _finding(record: QARecord) -> str:
    if record.finding is None:
        raise UserError(
            f"question {record.question_id}: variables.finding is null, and the prompt formats "
            "'detect', 'grounding' and 'medgemma_boxes' ask about one finding; leave such records "
            "out or use the format 'vqa'"
        )
    if found := _CONTROL.search(record.finding):
        raise UserError(
            f"question {record.question_id}: variables.finding contains {found[0]!r}, which only "
            "the prompt format itself may write; remove it"
        )
    return record.finding


def _unless_unknown(
    target: Callable[[QARecord, BoxText], str],
) -> Callable[[QARecord, BoxText], str]:
    """Wraps a target: questions about untaught findings get `UNKNOWN_ANSWER`."""

    def said(record: QARecord, box_text: BoxText) -> str:
        if record.question_type == UNKNOWN_TYPE:
            return UNKNOWN_ANSWER
        return target(record, box_text)

    return said


@_unless_unknown
def _detect_target(record: QARecord, box_text: BoxText) -> str:
    finding = _finding(record)
    boxes = box_text.encode(record.boxes)
    return f"{finding} {' '.join(boxes)}" if boxes else "none"


def _instructed(record: QARecord) -> str:
    """The type's instruction, the question, and its options (Table 4 of arXiv 2411.16778)."""
    if not record.type_prompt:
        raise UserError(
            f"question {record.question_id}: type_prompt is null, and the prompt formats 'gemex' "
            "and 'gemex_chat' start with it; use 'vqa' or 'medgemma'"
        )
    choices = f" <choices>: [{', '.join(record.choices)}]" if record.choices else ""
    return f"{record.type_prompt}\n{record.question}{choices}"


def _dialogue_prefix(record: QARecord) -> str:
    """The paper's own turns (Tables 4 and 10 to 13); the image stands before all of it."""
    instruction, question = _instructed(record).split("\n", maxsplit=1)
    return f"{instruction}\n### Human: {question}\n### Assistant:\n"


class _Wording(NamedTuple):
    """A way to ask for a finding, and its answers where the finding is there and where not."""

    question: str
    present: str
    absent: str


_WORDS = read_packaged(str(__package__), "prompts.toml")
MEDGEMMA_LOCATE: str = _WORDS["medgemma_locate"]
_GROUNDING = [_Wording(*words) for words in _WORDS["grounding"]]


def _wording(record: QARecord) -> _Wording:
    """Chooses a wording by a hash of the question's id, so that every run chooses the same."""
    return _GROUNDING[zlib.crc32(record.question_id.encode()) % len(_GROUNDING)]


@_unless_unknown
def _grounding_target(record: QARecord, box_text: BoxText) -> str:
    finding, boxes = _finding(record), box_text.encode(record.boxes)
    wording = _wording(record)
    form = wording.present if boxes else wording.absent
    return form.format(finding=finding, boxes=" ".join(boxes), count=len(boxes))


def _conversation(
    ask: Callable[[QARecord], str],
    target: Callable[[QARecord, BoxText], str],
    needs_finding: bool = False,
    form: ChatForm = CHAT_FORMS["medgemma"],
) -> PromptFormat:
    """The format that asks and answers so in a family's conversation, behind the earlier turns."""

    def prefix(record: QARecord) -> str:
        try:
            return form.question(ask(record), _history(record))
        except UserError as error:
            where = f"question {record.question_id}: "
            raise UserError(where + str(error).removeprefix(where)) from None

    return PromptFormat(
        prefix,
        lambda record, box_text: form.gap + form.answer(target(record, box_text)),
        begins=False,
        end=form.end or None,
        needs_finding=needs_finding,
    )


@_unless_unknown
def _medgemma_boxes_target(record: QARecord, box_text: BoxText) -> str:
    if box_text.target != "medgemma_json":
        raise UserError(
            f"the prompt format 'medgemma_boxes' requires JSON, and codec is {box_text.target!r}; "
            "set it to 'medgemma_json' or use the format 'medgemma'"
        )
    finding = _finding(record)
    listed = box_text.encode_list(record.boxes, finding) or "```json[]```"
    return f"Final Answer: {listed}"


def _typed(prompt: PromptFormat) -> PromptFormat:
    """Returns the format with the instruction for the question's type before the question."""

    def prefix(record: QARecord) -> str:
        if not record.type_prompt:
            raise UserError(
                f"question {record.question_id}: type_prompt is null, and the prompt format puts "
                "it before the question; use a format without '_typed'"
            )
        question = f"{record.type_prompt} {record.question}"
        return prompt.prefix(record.model_copy(update={"question": question}))

    return dataclasses.replace(prompt, prefix=prefix)


def _reasoned(prompt: PromptFormat) -> PromptFormat:
    """Returns the format with the record's reason, if it has one, after the answer."""

    def target(record: QARecord, box_text: BoxText) -> str:
        if record.reason:
            whole = Answer(text=f"{record.answer_text.rstrip()}{REASONING}{record.reason}")
            record = record.model_copy(update={"answers": [whole]})
        return prompt.target(record, box_text)

    return dataclasses.replace(prompt, target=target, gives_reason=True)


PROMPTS: dict[str, PromptFormat] = {
    # The question as it is written; the answer as it is written, its boxes in the model's codec.
    "vqa": PromptFormat(prefix=_question_prefix, target=_answer_target),
    # PaliGemma's detection prompt (arXiv 2407.07726), one finding at a time. The finding's name
    # comes before its boxes: greedy decoding must decide between words, not between the word
    # "none" and one bin of a thousand (docs/log.md).
    "detect": PromptFormat(
        lambda record: f"detect {_finding(record)}\n", _detect_target, needs_finding=True
    ),
    # The same task in seven wordings, for training a base.
    "grounding": PromptFormat(
        lambda record: f"{_wording(record).question.format(finding=_finding(record))}\n",
        _grounding_target,
        needs_finding=True,
    ),
    # Instruction, question and options; the answer with its reason and boxes.
    "gemex": PromptFormat(lambda record: f"{_instructed(record)}\n", _answer_target),
    # The same between the marks of LLaVA-Med's turns, as the paper prints it.
    "gemex_dialogue": PromptFormat(
        _dialogue_prefix, lambda record, box_text: f"{_answer_target(record, box_text)}\n###"
    ),
    "gemex_chat": _conversation(_instructed, _answer_target),
    # Answers in parts, each part's boxes behind it; and the same in Gemma 3's conversation.
    "grounded": PromptFormat(prefix=_question_prefix, target=_grounded_target),
    "grounded_chat": _conversation(_question, _grounded_target),
    # MedGemma 1.5's own request for boxes, one finding at a time, without the reasoning that it
    # asks for: the records have none.
    "medgemma_boxes": _conversation(
        lambda record: MEDGEMMA_LOCATE.replace("{finding}", _finding(record)),
        _medgemma_boxes_target,
        needs_finding=True,
    ),
}
# The question and the answer as they are written, in the conversation of each family; of those that
# ask one question a conversation, the same request in it.
_CHATS = {name: form for name, form in CHAT_FORMS.items() if not form.prompt}
for _name, _form in _CHATS.items():
    PROMPTS[_name] = _conversation(_question, _answer_target, form=_form)
    if not _form.end:
        PROMPTS[f"gemex_{_name}"] = _conversation(_instructed, _answer_target, form=_form)
# For a model that answers one question in several ways, as the stages of ViX-Ray do.
_IN_WORDS = ("vqa", *(name for name, form in _CHATS.items() if form.end))
PROMPTS |= {f"{name}_typed": _typed(PROMPTS[name]) for name in _IN_WORDS}
# Answer and reason in one, as the paper of VinDr-CXR-VQA prints them (figure 2).
PROMPTS |= {f"{name}_reason": _reasoned(PROMPTS[name]) for name in _IN_WORDS}
