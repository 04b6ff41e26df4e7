"""Chooses what a run learns by: its records' answers, or rewards of its own (training/rl/).

The one place that knows both: reinforcement learning is imported here by name, and only for a run
that has `rl.kind`.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any, Protocol

import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array

from cxrjax.input_pipeline.batch import Batch, LoadedBatch
from cxrjax.input_pipeline.tokenizer import Tokenizer
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.coordinate_targets import coordinate_targets
from cxrjax.training.loss import (
    TERMS,
    BoxTerm,
    Denominators,
    Figures,
    batch_denominators,
    loss_parts,
)
from cxrjax.training.policy_config import PolicyConfig


class Objective(Protocol):
    """A loss that is a quotient of sums over a batch."""

    def denominators(self, batch: Any) -> Any:
        """Divisors, sums over the batch."""

    def loss(
        self, model: Any, batch: Any, key: Any, denominators: Any, logit_chunk: int
    ) -> tuple[Array, Figures]:
        """The loss of a part of a batch, and sum and count of its figures."""


class MultitaskObjective:
    """`loss_parts` as a configuration has it."""

    def __init__(self, config: ExperimentConfig) -> None:
        self._training = training = config.training
        self._box_route = config.box_route
        self._box = BoxTerm(training.box_mean, training.box_window)
        weights = {key: getattr(training, key) for key in TERMS}
        self._weights = {key: w for key, w in weights.items() if w or TERMS[key].always}

    def denominators(self, batch: Batch) -> Denominators:
        return batch_denominators(batch)

    def loss(
        self, model: Any, batch: Batch, key: Any, denominators: Denominators, logit_chunk: int
    ) -> tuple[Array, Figures]:
        parts, figures = self.parts(model, batch, key, denominators, logit_chunk)
        return sum(parts.values(), jnp.zeros(())), figures

    def parts(
        self, model: Any, batch: Batch, key: Any, denominators: Denominators, logit_chunk: int
    ) -> tuple[dict[str, Array], Figures]:
        """The loss by term, and sum and count of its figures."""
        training, sizes = self._training, model.config
        coordinates = coordinate_targets(
            training.coordinate_width,
            training.coordinate_weight,
            sizes.loc_token_start,
            max(sizes.vision.image_hw),
        )
        weights, route = self._weights, self._box_route
        return loss_parts(
            model, batch, weights, key, denominators, logit_chunk, route, coordinates, self._box
        )


class Experiences(Protocol):
    """Sampler of the answers that a step learns from, in place of its records'."""

    def __call__(self, number: int, state: Any, loaded: LoadedBatch) -> Any: ...

    def repeated(self, step: Any) -> Any:
        """The step that learns from the same answers as often as configured."""


# (configuration, graphdef, trained, frozen, mesh) -> the sampler of a run's answers.
MakeRollouts = Callable[[ExperimentConfig, Any, Any, Any, Mesh], Experiences]


def objective_of(config: ExperimentConfig) -> Objective:
    """Returns the objective that a configuration minimises."""
    if config.rl.kind == "none":
        return MultitaskObjective(config)
    objective: Objective = _rl("policy_loss").PolicyObjective(config.rl)
    return objective


def rollouts_of(config: ExperimentConfig, tokenizer: Tokenizer) -> MakeRollouts | None:
    """Returns the sampler of reinforcement learning's answers; None: the run is supervised."""
    if config.rl.kind == "none":
        return None
    return functools.partial(_rl("rollouts").Rollouts, tokenizer=tokenizer)


def policy_observers(rl: PolicyConfig, log_line: Callable[[str], None]) -> list[Any]:
    """Returns the observers of a run's reinforcement learning; none of supervised training."""
    return [] if rl.kind == "none" else [_rl("health").PolicyHealth(log_line)]


def paired_questions(pairs: str | None) -> frozenset[str]:
    """Returns the questions that have a pair in the file of `rl.pairs`; none without a file."""
    if pairs is None:
        return frozenset()
    return frozenset(_rl("preference_pairs").read_pair_ids(pairs))


def _rl(module: str) -> Any:
    return importlib.import_module(f"cxrjax.training.rl.{module}")
