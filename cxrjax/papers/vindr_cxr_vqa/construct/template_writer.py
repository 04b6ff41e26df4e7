"""The offline writer: the same plan and seed give the same words, and no network is needed."""

from collections import Counter
from collections.abc import Iterable, Iterator
from random import Random

from cxrjax.papers.vindr_cxr_vqa.construct.asking import stream
from cxrjax.papers.vindr_cxr_vqa.construct.plan import PlannedQuestion, Wording, are, difficulty
from cxrjax.papers.vindr_cxr_vqa.construct.reasons import number, write_reason
from cxrjax.papers.vindr_cxr_vqa.construct.templates import class_words, format_box, load_templates
from cxrjax.papers.vindr_cxr_vqa.construct.variation import vary_name, vary_question
from cxrjax.radiology_text.english import join
from cxrjax.records_io.quality import PixelBox

EASY_BOXES = 3  # places of a class; nearest to Table 3's share of Easy questions


class TemplateWriter:
    """Words plans about the box table from the template files; a `Writer`.

    Attributes:
        variations: how many questions departed from their template, by how they did.
    """

    name = "templates"

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._templates = load_templates("6")
        self.version = self._templates.version
        self.variations: Counter[str] = Counter()

    def write(self, plans: Iterable[PlannedQuestion]) -> Iterator[tuple[PlannedQuestion, Wording]]:
        """Yields each plan with its words, in order."""
        for plan in plans:
            yield plan, self._word(plan)

    def _word(self, plan: PlannedQuestion) -> Wording:
        rng = stream(self._seed, plan.question_id, "words")
        question, template_id = self._question(plan)
        return Wording(
            question,
            self._answer(plan, rng),
            write_reason(plan, self._templates, rng),
            difficulty(plan, EASY_BOXES),
            template_id,
            self._others(plan, rng),
        )

    def _question(self, plan: PlannedQuestion) -> tuple[str, str]:
        rng = stream(self._seed, plan.question_id, "question")
        slots: dict[str, str] = {}
        named = ""
        if plan.kind != "What":
            slots, named = vary_name(class_words()[plan.labels[0]], self._templates, rng)
        category = "List_all" if plan.style == "list_all" else plan.kind
        place = plan.place if plan.kind == "Which" else None
        question, template_id = self._templates.question(category, rng, place, **slots)
        question, done = vary_question(question, self._templates, rng)
        done = [named, *done] if named else done
        self.variations.update(done)
        return question, f"{template_id}/{'+'.join(done)}" if done else template_id

    def _answer(self, plan: PlannedQuestion, rng: Random) -> str:
        answer = self._templates.answer
        if plan.style == "list_all":
            return " ".join(
                answer("list_all", "What", rng, len(boxes), finding=label, boxes_and=_and(boxes))
                for label, boxes in plan.boxes.items()
            )
        values = {"count": number(plan.count), "place": plan.place or ""}
        if plan.labels:
            words = class_words()[plan.labels[0]]
            values |= {
                "finding": words.name,
                "The_finding": words.name
                if words.with_article == words.name
                else f"The {words.name}",
                "a_finding": words.with_article,
                "boxes_and": _and(plan.boxes.get(words.name, ())),
            }
        # Without a place to give, "Which" is answered as "Where" is.
        placed = plan.kind != "Which" or plan.place or plan.negative_kind
        kind = plan.kind if placed else "Where"
        return answer("lesions", kind, rng, plan.count, **values)

    def _others(self, plan: PlannedQuestion, rng: Random) -> str:
        if not plan.others:
            return ""
        sentence = rng.choice(self._templates.others)
        return sentence.format(others=join(plan.others), are=are(plan.others))


def _and(boxes: Iterable[PixelBox]) -> str:
    return join([format_box(box) for box in boxes])
