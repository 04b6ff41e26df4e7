"""From (seed, index) to a picture: patient, findings, densities, film."""

import dataclasses

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from cxrjax.datasets.phantom import anatomy, findings, lesions, readers
from cxrjax.datasets.phantom.anatomy import LEFT, RIGHT, SIDES, Patient
from cxrjax.datasets.phantom.canvas import Canvas, Window, ellipse
from cxrjax.datasets.phantom.texture import fractal_noise, smooth_noise

Field = Float[np.ndarray, "h w"]

# The share of normal pictures in VinDr-CXR's training set.
NORMAL_PROBABILITY = findings.NORMAL_IMAGES / (findings.NORMAL_IMAGES + findings.ABNORMAL_IMAGES)
SIZES = (700, 3000)  # long sides that `long_side=None` draws from
SMALLEST = 64
# Larger pictures are painted at this size and enlarged; a detector is no sharper.
_PAINTED_AT_MOST = 1024
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
    readers: dict[str, list[readers.ReaderFinding]]
    lungs: dict[str, Float[np.ndarray, "4"]]
    height: int
    width: int


@dataclasses.dataclass(frozen=True)
class Sign:
    """A finding as painted: its class and what it adds to the picture."""

    label: str
    stamp: lesions.Stamp


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
    lungs: dict[int, Field]
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
    mask = canvas.mask
    lungs = {side: mask([(outline, 1.0)], 0.012) for side, outline in patient.lung_outlines.items()}
    lung = np.maximum(lungs[RIGHT], lungs[LEFT])

    centre = mask([(anatomy.mediastinum_outline(patient), 1.0)], 0.025)
    heart = mask([(patient.heart, 1.0)], 0.014)
    arch = mask([(patient.arch, 1.0)], 0.012)
    hilum_rng_lines, hila = anatomy.vessels(patient, rng)
    hilar = mask(hila, 0.035)
    cover = 1 - (1 - centre) * (1 - np.float32(0.9) * heart) * (1 - np.float32(0.92) * arch)
    free = lung * (1 - cover)

    gx, gy = canvas.grid(canvas.whole)
    body = mask([(anatomy.body_outline(patient), 1.0)], 0.035)
    base = np.float32(0.60 + 0.05 * patient.habitus) * body
    # More tissue near the midline and below, less towards the skin.
    base += np.float32(0.10) * body * np.exp(-np.square(gx / np.float32(0.9)))
    v = gy / np.float32(patient.lung_height)
    base += np.float32(0.08) * body * np.clip(v - np.float32(0.75), 0, 0.5)
    base += np.float32(0.05) * body * np.clip(np.float32(0.12) - v, 0, 0.4)

    # Heavier patients scatter more: less contrast between lung and wall.
    depth = np.float32(0.44 - 0.05 * patient.habitus)
    gradient = 1 + np.float32(0.14) * np.clip(v - np.float32(0.5), -0.5, 0.4)
    base -= depth * lung * gradient * (1 - np.float32(0.86) * cover)
    base += np.float32(0.05) * cover + np.float32(0.05) * centre

    spine = mask(anatomy.vertebrae(patient), 0.006)
    base += np.float32(0.055 * patient.bone) * spine
    air = mask(anatomy.airway(patient), 0.014)
    base -= np.float32(0.09) * air * body

    posterior, anterior = anatomy.rib_ribbons(patient)
    bone = np.float32(0.125 * patient.bone)
    ribs = mask(posterior, 0.007)
    base += bone * ribs * (1 - np.float32(0.55) * cover) * body
    base += np.float32(0.72) * bone * mask(anterior, 0.007) * (1 - np.float32(0.5) * cover)
    base += np.float32(0.13 * patient.bone) * mask(anatomy.clavicles(patient), 0.006)
    base += np.float32(0.12 * patient.bone) * mask(anatomy.shoulder_bones(patient), 0.010) * body

    gas_x, gas_rx, gas_ry = patient.stomach
    gas_y = patient.dome_level(LEFT, gas_x) + 0.07 + gas_ry
    gas = mask([(ellipse(gas_x, gas_y, gas_rx, gas_ry), 1.0)], 0.02)
    base -= np.float32(0.17) * gas

    if patient.female:
        breasts = [
            (ellipse(side * 0.58, 0.74 * patient.lung_height, 0.46, 0.36), 1.0)
            for side in (RIGHT, LEFT)
        ]
        base += np.float32(0.05 + 0.03 * patient.habitus) * mask(breasts, 0.03)

    vessel = canvas.strokes(hilum_rng_lines, 0.006)
    fine = fractal_noise(rng, (height, width), (24, 48, 90), 0.75)
    markings = (np.float32(0.15) * vessel + np.float32(0.13) * hilar) * free
    markings += np.float32(0.014) * fine * free
    base += np.float32(0.02) * smooth_noise(rng, (height, width), 7, 7) * body

    scene = lesions.Scene(canvas, patient, lungs, free)
    signs = _draw_signs(
        scene, presences, seed, index, {"Cardiomegaly": heart, "Aortic enlargement": arch}
    )
    return Painting(patient, canvas, base, markings, lungs, signs)


def _draw_signs(
    scene: lesions.Scene,
    presences: list[findings.Presence],
    seed: int,
    index: int,
    organs: dict[str, Field],
) -> list[Sign]:
    rng = _generator(seed, index, "lesions")
    place = lesions.Placement()
    by_label = {p.label: p for p in presences}
    signs = []
    whole = scene.canvas.whole
    for label, weight in organs.items():
        if label in by_label:
            # The organ itself is the sign and part of the base already.
            signs.append(Sign(label, lesions.Stamp(whole, np.zeros_like(weight), weight)))
    for label in lesions.DRAWING_ORDER:
        if label in by_label:
            for stamp in lesions.draw_lesions(scene, rng, place, label, by_label[label].strengths):
                signs.append(Sign(label, stamp))
    return signs


def develop(painting: Painting, density: Field, height: int, width: int, seed: int, index: int):
    """Densities to grey values: enlargement, the film's curve, grain, collimation, marker."""
    patient = painting.patient
    if density.shape != (height, width):
        image = Image.fromarray(density).resize((width, height), Image.Resampling.BICUBIC)
        density = np.asarray(image)
    rng = _generator(seed, index, "grain")
    # The film's S-curve around the middle of the range.
    x = (density - np.float32(0.50)) * np.float32(patient.contrast * 3.9)
    x += np.float32(4 * patient.exposure)
    value = 1 / (1 + np.exp(-x))
    value = np.float32(0.02) + np.float32(0.96) * value
    grain = rng.standard_normal((height, width), dtype=np.float32)
    value += grain * (np.float32(0.008) + np.float32(0.012) * value)
    return np.clip(value * 255 + np.float32(0.5), 0, 255).astype(np.uint8)


def render_phantom(
    seed: int, index: int, long_side: int | None = None, normal: bool | None = None
) -> Phantom:
    """The radiograph number `index` of the series `seed`.

    The same arguments give the same bytes in any process and order. The same (seed, index) at two
    sizes is the same patient with the same findings.

    Args:
        seed, index: non-negative.
        long_side: pixels, at least 64; None draws one from `SIZES`.
        normal: True without findings, False with findings, None draws with `NORMAL_PROBABILITY`.

    Raises:
        ValueError: a negative seed or index, or a long side below 64.
    """
    if seed < 0 or index < 0:
        raise ValueError(f"seed {seed} and index {index} must not be negative")
    sizes = _generator(seed, index, "size")
    drawn_side = int(sizes.integers(SIZES[0], SIZES[1] + 1))
    long_side = drawn_side if long_side is None else long_side
    if long_side < SMALLEST:
        raise ValueError(f"long_side {long_side}: expected at least {SMALLEST} pixels")

    rng = _generator(seed, index, "findings")
    drawn_normal = bool(rng.random() < NORMAL_PROBABILITY)
    normal = drawn_normal if normal is None else normal
    presences = [] if normal else findings.draw_presences(rng)
    patient = _with_organs(anatomy.draw_patient(_generator(seed, index, "patient")), presences, rng)

    height, width = picture_size(patient, long_side)
    painted = picture_size(patient, min(long_side, _PAINTED_AT_MOST))
    painting = paint(patient, presences, seed, index, *painted)
    image = develop(painting, painting.density(), height, width, seed, index)

    labels, boxes = [], []
    for sign in painting.signs:
        box = lesions.lesion_box(sign.stamp.weight, sign.stamp.window, *painted)
        if box is not None:
            labels.append(sign.label)
            boxes.append(box)
    all_boxes = np.array(boxes, np.float32).reshape(-1, 4)
    presences = [p for p in presences if p.label in labels]
    marks = readers.read(_generator(seed, index, "readers"), presences, labels, all_boxes)
    lung_boxes = {}
    for side, name in SIDES.items():
        whole = Window(0, painted[0], 0, painted[1])
        box = lesions.lesion_box(painting.lungs[side], whole, *painted)
        if box is None:
            raise AssertionError("a lung outside the picture")
        lung_boxes[name] = box
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
