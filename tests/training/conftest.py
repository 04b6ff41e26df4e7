"""Small models, batches and runs that every test of training uses."""

import functools
import json
import shutil
import time

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx

from cxrjax.distributed import meshes
from cxrjax.input_pipeline.batch import Batch, LoadedBatch
from cxrjax.models import VLM, partition
from cxrjax.models.layers import Linear
from cxrjax.models.presets import DecoderConfig, VisionConfig, VLMConfig
from cxrjax.training import loop, step
from cxrjax.training.config import default_config
from cxrjax.training.config_file import typed_config
from cxrjax.training.optimizer import make_optimizer
from cxrjax.training.run import Start, TrainingData
from cxrjax.training.store import CheckpointStore

LOC_START, VOCAB, WIDTH, END = 4, 1024 + 16, 16, 1
BASE = {"kind": "random", "seed": 0, "sha256": "abc"}

SMALL = VLMConfig(
    vision=VisionConfig(image_size=16, patch_size=8, width=WIDTH, depth=2, num_heads=2, mlp_dim=32),
    decoder=DecoderConfig(
        vocab_size=VOCAB, width=WIDTH, depth=2, num_heads=2, num_kv_heads=1, head_dim=8, mlp_dim=32
    ),
    loc_token_start=LOC_START,
)


def random_batch(seed=0, images=8, questions=3, prefix=4, answer=12, boxes=3) -> Batch:
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


class _Readable(nnx.Module):
    """How a model that has `output_table()` reads hidden states."""

    def logits(self, hidden):
        return hidden @ self.output_table().T.astype(hidden.dtype)

    def loc_logits(self, hidden):
        return self.logits(hidden)[..., LOC_START : LOC_START + 1024]

    def token_logits(self, hidden, tokens):
        return self.logits(hidden)[..., list(tokens)]


class HiddenModel(_Readable):
    """Hidden states and output table are free parameters: gradients can be written by hand."""

    def __init__(self, batch: Batch, seed: int = 0, dtype=np.float32):
        rng = np.random.default_rng(seed)
        shape = (*batch.answer_tokens.shape, WIDTH)
        self.hidden = nnx.Param(jnp.asarray(rng.normal(size=shape), dtype))
        self.table = nnx.Param(jnp.asarray(0.5 * rng.normal(size=(VOCAB, WIDTH)), dtype))

    def __call__(self, *_, **__):
        return self.hidden[...]

    def output_table(self):
        return self.table[...]


class TinyModel(_Readable):
    """Called as the VLM is and compiled in a blink: sees the image's mean and the last token."""

    def __init__(self, seed=0):
        rngs = nnx.Rngs(seed)
        self.config = SMALL
        self.projector = Linear(3, WIDTH, rngs=rngs, use_bias=True)
        table = nnx.Param(0.3 * jax.random.normal(rngs.params(), (VOCAB, WIDTH)))
        self.decoder = nnx.Dict(embedder=nnx.Dict(table=table))

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

    def output_table(self):
        return self.decoder.embedder.table[...]


class BatchStream:
    """Batch n is a function of n, as the loader's is.

    `poison` puts NaN into one of them, or several; `without` passes one over; `before` has
    functions that are called before a batch of a number is made.
    """

    def __init__(self, stop_before=None, poison=(), pause=0.0, without=None, before=()):
        self.step = 0
        self.before = dict(before)
        if stop_before is not None:
            self.before[stop_before] = _interrupt
        self.poison = poison if isinstance(poison, tuple) else (poison,)
        self.pause = pause
        self.without = without

    def __iter__(self):
        return self

    def __next__(self):
        time.sleep(self.pause)
        self.step += 1
        self.before.get(self.step, lambda: None)()
        late = self.without is not None and self.step >= self.without
        batch = random_batch(seed=self.step + late)
        images = batch.images.astype(np.float32)
        if self.step in self.poison:
            images[3] = np.nan
        return LoadedBatch(batch.replace(images=images), question_ids(batch), [])

    def get_state(self):
        return {"step": self.step}

    def set_state(self, state):
        self.step = state["step"]


def _interrupt():
    raise KeyboardInterrupt


def question_ids(batch):
    """Names of a batch's questions, None where there is none."""
    return [[None if i < 0 else f"q{i}" for i in row] for row in np.asarray(batch.question_index)]


def read_metrics(workdir, timed=True):
    """The lines of a run's metrics.jsonl; what no two runs share may be left out."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if timed or not k.endswith(_CLOCK)} for line in lines]


_CLOCK = ("_per_second", "_seconds", "_gb", "seconds_left", "mfu")


def read_arrays(workdir, number, item="parameters"):
    """Arrays of a checkpoint by name."""
    with ocp.StandardCheckpointer() as checkpointer:
        path = workdir.absolute() / "checkpoints" / str(number) / item
        return {k: np.asarray(v) for k, v in checkpointer.restore(path).items()}


def assert_same_arrays(ours, theirs, number=6, item="parameters", their_number=None):
    """Two runs' checkpoints are the same bit for bit."""
    ours = read_arrays(ours, number, item)
    theirs = read_arrays(theirs, their_number or number, item)
    assert ours.keys() == theirs.keys()
    for name in theirs:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def assert_close(ours, theirs, **tolerances):
    """Two trees of arrays, leaf by leaf."""
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, **tolerances)


def open_store(workdir, best="vqa/f1"):
    """A run's checkpoints, to read."""
    return CheckpointStore(workdir, best, writing=False)


def trainer(folder, config):
    """`train(batches=BatchStream(), workdir="run", ...)` of a model that compiles in a blink.

    It takes six steps, with a checkpoint at every second one, and returns the lines told.
    `train.config` may be changed.
    """
    config.mesh.data = 8
    config.training.log_every = 1
    config.training.checkpoint_every = 2
    config.optimizer.learning_rate = 0.01

    def train(
        batches=None,
        workdir="run",
        *,
        steps=6,
        base=BASE,
        seed=0,
        model=None,
        data_files=(),
        function=loop.train,
        **options,
    ):
        lines = []
        function(
            typed_config(config),
            folder / workdir,
            Start(model or TinyModel(seed), base),
            TrainingData(batches or BatchStream(), steps, data_files),
            **{"log_line": lines.append, **options},
        )
        return lines

    train.config = config
    return train


@pytest.fixture
def run(run_config, tmp_path):
    """See `trainer`."""
    return trainer(tmp_path, run_config)


@pytest.fixture(scope="session")
def _ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ended")
    trainer(folder, settings())()
    return folder / "run"


@pytest.fixture
def ended(_ended, tmp_path):
    """The workdir of a `run()` that has come to its end."""
    return shutil.copytree(_ended, tmp_path / "run")


@pytest.fixture(scope="session")
def small_vlm(drawn):
    """`small_vlm(**options) -> VLM` of some thousand parameters, always the same ones."""

    @functools.cache
    def made(**options):
        return nnx.split(drawn(lambda: VLM(SMALL, rngs=nnx.Rngs(0), **options)))

    def copied(**options):
        graph, state = made(**options)
        return nnx.merge(graph, jax.tree.map(jnp.array, state))  # steps may be given its arrays

    return copied


@pytest.fixture
def run_config():
    """See `settings`."""
    return settings()


def settings():
    """A valid configuration for a few steps."""
    config = default_config()
    config.training.batch_images = 8
    config.training.steps = 10
    config.trainable = (".*",)
    return config


def take_steps(config, model, mesh, batches, steps=10):
    """[(state, metrics) after each batch], on the host, and the last state and frozen part."""
    graphdef, trainable, frozen = partition(model, config.trainable)
    frozen = meshes.put_tree(step.cast_params(frozen, config.model.frozen_dtype), mesh)
    trainable = jax.tree.map(jnp.array, trainable)  # the step is given its arrays
    state = step.init_state(trainable, make_optimizer(config.optimizer, steps))
    state = meshes.put_tree(state, mesh)
    function = step.make_parallel_step(graphdef, config, steps, mesh, state, frozen)
    taken = []
    for batch in batches:
        placed = meshes.put_batch(batch, mesh)
        with jax.transfer_guard("disallow"):
            state, metrics = function(state, frozen, placed)
        taken.append((jax.device_get(state), jax.device_get(metrics)))
    return taken, (state, frozen)


class Letters:
    """A tokenizer of location tokens and 16 letters; what ends an answer is id 1."""

    stop_ids = (END,)
    eos_id = END

    def decode(self, ids):
        return "".join(
            f"<loc{i - LOC_START:04d}>" if LOC_START <= i < LOC_START + 1024 else chr(97 + i % 16)
            for i in ids
        )

    def encode(self, text):
        return [2 + (ord(letter) - 97) % 2 for letter in text]
