"""Annotations: what readers marked on one image, from which questions are made."""

import dataclasses
from collections.abc import Mapping, Sequence

from cxrjax.files import read_packaged
from cxrjax.records_io.quality import PixelBox


@dataclasses.dataclass(frozen=True)
class FindingBox:
    """A class and the box around it, (x_min, y_min, x_max, y_max) in pixels of the original."""

    label: str
    box: PixelBox


@dataclasses.dataclass(frozen=True)
class ImageAnnotation:
    """One image with its ground truth and what each reader marked."""

    image_id: str
    image_path: str  # relative to the root of the data set that is being built
    # (height, width) in pixels, None while no image or size table is joined.
    image_hw: tuple[int, int] | None
    # The ground truth. From the box table: all readers' boxes, as they stand in it (several readers
    # box one lesion several times). From phantoms: the exact boxes.
    findings: list[FindingBox]
    # Reader id -> what this reader marked; an empty list is "No finding".
    readers: dict[str, list[FindingBox]]
    # Whether a reader marked something that is not among the 14 classes.
    other_findings: bool = False

    @property
    def normal(self) -> bool:
        """Returns whether no reader marked anything."""
        return not self.findings and not self.other_findings

    @property
    def present(self) -> list[str]:
        """Classes with at least one ground-truth box, each once, in alphabetical order."""
        return sorted({finding.label for finding in self.findings})

    @property
    def deniable(self) -> list[str]:
        """Classes that can be said to be absent: not marked, and none above or below them is."""
        marked = {*self.present, *(other for name in self.present for other in related(name))}
        return [name for name in CLASSES if name not in marked]

    def boxes_of(self, label: str) -> list[PixelBox]:
        """Ground-truth boxes of a class in reading order: from the top, then from the left."""
        boxes = [finding.box for finding in self.findings if finding.label == label]
        return sorted(boxes, key=lambda box: (box[1], box[0], box[3], box[2]))

    def votes(self, label: str) -> int:
        """Counts the readers who marked the class at least once."""
        return sum(any(f.label == label for f in marked) for marked in self.readers.values())


# The reader of a table without readers: the consensus of several radiologists.
CONSENSUS = "consensus"

NO_FINDING = "No finding"
NO_FINDING_ID = 14

_CLASSES = read_packaged(str(__package__), "classes.toml")
CLASSES: tuple[str, ...] = tuple(_CLASSES["classes"])
OTHER_LOCAL_CLASSES: tuple[str, ...] = tuple(_CLASSES["others"])
BELOW: Mapping[str, Sequence[str]] = _CLASSES["below"]


def related(name: str) -> tuple[str, ...]:
    """Returns the classes above and below a class."""
    return (*above(name), *BELOW.get(name, ()))


def above(name: str) -> tuple[str, ...]:
    """Returns the classes that are more general words for a class."""
    return tuple(general for general, special in BELOW.items() if name in special)


CLASS_IDS = {name: number for number, name in enumerate(CLASSES)} | {NO_FINDING: NO_FINDING_ID}
