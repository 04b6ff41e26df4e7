"""The runners by name, and the flags that choose one and belong to one or a few."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cxrjax.errors import UserError
from cxrjax.evaluation.systems import other_model
from cxrjax.evaluation.systems.base import Answer, Runner, parse_seeds
from cxrjax.evaluation.systems.hf_model import start_hf
from cxrjax.evaluation.systems.model_flags import add_model_flags
from cxrjax.evaluation.systems.openai_runner import estimate, start_openai
from cxrjax.evaluation.systems.stand_in_images import CHANGES
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.language_model.flags import add_client_flags
from cxrjax.records import read_records

# Seed -> what answers with it; None: without one.
Sampler = Callable[[int | None], Answer]


def _model(flags: argparse.Namespace) -> Answer:
    # Not at the top: half a second for checkpoints and decoding that the others do without.
    from cxrjax.evaluation.systems.own_model import start_model

    return start_model(flags)


def _sampled_model(flags: argparse.Namespace) -> Sampler:
    return lambda seed: _model(argparse.Namespace(**{**vars(flags), "seed": seed}))


def _baseline(name: str, *arguments: Any) -> Answer:
    from cxrjax.evaluation import baselines

    return baselines.answer_each(getattr(baselines, name)(*arguments))


def _random(flags: argparse.Namespace) -> Sampler:
    return lambda seed: _baseline("draw_answers", seed or 0, flags.closed_classes)


# What --workdir and --checkpoint stand for.
_OWN_MODEL = "model"
_OTHER_MODELS = ("openai", "hf")

RUNNERS: dict[str, Runner] = {
    _OWN_MODEL: Runner(
        "a model of ours; needs --workdir or --checkpoint", _model, sample=_sampled_model
    ),
    "prior_box": Runner(
        "each finding's mean box in training records",
        lambda flags: _baseline("learn_prior_box", read_records(flags.train)),
        ("train",),
    ),
    "majority": Runner(
        "training records' most frequent answer",
        lambda flags: _baseline("learn_majority", read_records(flags.train)),
        ("train",),
    ),
    "random": Runner(
        "an answer drawn from those that the question leaves open",
        lambda flags: _random(flags)(flags.seed),
        sample=_random,
    ),
    "reader": Runner(
        "one radiologist's boxes",
        lambda flags: _baseline(
            "learn_reader", read_records(flags.readers), flags.reader, str(flags.readers)
        ),
        ("readers", "reader"),
    ),
    "openai": Runner(
        "any model behind an OpenAI-compatible server",
        lambda flags: start_openai(flags)(None),
        sample=start_openai,
        estimate=estimate,
    ),
    "hf": Runner(
        "a transformers model in a folder",
        lambda flags: start_hf(flags)(None),
        ("folder",),
        sample=start_hf,
    ),
}


def add_runner_flags(parser: argparse.ArgumentParser) -> None:
    """Declares `--runner` beside the flags that name a model, and what runners need."""
    others = [name for name in RUNNERS if name != _OWN_MODEL]
    add_model_flags(parser).add_argument(
        "--runner", choices=others, help="in place of a model: " + ", ".join(others)
    )
    listed = "; ".join(f"{name}: {RUNNERS[name].summary}" for name in others)
    add = parser.add_argument_group("runners", f"{listed}.").add_argument
    add("--train", type=Path, metavar="FILE", help="training records that a baseline learns from")
    add("--readers", type=Path, metavar="FILE", help="records with `readers`, of the images asked")
    add("--reader", metavar="ID", help="the reader who answers, such as R8")
    add(
        "--seeds",
        type=parse_seeds,
        metavar="0,1,2",
        help="sample once for each, a file each (OUT.seed0.jsonl, ...), and print the spread",
    )
    other_model.add_flags(parser)
    add_client_flags(parser, text=True)


def start_runner(flags: argparse.Namespace, closed_classes: Mapping[str, Sequence[str]]) -> Answer:
    """The runner that the flags name, ready to be asked.

    Args:
        closed_classes: data set -> the labels that its answers may have, for baselines that draw.

    Raises:
        UserError: a flag that it needs is missing, or what the runner raises.
    """
    return _runner(flags).start(_with_classes(flags, closed_classes))


def start_sampler(
    flags: argparse.Namespace, closed_classes: Mapping[str, Sequence[str]]
) -> Sampler:
    """The same for each of `--seeds`.

    Raises:
        UserError: as `start_runner`, or the runner never samples.
    """
    runner = _runner(flags)
    if runner.sample is None:
        raise UserError(f"--runner={flags.runner} does not sample; leave out --seeds")
    return runner.sample(_with_classes(flags, closed_classes))


def resolved_settings(flags: argparse.Namespace) -> dict[str, Any]:
    """The settings of the answers as they came out: flags, and in place of those that were not
    given what the model or the runner has for them.

    Raises:
        UserError: as `start_runner`.
    """
    name = getattr(flags, "runner", None) or _OWN_MODEL
    if name == _OWN_MODEL:
        from cxrjax.evaluation.systems.own_model import model_settings

        return model_settings(flags)
    if name in _OTHER_MODELS:
        asked = other_model.decoding_of(other_model.read_setup(flags, name))
        return asked | CHANGES.get(flags.image, {})
    return {}


def _with_classes(
    flags: argparse.Namespace, closed_classes: Mapping[str, Sequence[str]]
) -> argparse.Namespace:
    """A copy, so that the run's record shows the flags alone."""
    return argparse.Namespace(**vars(flags), closed_classes=closed_classes)


def estimate_run(flags: argparse.Namespace, questions: RecordSource) -> str:
    """The estimate of what a run would send and cost, in words.

    Raises:
        UserError: as `start_runner`, or the runner sends nothing.
    """
    runner = _runner(flags)
    if runner.estimate is None:
        raise UserError("--dry_run is about what --runner=openai sends; leave it out")
    return runner.estimate(flags, questions)


def _runner(flags: argparse.Namespace) -> Runner:
    runner = RUNNERS[flags.runner or _OWN_MODEL]
    for name in runner.needs:
        if getattr(flags, name) is None:
            raise UserError(f"--runner={flags.runner} needs --{name}")
    if flags.runner not in _OTHER_MODELS:
        other_model.refuse_flags(flags)
    return runner
