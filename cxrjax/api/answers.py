"""Answers of a model to single questions, with a display for notebooks."""

import base64
import dataclasses
import io
from html import escape
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from cxrjax.images.files import AnyFile

_SHOWN_SIDE = 640
_COLOUR = "#ffd60a"


@dataclasses.dataclass(frozen=True)
class ModelBox:
    """A box of a reply.

    Attributes:
        fractions: x_min, y_min, x_max, y_max as fractions of the image.
        pixels: the same in pixels of the image.
        confidence: the IoU that the model expects of it, 0 to 1.
        label: the finding that was asked about; None where the question names none.
    """

    fractions: tuple[float, float, float, float]
    pixels: tuple[float, float, float, float]
    confidence: float
    label: str | None = None

    def __str__(self) -> str:
        pixels = ", ".join(f"{value:.0f}" for value in self.pixels)
        return f"{self.label or 'box'}: {pixels} pixels, confidence {self.confidence:.2f}"


@dataclasses.dataclass(frozen=True)
class ModelAnswer:
    """A model's answer to one question. Notebooks show it as an image with numbered boxes.

    Attributes:
        question: as it was asked.
        text: as generated, boxes in the model's notation.
        words: the same with the number of a box, "(1)", in place of its notation.
        confidence: probability of what the answer decides (yes or no, the findings it names), 0 to
            1; None where it decides nothing.
        probability: of the whole answer; None where there is none.
        parse: "ok", or why no box, or no answer, could be had.
        line: all of it as `predict` writes it.
    """

    question: str
    text: str
    words: str
    boxes: tuple[ModelBox, ...]
    confidence: float | None
    probability: float | None
    parse: str
    line: dict[str, Any] = dataclasses.field(repr=False)
    image: AnyFile = dataclasses.field(repr=False, compare=False)

    @property
    def picture(self) -> "UInt8[np.ndarray, 'h w 3']":
        """The image with the boxes drawn on it."""
        from cxrjax.evaluation.overlays import overlay
        from cxrjax.images.decode import read_image

        return overlay(read_image(self.image), {_COLOUR: self.box_array})

    @property
    def box_array(self) -> "Float[np.ndarray, 'n 4']":
        """The boxes as fractions, [n, 4], x_min, y_min, x_max, y_max."""
        return np.array([box.fractions for box in self.boxes], np.float32).reshape(-1, 4)

    def __str__(self) -> str:
        return self.words

    def _repr_png_(self) -> bytes:
        from PIL import Image

        picture = Image.fromarray(self.picture)
        picture.thumbnail((_SHOWN_SIDE, _SHOWN_SIDE))
        buffer = io.BytesIO()
        picture.save(buffer, "PNG")
        return buffer.getvalue()

    def _repr_html_(self) -> str:
        address = base64.b64encode(self._repr_png_()).decode()
        sure = "" if self.confidence is None else f" <small>({self.confidence:.0%} sure)</small>"
        boxes = "".join(f"<li>{escape(str(box))}</li>" for box in self.boxes)
        return (
            f'<figure><img alt="{escape(self.question)}" src="data:image/png;base64,{address}">'
            f"<figcaption><b>{escape(self.question)}</b><br>{escape(self.words)}{sure}"
            f"<ol>{boxes}</ol></figcaption></figure>"
        )


class ModelAnswers(list[ModelAnswer]):
    """Answers to several questions about one image, in their order."""

    def _repr_html_(self) -> str:
        return "".join(reply._repr_html_() for reply in self)
