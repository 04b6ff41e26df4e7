"""Answers that are drawn and learned from: what is drawn, what it teaches, and that runs go on."""

import functools
import json

import jax
import numpy as np
import pytest
from flax import nnx

from cxrjax.apps.planner import program
from cxrjax.distributed.meshes import make_mesh
from cxrjax.errors import UserError
from cxrjax.input_pipeline.batch import LoadedBatch
from cxrjax.models import VLM, partition
from cxrjax.training import step
from cxrjax.training.config import add_source
from cxrjax.training.config_file import typed_config
from cxrjax.training.objectives import objective_of
from cxrjax.training.optimizer import learning_rate_schedule, make_optimizer
from cxrjax.training.rl.policy_loss import answer_logprobs
from cxrjax.training.rl.rewards import advantages
from cxrjax.training.rl.rollouts import Rollouts, check_policy
from tests.papers.cases import cases
from tests.training import conftest

GROUP = 4


@pytest.fixture
def policy(run_config):
    """A configuration of short answers, in which a location token is likely at first."""
    run_config.rl.kind = "rloo"
    run_config.rl.group_size = GROUP
    run_config.decoding.max_answer_tokens = 6
    run_config.optimizer.learning_rate = 0.03
    return run_config


def _loaded(batch):
    return LoadedBatch(batch, conftest.question_ids(batch), [])


def _make(config, model):
    graphdef, trainable, frozen = partition(model, config.trainable)
    state = step.init_state(trainable, make_optimizer(config.optimizer, 10))
    mesh = make_mesh(config.mesh, jax.devices()[: config.mesh.data])
    rolls = Rollouts(config, graphdef, state.trainable, frozen, mesh, conftest.Letters())
    return rolls, state, graphdef, frozen


@pytest.fixture(scope="module")
def made():
    """By configuration and devices: what was compiled for one test serves the next."""
    return {}


@pytest.fixture
def rollouts(policy, small_vlm, made):
    """`rollouts(devices=1)`: (rollouts, state, graphdef, frozen) of the policy as it is."""

    def make(devices=1):
        policy.mesh.data = devices
        key = json.dumps(typed_config(policy).to_json())
        if key not in made:
            made[key] = _make(typed_config(policy), small_vlm())
        return made[key]

    return make


@pytest.fixture
def draw(rollouts):
    """`draw(batch=random_batch(), step=1, devices=1)`: what is drawn by the policy as it is."""

    def found(batch=None, step=1, devices=1):
        rolls, state, *_ = rollouts(devices)
        return jax.tree.map(
            np.asarray, rolls(step, state, _loaded(batch or conftest.random_batch()))
        )

    return found


def test_what_is_drawn_hangs_on_seed_step_and_question_alone(draw):
    batch = conftest.random_batch(questions=2)
    first, again, later = (draw(batch, number) for number in (1, 1, 2))
    spread = draw(batch, devices=8)
    assert np.array_equal(first.batch.answer_tokens, again.batch.answer_tokens)
    assert not np.array_equal(first.batch.answer_tokens, later.batch.answer_tokens)
    assert np.array_equal(first.batch.answer_tokens, spread.batch.answer_tokens)
    np.testing.assert_allclose(first.told["reward"], spread.told["reward"])
    shape = (8, 2 * GROUP)
    assert first.advantages.shape == first.weights.shape == shape
    # Those to one question stand side by side, each in the question's own words.
    assert np.array_equal(first.batch.question_index, np.repeat(batch.question_index, GROUP, 1))
    answers = first.batch.answer_tokens[0, :GROUP]
    assert len({tuple(answer) for answer in answers}) > 1


def length_of_answer(_question, _reference, answer, _true_boxes, _boxes):
    return len(answer)


def test_a_reward_of_the_user_s_own_is_what_is_learned(policy, draw):
    policy.rl.reward = f"{__name__}:length_of_answer"
    found, letters = draw(), conftest.Letters()
    tokens, mask = found.batch.answer_tokens, found.batch.answer_mask
    for at in np.argwhere(mask.any(-1)):
        said = letters.decode(t for t in tokens[*at][mask[*at]] if t != conftest.END)
        assert found.told["reward"][*at] == len(said)


def test_an_answer_ends_with_its_end_or_its_slots(draw):
    found = draw()
    tokens, mask = found.batch.answer_tokens, found.batch.answer_mask
    there = found.batch.question_index >= 0
    assert np.array_equal(mask.any(-1), there)
    assert not found.weights[~there].any() and not found.advantages[~there].any()
    for answer, kept in zip(tokens[there], mask[there], strict=True):
        length = kept.sum()
        ended = np.flatnonzero(answer[:length] == conftest.END)
        assert kept[:length].all()
        assert length == (ended[0] + 1 if len(ended) else 6)


def test_the_start_is_kept_while_parameters_move(rollouts):
    rolls, state, graphdef, frozen = rollouts()
    moved = jax.tree.map(lambda x: x + 0.05, state.trainable)
    found = rolls(1, step.TrainState(state.step, moved, None), _loaded(conftest.random_batch()))
    start = answer_logprobs(nnx.merge(graphdef, state.trainable, frozen), found.batch, 1.0, 512)
    now = answer_logprobs(nnx.merge(graphdef, moved, frozen), found.batch, 1.0, 512)
    np.testing.assert_allclose(found.reference_logprobs, start, rtol=1e-4, atol=1e-4)
    assert not np.allclose(found.reference_logprobs, now, atol=1e-2)
    assert found.old_logprobs is None


def test_groups_worth_the_same_and_batches_without_a_question_teach_nothing(policy, draw):
    policy.rl.weight_boxes = policy.rl.weight_format = 0.0  # the words, which hardly any hits
    found = draw()
    alive = found.told["dead_groups"] == 0
    assert 0 < alive.sum() < alive.size / 4
    assert np.array_equal(found.weights > 0, alive)
    assert not found.advantages[~alive].any() and found.advantages[alive].all()
    # A batch of which all questions were rejected.
    batch = conftest.random_batch()
    batch.question_index[...] = -1
    batch.prefix_mask[...] = batch.answer_mask[...] = False
    found = draw(batch)
    assert not found.weights.any() and found.batch.answer_tokens.shape[-1] > 0


@pytest.mark.parametrize("kind", ["rloo", "dpo"])
def test_absent_findings_weigh_as_much_as_they_are_told_to(policy, draw, kind):
    """Also in preferences: references of random tokens have a box by chance."""
    policy.rl.kind = kind
    found = []
    for weight in (1.0, 0.25):
        policy.rl.weight_absent = weight
        found.append(draw().advantages)
    learned = found[0] != 0
    assert set((found[1][learned] / found[0][learned]).round(4).tolist()) == {0.25, 1}


def test_rewards_rise(policy):
    """One box is right for every question: its coordinates come to be likelier."""
    policy.rl.group_size = 8
    policy.rl.kl_weight = policy.rl.weight_answer = policy.rl.weight_format = 0.0
    policy.decoding.max_answer_tokens = 5
    batch = conftest.random_batch(questions=2)
    box = conftest.LOC_START + np.array(
        [200, 200, 800, 800, conftest.END - conftest.LOC_START], np.int32
    )
    batch.answer_tokens[..., :5] = box
    batch.answer_mask[...] = (np.arange(12) < 5) & batch.prefix_mask.any(-1, keepdims=True)
    policy.mesh.data = 1
    # Parameters as training draws them: others may learn more slowly.
    model = VLM(conftest.SMALL, rngs=nnx.Rngs(0))
    rolls, state, graphdef, frozen = _make(typed_config(policy), model)
    train_step = jax.jit(step.make_train_step(graphdef, typed_config(policy), 100))
    told = []
    for number in range(1, 17):
        experience = rolls(number, state, _loaded(batch))
        state, metrics = train_step(state, frozen, experience)
        total, count = metrics.figures["rl/reward_iou"]
        told.append(float(total) / float(count))
    assert np.mean(told[-3:]) > 2 * np.mean(told[:3]), told


def test_preferences_are_the_gradient_of_their_loss(policy, rollouts):
    """The policy gradient with these advantages is that of -log sigmoid(beta margin), by JAX."""
    policy.rl.kind, policy.rl.beta, policy.rl.kl_weight = "dpo", 0.3, 0.0
    rolls, state, graphdef, frozen = rollouts()
    moved = jax.tree.map(lambda x: x + 0.02, state.trainable)
    found = rolls(1, step.TrainState(state.step, moved, None), _loaded(conftest.random_batch()))
    worth = np.nan_to_num(np.asarray(found.told["reward"])).reshape(-1, GROUP)
    alive = worth.std(-1) > 0
    assert alive.any()
    best, worst = worth.argmax(-1), worth.argmin(-1)

    def loss(trainable):
        model = nnx.merge(graphdef, trainable, frozen)
        logprobs = answer_logprobs(model, found.batch, 1.0, 512)
        away = (logprobs - found.reference_logprobs).sum(-1).reshape(-1, GROUP)
        rows = np.arange(len(away))
        margin = away[rows, best] - away[rows, worst]
        return jax.numpy.mean(-jax.nn.log_sigmoid(0.3 * margin), where=alive)

    config = typed_config(policy)
    objective = objective_of(config)

    def ours(trainable):
        model = nnx.merge(graphdef, trainable, frozen)
        return objective.loss(model, found, None, objective.denominators(found), 512)[0]

    expected = jax.jit(jax.grad(loss))(moved)
    gradient = jax.jit(jax.grad(ours))(moved)
    conftest.assert_close(expected, gradient, rtol=1e-2, atol=1e-5)
    told = np.asarray(found.told["preference_loss"])
    assert np.nanmean(told) == pytest.approx(float(loss(moved)), rel=1e-4)


def _prefer(policy, file, *lines):
    file.write_text("\n".join(lines) + "\n")
    policy.rl.kind, policy.rl.group_size, policy.rl.pairs = "dpo", 2, str(file)


def test_pairs_of_a_file_take_the_place_of_drawn_answers(policy, draw, tmp_path):
    pairs = ({"question_id": f"q{i}", "better": "ab", "worse": "aaaa"} for i in range(3))
    _prefer(policy, tmp_path / "pairs.jsonl", *map(json.dumps, pairs))
    found = draw()
    asked = np.repeat(conftest.random_batch().question_index, 2, axis=1)
    has_pair = (asked >= 0) & (asked < 3)
    assert np.array_equal(found.weights > 0, has_pair)
    better, worse = found.advantages[:, ::2], found.advantages[:, 1::2]
    assert np.all(better[has_pair[:, ::2]] > 0) and np.all(worse[has_pair[:, 1::2]] < 0)
    row, slot = np.argwhere(has_pair)[0]
    assert found.batch.answer_tokens[row, slot, :3].tolist() == [2, 3, conftest.END]


@cases("line, told")
def test_a_bad_pair_is_told_with_its_line(policy, rollouts, tmp_path, line, told):
    _prefer(policy, tmp_path / "pairs.jsonl", line)
    with pytest.raises(UserError, match=told):
        rollouts()


@cases("key, value, told")
def test_what_cannot_be_learned_is_refused(policy, key, value, told):
    policy.update_from_flattened_dict({key: value})
    with pytest.raises(UserError, match=told):
        check_policy(typed_config(policy))


@cases("change, told")
def test_pairs_are_about_images_and_questions_as_they_are(policy, change, told):
    policy.rl.kind, policy.rl.group_size, policy.rl.pairs = "dpo", 2, "pairs.jsonl"
    check_policy(typed_config(policy))
    if change is None:
        add_source(policy, "b", "b.jsonl", prompt="medgemma")
    else:
        policy.update_from_flattened_dict(change)
    with pytest.raises(UserError, match=told):
        check_policy(typed_config(policy))


@pytest.fixture
def learn(run, policy, small_vlm):
    """`learn(workdir, batches=BatchStream(), ...)`: four steps of the policy."""
    policy.optimizer.learning_rate = 0.03
    make = functools.partial(Rollouts, tokenizer=conftest.Letters())

    def train(workdir, batches=None, **options):
        options = {"steps": 4, "make_rollouts": make, **options}
        return run(batches, workdir, model=small_vlm(), **options)

    return train


@pytest.mark.slow
@pytest.mark.parametrize(("updates", "strategy"), [(1, "pmap"), (2, "jit")])
def test_a_run_that_was_cut_ends_bit_for_bit_as_one_that_was_not(
    policy, learn, tmp_path, updates, strategy
):
    policy.rl.updates, policy.mesh.strategy = updates, strategy
    learn("whole")
    with pytest.raises(KeyboardInterrupt):
        learn("cut", conftest.BatchStream(stop_before=4))
    assert "resumed from the checkpoint of step 2" in learn("cut")
    conftest.assert_same_arrays(tmp_path / "cut", tmp_path / "whole", 4)
    line = conftest.read_metrics(tmp_path / "cut")[-1]
    for name in ("reward", "kl", "coordinate_entropy", "dead_groups", "length", "spread"):
        assert line[f"train/rl/{name}"] is not None


def test_the_schedule_is_of_all_updates_of_all_steps(policy, learn, tmp_path):
    policy.rl.updates, policy.optimizer.schedule = 2, "cosine"
    learn("run")
    rates = [line["train/learning_rate"] for line in conftest.read_metrics(tmp_path / "run")]
    whole = learning_rate_schedule(typed_config(policy).optimizer, 8)
    assert rates == pytest.approx([float(whole(n)) for n in (1, 3, 5, 7)], abs=1e-8)
    assert min(rates[:3]) > 0


def test_rewards_read_one_convention_and_the_program_lowers_for_a_mesh(policy):
    """The planner's program; XLA for TPUs compiles it where libtpu is installed."""
    policy.data.prefix_buckets = (8,)
    text = program.lower_rollouts(typed_config(policy), jax.devices()).as_text()
    assert f"tensor<8x{GROUP}x6xi32>" in text
    add_source(policy, "a", "a.jsonl")
    check_policy(typed_config(policy))
    add_source(policy, "b", "b.jsonl", codec="medgemma_json")
    with pytest.raises(UserError, match=r"mixture\.sources\.b\.codec='medgemma_json'"):
        check_policy(typed_config(policy))


def test_of_each_group_the_best_answer_alone_is_learned_from(policy, draw):
    policy.rl.kind = "best_of_n"
    found = draw()
    rewards, weights, gained = (
        np.nan_to_num(x).reshape(-1, GROUP)
        for x in (found.told["reward"], found.weights, found.advantages)
    )
    alive = rewards.std(-1) > 1e-6
    assert alive.any()
    best = np.eye(GROUP)[rewards.argmax(-1)] * alive[:, None]
    assert np.array_equal(weights > 0, best) and np.array_equal(gained, best)


def test_answers_weigh_less_where_the_reference_has_no_box_and_nowhere_else(policy, draw):
    batch = conftest.random_batch()
    batch.answer_tokens[...] = conftest.LOC_START + 1024 + 5  # a word
    there = batch.prefix_mask.any(-1)
    boxed = there & (np.arange(there.size).reshape(there.shape) % 3 == 0)
    batch.answer_tokens[boxed, :4] = conftest.LOC_START + np.array([200, 200, 800, 800])
    batch.answer_mask[...] = (np.arange(12) < 5) & there[..., None]
    policy.rl.weight_absent = 0.25
    found = draw(batch)
    rewards = np.nan_to_num(found.told["reward"]).reshape(-1, GROUP)
    whole = advantages(rewards, "rloo").reshape(found.advantages.shape)
    weight = np.where(np.repeat(boxed, GROUP, axis=1), 1, 0.25)
    assert {1, 0.25} == set(weight[whole != 0])
    np.testing.assert_allclose(found.advantages, whole * weight, atol=1e-6)


def test_further_updates_remember_the_probabilities_of_the_drawing(policy, rollouts):
    policy.rl.updates = 2
    rolls, state, graphdef, frozen = rollouts()
    moved = jax.tree.map(lambda x: x + 0.05, state.trainable)
    found = rolls(1, step.TrainState(state.step, moved, None), _loaded(conftest.random_batch()))
    now = answer_logprobs(nnx.merge(graphdef, moved, frozen), found.batch, 1.0, 512)
    np.testing.assert_allclose(found.old_logprobs, now, rtol=1e-4, atol=1e-4)
    assert not np.allclose(found.reference_logprobs, now, atol=1e-2)


@pytest.mark.parametrize("loss_mean", ["answer", "token"])
def test_each_answer_or_each_token_counts_alike(policy, draw, loss_mean):
    policy.rl.loss_mean = loss_mean
    found = draw(conftest.random_batch(images=32))
    lengths = found.batch.answer_mask.sum(-1)
    learned = found.weights > 0
    assert len(set(lengths[learned].tolist())) > 1
    of_answer = found.weights * (lengths if loss_mean == "answer" else 1)
    np.testing.assert_allclose(of_answer[learned], 1, rtol=1e-6)


def test_the_token_that_ends_an_answer_is_learned_with_it(policy, small_vlm, monkeypatch):
    stops = (
        conftest.END,
        *range(conftest.LOC_START + 1024, conftest.LOC_START + 1034),
    )  # so many that some are drawn
    monkeypatch.setattr(conftest.Letters, "stop_ids", stops)
    policy.mesh.data = 1
    rolls, state, *_ = _make(typed_config(policy), small_vlm())
    found = jax.tree.map(np.asarray, rolls(1, state, _loaded(conftest.random_batch())))
    is_stop = np.isin(found.batch.answer_tokens, stops) & found.batch.answer_mask
    lengths = found.batch.answer_mask.sum(-1)
    ended = is_stop.any(-1)
    assert ended.sum() > 2 and np.array_equal(found.told["truncated"] == 0, ended)
    assert np.array_equal(is_stop[ended].argmax(-1) + 1, lengths[ended])
    assert set(lengths[(lengths > 0) & ~ended]) == {6}
