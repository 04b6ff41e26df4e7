"""Renders the demo page's pictures, answers and status as HTML."""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jinja2

from cxrjax.images.audit import audit_image
from cxrjax.images.decode import audit_header, read_image
from cxrjax.pages.demo.answers import Answered, NamedFile
from cxrjax.pages.demo.phantoms import TrueBox
from cxrjax.pages.results.marks import BOX, mark_words
from cxrjax.scoring.overlays import TRUTH, jpeg_data_uri, system_colours

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
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cxrjax.pages.demo", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    environment.globals["BOX"] = BOX
    return environment.get_template(name)
