"""A tiny model learns boxes in two places, left and right, and puts each corner on its own side.

With GIoU of sorted corners, which cannot tell a box from the same box the wrong way round, the same
minute of training ends with swapped corners in the left place (docs/log.md).
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from cxrjax.input_pipeline.batch import Batch, empty_batch
from cxrjax.models import VLM
from cxrjax.models.presets import DecoderConfig, VisionConfig, VLMConfig
from cxrjax.training.coordinate_report import summarize
from cxrjax.training.loss import multitask_loss, read_coordinates

LOC_START, SIDE, STEPS, IMAGES = 4, 32, 900, 16
LAMBDA = 2.0
# Right and left lung of a frontal radiograph.
PLACES = np.array([[0.11, 0.15, 0.445, 0.85], [0.56, 0.15, 0.80, 0.85]])


def _model() -> VLM:
    vision = VisionConfig(image_size=SIDE, patch_size=8, width=64, depth=1, num_heads=2, mlp_dim=64)
    decoder = DecoderConfig(
        vocab_size=1040, width=64, depth=2, num_heads=2, num_kv_heads=1, head_dim=32, mlp_dim=128
    )
    return VLM(VLMConfig(vision, decoder, loc_token_start=LOC_START), rngs=nnx.Rngs(0))


def _batch(seed: int) -> Batch:
    """Bright boxes at one of the places, edges off by up to 0.06, on noise."""
    rng = np.random.default_rng(seed)
    boxes = PLACES[rng.integers(0, 2, IMAGES)] + rng.uniform(-0.06, 0.06, (IMAGES, 4))
    bins = np.floor(boxes * 1024).astype(np.int32)
    grid = (np.arange(SIDE) + 0.5) / SIDE
    inside = (grid >= boxes[:, :1]) & (grid < boxes[:, 2:3])
    inside = inside[:, None, :] & ((grid >= boxes[:, 1:2]) & (grid < boxes[:, 3:]))[:, :, None]
    pixels = 60 + 120 * inside + rng.normal(0, 20, inside.shape)
    batch = empty_batch(IMAGES, np.zeros((SIDE, SIDE, 3), np.uint8), 1, 1, 5, 1)
    batch.images[...] = np.clip(pixels, 0, 255)[..., None]
    batch.prefix_tokens[...], batch.prefix_mask[...] = 2, True
    batch.answer_tokens[:, 0, :4] = LOC_START + bins[:, [1, 0, 3, 2]]
    batch.answer_tokens[:, 0, 4], batch.answer_mask[...] = 1, True
    batch.coordinate_positions[...] = [1, 0, 3, 2]
    batch.target_boxes[:, 0, 0] = (bins + 0.5) / 1024
    batch.box_mask[...], batch.question_index[:, 0] = True, np.arange(IMAGES)
    return batch


@pytest.mark.slow
def test_corners_stay_in_order_and_greedy_is_near_the_median():
    graphdef, state = nnx.split(_model())
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adam(optax.warmup_cosine_decay_schedule(0, 2e-3, 50, STEPS)),
    )

    @jax.jit
    def step(state, moments, batch):
        def loss(state):
            return multitask_loss(nnx.merge(graphdef, state), batch, LAMBDA)[0]

        updates, moments = optimizer.update(jax.grad(loss)(state), moments)
        return optax.apply_updates(state, updates), moments

    moments = optimizer.init(state)
    for number in range(STEPS):
        state, moments = step(state, moments, jax.tree.map(jnp.asarray, _batch(number)))

    read = jax.jit(lambda batch: read_coordinates(nnx.merge(graphdef, state), batch, "loc"))
    found, targets = [], []
    for seed in range(20):
        batch = _batch(10**6 + seed)
        found.append(jax.tree.map(lambda x: np.asarray(x)[:, 0, 0], read(batch)))
        targets.append(batch.target_boxes[:, 0, 0])
    whole = jax.tree.map(lambda *parts: np.concatenate(parts), *found)
    told = summarize(whole, np.concatenate(targets))
    for half in ("left_half", "right_half"):
        assert told[half]["n"] > 100
        assert told[half]["swapped_x"] == told[half]["swapped_y"] == 0
        assert min(told[half]["mass_within_0.05_where_right"]) > 0.85
    assert told["all"]["expected_iou"] > 0.85
    assert told["all"]["argmax_iou"] > told["all"]["median_iou"] - 0.03
