"""The size of a Qwen-VL's and of a Gemma 4's input against transformers' own code."""

import ast
import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

from cxrjax.codecs.frames import SMART_FACTOR, SMART_LEAST, smart_resize, whole_tokens

pytestmark = pytest.mark.parity


def _theirs(model, name):
    """A function of the source file: to import it takes torchvision."""
    spec = importlib.util.find_spec("transformers")
    folder = Path(spec.origin).parent / "models" / model
    tree = ast.parse((folder / f"image_processing_{model}.py").read_text(encoding="utf-8"))
    (function,) = (
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name
    )
    names = {"math": math}
    exec(compile(ast.Module([function], []), model, "exec"), names)
    return names[name]


@pytest.mark.parametrize("most", [12_845_056, 1_003_520])
def test_it_is_theirs(most):
    theirs = _theirs("qwen2_vl", "smart_resize")
    for height, width in np.random.default_rng(0).integers(14, 4000, (300, 2)).tolist():
        if max(height, width) < 200 * min(height, width):
            expected = theirs(height, width, SMART_FACTOR, SMART_LEAST, most)
            assert smart_resize(height, width, most) == tuple(expected)


@pytest.mark.parametrize("tokens", [70, 280, 1120])
def test_gemma4_s_is_theirs(tokens):
    theirs = _theirs("gemma4", "get_aspect_ratio_preserving_size")
    sizes = np.random.default_rng(0).integers(1, 4000, (300, 2)).tolist()
    for height, width in [*sizes, (1, 3000), (3000, 2), (10, 100_000)]:
        expected = theirs(height, width, 16, tokens * 9, 3)
        assert whole_tokens(height, width, tokens, 48) == tuple(expected)
