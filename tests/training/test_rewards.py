"""Rewards, against matchings by trying all of them, and the answers that try to cheat."""

import csv
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_expit

from bench import rl_cases
from cxrjax import boxes
from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.training.rl.rewards import (
    THRESHOLDS,
    Rewarder,
    RewardWeights,
    advantages,
    box_reward,
    preference_losses,
    preference_slopes,
    reward_function,
)
from tests.papers.cases import data

WHERE = "answer en Where is the nodule?\n"
BOX, OTHER = "<loc0100><loc0100><loc0300><loc0300>", "<loc0600><loc0600><loc0900><loc0900>"


@pytest.fixture
def reward():
    """`reward(reference, answer, ended=True)` of answers in location tokens."""
    rewarder = Rewarder(CODECS["paligemma"], RewardWeights(1.0, 1.0, 0.5, "mean_iou"))
    return lambda truth, said, ended=True: rewarder(WHERE, truth, said, ended=ended)


def _random_boxes(rng, count):
    corners = np.sort(rng.random((count, 2, 2)), axis=1)
    return corners.reshape(count, 4)


def _all_matchings(overlap):
    """Every way to give each row of the shorter side a column of its own."""
    if overlap.shape[0] > overlap.shape[1]:
        overlap = overlap.T
    rows, columns = overlap.shape
    for chosen in itertools.permutations(range(columns), rows):
        yield overlap[np.arange(rows), chosen]


@pytest.mark.parametrize("seed", range(20))
def test_box_rewards_are_those_of_the_best_of_all_matchings(seed):
    rng = np.random.default_rng(seed)
    predicted, truth = (_random_boxes(rng, rng.integers(1, 5)) for _ in range(2))
    if seed % 2:  # boxes that nearly fit, so that every threshold is met by some
        predicted = truth[rng.permutation(len(truth))] + rng.normal(0, 0.02, truth.shape)
        predicted = np.sort(predicted.reshape(-1, 2, 2), axis=1).reshape(-1, 4)
        predicted = np.concatenate([predicted, _random_boxes(rng, seed % 3)])
    overlap = np.asarray(boxes.pairwise_iou(predicted, truth))
    count = len(predicted), len(truth)
    best = max(found.sum() for found in _all_matchings(overlap))
    assert box_reward(predicted, truth, "mean_iou") == pytest.approx(best / max(count), abs=1e-6)
    hits = [max((x >= bound).sum() for x in _all_matchings(overlap)) for bound in THRESHOLDS]
    assert box_reward(predicted, truth, "f1") == pytest.approx(2 * np.mean(hits) / sum(count))


@pytest.mark.parametrize("kind", ["mean_iou", "f1"])
def test_rewards_of_none_of_all_and_of_too_many_boxes(kind):
    def reward(*predicted, truth=((0.1, 0.1, 0.4, 0.4),)):
        return box_reward(*(np.reshape(found, (-1, 4)) for found in (predicted, truth)), kind)

    one, far = (0.1, 0.1, 0.4, 0.4), (0.6, 0.6, 0.9, 0.9)
    assert reward(truth=()) == reward(one) == 1
    assert reward() == reward(one, truth=()) == 0
    assert reward(one) > reward(one, one) > reward(*5 * [one])
    assert reward(one, far) == reward(one, one)


def test_parts_of_answers_and_overlaps_of_exactly_the_threshold(reward):
    right = reward(f"Nodule {BOX}", f"nodule {BOX}")
    assert (right.total, right.iou, right.answer, right.format) == (1, 1, 1, 1)
    assert (right.missed, right.spurious, right.boxes) == (0, 0, 1)
    denied = reward(f"Nodule {BOX}", "There is no nodule.")
    assert (denied.iou, denied.answer, denied.format, denied.missed) == (0, 0, 1, 1)
    made_up = reward("There is no nodule.", f"Nodule {BOX}")
    assert (made_up.iou, made_up.answer, made_up.spurious) == (0, 0, 1)
    elsewhere = reward(f"Nodule {BOX}", f"Nodule {OTHER}")
    assert (elsewhere.iou, elsewhere.answer, elsewhere.missed, elsewhere.spurious) == (0, 1, 1, 1)
    whole, half = np.array([[0.0, 0.0, 1.0, 1.0]]), np.array([[0.0, 0.0, 1.0, 0.5]])
    assert box_reward(half, whole, "f1") == pytest.approx(2 / 3)  # of IoU 0.3, 0.5 and 0.75
    # What is told of missed and spurious boxes is at 0.3: here IoU is 0.4.
    found = reward(f"Nodule {BOX}", "Nodule <loc0100><loc0100><loc0300><loc0180>")
    assert found.iou == pytest.approx(0.4) and (found.missed, found.spurious) == (0, 0)


def test_denials_torn_boxes_and_no_end_in_the_weighted_mean(reward):
    assert reward("There is no nodule.", "No.").total == 1
    assert reward("There is no nodule.", "Nodule.").answer == 0
    # A box of swapped corners, which has no area either; no end; a torn box.
    swapped = reward(f"Nodule {BOX}", "Nodule <loc0300><loc0100><loc0100><loc0300>")
    assert (swapped.iou, swapped.format) == (0, 0)
    assert reward(f"Nodule {BOX}", f"Nodule {BOX}", ended=False).format == 0
    assert reward(f"Nodule {BOX}", f"Nodule {BOX}<loc0100>").format == 0
    found = reward(f"Nodule {BOX}", f"Nodule {OTHER}", ended=False)
    assert found.total == pytest.approx((0 * 1.0 + 1 * 1.0 + 0 * 0.5) / 2.5)


def test_where_no_yes_decides_names_numbers_and_sides_do(subtests):
    """What is asked about need not be said again, and where it is need not be in words."""
    rewarder = Rewarder(CODECS["paligemma"], RewardWeights(1.0, 1.0, 0.5, "mean_iou"))
    table = Path(__file__).with_name("rewarded_answers.tsv").read_text()
    lines = table.replace("BOX", BOX).replace("OTHER", OTHER).splitlines()
    for row in csv.DictReader(lines, delimiter="\t"):
        with subtests.test(row["said"], question=row["question"]):
            found = rewarder(row["question"], row["truth"], row["said"], ended=True)
            assert found.answer == (row["right"] == "yes")


def test_a_reward_of_the_user_s_own(monkeypatch, tmp_path, subtests):
    """The page's example; wrong names and results are refused in one line."""
    page = (Path(__file__).parents[2] / "docs/reinforcement_learning.md").read_text()
    example = re.search(r"```python\n# my_rewards.py\n(.*?)```", page, re.DOTALL)[1]
    (tmp_path / "my_rewards.py").write_text(f"{example}\nnothing = lambda *_: None\nANSWER = 1\n")
    (tmp_path / "torn_rewards.py").write_text("raise RuntimeError('no\\nluck')\n")
    monkeypatch.syspath_prepend(tmp_path)
    paligemma, weights = CODECS["paligemma"], RewardWeights(1.0, 1.0, 0.5, "mean_iou")
    rewarder = Rewarder(paligemma, weights, reward_function("my_rewards:tight_boxes"))
    for said, total, iou in ((BOX, 1, 1), (OTHER, 0, 0), (BOX + OTHER, 0.9, 0.5), ("none", 0, 0)):
        found = rewarder(WHERE, f"Nodule {BOX}", f"Nodule {said}", ended=True)
        assert (found.total, found.iou) == pytest.approx((total, iou)), said
    for name, message in data(__file__)["a_reward_of_the_user_s_own"]:
        with subtests.test(name), pytest.raises(UserError, match=re.escape(message)) as caught:
            reward_function(name)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"None for the answer '.*'; expected a finite number"):
        Rewarder(paligemma, weights, reward_function("my_rewards:nothing"))(
            WHERE, BOX, OTHER, ended=True
        )


def test_the_benchmark_beside_trl_rewards_alike():
    """Its other side has no cxrjax, and so a reward of its own."""
    rewarder = Rewarder(CODECS["paligemma"], RewardWeights(1.0, 0.0, 0.0, "mean_iou"))
    ours, theirs = [], []
    for ids, bins in rl_cases.example_answers():
        truth = "".join(rl_cases.token_text(rl_cases.LOC_START + each) for each in bins)
        said = " ".join(map(rl_cases.token_text, ids)).replace("> <", "><")
        ours.append(rewarder("", truth, said, ended=True).total)
        theirs.append(rl_cases.reward(ids, bins))
    np.testing.assert_allclose(ours, theirs, atol=2e-3)
    assert len(set(theirs)) > 5


def test_advantages_are_what_their_papers_say():
    rewards = np.random.default_rng(0).random((3, 4))
    of_others = [[row[i] - np.mean(np.delete(row, i)) for i in range(4)] for row in rewards]
    np.testing.assert_allclose(advantages(rewards, "rloo"), of_others)
    z = (rewards - rewards.mean(1, keepdims=True)) / rewards.std(1, keepdims=True)
    np.testing.assert_allclose(advantages(rewards, "grpo"), z)
    away = rewards - rewards.mean(1, keepdims=True)
    np.testing.assert_allclose(advantages(rewards, "grpo_no_std"), away)
    best = advantages(rewards, "best_of_n")
    assert np.array_equal(best.argmax(1), rewards.argmax(1)) and np.all(best.sum(1) == 1)
    for kind in ("grpo", "grpo_no_std", "rloo", "best_of_n"):  # of a group worth the same: nothing
        found = advantages(np.array([[0.3] * 5, [0.1, 0.2, 0.3, 0.4, 0.5]]), kind)
        assert not found[0].any() and found[1].any(), kind


@pytest.mark.parametrize("kind", ["dpo", "ipo", "hinge"])
def test_slopes_are_those_of_the_losses(kind):
    margins, step = np.array([-30.0, -3.0, -0.1, 0.2, 4.0, 60.0]), 1e-5
    ahead, behind = (preference_losses(margins + by, kind, 0.1) for by in (step, -step))
    slopes = preference_slopes(margins, kind, 0.1)
    np.testing.assert_allclose(slopes, (behind - ahead) / (2 * step), 1e-4)
    # The loss of DPO is SciPy's.
    margins = np.linspace(-200, 200, 9)
    np.testing.assert_allclose(preference_losses(margins, "dpo", 0.1), -log_expit(0.1 * margins))
