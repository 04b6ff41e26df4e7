"""What was set aside while a data set was read or built: counted by reason, never replaced."""

import collections
import dataclasses
from typing import Any

# Why something was set aside, as quality.json explains it.
REASONS = {
    "bad_box": "a box without area, with a missing or unreadable coordinate",
    "box_outside_image": "a box that reaches beyond the image",
    "box_text": "an answer whose box notation does not parse",
    "box_mismatch": "boxes in the text that are not the record's boxes",
    "class_not_selected": "a VinDr-CXR label that is not among the 14 classes of VinDr-CXR-VQA",
    "class_id_mismatch": "a class id that belongs to another class name",
    "duplicate_id": "an identifier that was used before",
    "invalid_record": "a record with a missing, superfluous or mistyped field",
    "missing_image": "an image file that is not there",
    "size_mismatch": "an image whose size is not the size its record states",
    "source_mismatch": "a label or box that the source table does not have on this image",
    "too_many_boxes": "an image with more boxes of one class than one answer may list",
    "unknown_class": "a class name that the data set does not have",
    "unreadable_image": "an image file that cannot be decoded",
}


@dataclasses.dataclass(frozen=True)
class SetAside:
    """One thing set aside: why, which (an image or question id), where it was read, what was
    found."""

    reason: str
    item: str
    where: str
    found: str


@dataclasses.dataclass
class QualityLog:
    """Everything set aside so far, and how much was looked at.

    Attributes:
        examined: kind of thing -> how many were looked at ("rows", "images", "questions").
    """

    entries: list[SetAside] = dataclasses.field(default_factory=list)
    examined: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def set_aside(self, reason: str, item: str, where: str, found: str) -> None:
        """Notes one thing.

        Args:
            reason: a key of `REASONS`.
            item: the image or question id.
            where: file and line.
            found: what was there, and what was expected.
        """
        if reason not in REASONS:
            raise KeyError(f"{reason!r} is not a reason that quality.json explains")
        self.entries.append(SetAside(reason, item, where, found))

    def counts(self) -> dict[str, int]:
        """Reason -> how many, for every reason there is: a zero says it was looked for."""
        counted = collections.Counter(entry.reason for entry in self.entries)
        return {reason: counted[reason] for reason in sorted(REASONS)}

    def to_json(self) -> dict[str, Any]:
        """The content of quality.json."""
        return {
            "examined": dict(sorted(self.examined.items())),
            "total": len(self.entries),
            "counts": self.counts(),
            "reasons": dict(sorted(REASONS.items())),
            "set_aside": [dataclasses.asdict(entry) for entry in self.entries],
        }
