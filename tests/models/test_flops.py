"""The formula against the products that JAX traces, and against XLA's own count."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from cxrjax.models import VLM, LoRAConfig, apply_lora, partition
from cxrjax.models.flops import BatchShape, step_flops, total
from cxrjax.models.presets import IMAGE, DecoderConfig, VisionConfig, VLMConfig
from tests.models.sizes import changed

VISION = VisionConfig(image_size=32, patch_size=8, width=64, depth=2, num_heads=4, mlp_dim=192)
DECODER = DecoderConfig(
    vocab_size=1100, width=128, depth=3, num_heads=4, num_kv_heads=2, head_dim=32, mlp_dim=384
)
FULL = VLMConfig(VISION, DECODER, 4)
CAUSAL = changed(
    FULL, decoder={"prefix_attention": "causal"}, context=(2, IMAGE, 3), projector="normed"
)
SHAPE = BatchShape(images=2, questions=3, prefix=5, answer=7)


def _products(jaxpr) -> float:
    """Operations of every dot_general of a jaxpr, loops multiplied by their length."""
    count = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            inner = math.prod(shape[d] for d in contracted)
            count += 2.0 * math.prod(equation.outvars[0].aval.shape) * inner
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            if hasattr(value, "jaxpr") or hasattr(value, "eqns"):
                count += times * _products(getattr(value, "jaxpr", value))
    return count


def _loss(sizes, share, remat, rules, shape, rank=4):
    """Gradients of a loss of all answer logits in what trains, and what it takes."""

    def make():
        model = VLM(sizes, rngs=nnx.Rngs(0), share=share, remat=remat, dtype="bfloat16")
        if rank:
            targets = ("decoder/layers/attn/.*", "projector")
            apply_lora(model, LoRAConfig(rank=rank, targets=targets), nnx.Rngs(1))
        return model

    model = nnx.eval_shape(make)
    graphdef, trainable, frozen = partition(model, rules)
    slots = (shape.images, shape.questions)
    arrays = (
        jax.ShapeDtypeStruct((shape.images, 32, 32, 3), jnp.uint8),
        jax.ShapeDtypeStruct((*slots, shape.prefix), jnp.int32),
        jax.ShapeDtypeStruct((*slots, shape.prefix), bool),
        jax.ShapeDtypeStruct((*slots, shape.answer), jnp.int32),
        jax.ShapeDtypeStruct((*slots, shape.answer), bool),
    )

    def loss(trainable, frozen, *batch):
        model = nnx.merge(graphdef, trainable, frozen)
        hidden = model(*batch, packed_length=shape.packed_length)
        return jnp.sum(jax.nn.logsumexp(model.logits(hidden), axis=-1))

    def gradients(trainable, frozen, *batch):
        return jax.grad(loss)(trainable, frozen, *batch)

    return model, loss, gradients, (trainable, frozen, *arrays)


CASES = {
    "full fine-tuning": (FULL, "tower", (".*",), SHAPE),
    "lora in the decoder": (FULL, "tower", ("/lora/",), SHAPE),
    "shared image": (CAUSAL, "image", ("decoder/.*/lora/",), SHAPE),
    "packed": (FULL, "image", ("/lora/",), BatchShape(2, 3, 5, 7, packed_length=20)),
    "projector and decoder": (CAUSAL, "tower", ("^projector", "^decoder/"), SHAPE),
}


@pytest.mark.parametrize("name", CASES)
def test_formula_is_what_jax_traces(name):
    """But for what nobody needs: the gradient of the pixels, and of the first layer's input."""
    sizes, share, rules, shape = CASES[name]
    model, loss, gradients, arguments = _loss(sizes, share, "none", rules, shape)
    found = total(step_flops(model, rules, shape, remat=False))
    assert _products(jax.make_jaxpr(loss)(*arguments).jaxpr) == pytest.approx(found.forward)
    traced = _products(jax.make_jaxpr(gradients)(*arguments).jaxpr)
    assert traced == pytest.approx(found.model, rel=0.01)


def test_remat_computes_every_layer_again():
    rules = ("/lora/",)
    model, _, gradients, arguments = _loss(FULL, "tower", "full", rules, SHAPE)
    parts = step_flops(model, rules, SHAPE, remat=True)
    assert parts["vision"].recompute == parts["vision"].backward == 0  # frozen: no backward
    again = total(parts).recompute
    traced = _products(jax.make_jaxpr(gradients)(*arguments).jaxpr)
    assert traced - total(parts).model == pytest.approx(again, rel=0.05)


@pytest.mark.parametrize("rules", [pytest.param((".*",), marks=pytest.mark.slow), ("/lora/",)])
def test_formula_against_xla(rules):
    """XLA counts what is not a product too, and no loop: one layer each, unscanned."""
    vision, decoder = ({"depth": 1, "width": n, "mlp_dim": 4 * n} for n in (256, 512))
    sizes = changed(FULL, vision, decoder)
    shape = BatchShape(4, 2, 32, 32)
    model, _, gradients, arguments = _loss(sizes, "tower", "none", rules, shape, rank=8)
    compiled = jax.jit(gradients).lower(*arguments).compile()
    counted = compiled.cost_analysis()["flops"]
    found = total(step_flops(model, rules, shape, remat=False)).model
    assert counted == pytest.approx(found, rel=0.05)


def test_published_size():
    """A language model's forward and backward are close to 6 times its parameters a token."""
    from cxrjax.models import PRESETS

    model = nnx.eval_shape(lambda: VLM(PRESETS["gemma3_1b"], rngs=nnx.Rngs(0)))
    shape = BatchShape(images=1, questions=1, prefix=0, answer=16)
    parts = step_flops(model, (".*",), shape, remat=False)
    parameters = sum(p.size for p in jax.tree.leaves(nnx.state(model)))
    assert total(parts).model == pytest.approx(6 * parameters * 16, rel=0.01)


def _of_tower(part, rules, shape, **settings):
    sizes = changed(FULL, settings, projector="merger")
    model = nnx.eval_shape(lambda: VLM(sizes, rngs=nnx.Rngs(0)))
    return step_flops(model, rules, shape, remat=False)[part]


def test_windows_of_a_tower_see_themselves_alone():
    """Four windows of 4 x 4 patches in two layers, the whole of 8 x 8 in the third."""
    settings = {"image_size": 64, "depth": 3, "pool": 2, "kind": "qwen", "full_every": 3}
    shape = dataclasses.replace(SHAPE, questions=1)
    whole, apart = (
        _of_tower("vision", ("decoder/",), shape, **settings, window=window).forward
        for window in (None, 4)
    )
    per_pair = 4.0 * shape.images * VISION.width
    assert whole - apart == per_pair * 2 * (64 * 64 - 64 * 16)


def test_inner_layers_of_a_tower_are_merged_too():
    """Two maps each, of four patches side by side, counted with the projector."""
    settings = {"depth": 3, "pool": 2, "kind": "qwen3", "position_side": 3}
    added, without = (
        _of_tower("projector", ("deepstack/",), SHAPE, **settings, deepstack=inner)
        for inner in ((0, 2), ())
    )
    merged, tokens = 4 * VISION.width, 2 * 2
    expected = 2.0 * SHAPE.images * tokens * 2 * merged * (merged + DECODER.width)
    assert added.forward - without.forward == expected
    # Of the weights, and of what goes in: a norm before them trains too.
    assert added.backward - without.backward == 2 * expected
