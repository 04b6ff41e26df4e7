"""Building blocks of every radiographic sign: the scene it is drawn on, its place, its box.

Densities are in the units of `render`: 0 is air, an aerated lung lies about 0.40 below the soft
tissue around it. A sign is a `Stamp`: what it adds to the density, and its `weight` (0 to 1), the
share of the sign present at a pixel. The box of a lesion bounds the pixels whose weight exceeds
`BOX_THRESHOLD`.
"""

import dataclasses
import math

import numpy as np
from jaxtyping import Float

from cxrjax.simulation.phantoms.anatomy import LEFT, RIGHT, Patient
from cxrjax.simulation.phantoms.canvas import Canvas, Field, Window

BOX_THRESHOLD = 0.3


@dataclasses.dataclass(frozen=True)
class Scene:
    """The picture that a sign is drawn on.

    Attributes:
        lung: soft mask of both lung fields, parts behind heart and vessels included.
        free: 1 where aerated lung shows, 0 behind heart, mediastinum and diaphragm.
    """

    canvas: Canvas
    patient: Patient
    lung: Field
    free: Field

    def side_of_lung(self, side: int, window: Window) -> Field:
        """The mask of one lung on a window."""
        gx, _ = self.canvas.grid(window)
        return self.lung[window.index] * (gx * side > 0)

    def side_of_free(self, side: int, window: Window) -> Field:
        """The mask of one lung's free part on a window."""
        gx, _ = self.canvas.grid(window)
        return self.free[window.index] * (gx * side > 0)


@dataclasses.dataclass(frozen=True)
class Stamp:
    """A sign on a window of the picture.

    Attributes:
        delta: what it adds to the density.
        weight: 0 to 1, how much of the sign is there.
        bare: where lung markings vanish (pneumothorax), 0 to 1; None: nowhere.
        kind: which form of the class it is ("mass", "hiatal hernia"), "" where there is one form.
    """

    window: Window
    delta: Field
    weight: Field
    bare: Field | None = None
    kind: str = ""


def soft_step(x: np.ndarray, width: float) -> np.ndarray:
    """0 below -width, 1 above +width, smooth between."""
    t = np.clip(x / np.float32(2 * width) + np.float32(0.5), 0, 1)
    return t * t * (3 - 2 * t)


def elliptic_radius(
    scene: Scene, window: Window, x: float, y: float, rx: float, ry: float, angle: float = 0.0
) -> Field:
    """Distance from the centre of an ellipse as a multiple of its radius in that direction."""
    gx, gy = scene.canvas.grid(window)
    dx, dy = gx - np.float32(x), gy - np.float32(y)
    cos, sin = np.float32(math.cos(angle)), np.float32(math.sin(angle))
    along, across = (dx * cos + dy * sin) / np.float32(rx), (dy * cos - dx * sin) / np.float32(ry)
    return np.sqrt(along * along + across * across)


def around(scene: Scene, x: float, y: float, rx: float, ry: float, margin: float = 0.0) -> Window:
    corners = np.array([(x - rx, y - ry), (x + rx, y - ry), (x - rx, y + ry), (x + rx, y + ry)])
    return scene.canvas.window(corners, margin)


class Placement:
    """Finds places for lesions where there is lung and little else yet.

    Decided from outlines alone, never from pixels: the same at every size of the picture.
    """

    def __init__(self, patient: Patient, rng: np.random.Generator) -> None:
        self._patient = patient
        self._rng = rng
        self._taken: list[tuple[float, float, float, float]] = []

    def take(self, x: float, y: float, rx: float, ry: float) -> None:
        """Marks a rectangle as occupied, body coordinates."""
        self._taken.append((x - rx, y - ry, x + rx, y + ry))

    def _overlap(self, x: float, y: float, rx: float, ry: float) -> float:
        """The largest share that the candidate has in common with a neighbour."""
        worst = 0.0
        for x0, y0, x1, y1 in self._taken:
            w = min(x1, x + rx) - max(x0, x - rx)
            h = min(y1, y + ry) - max(y0, y - ry)
            if w > 0 and h > 0:
                smaller = min((x1 - x0) * (y1 - y0), 4 * rx * ry)
                worst = max(worst, w * h / smaller)
        return worst

    def _hidden(self, side: int, x: float, y: float, rx: float, ry: float) -> float:
        """About the share of the candidate that is not in front of free lung."""
        shown = 0.0
        for part in (-0.6, 0.0, 0.6):
            v = (y + part * ry) / self._patient.lung_height
            inner, outer = self._patient.free_span(side, v)
            low, high = max(abs(x) - rx, inner), min(abs(x) + rx, outer)
            if y + part * ry < self._patient.dome_level(side, x):
                shown += max(0.0, high - low) / (2 * rx)
        return 1 - shown / 3

    def find(
        self,
        rx: float,
        ry: float,
        v: tuple[float, float],
        s: tuple[float, float] = (0.0, 1.0),
    ) -> tuple[int, float, float]:
        """The best of some candidates in a zone of either lung, now taken.

        Args:
            rx, ry: half the lesion's width and height, body units.
            v, s: the zone, from apex to base and from medial to lateral, each within 0 to 1.

        Returns:
            (side, x, y) of the centre, body coordinates.
        """
        best, lowest = (RIGHT, 0.0, 0.0), math.inf
        for _ in range(14):
            side = RIGHT if self._rng.random() < 0.5 else LEFT
            height = float(self._rng.uniform(*v))
            inner, outer = self._patient.free_span(side, height)
            # Ill-defined lesions may run a little under the border of the lung.
            room = max(0.0, outer - inner - 1.7 * rx)
            across = inner + 0.85 * rx + float(self._rng.uniform(*s)) * room
            x, y = side * across, height * self._patient.lung_height
            cost = self._overlap(x, y, rx, ry) + 1.5 * self._hidden(side, x, y, rx, ry)
            if cost < lowest:
                best, lowest = (side, x, y), cost
            if cost < 0.2:
                break
        self.take(best[1], best[2], rx, ry)
        return best


def lesion_box(
    weight: Field, window: Window, height: int, width: int
) -> Float[np.ndarray, "4"] | None:
    """Bounds of weight > BOX_THRESHOLD as fractions of the picture; None where nothing shows."""
    shown = weight > BOX_THRESHOLD
    rows, columns = np.flatnonzero(shown.any(axis=1)), np.flatnonzero(shown.any(axis=0))
    if len(rows) == 0:
        return None
    pixels = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
    offset = (window.x0, window.y0, window.x0, window.y0)
    size = (width, height, width, height)
    return ((np.array(pixels) + offset) / size).astype(np.float32)
