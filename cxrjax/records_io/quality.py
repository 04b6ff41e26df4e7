"""Counts what was set aside while a data set was read or built, by reason; replaces nothing."""

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

PixelBox = tuple[float, float, float, float]

# No image has as many pixels on a side.
_LARGEST = 1e9
# Characters of a box in a message: a whole number may have thousands of digits.
_MAX_SHOWN = 200

# Why something was set aside, as quality.json explains it.
REASONS = {
    "answer_leakage": "a question that contains its own answer",
    "answer_too_long": "an answer of more tokens than the configuration has room for",
    "bad_box": "a box without area, with a missing or unreadable coordinate",
    "bad_encoding": "text that is not UTF-8",
    "bad_size": "an image size that is not two whole numbers of pixels",
    "box_mismatch": "boxes in the text that are not the record's boxes",
    "box_outside_image": "a box that reaches beyond the image",
    "box_text": "an answer whose box notation does not parse",
    "choices_not_exclusive": "options of which one holds what another says, or that are the same",
    "class_id_mismatch": "a class id that belongs to another class name",
    "class_not_selected": "a VinDr-CXR label that is not among the 14 classes of VinDr-CXR-VQA",
    "contradicted_observation": "a denial in a report of something that the report says is there",
    "contradictory_rows": "a reader who marked a finding and, on the same image, none",
    "dangling_id": "an id that refers to nothing in its file",
    "duplicate_id": "an identifier that was used before",
    "duplicate_row": "a row of a table that stood there before, word for word",
    "empty_report": "a report without findings and impression",
    "generator_failed": "a question or a report for which the language model gave no usable words",
    "invalid_graph": "a scene graph or question file that contradicts itself or its study",
    "invalid_record": "a record with a missing, superfluous or mistyped field",
    "longitudinal": "wording that compares with an earlier examination",
    "malformed_row": "a row of a table with more or fewer cells than its header",
    "missing_box": "a region of which the source has no box",
    "missing_file": "a study of which one of its files is not there",
    "missing_image": "an image file that is not there",
    "missing_text": "a report without findings or without an impression",
    "no_region": "a sentence that belongs to no region of the image",
    "not_encodable": "a record without what the configured prompt format asks or answers with",
    "not_in_source": "an image of the split manifest that the source lacks or cannot ask about",
    "not_in_split": "an image that the split manifest puts into no split",
    "prefix_too_long": "a prompt of more tokens than the configuration has room for",
    "report_too_long": "a report so long that it cannot be one",
    "short_report": "a report of less than two sentences",
    "size_mismatch": "an image whose size is not the stated one, nor a resize of it",
    "source_mismatch": "a label or box that the source table does not have on this image",
    "split_conflict": "a patient in two splits, or a split in some records and not in others",
    "text_reference": "a question about the image that speaks of a text it was made from",
    "too_many_boxes": "more boxes of one class on an image than one answer may list",
    "unknown_class": "a class name that the data set does not have",
    "unknown_region": "a region that the data set does not have",
    "unknown_size": "an image that the size table does not have",
    "unsafe_member": "a file whose path leads out of its archive, or that is larger than any study",
    "unreadable_image": "an image file that cannot be decoded",
    "view_wording": "wording about the view, the technique or who was told",
    "wrong_frame": "boxes that do not fit the frame they are said to be on",
}

# Left out by rule from sound input: no defect, and nothing that --strict stops at.
BY_RULE = frozenset(
    {"class_not_selected", "too_many_boxes", "not_in_split"}
    # GEMeX's filters.
    | {"answer_leakage", "choices_not_exclusive", "empty_report", "longitudinal", "missing_box"}
    | {"no_region", "short_report", "text_reference", "view_wording"}
)


class Unusable(Exception):  # noqa: N818 - a verdict on the input, no error of the program
    """Something that is to be set aside.

    Attributes:
        reason: a key of `REASONS`.
        found: what was there, and what was expected.
    """

    def __init__(self, reason: str, found: str) -> None:
        super().__init__(reason, found)
        self.reason = reason
        self.found = found


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
        warnings: what was kept and looks odd -> how often.
    """

    entries: list[SetAside] = dataclasses.field(default_factory=list)
    examined: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    warnings: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

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

    def extend(self, content: Mapping[str, Any]) -> None:
        """Adds what a quality.json of an earlier part of the same run set aside."""
        known = {(entry.reason, entry.item) for entry in self.entries}
        for entry in content.get("set_aside", []):
            if (entry["reason"], entry["item"]) not in known:
                self.entries.append(SetAside(**entry))

    def merge(self, content: Mapping[str, Any]) -> None:
        """Adds the quality.json of another part of the same source."""
        self.entries.extend(SetAside(**entry) for entry in content["set_aside"])
        self.examined.update(content["examined"])
        self.warnings.update(content["warnings"])

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
            "warnings": dict(sorted(self.warnings.items())),
            "set_aside": [dataclasses.asdict(entry) for entry in self.entries],
        }


def check_box(box: PixelBox, image_hw: tuple[int, int] | None, label: str = "") -> None:
    """Refuses a box that has no area or is not inside its image.

    Args:
        box: pixels, (x_min, y_min, x_max, y_max); an edge may lie on the image's border.
        image_hw: the image's (height, width); without it only order and sign are checked.
        label: the box's class, for the message.

    Raises:
        Unusable: `bad_box` or `box_outside_image`.
    """
    check_area(box, label)
    x_min, y_min, x_max, y_max = box
    name = f"{label} box {list(box)}".strip()
    if x_min < 0 or y_min < 0:
        raise Unusable("box_outside_image", f"{name} begins outside the image")
    if image_hw is not None and (x_max > image_hw[1] or y_max > image_hw[0]):
        size = f"{image_hw[0]}x{image_hw[1]} (height x width)"
        raise Unusable("box_outside_image", f"{name} ends outside the image of {size}")


def check_area(box: PixelBox, label: str = "") -> None:
    """Refuses a box that has no area, wherever it lies.

    Raises:
        Unusable: `bad_box`.
    """
    x_min, y_min, x_max, y_max = box
    name = f"{label} box {list(box)}"[:_MAX_SHOWN].strip()
    # A whole number may be too long for a float.
    if not all(-_LARGEST < value < _LARGEST for value in box):
        raise Unusable("bad_box", f"{name} is not finite, or larger than any image")
    if x_min >= x_max or y_min >= y_max:
        raise Unusable("bad_box", f"{name} has no area; expected x_min < x_max and y_min < y_max")
