"""The systems of `--runner` by name; `cxrjax.evaluation.flags.RUNNERS` has a summary of each."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from cxrjax.errors import UserError
from cxrjax.evaluation.flags import ModelFlags, PredictFlags
from cxrjax.evaluation.systems import other_model
from cxrjax.evaluation.systems.base import Answer, Starter
from cxrjax.evaluation.systems.hf_model import start_hf
from cxrjax.evaluation.systems.openai_model import estimate, start_openai
from cxrjax.evaluation.systems.stand_in_images import CHANGES
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.records import read_records

# Seed, or None for none -> the system.
Sampler = Callable[[int | None], Answer]


def _model(flags: PredictFlags) -> Answer:
    # Not at the top: half a second for checkpoints and decoding that the others do without.
    from cxrjax.evaluation.systems.own_model import start_model

    return start_model(flags)


def _sampled_model(flags: PredictFlags) -> Sampler:
    return lambda seed: _model(dataclasses.replace(flags, seed=seed))


def _baseline(name: str, *arguments: Any) -> Answer:
    from cxrjax.evaluation import baselines

    return baselines.answer_each(getattr(baselines, name)(*arguments))


def _learned(name: str) -> Starter:
    """Returns a baseline that learns from training records."""
    return Starter(lambda flags: _baseline(name, read_records(cast(Path, flags.train))), ("train",))


def _nearest(flags: PredictFlags) -> Answer:
    from cxrjax.evaluation.systems.nearest import start_nearest

    return start_nearest(flags)


def _random(flags: PredictFlags) -> Sampler:
    return lambda seed: _baseline("draw_answers", seed or 0)


# What --workdir and --checkpoint stand for.
_OWN_MODEL = "model"
_OTHER_MODELS = ("openai", "hf")

STARTERS: dict[str, Starter] = {
    _OWN_MODEL: Starter(_model, sample=_sampled_model),
    "prior_box": _learned("learn_prior_box"),
    "majority": _learned("learn_majority"),
    "question": _learned("learn_question"),
    "nearest": Starter(_nearest, ("train",)),
    "random": Starter(lambda flags: _random(flags)(flags.seed), sample=_random),
    "reader": Starter(
        lambda flags: _baseline(
            "learn_reader",
            read_records(cast(Path, flags.readers)),
            flags.reader,
            str(flags.readers),
        ),
        ("readers", "reader"),
    ),
    "openai": Starter(
        lambda flags: start_openai(flags)(None), sample=start_openai, estimate=estimate
    ),
    "hf": Starter(lambda flags: start_hf(flags)(None), ("folder",), sample=start_hf),
}


def start_system(flags: PredictFlags) -> Answer:
    """Starts the system that the flags name.

    Raises:
        UserError: a flag that it needs is missing, or it cannot start.
    """
    return _starter(flags).start(flags)


def start_sampler(flags: PredictFlags) -> Sampler:
    """Starts the same system for each of `--seeds`.

    Raises:
        UserError: as `start_system`, or the system never samples.
    """
    starter = _starter(flags)
    if starter.sample is None:
        raise UserError(f"--runner={flags.runner} does not sample; leave out --seeds")
    return starter.sample(flags)


def resolved_settings(flags: ModelFlags) -> dict[str, Any]:
    """Returns the settings of the answers: flags, or the defaults of the model or the system.

    Raises:
        UserError: as `start_system`.
    """
    if not isinstance(flags, PredictFlags) or flags.runner is None:
        from cxrjax.evaluation.systems.own_model import model_settings

        return model_settings(flags)
    if flags.runner in _OTHER_MODELS:
        asked = other_model.decoding_of(other_model.read_setup(flags, flags.runner))
        return asked | CHANGES.get(flags.image, {})
    return {}


def estimate_run(flags: PredictFlags, questions: RecordSource) -> str:
    """Describes what a run would send and cost.

    Raises:
        UserError: as `start_system`, or the system sends nothing.
    """
    starter = _starter(flags)
    if starter.estimate is None:
        raise UserError("--dry_run is about what --runner=openai sends; leave it out")
    return starter.estimate(flags, questions)


def _starter(flags: PredictFlags) -> Starter:
    starter = STARTERS[flags.runner or _OWN_MODEL]
    for name in starter.needs:
        if getattr(flags, name) is None:
            raise UserError(f"--runner={flags.runner} needs --{name}")
    if flags.runner not in _OTHER_MODELS:
        other_model.refuse_flags(flags)
    return starter
