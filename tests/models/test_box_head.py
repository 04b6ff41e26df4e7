"""The regression head, and the few logits that the digit route asks for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cxrjax.models import VLM
from cxrjax.models.layers import BoxHead
from cxrjax.models.partition import parameter_shapes
from tests.models.sizes import PLAIN, changed


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_boxes_are_in_order_and_float32_whatever_the_states(dtype):
    head = BoxHead(12, nnx.Rngs(0))
    states = 50 * jax.random.normal(jax.random.key(0), (7, 3, 12), dtype)
    found = np.asarray(head(states))
    assert found.shape == (7, 3, 4) and found.dtype == np.float32
    assert (found[..., :2] <= found[..., 2:]).all()
    center = (found[..., :2] + found[..., 2:]) / 2
    assert center.min() >= 0 and center.max() <= 1
    assert (found[..., 2:] - found[..., :2]).max() <= 1


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_a_few_logits_are_those_of_all_and_no_model_has_a_head_by_itself(softcap, drawn):
    config = changed(PLAIN, decoder={"final_softcap": softcap})
    model = drawn(lambda: VLM(config, rngs=nnx.Rngs(0)))
    assert not any("box_head" in path for path in parameter_shapes(model))
    hidden = 3 * jax.random.normal(jax.random.key(1), (2, 5, 8))
    tokens = (1090, 1031, 2)
    np.testing.assert_allclose(
        model.token_logits(hidden, tokens), model.logits(hidden)[..., list(tokens)], atol=1e-5
    )
