"""The shapes that annotations declare are checked in the tests (conftest.py)."""

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from cxrjax.codecs.frames import ImageSteps
from cxrjax.codecs.tokens import PaliGemma
from cxrjax.metrics.agreement import fleiss_kappa
from cxrjax.models.layers import RMSNorm, matmul
from cxrjax.training.box_loss import coordinates_of_digits


@pytest.mark.parametrize(
    ("call", "of"),
    [
        (lambda: fleiss_kappa(np.ones(3)), "fleiss_kappa"),
        (lambda: matmul(jnp.ones((2, 3)), jnp.ones((4, 5))), "matmul"),
        (lambda: RMSNorm(4)(np.ones((2, 4))), "RMSNorm.__call__"),
        (
            lambda: coordinates_of_digits(
                jnp.ones((2, 4, 3, 9)), *(jnp.ones((2, 4, 3), int) for _ in range(4))
            ),
            "coordinates_of_digits",
        ),
    ],
)
def test_arrays_of_another_shape_or_type_are_refused(call, of):
    with pytest.raises(jaxtyping.TypeCheckError, match=f"parameters of .*{of}"):
        call()


def test_a_return_value_of_another_shape_is_refused():
    with pytest.raises(jaxtyping.TypeCheckError, match=r"return value of .*from_grid"):
        ImageSteps(100).from_grid(np.zeros((2, 3, 4)), 8, 8, None)


def test_other_annotations_are_mypys():
    assert PaliGemma().decode(np.str_("none"), np.int64(8), np.int64(8)).boxes.shape == (0, 4)
