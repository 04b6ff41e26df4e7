"""Beam search against plain loops that run the model anew for every token."""

import itertools

import numpy as np
import pytest

from cxrjax.decoding.generate import Generator
from cxrjax.decoding.grammar import FREE_TEXT, OneOf, Tokens, compile_grammar
from cxrjax.decoding.strategy import Strategy

_STOPS = (1, 5)


def _beam(logprobs, strategy, allowed=None):
    """The rules of transformers' beam search for one question, on lists."""
    n, stops = strategy.beams, strategy.stop_ids
    running, finished = [(0.0, ())], []
    for length in range(1, strategy.max_answer_tokens + 1):
        following = []
        for score, tokens in running:
            added = logprobs(tokens)
            keep = range(len(added))
            if allowed is not None:
                keep = np.flatnonzero(allowed(tokens, strategy.max_answer_tokens - length))
            following += [(score + added[t], (*tokens, int(t))) for t in keep]
        following = sorted(following, reverse=True)[: max(2, 1 + len(stops)) * n]
        last = length == strategy.max_answer_tokens
        ended = [last or tokens[-1] in stops for _, tokens in following]
        finished += [
            (score / length**strategy.length_penalty, tokens)
            for (score, tokens), end in zip(following[:n], ended, strict=False)
            if end
        ]
        finished = sorted(finished, reverse=True)[:n]
        running = [each for each, end in zip(following, ended, strict=True) if not end][:n]
        full = len(finished) == n
        if not running or (full and strategy.early_stopping):
            break
        if full and running[0][0] / length**strategy.length_penalty <= finished[-1][0]:
            break
    return finished[0][1]


def _check(case, strategy, grammar=None, allowed=None):
    answer = Generator(case.model, strategy, grammar)(*case.inputs)
    found = []
    for b, q in case.asked:
        best = _beam(lambda tokens, b=b, q=q: case.logprobs(b, q, tokens), strategy, allowed)
        fill = (0,) * (case.slots - len(best))
        assert tuple(answer.tokens[b, q]) == best + fill
        assert (answer.logprobs[b, q, len(best) :] == 0).all()
        found.append(best)
    forced = case.forced(answer.tokens)
    for (b, q), best in zip(case.asked, found, strict=True):
        np.testing.assert_allclose(
            answer.logprobs[b, q, : len(best)], forced[b, q, : len(best)], atol=1e-4
        )
    assert (answer.tokens[1, 0] == 0).all() and (answer.logprobs[1, 0] == 0).all()
    return found


@pytest.mark.parametrize(
    ("share", "length_penalty", "early_stopping"),
    [pytest.param("tower", 2.0, False, marks=pytest.mark.slow), ("image", 0.5, True)],
)
def test_the_same_as_without_cache_and_tables(tiny, share, length_penalty, early_stopping):
    case = tiny(share, 12)
    strategy = Strategy(
        case.slots, _STOPS, beams=3, length_penalty=length_penalty, early_stopping=early_stopping
    )
    found = _check(case, strategy)
    greedy = Generator(case.model, Strategy(case.slots, _STOPS))(*case.inputs).tokens
    differing = [
        (b, q)
        for (b, q), best in zip(case.asked, found, strict=True)
        if tuple(greedy[b, q, : len(best)]) != best
    ]
    assert differing, "these questions do not tell beam search from greedy"


def test_beams_carry_the_grammar(tiny, box_rule):
    case = tiny("image", 1060)
    strategy = Strategy(case.slots, (1,), beams=3)
    found = _check(case, strategy, compile_grammar(FREE_TEXT), box_rule)
    assert any(4 <= token < 1028 for tokens in found for token in tokens)


def test_fewer_answers_than_beams(tiny):
    case = tiny("image", 12)
    language = [(3, 4), (3, 7, 8), (6,)]
    grammar = compile_grammar(OneOf(tuple(map(Tokens, language))))
    strategy = Strategy(case.slots, (1,), beams=5, length_penalty=0.0)
    answer = Generator(case.model, strategy, grammar)(*case.inputs)
    for b, q in case.asked:
        scores = {}
        for words in language:
            tokens = (*words, 1)
            scores[tokens] = sum(
                case.logprobs(b, q, tokens[:i])[tokens[i]] for i in range(len(tokens))
            )
        best = max(scores, key=scores.__getitem__)
        assert tuple(answer.tokens[b, q]) == best + (0,) * (case.slots - len(best))
        assert np.isclose(answer.logprobs[b, q].sum(), scores[best], atol=1e-4)


def test_enough_beams_find_the_best_of_all_answers(tiny):
    case, slots = tiny("image", 12), 3
    strategy = Strategy(slots, (1,), beams=150, length_penalty=0.0)
    answer = Generator(case.model, strategy)(*case.inputs)
    for b, q in case.asked[:1]:
        table = {
            tokens: case.logprobs(b, q, tokens)
            for length in range(slots)
            for tokens in itertools.product([t for t in range(12) if t != 1], repeat=length)
        }
        scores = {}
        for tokens, logprobs in table.items():
            so_far = sum(table[tokens[:i]][tokens[i]] for i in range(len(tokens)))
            last = range(12) if len(tokens) == slots - 1 else [1]
            scores |= {(*tokens, t): so_far + logprobs[t] for t in last}
        best = max(scores, key=scores.__getitem__)
        assert tuple(answer.tokens[b, q]) == best + (0,) * (slots - len(best))
