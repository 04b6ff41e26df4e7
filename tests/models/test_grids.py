"""Images of several sizes through one model: what a model made for each of them gives."""

import jax
import numpy as np
import pytest
from flax import nnx

from cxrjax.decoding.generate import Generator
from cxrjax.decoding.strategy import Strategy
from cxrjax.models import PRESETS, VLM, LoRAConfig, apply_lora


def _inputs(rng, height, width):
    return {
        "images": rng.integers(0, 256, (2, height, width, 3)).astype(np.uint8),
        "prefix_tokens": rng.integers(2, 1000, (2, 2, 4)).astype(np.int32),
        "prefix_mask": np.ones((2, 2, 4), bool),
        "answer_tokens": rng.integers(2, 1000, (2, 2, 3)).astype(np.int32),
        "answer_mask": np.ones((2, 2, 3), bool),
    }


def _made_for(model, height, width):
    """The same parameters in a model that was made for images of another size."""
    made = nnx.eval_shape(
        lambda: VLM(model.config.for_images(height, width), rngs=nnx.Rngs(0), share=model.share)
    )
    apply_lora(made, _LORA, nnx.Rngs(0))
    return nnx.merge(nnx.graphdef(made), nnx.state(model))


_LORA = LoRAConfig(rank=2, alpha=4.0, targets=(r"decoder/layers/.*attn/q_proj", "projector"))


@pytest.mark.parametrize(
    ("preset", "share"),
    [
        ("tiny_qwen3", "tower"),
        ("tiny_gemma4", "image"),
        pytest.param("tiny_qwen", "image", marks=pytest.mark.slow),
        pytest.param("tiny_gemma4_12b", "tower", marks=pytest.mark.slow),
        pytest.param("tiny_internvl", "image", marks=pytest.mark.slow),
    ],
)
def test_a_model_takes_each_batch_as_the_model_of_its_size_does(preset, share, drawn):
    model = drawn(lambda: VLM(PRESETS[preset], rngs=nnx.Rngs(0), share=share))
    apply_lora(model, _LORA, nnx.Rngs(1))
    own = model.config
    hidden = nnx.jit(lambda model, inputs: model(**inputs))
    rng = np.random.default_rng(0)
    for size in [(128, 256), (256, 128)]:
        inputs, made = _inputs(rng, *size), _made_for(model, *size)
        np.testing.assert_array_equal(hidden(model, inputs), hidden(made, inputs))
    asked = [inputs[name] for name in ("images", "prefix_tokens", "prefix_mask")]
    answers = [Generator(one, Strategy(2, (1,)))(*asked) for one in (model, made)]
    jax.tree.map(np.testing.assert_array_equal, *answers)
    assert model.config is own and model.vision.config is own.vision


def test_a_tower_of_one_size_refuses_another(drawn):
    model = drawn(lambda: VLM(PRESETS["tiny"], rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match="only models of Qwen-VL, Gemma 4 and InternVL"):
        model.encode_images(np.zeros((1, 64, 128, 3), np.uint8))
