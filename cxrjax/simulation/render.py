"""Phantoms: synthetic frontal chest radiographs with findings, boxes and three simulated readers.

Everything is a function of (seed, index): anatomy, findings, texture, grain and readers, so that
any process can render any image again. The images carry radiographic signs, not medical truth; they
serve to exercise the pipeline and to teach the demo's model where to look.
"""

import dataclasses

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from cxrjax.simulation import anatomy, findings
from cxrjax.simulation.anatomy import LEFT, RIGHT, SIDES, Patient
from cxrjax.simulation.canvas import Canvas, Field, ellipse, fractal_noise, smooth_noise
from cxrjax.simulation.phantom_signs import Scene, lesion_box, render_signs
from cxrjax.simulation.signs import Sign, SimulatedImage

# The share of normal images in VinDr-CXR's training set.
NORMAL_PROBABILITY = findings.NORMAL_IMAGES / (findings.NORMAL_IMAGES + findings.ABNORMAL_IMAGES)
SIZES = (700, 3000)  # long sides that `long_side=None` samples from
SMALLEST = 64
_FINE_ABOVE = 512  # long side that shows texture of 1/260 of the image
# Larger images are painted at this size and enlarged; a detector is no sharper.
PAINTED_AT_MOST = 1024
# Lines of the letters, x and y in turn, in a square of side 1.
_LETTER_L = (0.2, 0, 0.2, 1, 0.8, 1)
_LETTER_R = (0.2, 1, 0.2, 0, 0.7, 0, 0.8, 0.25, 0.7, 0.5, 0.2, 0.5, 0.8, 1)
# Each purpose has its own random stream, so that a further number in one changes no other.
_STREAMS = ("patient", "size", "findings", "lesions", "texture", "grain", "readers")


@dataclasses.dataclass(frozen=True)
class Phantom(SimulatedImage):
    """A phantom's image.

    Attributes:
        lungs: 'right', 'left' (the patient's sides) -> bounds of the lung field, fractions.
    """

    lungs: dict[str, Float[np.ndarray, "4"]]


@dataclasses.dataclass(frozen=True)
class Painting:
    """Densities before film and noise, in parts that can be left out one by one."""

    patient: Patient
    canvas: Canvas
    base: Field  # everything but findings, heart and arch included where they are normal
    markings: Field  # lung vessels and texture, which a pneumothorax removes
    signs: list[Sign]  # the findings in the order of their boxes

    def density(self, without: int | None = None) -> Field:
        """Sums all parts, or all but one sign."""
        total = self.base.copy()
        markings = self.markings
        for k, sign in enumerate(self.signs):
            if k == without:
                continue
            total[sign.window] += sign.added
            if sign.veil is not None:
                markings = markings.copy()
                markings[sign.window] *= 1 - np.float32(0.95) * sign.veil
        return total + markings


def _generator(seed: int, index: int, stream: str) -> np.random.Generator:
    return np.random.default_rng((seed, index, _STREAMS.index(stream)))


def image_size(patient: Patient, long_side: int) -> tuple[int, int]:
    """Returns (height, width) with the patient's aspect, width over height."""
    if patient.aspect < 1:
        return long_side, max(1, round(long_side * patient.aspect))
    return max(1, round(long_side / patient.aspect)), long_side


def paint(
    patient: Patient,
    presences: list[findings.Presence],
    seed: int,
    index: int,
    height: int,
    width: int,
) -> Painting:
    """Paints all parts of the image at the given size."""
    canvas = patient.canvas(height, width)
    rng = _generator(seed, index, "texture")
    vessel_lines, hila = anatomy.vessels(patient, rng)
    fine = fractal_noise(rng, (height, width), (32, 84), 0.8)

    lung = canvas.mask([(outline, 1.0) for outline in patient.lung_outlines.values()], 0.012)
    # Organs before or behind the lung, which take its darkness away.
    organs = (patient.heart, patient.arch, anatomy.mediastinum_outline(patient))
    cover = canvas.mask(list(zip(organs, (0.9, 0.92, 1.0), strict=True)), 0.014)
    free = lung * (1 - cover)

    tissue, hilar = _soft_tissue(patient, canvas, hila, rng)
    base = tissue + np.float32(0.06) * cover
    # Heavier patients scatter more: less contrast between lung and wall.
    base -= np.float32(0.42 - 0.05 * patient.habitus) * lung * (1 - np.float32(0.86) * cover)
    # No bones outside the body.
    base += _skeleton(patient, canvas, lung, cover) * np.minimum(np.float32(2.5) * tissue, 1)

    # Twigs thinner than the pixels add nothing but time.
    finest = 0.8 / canvas.scale
    vessel = canvas.strokes([line for line in vessel_lines if line[1] > finest], 0.005)
    markings = np.float32(0.115) * vessel
    markings += np.float32(0.14) * hilar
    markings += np.float32(0.018) * fine
    if max(height, width) > _FINE_ABOVE:
        markings += np.float32(0.012) * smooth_noise(rng, (height, width), 260, 260)
    markings *= free

    scene = Scene(canvas, patient, lung, free, _generator(seed, index, "lesions"))
    signs = render_signs(scene, {one.label: one.strengths for one in presences})
    return Painting(patient, canvas, base, markings, signs)


def _soft_tissue(
    patient: Patient, canvas: Canvas, hila: list, rng: np.random.Generator
) -> tuple[Field, Field]:
    """Paints the density of the body without lungs and bones, and the hila's mask.

    Both are smooth, so they are painted small and enlarged.
    """
    small, enlarge = canvas.coarse(80)
    body = small.mask([(anatomy.body_outline(patient), 1.0)], 0.035)
    gx, gy = small.grid(small.whole)
    v = gy / np.float32(patient.lung_height)
    # More tissue near the midline, in the abdomen and the shoulders, less towards the skin.
    density = np.float32(0.12) * np.exp(-np.square(gx / np.float32(0.8)))
    density += np.float32(0.56 + 0.06 * patient.habitus)
    density += np.float32(0.30) * np.clip(v - np.float32(0.80), 0, 0.25)
    density += np.float32(0.35) * np.clip(np.float32(0.16) - v, 0, 0.25)
    # The lung is deeper below; the wall's shadow beside it is not worth a mask.
    density -= np.float32(0.05) * np.clip(v - np.float32(0.3), 0, 0.5) * (np.abs(gx) < 1)
    density += np.float32(0.02) * smooth_noise(rng, density.shape, 7, 7)
    gas_x, gas_rx, gas_ry = patient.stomach
    gas_y = patient.dome_level(LEFT, gas_x) + 0.07 + gas_ry
    gas = small.mask([(ellipse(gas_x, gas_y, gas_rx, gas_ry), 1.0)], 0.02)
    density -= np.float32(0.16) * gas
    if patient.female:
        breasts = [(anatomy.breast(patient, side), 1.0) for side in (RIGHT, LEFT)]
        density += np.float32(0.05 + 0.03 * patient.habitus) * small.mask(breasts, 0.03)
    density -= np.float32(0.07) * small.mask(anatomy.airway(patient), 0.01)
    return enlarge(density * body), enlarge(small.mask(hila, 0.035))


def _skeleton(patient: Patient, canvas: Canvas, lung: Field, cover: Field) -> Field:
    """Paints the density of ribs, collar bones, shoulders and spine."""
    posterior, anterior = anatomy.ribs(patient)
    bones = np.float32(0.10) * canvas.mask(posterior, 0.006)
    bones += np.float32(0.065) * canvas.mask(anterior, 0.006)
    # Behind heart, great vessels and the abdomen, ribs drown in scatter.
    bones *= np.float32(0.28) + np.float32(0.72) * lung * (1 - np.float32(0.65) * cover)
    upper = anatomy.vertebrae(patient) + anatomy.shoulder_bones(patient)
    bones += np.float32(0.125) * canvas.mask(upper + anatomy.clavicles(patient), 0.006)
    return bones * np.float32(patient.bone)


def develop(
    patient: Patient, density: Field, height: int, width: int, seed: int, index: int
) -> UInt8[np.ndarray, "h w"]:
    """Turns densities into grey values: enlargement, film curve, grain, collimation, marker."""
    if density.shape != (height, width):
        image = Image.fromarray(density).resize((width, height), Image.Resampling.BICUBIC)
        density = np.asarray(image)
    rng = _generator(seed, index, "grain")
    steepness = 5.2 * patient.contrast
    x = density * np.float32(steepness) - np.float32(steepness * (0.53 - patient.exposure))
    value = np.float32(0.02) + np.float32(0.96) / (1 + np.exp(-x))
    # The sum of two uniform bytes: close enough to a bell, at a third of the cost.
    grain = rng.integers(0, 256, (2, height, width), dtype=np.uint8)
    grain = (grain[0].astype(np.float32) + grain[1] - np.float32(255)) * np.float32(1 / 104.5)
    value += grain * (np.float32(0.008) + np.float32(0.012) * value)
    image = np.clip(value * 255 + np.float32(0.5), 0, 255).astype(np.uint8)
    # Collimated fields leave a black border on a side or two.
    left, top = (round(max(0.0, share) * max(height, width)) for share in patient.collimation)
    image[:, :left] = 3
    image[:top] = 3
    if patient.marker:
        _stamp_letter(image, patient.marker)
    return image


def _stamp_letter(image: UInt8[np.ndarray, "h w"], side: int) -> None:
    """Renders a lead letter at the upper corner of the patient's side: L at the image's right."""
    height, width = image.shape
    size = max(5, round(0.03 * max(height, width)))
    letter = Image.new("L", (size, size))
    strokes = _LETTER_L if side == LEFT else _LETTER_R
    points = [(0.1 + 0.8 * x) * (size - 1) for x in strokes]
    ImageDraw.Draw(letter).line(points, fill=255, width=max(1, size // 6))
    x0 = round((0.94 if side == LEFT else 0.03) * width)
    y0 = round(0.04 * height)
    patch = image[y0 : y0 + size, x0 : x0 + size]
    np.maximum(patch, np.asarray(letter)[: patch.shape[0], : patch.shape[1]], out=patch)


def plan(
    seed: int, index: int, normal: bool | None = None, conspicuity: float = 1.0
) -> tuple[Patient, list[findings.Presence]]:
    """Samples the patient and the findings; no pixel yet.

    The patient does not depend on `normal`, except for heart and aorta.
    """
    rng = _generator(seed, index, "findings")
    sampled = bool(rng.random() < NORMAL_PROBABILITY)
    normal = sampled if normal is None else normal
    presences = [] if normal else findings.draw_presences(rng, conspicuity)
    patient = anatomy.draw_patient(_generator(seed, index, "patient"))
    return _with_organs(patient, presences, rng), presences


def render_phantom(
    seed: int,
    index: int,
    long_side: int | None = None,
    normal: bool | None = None,
    conspicuity: float = 1.0,
) -> Phantom:
    """Renders the radiograph number `index` of the series `seed`.

    The same arguments give the same bytes in any process and order. The same (seed, index) at two
    sizes is the same patient with the same findings.

    Args:
        seed, index: non-negative.
        long_side: pixels, at least 64; None samples one from `SIZES`.
        normal: True without findings, False with findings, None samples with `NORMAL_PROBABILITY`.
        conspicuity: multiplies the contrast of the lesions. At 1 many are as faint as those that
            only one reader of three marks; above 1 they are plainer than on real films.

    Raises:
        ValueError: a negative seed or index, a long side below 64, no positive conspicuity.
    """
    if conspicuity <= 0:
        raise ValueError(f"conspicuity {conspicuity}: expected a positive number")
    if seed < 0 or index < 0:
        raise ValueError(f"seed {seed} and index {index} must not be negative")
    sizes = _generator(seed, index, "size")
    sampled = int(sizes.integers(SIZES[0], SIZES[1] + 1))
    long_side = sampled if long_side is None else long_side
    if long_side < SMALLEST:
        raise ValueError(f"long_side {long_side}: expected at least {SMALLEST} pixels")

    patient, presences = plan(seed, index, normal, conspicuity)
    painting, image, found = render_frontal(patient, presences, seed, index, long_side, index)
    boxes = np.array(list(found.values()), np.float32).reshape(-1, 4)
    labels = [painting.signs[number].label for number in found]
    presences = [p for p in presences if p.label in labels]
    marks = findings.read(_generator(seed, index, "readers"), presences, labels, boxes)
    lungs = {
        name: painting.canvas.bounds(patient.lung_outlines[side]) for side, name in SIDES.items()
    }
    return Phantom(image, labels, boxes, marks, lungs)


def render_frontal(
    patient: Patient,
    presences: list[findings.Presence],
    seed: int,
    index: int,
    long_side: int,
    grain: int,
) -> tuple[Painting, UInt8[np.ndarray, "h w"], dict[int, Float[np.ndarray, "4"]]]:
    """Renders a frontal view.

    Args:
        grain: number of the exposure's own noise.

    Returns:
        The parts, the image, and number of each sign that shows -> its box as fractions.
    """
    painted = image_size(patient, min(long_side, PAINTED_AT_MOST))
    painting = paint(patient, presences, seed, index, *painted)
    size = image_size(patient, long_side)
    image = develop(patient, painting.density(), *size, seed, grain)
    boxes = [lesion_box(sign.weight, sign.window, *painted) for sign in painting.signs]
    return painting, image, {k: box for k, box in enumerate(boxes) if box is not None}


def _with_organs(
    patient: Patient, presences: list[findings.Presence], rng: np.random.Generator
) -> Patient:
    """Enlarges heart and arch where the findings include them."""
    heart, arch = rng.random(2)
    for presence in presences:
        # 0.68 to 1.2 is the range of strengths: faint cases lie near the lower bound.
        grade = float(np.clip((presence.strengths[0] - 0.68) / 0.52, 0, 1))
        if presence.label == "Cardiomegaly":
            low, high = anatomy.ENLARGED_HEART
            share = 0.75 * grade + 0.25 * float(heart)
            patient = patient.with_heart(low + (high - low) * share)
        elif presence.label == "Aortic enlargement":
            low, high = anatomy.ENLARGED_ARCH
            radius = low + (high - low) * (0.7 * grade + 0.3 * float(arch))
            patient = dataclasses.replace(patient, arch_radius=radius)
    return patient
