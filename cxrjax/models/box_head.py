"""A regression head: a box out of the hidden state that predicts its first coordinate.

The third of the routes from the loss to boxes (cxrjax/input_pipeline/coordinates.py): an auxiliary
beside the text, which stays the answer. It is DETR's (arXiv 2005.12872, section 3.2): three layers,
then sigmoids for centre and size.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from cxrjax.models.layers import Linear

# Of DETR. Of the decoder's own width, the head of a 4B model would outweigh its LoRA.
HIDDEN_WIDTH = 256


class BoxHead(nnx.Module):
    """Hidden states of the decoder to boxes in the model's input frame."""

    def __init__(self, width: int, rngs: nnx.Rngs):
        self.fc1 = Linear(width, HIDDEN_WIDTH, use_bias=True, rngs=rngs)
        self.fc2 = Linear(HIDDEN_WIDTH, HIDDEN_WIDTH, use_bias=True, rngs=rngs)
        self.out = Linear(HIDDEN_WIDTH, 4, use_bias=True, rngs=rngs)

    def __call__(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch 4"]:
        """Boxes xyxy, float32 whatever the dtype of the states.

        Centre and size are fractions of the frame, so that corners are in order; a box may reach
        over the edge.
        """
        x = jax.nn.relu(self.fc1(hidden.astype(jnp.float32)))
        x = jax.nn.sigmoid(self.out(jax.nn.relu(self.fc2(x))))
        center, half = x[..., :2], x[..., 2:] / 2
        return jnp.concatenate([center - half, center + half], axis=-1)
