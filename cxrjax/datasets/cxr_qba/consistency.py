"""Observations of one study that contradict each other.

Reports say "the lungs are clear" and name a granuloma. What is said to be there stays; the denial
that it contradicts is dropped and counted.
"""

import dataclasses
from collections.abc import Sequence

from cxrjax.datasets.cxr_qba.definitions import Definitions
from cxrjax.datasets.cxr_qba.scene_graph import Observation


@dataclasses.dataclass(frozen=True)
class Contradiction:
    """An observation that was dropped, and the one that it contradicts."""

    dropped: Observation
    kept: Observation


def drop_contradicted(
    nodes: Sequence[Observation], definitions: Definitions
) -> tuple[list[Observation], list[Contradiction]]:
    """(observations without contradictions, what was dropped).

    A denial is dropped where the same finding, or a more special one, is there in a region that it
    speaks of. The one that stays is marked as mended.
    """
    kept = []
    dropped = []
    positive = [node for node in nodes if node.positive]
    for node in nodes:
        rival = None
        if not node.positive:
            rival = next((other for other in positive if _denies(node, other, definitions)), None)
        if rival is None:
            kept.append(node)
        else:
            rival.obs_quality["issue_level"] = "FIXABLE"
            dropped.append(Contradiction(node, rival))
    return kept, dropped


def _denies(negative: Observation, positive: Observation, definitions: Definitions) -> bool:
    acute = ["acute" in node.modifiers.get("temporal", []) for node in (negative, positive)]
    if acute == [True, False]:
        return False  # it denies what is acute, and nothing else
    there = {*positive.obs_entities, *positive.obs_entities_parents}
    if not there & set(negative.obs_entities):
        return False
    return overlap(negative.region_names, positive.region_names, definitions)


def overlap(first: Sequence[str], second: Sequence[str], definitions: Definitions) -> bool:
    """Whether regions lie in one another; no region means everywhere."""
    if not first or not second:
        return True

    def reach(names: Sequence[str]) -> set[str]:
        """The regions and, for one of both sides, its sides."""
        sides = [side for name in names for side in definitions.sides.get(name, {}).values()]
        return {*names, *sides}

    def above(names: set[str]) -> set[str]:
        return names | {up for name in names for up in definitions.region_ancestors(name)}

    one, other = reach(first), reach(second)
    return bool(above(one) & other or one & above(other))
