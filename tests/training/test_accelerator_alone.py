"""A step and an answer need jax, flax, optax, numpy, jaxtyping and pydantic only."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cxrjax.training.config import default_config
from cxrjax.training.config_file import typed_config

SCRIPT = Path(__file__).parent / "accelerator_alone.py"
ROOT = SCRIPT.parents[2]


@pytest.mark.slow
def test_a_step_and_an_answer_without_most_packages():
    run = subprocess.run(
        [sys.executable, str(SCRIPT)],
        input=json.dumps(typed_config(default_config()).to_json()),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["loaded"] == []
    for name in ("loss", "box_loss", "grad_norm"):
        assert math.isfinite(found[name]) and found[name] > 0, name
    assert [len(answer) for row in found["tokens"] for answer in row] == [4] * 4
    assert any(token for row in found["tokens"] for answer in row for token in answer)
