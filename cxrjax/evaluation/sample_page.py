"""Page of sample images with their boxes, in sections; everything is inline."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cxrjax.evaluation.overlays import jpeg_data_uri, overlay
from cxrjax.evaluation.text_tables import template
from cxrjax.files import replace_text

_SIDE = 400  # pixels


class SampleBox(NamedTuple):
    """A box to show, (x_min, y_min, x_max, y_max) as fractions of the image."""

    name: str
    colour: str
    box: Sequence[float]


class SampleImage(NamedTuple):
    """An image to show."""

    name: str
    caption: str
    pixels: np.ndarray | None  # uint8 [h, w] or [h, w, 3]; None where the image cannot be read
    boxes: Sequence[SampleBox] = ()

    @property
    def uri(self) -> str:
        """Returns the image with its boxes as a `data:` address, "" where it cannot be read."""
        if self.pixels is None:
            return ""
        by_colour = {colour: np.array([box]) for _, colour, box in self.boxes}
        return jpeg_data_uri(overlay(self.pixels, by_colour), _SIDE)


class SampleSection(NamedTuple):
    """Paragraphs and images below a heading."""

    heading: str
    texts: Sequence[str]
    images: Sequence[SampleImage]
    columns: int = 0  # images in a row; 0: as many as fit


def write_sample_page(
    path: Path, title: str, notes: Sequence[str], sections: Sequence[SampleSection]
) -> None:
    """Writes the page."""
    shown: dict[str, Any] = {"title": title, "notes": notes, "sections": sections}
    replace_text(path, template(str(__package__), "samples.html.j2").render(shown))
