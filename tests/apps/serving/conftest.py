"""A tiny random model that is served, and asked in batches for comparison."""

import functools
import threading

import numpy as np
import pytest

from cxrjax.apps.serving.engine import Engine
from cxrjax.apps.serving.programs import Programs, Shapes
from cxrjax.decoding.generate import Generator
from cxrjax.decoding.grammar import FREE_TEXT, OneOf, Tokens, compile_grammar, join_grammars
from cxrjax.decoding.strategy import Strategy
from tests.models.sizes import talking_model

SLOTS, BUCKETS, ANSWER, VOCABULARY = 5, (4, 8), 9, 1100
STOPS = (1, 3)
WATCHED = np.array([[5, 6], [7, -1]], np.int32)
GRAMMARS = [
    compile_grammar(FREE_TEXT),
    compile_grammar(OneOf((Tokens((1040, 1041)), Tokens((1042,))))),
]


def tiny_model(share="image", attention="full", window=None):
    return talking_model(share, VOCABULARY, prefix_attention=attention, window=window)


def questions(count, seed=0):
    """Prompts of several lengths."""
    rng = np.random.default_rng(seed)
    return [
        rng.integers(1030, VOCABULARY, rng.integers(2, 9)).astype(np.int32) for _ in range(count)
    ]


def pictures(count, seed=1):
    return np.random.default_rng(seed).integers(0, 256, (count, 16, 16, 3)).astype(np.uint8)


def in_batches(model, image, prompts, grammar=GRAMMARS[0], context=(), **strategy):
    """What `predict` would say: all questions of an image in one batch."""
    settings = Strategy(max_answer_tokens=ANSWER, stop_ids=STOPS, **strategy)
    generator = Generator(model, settings, grammar, None, WATCHED)
    tokens = np.zeros((1, len(prompts), 8), np.int32)
    mask = np.zeros(tokens.shape, bool)
    for row, prompt in enumerate(prompts):
        tokens[0, row, 8 - len(prompt) :], mask[0, row, 8 - len(prompt) :] = prompt, True
    index = np.zeros(tokens.shape[:2], np.int32)
    return [part[0] for part in generator(image[None], tokens, mask, index, *context)]


def make_programs(model, reading="greedy", mesh=None, **shapes):
    grammar, starts = join_grammars(GRAMMARS)
    assert starts[0] == 0
    settings = {"slots": SLOTS, "buckets": BUCKETS, "max_answer": ANSWER} | shapes
    return Programs(model, Shapes(**settings), grammar, STOPS, reading, WATCHED, mesh=mesh)


@functools.cache
def tiny_programs(**shapes):
    """Of the tiny model, which engines may use one after another."""
    return make_programs(tiny_model(), **shapes)


@pytest.fixture
def running():
    """`running(programs, **settings)`: an engine in a thread, ended with the test."""
    started = []

    def start(programs, most_waiting=64, image_bytes=10**8):
        engine = Engine(programs, STOPS, most_waiting, image_bytes)
        thread = threading.Thread(target=engine.run)
        thread.start()
        started.append((engine, thread))
        assert engine.wait_until_warm(300)
        return engine

    yield start
    for engine, thread in started:
        engine.drain()
        thread.join(60)
        assert not thread.is_alive()
