"""Wording of a study's questions and answers: templates, noun phrases, and their maker."""

import dataclasses
import functools
import random
from collections.abc import Mapping, Sequence

from cxrjax.files import read_packaged
from cxrjax.papers.cxr_qba.construct.ratings import localization_quality, merged, worst_values
from cxrjax.papers.cxr_qba.native import (
    QUESTION_TYPES,
    NativeAnswer,
    NativeObservation,
    NativeQuestion,
    StudySceneGraph,
    walk,
)
from cxrjax.radiology_text.definitions import Definitions, Finding
from cxrjax.radiology_text.english import capital, join


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
    graph: StudySceneGraph, observation: NativeObservation, answer_type: str, level: int = 0
) -> NativeAnswer:
    """An answer that says what an observation says; what it is taken for becomes its details."""
    below = [
        from_observation(graph, graph.observations[child], "details", level + 1)
        for child in graph.children(observation.obs_id)
    ]
    # Validation would double the time, and all that goes in here is valid.
    return NativeAnswer.model_construct(
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


# From the surest on.
CERTAINTIES = ("certain", "likely", "uncertain")


def from_template(
    text: str, positive: bool, certainty: str | None = None, parts: Sequence[NativeAnswer] = ()
) -> NativeAnswer:
    """A main answer in a template's words, what it follows from below it.

    It carries the tags and the boxes of its parts: a yes is about what is there. Where no certainty
    is given, a yes is as certain as the surest of its parts and a no as the least sure; one that
    rests on nothing said is likely.
    """
    if certainty is None:
        ranks = [CERTAINTIES.index(part.certainty or "certain") for part in parts] or [1]
        certainty = CERTAINTIES[min(ranks) if positive else max(ranks)]
    for part in parts:
        _lower(part)

    def union(name: str) -> list:
        return list(dict.fromkeys(value for part in parts for value in getattr(part, name)))

    return NativeAnswer.model_construct(
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


def _lower(answer: NativeAnswer) -> None:
    answer.answer_level += 1
    for part in answer.sub_answers:
        _lower(part)


def number_answers(answers: Sequence[NativeAnswer], prefix: str) -> None:
    """Gives every answer an id below its parent's."""
    for number, answer in enumerate(answers, start=1):
        answer.answer_id = f"{prefix}_{number}"
        number_answers(answer.sub_answers, answer.answer_id)


class QuestionMaker:
    """Makes questions of one study; which ones, its subclass decides.

    Attributes:
        top: observations that no other one is taken for.
        images: ids of images with regions.
    """

    def __init__(self, graph: StudySceneGraph, seed: int) -> None:
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
        self, observations: Sequence[NativeObservation], kind: str = "main_answer"
    ) -> list[NativeAnswer]:
        """Each observation as an answer, what is there first."""
        ordered = sorted(observations, key=lambda o: not o.positive)
        return [from_observation(self.graph, o, kind) for o in ordered]

    def template(
        self,
        kind: str,
        name: str,
        positive: bool,
        values: dict[str, str],
        parts: Sequence[NativeAnswer] = (),
        certainty: str | None = None,
    ) -> NativeAnswer:
        """A main answer in the words of a template."""
        rng = self.rng(f"{kind}/{name}/{sorted(values.items())}")
        return from_template(self.templates.answer(name, rng, **values), positive, certainty, parts)

    def yes_no(
        self,
        kind: str,
        name: str,
        positive: bool,
        because: Sequence[NativeObservation],
        values: dict[str, str],
        certainty: str | None = None,
    ) -> NativeQuestion:
        """A question that a template answers by yes or no, and what it follows from."""
        parts = self.say(because, "details")
        return self.question(
            kind, [self.template(kind, name, positive, values, parts, certainty)], values
        )

    def question(
        self,
        kind: str,
        answers: list[NativeAnswer],
        values: dict[str, str] | None = None,
        obs_ids: Sequence[str] | None = None,
    ) -> NativeQuestion:
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
        return NativeQuestion.model_construct(
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


_MODIFIER_ORDER = ("severity", "temporal", "spread", "texture")
ACUTE = ("temporal", "acute")
_EXISTS = {"certain": "There is", "likely": "There is probably", "uncertain": "There may be"}
_CHANGES = {
    "no change": "is unchanged",
    "new": "is new",
    "increased": "has increased",
    "decreased": "has decreased",
    "resolved": "has resolved",
}

# Plurals of regions that do not end in s.
_PLURALS = ("axillae", "bronchi", "hila", "humeri", "scapulae")


def noun(
    findings: Sequence[Finding],
    modifiers: Sequence[tuple[str, str]],
    side: str = "",
    article: bool = False,
) -> str:
    """`mild patchy atelectasis`, `a small left pleural effusion`."""
    name = join([finding.name for finding in findings], "or")
    said = [
        value
        for kind in _MODIFIER_ORDER
        for modifier, value in modifiers
        if modifier == kind and value not in name.split()
    ]
    if article and len(findings) == 1 and findings[0].countable:
        if side == "bilateral" or {"bilateral", "multifocal", "scattered"} & set(said):
            name = plural(name)
        else:
            phrase = " ".join([*dict.fromkeys(said), *filter(None, [side]), name])
            return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"
    return " ".join([*dict.fromkeys(said), *filter(None, [side]), name])


def plural(name: str) -> str:
    """The plural of a finding's name; names that end in s are plural already."""
    if name.endswith("y"):
        return name[:-1] + "ies"
    if name.endswith("pneumothorax"):
        return name[:-1] + "ces"
    if name.endswith("sis"):
        return name[:-2] + "es"
    if name.endswith(("ss", "x")):
        return name + "es"
    return name if name.endswith("s") else name + "s"


def is_plural(name: str) -> bool:
    """Says whether the name of a region or an organ takes "are"."""
    last = name.split()[-1]
    return last in _PLURALS or (last.endswith("s") and not last.endswith(("ss", "us", "is")))


def place(regions: Sequence[str]) -> str:
    """` in the left lung base`, ` in the lungs and the hila`, or nothing."""
    return f" in {join(['the ' + region for region in regions])}" if regions else ""


def describe(
    findings: Sequence[Finding],
    regions: Sequence[str],
    modifiers: Sequence[tuple[str, str]],
    positive: bool,
    certainty: str,
    definitions: Definitions,
) -> tuple[str, str]:
    """(name, summary sentence) of a finding."""
    side, rest = _side_and_place(findings, regions, definitions)
    said = [m for m in modifiers if not side or m[1] not in ("bilateral", side)]
    where = place(rest)
    if not positive:
        acute = "acute" if ACUTE in modifiers else ""
        absent = " ".join(filter(None, [acute, side, join([f.name for f in findings], "or")]))
        start = "There is no definite" if certainty != "certain" else "There is no"
        return f"No {absent}{where}", f"{start} {absent}{where}."
    name = capital(noun(findings, said, side) + where)
    phrase = noun(findings, said, side, article=True)
    start = _EXISTS[certainty]
    if len(findings) == 1 and findings[0].countable and not phrase.startswith(("a ", "an ")):
        start = start.replace("There is", "There are")
    return name, f"{start} {phrase}{where}."


def _side_and_place(
    findings: Sequence[Finding], regions: Sequence[str], definitions: Definitions
) -> tuple[str, Sequence[str]]:
    """An adjective and the regions left to name: none where the finding's name implies them."""
    usual = {region for finding in findings for region in finding.regions}
    if set(regions) <= usual:
        return "", ()
    known = [definitions.regions[region] for region in regions if region in definitions.regions]
    if len(known) == len(regions) and all(region.group in usual for region in known):
        sides = {region.side for region in known}
        return ("bilateral" if len(sides) > 1 else sides.pop()), ()
    return "", regions


def describe_normal(organ: str) -> tuple[str, str]:
    """(name, summary sentence) of an organ that is normal."""
    verb = "are" if is_plural(organ) else "is"
    return f"Normal {organ}", f"The {organ} {verb} normal."


def describe_change(findings: Sequence[Finding], changes: Sequence[str]) -> str:
    """A sentence on the change, or nothing."""
    known = [_CHANGES[change] for change in changes if change in _CHANGES]
    name = join([finding.name for finding in findings], "or")
    return f"The {name} {join(known)}." if known and findings else ""
