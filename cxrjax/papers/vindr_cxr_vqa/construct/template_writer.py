"""The offline writer: the same plan and seed give the same words, and no network is needed."""

import itertools
from collections.abc import Iterable, Iterator
from random import Random

from cxrjax.papers.vindr_cxr_vqa.construct.plan import (
    PlannedQuestion,
    Wording,
    dense_order,
    difficulty,
    stream,
)
from cxrjax.papers.vindr_cxr_vqa.construct.reasons import number, place_or_order, write_reason
from cxrjax.papers.vindr_cxr_vqa.construct.templates import class_words, format_box, load_templates
from cxrjax.radiology_text.english import capital, join

EASY_BOXES = 2  # of a class, by one reader; nearest to Table 3's share of Easy questions


class TemplateWriter:
    """Words plans about the box table from the template files; a `Writer`."""

    name = "templates"

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._templates = load_templates("2")
        self.version = self._templates.version

    def write(self, plans: Iterable[PlannedQuestion]) -> Iterator[tuple[PlannedQuestion, Wording]]:
        """Each plan with its words, in order."""
        for plan in plans:
            yield plan, self._word(plan)

    def _word(self, plan: PlannedQuestion) -> Wording:
        rng = stream(self._seed, plan.question_id, "words")
        values = _values(plan)
        category = "List_all" if plan.style == "list_all" else plan.kind
        question, template_id = self._templates.question(category, rng, **values)
        if plan.style == "list_all":
            answer = " ".join(
                self._templates.answer(
                    "list_all",
                    "What",
                    rng,
                    len(boxes),
                    finding=label,
                    boxes_and=join([format_box(box) for box in boxes]),
                )
                for label, boxes in plan.boxes.items()
            )
        else:
            answer = self._templates.answer("one_box", plan.kind, rng, plan.count, **values)
        reason = write_reason(plan, self._templates, rng)
        return Wording(question, answer, reason, difficulty(plan, EASY_BOXES), template_id)


def _values(plan: PlannedQuestion) -> dict[str, str]:
    """Fillings for the slots of questions and of answers with at most one box."""
    values = {"count": number(plan.count)}
    if plan.style == "one_box" and plan.labels:
        words = class_words()[plan.labels[0]]
        values |= {
            "finding": words.name,
            "a_finding": words.with_article,
            "structure": words.structure,
        }
        for box in plan.boxes.get(words.name, ()):
            values |= {
                "boxes": format_box(box),
                "place": place_or_order(plan.image, words.name, box),
            }
    return values


_EASY_BOXES = 1


class DenseWriter:
    """Words dense plans; a `Writer`.

    The stream that decided what to ask about an image goes on to choose the words: a shipped
    checkpoint was trained on what came of it. So an image's plans must come together, in order.
    """

    name = "templates"

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._templates = load_templates("1")
        self.version = self._templates.version

    def write(self, plans: Iterable[PlannedQuestion]) -> Iterator[tuple[PlannedQuestion, Wording]]:
        """Each plan with its words, in order."""
        for image_id, group in itertools.groupby(plans, key=lambda plan: plan.image.image_id):
            what, *about_classes = group
            yield what, self._word(what, stream(self._seed, image_id, "what"))
            negatives = sum(plan.negative_kind is not None for plan in about_classes)
            _, rng = dense_order(what.image, negatives, self._seed)
            for plan in about_classes:
                yield plan, self._word(plan, rng)

    def _word(self, plan: PlannedQuestion, rng: Random) -> Wording:
        boxes = [format_box(box) for of_label in plan.boxes.values() for box in of_label]
        if plan.kind == "What":
            finding, reason = "", "named" if plan.labels else "normal"
        else:
            finding, reason = plan.labels[0], "marked" if boxes else "absent"
        question, template_id = self._templates.question(plan.kind, rng, finding=finding)
        answer = self._templates.answer(
            "dense",
            plan.kind,
            rng,
            plan.count,
            finding=finding,
            findings=join(plan.labels),
            boxes=" ".join(boxes),
            boxes_and=join(boxes),
            count=str(plan.count),
        )
        # Each has one wording; drawing it would move the stream.
        (wording,) = self._templates.reasons[reason]
        filled = wording.format(
            finding=finding,
            findings=join(plan.labels),
            votes=plan.image.votes(finding),
            readers=len(plan.image.readers),
        )
        return Wording(
            question, answer, capital(filled), difficulty(plan, _EASY_BOXES), template_id
        )
