"""Assertions of a text about findings."""

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

Status = Literal["present", "absent", "uncertain"]
Certainty = Literal["certain", "likely", "possible", "unlikely"]
Time = Literal[
    "current", "new", "worse", "better", "unchanged", "resolved", "past", "to be ruled out"
]
Outcome = Literal["yes", "no", "undecided", "off_topic", "nothing"]
Side = Literal["left", "right", "bilateral"]

# Of these nothing is said of now.
NOT_NOW = ("past", "to be ruled out")


@dataclasses.dataclass(frozen=True)
class Assertion:
    """One statement on one finding.

    Attributes:
        finding: its name in `reference/findings.json`.
        status: of now; `uncertain` too where nothing is said of now (`time` tells).
        certainty: how sure the status is; `unlikely` leans to absent.
        side: None where the text names none.
        regions: names in `reference/regions.json`.
        severity: `mild`, `moderate`, `severe`, `small`, `large`, or None.
        sizes: as "4 mm", "2.3 x 1.5 cm".
        distances: to a landmark, as "4 cm above the carina".
        count: how many the text counts; None where it doesn't.
        span: first character and the one after the last of the words that name the finding.
        modifiers: (type, value) pairs of all kinds.
        cue: the words that deny or doubt it, in dictionary form; "" where it is simply stated.
        organ: the organ that is said to be normal, which denies the finding; else "".
        source: index, among the assertions of the text, of the one that this one explains
            ("opacity, likely pneumonia"); None where it explains none.
    """

    finding: str
    status: Status
    certainty: Certainty = "certain"
    time: Time = "current"
    side: Side | None = None
    regions: tuple[str, ...] = ()
    severity: str | None = None
    sizes: tuple[str, ...] = ()
    distances: tuple[str, ...] = ()
    count: int | None = None
    span: tuple[int, int] = (0, 0)
    modifiers: tuple[tuple[str, str], ...] = ()
    cue: str = ""
    organ: str = ""
    source: int | None = None

    @property
    def is_now(self) -> bool:
        """False of what was, or is only asked for."""
        return self.time not in NOT_NOW

    @property
    def denies(self) -> bool:
        """Returns whether the finding is stated to be absent or unlikely."""
        return self.status == "absent" or self.certainty == "unlikely"

    def to_json(self) -> dict[str, Any]:
        """The fields for a line of JSON."""
        return dataclasses.asdict(self)


class Unsaid(NamedTuple):
    """A finding that a text names without asserting anything firm of it.

    Attributes:
        reason: "said nothing" (not mentioned, not assessed), "explained" (by an artefact or a
            structure outside the lung), or "unread": under a predicate that is not known.
    """

    finding: str
    reason: str
    span: tuple[int, int]


_SIDES: dict[str, Side] = {"left": "left", "right": "right"}


def joined_side(sides: Iterable[str | None]) -> Side | None:
    """One side out of several: `bilateral` where they differ; None where none is named."""
    named = {side for side in sides if side}
    return (
        "bilateral" if len(named) > 1 else _SIDES.get(named.pop(), "bilateral") if named else None
    )
