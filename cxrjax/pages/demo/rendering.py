"""The demo page's first pictures, and its pictures, answers and status as HTML."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jinja2
from PIL import Image

from cxrjax.files import file_sha256
from cxrjax.images.decode import audit_header, audit_image, read_image
from cxrjax.pages.demo.answers import Answered, NamedFile
from cxrjax.pages.results.marks import BOX, mark_words
from cxrjax.phantoms import render_phantom
from cxrjax.phantoms.findings import STATISTICS
from cxrjax.scoring.overlays import TRUTH, jpeg_data_uri, system_colours
from cxrjax.scoring.text_tables import template

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
    """A painted finding: its name and its box, xyxy, fractions of the image."""

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


_LONG_SIDE = 1024  # of a picture on the page


class Picture(NamedTuple):
    """An image as the page shows it.

    Attributes:
        source: a `data:` address, shrunk.
        height, width: of the original.
        notes: what people trip over, see `audit_header` and `audit_image`.
    """

    source: str
    height: int
    width: int
    notes: tuple[str, ...]


@functools.lru_cache(maxsize=8)
def open_picture(file: NamedFile) -> Picture:
    """Reads an image file.

    Raises:
        ImageError: it cannot be read.
    """
    image = read_image(file)
    notes = (*audit_header(file), *audit_image(image))
    return Picture(jpeg_data_uri(image, _LONG_SIDE), image.shape[0], image.shape[1], notes)


def render_picture(
    picture: Picture, answers: Mapping[str, Answered], truth: tuple[TrueBox, ...] = ()
) -> str:
    """HTML of the picture with every model's boxes on it.

    Args:
        truth: boxes to show beside them, of a picture whose truth is known.
    """
    boxes = {name: [box.fractions for box in answer.boxes] for name, answer in answers.items()}
    layers = {name: [(str(n + 1), box) for n, box in enumerate(b)] for name, b in boxes.items()}
    if truth:
        layers = {TRUTH: [(one.label, one.box) for one in truth], **layers}
    return _template("picture.html.j2").render(
        picture=picture, layers=layers, colours=system_colours(layers)
    )


def render_answers(answers: Mapping[str, Answered]) -> str:
    """HTML of what the models say: text, boxes in pixels, probabilities of all tokens."""
    return _template("answers.html.j2").render(
        answers={
            name: (answer, mark_words(answer.text, "")[0]) for name, answer in answers.items()
        },
        colours=system_colours(answers),
    )


def render_status(text: str, problem: bool = False) -> str:
    """HTML of a line about what goes on; a problem is read out at once."""
    return _template("status.html.j2").render(text=text, problem=problem)


def percent(probability: float) -> str:
    """A probability for people: two digits, and never 0 or 100 of what is neither."""
    if probability < 0.0001:
        return "<0.01 %"
    if probability > 0.995:
        return ">99 %"
    return f"{100 * probability:.{0 if probability >= 0.1 else 1 if probability >= 0.01 else 2}f} %"


@functools.cache
def _template(name: str) -> jinja2.Template:
    found = template("cxrjax.pages.demo", name, percent=percent)
    found.globals["BOX"] = BOX
    return found
