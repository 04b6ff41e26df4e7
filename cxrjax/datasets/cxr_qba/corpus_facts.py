"""What questions on one study need to know of all others, in parts that add up."""

import collections
import dataclasses
import hashlib
import json
from collections.abc import Iterable
from typing import Any

from cxrjax.datasets.cxr_qba.negative_sampling import MentionCounts


@dataclasses.dataclass
class CorpusFacts:
    """Of a part of the corpus, or of all of it.

    Attributes:
        patients: all, to divide them where the source has no splits.
        without_split: studies that the source puts into no split.
        failed: shards of which no facts could be had.
    """

    counts: MentionCounts = dataclasses.field(default_factory=MentionCounts)
    patients: set[str] = dataclasses.field(default_factory=set)
    without_split: int = 0
    failed: int = 0

    def to_json(self) -> dict[str, Any]:
        """Positive and negative mentions, patients and studies without split."""
        return {
            "positive": dict(sorted(self.counts.positive.items())),
            "negative": dict(sorted(self.counts.negative.items())),
            "patients": sorted(self.patients),
            "without_split": self.without_split,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "CorpusFacts":
        """What `to_json` gave."""
        positive, negative = (collections.Counter(content[n]) for n in ("positive", "negative"))
        counts = MentionCounts(positive, negative)
        return cls(counts, set(content["patients"]), content["without_split"])

    @property
    def sha256(self) -> str:
        """The same for the same corpus, however it was cut."""
        return hashlib.sha256(json.dumps(self.to_json()).encode()).hexdigest()


def merge_facts(parts: Iterable[CorpusFacts]) -> CorpusFacts:
    """Facts of several parts of a corpus; associative, and in any order the same."""
    merged = CorpusFacts()
    for part in parts:
        merged.counts.merge(part.counts)
        merged.patients |= part.patients
        merged.without_split += part.without_split
        merged.failed += part.failed
    return merged
