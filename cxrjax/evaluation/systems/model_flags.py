"""Flags that say which model answers, and how; importing them loads no library."""

import argparse
import re
from typing import TYPE_CHECKING, Any

from cxrjax import choices
from cxrjax.errors import UserError
from cxrjax.files import shipped
from cxrjax.language_model.flags import add_client_flags
from cxrjax.paths import in_path

if TYPE_CHECKING:
    from cxrjax.distributed.meshes import MeshConfig

# What `--runner` may be; cxrjax/evaluation/systems/table.py starts them.
RUNNERS = {
    "prior_box": "each finding's mean box in training records",
    "majority": "training records' most frequent answer",
    "question": "most frequent answer to the question's words, box of what it names",
    "nearest": "answer of the training image that looks most alike",
    "random": "an answer sampled from those that the question leaves open",
    "reader": "one radiologist's boxes",
    "openai": "any model behind an OpenAI-compatible server",
    "hf": "a transformers model in a folder",
}
_MIN_SEEDS = 3


def _split(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


# Flags that take the place of the model's own `decoding.*` key of the same name.
_DECODING_FLAGS: dict[str, dict[str, Any]] = {
    "grammar": {"choices": choices.GRAMMARS, "help": "what answers may be"},
    "names": {"type": _split, "metavar": "A,B,...", "help": "findings, for the grammar"},
    "max_answer_tokens": {"type": int, "help": "length of an answer, end token included"},
    "boxes": {
        "choices": choices.BOX_READINGS,
        "help": "how coordinates are read from location tokens",
    },
    "beams": {"type": int, "help": "beam search with so many hypotheses"},
    "length_penalty": {"type": float, "help": "of beam search (1: by mean log-probability)"},
    "temperature": {"type": float, "help": "of sampling; 0: the likeliest token at each step"},
    "top_k": {"type": int, "help": "sample from the k likeliest tokens; 0: from all"},
    "top_p": {"type": float, "help": "sample from the likeliest tokens up to this probability"},
    "best_of": {"type": int, "help": "sample so many answers and keep the likeliest"},
    "seed": {"type": int, "help": "of sampling, --image and baselines"},
}


def add_source_flags(parser: argparse.ArgumentParser) -> Any:
    """Declares the flags that name a model and how it asks.

    Returns:
        The group of what names a model, of which one is required: for more of that kind.
    """
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--workdir", type=in_path, help="a training run: its best checkpoint")
    text = "a base, a Hugging Face folder, a GGUF file, a PEFT adapter, or hf://OWNER/NAME"
    model.add_argument("--checkpoint", type=shipped, help=text)
    add = parser.add_argument
    add("--base", type=in_path, metavar="DIR", help="of a PEFT adapter (default: what it names)")
    add("--step", type=int, help="of a training run, another checkpoint than the best")
    prompts = sorted(choices.PROMPTS)
    add("--prompt", choices=prompts, help="prompt format (default: the model's own)")
    text = "of a run on a mixture: ask and read boxes as this source does (default: as `data`)"
    add("--source", metavar="NAME", help=text)
    return model


def add_decoding_flags(parser: Any, *names: str) -> None:
    """Declares the decoding flags of these names, or all, to a parser or a group of one."""
    for name in names or _DECODING_FLAGS:
        parser.add_argument(f"--{name}", **_DECODING_FLAGS[name])


def add_model_flags(parser: argparse.ArgumentParser) -> Any:
    """Declares all flags of a model of ours; returns what `add_source_flags` does."""
    model = add_source_flags(parser)
    add = parser.add_argument
    add("--image_root", type=in_path, help="what image_path is relative to (data/README.md)")
    text = (
        "show the model another image than the one asked about, or that one blurred or masked, to "
        "see what it knows without looking (cxrjax/evaluation/systems/stand_in_images.py); by "
        "--seed"
    )
    add("--image", default="shown", choices=choices.STAND_INS, help=text)
    text = "at a time, over all devices (default 8); raised to what they can share equally"
    add("--images_per_batch", type=int, default=8, help=text)
    text = (
        "how devices share the work, such as fsdp=4,tensor=2 (cxrjax/distributed/meshes.py); by "
        "default each of them takes a part of the images"
    )
    add("--mesh", default="", metavar="AXIS=N,...", help=text)
    text = (
        "In place of the model's own; greedy by default (cxrjax/decoding/strategy.py and "
        "answer_forms.py tell more)."
    )
    add_decoding_flags(parser.add_argument_group("decoding", text))
    return model


def add_runner_flags(parser: argparse.ArgumentParser) -> None:
    """Declares `--runner` beside the flags that name a model, and what runners need."""
    text = "in place of a model: " + ", ".join(RUNNERS)
    add_model_flags(parser).add_argument("--runner", choices=RUNNERS, help=text)
    listed = "; ".join(f"{name}: {summary}" for name, summary in RUNNERS.items())
    add = parser.add_argument_group("runners", f"{listed}.").add_argument
    add("--train", type=in_path, metavar="FILE", help="training records of a baseline")
    add("--readers", type=in_path, metavar="FILE", help="records with `readers` of the images")
    add("--reader", metavar="ID", help="the reader who answers, such as R8")
    text = "sample once for each, a file each (OUT.seed0.jsonl, ...), and print the spread"
    add("--seeds", type=parse_seeds, metavar="0,1,2", help=text)
    group = parser.add_argument_group("other people's models (--runner=openai, --runner=hf)")
    add = group.add_argument
    add("--system", metavar="NAME", help="how it is asked and read: --list_systems")
    text = "how questions are put (cxrjax/evaluation/systems/systems.py)"
    add("--wording", choices=choices.WORDINGS, help=text)
    add("--codec", metavar="NAME", help="how it writes boxes (default: as the system does)")
    text = "what of its text is the answer (default: as of the system)"
    add("--reading", choices=choices.READINGS, help=text)
    add("--long_side", type=int, default=1024, help="pixels of images that are sent (default 1024)")
    add("--logprobs", action="store_true", help="ask the server for answers' log-probabilities")
    text = "send none, for models that refuse the parameter; counts as sampling"
    add("--no_temperature", action="store_true", help=text)
    add("--folder", type=in_path, metavar="DIR", help="a transformers model and its processor")
    add_client_flags(parser, text=True)


def parse_seeds(text: str) -> tuple[int, ...]:
    """The seeds of `--seeds=0,1,2`, for argparse.

    Raises:
        argparse.ArgumentTypeError: not whole numbers, repeated, or fewer than three.
    """
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers, as 0,1,2") from None
    if len(set(seeds)) != len(seeds) or len(seeds) < _MIN_SEEDS or min(seeds) < 0:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected at least {_MIN_SEEDS} different numbers from 0 on, as 0,1,2"
        )
    return seeds


def mesh_config(text: str) -> "MeshConfig":
    """The `mesh` group that `--mesh` describes; what it leaves out is as by default.

    Raises:
        UserError: it is not AXIS=N,... of axes that there are.
    """
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
