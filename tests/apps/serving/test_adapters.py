"""Several adapters in one batch: each row as its own adapter alone would have it."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cxrjax.apps.serving.mixed_lora import (
    AdapterParts,
    adapter_parts,
    choose_adapters,
    mix_adapters,
)
from cxrjax.apps.serving.named_models import _check_alike, open_served
from cxrjax.apps.serving.programs import SlotRequest
from cxrjax.errors import UserError
from cxrjax.evaluation.systems.own_model import open_model
from cxrjax.models import LoRAConfig, apply_lora
from cxrjax.models.layers import Linear
from cxrjax.models.peft import save_peft
from cxrjax.training.base_model import base_sha256
from cxrjax.training.checkpoint import load_model
from tests.apps.serving.conftest import (
    ANSWER,
    in_batches,
    make_programs,
    pictures,
    questions,
    tiny_model,
)
from tests.apps.serving.test_engine import Heard

BASE = Path(__file__).parents[3] / "data" / "real_base"


def adapted(model, seed, rows=False, **settings):
    """A copy with an adapter that says something else."""
    own = nnx.merge(*nnx.split(model))
    paths = apply_lora(own, LoRAConfig(**settings), nnx.Rngs(seed))
    rng = np.random.default_rng(seed)
    for path, module in nnx.iter_modules(own):
        if "/".join(map(str, path)) in paths:
            module.lora.b[...] = jnp.asarray(rng.standard_normal(module.lora.b.shape), jnp.float32)
    if rows:
        own.decoder.embedder.add_loc_delta()
        delta = own.decoder.embedder.loc_delta
        delta[...] = jnp.asarray(0.3 * rng.standard_normal(delta.shape), jnp.float32)
    return own


@pytest.mark.parametrize("share", ["image", pytest.param("tower", marks=pytest.mark.slow)])
def test_each_row_goes_through_its_own_adapter(share, running):
    base = tiny_model(share)
    adapters = [
        adapted(base, 1, rank=2, alpha=2.0, targets=(r"decoder/layers/attn/(q|v)_proj",)),
        adapted(base, 2, rank=3, alpha=1.0, targets=(r"decoder/layers/mlp/.*", "projector")),
        adapted(base, 3, rows=True, rank=1, alpha=0.5, targets=(r"vision/.*fc1",)),
    ]
    prompts, images = questions(3), pictures(2)
    models = [base, *adapters]
    expected = {
        (m, i): in_batches(model, image, prompts)
        for m, model in enumerate(models)
        for i, image in enumerate(images)
    }
    mixed = nnx.merge(*nnx.split(base))
    mix_adapters(mixed, [adapter_parts(one) for one in adapters])
    engine = running(make_programs(mixed, slots=4, buckets=(8,)))
    asked = [(q, m, i) for q in range(3) for m in range(4) for i in range(2)]
    jobs = {
        (q, m, i): Heard(images[i], (m, i), SlotRequest(prompts[q], limit=ANSWER, adapter=m))
        for q, m, i in asked
    }
    engine.submit("a", [one.job for one in jobs.values()])
    for (q, m, i), one in jobs.items():
        one.wait().check(*(part[q] for part in expected[m, i]))
    said = {m: [part.tolist() for part in expected[m, 0][0]] for m in range(4)}
    assert all(said[m] != said[n] for m in range(4) for n in range(m))
    assert engine.counts.compiled_after_warm_up == 0


def _serve(adapters, **more):
    settings = {"slots": 2, "longest_prompt": 24, "decoding": {}} | more
    return open_served(BASE, "base", adapters, **settings)


@pytest.fixture(scope="module")
def peft(tmp_path_factory):
    """A PEFT folder on the base that ships."""
    folder = tmp_path_factory.mktemp("peft")
    model = load_model(BASE).model
    own = adapted(model, 4, rank=2, targets=(r"decoder/layers/attn/q_proj",))
    save_peft(folder, own, None, base_sha256=base_sha256(BASE))
    return folder, own


def test_folders_of_peft_are_found_by_their_names(peft):
    folder, own = peft
    served = _serve({"a": folder, "b": folder})
    assert list(served.by_name) == ["base", "a", "b"]
    assert [one.adapter for one in served.by_name.values()] == [0, 1, 2]
    expected = own.decoder.layers.attn.q_proj.lora
    (_, blocks) = served.programs._params
    for layer, block in enumerate(blocks):
        mixed = block["attn"]["q_proj"]["lora"]
        assert not np.asarray(mixed["a"][...][0]).any() and float(mixed["scale"][...][0]) == 0
        np.testing.assert_array_equal(mixed["a"][...][2], expected.a[...][layer])
        np.testing.assert_array_equal(mixed["b"][...][1], expected.b[...][layer])


def test_runs_and_flags_that_do_not_go_together_are_refused(peft, tmp_path):
    folder, own = peft
    with pytest.raises(UserError, match="name is taken"):
        _serve({"base": folder})
    save_peft(tmp_path / "other", own, None, base_sha256="0" * 64)
    with pytest.raises(UserError, match="another base"):
        _serve({"a": tmp_path / "other"})
    with pytest.raises(UserError, match="a base"):
        _serve({"a": BASE})
    with pytest.raises(UserError, match="--beams=1"):
        _serve({}, decoding={"beams": 2, "boxes": "greedy"})
    base = open_model(BASE)
    config = base.generator.model.config
    _check_alike(BASE, base, base)
    smaller = dataclasses.replace(config.vision, image_size=128)
    model = SimpleNamespace(config=dataclasses.replace(config, vision=smaller))
    other = dataclasses.replace(base, generator=SimpleNamespace(model=model))
    with pytest.raises(UserError, match=r"model\.preset"):
        _check_alike(BASE, base, other)


def test_location_rows_are_added_before_logits_are_capped():
    """As the adapter alone has it (Gemma 2, Gemma 4)."""
    base = tiny_model()
    base.decoder.embedder.softcap = 2.0
    adapter = adapted(base, 3, rows=True, rank=1, alpha=0.5, targets=("projector",))
    mixed = nnx.merge(*nnx.split(base))
    mix_adapters(mixed, [adapter_parts(adapter)])
    choose_adapters([mixed], jnp.array([1, 0]))
    hidden = jnp.asarray(9 * np.random.default_rng(0).normal(size=(2, 3, 24)), jnp.float32)
    found = mixed.decoder.embedder.decode(hidden)
    for row, model in enumerate((adapter, base)):
        expected = model.decoder.embedder.decode(hidden[row])
        np.testing.assert_allclose(found[row], expected, atol=1e-5)


class _Map(nnx.Module):
    def __init__(self):
        self.map = Linear(6, 5, rngs=nnx.Rngs(0))


def test_adapters_of_different_ranks_lie_beside_one_map():
    base, adapters = _Map(), []
    for rank, alpha in ((1, 2.0), (3, 1.0)):
        own = nnx.merge(*nnx.split(base))
        apply_lora(own, LoRAConfig(rank=rank, alpha=alpha, targets=("map",)), nnx.Rngs(rank))
        own.map.lora.b[...] = jnp.arange(5.0 * rank).reshape(rank, 5) - 2
        adapters.append(own)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 6)), jnp.float32)
    expected = [one.map(row) for one, row in zip((*adapters, base), x, strict=True)]
    mix_adapters(base, [AdapterParts({"map": one.map.lora}, None) for one in adapters])
    choose_adapters([base], jnp.array([1, 2, 0]))
    np.testing.assert_allclose(base.map(x), jnp.stack(expected), atol=1e-5)
