"""The real Gemma 3 270M from its GGUF file: what it writes, here and in transformers.

CXRJAX_GEMMA3_GGUF=gemma-3-270m.gguf pytest -m parity tests/parity/test_gemma3_270m.py -s
"""

import os
from pathlib import Path

import numpy as np
import pytest

from cxrjax.decoding.generate import Generator
from cxrjax.decoding.strategy import Strategy
from cxrjax.input_pipeline.tokenizer import BOS_ID, load_tokenizer
from cxrjax.models.gguf import GGUFFile
from cxrjax.training.checkpoint import load_model
from cxrjax.training.interchange import import_gguf
from tests.parity.conftest import Questions

torch = pytest.importorskip("torch")
_FILE = os.environ.get("CXRJAX_GEMMA3_GGUF")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.slow,
    pytest.mark.skipif(_FILE is None, reason="CXRJAX_GEMMA3_GGUF names no file"),
]
PROMPTS = ("The capital of France is", "A chest X-ray is used to", "One, two, three, four,")
_TOKENS = 16


def _transformers_model():
    """On the same dequantised weights, put in without any of our layout."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    file = GGUFFile(_FILE)
    state = {name: torch.from_numpy(array) for name, array in file.tensors()}
    config = Gemma3TextConfig(**file.config())
    return Gemma3ForCausalLM.from_pretrained(None, config=config, state_dict=state).eval()


def test_greedy_continuations(tmp_path):
    import_gguf(_FILE, tmp_path / "base")
    ours, config, tokenizer_path = load_model(tmp_path / "base")
    assert config.model.preset == "gemma3_270m"
    tokenizer = load_tokenizer(Path(tokenizer_path))
    ids = [[BOS_ID, *tokenizer.encode(prompt)] for prompt in PROMPTS]
    (_, tokens, mask, *_), _ = Questions(None, None, ids, [[]] * len(ids)).ours()
    found = Generator(ours, Strategy(_TOKENS, tokenizer.stop_ids))(None, tokens, mask).tokens[:, 0]
    del ours

    theirs = (
        _transformers_model()
        .generate(
            input_ids=torch.tensor(tokens[:, 0].astype(np.int64)),
            attention_mask=torch.tensor(mask[:, 0].astype(np.int64)),
            max_new_tokens=_TOKENS,
            do_sample=False,
            eos_token_id=list(tokenizer.stop_ids),
            pad_token_id=0,
        )[:, tokens.shape[-1] :]
        .numpy()
    )
    for prompt, answer in zip(PROMPTS, found, strict=True):
        print(f"{prompt!r} -> {tokenizer.decode(answer)!r}")
    np.testing.assert_array_equal(found[:, : theirs.shape[1]], theirs)
