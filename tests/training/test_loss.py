"""The loss and its gradients, against NumPy written from the definition and finite differences."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import stats
from scipy.special import softmax

from cxrjax.training.box_loss import DISTANCE_WEIGHT, ORDER_WEIGHT, box_loss
from cxrjax.training.coordinate_targets import CoordinateTargets, coordinate_targets
from cxrjax.training.loss import BoxTerm, batch_denominators, multitask_loss, read_coordinates
from tests.training.conftest import LOC_START, HiddenModel, assert_close, random_batch

CENTERS = (np.arange(1024) + 0.5) / 1024


def _giou_and_gradient(p, t):
    """GIoU of two boxes and its derivative by the first, which may have swapped corners."""
    ix, iy = min(p[2], t[2]) - max(p[0], t[0]), min(p[3], t[3]) - max(p[1], t[1])
    hx, hy = max(p[2], t[2]) - min(p[0], t[0]), max(p[3], t[3]) - min(p[1], t[1])
    meet = ix > 0 and iy > 0
    inter = ix * iy if meet else 0.0
    pw, ph = max(p[2] - p[0], 0), max(p[3] - p[1], 0)
    union = pw * ph + (t[2] - t[0]) * (t[3] - t[1]) - inter
    hull = hx * hy
    d_area = np.array([-ph * (pw > 0), -pw * (ph > 0), ph * (pw > 0), pw * (ph > 0)])
    inner, outer = p > t, p < t  # which of the two a corner of the intersection or hull is
    d_inter = meet * np.array([-iy * inner[0], -ix * inner[1], iy * outer[2], ix * outer[3]])
    d_hull = np.array([-hy * outer[0], -hx * outer[1], hy * inner[2], hx * inner[3]])
    d_union = d_area - d_inter
    gradient = (d_inter * union - inter * d_union) / union**2
    gradient += (d_union * hull - union * d_hull) / hull**2
    return inter / union - (hull - union) / hull, inter / union, gradient


def _order_and_gradient(p, t, spread):
    """What corners cost that are swapped beyond their spread, and its derivative by the box."""
    cost, gradient = 0.0, np.zeros(4)
    for low, high in ((0, 2), (1, 3)):
        swapped = p[low] - p[high] - np.hypot(spread[low], spread[high])
        if swapped > 0:
            extent = t[high] - t[low]
            cost += ORDER_WEIGHT * swapped / (extent + swapped)
            slope = ORDER_WEIGHT * extent / (extent + swapped) ** 2
            gradient[[low, high]] += [slope, -slope]
    return cost, gradient


def _reference(hidden, table, batch, lambda_box):
    """Loss parts and the gradient by `hidden`, one token and one box at a time."""
    tokens = batch.answer_mask.sum()
    questions = batch.box_mask.any(-1).sum()
    gradient = np.zeros_like(hidden)
    ce = correct = loss = giou = iou = swapped = beyond = 0.0
    for b, q, a in np.argwhere(batch.answer_mask):
        probability = softmax(table @ hidden[b, q, a])
        target = batch.answer_tokens[b, q, a]
        ce -= np.log(probability[target])
        correct += probability.argmax() == target
        probability[target] -= 1
        gradient[b, q, a] += probability @ table / tokens
    rows = table[LOC_START : LOC_START + 1024]
    for b, q, k in np.argwhere(batch.box_mask):
        weight = 1 / batch.box_mask[b, q].sum()
        at, target = batch.coordinate_positions[b, q, k], batch.target_boxes[b, q, k]
        probabilities = [softmax(rows @ hidden[b, q, p]) for p in at]
        box = np.array([p @ CENTERS for p in probabilities])
        value, overlap, giou_slope = _giou_and_gradient(box, target)
        spread = [np.sqrt(p @ (CENTERS - x) ** 2) for p, x in zip(probabilities, box, strict=True)]
        order, order_slope = _order_and_gradient(box, target, spread)
        giou += weight * (1 - value)
        iou += weight * overlap
        swapped += weight * (box[0] > box[2] or box[1] > box[3])
        beyond += order > 0
        loss += weight * (1 - value + order)
        for c, (p, probability) in enumerate(zip(at, probabilities, strict=True)):
            away = np.abs(CENTERS - target[c])
            distance = probability @ away
            loss += weight * DISTANCE_WEIGHT * distance
            slope = (order_slope[c] - giou_slope[c]) * (CENTERS - box[c])
            by_logits = probability * (slope + DISTANCE_WEIGHT * (away - distance))
            gradient[b, q, p] += lambda_box * weight / questions * by_logits @ rows
    assert beyond, "no box of this batch has corners swapped beyond their spread"
    names = ("ce", "token_accuracy", "box_loss", "giou_loss", "box_iou", "coordinates/swapped")
    found = (ce, correct, loss, giou, iou, swapped)
    return dict(zip(names, found, strict=True)), gradient


@functools.partial(jax.jit, static_argnames=("graphdef", "options"))
def _compiled(graphdef, state, batch, lambda_box, denominators, options):
    def loss(state):
        model = nnx.merge(graphdef, state)
        weights = {"lambda_box": lambda_box}
        return multitask_loss(model, batch, weights, denominators=denominators, **dict(options))

    return jax.value_and_grad(loss, has_aux=True)(state)


def _half(model, batch, **options):
    return multitask_loss(model, batch, {"lambda_box": 0.5}, **options)[0]


def _evaluate(model, batch, lambda_box=0.5, denominators=None, logit_chunk=16, **options):
    """Loss, parts and gradient; compiled once for all batches of a shape."""
    graphdef, state = nnx.split(model)
    batch = jax.tree.map(jnp.asarray, batch)
    options = tuple({"logit_chunk": logit_chunk, **options}.items())
    (total, parts), gradient = _compiled(graphdef, state, batch, lambda_box, denominators, options)
    return total, parts, gradient


def _assert_along_differences(loss, state, gradient, direction, step, rtol):
    """The slope along a direction is the quotient of differences."""
    ahead, behind = (
        loss(jax.tree.map(lambda x, d, by=by: x + by * d, state, direction)) for by in (step, -step)
    )
    along = sum(jax.tree.leaves(jax.tree.map(jnp.vdot, gradient, direction)))
    np.testing.assert_allclose((ahead - behind) / (2 * step), along, rtol=rtol)


@pytest.mark.parametrize("logit_chunk", [1, 40, 10_000])
def test_parts_and_gradient_equal_a_numpy_implementation(logit_chunk):
    batch = random_batch(seed=1)
    with jax.enable_x64(True):
        model = HiddenModel(batch, seed=2, dtype=np.float64)
        model.table[...] = 8 * model.table[...]  # sure of what they say, right or wrong
        total, parts, gradient = _evaluate(model, batch, 0.5, logit_chunk=logit_chunk)
    expected, by_hidden = _reference(
        np.asarray(model.hidden[...]), np.asarray(model.table[...]), batch, 0.5
    )
    tokens, questions = batch.answer_mask.sum(), batch.box_mask.any(-1).sum()
    assert 0 < expected["coordinates/swapped"] < questions
    np.testing.assert_allclose(parts["ce"], (expected["ce"], tokens), rtol=1e-9)
    np.testing.assert_allclose(parts["token_accuracy"], (expected["token_accuracy"], tokens))
    for name in ("box_loss", "giou_loss", "box_iou", "coordinates/swapped"):
        np.testing.assert_allclose(parts[name], (expected[name], questions), rtol=1e-6)
    whole = expected["ce"] / tokens + 0.5 * expected["box_loss"] / questions
    np.testing.assert_allclose(total, whole, rtol=1e-6)
    np.testing.assert_allclose(gradient["hidden"][...], by_hidden, rtol=1e-6, atol=1e-9)


def test_gradient_equals_finite_differences():
    batch = random_batch(seed=3, images=2)
    with jax.enable_x64(True):
        model = HiddenModel(batch, seed=4, dtype=np.float64)
        graphdef, state = nnx.split(model)
        batch = jax.tree.map(jnp.asarray, batch)

        @jax.jit
        def loss(state):
            return _half(nnx.merge(graphdef, state), batch, logit_chunk=16)

        gradient = jax.jit(jax.grad(loss))(state)
        rng = np.random.default_rng(0)
        for _ in range(5):
            direction = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), state)
            _assert_along_differences(loss, state, gradient, direction, 1e-6, rtol=1e-6)


def test_gradient_of_the_whole_model_equals_finite_differences(small_vlm):
    batch = jax.tree.map(jnp.asarray, random_batch(seed=5, images=2))
    model = small_vlm(share="image")
    # Away from boxes without extent, where the loss has an edge.
    model.decoder.embedder.table[...] = 10 * model.decoder.embedder.table[...]
    graphdef, state = nnx.split(model)

    @jax.jit
    def loss(state):
        return _half(nnx.merge(graphdef, state), batch)

    gradient = jax.jit(jax.grad(loss))(state)
    rng = np.random.default_rng(0)
    # Along the gradient, where float32 sees the difference, tilted by a random direction.
    direction = jax.tree.map(
        lambda g: g + np.float32(np.linalg.norm(g) * rng.normal(size=g.shape) / (2 * g.size**0.5)),
        gradient,
    )
    _assert_along_differences(loss, state, gradient, direction, 3e-4, rtol=1e-2)


def test_soft_targets_are_scipy_s_cross_entropy_with_a_gaussian():
    batch = random_batch()
    rng = np.random.default_rng(3)
    tokens = LOC_START + rng.integers(0, 1024, batch.answer_tokens.shape).astype(np.int32)
    words = rng.random(tokens.shape) < 0.3
    words[0, 0, :2] = False
    tokens[words] = LOC_START + 1024 + 3
    tokens[0, 0, :2] = LOC_START, LOC_START + 1023  # on the image's edges
    batch = dataclasses.replace(batch, answer_tokens=tokens)
    model = HiddenModel(batch)
    hidden, table = (np.asarray(x[...], np.float64) for x in (model.hidden, model.table))
    expected = 0.0
    for b, q, a in np.argwhere(batch.answer_mask):
        target = np.zeros(len(table))
        bins = np.arange(1024)
        target[LOC_START + bins] = stats.norm.pdf(bins, tokens[b, q, a] - LOC_START, 6.5)
        if words[b, q, a]:
            target = np.arange(len(table)) == tokens[b, q, a]
        # H(p, q) = H(p) + KL(p, q)
        probability = softmax(table @ hidden[b, q, a])
        target = target / target.sum()
        expected += stats.entropy(target) + stats.entropy(target, probability)
    coordinates = CoordinateTargets(LOC_START, 6.5)
    _, parts, _ = _evaluate(model, batch, coordinates=coordinates)
    assert float(parts["ce"][0]) == pytest.approx(expected, rel=1e-5)


def test_a_lambda_of_tokens_weighs_a_box_against_its_own_tokens():
    """In any batch; the paper's, of questions, by the conversion of the module's docstring."""
    batch = random_batch(seed=1)
    model, tokens = HiddenModel(batch), batch.answer_mask.sum()
    found = read_coordinates(model, jax.tree.map(jnp.asarray, batch), "loc")
    cost = np.asarray(box_loss(found, batch.target_boxes))[batch.box_mask].sum()
    by_tokens = BoxTerm("tokens")
    whole, figures, gradient = _evaluate(model, batch, 0.5, box=by_tokens)
    ce = figures["ce"][0] / tokens
    np.testing.assert_allclose(whole - ce, 0.5 * cost / tokens, rtol=1e-5)
    np.testing.assert_allclose(figures["box_loss"], (cost, tokens), rtol=1e-5)
    # Half of the boxes are gone: those that are left have the gradient that they had.
    half = batch.replace(box_mask=batch.box_mask & (np.arange(3) % 2 == 0)[:, None])
    left = np.zeros(batch.answer_mask.shape, bool)
    for b, q, k in np.argwhere(half.box_mask):
        left[b, q, batch.coordinate_positions[b, q, k]] = True
    after = _evaluate(model, half, 0.5, box=by_tokens)[2]
    slopes = [np.asarray(x["hidden"][...])[left] for x in (gradient, after)]
    np.testing.assert_allclose(*slopes, rtol=1e-4, atol=1e-7)
    one_each = batch.replace(box_mask=batch.box_mask & (np.arange(3) == 0))
    ratio = tokens / one_each.box_mask.sum()
    paper = _evaluate(model, one_each, 0.5)[0]
    assert float(paper) == pytest.approx(
        float(_evaluate(model, one_each, 0.5 * ratio, box=by_tokens)[0]), rel=1e-5
    )


def test_words_beside_soft_targets_cost_what_they_do_alone():
    batch = random_batch()
    words = np.full(batch.answer_tokens.shape, LOC_START - 1, np.int32)
    words[0, 0] = LOC_START + 1024  # no word is within the width of a bin
    batch = dataclasses.replace(batch, answer_tokens=words)
    model = HiddenModel(batch)
    hard, soft = (
        _evaluate(model, batch, coordinates=found)
        for found in (None, CoordinateTargets(LOC_START, 0.5))
    )
    assert float(hard[0]) == pytest.approx(float(soft[0]), rel=1e-6)
    assert_close(soft[2], hard[2], atol=1e-6)


def test_the_width_is_in_pixels_and_logits_all_alike_are_not_right():
    assert coordinate_targets(0.0, 1.0, 7, 192) is None
    assert coordinate_targets(1.5, 0.5, 7, 192) == CoordinateTargets(7, 8.0, 0.5)
    batch = random_batch(seed=13)
    model = HiddenModel(batch)
    model.hidden[...] = jnp.zeros_like(model.hidden[...])
    _, parts, _ = _evaluate(model, batch)
    assert parts["token_accuracy"][0] == np.sum(batch.answer_tokens[batch.answer_mask] == 0)


def test_location_tokens_weigh_as_much_as_asked_for():
    batch = random_batch()
    tokens = np.array(batch.answer_tokens)
    tokens[0, 0, 0] = LOC_START + 500
    batch = dataclasses.replace(batch, answer_tokens=tokens)
    model = HiddenModel(batch)
    targets = (coordinate_targets(0, w, LOC_START, 8) for w in (1.0, 0.5, 0.0))
    whole, half, none = (
        float(_evaluate(model, batch, coordinates=target)[1]["ce"][0]) for target in targets
    )
    assert whole > half > none
    assert half == pytest.approx((whole + none) / 2, rel=1e-6)


def test_parts_of_a_batch_add_up_to_the_batch():
    batch = random_batch(seed=6)
    model = HiddenModel(batch, seed=7)
    whole, parts, gradient = _evaluate(model, batch)
    denominators = batch_denominators(jax.tree.map(jnp.asarray, batch))
    total, summed = 0.0, None
    # Uneven cuts, so that a mean of means would differ.
    for start, stop in ((0, 2), (2, 8)):
        piece = jax.tree.map(lambda x, a=start, b=stop: x[a:b], batch)
        part_model = HiddenModel(piece)
        part_model.hidden[...] = model.hidden[start:stop]
        part_model.table[...] = model.table[...]
        loss, part, part_gradient = _evaluate(part_model, piece, denominators=denominators)
        total += loss
        summed = part if summed is None else jax.tree.map(jnp.add, summed, part)
        np.testing.assert_allclose(
            part_gradient["hidden"][...], gradient["hidden"][start:stop], rtol=1e-4, atol=1e-7
        )
    np.testing.assert_allclose(total, whole, rtol=1e-6)
    assert_close(summed, parts, rtol=1e-5)


def test_padding_counts_for_nothing():
    batch = random_batch(seed=8)
    model = HiddenModel(batch, seed=9)
    loss, _, gradient = _evaluate(model, batch)
    changed = batch.replace(
        answer_tokens=np.where(batch.answer_mask, batch.answer_tokens, 7).astype(np.int32),
        coordinate_positions=np.where(batch.box_mask[..., None], batch.coordinate_positions, 3),
        target_boxes=np.where(batch.box_mask[..., None], batch.target_boxes, 0.5),
    )
    assert _evaluate(model, changed)[0] == loss
    assert not np.any(np.asarray(gradient["hidden"][...])[~batch.answer_mask])


def test_without_boxes_or_weight_of_them_the_loss_is_the_cross_entropy():
    """At lambda 0 the box part is reported and not trained on."""
    batch = random_batch(seed=10)
    model = HiddenModel(batch)
    without = batch.replace(box_mask=np.zeros_like(batch.box_mask))
    none, unweighted = _evaluate(model, without), _evaluate(model, batch, 0.0)
    for loss, parts, gradient in (none, unweighted):
        np.testing.assert_allclose(loss, np.divide(*parts["ce"]), rtol=1e-6)
        assert all(bool(jnp.all(jnp.isfinite(g))) for g in jax.tree.leaves(gradient))
    assert none[1]["box_loss"] == (0, 0) and unweighted[1]["box_loss"][0] > 0
    gradients = (gradient["hidden"][...] for _, _, gradient in (none, unweighted))
    np.testing.assert_allclose(*gradients, atol=1e-8)


def test_logits_over_all_tokens_never_exist_at_once():
    """The compiled loss and gradient need far less room than the logits of all tokens."""
    batch = random_batch(seed=12, images=16, questions=4, answer=32)
    graphdef, state = nnx.split(HiddenModel(batch))
    batch = jax.tree.map(jnp.asarray, batch)

    def compiled(logit_chunk):
        def loss(state):
            model = nnx.merge(graphdef, state)
            return _half(model, batch, logit_chunk=logit_chunk)

        return jax.jit(jax.grad(loss)).lower(state).compile().memory_analysis().temp_size_in_bytes

    everything = 4 * 16 * 4 * 32 * 1040
    assert compiled(10_000) > everything
    assert compiled(32) < everything / 2
