"""The shapes that annotations declare are checked in the tests (conftest.py)."""

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from cxrjax.metrics import calibration
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


def test_return_values_of_another_shape_are_refused_and_other_annotations_left(monkeypatch):
    assert calibration.equal_mass_edges(np.ones(3), bins=np.int64(2)).shape == (3,)
    monkeypatch.setattr(calibration.np, "quantile", lambda values, q: np.zeros((2, 2)))
    with pytest.raises(jaxtyping.TypeCheckError, match=r"return value of .*equal_mass_edges"):
        calibration.equal_mass_edges(np.ones(3))
