"""Samples what to ask about that a report does not mention.

The release samples a finding more often the more it co-occurs with positive findings and the less
with negative ones; its formula is not published, `cxrjax_sampling_weight` is this project's.
"""

import collections
import dataclasses
import random
from collections.abc import Collection, Iterable
from typing import Any

from cxrjax.papers.cxr_qba.native import StudySceneGraph
from cxrjax.radiology_text.definitions import load_definitions


@dataclasses.dataclass
class MentionCounts:
    """Counts of findings and regions in positive and in negative observations."""

    positive: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    negative: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def add(self, graph: StudySceneGraph) -> None:
        """Counts a study's observations; those that were only assumed do not count."""
        for observation in graph.observations.values():
            if not observation.from_report:
                continue
            counts = self.positive if observation.positive else self.negative
            counts.update({*observation.obs_entities, *observation.obs_entities_parents})
            above = map(load_definitions().region_ancestors, observation.region_names)
            regions = {*observation.region_names}.union(*above)
            counts.update(f"region/{region}" for region in regions)

    def merge(self, other: "MentionCounts") -> None:
        """Adds the counts of another part of the corpus."""
        self.positive.update(other.positive)
        self.negative.update(other.negative)

    def weight(self, name: str) -> float:
        """Returns the sampling weight of a finding, or of a region under `region/<name>`."""
        return (self.positive[name] + 1) / (self.negative[name] + 1)

    def to_json(self) -> dict[str, Any]:
        """Counts and weights by name, for people."""
        names = sorted({*self.positive, *self.negative})
        return {
            name: {
                "positive": self.positive[name],
                "negative": self.negative[name],
                "weight": round(self.weight(name), 6),
            }
            for name in names
        }


def sample(
    candidates: Iterable[str],
    counts: MentionCounts,
    number: int,
    rng: random.Random,
    prefix: str = "",
) -> list[str]:
    """Up to `number` different candidates, drawn by weight without replacement.

    Args:
        prefix: what stands before a candidate's name in the counts ("region/").
    """
    # Of independent exponential waiting times, the shortest are such a sample.
    names = sorted(set(candidates))
    waits = {name: rng.expovariate(counts.weight(prefix + name)) for name in names}
    return sorted(waits, key=waits.__getitem__)[:number]


def unmentioned_findings(graph: StudySceneGraph) -> Collection[str]:
    """Returns abnormalities and devices that a report does not mention, nor kin of them.

    Kin of what is there are left out: under a "lung opacity", pneumonia is open.
    """
    named: set[str] = set()
    present: set[str] = set()
    for observation in graph.observations.values():
        if observation.from_report:
            said = {*observation.obs_entities, *observation.obs_entities_parents}
            named |= said
            present |= said if observation.positive else set()
    known = load_definitions()
    return [
        name
        for name, finding in known.findings.items()
        if finding.category in ("abnormality", "device")
        and name not in named
        and present.isdisjoint(known.finding_ancestors(name))
    ]
