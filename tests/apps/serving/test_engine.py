"""Answers from slots are those of a batch, whoever else is answered, and nothing compiles."""

import functools
import math
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cxrjax.apps import page_server
from cxrjax.apps.serving.byte_lru import ByteLRU
from cxrjax.apps.serving.compile_count import compile_count
from cxrjax.apps.serving.engine import Job, SeenImages
from cxrjax.apps.serving.fair_queue import FairQueue, QueueFullError
from cxrjax.apps.serving.named_models import ServedModels
from cxrjax.apps.serving.programs import ReadImages, Shapes, SlotRequest, StepTokens
from cxrjax.apps.serving.start import Bounds, answer_until_told
from cxrjax.decoding.grammar import join_grammars
from cxrjax.distributed.meshes import MeshConfig, make_mesh
from cxrjax.errors import UserError
from cxrjax.models import PRESETS, VLM
from cxrjax.models.vlm import context_of_two
from tests.apps.serving.conftest import (
    ANSWER,
    GRAMMARS,
    STOPS,
    in_batches,
    make_programs,
    pictures,
    questions,
    tiny_model,
    tiny_programs,
)

slow = functools.partial(pytest.param, marks=pytest.mark.slow)


class Heard:
    """One job and what it was told."""

    def __init__(self, picture, key, asked, client="a", seconds=120.0, watched=False):
        self.events = []
        self.ended = threading.Event()
        self.ending = None
        deadline = time.monotonic() + seconds
        self.job = Job(client, SeenImages(key, picture), asked, deadline, self._hear, watched)

    def _hear(self, event):
        if isinstance(event, str):
            self.ending = event
            self.ended.set()
        else:
            self.events.append(event)

    def wait(self):
        assert self.ended.wait(120)
        return self

    def check(self, tokens, logprobs, words, quantiles):
        said = [event.token for event in self.events]
        assert said == tokens[: len(said)].tolist()
        assert not tokens[len(said) :].any()
        for name, whole, rounding in (
            ("logprob", logprobs, 2e-4),
            ("words", words, 2e-4),
            ("quantiles", quantiles, 1),  # a bin
        ):
            own = np.array([getattr(event, name) for event in self.events])
            np.testing.assert_allclose(own, whole[: len(said)], atol=rounding)


def ask_all(engine, asked, images, prompts, expected, clients=1):
    """Asks (image, question) after (image, question), and compares."""
    jobs = {}
    for i, q in asked:
        jobs[i, q] = Heard(images[i], i, SlotRequest(prompts[q], limit=ANSWER), client=q % clients)
        engine.submit(q % clients, [jobs[i, q].job])
    for (i, q), one in jobs.items():
        one.wait().check(*(part[q] for part in expected[i]))
    assert engine.counts.compiled_after_warm_up == 0
    return jobs


@pytest.mark.parametrize(
    ("share", "attention", "window", "reading"),
    [
        slow("image", "full", None, "median"),
        ("tower", "full", None, "greedy"),
        ("image", "causal", 7, "expected_iou"),
    ],
)
def test_answers_are_those_of_a_batch_in_any_order(share, attention, window, reading, running):
    model = tiny_model(share, attention, window)
    prompts, images = questions(6), pictures(2)
    expected = [in_batches(model, image, prompts, boxes=reading) for image in images]
    engine = running(make_programs(model, reading))
    compiled = compile_count()
    asked = [(i, q) for i in range(2) for q in range(6)]
    np.random.default_rng(5).shuffle(asked)
    jobs = ask_all(engine, asked, images, prompts, expected, clients=3)
    for one in jobs.values():
        assert one.ending == ("stop" if one.events[-1].token in STOPS else "length")
    assert any(len({e.token for e in one.events}) > 2 for one in jobs.values())
    assert engine.images.misses == 2 and engine.images.hits == 10
    assert compile_count() == compiled


@pytest.mark.parametrize(
    ("share", "axes"),
    [slow("image", {"tensor": 2}), ("tower", {"fsdp": 2, "tensor": 2})],
)
def test_a_model_that_is_split_over_devices_answers_alike(share, axes, running):
    model = tiny_model(share)
    prompts, images = questions(3), pictures(2)
    expected = [in_batches(model, image, prompts) for image in images]
    count = math.prod(axes.values())
    mesh = make_mesh(MeshConfig(data=1, **axes), jax.devices()[:count])
    programs = make_programs(model, mesh=mesh, slots=4, buckets=(8,))
    kernel = programs._params[1][0]["mlp"]["gate_proj"]["kernel"][...]
    assert len(kernel.sharding.device_set) == count and not kernel.sharding.is_fully_replicated
    engine = running(programs)
    ask_all(engine, np.ndindex(2, 3), images, prompts, expected)


@pytest.mark.parametrize(
    ("preset", "share"),
    [
        pytest.param("tiny_qwen", "image", marks=pytest.mark.heavy),  # Qwen3 has its positions
        slow("tiny_qwen3", "tower"),
        slow("tiny_gemma4", "image"),
    ],
)
def test_images_come_on_several_grids(preset, share, running):
    model = VLM(PRESETS[preset].for_images(128, 64), rngs=nnx.Rngs(2), share=share)
    prompts, grids = questions(2), ((64, 64), (128, 64), (64, 128))
    rng = np.random.default_rng(3)
    images = [rng.integers(0, 256, (*grid, 3)).astype(np.uint8) for grid in grids]
    expected = [in_batches(model, image, prompts) for image in images]
    engine = running(make_programs(model, slots=2, buckets=(8,), grids=grids))
    # A slot has a large context first, then a small one behind which the old one must not be seen.
    asked = [((i + 1) % 3, q) for q, i in np.ndindex(2, 3)]
    jobs = ask_all(engine, asked, images, prompts, expected)
    assert any(len({e.token for e in one.events}) > 2 for one in jobs.values())


@pytest.mark.parametrize("share", ["image", slow("tower")])
def test_a_second_image_is_seen_where_there_is_one(share, running):
    model, prompts, images = tiny_model(share), questions(2), pictures(4)
    pairs = [np.stack([images[0], images[1]]), np.stack([images[0], np.zeros_like(images[1])])]
    expected = {
        has_second: in_batches(
            model, pair, prompts, context=context_of_two(model.config, jnp.array([has_second]))
        )
        for has_second, pair in zip((True, False), pairs, strict=True)
    }
    engine = running(make_programs(model, images=2, slots=2, buckets=(8,)))
    jobs = {}
    for has_second, pair in zip((True, False), pairs, strict=True):
        for q in range(2):
            one = Heard(pair, has_second, SlotRequest(prompts[q], limit=ANSWER))
            one.job.images = SeenImages(has_second, pair, has_second)
            jobs[has_second, q] = one
            engine.submit("a", [one.job])
    for (has_second, q), one in jobs.items():
        one.wait().check(*(part[q] for part in expected[has_second]))
    assert engine.counts.compiled_after_warm_up == 0


def test_draws_grammars_limits_and_likeliest_tokens_of_each_slot(running):
    model = tiny_model()
    prompts, (image,) = questions(3), pictures(1)
    drawn = in_batches(model, image, prompts[:1], temperature=0.9, top_p=0.8, seed=7, samples=3)
    greedy = in_batches(model, image, prompts)
    held = in_batches(model, image, prompts, GRAMMARS[1])
    engine = running(tiny_programs())
    start = join_grammars(GRAMMARS)[1][1]

    def ask(q, **settings):
        one = Heard(image, 0, SlotRequest(prompts[q], **{"limit": ANSWER} | settings))
        engine.submit("a", [one.job])
        return one

    samples = [ask(0, temperature=0.9, top_p=0.8, seed=7, sample=k) for k in range(3)]
    plain, form, short = ask(1, wants_top=True), ask(2, start=start), ask(1, limit=3)
    free = ask(0, free=True, start=start)
    for k, one in enumerate(samples):
        one.wait().check(*(part[k] for part in drawn))
    plain.wait().check(*(part[1] for part in greedy))
    form.wait().check(*(part[2] for part in held))
    assert len(short.wait().events) <= 3 and short.ending in ("length", "stop")
    for event in plain.events:
        assert len(event.top) == 20
        assert event.top[0][1] >= event.logprob - 1e-5
        own = dict(event.top).get(event.token)
        assert own is None or abs(own - event.logprob) < 1e-4
    # Held to nothing, it may begin with any token, whatever the grammar at its start says.
    assert free.wait().events[0].token == int(np.argmax(_first_logits(model, image, prompts[0])))
    assert engine.counts.compiled_after_warm_up == 0


def _first_logits(model, image, prompt):
    @nnx.jit
    def logits(model, *asked):
        return model.logits(model.prefill(*asked, 1)[0])

    mask = np.ones((1, 1, len(prompt)), bool)
    return np.asarray(logits(model, image[None], prompt[None, None], mask))[0, 0]


def test_a_client_that_leaves_or_waits_too_long_gives_its_slot_up(running):
    (image,), (prompt, *_) = pictures(1), questions(1)
    engine = running(tiny_programs(slots=1))
    first = Heard(image, 0, SlotRequest(prompt, limit=ANSWER))
    late = Heard(image, 0, SlotRequest(prompt, limit=ANSWER), seconds=-1.0)
    left = Heard(image, 0, SlotRequest(prompt, limit=ANSWER))
    left.job.cancel()
    last = Heard(image, 0, SlotRequest(prompt, limit=ANSWER))
    engine.submit("a", [first.job, late.job, left.job, last.job])
    assert late.wait().ending == "timeout" and left.wait().ending == "cancelled"
    assert not late.events and not left.events
    assert first.wait().ending in ("stop", "length")
    assert last.wait().ending == first.ending
    assert engine.waiting == engine.writing == 0


def test_images_are_read_together_unless_somebody_watches(running):
    engine = running(tiny_programs())
    (prompt,) = questions(1)
    steps = {}
    for watched in (True, False):
        asked = SlotRequest(prompt, limit=2, free=True)
        jobs = [
            Heard(image, (watched, i), asked, watched=watched)
            for i, image in enumerate(pictures(4))
        ]
        before = engine.counts.steps
        engine.submit("a", [one.job for one in jobs])
        assert {len(one.wait().events) for one in jobs} <= {1, 2}
        steps[watched] = engine.counts.steps - before
    # Two at first, as nobody watches before them, then one between two tokens.
    assert steps == {True: 4, False: 2}


def test_drained_it_answers_what_it_has_and_takes_no_more(running):
    (image,), (prompt, *_) = pictures(1), questions(1)
    engine = running(tiny_programs(), most_waiting=7)
    jobs = [Heard(image, 0, SlotRequest(prompt, limit=ANSWER)) for _ in range(8)]
    with pytest.raises(QueueFullError):
        engine.submit("a", [one.job for one in jobs])
    assert engine.is_ready
    engine.submit("a", [one.job for one in jobs[:7]])
    engine.drain()
    assert not engine.is_ready
    with pytest.raises(QueueFullError):
        engine.submit("a", [jobs[7].job])
    assert engine.join(60)
    assert all(one.ending in ("stop", "length") for one in jobs[:7])


def test_all_are_told_when_the_engine_fails(running, monkeypatch):
    programs = tiny_programs(slots=1)
    engine = running(programs)

    def read_images(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(programs, "read_images", read_images)
    jobs = [Heard(pictures(1)[0], 0, SlotRequest(questions(1)[0], limit=ANSWER)) for _ in range(2)]
    engine.submit("a", [one.job for one in jobs])
    assert [one.wait().ending for one in jobs] == ["failed"] * 2
    assert engine.join(60) and not engine.is_ready
    with pytest.raises(QueueFullError):
        engine.submit("a", [jobs[0].job])


class _Broken:
    """Programs that no device takes."""

    shapes = Shapes(slots=1, buckets=(4,), max_answer=2)

    def warm_up(self):
        raise RuntimeError("out of memory")


def test_a_server_without_its_engine_ends():
    served, told = ServedModels(_Broken(), {}, STOPS), []

    def serve():
        with page_server.listen("127.0.0.1", 0) as listening:
            try:
                answer_until_told(served, listening, Bounds(), {})
            except UserError as error:
                told.append(str(error))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive() and "the engine has failed" in told[0]


def test_clients_take_turns_and_what_was_used_last_is_kept():
    waiting = FairQueue(10)
    waiting.put("a", ["a1", "a2", "a3"])
    waiting.put("b", ["b1"])
    waiting.put("c", ["c1", "c2"])
    assert waiting.remove(lambda item: item == "a2") == ["a2"]
    assert [waiting.pop() for _ in range(6)] == ["a1", "b1", "c1", "a3", "c2", None]
    assert len(waiting) == 0
    with pytest.raises(QueueFullError):
        waiting.put("a", list(range(11)))
    waiting.put("a", list(range(10)))
    with pytest.raises(QueueFullError):
        waiting.put("b", [0])
    kept = ByteLRU(10, len)
    for key in "abc":
        kept.put(key, key * 4)
        kept.get("a")
    assert kept.get("a") and kept.get("b") is None and kept.get("c")
    assert kept.bytes == 8
    kept.put("huge", "x" * 11)
    assert kept.get("huge") is None and kept.get("a")
    kept.put("a", "y")
    assert kept.bytes == 5


class _Noted:
    """Programs that note which slots write, and say 9."""

    shapes = Shapes(slots=8, buckets=(4,), max_answer=9)

    def __init__(self):
        self.alive = []

    def warm_up(self):
        return ()

    def read_images(self, *_):
        return ReadImages([], np.zeros(1), None)

    def admit(self, state, *_):
        return state

    def step(self, state, alive, _):
        self.alive.append(np.flatnonzero(alive).tolist())
        if len(self.alive) > 20:
            raise RuntimeError("no answer comes to its end")
        nothing = np.zeros((len(alive), 1))
        return state, StepTokens(nothing[:, 0] + 9, nothing[:, 0], *[nothing] * 4)


def test_a_slot_behind_a_free_one_goes_on(running):
    programs = _Noted()
    engine = running(programs)
    jobs = [Heard(None, 0, SlotRequest(np.ones(2, np.int32), limit=n)) for n in (1, 3, 1, 1, 1, 4)]
    engine.submit("a", [one.job for one in jobs])
    assert [one.wait().ending for one in jobs] == ["length"] * 6
    assert [len(one.events) for one in jobs] == [1, 3, 1, 1, 1, 4]
    # Four come in before the first step, the others when there is time.
    assert programs.alive == [[0, 1, 2, 3], [0, 1, 2], [1, 2], [2], [2]]
