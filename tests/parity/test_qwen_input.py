"""The size of a Qwen-VL model's input against transformers' own code."""

import ast
import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

from cxrjax.codecs.frames import SMART_FACTOR, SMART_LEAST, smart_resize

pytestmark = pytest.mark.parity


def _their_smart_resize():
    """Of the source file: to import it takes torchvision."""
    spec = importlib.util.find_spec("transformers")
    folder = Path(spec.origin).parent / "models" / "qwen2_vl"
    tree = ast.parse((folder / "image_processing_qwen2_vl.py").read_text(encoding="utf-8"))
    (function,) = (
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == "smart_resize"
    )
    names = {"math": math}
    exec(compile(ast.Module([function], []), "qwen2_vl", "exec"), names)
    return names["smart_resize"]


@pytest.mark.parametrize("most", [12_845_056, 1_003_520])
def test_it_is_theirs(most):
    theirs = _their_smart_resize()
    for height, width in np.random.default_rng(0).integers(14, 4000, (300, 2)).tolist():
        if max(height, width) < 200 * min(height, width):
            expected = theirs(height, width, SMART_FACTOR, SMART_LEAST, most)
            assert smart_resize(height, width, most) == tuple(expected)
