"""One training step and one greedy answer of the `tiny` preset, without most packages.

    python tests/training/accelerator_alone.py < CONFIG.json

A machine that has jax, flax, optax, numpy, jaxtyping and pydantic runs this. Prints the loss, the
norm of the gradients and the answer's tokens.
"""

import importlib
import importlib.abc
import json
import sys

ABSENT = set(
    """
    PIL clu grain ml_collections nltk orbax pandas pyarrow pydicom rouge_score sacrebleu
    safetensors scipy sentencepiece sklearn tensorflow tensorflow_datasets threadpoolctl tokenizers
    qwix torch transformers
    """.split()  # noqa: SIM905 - as words they are easier to read
)
MODULES = (
    "cxrjax.models",
    "cxrjax.training.box_loss",
    "cxrjax.training.loss",
    "cxrjax.training.step",
    "cxrjax.decoding.beam",
    "cxrjax.decoding.generate",
    "cxrjax.decoding.grammar",
    "cxrjax.decoding.strategy",
    "cxrjax.input_pipeline.batch",
)


class _Absent(importlib.abc.MetaPathFinder):
    """Packages that are not there, whether they are or not."""

    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ABSENT:
            raise ImportError(f"{name} is kept away")
        return None


def _tokens():
    """Two questions about each of two images, with a box in the first answer."""
    import numpy as np

    from cxrjax.input_pipeline.batch import Batch

    rng = np.random.default_rng(0)
    shape = (2, 2)
    answer = rng.integers(1100, 2048, (*shape, 8), np.int32)
    answer[:, 0, :4] = 4 + np.array([100, 200, 600, 700])  # y_min, x_min, y_max, x_max
    has_box = np.zeros((*shape, 1), bool)
    has_box[:, 0] = True
    return Batch(
        images=rng.integers(0, 256, (2, 128, 128, 3), np.uint8),
        prefix_tokens=rng.integers(1100, 2048, (*shape, 6), np.int32),
        prefix_mask=np.ones((*shape, 6), bool),
        answer_tokens=answer,
        answer_mask=np.ones((*shape, 8), bool),
        coordinate_positions=np.where(has_box[..., None], [1, 0, 3, 2], 0).astype(np.int32),
        target_boxes=np.where(has_box[..., None], [0.2, 0.1, 0.7, 0.6], 0).astype(np.float32),
        box_mask=has_box,
        question_index=np.arange(4, dtype=np.int32).reshape(shape),
    )


def main():
    sys.meta_path.insert(0, _Absent())
    for module in MODULES:
        importlib.import_module(module)

    import jax
    from flax import nnx

    from cxrjax.decoding.generate import generate
    from cxrjax.decoding.strategy import Strategy
    from cxrjax.models import PRESETS, VLM, partition
    from cxrjax.training.config_file import typed_config
    from cxrjax.training.optimizer import make_optimizer
    from cxrjax.training.step import init_state, make_train_step

    config = typed_config(json.load(sys.stdin))
    batch = _tokens()
    graphdef, trainable, frozen = partition(VLM(PRESETS["tiny"], rngs=nnx.Rngs(0)), ["decoder/"])
    state = init_state(trainable, make_optimizer(config.optimizer, 2))
    state, metrics = jax.jit(make_train_step(graphdef, config, 2))(state, frozen, batch)

    @jax.jit
    def answer(trainable, frozen):
        model = nnx.merge(graphdef, trainable, frozen)
        asked = batch.prefix_tokens, batch.prefix_mask, batch.question_index
        return generate(model, batch.images, *asked, Strategy(max_answer_tokens=4)).tokens

    values = {name: total / count for name, (total, count) in metrics.sums().items()}
    figures = {name: float(values[name]) for name in ("loss", "box_loss", "grad_norm")}
    tokens = answer(state.trainable, frozen).tolist()
    loaded = sorted(ABSENT & set(sys.modules))
    print(json.dumps({**figures, "tokens": tokens, "loaded": loaded}))


if __name__ == "__main__":
    main()
