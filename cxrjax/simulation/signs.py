"""Signs of both kinds of simulated images: of phantoms, and of lesions in real radiographs.

A sign has a weight (0 to 1, its share at each pixel) and what it adds: to a phantom's density, in
the units of `render` (0 is air, an aerated lung is about 0.40 below the soft tissue around it), or
to a radiograph's attenuation, up to a factor that its contrast decides.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, UInt8

from cxrjax.simulation.canvas import Field, Window
from cxrjax.simulation.findings import ReaderFinding


@dataclasses.dataclass(frozen=True)
class Sign:
    """A sign on a window of the image."""

    window: Window
    weight: Field  # share of the sign at each pixel, 0 to 1; nothing changes where it is 0
    added: Field  # density, or attenuation relative to its maximum
    kind: str = ""  # form of the class ("mass", "hiatal hernia"), "" where there is only one
    veil: Field | None = None  # share of the lung's markings that vanish, 0 to 1; None: none
    tissue: float | None = None  # grey value that it fills up to; None: that of the heart
    label: str = ""

    @classmethod
    def of(
        cls,
        window: Window,
        weight: Field,
        amount: float,
        profile: Field | float = 1.0,
        kind: str = "",
    ) -> "Sign":
        """Returns the sign that adds `amount` times the weight times a profile."""
        return cls(window, weight, np.float32(amount) * weight * profile, kind)


@dataclasses.dataclass(frozen=True)
class SimulatedImage:
    """An image with its ground truth."""

    image: UInt8[np.ndarray, "h w"]  # grey values, bone bright
    labels: list[str]  # class of each box, VinDr-CXR's names
    boxes: Float[np.ndarray, "n 4"]  # (x_min, y_min, x_max, y_max) as fractions of the image
    # Reader id -> (label, box) of each finding that the reader marked.
    readers: dict[str, list[ReaderFinding]]


def soft_step(x: np.ndarray, width: float) -> np.ndarray:
    """Rises smoothly from 0 below -width to 1 above +width."""
    return smooth(np.clip(x / np.float32(2 * width) + np.float32(0.5), 0, 1))


def smooth(t: np.ndarray) -> np.ndarray:
    """Eases values between 0 and 1 at both ends."""
    return t * t * (3 - 2 * t)


def extent(shown: Bool[np.ndarray, "h w"], window: Window) -> tuple[int, int, int, int] | None:
    """Returns the bounds, (x0, y0, x1, y1) in pixels of the image, of what a window shows."""
    rows, columns = (np.flatnonzero(shown.any(axis=axis)) for axis in (1, 0))
    if len(rows) == 0:
        return None
    y, x = window[0].start, window[1].start
    return int(x + columns[0]), int(y + rows[0]), int(x + columns[-1] + 1), int(y + rows[-1] + 1)
