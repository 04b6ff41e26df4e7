"""Parts of answers: from observations, and from templates."""

import dataclasses
import functools
import importlib.resources
import json
import random
from collections.abc import Mapping, Sequence

from cxrjax.datasets.cxr_qba.observation_quality import merged
from cxrjax.datasets.cxr_qba.questions import Answer
from cxrjax.datasets.cxr_qba.scene_graph import Observation, SceneGraph


@dataclasses.dataclass(frozen=True)
class Templates:
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
def load_templates() -> Templates:
    """The wordings in the package."""
    file = importlib.resources.files(__package__).joinpath("reference", "templates.json")
    data = json.loads(file.read_text(encoding="utf-8"))
    return Templates(data["version"], data["questions"], data["answers"])


def from_observation(
    graph: SceneGraph, observation: Observation, answer_type: str, level: int = 0
) -> Answer:
    """An answer that says what an observation says; what it is taken for becomes its details."""
    below = [
        from_observation(graph, graph.observations[child], "details", level + 1)
        for child in graph.children(observation.obs_id)
    ]
    # Validation would double the time, and all that goes in here is valid.
    return Answer.model_construct(
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
        positiveness=observation.positiveness,
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


def from_template(
    text: str, positive: bool, certainty: str = "certain", parts: Sequence[Answer] = ()
) -> Answer:
    """A main answer in a template's words, what it follows from below it.

    It carries the tags and the boxes of its parts: a yes is about what is there.
    """
    for part in parts:
        _lower(part)

    def union(name: str) -> list:
        return list(dict.fromkeys(value for part in parts for value in getattr(part, name)))

    return Answer.model_construct(
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
        positiveness="pos" if positive else "neg",
        modifiers=[],
        localization=merged([part.localization for part in parts]),
        sub_answers=list(parts),
        from_report=False,
        extraction_quality={},
        answer_quality={},
    )


def _lower(answer: Answer) -> None:
    answer.answer_level += 1
    for part in answer.sub_answers:
        _lower(part)


def number_answers(answers: Sequence[Answer], prefix: str) -> None:
    """Gives every answer an id below its parent's."""
    for number, answer in enumerate(answers, start=1):
        answer.answer_id = f"{prefix}_{number}"
        number_answers(answer.sub_answers, answer.answer_id)
