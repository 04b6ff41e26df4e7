"""The runners by name, and the flags that choose one and belong to one or a few."""

import argparse
from pathlib import Path

from cxrjax.errors import UserError
from cxrjax.runners.base import Answer, Runner
from cxrjax.runners.model_flags import add_model_flags


def _model(flags: argparse.Namespace) -> Answer:
    # Not at the top: it loads JAX, and the others do without.
    from cxrjax.runners.own_model import start_model

    return start_model(flags)


def _prior_box(flags: argparse.Namespace) -> Answer:
    from cxrjax.runners.prior_box import start_prior_box

    return start_prior_box(flags.train)


def _majority(flags: argparse.Namespace) -> Answer:
    from cxrjax.runners.majority import start_majority

    return start_majority(flags.train)


def _random(flags: argparse.Namespace) -> Answer:
    from cxrjax.runners.random_answer import start_random

    return start_random(flags.seed or 0)


def _reader(flags: argparse.Namespace) -> Answer:
    from cxrjax.runners.reader import start_reader

    return start_reader(flags.readers, flags.reader)


# What --workdir and --checkpoint stand for.
_OWN_MODEL = "model"

RUNNERS: dict[str, Runner] = {
    _OWN_MODEL: Runner("a model of ours; needs --workdir or --checkpoint", _model),
    "prior_box": Runner("each finding's mean box in training records", _prior_box, ("train",)),
    "majority": Runner("training records' most frequent answer", _majority, ("train",)),
    "random": Runner("an answer drawn from those that the question leaves open", _random),
    "reader": Runner("one radiologist's boxes", _reader, ("readers", "reader")),
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


def start_runner(flags: argparse.Namespace) -> Answer:
    """The runner that the flags name, ready to be asked.

    Raises:
        UserError: a flag that it needs is missing, or what the runner raises.
    """
    runner = RUNNERS[flags.runner or _OWN_MODEL]
    for name in runner.needs:
        if getattr(flags, name) is None:
            raise UserError(f"--runner={flags.runner} needs --{name}")
    return runner.start(flags)
