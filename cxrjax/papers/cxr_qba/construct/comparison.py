"""Questions on what has changed between two studies of one patient, which the release lacks.

Both scene graphs are looked at, and the later report's own words of change. What they do not settle
is not asked: a finding that one report names and the other is silent on has not come or gone.
"""

import collections
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cxrjax.papers.cxr_qba import native
from cxrjax.papers.cxr_qba.construct import phrases
from cxrjax.papers.cxr_qba.construct.checks import overlap
from cxrjax.papers.cxr_qba.construct.phrases import CERTAINTIES
from cxrjax.papers.cxr_qba.construct.wording import QuestionMaker, from_observation
from cxrjax.radiology_text.definitions import Definitions
from cxrjax.radiology_text.english import capital, join

Kind = Literal["new", "worse", "better", "unchanged", "resolved", "moved", "removed"]
CONFLICT = (
    "findings whose change the report and the earlier study tell differently, not asked about"
)
_SAID: dict[str, Kind] = {
    "new": "new",
    "increased": "worse",
    "decreased": "better",
    "no change": "unchanged",
    "resolved": "resolved",
}
_GRADES = {"small": 1, "mild": 1, "moderate": 2, "large": 3, "severe": 3}
# Too general to change, or said of the study as such.
_NOT_COMPARED = ("cardiopulmonary abnormality", "postsurgical change")
_HOW = {
    "new": "{is} new",
    "worse": "{has} {worse}",
    "better": "{has} {better}",
    "unchanged": "{is} unchanged",
    "resolved": "{has} resolved",
    "removed": "{has} been removed",
    "moved": "{has} moved from {before} to {now}",
}
# What grows, and what is more or less; all else gets worse or better.
_LUMPS = ("mass", "nodule", "lesion", "cyst")
_AMOUNTS = ("cardiomegaly", "lung opacity", "pleural effusion", "pneumothorax")
# What is asked by yes or no, where the finding is there in either study.
_ASKED: tuple[Kind, ...] = ("new", "worse", "better", "unchanged", "resolved")


@dataclass(frozen=True)
class Change:
    """One finding's change between two studies.

    Attributes:
        earlier, later: the observations that it rests on.
        certainty: the least of both; `likely` where grades alone were compared.
    """

    finding: str
    kind: Kind
    later: native.NativeObservation
    earlier: native.NativeObservation | None
    certainty: str


def find_changes(
    earlier: native.StudySceneGraph,
    later: native.StudySceneGraph,
    definitions: Definitions,
    warnings: collections.Counter[str],
) -> list[Change]:
    """Changes that the two graphs settle; those on which they differ are counted in `warnings`."""
    found = []
    for node in later.observations.values():
        if not node.from_report or len(node.obs_entities) != 1:
            continue
        name = node.obs_entities[0]
        if name in _NOT_COMPARED or name not in definitions.findings:
            continue
        device = definitions.findings[name].category == "device"
        before = [
            one for one in _said(earlier, name) if _same_place(node, one, device, definitions)
        ]
        change = _change(name, node, before, device, definitions, warnings)
        if change:
            found.append(change)
    # Of one finding in one place, the first.
    return list({(c.finding, tuple(c.later.region_names)): c for c in reversed(found)}.values())[
        ::-1
    ]


def _said(graph: native.StudySceneGraph, name: str) -> list[native.NativeObservation]:
    return [o for o in graph.observations.values() if o.from_report and name in o.obs_entities]


def _same_place(
    later: native.NativeObservation,
    earlier: native.NativeObservation,
    device: bool,
    definitions: Definitions,
) -> bool:
    """Devices move; a finding is the same where its places lie in one another."""
    return device or overlap(later.region_names, earlier.region_names, definitions)


def _is_acute(node: native.NativeObservation) -> bool:
    kind, value = phrases.ACUTE
    return value in node.modifiers.get(kind, [])


def _change(
    name: str,
    node: native.NativeObservation,
    before: Sequence[native.NativeObservation],
    device: bool,
    definitions: Definitions,
    warnings: collections.Counter[str],
) -> Change | None:
    there = [o for o in before if o.positive and o.certainty != "uncertain"]
    denied = [o for o in before if not o.positive and o.certainty == "certain" and not _is_acute(o)]
    said = next((_SAID[one] for one in node.changes if one in _SAID), None)
    if node.certainty == "uncertain" or _is_acute(node):
        return None
    kind: Kind | None = None
    rests_on = there[0] if there else denied[0] if denied else None
    certainty = _least(node, rests_on)
    if not node.positive:
        if there and node.certainty == "certain":
            kind = "removed" if device else "resolved"
        elif said == "resolved":
            kind = said
    elif said is not None:
        kind = said
        if (said == "new" and there) or (said != "new" and denied and not there):
            warnings[CONFLICT] += 1
            return None
    elif device and there:
        kind = _moved(node, there[0], definitions)
    elif denied and not there:
        kind = "new"
    elif there:
        grades = [_grade(one) for one in (there[0], node)]
        if all(grades) and grades[0] != grades[1]:
            kind = "worse" if grades[1] > grades[0] else "better"
            certainty = max(certainty, "likely", key=CERTAINTIES.index)
    return Change(name, kind, node, rests_on, certainty) if kind else None


def _least(*nodes: native.NativeObservation | None) -> str:
    said = [node.certainty or "certain" for node in nodes if node is not None]
    return max(said, key=CERTAINTIES.index)


def _grade(node: native.NativeObservation) -> int:
    return max((_GRADES.get(value, 0) for value in node.modifiers.get("severity", [])), default=0)


def _moved(
    later: native.NativeObservation, earlier: native.NativeObservation, definitions: Definitions
) -> Kind | None:
    """Whether a device's place, as both reports tell it, is another."""
    if later.default_regions or earlier.default_regions:
        places: tuple[list[str], ...] = ([], [])
    else:
        places = (later.region_names, earlier.region_names)
    distances = [[str(d) for r in one.regions for d in r.distances] for one in (later, earlier)]
    if all(distances):
        return "unchanged" if set(distances[0]) == set(distances[1]) else "moved"
    if not all(places):
        return None
    return None if overlap(places[0], places[1], definitions) else "moved"


class Comparer(QuestionMaker):
    """Makes the questions of a pair of studies, about the later one."""

    def __init__(
        self,
        earlier: native.StudySceneGraph,
        later: native.StudySceneGraph,
        definitions: Definitions,
        seed: int,
        about_earlier: Mapping[str, str],
    ) -> None:
        super().__init__(later, seed)
        self.earlier = earlier
        self.definitions = definitions
        self.about_earlier = dict(about_earlier)

    def questions(self, warnings: collections.Counter[str]) -> Iterator[native.NativeQuestion]:
        """All that the two studies settle."""
        changes = find_changes(self.earlier, self.graph, self.definitions, warnings)
        if not changes:
            return
        answers = [self._answer(change) for change in changes]
        yield self._ask("L01_describe_changes", answers, {}, changes)
        by_name: dict[str, list[Change]] = {}
        for change in changes:
            by_name.setdefault(change.finding, []).append(change)
        for name, own in by_name.items():
            shown = phrases.shown(name)
            values = {"finding": shown, **_verbs(name)}
            device = self.definitions.findings[name].category == "device"
            kind = "L03_how_has_device_changed" if device else "L02_how_has_finding_changed"
            yield self._ask(kind, [self._answer(change) for change in own], values, own)
            if not device and len(own) == 1:
                yield self._yes_no(own[0], values)

    def _yes_no(self, change: Change, values: dict[str, str]) -> native.NativeQuestion:
        """Asks of the change itself or, as often, of another."""
        kind = "L04_has_finding_changed"
        rng = self.rng(f"{kind}/{change.finding}")
        right = rng.random() < 0.5
        others = [one for one in _ASKED if one != change.kind]
        asked: Kind = change.kind if right else rng.choice(others)
        part = self._answer(change)
        how = _HOW[asked].format(**values)
        verb, _, rest = how.partition(" ")
        told = f"{verb} the {values['finding']} {rest}"
        values = {**values, "asked": capital(told), "asked_inside": told}
        opened = "Yes" if right else "No"
        text = f"{opened}, {part.text[0].lower()}{part.text[1:]}"
        main = part.model_copy(
            update={
                "text": text,
                "name_tag": None,
                "from_report": False,
                "positiveness": "pos" if right else "neg",
                "sub_answers": part.sub_answers,
            }
        )
        question = self._ask(kind, [main], values, [change])
        question.variables["change_asked"] = asked
        return question

    def _answer(self, change: Change) -> native.NativeAnswer:
        """A sentence on the change, and what it rests on below it."""
        later = from_observation(self.graph, change.later, "details", level=1)
        later.sub_answers = []
        parts = [later]
        if change.earlier is not None:
            earlier = from_observation(self.earlier, change.earlier, "related_information", 1)
            said = change.earlier.name
            earlier.text = f"In the earlier study: {said[0].lower()}{said[1:]}."
            earlier.sub_answers = []
            parts.append(earlier)
        places = [_place(one) for one in (change.earlier, change.later) if one is not None]
        values = {**_verbs(change.finding), "before": places[0], "now": places[-1]}
        side = change.later.laterality
        sided = [side] if side and not phrases.shown(change.finding).startswith(side) else []
        name = " ".join([*sided, phrases.shown(change.finding)])
        text = f"The {name} {_HOW[change.kind].format(**values)}."
        if change.certainty != "certain":
            text = f"Probably, {text[0].lower()}{text[1:]}"
        gone = change.kind in ("resolved", "removed")
        return later.model_copy(
            update={
                "answer_type": "main_answer",
                "answer_level": 0,
                "text": text,
                "name_tag": f"{capital(phrases.shown(change.finding))}: {change.kind}",
                "certainty": change.certainty,
                "positiveness": "neg" if gone else "pos",
                "modifiers": [["change", change.kind]],
                "sub_answers": parts,
                "from_report": False,
            }
        )

    def _ask(
        self,
        kind: str,
        answers: list[native.NativeAnswer],
        values: dict[str, str],
        changes: Sequence[Change],
    ) -> native.NativeQuestion:
        question = self.question(kind, answers, values, [c.later.obs_id for c in changes])
        question.question_strategy = native.LONGITUDINAL_TYPES[kind]
        question.variables.update(self.about_earlier)
        return question


def _verbs(name: str) -> dict[str, str]:
    verb = phrases.verb(name)
    has = "have" if verb == "are" else "has"
    worse, better = "worsened", "improved"
    if name.endswith(_LUMPS):
        worse, better = "grown", "become smaller"
    elif name in _AMOUNTS:
        worse, better = "increased", "decreased"
    return {"is": verb, "has": has, "Has": has.capitalize(), "worse": worse, "better": better}


def _place(node: native.NativeObservation) -> str:
    distances = [str(d) for entry in node.regions for d in entry.distances]
    return join(distances or [f"the {phrases.shown(name)}" for name in node.region_names])
