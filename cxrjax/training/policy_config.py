"""Keys of reinforcement learning; supervised training reads them and imports nothing of it."""

from typing import Literal

from pydantic.dataclasses import dataclass

from cxrjax.settings import STRICT, NotNegativeFloat, Positive, PositiveFloat, Share


@dataclass(frozen=True, config=STRICT)
class PolicyConfig:
    """The group `rl`: reinforcement learning and preference tuning, from the start's parameters."""

    # How an answer's worth becomes its advantage, or a preference over another
    # (cxrjax/training/rl/rewards.py); 'none': supervised.
    kind: Literal["none", "grpo", "grpo_no_std", "rloo", "best_of_n", "dpo", "ipo", "hinge"] = (
        "none"
    )
    # Of preferences: pairs of answers (JSON Lines, data/README.md); null: the best and the worst of
    # those that are drawn.
    pairs: str | None = None
    beta: PositiveFloat = 0.1  # of preferences: how much a margin counts
    group_size: Positive = 8  # answers drawn to each question
    temperature: PositiveFloat = 1.0  # they are drawn at, from the model itself: without a grammar
    # Optimiser steps on each set of drawn answers; all but the first are off-policy.
    updates: Positive = 1
    epsilon_low: Share = 0.2  # bounds of the ratio of probabilities: 1 - this
    epsilon_high: NotNegativeFloat = 0.28  # and 1 + this
    kl_weight: NotNegativeFloat = 0.02  # of the divergence from the start
    # 'token': every token counts alike; 'answer': every answer does, whatever its length.
    loss_mean: Literal["answer", "token"] = "token"
    # A Python function MODULE:FUNCTION in place of the mean of the parts below
    # (docs/reinforcement_learning.md); null: that mean.
    reward: str | None = None
    # Parts of the reward, and how boxes are rewarded (cxrjax/training/rl/rewards.py).
    reward_boxes: Literal["mean_iou", "f1"] = "mean_iou"
    weight_boxes: NotNegativeFloat = 1.0
    weight_answer: NotNegativeFloat = 0.5
    weight_format: NotNegativeFloat = 0.1
    # Of questions whose reference has no box, beside the others. F1 is no mean over questions: it
    # is largest for who says yes from a probability of half of it on, so below 1 where it counts.
    weight_absent: NotNegativeFloat = 1.0
