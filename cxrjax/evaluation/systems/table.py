"""The runners by name, and how one is started; `model_flags.RUNNERS` has a summary of each."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cxrjax.errors import UserError
from cxrjax.evaluation.systems import other_model
from cxrjax.evaluation.systems.base import Answer, Runner
from cxrjax.evaluation.systems.hf_model import start_hf
from cxrjax.evaluation.systems.openai_runner import estimate, start_openai
from cxrjax.evaluation.systems.stand_in_images import CHANGES
from cxrjax.input_pipeline.sources import RecordSource
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
    _OWN_MODEL: Runner(_model, sample=_sampled_model),
    "prior_box": Runner(
        lambda flags: _baseline("learn_prior_box", read_records(flags.train)), ("train",)
    ),
    "majority": Runner(
        lambda flags: _baseline("learn_majority", read_records(flags.train)), ("train",)
    ),
    "random": Runner(lambda flags: _random(flags)(flags.seed), sample=_random),
    "reader": Runner(
        lambda flags: _baseline(
            "learn_reader", read_records(flags.readers), flags.reader, str(flags.readers)
        ),
        ("readers", "reader"),
    ),
    "openai": Runner(
        lambda flags: start_openai(flags)(None), sample=start_openai, estimate=estimate
    ),
    "hf": Runner(lambda flags: start_hf(flags)(None), ("folder",), sample=start_hf),
}


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
