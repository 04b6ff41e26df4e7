import subprocess
import sys
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pycocotools import mask as coco_mask

from cxrjax import boxes as bx

# A busy machine or a compilation is no failure.

MEASURES = [bx.iou, bx.giou]

TARGET = [0.3, 0.2, 0.7, 0.8]
# Prediction against TARGET, and whether a GIoU loss has to find a way down from it.
PREDICTIONS: dict[str, tuple[list[float], bool]] = {
    "identical": (TARGET, False),
    "disjoint": ([0.0, 0.0, 0.1, 0.1], True),
    "touching": ([0.7, 0.2, 0.9, 0.8], True),
    "touching at a corner": ([0.7, 0.8, 0.9, 0.9], True),
    "overlapping": ([0.2, 0.1, 0.5, 0.5], True),
    "inside": ([0.4, 0.4, 0.5, 0.5], True),
    "around": ([0.1, 0.1, 0.9, 0.9], True),
    "inside, sharing an edge": ([0.3, 0.3, 0.5, 0.5], True),
    "a vertical line inside": ([0.5, 0.3, 0.5, 0.7], True),
    "a horizontal line inside": ([0.4, 0.5, 0.6, 0.5], True),
    "a line apart": ([0.9, 0.3, 0.9, 0.7], True),
    "a point apart": ([0.9, 0.9, 0.9, 0.9], True),
    "a point inside": ([0.5, 0.5, 0.5, 0.5], False),
    "a point on the corner": ([0.3, 0.2, 0.3, 0.2], False),
    "identical, swapped": ([0.7, 0.8, 0.3, 0.2], False),
    "x swapped": ([0.6, 0.1, 0.2, 0.5], True),
    "both swapped": ([0.5, 0.5, 0.2, 0.1], True),
    "swapped apart": ([0.1, 0.1, 0.0, 0.0], True),
    "a hair wide": ([0.5, 0.3, 0.5 + 2**-24, 0.7], True),
    "far away": ([100, 100, 104, 104], True),
}

# Multiples of 1/64 meet often: shared edges, flat boxes and nested ones are common.
coordinate = st.one_of(
    st.integers(0, 64).map(lambda k: k / 64), st.floats(0, 1, width=32, allow_subnormal=False)
)
corners = st.tuples(coordinate, coordinate, coordinate, coordinate)
pairs = st.tuples(corners, corners)


def box(values):
    return np.array(values, np.float64)


def exact_area(corners):
    return (corners[2] - corners[0]) * (corners[3] - corners[1])


def exact(a, b):
    """IoU and GIoU in rational numbers, from the definition by areas; None where undefined."""
    a, b = ([Fraction(float(v)) for v in box_] for box_ in (a, b))
    a, b = ([min(c[0], c[2]), min(c[1], c[3]), max(c[0], c[2]), max(c[1], c[3])] for c in (a, b))
    shared = [max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])]
    overlap = exact_area(shared) if shared[0] < shared[2] and shared[1] < shared[3] else Fraction()
    union = exact_area(a) + exact_area(b) - overlap
    hull = exact_area([min(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3])])
    iou = overlap / union if union > bx.MIN_AREA else Fraction()
    giou = iou - (hull - union) / hull if hull > bx.MIN_AREA else iou
    return iou, giou


@pytest.mark.parametrize("namespace", [np, jnp], ids=["numpy", "jax"])
def test_values_by_hand_of_boxes_pairs_and_nan(namespace):
    for *both, iou, giou in (
        ([0, 0, 2, 2], [1, 1, 3, 3], 1 / 7, 1 / 7 - 2 / 9),
        ([0, 0, 1, 1], [2, 0, 3, 1], 0, -1 / 3),
        ([0, 0, 4, 4], [1, 1, 3, 3], 1 / 4, 1 / 4),
        ([0, 0, 1, 1], [1, 0, 2, 1], 0, 0),
        ([5, 5, 9, 7], [5, 5, 9, 7], 1, 1),
    ):
        a, b = (namespace.array(one, np.float32) for one in both)
        np.testing.assert_allclose(bx.iou(a, b), iou, atol=1e-6)
        np.testing.assert_allclose(bx.giou(a, b), giou, atol=1e-6)
    rng = np.random.default_rng(0)
    a, b = rng.random((3, 4), np.float32), rng.random((5, 4), np.float32)
    expected = [[bx.iou(one, other) for other in b] for one in a]
    table = bx.pairwise_iou(namespace.asarray(a), namespace.asarray(b))
    np.testing.assert_allclose(table, np.array(expected), atol=1e-6)
    for n, m in ((0, 5), (3, 0), (0, 0)):
        assert bx.pairwise_iou(a[:n], b[:m]).shape == (n, m)
    bad, good = namespace.array([np.nan, 0, 1, 1]), namespace.array([0, 0, 1, 1])
    for measure in MEASURES:
        assert np.isnan(measure(bad, good)) and np.isnan(measure(good, bad))


@given(pairs)
@example(((0, 0, 0, 0), (0, 0, 0, 0)))
@example(((0.5, 0, 0.5, 1), (0.5, 0, 0.5, 1)))
@example(((0, 0, 1e-6, 1e-6), (0, 0, 1e-6, 1e-6)))
def test_equals_rational_arithmetic(pair):
    iou, giou = exact(*pair)
    a, b = map(box, pair)
    np.testing.assert_allclose(bx.iou(a, b), float(iou), atol=1e-9)
    np.testing.assert_allclose(bx.giou(a, b), float(giou), atol=1e-9)


@given(hnp.arrays(np.float64, (2, 5, 4), elements=st.integers(0, 3000)))
def test_equals_pycocotools(pixels):
    pixels = bx.canonical(pixels)
    pixels[..., 2:] += 1  # pycocotools divides zero by zero for two flat boxes
    a, b = pixels

    as_xywh = (np.concatenate([c[:, :2], c[:, 2:] - c[:, :2]], axis=1) for c in (a, b))
    expected = coco_mask.iou(*as_xywh, [0] * len(b))
    np.testing.assert_allclose(bx.pairwise_iou(a, b), expected, atol=1e-12)


@jax.jit
def _compiled(a, b):
    return bx.iou(a, b), bx.giou(a, b)


@given(pairs)
def test_bounds_symmetry_and_order_and_compiled_code_equals_numpy(pair):
    for dtype in (np.float32, np.float64):
        a, b = (np.array(c, dtype) for c in pair)
        iou, giou = bx.iou(a, b), bx.giou(a, b)
        assert 0 <= iou <= 1 and -1 <= giou <= iou
        assert (iou, giou) == (bx.iou(b, a), bx.giou(b, a))
    a, b = (np.array(c, np.float32) for c in pair)
    iou, giou = _compiled(jnp.asarray(a), jnp.asarray(b))
    assert 0 <= iou <= 1 and -1 <= giou <= iou
    np.testing.assert_allclose((iou, giou), (bx.iou(a, b), bx.giou(a, b)), atol=2e-6)


@given(pairs, st.sampled_from([2.0**-5, 0.5, 3.0, 2048.0]), st.sampled_from([0.25, 1.0, 512.0]))
def test_unit_and_place_do_not_matter(pair, scale_x, scale_y):
    a, b = map(box, pair)
    if max(bx.area(a), bx.area(b)) < 1e-6:  # down there a change of unit crosses MIN_AREA
        return
    scale = np.array([scale_x, scale_y] * 2)
    for measure in MEASURES:
        expected = measure(a, b)
        np.testing.assert_allclose(measure(a * scale, b * scale), expected, atol=1e-9)
        np.testing.assert_allclose(measure(a + 1, b + 1), expected, atol=1e-6)


@given(pairs)
def test_corner_order_does_not_matter_and_gradients_are_finite(pair):
    a, b = map(box, pair)
    for measure in MEASURES:
        for order in ([2, 1, 0, 3], [0, 3, 2, 1], [2, 3, 0, 1]):
            assert measure(a[order], b) == measure(a, b)
    assert (bx.canonical(a)[:2] <= bx.canonical(a)[2:]).all()
    np.testing.assert_array_equal(np.sort(bx.canonical(a)), np.sort(a))
    a, b = (jnp.array(c, jnp.float32) for c in pair)
    for scale in (1, 1e9, 1e-9):
        for gradient in _gradients(a * scale, b * scale):
            assert np.isfinite(np.asarray(gradient)).all()


def test_leading_axes_broadcast_and_wrong_shapes_are_refused():
    a, b = np.random.default_rng(0).random((2, 1, 3, 4)), np.array([0.1, 0.2, 0.6, 0.5])
    assert bx.iou(a, b).shape == bx.giou(a, b).shape == (2, 1, 3)
    assert bx.area(a).shape == (2, 1, 3)
    assert bx.area(b) == pytest.approx(0.15)
    # TypeError: from the run-time shape check, where that is on.
    for function in (bx.area, bx.canonical):
        with pytest.raises((ValueError, TypeError)):
            function(np.zeros((4, 3)))
    for measure in MEASURES:
        with pytest.raises((ValueError, TypeError)):
            measure(np.zeros((2, 4)), np.zeros((2, 5)))


@pytest.mark.parametrize("flat", [[0.5, 0.5, 0.5, 0.5], [0.5, 0.1, 0.5, 0.9]])
def test_a_box_without_area_overlaps_nothing(flat):
    flat = np.array(flat, np.float32)
    for other in (flat, np.array([0, 0, 1, 1], np.float32), np.array([0.5, 0.5, 1, 1], np.float32)):
        assert bx.iou(flat, other) == 0
        assert -1 <= bx.giou(flat, other) <= 0
    assert bx.giou(flat, flat) == 0


def test_dtypes_and_numpy_users_do_not_import_jax():
    a, b = np.array([0, 0, 200, 200]), np.array([100, 100, 250, 250])
    assert bx.iou(a.astype(np.uint8), b.astype(np.uint8)) == pytest.approx(bx.iou(a, b))
    assert bx.iou(a, b).dtype == np.float64
    assert bx.iou(a.astype(np.float16), b.astype(np.float32)).dtype == np.float32
    half = jnp.array(b, jnp.bfloat16)
    assert bx.giou(half, a.astype(np.float32)).dtype == jnp.float32
    assert isinstance(bx.iou(jnp.array(a), b), jax.Array)
    assert isinstance(bx.canonical(half), jax.Array)
    assert bx.canonical(half).dtype == jnp.bfloat16
    code = (
        "import sys, numpy as np; from cxrjax.boxes import giou; "
        "giou(np.zeros((1, 4)), np.ones((1, 4))); sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _eager_gradients(a, b):
    """Of IoU with respect to a and b, then of GIoU."""
    return [g for m in MEASURES for g in jax.grad(m, argnums=(0, 1))(a, b)]


_gradients = jax.jit(_eager_gradients)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_gradients_are_finite_and_lead_somewhere(dtype):
    predictions = jnp.array([values for values, _ in PREDICTIONS.values()], dtype)
    target = jnp.array(TARGET, jnp.float32)
    all_gradients = jax.jit(jax.vmap(_gradients, (0, None)))(predictions, target)
    for gradients in all_gradients:
        assert jnp.isfinite(gradients).all(), dict(zip(PREDICTIONS, gradients, strict=True))
    if dtype == "float32":
        slopes = all_gradients[2]
        # Far enough for float32 to tell, near enough to stay on the slope.
        sizes = 1e-3 * jnp.maximum(1, jnp.abs(predictions).max(1)) / jnp.abs(slopes).max(1)
        before, after = predictions, predictions + sizes[:, None] * slopes
        gains = bx.giou(after, target) - bx.giou(before, target)
        for (name, (_, must_lead)), gain in zip(PREDICTIONS.items(), gains, strict=True):
            assert gain > 0 or not must_lead, name


def test_flat_boxes_grow_the_right_way_however_compiled():
    slope = _gradients(jnp.array([0.5, 0.3, 0.5, 0.7]), jnp.array(TARGET))[2]
    assert slope[0] < 0 < slope[2]
    target = jnp.array(TARGET)
    for name in ("overlapping", "a vertical line inside", "x swapped"):
        prediction = jnp.array(PREDICTIONS[name][0])
        compiled, eager = _gradients(prediction, target), _eager_gradients(prediction, target)
        for one, other in zip(compiled, eager, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    "a", [[0.5] * 4, [0.5, 0.1, 0.5, 0.9], [2**-11, 0, 2**-11 + 2**-35, 2**-35]]
)
def test_gradients_of_nothing_against_nothing_are_finite(a):
    a = jnp.array(a, jnp.float32)
    for b in (a, a + 2.0**-11, a.at[0].add(-(2.0**-20))):
        assert all(jnp.isfinite(value) for value in _compiled(a, b))
        assert all(jnp.isfinite(gradient).all() for gradient in _gradients(a, b))


@given(pairs)
def test_gradients_equal_finite_differences(pair):
    a, b = map(box, pair)
    edges = np.concatenate([a.reshape(2, 2), b.reshape(2, 2)])
    gaps = np.abs(edges[:, None] - edges[None])[np.triu_indices(4, 1)]
    if gaps.min() < 2e-2:  # a kink nearby
        return
    gradient = _gradients(jnp.array(a, jnp.float32), jnp.array(b, jnp.float32))[2]
    step = 1e-6
    for k in range(4):
        moved = step * np.eye(4)[k]
        expected = (bx.giou(a + moved, b) - bx.giou(a - moved, b)) / (2 * step)
        np.testing.assert_allclose(gradient[k], expected, rtol=2e-3, atol=2e-4)


def test_descent_from_anywhere_ends_at_the_target():
    starts = jnp.array([v for v, must_lead in PREDICTIONS.values() if must_lead and max(v) <= 1])
    target = jnp.array(TARGET)

    @jax.jit
    def descend(prediction):
        def step(i, prediction):
            rate = 0.02 * (1 - i / 3000)
            return prediction + rate * 0.1 * jnp.sign(jax.grad(bx.giou)(prediction, target))

        return jax.lax.fori_loop(0, 3000, step, prediction)

    final = jax.vmap(lambda p: bx.giou(descend(p), target))(starts)
    assert (final > 0.95).all(), dict(zip(PREDICTIONS, final, strict=False))
