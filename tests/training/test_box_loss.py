"""The box loss: one optimum, and what is told of boxes has none of its symmetries."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from cxrjax import boxes
from cxrjax.training import box_loss as loss
from cxrjax.training.box_loss import box_loss, coordinates_of_bins, coordinates_of_points

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
    return box_loss(coordinates_of_points(predicted, target), target)


cost = jax.jit(point_loss)
ordered_cost = jax.jit(loss.ordered_giou_loss)
iou = jax.jit(boxes.iou)


value_and_slope = jax.jit(jax.value_and_grad(point_loss))


@jax.jit
def cost_of(probability, target):
    return box_loss(coordinates_of_bins(jnp.log(probability + 1e-30), target), target)


@jax.jit
def every_cost(predicted, target):
    found = coordinates_of_points(predicted, target)
    return jnp.stack([box_loss(found, target, kind) for kind in ("giou_l1", "giou", "diou_l1")])


@jax.jit
def expected(probability, target):
    return coordinates_of_bins(jnp.log(probability + 1e-30), target).expected


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


@given(target=true_boxes(), first=coordinate, more=st.floats(0.01, 1, allow_subnormal=False))
def test_more_swapped_costs_more(target, first, more):
    middle = (target[0] + target[2]) / 2
    mild, strong = (
        np.array([middle + by, target[1], middle - by, target[3]], np.float32)
        for by in (first, first + more)
    )
    assert cost(strong, target) > cost(mild, target)


@given(predicted=st.tuples(*[coordinate] * 4), target=st.tuples(*[coordinate] * 4))
def test_gradients_are_finite_for_any_boxes(predicted, target):
    low, high = np.sort(np.reshape(target, (2, 2)), axis=0)
    target = np.concatenate([low, high]).astype(np.float32)
    value, slope = value_and_slope(np.array(predicted, np.float32), target)
    assert np.isfinite(value) and np.all(np.isfinite(slope))


@pytest.mark.parametrize("axis", [0, 1])
def test_the_gradient_of_a_swapped_box_moves_each_corner_to_its_own_side(axis):
    target = jnp.array([0.2, 0.2, 0.4, 0.4])
    order = jnp.array(SWAPS[axis])
    slope = jax.grad(ordered_cost)(target[order], target)
    assert slope[axis] > 0 > slope[axis + 2]  # the low corner goes down, the high one up


def test_expectations_in_an_order_that_says_nothing_are_left_alone():
    """Half of the mass on each of two boxes: the low corner's mean lies beyond the high one's."""
    target = jnp.array([0.1, 0.1, 0.2, 0.3])
    mean = jnp.array([0.45, 0.1, 0.2, 0.3])
    torn = jnp.array([0.35, 0.0, 0.0, 0.0])
    assert ordered_cost(mean, target, torn) <= 2
    assert ordered_cost(mean, target) > 2
    assert ordered_cost(mean, target, torn / 10) > 2


def _losses(logits, target_bins, lambda_box):
    """Cross-entropy plus lambda times the box loss of four free distributions [4, 1024]."""
    target = (target_bins + 0.5) / 1024
    ce = -jnp.sum(jnp.take_along_axis(jax.nn.log_softmax(logits), target_bins[:, None], axis=-1))
    return ce + lambda_box * box_loss(coordinates_of_bins(logits, target), target)


@functools.partial(jax.jit, static_argnames="steps")
def _fit(logits, target_bins, lambda_box, steps=1500):
    optimizer = optax.adam(0.1)

    def step(carry, _):
        logits, state = carry
        slope = jax.grad(_losses)(logits, target_bins, lambda_box)
        updates, state = optimizer.update(slope, state)
        return (logits + updates, state), None

    return jax.lax.scan(step, (logits, optimizer.init(logits)), length=steps)[0][0]


@settings(max_examples=8)
@given(
    seed=st.integers(0, 2**16),
    lambda_box=st.sampled_from([0.0, 0.5, 2.0, 10.0]),
    corners=st.tuples(st.integers(0, 1000), st.integers(0, 1000)),
    size=st.tuples(st.integers(4, 500), st.integers(4, 500)),
)
def test_free_distributions_end_as_points_on_the_right_bins(seed, lambda_box, corners, size):
    high = np.minimum(np.add(corners, size), 1023)
    target = jnp.asarray([*corners, *high])
    start = 3 * jax.random.normal(jax.random.key(seed), (4, 1024))
    probability = jax.nn.softmax(_fit(start, target, lambda_box))
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


@given(place=st.integers(100, 900), away=st.integers(1, 100), which=st.integers(0, 3))
def test_two_points_with_the_right_mean_cost_more_than_one(place, away, which):
    target = np.array([100, 100, 900, 900])
    target[which] = place
    one = np.zeros((4, 1024))
    one[np.arange(4), target] = 1
    two = one.copy()
    two[which, place] = 0
    two[which, [place - away, place + away]] = 0.5
    at = jnp.asarray(CENTERS[target], jnp.float32)
    np.testing.assert_allclose(*(expected(p, at) for p in (one, two)), atol=1e-5)
    assert cost_of(two, at) > cost_of(one, at)


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


def test_the_state_that_models_were_found_in_is_left():
    """Half of x_max's mass at the left end, some of x_min's at the right: expectations swapped."""
    target = jnp.array([165, 300, 336, 560])
    start = np.full((4, 1024), 1e-6)
    start[np.arange(4), np.asarray(target)] = 0.5
    start[0, 930], start[2, 20] = 0.5, 0.5
    logits = jnp.log(jnp.asarray(start, jnp.float32))
    at = coordinates_of_bins(logits, (target + 0.5) / 1024).expected
    assert at[0] > at[2]
    probability = jax.nn.softmax(_fit(logits, target, 0.5))
    assert np.all(np.asarray(probability)[np.arange(4), np.asarray(target)] > 0.99)


@given(start=true_boxes(), target=true_boxes())
def test_every_cost_but_that_of_samples_is_least_at_the_target(start, target):
    at, there = (every_cost(x, target) for x in (start, target))
    np.testing.assert_allclose(there, 0, atol=1e-5)
    assert np.all(at >= there - 1e-5)


def test_diou_pulls_the_centre_of_a_box_within_the_target_and_giou_does_not():
    target, inside = jnp.array([0.1, 0.1, 0.9, 0.9]), jnp.array([0.2, 0.2, 0.4, 0.4])
    along = jnp.array([1.0, 1.0, 1.0, 1.0])
    slopes = {
        name: float(jax.grad(lambda x: getattr(boxes, name)(x, target))(inside) @ along)  # noqa: B023
        for name in ("giou", "diou")
    }
    assert slopes["giou"] == pytest.approx(0, abs=1e-5) and slopes["diou"] > 0.1


def test_the_gradient_of_drawn_boxes_is_that_of_the_mean_over_all_boxes():
    """Of a distribution over two bins a coordinate, whose 16 boxes can be counted."""
    target = jnp.array([0.25, 0.3, 0.75, 0.8])
    at = np.array([[200, 480], [280, 560], [700, 990], [760, 600]])
    free = jnp.asarray(np.random.default_rng(0).normal(size=(4, 2)), jnp.float32)

    def logits(free):
        return jnp.full((4, 1024), -1e9).at[np.arange(4)[:, None], at].set(free)

    def mean(free):
        p, total = jax.nn.softmax(free, axis=-1), 0.0
        for which in np.ndindex(2, 2, 2, 2):
            box = jnp.asarray(CENTERS[at[np.arange(4), which]])
            weight = jnp.prod(p[np.arange(4), np.array(which)])
            total += weight * (1 - boxes.giou(box, target, swapped="empty"))
        return total

    def drawn(free):
        found = coordinates_of_bins(logits(free), target, 20_000)
        cost = box_loss(found, target, "sampled_giou_l1")
        return cost - 2.5 * jnp.sum(found.distance)

    (value, slope), (true_value, true_slope) = (
        jax.jit(jax.value_and_grad(f))(free) for f in (drawn, mean)
    )
    assert value == pytest.approx(float(true_value), abs=5e-3)
    np.testing.assert_allclose(slope, true_slope, atol=5e-3)
    assert np.abs(true_slope).max() > 0.02
    samples = loss.BoxCost("sampled_giou_l1").samples
    few, again = (coordinates_of_bins(logits(free), target, samples) for _ in range(2))
    np.testing.assert_array_equal(few.sampled.boxes, again.sampled.boxes)


def test_matching_gives_each_predicted_box_its_nearest_true_one():
    rng = np.random.default_rng(5)
    low = rng.random((2, 3, 5, 2)) * 0.7
    target = np.concatenate([low, low + 0.1 + 0.2 * rng.random((2, 3, 5, 2))], axis=-1)
    count = np.array([[5, 3, 0], [1, 2, 4]])
    mask = np.arange(5) < count[..., None]
    predicted = np.array(target)
    orders = {where: rng.permutation(count[where]) for where in np.ndindex(2, 3)}
    for where, order in orders.items():
        off = 0.004 * rng.normal(size=(len(order), 4))
        predicted[where][: len(order)] = target[where][order] + off
    found = np.asarray(loss.matched_targets(*map(jnp.asarray, (predicted, target, mask))))
    for where, order in orders.items():
        np.testing.assert_allclose(found[where][: len(order)], target[where][order], rtol=1e-6)
    # Of a doubtful assignment the sum is the least, as scipy finds it.
    predicted = rng.random((1, 1, 4, 4))
    truth = target[:1, :1, :4]
    found = loss.matched_targets(*map(jnp.asarray, (predicted, truth, np.ones((1, 1, 4), bool))))
    a, b = predicted[0, 0][:, None], truth[0, 0][None]
    cost = 1 - boxes.giou(a, b, swapped="empty") + 2.5 * np.abs(a - b).sum(-1)
    _, column = linear_sum_assignment(cost)
    np.testing.assert_allclose(found[0, 0], truth[0, 0][column], rtol=1e-6)


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


def test_each_drawn_box_is_worth_what_it_is_beside_the_others():
    rng = np.random.default_rng(2)
    target = jnp.array([0.2, 0.3, 0.7, 0.8])
    drawn = jnp.sort(jnp.asarray(rng.random((3, 2, 2)), jnp.float32), axis=1).reshape(3, 4)
    found = coordinates_of_points(target, target)

    def cost_of(log_probability):
        sampled = loss.SampledBoxes(drawn, log_probability)
        return box_loss(found._replace(sampled=sampled), target, "sampled_giou_l1")

    cost = 1 - np.asarray(boxes.giou(drawn, target))
    value, slope = jax.value_and_grad(cost_of)(jnp.zeros(3))
    assert value == pytest.approx(cost.mean())
    beside = [cost[i] - np.delete(cost, i).mean() for i in range(3)]
    np.testing.assert_allclose(slope, np.array(beside) / 3, rtol=1e-5)
