"""The demo page's first images, and its images, answers and status as HTML."""

import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from cxrjax.apps.demo import remarks
from cxrjax.apps.demo.answers import Answered, NamedFile
from cxrjax.apps.results.marks import BOX, mark_words
from cxrjax.evaluation.overlays import TRUTH, data_uri, jpeg, system_colours
from cxrjax.evaluation.text_tables import template
from cxrjax.files import file_sha256
from cxrjax.images.decode import audit_header, audit_image, read_image
from cxrjax.papers.lungs.masks import find_lungs
from cxrjax.papers.lungs.native import read_folder
from cxrjax.records_io.quality import QualityLog
from cxrjax.simulation.compose import simulate_lesions
from cxrjax.simulation.findings import CLASSES
from cxrjax.simulation.lesions import read_pair
from cxrjax.simulation.render import render_phantom

# Held-out radiographs that ship, and what to ask about each; with the lesions that `make demo`
# simulates into them. Models miss some of them, and that is meant.
RADIOGRAPHS = Path("data/radiographs")
_CONTRAST = 1.5
_ASKED = {
    "IM-0177-0001": "Where are the lungs?",
    "IM-0299-0001": "Where is the Cardiomegaly?",
    "IM-0282-0001": "detect ILD",
    "IM-0403-0001": "Where is the pleural effusion?",
    "IM-0361-0001": "Does this image show Pleural thickening?",
    "IM-0203-0001": "What findings are present?",
}
# Phantoms in their place where there are none, of a series that no build uses unless it is told
# `--seed=1000001`: number in the series, and what to ask about it.
SEED = 2_000_003
_LONG_SIDE = 512
_CONSPICUITY = 1.6  # as `make demo_phantom` renders what it trains on
_ASKED_OF_PHANTOMS = (
    (3, "Where is the Cardiomegaly?"),
    (16, "detect ILD"),
    (18, "How many areas of Pulmonary fibrosis are there?"),
    (5, "Does this image show Pleural thickening?"),
    (4, "What findings are present?"),
    (10, "Where is the Calcification?"),
)
_LUNGS = ("right lung", "left lung")


class TrueBox(NamedTuple):
    """A painted finding: its name and its box, xyxy, fractions of the image."""

    label: str
    box: tuple[float, float, float, float]


class DemoExample(NamedTuple):
    """An image to start with, and everything that was simulated into it."""

    path: Path
    question: str
    sha256: str
    truth: tuple[TrueBox, ...]


def render_examples(folder: Path, source: Path = RADIOGRAPHS) -> list[DemoExample]:
    """Writes the images as PNG files.

    Args:
        source: radiographs with lung masks; phantoms are drawn where there is no such folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    examples = []
    for name, question, pixels, truth in _lesions(source) if source.is_dir() else _phantoms():
        path = folder / f"{name}.png"
        Image.fromarray(pixels).save(path)
        examples.append(DemoExample(path, question, file_sha256(path), truth))
    return examples


_Drawn = tuple[str, str, UInt8[np.ndarray, "h w"], tuple[TrueBox, ...]]


def _lesions(source: Path) -> Iterator[_Drawn]:
    radiographs = {image.image_id: image for image in read_folder(source, QualityLog())}
    for name, question in _ASKED.items():
        pixels, mask = read_pair(radiographs[name], _LONG_SIDE)
        one = simulate_lesions(pixels, mask, 0, f"{name}-0", contrast=_CONTRAST)
        if "lung" in question:
            lungs = find_lungs([mask.astype(np.uint8)])
            truth = _truth(_LUNGS, np.stack([lungs.right, lungs.left]))
        else:
            truth = _truth(one.labels, one.boxes)
        yield name, question, one.image, truth


def _phantoms() -> Iterator[_Drawn]:
    for number, question in _ASKED_OF_PHANTOMS:
        phantom = render_phantom(SEED, number, _LONG_SIDE, False, _CONSPICUITY)
        truth = _truth(phantom.labels, phantom.boxes)
        yield f"phantom-{number}", question, phantom.image, truth


def _truth(labels: Sequence[str], boxes: Float[np.ndarray, "n 4"]) -> tuple[TrueBox, ...]:
    return tuple(
        TrueBox(label, tuple(box.tolist())) for label, box in zip(labels, boxes, strict=True)
    )


def asked_about(truth: tuple[TrueBox, ...], question: str) -> tuple[TrueBox, ...]:
    """The boxes of the findings that the question names; of one that names none, all."""
    names = (*CLASSES, *_LUNGS)
    named = {finding for finding in names if finding.lower() in question.lower()}
    return tuple(one for one in truth if not named or one.label in named)


_QUALITY = 92  # of JPEG: images are looked at closely


class Picture(NamedTuple):
    """An image as the page shows it: a `data:` address of all its pixels, and its original size.

    `notes`: what people trip over, see `audit_header` and `audit_image`.
    """

    name: str
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
    height, width = image.shape[:2]
    source = data_uri(jpeg(image, max(height, width), quality=_QUALITY))
    return Picture(file.name, source, height, width, notes)


def render_picture(
    picture: Picture,
    answers: Mapping[str, Answered],
    truth: tuple[TrueBox, ...] = (),
    number: int = 0,
) -> str:
    """HTML that has the viewer show the image with every model's boxes on it.

    Args:
        truth: boxes to show beside them, of an image whose truth is known.
        number: of what is shown, by which page.js tells one from the next.
    """
    size = picture.width, picture.height
    boxes: dict[str, list[dict[str, Any]]] = {
        name: [{"box": _scaled(one.fractions, size), "confidence": one.confidence} for one in said]
        for name, said in ((name, answer.boxes) for name, answer in answers.items())
    }
    if truth:
        of_truth = [{"box": _scaled(one.box, size), "label": one.label} for one in truth]
        boxes = {TRUTH: of_truth, **boxes}
    colours = system_colours(boxes)
    layers = [
        {"name": name, "title": name, "colour": colours[name], "boxes": found, "dash": dash}
        for (name, found), dash in zip(boxes.items(), itertools.cycle(_DASHES), strict=False)
    ]
    shown = {
        "url": picture.source,
        "width": picture.width,
        "height": picture.height,
        "name": picture.name,
    }
    return _template("picture.html.j2").render(
        picture=picture,
        number=number,
        shown=json.dumps({"picture": shown, "layers": layers}, ensure_ascii=False),
    )


# Of truth and models, in their order: colours alone do not tell lines apart for everybody.
_DASHES = ("", "8 4", "3 3")


def _scaled(
    box: tuple[float, float, float, float], size: tuple[int, int]
) -> tuple[float, float, float, float]:
    """Fractions as pixels."""
    (x0, y0, x1, y1), (width, height) = box, size
    return x0 * width, y0 * height, x1 * width, y1 * height


def render_answers(
    answers: Mapping[str, Answered], question: str = "", about: Sequence[str] = (), number: int = 0
) -> str:
    """HTML of what the models say: text, boxes in pixels, probabilities of all tokens.

    Args:
        question: that they answer.
        about: sentences on the image and the question, to be read first.
        number: as for `render_picture`.
    """
    return _template("answers.html.j2").render(
        answers={
            name: (answer, mark_words(answer.text, "")[0], remarks.of_answer(question, answer))
            for name, answer in answers.items()
        },
        colours=system_colours(answers),
        question=question,
        remarks=[one for one in about if one],
        number=number,
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
    found = template("cxrjax.apps.demo", name, percent=percent)
    found.globals["BOX"] = BOX
    return found
