"""Wording of a study's questions and answers: templates, and the maker of questions."""

import dataclasses
import functools
import random
from collections.abc import Mapping, Sequence

from cxrjax.files import read_packaged
from cxrjax.papers.cxr_qba import native
from cxrjax.papers.cxr_qba.construct.phrases import CERTAINTIES, NOT_MENTIONED
from cxrjax.papers.cxr_qba.construct.ratings import localization_quality, merged, worst_values


@dataclasses.dataclass(frozen=True)
class CxrQbaTemplates:
    """Wordings: question type -> questions, name -> answers."""

    version: str
    questions: Mapping[str, Sequence[str]]
    answers: Mapping[str, Sequence[str]]

    def question(self, kind: str, rng: random.Random, **values: str) -> tuple[str, str]:
        """(question, template id)."""
        number = rng.randrange(len(self.questions[kind]))
        return self.questions[kind][number].format(**values), f"v{self.version}/{kind}/{number}"

    def answer(self, name: str, rng: random.Random, **values: str) -> str:
        """One of an answer's wordings, filled."""
        return rng.choice(self.answers[name]).format(**values)


@functools.cache
def load_templates() -> CxrQbaTemplates:
    """The wordings in the package."""
    data = read_packaged(str(__package__), "reference/templates.json")
    return CxrQbaTemplates(data["version"], data["questions"], data["answers"])


def from_observation(
    graph: native.StudySceneGraph,
    observation: native.NativeObservation,
    answer_type: str,
    level: int = 0,
) -> native.NativeAnswer:
    """An answer that says what an observation says; what it is taken for becomes its details."""
    below = [
        from_observation(graph, graph.observations[child], "details", level + 1)
        for child in graph.children(observation.obs_id)
    ]
    # Validation would double the time, and all that goes in here is valid.
    return native.NativeAnswer.model_construct(
        answer_id="",
        answer_type=answer_type,
        answer_level=level,
        text=observation.summary_sentence,
        name_tag=observation.name,
        laterality=observation.laterality,
        regions=[entry.region for entry in observation.regions],
        obs_entities=observation.obs_entities,
        obs_entities_parents=observation.obs_entities_parents,
        obs_categories=observation.obs_categories,
        obs_subcategories=observation.obs_subcategories,
        certainty=observation.certainty,
        positiveness=_polarity(observation),
        modifiers=[
            [kind, value] for kind, values in observation.modifiers.items() for value in values
        ],
        localization=observation.localization,
        sub_answers=below,
        from_report=observation.from_report,
        extraction_quality={
            name: value for name, value in observation.obs_quality.items() if isinstance(value, str)
        },
        answer_quality={},
    )


def _polarity(observation: native.NativeObservation) -> str | None:
    """Neither yes nor no of what is not mentioned, which the graph assumes to be absent."""
    return None if observation.certainty == NOT_MENTIONED else observation.positiveness


# Of an answer that rests on no observation.
_NOTHING_SAID = {"region_quality": "NO_REGIONS", "entity_quality": "NO_ENTITIES"}


def from_template(
    text: str, positive: bool, certainty: str, parts: Sequence[native.NativeAnswer] = ()
) -> native.NativeAnswer:
    """A main answer in a template's words, what it follows from below it.

    It carries the tags and the boxes of its parts: a yes is about what is there.
    """
    for part in parts:
        _lower(part)

    def union(name: str) -> list:
        return list(dict.fromkeys(value for part in parts for value in getattr(part, name)))

    return native.NativeAnswer.model_construct(
        answer_id="",
        answer_type="main_answer",
        answer_level=0,
        text=text,
        name_tag=None,
        laterality=None,
        regions=union("regions"),
        obs_entities=union("obs_entities"),
        obs_entities_parents=union("obs_entities_parents"),
        obs_categories=union("obs_categories"),
        obs_subcategories=union("obs_subcategories"),
        certainty=certainty,
        positiveness=None if certainty == NOT_MENTIONED else "pos" if positive else "neg",
        modifiers=[],
        localization=merged([part.localization for part in parts]),
        sub_answers=list(parts),
        from_report=False,
        extraction_quality={},
        answer_quality={},
    )


def certainty_from(parts: Sequence[native.NativeAnswer]) -> str:
    """How sure is what follows from these: as the least sure of several denials, as the surest of
    what is there; not mentioned where nothing is said."""
    if not parts:
        return CERTAINTIES[-1]
    ranks = [CERTAINTIES.index(part.certainty or "certain") for part in parts]
    denies = all(part.positiveness != "pos" for part in parts)
    return CERTAINTIES[max(ranks) if denies else min(ranks)]


def _lower(answer: native.NativeAnswer) -> None:
    answer.answer_level += 1
    for part in answer.sub_answers:
        _lower(part)


def number_answers(answers: Sequence[native.NativeAnswer], prefix: str) -> None:
    """Gives every answer an id below its parent's."""
    for number, answer in enumerate(answers, start=1):
        answer.answer_id = f"{prefix}_{number}"
        number_answers(answer.sub_answers, answer.answer_id)


# Values that give a template its grammar and are no variable of the question.
_GRAMMAR = ("is", "Is", "has", "Has", "asked", "a_finding", "A_finding", "named", "Named")


class QuestionMaker:
    """Makes questions of one study; which ones, its subclass decides.

    Attributes:
        top: observations that no other one is taken for.
        images: ids of images with regions.
    """

    def __init__(self, graph: native.StudySceneGraph, seed: int) -> None:
        self.graph = graph
        self.seed = seed
        self.templates: CxrQbaTemplates = load_templates()
        self.nodes = list(graph.observations.values())
        self.top = [graph.observations[obs_id] for obs_id in graph.top_level_obs_ids]
        self.images = list(graph.study_img_localization_quality)

    def rng(self, purpose: str) -> random.Random:
        """Chance for one purpose: the same for the same seed, study and purpose."""
        return random.Random(f"{self.seed}/{self.graph.study_id}/{purpose}")

    def say(
        self, observations: Sequence[native.NativeObservation], kind: str = "main_answer"
    ) -> list[native.NativeAnswer]:
        """Each observation as an answer, what is there first."""
        ordered = sorted(observations, key=lambda o: not o.positive)
        return [from_observation(self.graph, o, kind) for o in ordered]

    def template(
        self,
        kind: str,
        name: str,
        positive: bool,
        values: dict[str, str],
        parts: Sequence[native.NativeAnswer] = (),
        certainty: str | None = None,
    ) -> native.NativeAnswer:
        """A main answer in the words of a template; those for its certainty where there are some.

        Args:
            certainty: where given, it is no surer than this and than what it follows from.
        """
        rng = self.rng(f"{kind}/{name}/{sorted(values.items())}")
        certainty = max(certainty_from(parts), certainty or "certain", key=CERTAINTIES.index)
        for_it = f"{name}_{certainty}"
        worded = for_it if for_it in self.templates.answers else name
        text = self.templates.answer(worded, rng, **values)
        return from_template(text, positive, certainty, parts)

    def yes_no(
        self,
        kind: str,
        name: str,
        positive: bool,
        because: Sequence[native.NativeObservation],
        values: dict[str, str],
        certainty: str | None = None,
    ) -> native.NativeQuestion:
        """A question that a template answers by yes or no, and what it follows from."""
        parts = self.say(because, "details")
        return self.question(
            kind, [self.template(kind, name, positive, values, parts, certainty)], values
        )

    def question(
        self,
        kind: str,
        answers: list[native.NativeAnswer],
        values: dict[str, str] | None = None,
        obs_ids: Sequence[str] | None = None,
    ) -> native.NativeQuestion:
        """A question of a type; `values` fill its wording."""
        values = values or {}
        text, template_id = self.templates.question(
            kind, self.rng(f"{kind}/{sorted(values.items())}"), **values
        )
        every = list(native.walk(answers))
        tags = {answer.name_tag for answer in every if answer.name_tag}
        if obs_ids is None:
            obs_ids = [o.obs_id for o in self.nodes if o.name in tags]
        about = {key: value for key, value in values.items() if key not in _GRAMMAR}
        return native.NativeQuestion.model_construct(
            question_id="",
            question_type=kind,
            question_strategy=native.QUESTION_TYPES.get(kind, ""),
            variables={**about, "template_id": template_id},
            obs_ids=list(obs_ids),
            contains_report_answers=any(answer.from_report for answer in every),
            contains_template_answers=any(answer.name_tag is None for answer in every),
            extraction_quality=worst_values(answer.extraction_quality for answer in every)
            or dict(_NOTHING_SAID),
            question_img_localization_quality={
                image_id: localization_quality(
                    [a.localization.get(image_id) for a in every if a.name_tag and a.regions]
                )
                for image_id in self.images
            },
            question=text,
            answers=answers,
            question_quality={},
        )
