"""Questions on what has changed between two studies of one patient, which the release lacks.

Both scene graphs are looked at, and the later report's own words of change. What they do not settle
is not asked: a finding that one report names and the other is silent on has not come or gone.
"""

import collections
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cxrjax.files import read_packaged
from cxrjax.papers.cxr_qba import native
from cxrjax.papers.cxr_qba.construct import phrases, wording
from cxrjax.papers.cxr_qba.construct.checks import overlap
from cxrjax.papers.cxr_qba.construct.wording import Node, QuestionMaker, least_sure
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.english import capital, join

Kind = Literal["new", "worse", "better", "unchanged", "resolved", "moved", "removed"]
CONFLICT = (
    "findings whose change the report and the earlier study tell differently, not asked about"
)
_DATA = read_packaged(str(__package__), "reference/questions.toml")
# What is asked by yes or no, where the finding is there in either study.
_ASKED: tuple[Kind, ...] = ("new", "worse", "better", "unchanged", "resolved")


@dataclass(frozen=True)
class Change:
    """One finding's change between two studies."""

    finding: str
    kind: Kind
    later: Node
    earlier: Node | None
    certainty: str  # the least of both; `likely` where grades alone were compared


def find_changes(
    earlier: native.StudySceneGraph,
    later: native.StudySceneGraph,
    warnings: collections.Counter[str],
) -> list[Change]:
    """Returns changes that the two graphs settle; where they differ, `warnings` counts it."""
    found = []
    for node in later.observations.values():
        if not node.from_report or len(node.obs_entities) != 1:
            continue
        name = node.obs_entities[0]
        if name in _DATA["findings"]["not_compared"] or name not in load_definitions().findings:
            continue
        # Devices move; a finding is the same where its places lie in one another.
        device = _is_device(name)
        before = [
            o
            for o in earlier.observations.values()
            if o.from_report
            and name in o.obs_entities
            and (device or overlap(node.region_names, o.region_names))
        ]
        if change := _change(name, node, before, warnings):
            found.append(change)
    # Of one finding in one place, the first.
    kept = {(c.finding, *c.later.region_names): c for c in reversed(found)}
    return list(kept.values())[::-1]


def _is_device(name: str) -> bool:
    return load_definitions().findings[name].category == "device"


def _is_acute(node: Node) -> bool:
    kind, value = phrases.ACUTE
    return value in node.modifiers.get(kind, [])


def _change(
    name: str, node: Node, before: Sequence[Node], warnings: collections.Counter[str]
) -> Change | None:
    if node.certainty == "uncertain" or _is_acute(node):
        return None
    there = [o for o in before if o.positive and o.certainty != "uncertain"]
    denied = [o for o in before if not o.positive and o.certainty == "certain" and not _is_acute(o)]
    said = next(filter(None, map(_DATA["changes"].get, node.changes)), None)
    rests_on = there[0] if there else denied[0] if denied else None
    certainty = least_sure(one.certainty for one in (node, rests_on) if one)
    kind: Kind | None = None
    if not node.positive:
        if there and node.certainty == "certain":
            kind = "removed" if _is_device(name) else "resolved"
        elif said == "resolved":
            kind = said
    elif said is not None:
        if (said == "new" and there) or (said != "new" and denied and not there):
            warnings[CONFLICT] += 1
            return None
        kind = said
    elif there and _is_device(name):
        kind = _moved(node, there[0])
    elif there:
        before_it, now = (phrases.grade(one.modifiers) for one in (there[0], node))
        if before_it and now and before_it != now:
            kind = "worse" if now > before_it else "better"
            certainty = least_sure((certainty, "likely"))
    elif denied:
        kind = "new"
    return Change(name, kind, node, rests_on, certainty) if kind else None


def _distances(node: Node) -> list[str]:
    return [str(distance) for entry in node.regions for distance in entry.distances]


def _moved(later: Node, earlier: Node) -> Kind | None:
    """Returns whether a device's place in both reports is another; None where that is open."""
    now, before = _distances(later), _distances(earlier)
    if now and before:
        return "unchanged" if {*now} == {*before} else "moved"
    if later.default_regions or earlier.default_regions:
        return None
    places = later.region_names, earlier.region_names
    return "moved" if all(places) and not overlap(*places) else None


class Comparer(QuestionMaker):
    """Makes the questions of a pair of studies, about the later one."""

    def __init__(
        self,
        earlier: native.StudySceneGraph,
        later: native.StudySceneGraph,
        seed: int,
        about_earlier: Mapping[str, str],
    ) -> None:
        super().__init__(later, seed)
        self.earlier = earlier
        self.about_earlier = about_earlier

    def questions(self, warnings: collections.Counter[str]) -> Iterator[native.NativeQuestion]:
        """Yields all that the two studies settle."""
        changes = find_changes(self.earlier, self.graph, warnings)
        if not changes:
            return
        yield self._ask("L01_describe_changes", changes, {})
        by_name: dict[str, list[Change]] = {}
        for change in changes:
            by_name.setdefault(change.finding, []).append(change)
        for name, own in by_name.items():
            values = {"finding": phrases.shown(name), **_verbs(name)}
            device = _is_device(name)
            kind = "L03_how_has_device_changed" if device else "L02_how_has_finding_changed"
            yield self._ask(kind, own, values)
            if not device and len(own) == 1:
                yield self._yes_no(own[0], values)

    def _yes_no(self, change: Change, values: dict[str, str]) -> native.NativeQuestion:
        """Asks about the change itself or, as often, about another."""
        kind = "L04_has_finding_changed"
        rng = self.rng(f"{kind}/{change.finding}")
        right = rng.random() < 0.5
        others = [one for one in _ASKED if one != change.kind]
        asked: Kind = change.kind if right else rng.choice(others)
        part = self._answer(change)
        how = _DATA["how"][asked].format(**values)
        verb, _, rest = how.partition(" ")
        told = f"{verb} the {values['finding']} {rest}"
        values = {**values, "asked": capital(told), "asked_inside": told}
        text = f"{'Yes' if right else 'No'}, {part.text[0].lower()}{part.text[1:]}"
        positiveness = "pos" if right else "neg"
        update = {"text": text, "name_tag": None, "positiveness": positiveness}
        question = self._ask(kind, [change], values, [part.model_copy(update=update)])
        question.variables["change_asked"] = asked
        return question

    def _answer(self, change: Change) -> native.NativeAnswer:
        """Returns a sentence on the change, what it rests on below it."""
        later = wording.from_observation(self.graph, change.later, "details", level=1)
        later.sub_answers = []
        parts = [later]
        if change.earlier is not None:
            earlier = wording.from_observation(
                self.earlier, change.earlier, "related_information", 1
            )
            said = change.earlier.name
            earlier.text = f"In the earlier study: {said[0].lower()}{said[1:]}."
            earlier.sub_answers = []
            parts.append(earlier)
        places = [_place(one) for one in (change.earlier, change.later) if one is not None]
        values = {**_verbs(change.finding), "before": places[0], "now": places[-1]}
        name = phrases.shown(change.finding)
        side = change.later.laterality
        sided = f"{side} {name}" if side and not name.startswith(side) else name
        text = f"The {sided} {_DATA['how'][change.kind].format(**values)}."
        if change.certainty != "certain":
            text = f"Probably, {text[0].lower()}{text[1:]}"
        gone = change.kind in ("resolved", "removed")
        return later.model_copy(
            update={
                "answer_type": "main_answer",
                "answer_level": 0,
                "text": text,
                "name_tag": f"{capital(name)}: {change.kind}",
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
        changes: Sequence[Change],
        values: dict[str, str],
        answers: list[native.NativeAnswer] | None = None,
    ) -> native.NativeQuestion:
        answers = answers or [self._answer(change) for change in changes]
        question = self.question(kind, answers, values, [c.later.obs_id for c in changes])
        question.question_strategy = native.LONGITUDINAL_TYPES[kind]
        question.variables.update(self.about_earlier)
        return question


def _verbs(name: str) -> dict[str, str]:
    verb = phrases.verb(name)
    has = "have" if verb == "are" else "has"
    worse, better = "worsened", "improved"
    if name.endswith(tuple(_DATA["findings"]["lumps"])):
        worse, better = "grown", "become smaller"
    elif name in _DATA["findings"]["amounts"]:
        worse, better = "increased", "decreased"
    return {"is": verb, "has": has, "Has": has.capitalize(), "worse": worse, "better": better}


def _place(node: Node) -> str:
    return join(_distances(node) or [f"the {phrases.shown(name)}" for name in node.region_names])
