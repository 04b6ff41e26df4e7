"""Rollouts: a batch of questions becomes answers that the model draws, with what they are worth.

Each question is answered `rl.group_size` times from one reading of its image and prompt, by the
parameters of the moment and nothing else: no grammar, no top-k or top-p, so that what is learned of
an answer's probability is the probability it was drawn with. Rewards are made on the host, each
process those of its rows. What is drawn at step n hangs on the run's seed, on n and on the
question, as its batch does: a resumed run draws the same.

The start's parameters are held for the divergence from it: of those that are trained one copy (with
LoRA the adapters; fresh ones change nothing, so that they are the base), and none of the others.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental.multihost_utils import global_array_to_host_local_array
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from cxrjax.codecs import get_codec
from cxrjax.codecs.frames import InputPixels
from cxrjax.decoding.generate import answer_batch
from cxrjax.decoding.strategy import Strategy
from cxrjax.distributed import hosts
from cxrjax.distributed.meshes import BATCH_AXES, batch_shards, mesh_of_kernels, put_batch
from cxrjax.errors import UserError
from cxrjax.input_pipeline.batch import Batch, LoadedBatch
from cxrjax.input_pipeline.prompts import PROMPTS
from cxrjax.input_pipeline.tokenizer import Tokenizer
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.rl.policy_loss import Experience, answer_logprobs
from cxrjax.training.rl.preference_pairs import AnswerPair, read_pairs
from cxrjax.training.rl.rewards import (
    DEAD,
    PREFERENCES,
    Reward,
    Rewarder,
    RewardWeights,
    advantages,
    preference_losses,
    preference_slopes,
    reward_function,
)
from cxrjax.training.step import StepFunction, StepMetrics, TrainState

# Slots of answers, and tokens of a packed image, come in multiples: each size is compiled once.
_ANSWER_STEP, _PACKED_STEP = 16, 256


class DrawnAnswers(NamedTuple):
    """Answers to a batch on the host, `G` to each question, those to one question side by side."""

    tokens: Int[np.ndarray, "B S A"]  # with the token that ends each; 0 behind it
    # Of each answer, the token that ends it included; 0 of empty question slots.
    lengths: Int[np.ndarray, "B S"]
    ended: np.ndarray  # whether it came to its end


class Rollouts:
    """Makes the experience of each step of a run.

    Args:
        reference: the start's trained parameters; copied.
        frozen: the others, on the mesh.
        tokenizer: the run's.

    Raises:
        UserError: the configuration trains on something that cannot be drawn, or its reward weighs
            nothing.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        graphdef: Any,
        reference: Any,
        frozen: Any,
        mesh: Mesh,
        tokenizer: Tokenizer,
    ) -> None:
        check_policy(config)
        rl = config.rl
        self._config, self._graphdef, self._mesh = config, graphdef, mesh
        self._frozen, self._tokenizer = frozen, tokenizer
        self._reference = jax.tree.map(jnp.copy, reference)
        self._stops = tuple(tokenizer.stop_ids)
        self._strategy = rollout_strategy(config, self._stops)
        weights = RewardWeights(
            rl.weight_boxes, rl.weight_answer, rl.weight_format, rl.reward_boxes
        )
        function = None if rl.reward is None else reward_function(rl.reward)
        self._rewarder = Rewarder(get_codec(config.data.codec), weights, function)
        chunk = config.training.logit_chunk * batch_shards(mesh)

        def logprobs(trainable: Any, frozen: Any, batch: Batch) -> Array:
            with mesh_of_kernels(mesh):
                model = nnx.merge(graphdef, trainable, frozen)
                return answer_logprobs(model, batch, rl.temperature, chunk)

        self._pairs: dict[str, AnswerPair] | None = None
        if rl.pairs is not None:
            slots = config.decoding.max_answer_tokens
            self._pairs = read_pairs(rl.pairs, tokenizer, config.data.prompt, slots)
        self._logprobs: Callable[..., Array] = jax.jit(logprobs)

    def __call__(self, number: int, state: TrainState, loaded: LoadedBatch) -> Experience:
        """The experience of a step, on the devices.

        Args:
            number: of the step.
            state: its parameters draw.
            loaded: this process's rows, on the host; its answers are the references.
        """
        rl, batch = self._config.rl, loaded.batch
        drawn = self._draw(number, state, batch) if self._pairs is None else self._paired(loaded)
        rewards = self._rewards(batch, drawn)
        answers = put_batch(self._answers(batch, drawn), self._mesh)
        reference = self._logprobs(self._reference, self._frozen, answers)
        told, gained, weights = self._worth(rewards, drawn)
        old = None
        if rl.updates > 1 or rl.kind in PREFERENCES:
            old = self._logprobs(state.trainable, self._frozen, answers)
        if rl.kind in PREFERENCES and old is not None:
            away = self._to_host(jnp.sum(old - reference, axis=-1))
            more, gained, weights = self._preferences(away, told["reward"], drawn)
            gained *= self._importance(rewards)
            told |= more
        gained, weights, told = put_batch((gained, weights, told), self._mesh)
        return Experience(answers, gained, weights, reference, old, told)

    def repeated(self, step: StepFunction) -> StepFunction:
        """A step that is taken `rl.updates` times on the same experience, and told of as one."""
        updates = self._config.rl.updates
        if updates == 1:
            return step

        @jax.jit
        def joined(told: list[StepMetrics]) -> StepMetrics:
            """Sums of all updates, the mean of their losses, the last one's gradient and rate."""
            figures = jax.tree.map(lambda *x: sum(x), *(one.figures for one in told))
            mean = sum(one.loss for one in told) / updates
            return StepMetrics(mean, figures, told[-1].grad_norm, told[-1].learning_rate)

        def several(state: TrainState, frozen: Any, batch: Any) -> tuple[TrainState, StepMetrics]:
            told = []
            for _ in range(updates):
                state, metrics = step(state, frozen, batch)
                told.append(metrics)
            return state, joined(told)

        return several

    def _to_host(self, x: Array) -> np.ndarray:
        """This process's rows."""
        if jax.process_count() > 1:
            x = global_array_to_host_local_array(x, self._mesh, P(BATCH_AXES))
        return np.asarray(x)

    def _preferences(
        self, away: Float[np.ndarray, "B S"], reward: Float[np.ndarray, "B S"], drawn: DrawnAnswers
    ) -> tuple[
        dict[str, Float[np.ndarray, "B S"]], Float[np.ndarray, "B S"], Float[np.ndarray, "B S"]
    ]:
        """Figures, advantages and weights that make the policy gradient that of a preference loss.

        The best answer of each group is preferred to the worst; a pair counts as one, whatever its
        tokens. A group that is worth the same throughout has none.

        Args:
            away: log(p / p_ref) of each answer.
        """
        rl, shape = self._config.rl, reward.shape
        grouped = [
            np.nan_to_num(x).reshape(shape[0], -1, rl.group_size)
            for x in (reward, away, np.maximum(drawn.lengths, 1))
        ]
        worth, away, lengths = grouped
        pair = np.stack([worth.argmax(-1), worth.argmin(-1)], axis=-1)
        margin = np.subtract(*np.moveaxis(np.take_along_axis(away, pair, -1), -1, 0))
        there = worth.std(-1) > DEAD
        tokens = np.take_along_axis(lengths, pair, -1).sum(-1)
        slope = np.where(there, preference_slopes(margin, rl.kind, rl.beta), 0)
        signs = np.eye(rl.group_size)[pair[..., 0]] - np.eye(rl.group_size)[pair[..., 1]]
        gained = signs * (slope * tokens)[..., None]
        weights = np.abs(signs) * (there / tokens)[..., None]

        def of_pairs(values: np.ndarray) -> Float[np.ndarray, "B S"]:
            """A figure of each pair, told once, in its group's first place."""
            told = np.full(worth.shape, np.nan)
            told[..., 0] = np.where(there, values, np.nan)
            return told.reshape(shape).astype(np.float32)

        told = {
            "preference_loss": of_pairs(preference_losses(margin, rl.kind, rl.beta)),
            "margin": of_pairs(margin),
            "preferred": of_pairs(margin > 0),
        }
        by_answer = [x.reshape(shape).astype(np.float32) for x in (gained, weights)]
        return told, by_answer[0], by_answer[1]

    def _draw(self, number: int, state: TrainState, batch: Batch) -> DrawnAnswers:
        asked = (batch.images, batch.prefix_tokens, batch.prefix_mask, batch.question_index)
        seed = np.random.SeedSequence((self._config.training.seed, number)).generate_state(1)[0]
        answers = answer_batch(
            self._graphdef,
            self._strategy,
            self._mesh,
            (state.trainable, self._frozen),
            (*put_batch(asked, self._mesh), None, None),
            None,
            np.uint32(seed),
            None,
        ).tokens
        tokens = self._to_host(answers)
        stops = np.isin(tokens, self._stops)
        ended = np.asarray(stops.any(-1))
        lengths = np.where(ended, stops.argmax(-1) + 1, tokens.shape[-1])
        asked_for = np.repeat(batch.question_index >= 0, self._config.rl.group_size, axis=1)
        return DrawnAnswers(tokens, np.where(asked_for, lengths, 0), ended)

    def _paired(self, loaded: LoadedBatch) -> DrawnAnswers:
        """The two answers of each question's pair in the place of drawn ones."""
        assert self._pairs is not None
        rows, questions = np.shape(loaded.batch.question_index)
        shape = (rows, 2 * questions)
        tokens = np.zeros((*shape, self._strategy.max_answer_tokens), np.int32)
        lengths = np.zeros(shape, np.int64)
        for row, ids in enumerate(loaded.question_ids):
            for slot, question in enumerate(ids):
                if question is not None and question in self._pairs:
                    for place, answer in enumerate(self._pairs[question]):
                        tokens[row, 2 * slot + place, : len(answer)] = answer
                        lengths[row, 2 * slot + place] = len(answer)
        return DrawnAnswers(tokens, lengths, np.ones(shape, bool))

    def _rewards(self, batch: Batch, drawn: DrawnAnswers) -> list[list[Reward | None]]:
        """The reward of each answer; None in empty slots."""
        group = self._config.rl.group_size
        found: list[list[Reward | None]] = []
        for row, row_lengths in enumerate(drawn.lengths):
            found.append([])
            for slot, length in enumerate(row_lengths):
                if not length:
                    found[-1].append(None)
                    continue
                asked = slot // group
                prefix = batch.prefix_tokens[row, asked][batch.prefix_mask[row, asked]]
                truth = batch.answer_tokens[row, asked][batch.answer_mask[row, asked]]
                reward = self._rewarder(
                    self._text(prefix),
                    self._text(truth),
                    self._text(drawn.tokens[row, slot, :length]),
                    ended=bool(drawn.ended[row, slot]),
                )
                if self._pairs is not None:  # whatever it would be worth: it is preferred, or not
                    reward = dataclasses.replace(reward, total=float(slot % 2 == 0))
                found[-1].append(reward)
        return found

    def _text(self, tokens: Any) -> str:
        return self._tokenizer.decode([int(t) for t in tokens if t not in self._stops])

    def _worth(
        self, rewards: list[list[Reward | None]], drawn: DrawnAnswers
    ) -> tuple[
        dict[str, Float[np.ndarray, "B S"]], Float[np.ndarray, "B S"], Float[np.ndarray, "B S"]
    ]:
        """Figures, advantages, and the weight of each token in the loss, by answer."""
        rl = self._config.rl
        shape = drawn.lengths.shape

        def figure(name: str) -> Float[np.ndarray, "B S"]:
            values = [np.nan if r is None else getattr(r, name) for row in rewards for r in row]
            return np.array(values, np.float32).reshape(shape)

        total = figure("total")
        groups = total.reshape(shape[0], -1, rl.group_size)
        spread = np.repeat(groups.std(-1), rl.group_size, axis=1).reshape(shape)
        gained = np.zeros(shape)
        if rl.kind not in PREFERENCES:
            gained = advantages(np.nan_to_num(groups), rl.kind).reshape(shape)
        gained *= self._importance(rewards)
        lengths = np.maximum(drawn.lengths, 1)
        weights = (1 / lengths if rl.loss_mean == "answer" else np.ones(shape)) * (
            np.nan_to_num(spread) > DEAD
        )
        if rl.kind == "best_of_n":
            weights = weights * (gained > 0)  # the others are not learned from
        there = drawn.lengths > 0
        told = {
            "reward": total,
            **{f"reward_{name}": figure(name) for name in ("iou", "answer", "format")},
            **{f"{name}_boxes": figure(name) for name in ("missed", "spurious")},
            "boxes": figure("boxes"),
            "length": np.where(there, drawn.lengths, np.nan),
            "truncated": np.where(there, ~drawn.ended, np.nan),
            "spread": spread,
            "dead_groups": np.where(there, spread <= DEAD, np.nan),
        }
        told = {name: values.astype(np.float32) for name, values in told.items()}
        return told, gained.astype(np.float32), weights.astype(np.float32)

    def _importance(self, rewards: list[list[Reward | None]]) -> Float[np.ndarray, "B S"]:
        """`rl.weight_absent` of answers to questions whose reference has no box, 1 of others."""
        absent = [[one is None or not one.true_boxes for one in row] for row in rewards]
        return np.where(absent, self._config.rl.weight_absent, 1).astype(np.float32)

    def _answers(self, batch: Batch, drawn: DrawnAnswers) -> Batch:
        """Each answer in a question slot of its own, on the host."""
        group = self._config.rl.group_size
        repeated: dict[str, Any] = {
            name: np.repeat(getattr(batch, name), group, axis=1)
            for name in ("prefix_tokens", "prefix_mask", "question_index")
        }
        asked_tokens = repeated["prefix_mask"].sum(-1) + drawn.lengths
        sizes = hosts.gather([int(drawn.lengths.max()), int(asked_tokens.sum(-1).max())])
        longest, fullest = np.max(sizes, axis=0)
        # A batch of which all questions are set aside has none.
        slots = min(_up(max(longest, 1), _ANSWER_STEP), drawn.tokens.shape[-1])
        packed = None
        if self._config.model.share == "image":
            packed = min(
                _up(fullest, _PACKED_STEP),
                asked_tokens.shape[1] * (batch.prefix_tokens.shape[-1] + slots),
            )
        shape = drawn.lengths.shape
        return Batch(
            images=batch.images,
            answer_tokens=drawn.tokens[..., :slots],
            answer_mask=np.arange(slots) < drawn.lengths[..., None],
            # Room for one, and none: XLA keeps no sharding of arrays without elements.
            coordinate_positions=np.zeros((*shape, 1, 4), np.int32),
            target_boxes=np.zeros((*shape, 1, 4), np.float32),
            box_mask=np.zeros((*shape, 1), bool),
            packed_length=packed,
            **repeated,
        )


def rollout_strategy(config: ExperimentConfig, stop_ids: tuple[int, ...]) -> Strategy:
    """Returns the strategy that answers are sampled with."""
    return Strategy(
        max_answer_tokens=config.decoding.max_answer_tokens,
        stop_ids=stop_ids,
        temperature=config.rl.temperature,
        samples=config.rl.group_size,
    )


def check_policy(config: ExperimentConfig) -> None:
    """Refuses what reinforcement learning cannot do.

    Raises:
        UserError: it names the key.
    """
    rl = config.rl
    if rl.group_size < 2:
        raise UserError(
            f"rl.group_size={rl.group_size}: an answer is worth what it is beside others to the "
            "same question; set 2 or more"
        )
    if rl.reward is None and not rl.weight_boxes + rl.weight_answer + rl.weight_format:
        raise UserError("rl.weight_boxes, weight_answer and weight_format are 0; raise one of them")
    if rl.kind in PREFERENCES and rl.updates > 1:
        raise UserError(
            f"rl.updates={rl.updates}: a preference's weight is that of the parameters of the "
            f"moment; with rl.kind={rl.kind!r} set 1"
        )
    if rl.pairs is not None and (rl.kind not in PREFERENCES or rl.group_size != 2):
        raise UserError(
            f"rl.pairs={rl.pairs}: pairs are for rl.kind {', '.join(PREFERENCES)} with "
            f"rl.group_size=2, and these are {rl.kind!r} and {rl.group_size}"
        )
    if rl.pairs is not None:
        _check_pairs(config)
    codec = config.data.codec
    for name in config.mixture.sources:
        if (own := config.of_source(name).data.codec) != codec:
            raise UserError(
                f"mixture.sources.{name}.codec={own!r}: rewards read boxes in data.codec={codec!r} "
                "alone; name one for all sources"
            )
    frame = get_codec(codec).frame
    if isinstance(frame, InputPixels) and len(frame.grids) > 1:
        raise UserError(
            f"data.codec={codec!r}: rewards read boxes without knowing which of these "
            "inputs an image has; name one size in model.preset and here, or set 'qwen3_vl'"
        )
    if config.data.earlier_images:
        raise UserError(
            "data.earlier_images: answers are drawn beside one image; set it to False, which "
            "leaves questions about two out"
        )
    if config.lora.dropout:
        raise UserError(
            f"lora.dropout={config.lora.dropout}: the model that draws answers has none, and its "
            "probabilities would not be those that are learned; set 0"
        )


def _check_pairs(config: ExperimentConfig) -> None:
    """Refuses what would show another image, or ask another question, than a pair is about."""
    data = config.data
    changes = ("zoom", "stretch", "shift", "rotate", "erase")
    changed = [name for name in changes if getattr(data.augment, name)]
    settings = [f"data.augment.{name}" for name in changed]
    settings += ["data.unknown_share"] if data.unknown_share else []
    if settings:
        raise UserError(
            f"{', '.join(settings)}: the answers of rl.pairs are about the image and the question "
            f"as they are; set {'it' if len(settings) == 1 else 'them'} to 0, as "
            "configs/vindr_rl.py:dpo does"
        )
    end = PROMPTS[data.prompt].end
    for name in config.mixture.sources:
        own = config.of_source(name).data.prompt
        if PROMPTS[own].end != end:
            raise UserError(
                f"mixture.sources.{name}.prompt={own!r} ends answers otherwise than "
                f"data.prompt={data.prompt!r}, and so do rl.pairs; name one for all sources"
            )


def _up(number: int, step: int) -> int:
    return -(-int(number) // step) * step
