"""Rendering of a phantom from (seed, index): patient, findings, densities, image."""

import dataclasses

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from cxrjax.simulation.phantoms import anatomy, findings, lesions
from cxrjax.simulation.phantoms.anatomy import LEFT, RIGHT, SIDES, Patient
from cxrjax.simulation.phantoms.canvas import Canvas, Field, ellipse, fractal_noise, smooth_noise
from cxrjax.simulation.phantoms.signs import Placement, Scene, Stamp, lesion_box

# The share of normal pictures in VinDr-CXR's training set.
NORMAL_PROBABILITY = findings.NORMAL_IMAGES / (findings.NORMAL_IMAGES + findings.ABNORMAL_IMAGES)
SIZES = (700, 3000)  # long sides that `long_side=None` draws from
SMALLEST = 64
_FINE_ABOVE = 512  # long side that shows texture of 1/260 of the picture
# Larger pictures are painted at this size and enlarged; a detector is no sharper.
PAINTED_AT_MOST = 1024
# Lines of the letters, x and y in turn, in a square of side 1.
_LETTER_L = (0.2, 0, 0.2, 1, 0.8, 1)
_LETTER_R = (0.2, 1, 0.2, 0, 0.7, 0, 0.8, 0.25, 0.7, 0.5, 0.2, 0.5, 0.8, 1)
# Each purpose has its own random stream, so that one draw more in one moves no other.
_STREAMS = ("patient", "size", "findings", "lesions", "texture", "grain", "readers")


@dataclasses.dataclass(frozen=True)
class Phantom:
    """One synthetic radiograph with its truth.

    Attributes:
        image: grey values, bone bright, uint8 [height, width].
        boxes: float32 [n, 4], (x_min, y_min, x_max, y_max) as fractions of the picture.
        labels: the class of each box, VinDr-CXR's names.
        readers: 'P1', 'P2', 'P3' -> what that reader marked, (label, box float32 [4]).
        lungs: 'right', 'left' (the patient's sides) -> bounds of the lung field, float32 [4].
        height, width: pixels.
    """

    image: UInt8[np.ndarray, "h w"]
    boxes: Float[np.ndarray, "n 4"]
    labels: list[str]
    readers: dict[str, list[findings.ReaderFinding]]
    lungs: dict[str, Float[np.ndarray, "4"]]
    height: int
    width: int


@dataclasses.dataclass(frozen=True)
class Sign:
    """A finding as painted: its class and what it adds to the picture."""

    label: str
    stamp: Stamp


@dataclasses.dataclass(frozen=True)
class Painting:
    """Densities before film and noise, in parts that can be left out one by one.

    Attributes:
        base: everything that is no finding, heart and arch included where they are normal.
        markings: lung vessels and texture, which a pneumothorax takes away.
        signs: the findings in the order of their boxes.
    """

    patient: Patient
    canvas: Canvas
    base: Field
    markings: Field
    signs: list[Sign]

    def density(self, without: int | None = None) -> Field:
        """The sum of all parts, or of all but one sign."""
        total = self.base.copy()
        markings = self.markings
        for k, sign in enumerate(self.signs):
            if k == without:
                continue
            index = sign.stamp.window.index
            total[index] += sign.stamp.delta
            if sign.stamp.bare is not None:
                markings = markings.copy()
                markings[index] *= 1 - np.float32(0.95) * sign.stamp.bare
        return total + markings


def _generator(seed: int, index: int, stream: str) -> np.random.Generator:
    return np.random.default_rng((seed, index, _STREAMS.index(stream)))


def picture_size(patient: Patient, long_side: int) -> tuple[int, int]:
    """(height, width) with the patient's aspect, width over height."""
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
    """All parts of the picture at the given size."""
    canvas = patient.canvas(height, width)
    rng = _generator(seed, index, "texture")
    vessel_lines, hila = anatomy.vessels(patient, rng)
    fine = fractal_noise(rng, (height, width), (32, 84), 0.8)

    lung = canvas.mask([(outline, 1.0) for outline in patient.lung_outlines.values()], 0.012)
    # What stands before or behind the lung and takes its darkness away.
    cover = canvas.mask(
        [
            (patient.heart, 0.9),
            (patient.arch, 0.92),
            (anatomy.mediastinum_outline(patient), 1.0),
        ],
        0.014,
    )
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

    scene = Scene(canvas, patient, lung, free)
    return Painting(patient, canvas, base, markings, _draw_signs(scene, presences, seed, index))


def _soft_tissue(
    patient: Patient, canvas: Canvas, hila: list, rng: np.random.Generator
) -> tuple[Field, Field]:
    """Density of the body without lungs and bones, and the hila's mask.

    Everything here is smooth, so it is painted small and enlarged.
    """
    coarse = canvas.coarse(80)
    small = coarse.canvas
    body = small.mask([(anatomy.body_outline(patient), 1.0)], 0.035)
    gx, gy = small.grid(small.whole)
    v = gy / np.float32(patient.lung_height)
    # More tissue near the midline, in the abdomen and the shoulders, less towards the skin.
    density = np.float32(0.12) * np.exp(-np.square(gx / np.float32(0.8)))
    density += np.float32(0.56 + 0.06 * patient.habitus)
    density += np.float32(0.30) * np.clip(v - np.float32(0.80), 0, 0.25)
    density += np.float32(0.35) * np.clip(np.float32(0.16) - v, 0, 0.25)
    # The lung is deeper below; darkness that the wall's shadow does not share is not worth a mask.
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
    return coarse.enlarge(density * body), coarse.enlarge(small.mask(hila, 0.035))


def _skeleton(patient: Patient, canvas: Canvas, lung: Field, cover: Field) -> Field:
    """Density of ribs, collar bones, shoulders and spine."""
    posterior, anterior = anatomy.ribs(patient)
    bones = np.float32(0.10) * canvas.mask(posterior, 0.006)
    bones += np.float32(0.065) * canvas.mask(anterior, 0.006)
    # Behind heart, great vessels and the abdomen, ribs drown in scatter.
    bones *= np.float32(0.28) + np.float32(0.72) * lung * (1 - np.float32(0.65) * cover)
    upper = anatomy.vertebrae(patient) + anatomy.shoulder_bones(patient)
    bones += np.float32(0.125) * canvas.mask(upper + anatomy.clavicles(patient), 0.006)
    return bones * np.float32(patient.bone)


def _draw_signs(
    scene: Scene, presences: list[findings.Presence], seed: int, index: int
) -> list[Sign]:
    rng = _generator(seed, index, "lesions")
    place = Placement(scene.patient, rng)
    by_label = {p.label: p for p in presences}
    signs = []
    patient = scene.patient
    for label, outline in (("Cardiomegaly", patient.heart), ("Aortic enlargement", patient.arch)):
        if label in by_label:
            # The organ itself is the sign and part of the base already.
            window = scene.canvas.window(outline, 0.05)
            weight = scene.canvas.mask([(outline, 1.0)], 0.012, window)
            signs.append(Sign(label, Stamp(window, np.zeros_like(weight), weight)))
    for label in lesions.DRAWING_ORDER:
        if label in by_label:
            for stamp in lesions.draw_lesions(scene, rng, place, label, by_label[label].strengths):
                signs.append(Sign(label, stamp))
    return signs


def develop(
    painting: Painting, density: Field, height: int, width: int, seed: int, index: int
) -> UInt8[np.ndarray, "h w"]:
    """Densities to grey values: enlargement, the film's curve, grain, collimation, marker."""
    patient = painting.patient
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
    """A lead letter at the upper corner of the patient's side: L at the picture's right."""
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
    """Draws by lot who stands before the detector and which findings there are; no pixel yet.

    The person is the same whatever `normal` says, heart and aorta apart.
    """
    rng = _generator(seed, index, "findings")
    drawn_normal = bool(rng.random() < NORMAL_PROBABILITY)
    normal = drawn_normal if normal is None else normal
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
    """The radiograph number `index` of the series `seed`.

    The same arguments give the same bytes in any process and order. The same (seed, index) at two
    sizes is the same patient with the same findings.

    Args:
        seed, index: non-negative.
        long_side: pixels, at least 64; None draws one from `SIZES`.
        normal: True without findings, False with findings, None draws with `NORMAL_PROBABILITY`.
        conspicuity: multiplies the contrast of the lesions. At 1 many are as faint as what only
            one reader of three marks; above 1 they are plainer than on real films.

    Raises:
        ValueError: a negative seed or index, a long side below 64, no positive conspicuity.
    """
    if conspicuity <= 0:
        raise ValueError(f"conspicuity {conspicuity}: expected a positive number")
    if seed < 0 or index < 0:
        raise ValueError(f"seed {seed} and index {index} must not be negative")
    sizes = _generator(seed, index, "size")
    drawn_side = int(sizes.integers(SIZES[0], SIZES[1] + 1))
    long_side = drawn_side if long_side is None else long_side
    if long_side < SMALLEST:
        raise ValueError(f"long_side {long_side}: expected at least {SMALLEST} pixels")

    patient, presences = plan(seed, index, normal, conspicuity)
    height, width = picture_size(patient, long_side)
    painted = picture_size(patient, min(long_side, PAINTED_AT_MOST))
    painting = paint(patient, presences, seed, index, *painted)
    image = develop(painting, painting.density(), height, width, seed, index)

    labels, boxes = [], []
    for sign in painting.signs:
        box = lesion_box(sign.stamp.weight, sign.stamp.window, *painted)
        if box is not None:
            labels.append(sign.label)
            boxes.append(box)
    all_boxes = np.array(boxes, np.float32).reshape(-1, 4)
    presences = [p for p in presences if p.label in labels]
    marks = findings.read(_generator(seed, index, "readers"), presences, labels, all_boxes)
    lung_boxes = {
        name: painting.canvas.bounds(patient.lung_outlines[side]) for side, name in SIDES.items()
    }
    return Phantom(image, all_boxes, labels, marks, lung_boxes, height, width)


def _with_organs(
    patient: Patient, presences: list[findings.Presence], rng: np.random.Generator
) -> Patient:
    """The patient with heart and arch enlarged where the findings say so."""
    heart, arch = rng.random(2)
    for presence in presences:
        # 0.68 to 1.2 is the range of strengths: faint cases lie near the lower bound.
        grade = float(np.clip((presence.strengths[0] - 0.68) / 0.52, 0, 1))
        if presence.label == "Cardiomegaly":
            low, high = anatomy.ENLARGED_HEART
            ratio = low + (high - low) * (0.75 * grade + 0.25 * float(heart))
            patient = dataclasses.replace(
                patient, heart_ratio=ratio, heart_top=patient.heart_top - 0.04
            )
        elif presence.label == "Aortic enlargement":
            low, high = anatomy.ENLARGED_ARCH
            radius = low + (high - low) * (0.7 * grade + 0.3 * float(arch))
            patient = dataclasses.replace(patient, arch_radius=radius)
    return patient
