"""Answers that are drawn and learned from: what is drawn, what it teaches, and that runs go on."""

import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from cxrjax.distributed.meshes import MeshConfig, make_mesh
from cxrjax.errors import UserError
from cxrjax.input_pipeline.batch import LoadedBatch
from cxrjax.models import partition
from cxrjax.planner import program
from cxrjax.training import loop, step
from cxrjax.training.config import add_source
from cxrjax.training.config_file import typed_config
from cxrjax.training.policy_loss import answer_logprobs
from cxrjax.training.rewards import advantages
from cxrjax.training.rollouts import Rollouts, check_policy

LOC_START, END, GROUP = 4, 1, 4
BASE = {"kind": "random", "seed": 0, "sha256": "abc"}


class Letters:
    """A tokenizer of location tokens and 16 letters; what ends an answer is id 1."""

    stop_ids = (END,)
    eos_id = END

    def decode(self, ids):
        return "".join(
            f"<loc{i - LOC_START:04d}>" if LOC_START <= i < LOC_START + 1024 else chr(97 + i % 16)
            for i in ids
        )

    def encode(self, text):
        return [2 + (ord(letter) - 97) % 2 for letter in text]


@pytest.fixture
def policy(run_config, tmp_path):
    """A configuration of short answers, in which a location token is likely at first."""
    run_config.rl.kind = "rloo"
    run_config.rl.group_size = GROUP
    run_config.decoding.max_answer_tokens = 6
    run_config.optimizer.learning_rate = 0.03
    run_config.mesh.data = 8
    run_config.training.log_every = 1
    run_config.training.checkpoint_every = 2
    return run_config


def _loaded(batch):
    ids = [[None if i < 0 else f"q{i}" for i in row] for row in np.asarray(batch.question_index)]
    return LoadedBatch(batch, ids, [])


def _rollouts(config, model, devices=1):
    config.mesh.data = devices
    typed = typed_config(config)
    graphdef, trainable, frozen = partition(model, typed.trainable)
    state = step.init_state(trainable, step.make_optimizer(typed.optimizer, 10))
    mesh = make_mesh(MeshConfig(data=devices), jax.devices()[:devices])
    rolls = Rollouts(typed, graphdef, state.trainable, frozen, mesh, Letters())
    return rolls, state, graphdef, frozen


def _host(experience):
    return jax.tree.map(np.asarray, experience)


def test_what_is_drawn_hangs_on_seed_step_and_question_alone(policy, random_batch, small_vlm):
    batch = random_batch(questions=2)
    draw = {}
    for devices in (1, 8):
        rolls, state, *_ = _rollouts(policy, small_vlm(), devices)
        draw[devices] = [_host(rolls(number, state, _loaded(batch))) for number in (1, 1, 2)]
    first, again, later = draw[1]
    assert np.array_equal(first.batch.answer_tokens, again.batch.answer_tokens)
    assert not np.array_equal(first.batch.answer_tokens, later.batch.answer_tokens)
    assert np.array_equal(first.batch.answer_tokens, draw[8][0].batch.answer_tokens)
    np.testing.assert_allclose(first.told["reward"], draw[8][0].told["reward"])
    shape = (8, 2 * GROUP)
    assert first.advantages.shape == first.weights.shape == shape
    # Those to one question stand side by side, each in the question's own words.
    assert np.array_equal(first.batch.question_index, np.repeat(batch.question_index, GROUP, 1))
    answers = first.batch.answer_tokens[0, :GROUP]
    assert len({tuple(answer) for answer in answers}) > 1


def test_an_answer_ends_with_its_end_or_its_slots(policy, random_batch, small_vlm):
    rolls, state, *_ = _rollouts(policy, small_vlm())
    found = _host(rolls(1, state, _loaded(random_batch())))
    tokens, mask = found.batch.answer_tokens, found.batch.answer_mask
    there = found.batch.question_index >= 0
    assert np.array_equal(mask.any(-1), there)
    assert not found.weights[~there].any() and not found.advantages[~there].any()
    for answer, kept in zip(tokens[there], mask[there], strict=True):
        length = kept.sum()
        ended = np.flatnonzero(answer[:length] == END)
        assert kept[:length].all()
        assert length == (ended[0] + 1 if len(ended) else 6)


def test_the_start_is_kept_while_parameters_move(policy, random_batch, small_vlm):
    rolls, state, graphdef, frozen = _rollouts(policy, small_vlm())
    moved = jax.tree.map(lambda x: x + 0.05, state.trainable)
    found = rolls(1, step.TrainState(state.step, moved, None), _loaded(random_batch()))
    start = answer_logprobs(nnx.merge(graphdef, state.trainable, frozen), found.batch, 1.0, 512)
    now = answer_logprobs(nnx.merge(graphdef, moved, frozen), found.batch, 1.0, 512)
    np.testing.assert_allclose(found.reference_logprobs, start, rtol=1e-4, atol=1e-4)
    assert not np.allclose(found.reference_logprobs, now, atol=1e-2)
    assert found.old_logprobs is None


def test_groups_worth_the_same_weigh_nothing(policy, random_batch, small_vlm):
    policy.rl.weight_boxes = policy.rl.weight_format = 0.0  # the words, which hardly any hits
    rolls, state, *_ = _rollouts(policy, small_vlm())
    found = _host(rolls(1, state, _loaded(random_batch())))
    alive = found.told["dead_groups"] == 0
    assert 0 < alive.sum() < alive.size / 4
    assert np.array_equal(found.weights > 0, alive)
    assert not found.advantages[~alive].any() and found.advantages[alive].all()


def test_absent_findings_weigh_as_much_as_they_are_told_to(policy, random_batch, small_vlm):
    found = {}
    for weight in (1.0, 0.25):
        policy.rl.weight_absent = weight
        rolls, state, *_ = _rollouts(policy, small_vlm())
        found[weight] = _host(rolls(1, state, _loaded(random_batch())))
    ratio = found[0.25].advantages / np.where(found[1.0].advantages, found[1.0].advantages, np.nan)
    assert set(np.unique(ratio[~np.isnan(ratio)]).tolist()) == {0.25, 1.0}


def test_rewards_rise(policy, random_batch, small_vlm):
    """One box is right for every question: its coordinates come to be likelier."""
    policy.rl.group_size = 8
    policy.rl.kl_weight = policy.rl.weight_answer = policy.rl.weight_format = 0.0
    policy.decoding.max_answer_tokens = 5
    batch = random_batch(questions=2)
    box = LOC_START + np.array([200, 200, 800, 800, END - LOC_START], np.int32)
    batch.answer_tokens[..., :5] = box
    batch.answer_mask[...] = (np.arange(12) < 5) & batch.prefix_mask.any(-1, keepdims=True)
    rolls, state, graphdef, frozen = _rollouts(policy, small_vlm())
    train_step = jax.jit(step.make_train_step(graphdef, typed_config(policy), 100))
    told = []
    for number in range(1, 17):
        experience = rolls(number, state, _loaded(batch))
        state, metrics = train_step(state, frozen, experience)
        total, count = metrics.parts.named()["rl/reward_iou"]
        told.append(float(total) / float(count))
    assert np.mean(told[-3:]) > 2 * np.mean(told[:3]), told


def test_preferences_are_the_gradient_of_their_loss(policy, random_batch, small_vlm):
    """The policy gradient with these advantages is that of -log sigmoid(beta margin), by JAX."""
    policy.rl.kind, policy.rl.beta, policy.rl.kl_weight = "dpo", 0.3, 0.0
    rolls, state, graphdef, frozen = _rollouts(policy, small_vlm())
    moved = jax.tree.map(lambda x: x + 0.02, state.trainable)
    found = rolls(1, step.TrainState(state.step, moved, None), _loaded(random_batch()))
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
    objective = step.objective_of(config)

    def ours(trainable):
        model = nnx.merge(graphdef, trainable, frozen)
        return objective.loss(model, found, None, objective.denominators(found), 512)[0]

    expected = jax.jit(jax.grad(loss))(moved)
    gradient = jax.jit(jax.grad(ours))(moved)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(gradient), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-5)
    told = np.asarray(found.told["preference_loss"])
    assert np.nanmean(told) == pytest.approx(float(loss(moved)), rel=1e-4)


def test_absent_findings_weigh_in_preferences_too(policy, random_batch, small_vlm):
    """References of random tokens have a box by chance."""
    found = []
    for weight in (1.0, 0.25):
        policy.rl.kind, policy.rl.weight_absent = "dpo", weight
        rolls, state, *_ = _rollouts(policy, small_vlm())
        found.append(_host(rolls(1, state, _loaded(random_batch()))).advantages)
    learned = found[0] != 0
    assert set((found[1] / np.where(learned, found[0], 1))[learned].round(4)) == {0.25, 1}


def test_a_batch_without_a_question_teaches_nothing(policy, random_batch, small_vlm):
    """All of its questions were set aside."""
    rolls, state, *_ = _rollouts(policy, small_vlm())
    batch = random_batch()
    nothing = np.zeros_like(np.asarray(batch.prefix_mask))
    batch = dataclasses.replace(
        batch,
        question_index=np.full_like(np.asarray(batch.question_index), -1),
        prefix_mask=nothing,
        answer_mask=np.zeros_like(np.asarray(batch.answer_mask)),
    )
    found = _host(rolls(1, state, _loaded(batch)))
    assert not found.weights.any() and found.batch.answer_tokens.shape[-1] > 0


def test_pairs_of_a_file_take_the_place_of_drawn_answers(policy, random_batch, small_vlm, tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text(
        "".join(
            json.dumps({"question_id": f"q{i}", "better": "ab", "worse": "aaaa"}) + "\n"
            for i in range(3)
        )
    )
    policy.rl.kind, policy.rl.group_size, policy.rl.pairs = "dpo", 2, str(file)
    rolls, state, *_ = _rollouts(policy, small_vlm())
    found = _host(rolls(1, state, _loaded(random_batch())))
    asked = np.repeat(random_batch().question_index, 2, axis=1)
    has_pair = (asked >= 0) & (asked < 3)
    assert np.array_equal(found.weights > 0, has_pair)
    better, worse = found.advantages[:, ::2], found.advantages[:, 1::2]
    assert np.all(better[has_pair[:, ::2]] > 0) and np.all(worse[has_pair[:, 1::2]] < 0)
    row, slot = np.argwhere(has_pair)[0]
    assert found.batch.answer_tokens[row, slot, :3].tolist() == [2, 3, END]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"question_id": "q", "better": "a", "worse": "a"}', r":1: the two answers are the same"),
        ('{"question_id": "q", "better": "a"}', r":1: worse is None, expected a text"),
        ('{"question_id": "q", "better": "aaaaaaa", "worse": "b"}', r":1: an answer of 8 tokens"),
        ("", "no pair in it"),
    ],
)
def test_a_bad_pair_is_told_with_its_line(policy, small_vlm, tmp_path, line, told):
    file = tmp_path / "pairs.jsonl"
    file.write_text(line + "\n")
    policy.rl.kind, policy.rl.group_size, policy.rl.pairs = "dpo", 2, str(file)
    with pytest.raises(UserError, match=told):
        _rollouts(policy, small_vlm())


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("rl.group_size", 1, r"rl\.group_size=1"),
        ("lora.dropout", 0.1, r"lora\.dropout=0\.1"),
        ("data.earlier_images", True, r"beside one image"),
        ("data.prompt", "vqa_listed", r"whose noise rewards"),
        ("rl.pairs", "x", r"pairs are for rl\.kind dpo, ipo, hinge"),
    ],
)
def test_what_cannot_be_learned_is_refused(policy, key, value, told):
    group, name = key.split(".")
    policy[group][name] = value
    with pytest.raises(UserError, match=told):
        check_policy(typed_config(policy))


@pytest.mark.parametrize(
    ("group", "name", "value", "told"),
    [
        ("augment", "zoom", 0.1, r"data\.augment\.zoom: .* set it to 0"),
        ("data", "unknown_share", 0.1, r"data\.unknown_share: the answers of rl\.pairs"),
        (None, None, None, r"mixture\.sources\.b\.prompt='medgemma' ends answers otherwise"),
    ],
)
def test_pairs_are_about_images_and_questions_as_they_are(policy, group, name, value, told):
    policy.rl.kind, policy.rl.group_size, policy.rl.pairs = "dpo", 2, "pairs.jsonl"
    check_policy(typed_config(policy))
    if group is None:
        add_source(policy, "b", "b.jsonl", prompt="medgemma")
    else:
        (policy.data.augment if group == "augment" else policy.data)[name] = value
    with pytest.raises(UserError, match=told):
        check_policy(typed_config(policy))


def test_rewards_read_one_convention_in_a_mixture(policy):
    add_source(policy, "a", "a.jsonl")
    check_policy(typed_config(policy))
    add_source(policy, "b", "b.jsonl", codec="medgemma_json")
    with pytest.raises(UserError, match=r"mixture\.sources\.b\.codec='medgemma_json'"):
        check_policy(typed_config(policy))


def _run(policy, batches, workdir, model, steps=4):
    lines = []
    loop.train(
        typed_config(policy),
        workdir,
        loop.Start(model, BASE),
        loop.TrainingData(batches, steps),
        make_rollouts=functools.partial(Rollouts, tokenizer=Letters()),
        log_line=lines.append,
    )
    return lines


@pytest.mark.parametrize(("updates", "strategy"), [(1, "pmap"), (2, "jit")])
def test_a_run_that_was_cut_ends_bit_for_bit_as_one_that_was_not(
    policy, batch_stream, small_vlm, saved_arrays, tmp_path, updates, strategy
):
    policy.rl.updates, policy.mesh.strategy = updates, strategy
    _run(policy, batch_stream(), tmp_path / "whole", small_vlm())
    with pytest.raises(KeyboardInterrupt):
        _run(policy, batch_stream(stop_before=4), tmp_path / "cut", small_vlm())
    lines = _run(policy, batch_stream(), tmp_path / "cut", small_vlm())
    assert "resumed from the checkpoint of step 2" in lines
    ours, theirs = (saved_arrays(tmp_path / name, 4) for name in ("cut", "whole"))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    line = json.loads((tmp_path / "cut/metrics.jsonl").read_text().splitlines()[-1])
    for name in ("reward", "kl", "coordinate_entropy", "dead_groups", "length", "spread"):
        assert line[f"train/rl/{name}"] is not None


@pytest.mark.slow
def test_a_run_that_was_killed_outright_ends_bit_for_bit_as_one_that_was_not(
    saved_arrays, tmp_path
):
    script = Path(__file__).with_name("killed_run.py")

    def start(name):
        command = [sys.executable, "-u", str(script), str(tmp_path / name), "6", "0.3"]
        return subprocess.Popen(
            [*command, "--rewards"],
            env=os.environ
            | {"PYTHONPATH": str(script.parents[2]), "XLA_FLAGS": ""}  # one device: soon compiled
            | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled")}
            | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"},
            stdout=subprocess.PIPE,
            text=True,
        )

    start("whole").communicate()
    cut = start("cut")
    assert cut.stdout is not None
    assert any(line.startswith("step 3/") for line in cut.stdout)
    cut.send_signal(signal.SIGKILL)
    assert cut.wait() == -signal.SIGKILL
    again = start("cut").communicate()[0]
    assert "resumed from the checkpoint of step" in again
    ours, theirs = (saved_arrays(tmp_path / name, 6) for name in ("cut", "whole"))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    rewards = [
        [json.loads(line)["train/rl/reward"] for line in path.read_text().splitlines()]
        for path in (tmp_path / name / "metrics.jsonl" for name in ("cut", "whole"))
    ]
    assert len(rewards[0]) == 6 and rewards[0] == rewards[1]


def test_the_schedule_is_of_all_updates_of_all_steps(policy, batch_stream, small_vlm, tmp_path):
    policy.rl.updates, policy.optimizer.schedule = 2, "cosine"
    _run(policy, batch_stream(), tmp_path / "run", small_vlm())
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    rates = [line["train/learning_rate"] for line in lines]
    whole = step.learning_rate_schedule(typed_config(policy).optimizer, 8)
    assert rates == pytest.approx([float(whole(n)) for n in (1, 3, 5, 7)], abs=1e-8)
    assert min(rates[:3]) > 0


def test_no_compiled_step_is_kept(policy, batch_stream, small_vlm, tmp_path):
    with pytest.raises(UserError, match=r"a supervised one, and rl\.kind is 'rloo'"):
        loop.compile_only(
            typed_config(policy),
            tmp_path / "run",
            loop.Start(small_vlm(), BASE),
            loop.TrainingData(batch_stream(), 2),
            tmp_path / "step.bin",
        )


def test_the_drawing_of_answers_lowers_for_a_mesh(policy):
    """The planner's program; XLA for TPUs compiles it where libtpu is installed."""
    policy.data.prefix_buckets = (8,)
    text = program.lower_rollouts(typed_config(policy), jax.devices()).as_text()
    assert f"tensor<8x{GROUP}x6xi32>" in text


def test_of_each_group_the_best_answer_alone_is_learned_from(policy, random_batch, small_vlm):
    policy.rl.kind = "best_of_n"
    rolls, state, *_ = _rollouts(policy, small_vlm())
    found = _host(rolls(1, state, _loaded(random_batch())))
    rewards, weights, gained = (
        np.nan_to_num(x).reshape(-1, GROUP)
        for x in (found.told["reward"], found.weights, found.advantages)
    )
    alive = rewards.std(-1) > 1e-6
    assert alive.any()
    best = np.eye(GROUP)[rewards.argmax(-1)] * alive[:, None]
    assert np.array_equal(weights > 0, best) and np.array_equal(gained, best)


def test_answers_weigh_less_where_the_reference_has_no_box_and_nowhere_else(
    policy, random_batch, small_vlm
):
    batch = random_batch()
    batch.answer_tokens[...] = LOC_START + 1024 + 5  # a word
    there = batch.prefix_mask.any(-1)
    boxed = there & (np.arange(there.size).reshape(there.shape) % 3 == 0)
    batch.answer_tokens[boxed, :4] = LOC_START + np.array([200, 200, 800, 800])
    batch.answer_mask[...] = (np.arange(12) < 5) & there[..., None]
    policy.rl.weight_absent = 0.25
    rolls, state, *_ = _rollouts(policy, small_vlm())
    found = _host(rolls(1, state, _loaded(batch)))
    rewards = np.nan_to_num(found.told["reward"]).reshape(-1, GROUP)
    whole = advantages(rewards, "rloo").reshape(found.advantages.shape)
    weight = np.where(np.repeat(boxed, GROUP, axis=1), 1, 0.25)
    assert {1, 0.25} == set(weight[whole != 0])
    np.testing.assert_allclose(found.advantages, whole * weight, atol=1e-6)


def test_further_updates_remember_the_probabilities_of_the_drawing(policy, random_batch, small_vlm):
    policy.rl.updates = 2
    rolls, state, graphdef, frozen = _rollouts(policy, small_vlm())
    moved = jax.tree.map(lambda x: x + 0.05, state.trainable)
    found = rolls(1, step.TrainState(state.step, moved, None), _loaded(random_batch()))
    now = answer_logprobs(nnx.merge(graphdef, moved, frozen), found.batch, 1.0, 512)
    np.testing.assert_allclose(found.old_logprobs, now, rtol=1e-4, atol=1e-4)
    assert not np.allclose(found.reference_logprobs, now, atol=1e-2)


@pytest.mark.parametrize("loss_mean", ["answer", "token"])
def test_each_answer_or_each_token_counts_alike(policy, random_batch, small_vlm, loss_mean):
    policy.rl.loss_mean = loss_mean
    rolls, state, *_ = _rollouts(policy, small_vlm())
    found = _host(rolls(1, state, _loaded(random_batch())))
    lengths = found.batch.answer_mask.sum(-1)
    learned = found.weights > 0
    assert len(set(lengths[learned].tolist())) > 1
    of_answer = found.weights * (lengths if loss_mean == "answer" else 1)
    np.testing.assert_allclose(of_answer[learned], 1, rtol=1e-6)


def test_the_token_that_ends_an_answer_is_learned_with_it(
    policy, random_batch, small_vlm, monkeypatch
):
    stops = (END, *range(LOC_START + 1024, LOC_START + 1034))  # so many that some are drawn
    monkeypatch.setattr(Letters, "stop_ids", stops)
    rolls, state, *_ = _rollouts(policy, small_vlm())
    found = _host(rolls(1, state, _loaded(random_batch())))
    is_stop = np.isin(found.batch.answer_tokens, stops) & found.batch.answer_mask
    lengths = found.batch.answer_mask.sum(-1)
    ended = is_stop.any(-1)
    assert ended.sum() > 3 and np.array_equal(found.told["truncated"] == 0, ended)
    assert np.array_equal(is_stop[ended].argmax(-1) + 1, lengths[ended])
    assert set(lengths[(lengths > 0) & ~ended]) == {6}
