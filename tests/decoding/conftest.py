"""A model small enough to be run anew for every token, and questions for it."""

import dataclasses
import functools
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from cxrjax.input_pipeline.tokenizer import load_tokenizer
from cxrjax.models import VLM
from tests.models.sizes import talking_model

BASE = Path(__file__).parents[2] / "data" / "demo_base"
TOKENIZER = load_tokenizer(BASE / "tokenizer.model")
SLOTS = 6
slow = functools.partial(pytest.param, marks=pytest.mark.slow)


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
def tiny():
    @functools.cache
    def make(share, vocab_size):
        rng = np.random.default_rng(4)
        prefix_mask = np.ones((2, 3, 6), bool)
        prefix_mask[0, 1, :4] = False
        prefix_mask[1, 0] = False
        prefix_tokens = (rng.integers(2, vocab_size, (2, 3, 6)) * prefix_mask).astype(np.int32)
        images = rng.integers(0, 256, (2, 16, 16, 3)).astype(np.uint8)
        return Tiny(talking_model(share, vocab_size), (images, prefix_tokens, prefix_mask))

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
