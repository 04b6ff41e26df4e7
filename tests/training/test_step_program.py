"""What the step's program holds and does not, read off its jaxpr: nothing is compiled."""

import functools
from typing import Any

import jax
import pytest

from cxrjax.apps.planner import program
from cxrjax.distributed import meshes
from cxrjax.training import step
from cxrjax.training.config import default_config
from cxrjax.training.config_file import typed_config


@functools.cache
def _jaxpr(mesh=None, **keys):
    """The step's inputs and program of a small configuration with other values for some keys."""
    config = default_config()
    sizes = {"model.preset": "tiny", "model.init": "random", "data.prefix_buckets": (8,)}
    sizes |= {"data.answer_buckets": (64,), "training.batch_images": 2, "training.steps": 10}
    lora = {"lora.rank": 2, "lora.alpha": 4.0}
    rest = {"model.share": "image", "model.remat": "full", "training.logit_chunk": 16}
    config.update_from_flattened_dict({**sizes, **lora, **rest, **keys})
    config = typed_config(config)
    inputs = program.step_inputs(config)
    function = step.make_train_step(inputs.graphdef, config, 10, mesh)
    return inputs, jax.make_jaxpr(function)(inputs.state, inputs.frozen, inputs.batch)


def _equations(jaxpr: Any):
    """Every equation, inner ones too."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                    yield from _equations(getattr(inner, "jaxpr", inner))


def _products_with(jaxpr: Any, shapes: set[tuple[int, ...]]) -> int:
    """Matrix products of which one side has such a shape."""
    return sum(
        equation.primitive.name == "dot_general"
        and any(tuple(v.aval.shape) in shapes for v in equation.invars)
        for equation in _equations(jaxpr.jaxpr)
    )


def test_a_frozen_tower_has_no_backward_pass():
    inputs, jaxpr = _jaxpr()
    mlp = inputs.frozen["vision"]["layers"]["mlp"]
    kernels = {tuple(mlp[name]["kernel"].shape[1:]) for name in ("fc1", "fc2")}
    # One equation a map, for the layers are scanned: forward alone, once.
    assert _products_with(jaxpr, kernels) == 2
    # The count sees a backward pass where there is one.
    both = {"lora.targets": ("vision/layers/attn/(q|v)_proj",)}
    # Forward, fc1 again for the activation behind it, and the gradients of both inputs.
    assert _products_with(_jaxpr(**both)[1], kernels) == 2 + 1 + 2


def _largest(jaxpr, vocabulary, width):
    """Size of the largest array over the vocabulary that is not the table."""
    return max(
        v.aval.size
        for e in _equations(jaxpr.jaxpr)
        for v in e.outvars
        if vocabulary in getattr(v.aval, "shape", ()) and width not in v.aval.shape
    )


def test_a_chunk_of_logits_is_all_that_there_is_of_the_vocabulary():
    inputs, jaxpr = _jaxpr()
    vocabulary, width = inputs.frozen["decoder"]["embedder"]["table"].shape
    assert _largest(jaxpr, vocabulary, width) == 16 * vocabulary
    # Logits once and their gradient once: not again in the backward pass. The table is frozen
    # and has no gradient.
    assert _products_with(jaxpr, {(vocabulary, width)}) == 2
    assert not any(
        e.primitive.name in ("dot_general", "transpose", "add")
        and tuple(v.aval.shape) in ((vocabulary, width), (width, vocabulary))
        for e in _equations(jaxpr.jaxpr)
        for v in e.outvars
    )


def _mesh(**sizes):
    return meshes.make_mesh(meshes.MeshConfig(**sizes), jax.devices()[:4])


@pytest.mark.parametrize(("sizes", "devices_seen"), [({"data": 4}, 1), ({"fsdp": 4}, 4)])
def test_a_chunk_is_as_large_on_each_of_several_devices(sizes, devices_seen):
    """With `fsdp` the program is about all devices' rows, with `data` about one's own."""
    inputs, jaxpr = _jaxpr(_mesh(**sizes), **{"training.batch_images": 8})
    vocabulary, width = inputs.frozen["decoder"]["embedder"]["table"].shape
    assert _largest(jaxpr, vocabulary, width) == devices_seen * 16 * vocabulary


def test_gradients_are_summed_once_a_step_where_copies_are_whole():
    keys = {"training.batch_images": 8, "training.accumulation_steps": 2}
    inputs, jaxpr = _jaxpr(_mesh(data=2, replica=2), **keys)
    gradients = sum(x.size for x in jax.tree.leaves(inputs.state.trainable))

    def summed(equations):
        found = (e for e in equations if e.primitive.name.startswith("psum"))
        return sum(v.aval.size for e in found for v in e.invars)

    loops = [e for e in _equations(jaxpr.jaxpr) if e.primitive.name == "scan"]
    assert len(loops) >= 3  # micro-batches, layers, chunks of logits
    assert all(summed(_equations(e.params["jaxpr"].jaxpr)) == 0 for e in loops)
    # And sum and count of each figure.
    assert gradients < summed(_equations(jaxpr.jaxpr)) < gradients + 40


@pytest.mark.parametrize(("remat", "times"), [("products", 1), ("full", 2)])
def test_remat_names_what_is_computed_again(remat, times):
    inputs, jaxpr = _jaxpr(**{"model.remat": remat})
    mlp = inputs.frozen["decoder"]["layers"]["mlp"]
    kernel = tuple(mlp["gate_proj"]["kernel"].shape[1:])
    forward = sum(
        equation.primitive.name == "dot_general"
        and tuple(equation.invars[1].aval.shape) == kernel
        and equation.outvars[0].aval.shape[-1] == kernel[1]
        for equation in _equations(jaxpr.jaxpr)
    )
    assert forward == 2 * times  # gate and up are alike
