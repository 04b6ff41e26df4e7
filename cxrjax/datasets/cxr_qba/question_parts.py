"""One question with its answers, from a scene graph and templates."""

import random
from collections.abc import Sequence

from cxrjax.datasets.cxr_qba.answer_parts import (
    Templates,
    from_observation,
    from_template,
    load_templates,
)
from cxrjax.datasets.cxr_qba.observation_quality import localization_quality
from cxrjax.datasets.cxr_qba.questions import QUESTION_TYPES, Answer, Question, walk
from cxrjax.datasets.cxr_qba.ratings import worst_values
from cxrjax.datasets.cxr_qba.scene_graph import Observation, SceneGraph


class QuestionMaker:
    """Makes questions of one study; which ones, its subclass decides.

    Attributes:
        top: observations that no other one is taken for.
        images: ids of images with regions.
    """

    def __init__(self, graph: SceneGraph, seed: int) -> None:
        self.graph = graph
        self.seed = seed
        self.templates: Templates = load_templates()
        self.nodes = list(graph.observations.values())
        self.top = [graph.observations[obs_id] for obs_id in graph.top_level_obs_ids]
        self.images = list(graph.study_img_localization_quality)

    def rng(self, purpose: str) -> random.Random:
        """Chance for one purpose: the same for the same seed, study and purpose."""
        return random.Random(f"{self.seed}/{self.graph.study_id}/{purpose}")

    def say(self, observations: Sequence[Observation], kind: str = "main_answer") -> list[Answer]:
        """Each observation as an answer, what is there first."""
        ordered = sorted(observations, key=lambda o: not o.positive)
        return [from_observation(self.graph, o, kind) for o in ordered]

    def template(
        self,
        kind: str,
        name: str,
        positive: bool,
        values: dict[str, str],
        parts: Sequence[Answer] = (),
        certainty: str = "certain",
    ) -> Answer:
        """A main answer in the words of a template."""
        rng = self.rng(f"{kind}/{name}/{sorted(values.items())}")
        return from_template(self.templates.answer(name, rng, **values), positive, certainty, parts)

    def yes_no(
        self,
        kind: str,
        name: str,
        positive: bool,
        because: Sequence[Observation],
        values: dict[str, str],
        certainty: str = "certain",
    ) -> Question:
        """A question that a template answers by yes or no, and what it follows from."""
        parts = self.say(because, "details")
        return self.question(
            kind, [self.template(kind, name, positive, values, parts, certainty)], values
        )

    def question(
        self,
        kind: str,
        answers: list[Answer],
        values: dict[str, str] | None = None,
        obs_ids: Sequence[str] | None = None,
    ) -> Question:
        """A question of a type; `values` fill its wording."""
        values = values or {}
        text, template_id = self.templates.question(
            kind, self.rng(f"{kind}/{sorted(values.items())}"), **values
        )
        every = list(walk(answers))
        tags = {answer.name_tag for answer in every if answer.name_tag}
        if obs_ids is None:
            obs_ids = [o.obs_id for o in self.nodes if o.name in tags]
        shown = {key: value for key, value in values.items() if key.lower() != "are"}
        return Question.model_construct(
            question_id="",
            question_type=kind,
            question_strategy=QUESTION_TYPES[kind],
            variables={**shown, "template_id": template_id},
            obs_ids=list(obs_ids),
            contains_report_answers=any(answer.from_report for answer in every),
            contains_template_answers=any(answer.name_tag is None for answer in every),
            extraction_quality=worst_values(answer.extraction_quality for answer in every),
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
