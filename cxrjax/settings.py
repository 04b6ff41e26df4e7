"""Types of configuration keys; pydantic checks values against them."""

import dataclasses
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

# Of the dataclasses of configurations: no text for a number, no unknown key.
STRICT = ConfigDict(strict=True, extra="forbid")

Positive = Annotated[int, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NotNegativeFloat = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclasses.dataclass(frozen=True)
class NameIn:
    """Validator of a text that is one of a table's names."""

    choices: tuple[str, ...]

    def __call__(self, value: str) -> str:
        if value not in self.choices:
            raise ValueError(f"expected one of {', '.join(self.choices)}")
        return value


def one_of(choices: tuple[str, ...]) -> AfterValidator:
    """Returns the annotation of a key that takes one of these names."""
    return AfterValidator(NameIn(choices))
