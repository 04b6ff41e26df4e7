"""The offline writer: the same plan and seed give the same words, and no network is needed."""

from collections.abc import Iterable, Iterator

from cxrjax.papers.vindr_cxr_vqa.construct.box_words import number, place_or_order
from cxrjax.papers.vindr_cxr_vqa.construct.plan import PlannedQuestion, Wording, difficulty
from cxrjax.papers.vindr_cxr_vqa.construct.questions import stream
from cxrjax.papers.vindr_cxr_vqa.construct.reasons import write_reason
from cxrjax.papers.vindr_cxr_vqa.construct.templates import format_box, load_templates
from cxrjax.papers.vindr_cxr_vqa.construct.vocabulary import class_words
from cxrjax.radiology_text.english import join

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
    """What fills the slots of questions and of answers with at most one box."""
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
