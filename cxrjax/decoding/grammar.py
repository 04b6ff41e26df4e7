"""The answer grammar: a language of answers, compiled to tables that the decode loop looks up.

A language is put together from few parts (`Tokens`, `AnyToken`, `BoxTokens`, `Concat`, `OneOf`,
`Repeat`); answer_forms.py has the ones that answers come in. `compile_grammar` turns it into a
deterministic automaton over token ids: an automaton with empty moves first (Thompson 1968, doi
10.1145/363347.363387), then sets of its states (Rabin and Scott 1959, doi 10.1147/rd.32.0114).

The tables hold no row as long as the vocabulary. A state lists the few tokens that lead somewhere
of their own, and says for the two large classes, location tokens and all others, where they lead
together. Two things depend on more than the state and are kept beside it: a box's far corner must
lie beyond its near one, and the answer must come to an end within its slots.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from cxrjax.models import NUM_LOC_TOKENS


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Exactly these token ids, in order; none of them a location or a stop token."""

    ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class AnyToken:
    """One token that is neither a location token nor a stop token."""


@dataclasses.dataclass(frozen=True)
class BoxTokens:
    """Four location tokens: y and x of the near corner, y and x of one beyond it."""


@dataclasses.dataclass(frozen=True)
class Concat:
    """One part after the other."""

    parts: tuple["Part", ...]


@dataclasses.dataclass(frozen=True)
class OneOf:
    """Any one of the parts."""

    parts: tuple["Part", ...]


@dataclasses.dataclass(frozen=True)
class Repeat:
    """The part any number of times, or not at all."""

    part: "Part"


Part = Tokens | AnyToken | BoxTokens | Concat | OneOf | Repeat

FREE_TEXT = Repeat(OneOf((AnyToken(), BoxTokens())))


class Grammar(NamedTuple):
    """A deterministic automaton of S states, the first of which is where answers begin.

    NumPy's arrays as compiled, JAX's within a traced loop.
    """

    # The tokens that lead somewhere of their own, [S, K], filled up with -1.
    tokens: Int[Any, "S K"]
    targets: Int[Any, "S K"]  # where each of them leads, [S, K]; they go before the two classes
    # Where every other token that is no location token leads; -1: forbidden.
    text_target: Int[Any, " S"]
    box_target: Int[Any, " S"]  # where every location token leads; -1: forbidden
    # Which coordinate of a box that location token is, 0 to 3 (y, x, y, x).
    coordinate: Int[Any, " S"]
    ends: Bool[Any, " S"]  # whether the answer may stop here
    # Fewest tokens from here to a state where it may, the stop token not counted.
    shortest: Int[Any, " S"]


class TokenVocabulary(NamedTuple):
    """The token ids that the automaton has to know."""

    size: int  # V
    loc_token_start: int  # id of the first of 1,024 location tokens; below 0: there are none
    stop_ids: tuple[int, ...]  # tokens that end an answer


class GrammarState(NamedTuple):
    """The automaton's state for each answer."""

    node: Int[Array, "*batch"]  # state of the automaton
    # `older`, `newer`: bins of the last two tokens; only meaningful inside a box.
    older: Int[Array, "*batch"]
    newer: Int[Array, "*batch"]


# Labels of the automaton's edges beside token ids.
_NOTHING, _ANY_TOKEN = -1, -2
_COORDINATES = (-3, -4, -5, -6)


class _Edges:
    """The automaton with empty moves, as lists of (label, target)."""

    def __init__(self) -> None:
        self.of: list[list[tuple[int, int]]] = [[]]

    def step(self, start: int, label: int, end: int | None = None) -> int:
        """Adds an edge, to a new state where no end is given; returns where it leads."""
        if end is None:
            end = len(self.of)
            self.of.append([])
        self.of[start].append((label, end))
        return end

    def add(self, part: Part, start: int) -> int:
        """Adds what reads the part, beginning in `start`; returns where it ends."""
        match part:
            case Tokens(ids):
                for token in ids:
                    start = self.step(start, token)
            case AnyToken():
                start = self.step(start, _ANY_TOKEN)
            case BoxTokens():
                for label in _COORDINATES:
                    start = self.step(start, label)
            case Concat(parts):
                for each in parts:
                    start = self.add(each, start)
            case OneOf(parts):
                if not parts:
                    raise ValueError("OneOf of nothing: no answer would be allowed")
                ends = [self.add(each, self.step(start, _NOTHING)) for each in parts]
                start = self.step(ends[0], _NOTHING)
                for end in ends[1:]:
                    self.step(end, _NOTHING, start)
            case Repeat(part):
                start = self.step(start, _NOTHING)
                self.step(self.add(part, start), _NOTHING, start)
        return start

    def reach(self, states: set[int]) -> frozenset[int]:
        """The states and all that empty moves lead to from them."""
        found, new = set(states), list(states)
        while new:
            for label, target in self.of[new.pop()]:
                if label == _NOTHING and target not in found:
                    found.add(target)
                    new.append(target)
        return frozenset(found)


def compile_grammar(part: Part) -> Grammar:
    """The tables of a language.

    Raises:
        ValueError: an empty choice, or a language in which it is not certain which coordinate of
            a box a location token is.
    """
    edges = _Edges()
    final = edges.add(part, 0)
    nodes = {edges.reach({0}): 0}
    table: list[tuple[dict[int, int], int, int, int]] = []
    pending = list(nodes)
    while len(table) < len(nodes):
        members = pending[len(table)]
        leads: dict[int, set[int]] = defaultdict(set)
        for member in members:
            for label, target in edges.of[member]:
                leads[label].add(target)
        coordinates = [i for i, label in enumerate(_COORDINATES) if label in leads]
        if len(coordinates) > 1:
            raise ValueError("a location token could be one coordinate of a box or another")

        def node(targets: set[int]) -> int:
            if not targets:
                return -1
            reached = edges.reach(targets)
            if reached not in nodes:
                nodes[reached] = len(nodes)
                pending.append(reached)
            return nodes[reached]

        anything = leads[_ANY_TOKEN]
        table.append(
            (
                {t: node(leads[t] | anything) for t in sorted(leads) if t >= 0},
                node(anything),
                node(leads[_COORDINATES[coordinates[0]]]) if coordinates else -1,
                coordinates[0] if coordinates else 0,
            )
        )
    branches = max(len(row[0]) for row in table)
    tokens = np.full((len(table), branches), -1, np.int32)
    targets = np.full((len(table), branches), -1, np.int32)
    for index, (listed, *_) in enumerate(table):
        tokens[index, : len(listed)] = list(listed)
        targets[index, : len(listed)] = list(listed.values())
    text_target, box_target, coordinate = (
        np.array([row[i] for row in table], np.int32) for i in (1, 2, 3)
    )
    ends = np.array([final in members for members in pending])
    return Grammar(
        tokens=tokens,
        targets=targets,
        text_target=text_target,
        box_target=box_target,
        coordinate=coordinate,
        ends=ends,
        shortest=_shortest(np.c_[targets, text_target, box_target], ends),
    )


def _shortest(targets: Int[np.ndarray, "S M"], ends: Bool[np.ndarray, " S"]) -> np.ndarray:
    far = np.iinfo(np.int32).max - 1
    steps = np.where(ends, 0, far)
    for _ in range(len(ends)):
        onward = np.where(targets >= 0, steps[targets], far).min(axis=1)
        steps = np.minimum(steps, np.minimum(onward, far - 1) + 1)
    return steps.astype(np.int32)


def join_grammars(grammars: Sequence[Grammar]) -> tuple[Grammar, list[int]]:
    """Several automata as one, for answers side by side that are held to different ones.

    Returns:
        The automaton, and the state of it in which answers of each begin.
    """
    branches = max(one.tokens.shape[1] for one in grammars)
    starts = np.cumsum([0, *(len(one.ends) for one in grammars)])[:-1].tolist()

    def wide(table: np.ndarray) -> np.ndarray:
        return np.pad(table, ((0, 0), (0, branches - table.shape[1])), constant_values=-1)

    def moved(targets: np.ndarray, start: int) -> np.ndarray:
        return np.where(targets >= 0, targets + start, -1).astype(np.int32)

    parts = [
        one._replace(
            tokens=wide(one.tokens),
            targets=moved(wide(one.targets), start),
            text_target=moved(one.text_target, start),
            box_target=moved(one.box_target, start),
        )
        for one, start in zip(grammars, starts, strict=True)
    ]
    return Grammar(*(np.concatenate(rows) for rows in zip(*parts, strict=True))), starts


def initial_state(shape: tuple[int, ...]) -> GrammarState:
    """Before the first token."""
    zeros = jnp.zeros(shape, jnp.int32)
    return GrammarState(zeros, zeros, zeros)


def allowed_tokens(
    grammar: Grammar,
    state: GrammarState,
    remaining: Int[Array, "..."] | int,
    vocabulary: TokenVocabulary,
) -> Bool[Array, "*batch V"]:
    """The tokens that may come next; traceable.

    Args:
        remaining: slots of the answer after this token; a number for all, or one that broadcasts
            to those of the answers. What could not be brought to an end in
            them is not begun, so that an answer cut off by its slots is a whole one all the same.
            An answer needs a start of `shortest[0] <= slots`; then never is nothing allowed,
            stop tokens included.

    Box rule: the first two coordinates may not be the last bin (it leaves no room for a far
    corner); the third and fourth must be beyond the first and second.
    """
    grammar = Grammar(*map(jnp.asarray, grammar))  # NumPy's arrays take no traced index

    left = jnp.asarray(remaining)

    def in_time(target: Int[Array, "*any"], left: Array = left) -> Bool[Array, "*any"]:
        return (target >= 0) & (grammar.shortest[target] <= left)

    node = state.node
    ids = jnp.arange(vocabulary.size)
    stops = jnp.zeros(ids.shape, bool)
    for stop in vocabulary.stop_ids:
        stops |= ids == stop
    text = in_time(grammar.text_target[node])[..., None]
    allowed = jnp.where(stops, grammar.ends[node][..., None], text)
    if vocabulary.loc_token_start >= 0:
        bins = ids - vocabulary.loc_token_start
        far_corner = grammar.coordinate[node] >= 2
        first = jnp.where(far_corner, state.older + 1, 0)
        last = NUM_LOC_TOKENS - 1 - jnp.where(far_corner, 0, 1)
        last = jnp.where(in_time(grammar.box_target[node]), last, -1)
        in_range = (bins >= first[..., None]) & (bins <= last[..., None])
        allowed = jnp.where((bins >= 0) & (bins < NUM_LOC_TOKENS), in_range, allowed)
    if grammar.tokens.shape[1] == 0:
        return allowed
    # An id outside the vocabulary is dropped when written.
    listed = in_time(grammar.targets[node], left[..., None])
    listed = jnp.where(listed, grammar.tokens[node], vocabulary.size)
    flat = allowed.reshape(-1, vocabulary.size)
    rows = jnp.arange(len(flat))[:, None]
    flat = flat.at[rows, listed.reshape(len(flat), -1)].set(True, mode="drop")
    return flat.reshape(allowed.shape)


def advance(
    grammar: Grammar, state: GrammarState, token: Int[Array, "*batch"], vocabulary: TokenVocabulary
) -> GrammarState:
    """The state after a token; after a stop token, or one that was not allowed, any."""
    grammar = Grammar(*map(jnp.asarray, grammar))
    node = state.node
    bins = token - vocabulary.loc_token_start
    is_loc = (bins >= 0) & (bins < NUM_LOC_TOKENS) & (vocabulary.loc_token_start >= 0)
    target = jnp.where(is_loc, grammar.box_target[node], grammar.text_target[node])
    if grammar.tokens.shape[1]:
        same = grammar.tokens[node] == token[..., None]
        listed = jnp.max(jnp.where(same, grammar.targets[node], -1), axis=-1)
        target = jnp.where(listed >= 0, listed, target)
    return GrammarState(
        node=jnp.where(target >= 0, target, node),
        older=state.newer,
        newer=jnp.where(is_loc, bins, 0),
    )
