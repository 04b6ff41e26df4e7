"""The box loss: one optimum, and what is told of boxes has none of its symmetries."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cxrjax import boxes
from cxrjax.training import box_loss as loss
from cxrjax.training.box_loss import box_loss, coordinates_of_bins

CENTERS = (np.arange(1024) + 0.5) / 1024
SWAPS = [(2, 1, 0, 3), (0, 3, 2, 1), (2, 3, 0, 1)]

coordinate = st.floats(0, 1, allow_subnormal=False)
bins = st.integers(0, 1023)


@st.composite
def true_boxes(draw, smallest=0.03):
    """xyxy in order, no side shorter than `smallest`."""
    low = [draw(st.floats(0, 1 - smallest, allow_subnormal=False)) for _ in range(2)]
    high = [draw(st.floats(x + smallest, 1, allow_subnormal=False)) for x in low]
    return np.array(low + high, np.float32)


def point_loss(predicted, target):
    """The whole loss of a distribution that is a point."""
    away, sure = jnp.abs(predicted - target), jnp.zeros_like(predicted)
    found = loss.Coordinates(predicted, away, away <= loss.NEAR, sure, predicted, predicted)
    return box_loss(found, target)


cost = jax.jit(point_loss)
ordered_cost = jax.jit(loss.ordered_giou_loss)
iou = jax.jit(boxes.iou)


value_and_slope = jax.jit(jax.value_and_grad(point_loss))


@jax.jit
def cost_of(probability, target):
    return box_loss(coordinates_of_bins(jnp.log(probability + 1e-30), target), target)


@jax.jit
def _descend(start, target):
    """Where sixteen boxes end, none of which sees another."""
    optimizer = optax.adam(optax.linear_schedule(4e-3, 0, 4000))

    def step(carry, _):
        at, state = carry
        slope = jax.grad(lambda x: jnp.sum(point_loss(x, target)))(at)
        updates, state = optimizer.update(slope, state)
        return (jnp.clip(at + updates, 0, 1), state), None

    return jax.lax.scan(step, (start, optimizer.init(start)), length=4000)[0][0]


@settings(max_examples=4)
@given(st.lists(st.tuples(st.tuples(*[coordinate] * 4), true_boxes()), min_size=16, max_size=16))
def test_descent_from_any_start_ends_at_the_target_with_corners_in_order(pairs):
    start, target = (jnp.asarray(part, jnp.float32) for part in zip(*pairs, strict=True))
    np.testing.assert_allclose(_descend(start, target), target, atol=1e-2)


def test_descent_from_the_target_s_own_edges_swapped():
    target = np.array([0.162, 0.3, 0.329, 0.55], np.float32)
    start = np.resize(target[np.array(SWAPS)], (16, 4))
    target = np.resize(target, (16, 4))
    np.testing.assert_allclose(_descend(start, target), target, atol=1e-2)


@given(target=true_boxes(), other=true_boxes(), order=st.sampled_from(SWAPS))
def test_the_target_with_swapped_corners_costs_more_than_any_box_beside_it(target, other, order):
    if iou(other, target) > 0:
        low = 0.5 if target[0] < 0.5 else 0.0  # somewhere beside it
        other = np.array([low, 0.1, low + 0.02, 0.2], np.float32)
        assume(iou(other, target) == 0)
    swapped = target[list(order)]
    assert ordered_cost(swapped, target) > ordered_cost(other, target)
    # The distance from the target costs besides, whatever the order.
    if np.abs(other - target).sum() <= np.abs(swapped - target).sum():
        assert cost(swapped, target) > cost(other, target)


@given(predicted=st.tuples(*[coordinate] * 4), target=st.tuples(*[coordinate] * 4))
def test_gradients_are_finite_for_any_boxes(predicted, target):
    low, high = np.sort(np.reshape(target, (2, 2)), axis=0)
    target = np.concatenate([low, high]).astype(np.float32)
    value, slope = value_and_slope(np.array(predicted, np.float32), target)
    assert np.isfinite(value) and np.all(np.isfinite(slope))


def gated_loss(logits, target, window):
    found, weight = loss.local_coordinates(logits, target, window)
    return weight * box_loss(found, target)


gated_cost = jax.jit(gated_loss)
gated_slope = jax.jit(jax.grad(gated_loss))


def _losses(logits, target_bins, lambda_box, window):
    """Cross-entropy plus lambda times the box loss of four free distributions [4, 1024]."""
    target = (target_bins + 0.5) / 1024
    ce = -jnp.sum(jnp.take_along_axis(jax.nn.log_softmax(logits), target_bins[:, None], axis=-1))
    if window:
        return ce + lambda_box * gated_loss(logits, target, window)
    return ce + lambda_box * box_loss(coordinates_of_bins(logits, target), target)


@functools.partial(jax.jit, static_argnames=("window", "steps"))
def _fit(logits, target_bins, lambda_box, window, steps=1500):
    optimizer = optax.adam(0.1)

    def step(carry, _):
        logits, state = carry
        slope = jax.grad(_losses)(logits, target_bins, lambda_box, window)
        updates, state = optimizer.update(slope, state)
        return (logits + updates, state), None

    return jax.lax.scan(step, (logits, optimizer.init(logits)), length=steps)[0][0]


@settings(max_examples=8)
@given(
    seed=st.integers(0, 2**16),
    lambda_box=st.sampled_from([0.0, 0.5, 2.0, 10.0]),
    window=st.sampled_from([0.0, 0.1]),
    corners=st.tuples(st.integers(0, 1000), st.integers(0, 1000)),
    size=st.tuples(st.integers(4, 500), st.integers(4, 500)),
)
def test_free_distributions_end_as_points_on_the_right_bins(
    seed, lambda_box, window, corners, size
):
    high = np.minimum(np.add(corners, size), 1023)
    target = jnp.asarray([*corners, *high])
    start = 3 * jax.random.normal(jax.random.key(seed), (4, 1024))
    probability = jax.nn.softmax(_fit(start, target, lambda_box, window))
    assert np.all(np.asarray(probability)[np.arange(4), np.asarray(target)] > 0.99)


@given(
    target=true_boxes(),
    masses=st.lists(st.tuples(bins, st.floats(0.01, 1)), min_size=1, max_size=4),
    which=st.integers(0, 3),
)
def test_no_other_distribution_costs_as_little_as_the_point(target, masses, which):
    target_bins = np.minimum((target * 1024).astype(int), 1023)
    target = jnp.asarray(CENTERS[target_bins], jnp.float32)
    probability = np.zeros((4, 1024))
    probability[np.arange(4), target_bins] = 1
    at_point = cost_of(probability, target)
    probability[which] = 0
    for place, mass in masses:
        probability[which, place] += mass
    probability[which] /= probability[which].sum()
    np.testing.assert_allclose(at_point, 0, atol=1e-4)
    if probability[which, target_bins[which]] < 0.999:
        assert cost_of(probability, target) > at_point


WINDOW = 0.1
moves = st.tuples(*[st.floats(0.3, 0.5)] * 4)


def two_places(target, moved, share):
    """Logits with `share` of each coordinate's mass beyond the window; both are two bins wide."""
    other = np.where(target < 0.5, target + np.array(moved), target - np.array(moved))
    places = np.exp(-0.5 * ((CENTERS - np.stack([target, other])[..., None]) * 512) ** 2)
    places /= places.sum(-1, keepdims=True)
    mixed = (1 - share) * places[0] + share * places[1]
    return jnp.asarray(np.log(mixed + 1e-12), jnp.float32)


@given(target=true_boxes(), moved=moves, share=st.floats(0.02, 0.98))
def test_a_window_sees_the_target_s_lesion_alone(target, moved, share):
    """Its cost is the whole loss of that lesion, weighed by how much the model means it."""
    logits = two_places(target, moved, share)
    whole = box_loss(coordinates_of_bins(two_places(target, moved, 0.0), target), target)
    cost = gated_cost(logits, target, WINDOW)
    np.testing.assert_allclose(cost, (1 - share) ** 4 * whole, rtol=0.03, atol=1e-3)
    slope = np.asarray(gated_slope(logits, target, WINDOW))
    assert not slope[np.abs(CENTERS - target[:, None]) > WINDOW + 0.02].any()
    # Nothing enters or leaves the window: that is the cross-entropy's.
    np.testing.assert_allclose(slope.sum(-1), 0, atol=1e-5)


@given(target=true_boxes(), moved=moves, which=st.integers(0, 4))
def test_a_box_on_another_lesion_has_cross_entropy_alone(target, moved, which):
    """All of its coordinates, or one."""
    share = np.ones(4) if which == 4 else np.eye(4)[which]
    logits = two_places(target, moved, share[:, None])
    assert gated_cost(logits, target, WINDOW) < 1e-6
    assert np.abs(gated_slope(logits, target, WINDOW)).max() < 1e-6


@given(target=true_boxes(smallest=0.45), seed=st.integers(0, 2**16), width=st.floats(1, 40))
def test_within_the_window_spread_costs_and_corners_keep_their_order(target, seed, width):
    noise = np.random.default_rng(seed).normal(size=(4, 1024))
    away = (CENTERS - target[:, None]) * 1024 / width
    narrow, wide, free = (
        loss.local_coordinates(jnp.asarray(logits, jnp.float32), target, WINDOW)[0]
        for logits in (-2 * away**2, -0.5 * away**2 + 0.01 * noise, 3 * noise)
    )
    assert box_loss(wide, target) >= box_loss(narrow, target) - 1e-4
    assert np.all(np.asarray(free.expected[:2]) < np.asarray(free.expected[2:]))


def test_what_is_told_of_bins_equals_numpy():
    rng = np.random.default_rng(0)
    logits, target = 2 * rng.normal(size=(3, 4, 1024)), rng.random((3, 4))
    with jax.enable_x64(True):
        found = coordinates_of_bins(jnp.asarray(logits), jnp.asarray(target))
    probability = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for at in np.ndindex(3, 4):
        p, away = probability[at], np.abs(CENTERS - target[at])
        mean = p @ CENTERS
        np.testing.assert_allclose(found.expected[at], mean, rtol=1e-6)
        np.testing.assert_allclose(found.distance[at], p @ away, rtol=1e-6)
        np.testing.assert_allclose(found.near[at], p[away <= loss.NEAR].sum(), rtol=1e-4)
        np.testing.assert_allclose(found.spread[at], np.sqrt(p @ (CENTERS - mean) ** 2), rtol=1e-6)
        np.testing.assert_allclose(found.likeliest[at], CENTERS[p.argmax()])
        np.testing.assert_allclose(found.median[at], CENTERS[np.searchsorted(p.cumsum(), 0.5)])


def test_what_is_told_of_digits_equals_drawing_them():
    """Places independent of each other, as they are under teacher forcing."""
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(1, 4, 3, 10))
    written = rng.integers(0, 10, (1, 4, 3))
    places = np.tile([100.0, 10.0, 1.0], (1, 4, 1))
    places[0, 3] = [10.0, 1.0, 0.0]  # a number of two digits
    scale, offset = np.full((1, 4), 1 / 900), np.full((1, 4), 0.02)
    with jax.enable_x64(True):
        found = loss.coordinates_of_digits(
            *map(jnp.asarray, (logits, written, places, scale, offset))
        )
    probability = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for c in range(4):
        drawn = np.stack(
            [rng.choice(10, 400_000, p=probability[0, c, d]) for d in range(3)], axis=-1
        )
        numbers = drawn @ places[0, c] / 900 + 0.02
        away = np.abs(drawn - written[0, c]) * places[0, c] / 900
        np.testing.assert_allclose(found.expected[0, c], numbers.mean(), rtol=1e-2)
        np.testing.assert_allclose(found.spread[0, c], numbers.std(), rtol=1e-2)
        np.testing.assert_allclose(found.distance[0, c], away.sum(-1).mean(), rtol=1e-2)
        near = (away <= loss.NEAR).all(-1).mean()
        np.testing.assert_allclose(found.near[0, c], near, atol=1e-2)
    digits = probability.argmax(-1)
    np.testing.assert_allclose(found.likeliest, (digits * places).sum(-1) / 900 + 0.02)


def test_right_digits_that_are_certain_cost_nothing_and_swapped_ones_do():
    written = np.array([[[1, 6, 2], [3, 0, 0], [3, 2, 9], [5, 5, 0]]])
    places = np.tile([100.0, 10.0, 1.0], (1, 4, 1))
    scale, offset = np.full((1, 4), 1e-3), np.zeros((1, 4))
    target = jnp.asarray([[0.162, 0.3, 0.329, 0.55]])

    def cost_of_digits(digits):
        logits = 50.0 * np.eye(10)[digits]
        found = loss.coordinates_of_digits(
            *map(jnp.asarray, (logits, written, places, scale, offset))
        )
        return float(box_loss(found, target)[0])

    np.testing.assert_allclose(cost_of_digits(written), 0, atol=1e-5)
    assert cost_of_digits(written[:, [2, 1, 0, 3]]) > 2


def test_sums_weigh_boxes_and_leave_out_what_is_none():
    rng = np.random.default_rng(3)
    target = np.array([[0.1, 0.1, 0.4, 0.5], [0.5, 0.2, 0.9, 0.6], [0.0, 0.0, 0.0, 0.0]])
    expected = np.array([[0.4, 0.1, 0.1, 0.5], [0.5, 0.2, 0.8, 0.6], [0.3, 0.3, 0.2, 0.2]])
    parts = [rng.random((3, 4)) for _ in range(5)]
    found = loss.Coordinates(*map(jnp.asarray, (expected, *parts)))
    weight = jnp.asarray([0.5, 1.0, 0.0])
    total, told = loss.box_sums(found, jnp.asarray(target), weight)
    each = np.asarray(box_loss(found, jnp.asarray(target)))
    np.testing.assert_allclose(total, each[:2] @ [0.5, 1.0], rtol=1e-6)
    np.testing.assert_allclose(told.swapped, 0.5)
    np.testing.assert_allclose(told.iou, 1.0 * 0.3 / 0.4, rtol=1e-5)  # a swapped box has none
    np.testing.assert_allclose(told.near, np.asarray(found.near)[:2].T @ [0.5, 1.0], rtol=1e-5)
    assert told.named()["coordinates/swapped"] / 2 == 0.25


@pytest.mark.parametrize("axis", [0, 1])
def test_the_doubts_of_both_corners_add_up_as_deviations_do(axis):
    """0.2 and 0.15 make 0.25: corners that are swapped by less may be, and by more cost."""
    target = jnp.array([0.1, 0.1, 0.3, 0.3])
    for first, second in ((0.2, 0.15), (0.15, 0.2)):
        spread = jnp.zeros(4).at[jnp.array([axis, axis + 2])].set(jnp.array([first, second]))
        for swapped, costs in ((0.23, False), (0.27, True)):
            box = target.at[axis].set(target[axis + 2] + swapped)
            cost = loss.ordered_giou_loss(box, target, spread) - (
                1 - boxes.giou(box, target, "empty")
            )
            assert (cost > 1e-3) == costs
