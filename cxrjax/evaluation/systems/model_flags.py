"""The flags of `predict` and `evaluate` that say which model answers, and how."""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cxrjax.errors import UserError
from cxrjax.evaluation.systems.stand_in_images import STAND_INS
from cxrjax.files import shipped
from cxrjax.input_pipeline.prompts import PROMPTS

if TYPE_CHECKING:
    from cxrjax.distributed.meshes import MeshConfig

# decoding.answer_forms.ANSWER_FORMS, which takes seconds to import: --help stays quick.
GRAMMARS = ("none", "boxes", "yes_no", "option", "options", "names", "findings", "detections")
# decoding.box_readings.BOX_READINGS, the same.
BOX_READINGS = ("greedy", "smoothed", "median", "expected_iou")


def _split(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


# Flags that take the place of the model's own `decoding.*` key of the same name.
_DECODING_FLAGS: dict[str, dict[str, Any]] = {
    "grammar": {"choices": GRAMMARS, "help": "what answers may be"},
    "names": {"type": _split, "metavar": "A,B,...", "help": "findings, for the grammar"},
    "max_answer_tokens": {"type": int, "help": "length of an answer, end token included"},
    "boxes": {"choices": BOX_READINGS, "help": "how coordinates are read from location tokens"},
    "beams": {"type": int, "help": "beam search with so many hypotheses"},
    "length_penalty": {"type": float, "help": "of beam search (1: by mean log-probability)"},
    "temperature": {"type": float, "help": "of sampling; 0: the likeliest token at each step"},
    "top_k": {"type": int, "help": "sample from the k likeliest tokens; 0: from all"},
    "top_p": {"type": float, "help": "sample from the likeliest tokens up to this probability"},
    "best_of": {"type": int, "help": "sample so many answers and keep the likeliest"},
    "seed": {"type": int, "help": "of sampling, --image and baselines"},
}


def add_model_flags(parser: argparse.ArgumentParser) -> Any:
    """Declares the flags.

    Returns:
        The group of what names a model, of which one is required: for more of that kind.
    """
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--workdir", type=Path, help="a training run: its best checkpoint")
    model.add_argument("--checkpoint", type=shipped, help="a base model's directory")
    add = parser.add_argument
    add("--step", type=int, help="of a training run, another checkpoint than the best")
    add("--image_root", type=Path, help="what image_path is relative to (data/README.md)")
    add("--prompt", choices=sorted(PROMPTS), help="prompt format (default: the model's own)")
    add(
        "--source",
        metavar="NAME",
        help="of a run on a mixture: ask and read boxes as this source does (default: as `data`)",
    )
    add(
        "--image",
        default="shown",
        choices=STAND_INS,
        help="show the model another image than the one asked about, or that one blurred or "
        "masked, to see what it knows without looking "
        "(cxrjax/evaluation/systems/stand_in_images.py); by --seed",
    )
    add(
        "--images_per_batch",
        type=int,
        default=8,
        help="at a time, over all devices (default 8); raised to what they can share equally",
    )
    add(
        "--mesh",
        default="",
        metavar="AXIS=N,...",
        help="how devices share the work, such as fsdp=4,tensor=2 (cxrjax/distributed/meshes.py); "
        "by default each of them takes a part of the images",
    )
    group = parser.add_argument_group(
        "decoding",
        "In place of the model's own; greedy by default (cxrjax/decoding/strategy.py and "
        "answer_forms.py tell more).",
    )
    for name, settings in _DECODING_FLAGS.items():
        group.add_argument(f"--{name}", **settings)
    return model


def mesh_config(text: str) -> "MeshConfig":
    """The `mesh` group that `--mesh` describes; what it leaves out is as by default.

    Raises:
        UserError: it is not AXIS=N,... of axes that there are.
    """
    # Not at the top: --help stays quick.
    from cxrjax.distributed.meshes import AXES, MeshConfig

    sizes: dict[str, Any] = {}
    for word in filter(None, text.split(",")):
        axis, _, size = (part.strip() for part in word.partition("="))
        rest = axis == "data" and size == "-1"
        if axis not in AXES or not (rest or re.fullmatch("[1-9][0-9]*", size)):
            raise UserError(
                f"--mesh={text}: expected {'=N,'.join(AXES)}=N or some of them, found {word!r}"
            )
        sizes[axis] = int(size)
    return MeshConfig(**sizes)


def decoding_overrides(flags: argparse.Namespace) -> dict[str, Any]:
    """The `decoding.*` keys that were given as flags."""
    given = {name: getattr(flags, name) for name in _DECODING_FLAGS}
    return {name: value for name, value in given.items() if value is not None}
