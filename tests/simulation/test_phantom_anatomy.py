"""The image is a frontal chest film: bright and dark, left and right, where they belong."""

import numpy as np
import pytest

from cxrjax.simulation import anatomy
from cxrjax.simulation.canvas import Canvas, ellipse, ribbon, spline
from cxrjax.simulation.render import image_size, plan, render_phantom

INDICES = range(12)


def crop(phantom, box):
    x0, y0, x1, y1 = np.round(np.array(box) * ([*phantom.image.shape[::-1]] * 2)).astype(int)
    return phantom.image[y0:y1, x0:x1].astype(float)


def test_lungs_are_dark_and_the_middle_is_bright():
    for index in INDICES:
        phantom = render_phantom(8, index, 224, True)
        right, left = phantom.lungs["right"], phantom.lungs["left"]
        assert right[2] <= left[0] + 0.01, "the patient's right lung is at the picture's left"
        middle = crop(phantom, (right[2], left[1] + 0.2, left[0] + 0.01, left[3]))
        for box in (right, left):
            x0, y0, x1, y1 = box
            w, h = x1 - x0, y1 - y0
            upper = crop(phantom, (x0 + 0.3 * w, y0 + 0.2 * h, x1 - 0.3 * w, y0 + 0.5 * h))
            assert np.median(upper) + 60 < np.median(middle)


def test_the_heart_is_on_the_left_and_enlarged_above_half_of_the_thorax():
    for index in INDICES:
        patient, _ = plan(8, index, True)
        x0, _, x1, _ = patient.heart_box
        assert x1 - patient.midline > 1.5 * (patient.midline - x0)
        for x in (0.3, 0.5, 0.7):
            assert patient.dome_level(anatomy.RIGHT, x) < patient.dome_level(anatomy.LEFT, x)
        assert patient.midline - 1 < patient.arch_centre[0] < x1
    enlarged = []
    for index in range(60):
        assert heart_ratio(plan(8, index, True)[0]) < 0.48
        patient, presences = plan(8, index, False)
        if "Cardiomegaly" in {p.label for p in presences}:
            enlarged.append(heart_ratio(patient))
    assert len(enlarged) > 15 and min(enlarged) > 0.5


def heart_ratio(patient: anatomy.Patient) -> float:
    lungs = np.concatenate(list(patient.lung_outlines.values()))
    return float(np.ptp(patient.heart[:, 0]) / np.ptp(lungs[:, 0]))


def test_everything_lies_on_the_film_and_ribs_fall_to_the_side():
    for index in range(60):
        patient, _ = plan(8, index, False)
        canvas = patient.canvas(*image_size(patient, 200))
        for outline in patient.lung_outlines.values():
            pixels = canvas.to_pixels(outline) / (canvas.width, canvas.height)
            assert pixels.min() > -0.06 and pixels.max() < 1.06
    patient, _ = plan(8, 0, True)
    posterior, anterior = anatomy.ribs(patient)
    for parts, inwards in ((posterior, False), (anterior, True)):
        for band, _ in parts:
            half = len(band) // 2
            line = (band[:half] + band[: half - 1 : -1]) / 2  # the middle of the band
            assert line[-1, 1] > line[0, 1], "from the spine on, a rib only falls"
            outwards = abs(line[-1, 0]) > abs(line[0, 0])
            assert outwards != inwards


def test_canvas_maps_points_and_pixels_and_a_coarse_one_the_same_place():
    canvas = Canvas(height=90, width=70, scale=31.0, origin_x=33.0, origin_y=20.0, tilt=0.1)
    window = slice(10, 60), slice(5, 40)
    x, y = canvas.grid(window)
    pixels = canvas.to_pixels(np.stack([x.ravel(), y.ravel()], axis=1)).reshape(50, 35, 2)
    np.testing.assert_allclose(pixels[..., 0], np.tile(np.arange(5, 40) + 0.5, (50, 1)), atol=1e-3)
    np.testing.assert_allclose(pixels[3, :, 1], 13.5, atol=1e-3)
    canvas = Canvas(223, 190, 60.0, 95.0, 80.0, 0.1)
    coarse, enlarge = canvas.coarse(80)
    assert (coarse.height, coarse.width) == (75, 64)
    shape = [(ellipse(0.2, 0.4, 0.7, 0.6), 1.0)]
    fine, enlarged = canvas.mask(shape, 0.05), enlarge(coarse.mask(shape, 0.05))
    assert enlarged.shape == fine.shape
    assert np.abs(fine - enlarged).mean() < 0.01


@pytest.mark.parametrize("size", [100, 600])
def test_a_mask_has_the_area_of_its_shape(size):
    canvas = Canvas(size, size, size / 4, size / 2, size / 2, 0.3)
    disc = canvas.mask([(ellipse(0.3, -0.2, 0.8, 0.5, 0.4), 1.0)], blur=0.02)
    assert disc.sum() / canvas.scale**2 == pytest.approx(np.pi * 0.4, rel=0.04)
    rows, columns = np.nonzero(disc > 0.5)
    centre = canvas.to_pixels(np.array([[0.3, -0.2]]))[0]
    np.testing.assert_allclose([columns.mean() + 0.5, rows.mean() + 0.5], centre, atol=0.7)


def test_splines_and_ribbons():
    square = np.array([(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)])
    curve = spline(square)
    np.testing.assert_allclose(curve[[0, -1]], square[[0, -1]])
    assert len(spline(square, closed=True, samples=5)) == 20
    band = ribbon(np.array([(0.0, 0.0), (1.0, 0.0), (2.0, 0.0)]), 0.5)
    np.testing.assert_allclose(np.abs(band[:, 1]), 0.25)
    both = ribbon(np.stack([square, square + 1]), 0.2)
    np.testing.assert_allclose(both[1], ribbon(square + 1, 0.2))
