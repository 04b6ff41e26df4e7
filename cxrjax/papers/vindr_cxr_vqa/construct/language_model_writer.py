"""Words for planned questions from a language model, as the paper had them written (section 2.1).

For each image and template the model gets the radiograph, where there is a file of it, and the full
annotation, and returns question, answer, reason and difficulty. Labels and boxes are the plan's:
words that change one are asked for again, and set aside if they stay wrong.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from cxrjax.files import read_packaged, read_patterns
from cxrjax.images.encode import encode_jpeg
from cxrjax.images.files import ImageError
from cxrjax.language_model.client import Client
from cxrjax.language_model.request import EncodedImage, NoAnswer, Request
from cxrjax.language_model.stage import Stage, Strict, make_request
from cxrjax.papers.vindr_cxr_vqa.construct.lesions import ORGANS
from cxrjax.papers.vindr_cxr_vqa.construct.plan import (
    REASON_WORDS,
    PlannedQuestion,
    Wording,
)
from cxrjax.papers.vindr_cxr_vqa.construct.templates import format_box
from cxrjax.papers.vindr_cxr_vqa.native import pixel_boxes
from cxrjax.progress import progress_bar
from cxrjax.radiology_text.answer_details import count_said, place_said
from cxrjax.radiology_text.box_places import place_faults
from cxrjax.radiology_text.english import join
from cxrjax.radiology_text.mentions import MentionReader
from cxrjax.records_io.gate import speaks_of
from cxrjax.records_io.quality import QualityLog, Unusable

# 200 words are about 270 tokens, question, answer and JSON the rest.
USUAL_OUTPUT_TOKENS = 400
MAX_OUTPUT_TOKENS = 4096  # models that think before they answer need it
UNREADABLE_IMAGE: Final = "unreadable_image"
NO_IMAGE = "worded without the radiograph"
REASON_LENGTH = f"reason of fewer than {REASON_WORDS[0]} or more than {REASON_WORDS[1]} words"


class ModelWording(Strict):
    # The model is told this line with the schema: another one asks again what was paid for.
    """What the model returns: Table 2's fields that come from the generator."""

    question: str
    answer: str
    reason: str
    difficulty: Literal["Easy", "Medium"]

    def to_wording(self) -> Wording:
        """Returns it without the white space around its parts."""
        return Wording(
            self.question.strip(), self.answer.strip(), self.reason.strip(), self.difficulty
        )


class LanguageModelWriter(Stage[PlannedQuestion, ModelWording]):
    """A `Writer` (cxrjax.papers.vindr_cxr_vqa.construct.plan) that asks a language model.

    Args:
        quality: receives `generator_failed` and `unreadable_image`, and warnings about reasons of
            another length and about questions worded without the radiograph.
        image_root: folder that the annotations' `image_path` is relative to; None sends no images.
    """

    content = "annotations of VinDr-CXR (findings, boxes, numbers of readers)"

    def __init__(self, client: Client, quality: QualityLog, image_root: Path | None = None) -> None:
        super().__init__(client, load_prompt()["version"])
        self._quality = quality
        image_root = None if client.settings.text_only else image_root
        # Questions of one image that follow each other share it.
        self._image = functools.lru_cache(maxsize=16)(functools.partial(_encoded, image_root))

    def write(self, plans: Iterable[PlannedQuestion]) -> Iterator[tuple[PlannedQuestion, Wording]]:
        """Yields each plan with its words, in order; several are asked for at once.

        Raises:
            UserError: as `Stage.answers`.
        """
        total = len(plans) if isinstance(plans, Sized) else None
        for plan, answer in progress_bar(self.answers(plans), "wording", total, unit="question"):
            if isinstance(answer, NoAnswer):
                image = answer.category == UNREADABLE_IMAGE
                reason = UNREADABLE_IMAGE if image else "generator_failed"
                found = answer.detail if image else f"{answer.category}: {answer.detail}"
                where = f"language model {self.name}"
                self._quality.set_aside(reason, plan.question_id, where, found)
                continue
            if self._image(plan.image.image_path) is None:
                self._quality.warnings[NO_IMAGE] += 1
            if not reason_length_fits(answer.reason):
                self._quality.warnings[REASON_LENGTH] += 1
            yield plan, answer.to_wording()

    def request(self, item: PlannedQuestion) -> Request[ModelWording]:
        """See `Stage.request`."""
        text, image = plan_text(item, load_prompt()), self._image(item.image.image_path)
        return make_request(
            load_prompt(),
            (image, text) if image else text,
            ModelWording,
            USUAL_OUTPUT_TOKENS,
            MAX_OUTPUT_TOKENS,
        )

    def check(self, item: PlannedQuestion, answer: ModelWording) -> None:
        """See `Stage.check`."""
        found = faults(item, answer.to_wording())
        if found:
            raise ValueError(" ".join(found))

    def shortcoming(self, item: PlannedQuestion, answer: ModelWording) -> tuple[int, str]:
        """Returns how many words a reason has too few or too many."""
        shortest, longest = REASON_WORDS
        words = reason_words(answer.reason)
        told = load_prompt()["reason_length"].format(words=words).strip()
        return max(shortest - words, words - longest, 0), told


def _encoded(image_root: Path | None, image_path: str) -> EncodedImage | None:
    if image_root is None or not (path := image_root / image_path).is_file():
        return None
    return EncodedImage(functools.partial(_jpeg, path), "image/jpeg")


def _jpeg(path: Path) -> bytes:
    try:
        return encode_jpeg(path)
    except ImageError as error:
        raise NoAnswer(UNREADABLE_IMAGE, str(error)) from None


def load_prompt() -> dict[str, Any]:
    """Returns the prompt, from the package's data file."""
    return read_packaged(str(__package__), "language_model_prompt_v2.toml")


def plan_text(plan: PlannedQuestion, prompt: dict[str, Any]) -> str:
    """Describes one plan to the model: the task, and the image's full annotation."""
    image = plan.image
    kind = "list_all" if plan.style == "list_all" else plan.kind
    values = {"finding": join(plan.labels), "count": plan.count}
    answer = prompt["answer" if plan.negative_kind is None else "negative"][kind]
    size = "unknown" if image.image_hw is None else f"{image.image_hw[1]} x {image.image_hw[0]}"
    lines = [
        f"Question: {prompt['question'][kind].format(**values)}",
        f"Answer: {answer.format(**values)}",
        f"Boxes of the answer: {' '.join(written_boxes(plan)) or 'none'}",
    ]
    if len(plan.boxes) > 1:
        lines += [f"- {label}: {_written(boxes)}" for label, boxes in plan.boxes.items()]
    lines.append(f"Image size: {size} pixels (width x height)")
    lines.append("The whole annotation of the image:" if image.findings else _NORMAL)
    for label in image.present:
        lines.append(f"- {label}: {_written(image.boxes_of(label))}")
    return "\n".join(lines)


_NORMAL = "The annotation of the image has no finding."


def _written(boxes: Iterable[Any]) -> str:
    return " ".join(map(format_box, boxes))


# What a question of each type holds.
_ASKS = read_patterns(str(__package__), "question_types.toml")
_NEGATION = re.compile(r"\b(no|not|none|neither|nor|without|absent|absence|free)\b|n't\b", re.I)
_BOX = re.compile(r"<loc[^>]*>?")


def written_boxes(plan: PlannedQuestion) -> list[str]:
    """Returns the boxes of the answer as it writes them, in order."""
    return [format_box(box) for boxes in plan.boxes.values() for box in boxes]


def faults(plan: PlannedQuestion, wording: Wording) -> list[str]:
    """Lists what is wrong with the words, each in a sentence that a model can act on.

    Boxes and labels must be the plan's (the provenance rule, section 2.1). The reason may show
    other boxes of the image's annotation, and none that isn't in it.
    """
    return [
        *_question_faults(plan, wording.question),
        *_box_faults(plan, wording),
        *(_list_faults if plan.style == "list_all" else _finding_faults)(plan, wording.answer),
        *_polarity_faults(plan, _BOX.sub(" ", wording.answer)),
        *_reason_faults(plan, _BOX.sub(" ", wording.reason)),
    ]


def reason_words(reason: str) -> int:
    """Counts words between white space; a box is one."""
    return len(reason.split())


def reason_length_fits(reason: str) -> bool:
    """Returns true for a reason of as many words as Table 2 says."""
    return REASON_WORDS[0] <= reason_words(reason) <= REASON_WORDS[1]


def _question_faults(plan: PlannedQuestion, question: str) -> Iterator[str]:
    if not question.strip().endswith("?") or len(question.split()) < 2:
        yield "The question must be a sentence that ends with a question mark."
    kind = "List_all" if plan.style == "list_all" else plan.kind
    if not _ASKS[kind].search(question):
        yield f"The question is of another type: {load_prompt()['type'][kind]}"
    if _BOX.search(question):
        yield "The question must not hold a box."
    named = [label for label in plan.labels if label.casefold() in question.casefold()]
    if plan.kind == "What" and named:
        yield f"The question must not name the finding ({named[0]}): it is the answer."
    if plan.kind != "What" and plan.style != "list_all" and len(named) < len(plan.labels):
        missing = next(label for label in plan.labels if label not in named)
        yield f'The question must name the finding, written "{missing}".'


def _box_faults(plan: PlannedQuestion, wording: Wording) -> Iterator[str]:
    wanted = written_boxes(plan)
    known = {format_box(finding.box) for finding in plan.image.findings} | set(wanted)
    try:
        shown = [_as_written(box) for box in pixel_boxes(wording.answer)]
        if shown != wanted:
            expected, held = " ".join(wanted) or "none at all", " ".join(shown) or "none"
            yield (
                f"The answer must hold these boxes in this order and no other: {expected}; it held "
                f"{held}."
            )
    except Unusable as fault:
        yield f"In the answer, {fault.found}."
    try:
        other = [box for box in map(_as_written, pixel_boxes(wording.reason)) if box not in known]
        if other:
            yield f"The reason shows {other[0]}, which the annotation does not have."
    except Unusable as fault:
        yield f"In the reason, {fault.found}."


def _finding_faults(plan: PlannedQuestion, answer: str) -> Iterator[str]:
    for label in plan.labels:
        if label.casefold() not in answer.casefold():
            yield f'The answer must name the finding, written "{label}".'


def _list_faults(plan: PlannedQuestion, answer: str) -> Iterator[str]:
    """Yields a fault unless each label has one sentence that ends with its boxes."""
    sentences = re.split(r"(?<=>\.)\s+", answer.strip())
    for label, sentence in zip(plan.labels, sentences, strict=False):
        shown = " ".join(_BOX.findall(sentence))
        wanted = " ".join(map(format_box, plan.boxes.get(label, ())))
        if label.casefold() not in sentence.casefold() or shown != wanted:
            yield f'One sentence must name "{label}" and end with its boxes, {wanted}.'
            return
    if len(sentences) != len(plan.labels) or not answer.strip().endswith(">."):
        listed = ", ".join(plan.labels)
        yield f"The answer must have one sentence ending with boxes for each of: {listed}."


def _polarity_faults(plan: PlannedQuestion, answer: str) -> Iterator[str]:
    first = re.split(r"\W+", answer.strip().casefold(), maxsplit=1)[0]
    about_all, by_yes_no = plan.style == "list_all", plan.kind in ("Is_there", "Yes_No")
    if plan.negative_kind is not None:
        if by_yes_no and first != "no":
            yield 'The answer must begin with "No": it is not there.'
            return
        said = _reader().read(answer, plan.labels[0] if plan.labels else None)
        if said.present or not (said.absent or _NEGATION.search(answer)):
            yield "The answer must say that it is not there."
    elif by_yes_no and not about_all and first != "yes":
        yield 'The answer must begin with "Yes": it is there.'
    elif first == "no" or _reader().read(answer).absent & set(plan.labels):
        yield "The answer must not deny the finding: it is there."
    elif plan.kind == "How_many" and not about_all and count_said(answer) != plan.count:
        yield f"The answer must give the number {plan.count}, and no other before it."
    elif not about_all:
        yield from _place_faults(plan, answer)


def _place_faults(plan: PlannedQuestion, text: str) -> Iterator[str]:
    """Yields sides and levels that are not those of the boxes."""
    asked = plan.labels[0] if plan.labels else ""
    said = place_said(text, np.zeros((0, 4)), asked)
    boxes = [box for of_label in plan.boxes.values() for box in of_label]
    found = [*place_faults(said, boxes, plan.image.image_hw, "The answer")]
    known = place_said(plan.place or "", np.zeros((0, 4)), asked).sides
    # The heart's place names the sides that it reaches to.
    if known and not plan.image.image_hw and asked not in ORGANS and said.sides - known:
        found.append(f"The answer: names the {' and '.join(sorted(said.sides))} side")
    right = f"; it is seen {plan.place}" if plan.place else ""
    yield from (f"{one}{right}." for one in found)


def _reason_faults(plan: PlannedQuestion, reason: str) -> Iterator[str]:
    if not reason.strip():
        yield "The reason is empty."
        return
    said = _reader().read(reason)
    denied = sorted((said.absent - said.present) & set(plan.labels))
    if denied and plan.negative_kind is None:
        yield f"The reason must not deny the finding ({denied[0]}): it is there."
        return
    readers = "|".join(map(re.escape, plan.image.readers))
    spoken = speaks_of(reason) or (
        readers and (found := re.search(rf"\b(?:{readers})\b", reason)) and found[0]
    )
    if spoken:
        yield f"The reason must not speak of {spoken!r}: no image shows it."


@functools.cache
def _reader() -> MentionReader:
    return MentionReader()


def _as_written(box: list[float]) -> str:
    return format_box((box[0], box[1], box[2], box[3]))
