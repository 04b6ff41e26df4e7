"""Words for planned questions from a language model, as the paper had them written (section 2.1).

For each image and template the model gets the radiograph, where there is a file of it, and the full
annotation, and returns question, answer, reason and difficulty. Labels and boxes are the plan's:
words that change one are asked for again, and set aside if they stay wrong.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from cxrjax.images.encode import encode_jpeg
from cxrjax.images.files import ImageError
from cxrjax.language_model import (
    Client,
    CostEstimate,
    EncodedImage,
    Message,
    NoAnswer,
    Request,
    request,
)
from cxrjax.language_model.request import Strict
from cxrjax.papers.vindr_cxr_vqa.annotation import ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.construct.plan import REASON_WORDS, PlannedQuestion, Wording
from cxrjax.papers.vindr_cxr_vqa.construct.templates import format_box
from cxrjax.papers.vindr_cxr_vqa.native import pixel_boxes
from cxrjax.radiology_text.english import join
from cxrjax.records_io.quality import QualityLog, Unusable

PROMPT_VERSION = "1"
CACHE_NAME = "language_model_answers.jsonl"
CONTENT = "annotations of VinDr-CXR (findings, boxes, numbers of readers)"
# 200 words are about 270 tokens, question, answer and JSON the rest.
USUAL_OUTPUT_TOKENS = 400
MAX_OUTPUT_TOKENS = 4096  # models that think before they answer need it
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
        """Without the white space around it."""
        return Wording(
            self.question.strip(), self.answer.strip(), self.reason.strip(), self.difficulty
        )


@dataclasses.dataclass(frozen=True)
class _Outcome:
    """The outcome of one plan.

    Attributes:
        set_aside: reason and what was found, where there is no wording.
    """

    wording: Wording | None = None
    set_aside: tuple[str, str] | None = None
    warnings: tuple[str, ...] = ()


class LanguageModelWriter:
    """A `Writer` (cxrjax.papers.vindr_cxr_vqa.construct.plan) that asks a language model.

    Attributes:
        name, version: the model, and the version of the prompt.

    Args:
        quality: receives `generator_failed` and `unreadable_image`, and warnings about reasons of
            another length and about questions worded without the radiograph.
        image_root: folder that the annotations' `image_path` is relative to; None sends no images.
    """

    def __init__(self, client: Client, quality: QualityLog, image_root: Path | None = None) -> None:
        self.client = client
        self.name = client.settings.model
        self._prompt = load_prompt()
        self.version = f"prompt {self._prompt['version']}"
        self._quality = quality
        self._image_root = None if client.settings.text_only else image_root

    def write(self, plans: Iterable[PlannedQuestion]) -> Iterator[tuple[PlannedQuestion, Wording]]:
        """Each plan with its words, in order; several are asked for at once.

        Raises:
            UserError: sending is not allowed, the cost limit is reached, or the server is unusable;
                answers so far are in the cache.
        """
        settings = self.client.settings
        if not (settings.is_local or settings.allow_sending):
            plans = list(plans)  # the refusal says how many there are
            self.client.require_permission(CONTENT, self._requests(plans))
        outcomes = self.client.map(self._word, self._with_images(plans))
        total = len(plans) if isinstance(plans, Sized) else None
        for (plan, _), outcome in tqdm(outcomes, "wording", total, unit="question"):
            self._quality.warnings.update(outcome.warnings)
            if outcome.set_aside:
                reason, found = outcome.set_aside
                where = f"language model {self.name}"
                self._quality.set_aside(reason, plan.question_id, where, found)
            elif outcome.wording:
                yield plan, outcome.wording

    def estimate(self, plans: Iterable[PlannedQuestion]) -> CostEstimate:
        """The dry run: what `write` would send and cost at most. Sends nothing."""
        return self.client.estimate(tqdm(self._requests(plans), "counting", unit="question"))

    def _requests(self, plans: Iterable[PlannedQuestion]) -> Iterator[Request[ModelWording]]:
        return (self._request(plan, image) for plan, image in self._with_images(plans))

    def _with_images(
        self, plans: Iterable[PlannedQuestion]
    ) -> Iterator[tuple[PlannedQuestion, EncodedImage | None]]:
        """Plans with their radiograph; questions of one image that follow each other share it."""
        image_id, image = None, None
        for plan in plans:
            if plan.image.image_id != image_id:
                image_id, image = plan.image.image_id, self._image(plan.image)
            yield plan, image

    def _image(self, annotation: ImageAnnotation) -> EncodedImage | None:
        if self._image_root is None:
            return None
        path = self._image_root / annotation.image_path
        if not path.is_file():
            return None
        return EncodedImage(functools.partial(encode_jpeg, path), "image/jpeg")

    def _word(self, item: tuple[PlannedQuestion, EncodedImage | None]) -> _Outcome:
        """Asks about one plan; runs in a thread."""
        plan, image = item
        warnings = [] if image else [NO_IMAGE]
        request = self._request(plan, image)

        def check(answer: ModelWording) -> None:
            found = faults(plan, answer.to_wording())
            if found:
                raise ValueError(" ".join(found))

        try:
            answer = self.client.ask(request, check)
        except NoAnswer as failure:
            return _Outcome(set_aside=("generator_failed", f"{failure.category}: {failure.detail}"))
        except ImageError as error:
            return _Outcome(set_aside=("unreadable_image", str(error)))
        if not reason_length_fits(answer.reason):
            answer = self._with_better_reason(request, answer, check)
        if not reason_length_fits(answer.reason):
            warnings.append(REASON_LENGTH)
        return _Outcome(answer.to_wording(), warnings=tuple(warnings))

    def _with_better_reason(
        self, request: Request[ModelWording], answer: ModelWording, check: Any
    ) -> ModelWording:
        """The answer after the model was told the reason's length once; the nearer of both."""
        told = self._prompt["reason_length"].format(words=reason_words(answer.reason)).strip()
        try:
            second = self.client.ask(request.then(answer.model_dump_json(), told), check)
        except NoAnswer:
            return answer
        return min(answer, second, key=lambda one: _words_off(one.reason))

    def _request(self, plan: PlannedQuestion, image: EncodedImage | None) -> Request[ModelWording]:
        text = plan_text(plan, self._prompt)
        return Request(
            (
                Message("system", (self._prompt["system"].strip(),)),
                Message("user", (image, text) if image else (text,)),
            ),
            ModelWording,
            MAX_OUTPUT_TOKENS,
            USUAL_OUTPUT_TOKENS,
        )


def load_prompt() -> dict[str, Any]:
    """The prompt, from the package's data file."""
    return request.load_prompt(str(__package__), f"language_model_prompt_v{PROMPT_VERSION}")


def plan_text(plan: PlannedQuestion, prompt: dict[str, Any]) -> str:
    """Tells the model about one plan: the task, and the image's full annotation."""
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
        votes = f" ({image.votes(label)} of {len(image.readers)} readers)" * bool(image.readers)
        lines.append(f"- {label}{votes}: {_written(image.boxes_of(label))}")
    return "\n".join(lines)


_NORMAL = "The annotation of the image has no finding."


def _written(boxes: Iterable[Any]) -> str:
    return " ".join(map(format_box, boxes))


def _words_off(reason: str) -> int:
    """Words that it has too few or too many."""
    shortest, longest = REASON_WORDS
    words = reason_words(reason)
    return max(shortest - words, words - longest, 0)


_NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_NEGATION = re.compile(r"\b(no|not|none|neither|nor|without|absent|absence|free)\b|n't\b", re.I)
_BOX = re.compile(r"<loc[^>]*>?")


def written_boxes(plan: PlannedQuestion) -> list[str]:
    """The boxes that the answer shows, as it writes them, in order."""
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
        *(["The reason is empty."] if not wording.reason.strip() else []),
    ]


def reason_words(reason: str) -> int:
    """Words between white space; a box counts as one."""
    return len(reason.split())


def reason_length_fits(reason: str) -> bool:
    """Says whether it has as many words as Table 2 says, and no more."""
    return REASON_WORDS[0] <= reason_words(reason) <= REASON_WORDS[1]


def _question_faults(plan: PlannedQuestion, question: str) -> list[str]:
    found = []
    if not question.strip().endswith("?") or len(question.split()) < 2:
        found.append("The question must be a sentence that ends with a question mark.")
    if _BOX.search(question):
        found.append("The question must not hold a box.")
    named = [label for label in plan.labels if label.casefold() in question.casefold()]
    if plan.kind == "What" and named:
        found.append(f"The question must not name the finding ({named[0]}): it is the answer.")
    if plan.kind != "What" and plan.style != "list_all" and len(named) < len(plan.labels):
        missing = next(label for label in plan.labels if label not in named)
        found.append(f'The question must name the finding, written "{missing}".')
    return found


def _box_faults(plan: PlannedQuestion, wording: Wording) -> list[str]:
    found = []
    wanted = written_boxes(plan)
    try:
        shown = [_as_written(box) for box in pixel_boxes(wording.answer)]
        if shown != wanted:
            found.append(
                f"The answer must hold these boxes in this order and no other: "
                f"{' '.join(wanted) or 'none at all'}; it held {' '.join(shown) or 'none'}."
            )
    except Unusable as fault:
        found.append(f"In the answer, {fault.found}.")
    known = {format_box(finding.box) for finding in plan.image.findings} | set(wanted)
    try:
        other = [box for box in map(_as_written, pixel_boxes(wording.reason)) if box not in known]
        if other:
            found.append(f"The reason shows {other[0]}, which the annotation does not have.")
    except Unusable as fault:
        found.append(f"In the reason, {fault.found}.")
    return found


def _finding_faults(plan: PlannedQuestion, answer: str) -> list[str]:
    return [
        f'The answer must name the finding, written "{label}".'
        for label in plan.labels
        if label.casefold() not in answer.casefold()
    ]


def _list_faults(plan: PlannedQuestion, answer: str) -> list[str]:
    """One sentence for each label, with its boxes at the end, so that it can be told whose they
    are."""
    sentences = re.split(r"(?<=>\.)\s+", answer.strip())
    for label, sentence in zip(plan.labels, sentences, strict=False):
        shown = " ".join(_BOX.findall(sentence))
        wanted = " ".join(map(format_box, plan.boxes.get(label, ())))
        if label.casefold() not in sentence.casefold() or shown != wanted:
            return [f'One sentence must name "{label}" and end with its boxes, {wanted}.']
    if len(sentences) != len(plan.labels) or not answer.strip().endswith(">."):
        listed = ", ".join(plan.labels)
        return [f"The answer must have one sentence ending with boxes for each of: {listed}."]
    return []


def _polarity_faults(plan: PlannedQuestion, answer: str) -> list[str]:
    first = re.split(r"\W+", answer.strip().casefold(), maxsplit=1)[0]
    if plan.negative_kind is not None:
        if plan.kind in ("Is_there", "Yes_No") and first != "no":
            return ['The answer must begin with "No": it is not there.']
        if not _NEGATION.search(answer):
            return ["The answer must say that it is not there."]
        return []
    if plan.kind in ("Is_there", "Yes_No") and plan.style != "list_all" and first != "yes":
        return ['The answer must begin with "Yes": it is there.']
    denied = any(
        re.search(rf"\bno\s+(?:\w+\s+(?:of|for)\s+)?{re.escape(label)}", answer, re.I)
        for label in plan.labels
    )
    if denied or first == "no":
        return ["The answer must not deny the finding: it is there."]
    if plan.kind == "How_many" and plan.style != "list_all" and not _counts(answer, plan.count):
        return [f"The answer must give the number {plan.count}."]
    return []


def _counts(answer: str, count: int) -> bool:
    forms = [str(count), *_NUMBER_WORDS[count : count + 1]]
    return re.search(rf"\b({'|'.join(forms)})\b", answer, re.I) is not None


def _as_written(box: list[float]) -> str:
    return format_box((box[0], box[1], box[2], box[3]))
