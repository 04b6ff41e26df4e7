"""Writes a trained model as a base directory that other runs can start from.

    python -m cxrjax.convert --checkpoint=runs/demo_base/train --out=data/demo_base

The source is a training workdir whose parameters were all trained, or another base directory.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from cxrjax.cli import run
from cxrjax.errors import UserError
from cxrjax.training.checkpoint import load_model, save_base


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Flags of the command; leaves with code 2 where they are unusable."""
    parser = argparse.ArgumentParser(
        prog="python -m cxrjax.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--checkpoint", required=True, type=Path, metavar="DIR", help="a model of ours")
    add("--out", required=True, type=Path, metavar="DIR", help="folder to write to")
    add("--to", default="orbax", choices=("orbax",), help="what to write (default orbax)")
    add("--dtype", default="float32", choices=("float32", "bfloat16"), help="of the parameters")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Converts what the flags name."""
    flags = parse_arguments(argv)
    model, config, tokenizer = load_model(flags.checkpoint)
    if config.lora.rank > 0 or config.lora.loc_rows:
        raise UserError(
            f"{flags.checkpoint}: has adapters, and a base has none; use it by --workdir as it is"
        )
    notes = {"data": config.data.train, "findings": list(config.data.findings)}
    save_base(flags.out, model, config, tokenizer, dtype=flags.dtype, notes=notes)
    print(f"{flags.out}: model.json, tokenizer.model, params/")


if __name__ == "__main__":
    run(main)
