"""Small models and batches that every test of training uses."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx

from cxrjax.input_pipeline.batch import Batch, LoadedBatch
from cxrjax.models import VLM
from cxrjax.models.layers import Linear
from cxrjax.models.presets import DecoderConfig, VisionConfig, VLMConfig
from cxrjax.training.config import default_config

LOC_START, VOCAB, WIDTH = 4, 1024 + 16, 16

SMALL = VLMConfig(
    vision=VisionConfig(image_size=16, patch_size=8, width=WIDTH, depth=2, num_heads=2, mlp_dim=32),
    decoder=DecoderConfig(
        vocab_size=VOCAB,
        width=WIDTH,
        depth=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        mlp_dim=32,
    ),
    loc_token_start=LOC_START,
)


def _random_batch(seed=0, images=8, questions=3, prefix=4, answer=12, boxes=3) -> Batch:
    """Answers of every length, with no box, one or several, and empty question slots."""
    rng = np.random.default_rng(seed)
    shape = (images, questions)
    length = rng.integers(1, answer + 1, shape)
    present = rng.random(shape) < 0.85
    present[0] = True
    number = np.minimum(rng.integers(0, boxes + 1, shape), (length - 1) // 4) * present
    number[0, 0], length[0, 0] = boxes, answer
    corners = np.sort(rng.random((*shape, boxes, 2, 2)), axis=-2).reshape(*shape, boxes, 4)
    position = 4 * np.arange(boxes)[:, None] + np.array([1, 0, 3, 2])
    box_mask = np.arange(boxes) < number[..., None]
    prefix_length = rng.integers(1, prefix + 1, shape)
    return Batch(
        images=rng.integers(0, 256, (images, 16, 16, 3), np.uint8),
        prefix_tokens=rng.integers(0, VOCAB, (*shape, prefix), np.int32),
        prefix_mask=(np.arange(prefix) >= prefix - prefix_length[..., None]) & present[..., None],
        answer_tokens=rng.integers(0, VOCAB, (*shape, answer), np.int32),
        answer_mask=(np.arange(answer) < length[..., None]) & present[..., None],
        coordinate_positions=np.where(box_mask[..., None], position, 0).astype(np.int32),
        target_boxes=np.where(box_mask[..., None], corners, 0).astype(np.float32),
        box_mask=box_mask,
        question_index=np.where(
            present, np.arange(images * questions).reshape(shape) + 100 * seed, -1
        ).astype(np.int32),
    )


class HiddenModel(nnx.Module):
    """Hidden states and output table are free parameters: gradients can be written by hand."""

    def __init__(self, batch: Batch, seed: int = 0, dtype=np.float32):
        rng = np.random.default_rng(seed)
        shape = (*batch.answer_tokens.shape, WIDTH)
        self.hidden = nnx.Param(jnp.asarray(rng.normal(size=shape), dtype))
        self.table = nnx.Param(jnp.asarray(0.5 * rng.normal(size=(VOCAB, WIDTH)), dtype))

    def __call__(self, *_, **__):
        return self.hidden[...]

    def logits(self, hidden):
        return hidden @ self.table[...].T

    def loc_logits(self, hidden):
        return hidden @ self.table[LOC_START : LOC_START + 1024].T

    def token_logits(self, hidden, tokens):
        return self.logits(hidden)[..., list(tokens)]


class Embedder(nnx.Module):
    def __init__(self, rngs):
        self.table = nnx.Param(0.3 * jax.random.normal(rngs.params(), (VOCAB, WIDTH)))


class Decoder(nnx.Module):
    def __init__(self, rngs):
        self.embedder = Embedder(rngs)


class TinyModel(nnx.Module):
    """Called as the VLM is and compiled in a blink: sees the image's mean and the last token."""

    def __init__(self, seed=0):
        rngs = nnx.Rngs(seed)
        self.config = SMALL
        self.projector = Linear(3, WIDTH, rngs=rngs, use_bias=True)
        self.decoder = Decoder(rngs)

    def __call__(
        self,
        images,
        prefix_tokens,
        prefix_mask,
        answer_tokens,
        answer_mask,
        question_index=None,
        dropout_key=None,
        packed_length=None,
    ):
        tokens = jnp.concatenate([prefix_tokens[..., -1:], answer_tokens[..., :-1]], axis=-1)
        mean = jnp.mean(images.astype(jnp.float32) / 255, axis=(1, 2))
        x = self.decoder.embedder.table[...][tokens] + self.projector(mean)[:, None, None]
        x = jnp.tanh(x.astype(jnp.float32))
        if dropout_key is not None:
            keys = jax.vmap(jax.vmap(lambda i: jax.random.fold_in(dropout_key, i)))(question_index)
            keep = jax.vmap(jax.vmap(lambda k: jax.random.bernoulli(k, 0.7, x.shape[2:])))(keys)
            x = x * keep
        return x

    def logits(self, hidden):
        return hidden @ self.decoder.embedder.table[...].T.astype(hidden.dtype)

    def loc_logits(self, hidden):
        return self.logits(hidden)[..., LOC_START : LOC_START + 1024]

    def token_logits(self, hidden, tokens):
        return self.logits(hidden)[..., list(tokens)]


class BatchStream:
    """Batch n is a function of n, as the loader's is.

    `poison` puts NaN into one of them, or several; `without` passes one over.
    """

    def __init__(self, stop_before=None, poison=(), pause=0.0, without=None):
        self.step = 0
        self.stop_before = stop_before
        self.poison = poison if isinstance(poison, tuple) else (poison,)
        self.pause = pause
        self.without = without

    def __iter__(self):
        return self

    def __next__(self):
        time.sleep(self.pause)
        self.step += 1
        if self.step == self.stop_before:
            raise KeyboardInterrupt
        late = self.without is not None and self.step >= self.without
        batch = _random_batch(seed=self.step + late)
        images = batch.images.astype(np.float32)
        if self.step in self.poison:
            images[3] = np.nan
        ids = [[None if i < 0 else f"q{i}" for i in row] for row in batch.question_index]
        return LoadedBatch(batch.replace(images=images), ids, [])

    def get_state(self):
        return {"step": self.step}

    def set_state(self, state):
        self.step = state["step"]


@pytest.fixture
def saved_arrays():
    """`saved_arrays(workdir, step, item="parameters")`: arrays of a checkpoint by name."""

    def read(workdir, step, item="parameters"):
        with ocp.StandardCheckpointer() as checkpointer:
            path = workdir.absolute() / "checkpoints" / str(step) / item
            return {k: np.asarray(v) for k, v in checkpointer.restore(path).items()}

    return read


@pytest.fixture
def batch_stream():
    """`batch_stream(stop_before=None, poison=None)`: endless LoadedBatches."""
    return BatchStream


@pytest.fixture
def tiny_model():
    """`tiny_model(seed=0)`."""
    return TinyModel


@pytest.fixture
def random_batch():
    """`random_batch(seed=0, images=8, ...) -> Batch` of NumPy arrays."""
    return _random_batch


@pytest.fixture
def hidden_model():
    """`hidden_model(batch, seed=0, dtype=np.float32)`."""
    return HiddenModel


@pytest.fixture
def small_vlm():
    """`small_vlm(seed=0, **options) -> VLM` of some thousand parameters."""
    return lambda seed=0, **options: VLM(SMALL, rngs=nnx.Rngs(seed), **options)


@pytest.fixture
def run_config():
    """A valid configuration for a few steps."""
    config = default_config()
    config.training.batch_images = 8
    config.training.steps = 10
    config.trainable = (".*",)
    return config
