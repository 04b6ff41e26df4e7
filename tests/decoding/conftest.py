"""A model small enough to be run anew for every token, and questions for it."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cxrjax.input_pipeline.tokenizer import load_tokenizer
from cxrjax.models import PRESETS, VLM
from tests.models.sizes import changed

BASE = Path(__file__).parents[2] / "data" / "demo_base"
TOKENIZER = load_tokenizer(BASE / "tokenizer.model")
SLOTS = 6


@nnx.jit
def _logits(model, *inputs):
    return model.logits(model(*inputs))


@dataclasses.dataclass
class Tiny:
    """A random model and five questions about two images; the sixth slot is empty."""

    model: VLM
    inputs: tuple[np.ndarray, ...]
    slots: int = SLOTS

    @property
    def asked(self):
        return [(int(b), int(q)) for b, q in np.argwhere(self.inputs[2].any(-1))]

    def logits(self, b, q, tokens):
        """Float64 logits after a beginning of an answer, from the whole sequence, no cache."""
        so_far = np.zeros((2, 3, self.slots), np.int32)
        so_far[b, q, : len(tokens)] = tokens
        # What stands after position len(tokens) is not seen: answers are causal.
        logits = _logits(self.model, *self.inputs, so_far, np.ones_like(so_far, bool))
        return np.asarray(logits[b, q, len(tokens)], np.float64)

    def logprobs(self, b, q, tokens):
        logits = self.logits(b, q, tokens)
        return logits - np.logaddexp.reduce(logits)

    def forced(self, tokens):
        """Log-probabilities of whole answers, [B, Q, A], in one pass."""
        logits = _logits(self.model, *self.inputs, tokens, np.ones_like(tokens, bool))
        logprobs = jax.nn.log_softmax(logits)
        return np.take_along_axis(np.asarray(logprobs), tokens[..., None], axis=-1)[..., 0]


@pytest.fixture(scope="session")
def tiny(drawn):
    """`tiny(share, vocab_size)`: with 1,024 location tokens from id 4 where there is room."""
    made = {}

    def make(share, vocab_size):
        if (share, vocab_size) not in made:
            config = changed(
                PRESETS["tiny"],
                vision={"image_size": 16, "patch_size": 8, "width": 24, "depth": 1, "mlp_dim": 32},
                decoder={
                    "vocab_size": vocab_size,
                    "width": 24,
                    "depth": 2,
                    "head_dim": 6,
                    "mlp_dim": 32,
                },
                loc_token_start=4 if vocab_size > 1028 else -1,
            )
            model = drawn(lambda: VLM(config, rngs=nnx.Rngs(2), share=share))
            # Without this an untrained model says one token for ever.
            model.decoder.layers.attn.o_proj.kernel[...] *= 4.0
            # Neighbouring bins start nearly alike: rounding would tell which is likelier.
            rng = np.random.default_rng(4)
            model.decoder.embedder.table[...] = jnp.asarray(
                0.2 * rng.standard_normal((vocab_size, 24)), jnp.float32
            )
            prefix_mask = np.ones((2, 3, 6), bool)
            prefix_mask[0, 1, :4] = False
            prefix_mask[1, 0] = False
            prefix_tokens = (rng.integers(2, vocab_size, (2, 3, 6)) * prefix_mask).astype(np.int32)
            images = rng.integers(0, 256, (2, 16, 16, 3)).astype(np.uint8)
            made[share, vocab_size] = Tiny(model, (images, prefix_tokens, prefix_mask))
        return made[share, vocab_size]

    return make


@pytest.fixture(scope="session")
def box_rule():
    """`box_rule(tokens, remaining)`: what may follow in free text, of 1,060 tokens, anew."""

    def allowed(tokens, remaining):
        start, bins = 4, np.arange(1060) - 4
        is_loc = (bins >= 0) & (bins < 1024)
        locs = 0
        while locs < len(tokens) and start <= tokens[-1 - locs] < start + 1024:
            locs += 1
        if locs % 4 == 0:
            return ~is_loc | ((bins < 1023) & (remaining >= 3))
        if locs % 4 == 1:
            return is_loc & (bins < 1023)
        return is_loc & (bins > tokens[-2] - start)

    return allowed
