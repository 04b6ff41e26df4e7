"""What came of one question, as people look at it on the page."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """One prediction against its reference.

    Attributes:
        right: None where that is not decidable.
        iou: how well its boxes lie on the true ones, 0 to 1; None without true and predicted boxes.
        note: one short line for people, such as "said absent; it is there".
    """

    right: bool | None
    iou: float | None
    note: str
