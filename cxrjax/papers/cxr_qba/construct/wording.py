"""Wording of a study's questions and answers: templates, and the maker of questions."""

import dataclasses
import functools
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cxrjax.files import read_packaged
from cxrjax.papers.cxr_qba import native
from cxrjax.papers.cxr_qba.construct import phrases
from cxrjax.papers.cxr_qba.construct.ratings import localization_quality, merged, worst_values
from cxrjax.radiology_text.definitions import load_definitions


def around(name: str) -> list[str]:
    """Returns the regions that a region lies in, nearest first; of one side those of its side."""
    known = load_definitions()
    side = known.regions[name].side
    above = (one for up in known.region_ancestors(name) for one in known.on_side(up, side))
    return [one for one in above if not side or known.regions[one].side == side]


@dataclasses.dataclass(frozen=True)
class CxrQbaTemplates:
    """Wordings: question type -> questions, name -> answers."""

    version: str
    questions: Mapping[str, Sequence[str]]
    answers: Mapping[str, Sequence[str]]


@functools.cache
def load_templates() -> CxrQbaTemplates:
    """Returns the wordings in the package."""
    data = read_packaged(str(__package__), "reference/templates.json")
    return CxrQbaTemplates(data["version"], data["questions"], data["answers"])


def least_sure(certainties: Iterable[str | None]) -> str:
    """Returns the least sure of some certainties; one that is not given is certain."""
    return max((one or "certain" for one in certainties), key=phrases.CERTAINTIES.index)


Node = native.NativeObservation
Nodes = Sequence[Node]
_BOTH = ("bilateral", "multifocal", "scattered")
TAGS = ("obs_entities", "obs_entities_parents", "obs_categories", "obs_subcategories")


def united(
    parts: Sequence[native.NativeAnswer] | Nodes, names: Sequence[str] = ("regions", *TAGS)
) -> dict[str, Any]:
    """Returns what answers or observations are about: field -> values of all, each once."""
    return {
        name: list(dict.fromkeys(value for part in parts for value in getattr(part, name)))
        for name in names
    }


def from_observation(
    graph: native.StudySceneGraph, observation: Node, answer_type: str, level: int = 0
) -> native.NativeAnswer:
    """Returns an observation as an answer; what it is taken for becomes its details."""
    # Neither yes nor no of what is not mentioned, which the graph assumes to be absent.
    silent = observation.certainty == phrases.NOT_MENTIONED
    # Validation would double the time, and all that goes in here is valid.
    return native.NativeAnswer.model_construct(
        answer_id="",
        answer_type=answer_type,
        answer_level=level,
        text=observation.summary_sentence,
        name_tag=observation.name,
        laterality=observation.laterality,
        regions=observation.region_names,
        **{name: getattr(observation, name) for name in TAGS},
        certainty=observation.certainty,
        positiveness=None if silent else observation.positiveness,
        modifiers=[[kind, one] for kind, values in observation.modifiers.items() for one in values],
        localization=observation.localization,
        sub_answers=[
            from_observation(graph, graph.observations[child], "details", level + 1)
            for child in graph.children(observation.obs_id)
        ],
        from_report=observation.from_report,
        extraction_quality={
            name: value for name, value in observation.obs_quality.items() if isinstance(value, str)
        },
    )


# Of an answer that rests on no observation.
_NOTHING_SAID = {"region_quality": "NO_REGIONS", "entity_quality": "NO_ENTITIES"}


def from_template(
    text: str, positive: bool, certainty: str, parts: Sequence[native.NativeAnswer]
) -> native.NativeAnswer:
    """Returns a main answer in a template's words, what it follows from below it.

    It carries the tags and the boxes of its parts: a yes is about what is there.
    """
    for part in native.walk(list(parts)):
        part.answer_level += 1
    return native.NativeAnswer.model_construct(
        answer_id="",
        answer_type="main_answer",
        text=text,
        **united(parts),
        certainty=certainty,
        positiveness=None if certainty == phrases.NOT_MENTIONED else "pos" if positive else "neg",
        localization=merged([part.localization for part in parts]),
        sub_answers=list(parts),
        from_report=False,
    )


def certainty_from(parts: Sequence[native.NativeAnswer]) -> str:
    """Returns how sure is what follows from these: as the least sure of several denials, as the
    surest of what is there; not mentioned where nothing is said."""
    if not parts:
        return phrases.NOT_MENTIONED
    if all(part.positiveness != "pos" for part in parts):
        return least_sure(part.certainty for part in parts)
    return min((part.certainty or "certain" for part in parts), key=phrases.CERTAINTIES.index)


def number_answers(answers: Sequence[native.NativeAnswer], prefix: str) -> None:
    """Gives every answer an id below its parent's."""
    for number, answer in enumerate(answers, start=1):
        answer.answer_id = f"{prefix}_{number}"
        number_answers(answer.sub_answers, answer.answer_id)


# Values that give a template its grammar and are no variable of the question.
_GRAMMAR = ("is", "Is", "has", "Has", "asked", "a_finding", "A_finding", "named", "Named")


class QuestionMaker:
    """Makes questions of one study; its subclass decides which ones.

    Attributes:
        top: observations that no other one is taken for.
        images: ids of images with regions.
    """

    def __init__(self, graph: native.StudySceneGraph, seed: int) -> None:
        self.graph = graph
        self.seed = seed
        self.definitions = load_definitions()
        self.templates = load_templates()
        self.nodes = list(graph.observations.values())
        self.top = [graph.observations[obs_id] for obs_id in graph.top_level_obs_ids]
        self.images = list(graph.study_img_localization_quality)

    def on_side(self, side: str) -> native.StudySceneGraph:
        """Returns the graph with its observations as far as they are of one side; those of the
        other alone stay."""
        narrowed = {name: self._narrow(o, side) for name, o in self.graph.observations.items()}
        return self.graph.model_copy(update={"observations": narrowed})

    def _narrow(self, node: Node, side: str) -> Node:
        known = self.definitions
        here = dict.fromkeys(one for own in node.region_names for one in known.on_side(own, side))
        regions = [name for name in here if known.regions[name].side in ("", side)]
        # On neither side alone where the report does not say where it is.
        both = any({*_BOTH} & {*ones} for ones in node.modifiers.values())
        untold = node.positive and node.default_regions and not both
        if untold or not regions or regions == node.region_names:
            return node
        update: dict[str, Any] = {
            "regions": [native.ObservedRegion(region=name) for name in regions],
            "laterality": side,
            "localization": merged([self._place(name) for name in regions]),
        }
        findings = [known.findings[name] for name in node.obs_entities]
        organ = node.name.removeprefix(phrases.NORMAL)
        if organ != node.name and organ in known.sides:
            update["summary_sentence"] = phrases.describe_normal(known.on_side(organ, side)[0])[1]
        elif findings and not node.default_regions and organ == node.name:
            said = [
                (k, one) for k, ones in node.modifiers.items() for one in ones if one not in _BOTH
            ]
            about = (findings, regions, said, node.positive, str(node.certainty))
            update["summary_sentence"] = phrases.describe(*about)[1]
        return node.model_copy(update=update)

    def _place(self, region: str) -> dict[str, native.NativeLocalization]:
        """Returns boxes of a region on each image; where it has none, of what it lies in."""
        found: dict[str, native.NativeLocalization] = {}
        for name in (region, *around(region)):
            there = self.graph.regions[name].localization if name in self.graph.regions else {}
            for image_id, place in there.items():
                if place.bboxes:
                    general = place.model_copy(update={"is_fallback": name != region})
                    found.setdefault(image_id, general)
        return found

    def rng(self, purpose: str) -> random.Random:
        """Returns a generator for one purpose: the same for the same seed, study and purpose."""
        return random.Random(f"{self.seed}/{self.graph.study_id}/{purpose}")

    def say(self, observations: Nodes, kind: str = "main_answer") -> list[native.NativeAnswer]:
        """Returns each observation as an answer, what is there first."""
        ordered = sorted(observations, key=lambda o: not o.positive)
        return [from_observation(self.graph, o, kind) for o in ordered]

    def by_template(
        self,
        kind: str,
        name: str,
        positive: bool,
        because: Nodes,
        values: dict[str, str],
        certainty: str | None = None,
        told: Mapping[str, str] | None = None,
    ) -> native.NativeQuestion:
        """Returns a question that a template answers, what the answer follows from below it.

        The template is that for the answer's certainty where there is one.

        Args:
            certainty: the answer is no surer than this and than what it follows from.
            told: values for the answer alone.
        """
        filled = {**values, **(told or {})}
        rng = self.rng(f"{kind}/{name}/{sorted(filled.items())}")
        parts = self.say(because, "details")
        sure = least_sure((certainty_from(parts), certainty))
        wordings = self.templates.answers.get(f"{name}_{sure}") or self.templates.answers[name]
        text = rng.choice(wordings).format(**filled)
        return self.question(kind, [from_template(text, positive, sure, parts)], values)

    def question(
        self,
        kind: str,
        answers: list[native.NativeAnswer],
        values: dict[str, str] | None = None,
        obs_ids: Sequence[str] | None = None,
    ) -> native.NativeQuestion:
        """Returns a question of a type; `values` fill its wording."""
        values = values or {}
        wordings = self.templates.questions[kind]
        number = self.rng(f"{kind}/{sorted(values.items())}").randrange(len(wordings))
        every = list(native.walk(answers))
        tags = {answer.name_tag for answer in every if answer.name_tag}
        if obs_ids is None:
            obs_ids = [o.obs_id for o in self.nodes if o.name in tags]
        variables: dict[str, Any] = {k: one for k, one in values.items() if k not in _GRAMMAR}
        variables["template_id"] = f"v{self.templates.version}/{kind}/{number}"
        placed = [answer for answer in every if answer.name_tag and answer.regions]
        return native.NativeQuestion.model_construct(
            question_id="",
            question_type=kind,
            question_strategy=native.QUESTION_TYPES.get(kind, ""),
            variables=variables,
            obs_ids=list(obs_ids),
            contains_report_answers=any(answer.from_report for answer in every),
            contains_template_answers=any(answer.name_tag is None for answer in every),
            extraction_quality=worst_values(answer.extraction_quality for answer in every)
            or dict(_NOTHING_SAID),
            question_img_localization_quality={
                image_id: localization_quality([a.localization.get(image_id) for a in placed])
                for image_id in self.images
            },
            question=wordings[number].format(**values),
            answers=answers,
        )
