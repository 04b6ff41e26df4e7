"""What to ask about that a report does not mention.

The release samples something more, the more often it goes with positive findings and the less often
with negative ones; its formula is not published, `cxrjax_sampling_weight` is this project's.
"""

import collections
import dataclasses
import random
from collections.abc import Collection, Iterable
from typing import Any

from cxrjax.papers.cxr_qba.native import StudySceneGraph
from cxrjax.radiology_text.definitions import Definitions


def cxrjax_sampling_weight(positive: int, negative: int) -> float:
    """(positive + 1) / (negative + 1): this project's formula, not the release's."""
    return (positive + 1) / (negative + 1)


@dataclasses.dataclass
class MentionCounts:
    """Counts of findings and regions in positive and in negative observations."""

    positive: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    negative: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def add(self, graph: StudySceneGraph, definitions: Definitions) -> None:
        """Counts a study's observations; those that were only assumed do not count."""
        for observation in graph.observations.values():
            if not observation.from_report:
                continue
            counts = self.positive if observation.positive else self.negative
            counts.update({*observation.obs_entities, *observation.obs_entities_parents})
            regions = set(observation.region_names)
            for region in observation.region_names:
                regions.update(definitions.region_ancestors(region))
            counts.update(f"region/{region}" for region in regions)

    def merge(self, other: "MentionCounts") -> None:
        """Adds the counts of another part of the corpus."""
        self.positive.update(other.positive)
        self.negative.update(other.negative)

    def weight(self, name: str) -> float:
        """The sampling weight of a finding, or of a region under `region/<name>`."""
        return cxrjax_sampling_weight(self.positive[name], self.negative[name])

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
    waits = {
        name: rng.expovariate(counts.weight(prefix + name)) for name in sorted(set(candidates))
    }
    return sorted(waits, key=lambda name: waits[name])[:number]


def unmentioned_findings(graph: StudySceneGraph, definitions: Definitions) -> Collection[str]:
    """Abnormalities and devices of which a report says nothing: neither they nor kin are mentioned.

    Kin of what is there are left out: under a "lung opacity", pneumonia is open.
    """
    named: set[str] = set()
    present: set[str] = set()
    for observation in graph.observations.values():
        if not observation.from_report:
            continue
        named.update((*observation.obs_entities, *observation.obs_entities_parents))
        if observation.positive:
            present.update((*observation.obs_entities, *observation.obs_entities_parents))
    return [
        finding.name
        for finding in definitions.findings.values()
        if finding.category in ("abnormality", "device")
        and finding.name not in named
        and not any(parent in present for parent in definitions.finding_ancestors(finding.name))
    ]
