"""Models for the page: the shipped base, and a run on it that has learnt nothing of use."""

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest
from flax import nnx

from tests.apps.servers import ROOT

BASE = ROOT / "data" / "real_base"


@pytest.fixture(scope="session")
def base():
    return BASE


@pytest.fixture(scope="session")
def tuned(tmp_path_factory):
    """A workdir as `make demo` leaves it, but for the adapters: these are drawn, not trained."""
    from cxrjax.models import partition
    from cxrjax.models.partition import path_of
    from cxrjax.training.base_model import copy_tokenizer, tokenizer_path
    from cxrjax.training.checkpoint import build_model
    from cxrjax.training.config_file import load_config
    from cxrjax.training.optimizer import make_optimizer
    from cxrjax.training.step import init_state
    from cxrjax.training.store import CheckpointStore
    from cxrjax.training.workdir import CONFIG_FILE, write_json

    workdir = tmp_path_factory.mktemp("demo") / "train"
    workdir.mkdir()
    words = [f"--config.model.init_from={BASE}", "--config.training.steps=1"]
    config = load_config(f"{ROOT / 'configs' / 'vindr_lora.py'}:demo", words)
    model, reference = build_model(config)
    _, trainable, _ = partition(model, config.trainable)
    for number, (path, value) in enumerate(nnx.to_flat_state(trainable)):
        if path_of(path).endswith("/lora/b"):
            drawn = jax.random.normal(jax.random.key(number), value[...].shape)
            value[...] = jnp.asarray(0.01 * drawn, value[...].dtype)
    state = init_state(trainable, make_optimizer(config.optimizer, 1))
    write_json(workdir / CONFIG_FILE, config.to_json())
    copy_tokenizer(tokenizer_path(config), workdir)
    store = CheckpointStore(workdir, config.training.best_metric)
    store.save(1, state, {}, reference, {})
    store.close()
    return workdir


@pytest.fixture
def picture(tmp_path):
    """`picture(name, height, width)` -> a PNG file of grey noise."""

    def write(name="x.png", height=60, width=80):
        pixels = np.random.default_rng(0).integers(0, 255, (height, width), np.uint8)
        path = tmp_path / name
        PIL.Image.fromarray(pixels).save(path)
        return path

    return write
