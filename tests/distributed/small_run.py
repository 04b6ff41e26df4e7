"""An entry point with the preset `tiny` made smaller: `python small_run.py train --config=...`."""

import dataclasses
import importlib
import sys

from cxrjax import cli
from cxrjax.models import PRESETS

_TINY = PRESETS["tiny"]
PRESETS["tiny"] = dataclasses.replace(
    _TINY,
    vision=dataclasses.replace(_TINY.vision, width=16, depth=1, num_heads=2, mlp_dim=16),
    decoder=dataclasses.replace(
        _TINY.decoder, width=16, depth=1, num_heads=2, head_dim=8, mlp_dim=16
    ),
)

if __name__ == "__main__":
    entry_point = importlib.import_module(f"cxrjax.{sys.argv[1]}")
    cli.run(lambda: entry_point.main(sys.argv[2:]))
