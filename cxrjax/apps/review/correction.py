"""Correction of an answer by a reader: its boxes, missed findings and words."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Literal

import pydantic

from cxrjax.apps.review.options import ChosenOptions
from cxrjax.errors import ForeignError
from cxrjax.records import PixelBox
from cxrjax.untrusted.json_text import parse_object
from cxrjax.untrusted.names import shown

MOST_BOXES = 100
_LONGEST_LABEL = 100  # characters
_LONGEST_ANSWER = 10_000
NAMED = re.compile(r"\[box (\d{1,3})\]")


class CorrectionRefusedError(ValueError):
    """A correction that cannot be; the message says what was found and what was expected."""


class CorrectedBox(pydantic.BaseModel):
    """A box as it should be.

    Attributes:
        box: pixels of the original image.
        label: class; "" where the answer is about several or none.
        kind: part of this question's answer, or a finding that nobody asked about.
        origin: index of the record's box that it was; null of a new one.
    """

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)
    box: PixelBox
    label: str = pydantic.Field(default="", max_length=_LONGEST_LABEL)
    kind: Literal["answer", "missed"] = "answer"
    origin: int | None = None


class Correction(pydantic.BaseModel):
    """An answer as it should be.

    Attributes:
        boxes: all of them.
        answer: the words, in which `[box 2]` is the second box.
        choice: letters of the options; `answer` is then what follows them. None: as they were, and
            `answer` is the whole.
    """

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)
    boxes: list[CorrectedBox] = pydantic.Field(max_length=MOST_BOXES)
    answer: str = pydantic.Field(default="", max_length=_LONGEST_ANSWER)
    choice: list[str] | None = None


@dataclasses.dataclass(frozen=True)
class Correctable:
    """Limits that a correction of one question is validated against."""

    # (height, width) of the boxes' frame; None if there is no image.
    image_hw: tuple[int, int] | None
    boxes: int  # number of boxes in the record
    classes: Sequence[str] = ()  # the only classes that its data set allows; empty: any
    options: ChosenOptions | None = None

    def read(self, text: str) -> Correction:
        """A correction from its JSON.

        Raises:
            CorrectionRefusedError: it is none, or not one of this question.
        """
        try:
            found = Correction.model_validate(parse_object(text))
        except ForeignError as error:
            raise CorrectionRefusedError(str(error)) from None
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise CorrectionRefusedError(f"{shown(where)}: {first['msg']}") from None
        if self.image_hw is None:
            raise CorrectionRefusedError("boxes cannot be corrected without an image")
        if "\0" in found.answer:
            raise CorrectionRefusedError("an answer with a NUL character: delete it")
        height, width = self.image_hw
        for number, one in enumerate(found.boxes, start=1):
            x0, y0, x1, y1 = one.box
            if not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
                raise CorrectionRefusedError(
                    f"box {number} is {one.box}; expected corners in order within {width} x "
                    f"{height} pixels"
                )
            if one.origin is not None and not 0 <= one.origin < self.boxes:
                raise CorrectionRefusedError(f"box {number} was box {one.origin} of {self.boxes}")
            if one.kind == "missed" and not one.label.strip():
                raise CorrectionRefusedError(f"box {number} is of a missed finding without a name")
            if one.kind == "missed" and self.classes and one.label not in self.classes:
                raise CorrectionRefusedError(
                    f"box {number} is of {shown(one.label)}; expected one of "
                    f"{', '.join(self.classes)}"
                )
        if found.choice is not None:
            self._check_choice(found.choice)
        kept = [one.origin for one in found.boxes if one.origin is not None]
        if len(kept) != len(set(kept)):
            raise CorrectionRefusedError("two boxes were the same one before")
        return found

    def _check_choice(self, choice: Sequence[str]) -> None:
        if self.options is None:
            raise CorrectionRefusedError("options are chosen; this question has none to choose")
        offered, found = self.options.options, ", ".join(map(shown, choice)) or "none"
        if len(set(choice)) != len(choice) or not set(choice) <= set(offered) or not choice:
            raise CorrectionRefusedError(
                f"chosen is {found}; expected {'some' if self.options.several else 'one'} of "
                f"{', '.join(offered)}"
            )
        if len(choice) > 1 and not self.options.several:
            raise CorrectionRefusedError(f"chosen is {found}; expected one option")
