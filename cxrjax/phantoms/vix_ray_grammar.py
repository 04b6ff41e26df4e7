"""Synthetic reports in Vietnamese: what a phantom shows, in sentences of our own grammar.

Which classes are there, on which side and how high comes from the phantom; only wording is drawn.
"""

import dataclasses
import functools
import importlib.resources
import json
import random
from collections.abc import Sequence
from typing import Any

VERSION = "1"
# Phantoms look at the reader, as radiographs do: the patient's right is on the image's left.
_MIDDLE = 0.5
_ZONES = (("upper", 0.40), ("middle", 0.62), ("lower", 1.01))
# A normal structure is mentioned with a probability that is drawn for each report, so that some
# are terse: Table 3 has 19 to 104 words of findings, 46 on average.
_MENTIONED = (0.0, 0.5)
_SENTENCES = 4  # at least, of findings
_DIAGNOSES = 3  # at most, of an impression
_ADVISED = 0.2


@dataclasses.dataclass(frozen=True)
class LesionCentre:
    """A class and where its box has its middle, fractions of the image."""

    label: str
    x: float
    y: float

    @classmethod
    def of_box(cls, label: str, box: Sequence[float]) -> "LesionCentre":
        """From a box in fractions, xyxy."""
        return cls(label, (box[0] + box[2]) / 2, (box[1] + box[3]) / 2)


@dataclasses.dataclass(frozen=True)
class VixRayReport:
    """The texts of one synthetic study."""

    findings: str
    impression: str
    note: str
    technique: str


class ReportGrammar:
    """The sentences of one version."""

    def __init__(self, wordings: dict[str, Any]) -> None:
        self._wordings = wordings
        self.version: str = wordings["version"]

    def report(self, lesions: Sequence[LesionCentre], rng: random.Random) -> VixRayReport:
        """Findings that name every class of the lesions and deny none; the weightiest diagnoses."""
        words = self._wordings
        by_label: dict[str, list[LesionCentre]] = {}
        for lesion in lesions:
            by_label.setdefault(lesion.label, []).append(lesion)
        findings = [
            self._say(rng.choice(words["present"][label]), found)
            for label, found in by_label.items()
        ]
        chance = rng.uniform(*_MENTIONED)
        topics = [t for t in words["normal"].values() if not by_label.keys() & set(t["unless"])]
        rng.shuffle(topics)
        for topic in topics:
            if len(findings) < _SENTENCES or rng.random() < chance:
                findings.append(rng.choice(topic["sentences"]))
        rng.shuffle(findings)
        if rng.random() < chance:
            findings.insert(0, rng.choice(words["openings"]))
        # The file has the classes in order of weight.
        weighty = [label for label in words["impression"] if label in by_label][:_DIAGNOSES]
        impression = [
            self._say(rng.choice(words["impression"][label]), by_label[label]) for label in weighty
        ] or [rng.choice(words["normal_impression"])]
        if rng.random() < _ADVISED:
            impression.append(rng.choice(words["advice"]))
        return VixRayReport(
            " ".join(findings),
            ". ".join(impression) + ".",
            rng.choice(words["notes"]),
            rng.choice(words["techniques"]),
        )

    def _say(self, wording: str, lesions: Sequence[LesionCentre]) -> str:
        side = self._side(lesions)
        zones = {next(name for name, end in _ZONES if lesion.y < end) for lesion in lesions}
        place = self._wordings["zones"][zones.pop() if len(zones) == 1 else "any"]
        return wording.format(side=side, place=place.format(side=side))

    def _side(self, lesions: Sequence[LesionCentre]) -> str:
        sides = {"right" if lesion.x < _MIDDLE else "left" for lesion in lesions}
        return self._wordings["sides"][sides.pop() if len(sides) == 1 else "both"]


@functools.cache
def load_grammar(version: str = VERSION) -> ReportGrammar:
    """The sentences of a version, from the package's data file."""
    file = importlib.resources.files(__package__).joinpath(f"grammar_v{version}.json")
    return ReportGrammar(json.loads(file.read_text(encoding="utf-8")))
