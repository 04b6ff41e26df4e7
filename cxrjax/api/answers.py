"""Answers of a model to single questions, with a display for notebooks."""

import base64
import dataclasses
import io
import textwrap
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from cxrjax.api.tables import Table
from cxrjax.images.files import AnyFile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOUR = "#ffd60a"
_INCHES = 5.0
_TITLE_LETTERS = 60


@dataclasses.dataclass(frozen=True, eq=False)
class ModelAnswer:
    """A model's answer to one question. Notebooks show the image with its boxes.

    Attributes:
        question: as it was asked.
        text: the answer, with the number of a box, "(1)", in place of its coordinates.
        raw: as generated, boxes in the model's own format.
        boxes: [n, 4], x_min, y_min, x_max, y_max as fractions of the image, 0 to 1.
        pixel_boxes: the same in pixels of the image.
        labels: of each box the finding that was asked about; None where the question names none.
        scores: [n], of each box the IoU with the true box that the model expects, 0 to 1.
        confidence: probability of what the answer decides (yes or no, the findings it names), 0 to
            1; None where it decides nothing.
        probability: of the whole answer, 0 to 1.
        parse: "ok", or why the answer has no boxes, or not all of them.
        line: all of it as `predict` writes it.
    """

    question: str
    text: str
    raw: str
    boxes: "Float[np.ndarray, 'n 4']"
    pixel_boxes: "Float[np.ndarray, 'n 4']"
    labels: tuple[str | None, ...]
    scores: "Float[np.ndarray, ' n']"
    confidence: float | None
    probability: float
    parse: str
    line: dict[str, Any] = dataclasses.field(repr=False)
    image: AnyFile = dataclasses.field(repr=False)

    def __str__(self) -> str:
        return self.text

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """Draws the image, its numbered boxes with their labels and scores, and the answer.

        Args:
            axes: to draw on; None: a new figure, which notebooks show.
        """
        from cxrjax.images.decode import read_image

        image = read_image(self.image)
        height, width = image.shape[:2]
        if axes is None:
            import matplotlib.pyplot as plt

            axes = plt.figure(figsize=(_INCHES, _INCHES * height / width + 0.6)).gca()
        axes.imshow(image)
        for number, (x0, y0, x1, y1) in enumerate(self.pixel_boxes, 1):
            from matplotlib.patches import Rectangle

            axes.add_patch(
                Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor=_COLOUR, linewidth=2)
            )
            told = f"({number}) {self.labels[number - 1] or ''} {self.scores[number - 1]:.2f}"
            box = {"facecolor": _COLOUR, "edgecolor": "none", "pad": 1.5}
            axes.text(x0, y0, told, fontsize=8, va="top", bbox=box)
        sure = "" if self.confidence is None else f" (confidence {self.confidence:.2f})"
        lines = (self.question, f"{self.text}{sure}")
        # A dollar sign would begin a formula.
        title = "\n".join(textwrap.fill(one, _TITLE_LETTERS) for one in lines).replace("$", r"\$")
        axes.set_title(title, fontsize=9, loc="left")
        axes.axis("off")
        return axes

    def _repr_png_(self) -> bytes:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(_INCHES, _INCHES))
        self.plot(figure.gca())
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=100, bbox_inches="tight")
        return buffer.getvalue()

    def _repr_html_(self) -> str:
        address = base64.b64encode(self._repr_png_()).decode()
        alt = escape(f"{self.question} {self.text}")
        return f'<img alt="{alt}" src="data:image/png;base64,{address}">'


class ModelAnswers(list[ModelAnswer]):
    """Answers to several questions about one image, in their order."""

    def table(self) -> Table:
        """Returns a row an answer: question, text, confidence, and lists of boxes and scores."""
        return Table(
            {
                "question": one.question,
                "text": one.text,
                "confidence": one.confidence,
                "boxes": one.boxes.tolist(),
                "pixel_boxes": one.pixel_boxes.tolist(),
                "labels": list(one.labels),
                "scores": one.scores.tolist(),
                "parse": one.parse,
            }
            for one in self
        )

    def to_pandas(self) -> Any:
        """Returns a `pandas.DataFrame` of `table()`.

        Raises:
            UserError: pandas is not installed.
        """
        return self.table().to_pandas()

    def _repr_html_(self) -> str:
        return "".join(answer._repr_html_() for answer in self)
