"""Canvas that maps points of the body to the image and renders soft shapes and noise there.

Body coordinates are isotropic: x = 0 is the midline and x = +-1 the inner chest wall at its widest
(+ is the patient's left, the right of the image); y = 0 is the apex of the lungs, downwards, in
the same unit. Shapes given in body coordinates look alike at every image size.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from PIL import Image, ImageDraw, ImageFilter

Points = Float[np.ndarray, "n 2"]
Field = Float[np.ndarray, "h w"]
Window = tuple[slice, slice]  # rows and columns of an image, never empty

# Below this long side polygons are rendered twice as large and averaged, for smooth edges.
SUPERSAMPLE_BELOW = 480


@functools.cache
def _spline_basis(samples: int) -> np.ndarray:
    t = np.arange(samples) / samples
    return (
        np.stack(
            [-t + 2 * t**2 - t**3, 2 - 5 * t**2 + 3 * t**3, t + 4 * t**2 - 3 * t**3, t**3 - t**2],
            axis=1,
        )
        / 2
    )


def spline(points: Points, closed: bool = False, samples: int = 6) -> Points:
    """Returns a Catmull-Rom curve through the points, `samples` vertices a segment."""
    points = np.asarray(points, dtype=np.float64)
    if closed:
        padded = np.concatenate([points[-1:], points, points[:2]])
    else:
        first, last = 2 * points[0] - points[1], 2 * points[-1] - points[-2]
        padded = np.concatenate([first[None], points, last[None]])
    quads = np.stack([padded[i : len(padded) - 3 + i] for i in range(4)], axis=1)
    curve = np.einsum("tk,skd->std", _spline_basis(samples), quads).reshape(-1, 2)
    return curve if closed else np.concatenate([curve, points[-1:]])


def ribbon(
    line: Float[np.ndarray, "*batch n 2"], width: float | np.ndarray
) -> Float[np.ndarray, "*batch m 2"]:
    """Returns the outline of a band along each line; the width is a number, or one per vertex."""
    step = np.diff(line, axis=-2)
    tangent = np.empty_like(line)
    tangent[..., 1:-1, :] = step[..., 1:, :] + step[..., :-1, :]
    tangent[..., 0, :], tangent[..., -1, :] = step[..., 0, :], step[..., -1, :]
    length = np.hypot(tangent[..., 0], tangent[..., 1])
    half = np.asarray(width) / (2 * np.maximum(length, 1e-9))
    offset = np.stack([-tangent[..., 1] * half, tangent[..., 0] * half], axis=-1)
    return np.concatenate([line + offset, (line - offset)[..., ::-1, :]], axis=-2)


@functools.cache
def _circle(vertices: int) -> np.ndarray:
    angle = np.linspace(0, 2 * math.pi, vertices, endpoint=False)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def ellipse(x: float, y: float, rx: float, ry: float, angle: float = 0.0) -> Points:
    """Returns an ellipse as a polygon; `angle` in radians turns it clockwise on the image."""
    unit = _circle(28) * (rx, ry)
    cos, sin = math.cos(angle), math.sin(angle)
    return unit @ np.array([[cos, sin], [-sin, cos]]) + (x, y)


def shape_of(window: Window) -> tuple[int, int]:
    """Returns the height and width of a window."""
    return window[0].stop - window[0].start, window[1].stop - window[1].start


@dataclasses.dataclass(frozen=True)
class Canvas:
    """An image of height x width pixels that shows the body at `scale` pixels a unit.

    Attributes:
        origin_x, origin_y: position of the body's origin, pixels.
        tilt: radians, clockwise on the image.
    """

    height: int
    width: int
    scale: float
    origin_x: float
    origin_y: float
    tilt: float

    @property
    def supersample(self) -> int:
        return 2 if max(self.height, self.width) < SUPERSAMPLE_BELOW else 1

    def to_pixels(self, points: Points) -> Points:
        """Converts body coordinates to pixels; a pixel's centre lies at +0.5."""
        cos, sin = math.cos(self.tilt) * self.scale, math.sin(self.tilt) * self.scale
        turn = np.array([[cos, sin], [-sin, cos]])
        return np.asarray(points) @ turn + (self.origin_x, self.origin_y)

    def window(self, points: Points, margin: float = 0.0) -> Window:
        """Returns the pixels around the points, with a margin in body units, inside the image."""
        pixels = self.to_pixels(points)
        low = np.floor(pixels.min(axis=0) - margin * self.scale).astype(int)
        high = np.ceil(pixels.max(axis=0) + margin * self.scale).astype(int)
        x0, y0 = min(max(low[0], 0), self.width - 1), min(max(low[1], 0), self.height - 1)
        x1, y1 = min(max(high[0], x0 + 1), self.width), min(max(high[1], y0 + 1), self.height)
        return slice(int(y0), int(y1)), slice(int(x0), int(x1))

    def bounds(self, points: Points) -> Float[np.ndarray, "4"]:
        """Returns the points' bounding box as fractions of the image, clipped to it."""
        pixels = self.to_pixels(points) / (self.width, self.height)
        return np.concatenate([pixels.min(axis=0), pixels.max(axis=0)]).clip(0, 1).astype("f4")

    @property
    def whole(self) -> Window:
        return slice(0, self.height), slice(0, self.width)

    def grid(self, window: Window) -> tuple[Field, Field]:
        """Returns body x and y of the window's pixel centres, each float32 [h, w]."""
        y, x = (np.arange(side.start, side.stop) for side in window)
        columns = (x + 0.5 - self.origin_x) / self.scale
        rows = (y + 0.5 - self.origin_y)[:, None] / self.scale
        columns, rows = columns.astype(np.float32), rows.astype(np.float32)
        cos, sin = np.float32(math.cos(self.tilt)), np.float32(math.sin(self.tilt))
        return columns * cos + rows * sin, rows * cos - columns * sin

    def mask(
        self, shapes: list[tuple[Points, float]], blur: float = 0.0, window: Window | None = None
    ) -> Field:
        """Paints closed polygons with their values (0 to 1) in order, then blurs them.

        Args:
            shapes: (polygon in body coordinates, value); a later one covers an earlier one.
            blur: standard deviation in body units.
            window: part of the image (default: the whole).
        """
        image, flat = self._paper([polygon for polygon, _ in shapes], window)
        draw = ImageDraw.Draw(image)
        start = 0
        for polygon, value in shapes:
            stop = start + 2 * len(polygon)
            draw.polygon(flat[start:stop], fill=round(255 * value))
            start = stop
        return self._finish(image, blur)

    def strokes(
        self,
        lines: list[tuple[Points, float, float]],
        blur: float = 0.0,
        window: Window | None = None,
    ) -> Field:
        """Paints open lines, (points in body coordinates, width in body units, value), in order.

        A width below a pixel is rendered one pixel wide and fainter, so that thin lines neither
        vanish nor thicken on small images.
        """
        image, flat = self._paper([line for line, _, _ in lines], window)
        draw = ImageDraw.Draw(image)
        pixels = self.scale * self.supersample
        start = 0
        for line, width, value in lines:
            stop = start + 2 * len(line)
            wide = width * pixels
            whole = max(1, round(wide))
            fill = round(255 * min(value * wide / whole, 1.0))
            draw.line(flat[start:stop], fill=fill, width=whole)
            start = stop
        return self._finish(image, blur)

    def _paper(
        self, shapes: list[Points], window: Window | None
    ) -> tuple[Image.Image, list[float]]:
        """Returns an empty image and all vertices on it, in one list: shapes are some hundred."""
        window = window or self.whole
        factor = self.supersample
        h, w = shape_of(window)
        pixels = self.to_pixels(np.concatenate(shapes))
        pixels = (pixels - (window[1].start, window[0].start)) * factor - 0.5
        return Image.new("L", (w * factor, h * factor)), pixels.ravel().tolist()

    def _finish(self, image: Image.Image, blur: float) -> Field:
        if self.supersample > 1:
            image = image.reduce(self.supersample)
        spread = blur * self.scale
        if self.supersample > 1:
            # One box of the same standard deviation: on small images the eye cannot tell, and it
            # takes half the time. Less than half a pixel the averaging above has done already.
            radius = (spread * math.sqrt(12) - 1) / 2
            if radius > 0.5:
                image = image.filter(ImageFilter.BoxBlur(radius))
        elif spread > 0.3:
            image = image.filter(ImageFilter.GaussianBlur(spread))
        return np.asarray(image) * np.float32(1 / 255)

    def coarse(self, about: int) -> tuple["Canvas", Callable[[Field], Field]]:
        """Returns a smaller canvas for smooth shapes, and what enlarges its fields linearly.

        Args:
            about: pixels of its long side.
        """
        step = max(1, round(max(self.height, self.width) / about))
        size = -(-self.height // step), -(-self.width // step)
        scale, x, y = (one / step for one in (self.scale, self.origin_x, self.origin_y))

        def enlarge(field: Field) -> Field:
            if step == 1:
                return field
            image = Image.fromarray(np.ascontiguousarray(field, dtype=np.float32))
            box = (0, 0, self.width / step, self.height / step)
            return np.asarray(
                image.resize((self.width, self.height), Image.Resampling.BILINEAR, box=box)
            )

        return Canvas(*size, scale, x, y, self.tilt), enlarge


def smooth_noise(
    rng: np.random.Generator, shape: tuple[int, int], cells_y: int, cells_x: int
) -> Field:
    """Returns noise of unit variance on a coarse grid, enlarged to the shape; float32."""
    grid = rng.standard_normal((max(cells_y, 2), max(cells_x, 2)), dtype=np.float32)
    enlarged = Image.fromarray(grid).resize((shape[1], shape[0]), Image.Resampling.BICUBIC)
    return np.asarray(enlarged)


def fractal_noise(
    rng: np.random.Generator, shape: tuple[int, int], cells: tuple[int, ...], decay: float = 0.6
) -> Field:
    """Sums `smooth_noise` of growing numbers of cells, each `decay` times the one before."""
    total = np.zeros((cells[-1], cells[-1]), np.float32)
    weight = 1.0
    for count in cells:
        total += np.float32(weight) * smooth_noise(rng, total.shape, count, count)
        weight *= decay
    enlarged = Image.fromarray(total).resize((shape[1], shape[0]), Image.Resampling.BICUBIC)
    return np.asarray(enlarged)


def ridges(noise: Field, width: float) -> Field:
    """Returns bright lines where the noise crosses zero, 0 to 1: a net, like thickened septa."""
    return np.exp(-np.square(noise / np.float32(width)))
