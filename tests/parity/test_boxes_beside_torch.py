"""IoU and GIoU beside the torch functions of transformers' detection losses, gradients by autograd.

Boxes without area are left out: theirs give NaN there, ours are defined (`cxrjax.boxes`).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cxrjax import boxes as bx

torch = pytest.importorskip("torch")
reference = pytest.importorskip("transformers.loss.loss_for_object_detection")
pytestmark = pytest.mark.parity


def _boxes(seed, number, sides):
    """Boxes of many sizes; on a grid many of them share edges, contain each other or are equal."""
    rng = np.random.default_rng(seed)
    corners = np.sort(rng.random((number, 2, 2)), axis=1)
    if sides == "grid":
        low = rng.integers(0, 6, (number, 2))
        corners = np.stack([low, low + rng.integers(1, 4, (number, 2))], axis=1) / 8
    elif sides == "small":
        corners[:, 1] = corners[:, 0] + 1e-3 * (0.5 + rng.random((number, 2)))
    elif sides == "pixels":
        corners = np.round(corners * 3000) + [[0, 0], [1, 1]]
    return corners.reshape(number, 4)


@pytest.mark.parametrize("sides", ["any", "grid", "small", "pixels"])
def test_pairs(sides):
    a, b = _boxes(0, 300, sides), _boxes(1, 200, sides)
    theirs_iou, _ = reference.box_iou(torch.tensor(a), torch.tensor(b))
    theirs_giou = reference.generalized_box_iou(torch.tensor(a), torch.tensor(b))
    np.testing.assert_allclose(bx.pairwise_iou(a, b), theirs_iou.numpy(), atol=1e-12)
    np.testing.assert_allclose(bx.giou(a[:, None], b), theirs_giou.numpy(), atol=1e-12)


@pytest.mark.parametrize("sides", ["any", "small"])
def test_gradient_of_the_loss(sides):
    """Of the mean of 1 - GIoU, overlapping and apart; no two edges meet, so both have one."""
    a, b = _boxes(2, 500, sides), _boxes(3, 500, sides)
    predicted = torch.tensor(a, requires_grad=True)
    torch.diag(1 - reference.generalized_box_iou(predicted, torch.tensor(b))).sum().backward()
    with jax.enable_x64(True):
        ours = jax.grad(lambda p: jnp.sum(1 - bx.giou(p, jnp.asarray(b))))(jnp.asarray(a))
    np.testing.assert_allclose(ours, predicted.grad.numpy(), rtol=1e-7, atol=1e-9)
