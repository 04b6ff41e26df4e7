"""Synthetic radiographs to try the page with, rendered when it starts."""

from pathlib import Path
from typing import NamedTuple

from PIL import Image

from cxrjax.files import file_sha256
from cxrjax.phantoms import render_phantom
from cxrjax.phantoms.findings import STATISTICS

# A series that no build of phantoms uses unless it is told `--seed=1000001`.
SEED = 2_000_003
_LONG_SIDE = 512
_CONSPICUITY = 1.6  # as `make demo` renders what it trains on

# Number in the series, and what to ask about it. Models miss some of them, and that is meant.
_ASKED = (
    (3, "Where is the Cardiomegaly?"),
    (16, "detect ILD"),
    (18, "How many areas of Pulmonary fibrosis are there?"),
    (5, "Does this image show Pleural thickening?"),
    (4, "What findings are present?"),
    (10, "Where is the Calcification?"),
)


class TrueBox(NamedTuple):
    """What was painted: the finding's name and its box, xyxy, fractions of the image."""

    label: str
    box: tuple[float, float, float, float]


class DemoExample(NamedTuple):
    """A picture to begin with.

    Attributes:
        sha256: of the file.
        truth: everything that was painted into it.
    """

    path: Path
    question: str
    sha256: str
    truth: tuple[TrueBox, ...]


def render_examples(folder: Path) -> list[DemoExample]:
    """Writes the pictures as PNG files."""
    folder.mkdir(parents=True, exist_ok=True)
    examples = []
    for number, question in _ASKED:
        phantom = render_phantom(SEED, number, _LONG_SIDE, False, _CONSPICUITY)
        path = folder / f"phantom-{number}.png"
        Image.fromarray(phantom.image).save(path)
        truth = tuple(
            TrueBox(label, tuple(box.tolist()))
            for label, box in zip(phantom.labels, phantom.boxes, strict=True)
        )
        examples.append(DemoExample(path, question, file_sha256(path), truth))
    return examples


def asked_about(truth: tuple[TrueBox, ...], question: str) -> tuple[TrueBox, ...]:
    """The boxes of the findings that the question names; of one that names none, all."""
    named = {finding for finding in STATISTICS if finding.lower() in question.lower()}
    return tuple(one for one in truth if not named or one.label in named)
