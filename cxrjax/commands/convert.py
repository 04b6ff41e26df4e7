"""Brings models in from Hugging Face, GGUF and PEFT, and takes ours back out.

    python -m cxrjax.convert --checkpoint=paligemma2-3b-pt-448 --out=bases/paligemma2
    python -m cxrjax.convert --checkpoint=google/medgemma-4b-it --out=bases/medgemma --download
    python -m cxrjax.convert --checkpoint=gemma-3-270m.gguf --out=bases/gemma3
    python -m cxrjax.convert --checkpoint=adapter --base=bases/paligemma2 --out=runs/theirs
    python -m cxrjax.convert --checkpoint=runs/mine --to=peft --out=adapter
    python -m cxrjax.convert --checkpoint=runs/mine --to=merged --out=my-paligemma2
    python -m cxrjax.convert --checkpoint=runs/mine --to=merged --out=my-model --push=me/my-model
    python -m cxrjax.convert --checkpoint=runs/demo_base/train --out=data/demo_base

What --checkpoint is, is recognised: a Hugging Face directory (safetensors), a GGUF file of Gemma 3,
a PEFT adapter (with --base, a base of ours), a base directory, or a training workdir. The name of a
model on the Hugging Face hub, where there is no such folder, is answered with how to get it: page,
licence, command; with --download, or as hf://OWNER/NAME[@REVISION], it is fetched into the hub's
cache and converted. --push uploads what was written, with a model card. --to:

    orbax   a base directory of ours, that runs start from; of an adapter, a workdir (default)
    hf      a Hugging Face directory: config.json, safetensors, tokenizer
    peft    the adapters of a workdir, as PEFT saves them
    merged  as hf, with the adapters folded into the weights
"""

import argparse
from collections.abc import Sequence

from cxrjax.cli import command_parser
from cxrjax.flags import add_options
from cxrjax.training.conversion import convert


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the flags; leaves with code 2 where they are unusable."""
    parser = command_parser("convert", __doc__)
    add_options(parser, convert)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Converts what the flags name and prints the files that were written."""
    flags = parse_arguments(argv)
    convert(**vars(flags))
    print(f"{flags.out}: {', '.join(sorted(path.name for path in flags.out.iterdir()))}")
