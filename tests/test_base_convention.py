"""A base that points knows its own way of writing boxes best: who trains it begins with that."""

import dataclasses
from pathlib import Path

import jax
import pytest
from flax import nnx

from cxrjax import build
from cxrjax.input_pipeline.loader import eval_loader
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.training.checkpoint import load_model
from cxrjax.training.data import example_config, open_tokenizer
from cxrjax.training.loss import multitask_loss

ROOT = Path(__file__).parents[1]
BASE, RADIOGRAPHS = ROOT / "data/real_base", ROOT / "data/radiographs"
IMAGES = 8


_LUNGS = ("right lung", "left lung")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """`batch(key=value, ...)` of radiographs by these settings, and `cost(batch)` of an answer.

    Records, loader and loss are those of training. A cost is the nats of a whole answer in the
    mean: conventions differ in how many tokens they take.
    """
    folder = tmp_path_factory.mktemp("lungs")
    build.main(["--dataset=lungs", f"--source={RADIOGRAPHS}", f"--out={folder}"])
    loaded = load_model(BASE)
    tokenizer = open_tokenizer(loaded.tokenizer_path, loaded.config)
    graphdef, state = nnx.split(loaded.model)

    def batch(**changes):
        data = dataclasses.replace(
            loaded.config.data, answer_buckets=(128,), prefix_buckets=(24,), **changes
        )
        training = dataclasses.replace(loaded.config.training, box_route="none")
        config = dataclasses.replace(loaded.config, data=data, training=training)
        records = RecordSource(folder / "records/validation.jsonl", None, 4)
        others = {i for i, record in records.records() if record.finding not in _LUNGS}
        loader = eval_loader(
            records.without(others),
            tokenizer,
            example_config(config),
            global_batch_size=IMAGES,
            with_answers=True,
        )
        return next(iter(loader)).batch

    @jax.jit
    def parts(state, batch):
        return multitask_loss(nnx.merge(graphdef, state), batch, 0.0, box_route="none")[1]

    def cost(batch) -> float:
        return float(parts(state, batch).ce_sum) / float(batch.answer_mask.any(axis=-1).sum())

    return batch, cost


def test_its_own_convention_costs_least(base):
    batch, cost = base
    stretched, padded = batch(), batch(geometry="letterbox")
    own = cost(stretched)
    wrong = {
        # The numbers are of another placing of the image than the one that the model sees.
        "stretched, told as padded": dataclasses.replace(padded, images=stretched.images),
        "padded, told as stretched": dataclasses.replace(stretched, images=padded.images),
        "pixels of the original": batch(codec="vindr_px"),
        "thousandths of the image": batch(codec="gemini_json"),
        "hundredths of the padded square": batch(codec="llava"),
    }
    costs = {name: cost(each) for name, each in wrong.items()}
    assert all(each > own + 1 for each in costs.values()), (own, costs)
    # Where picture and numbers are padded alike, the convention is the same.
    assert cost(padded) < min(costs.values()), (own, costs)
