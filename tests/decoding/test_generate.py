"""The cached loop against the model run anew for every token, on one device and on several."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cxrjax.decoding import generate as generate_lib
from cxrjax.decoding import stream
from cxrjax.decoding.beam import spread_cache
from cxrjax.decoding.generate import Generator, generate
from cxrjax.decoding.grammar import FREE_TEXT, Tokens, compile_grammar
from cxrjax.decoding.strategy import Strategy
from cxrjax.distributed import meshes
from cxrjax.models.presets import IMAGE
from tests.models.sizes import talking_model
from tests.papers.cases import data


def _greedy(case, b, q, stops, allowed=None):
    tokens = []
    while len(tokens) < case.slots and not set(tokens) & set(stops):
        logits = case.logits(b, q, tokens)
        if allowed is not None:
            logits = np.where(allowed(tokens, case.slots - 1 - len(tokens)), logits, -np.inf)
        tokens.append(int(np.argmax(logits)))
    return tokens


@pytest.mark.parametrize(("share", "boxes"), [("tower", False), ("image", False), ("image", True)])
def test_the_cache_changes_nothing(tiny, box_rule, share, boxes):
    case = tiny(share, 1060 if boxes else 12)
    grammar, stops, allowed = compile_grammar(FREE_TEXT), (1,), box_rule
    if not boxes:
        # Two stop tokens that these answers do meet, at the second and the fourth token.
        grammar = allowed = None
        stops = (_greedy(case, 0, 0, ())[1], _greedy(case, 1, 2, ())[3])
    answer = Generator(case.model, Strategy(case.slots, stops), grammar)(*case.inputs)
    expected = np.zeros_like(answer.tokens)
    for b, q in case.asked:
        tokens = _greedy(case, b, q, stops, allowed)
        expected[b, q, : len(tokens)] = tokens
        if not boxes and (b, q) in ((0, 0), (1, 2)):
            assert len(tokens) < case.slots
    np.testing.assert_array_equal(answer.tokens, expected)
    assert (answer.tokens[1, 0] == 0).all() and (answer.logprobs[1, 0] == 0).all()
    said = answer.tokens > 0
    np.testing.assert_allclose(answer.logprobs[said], case.forced(answer.tokens)[said], atol=1e-4)


def test_a_streamed_answer_is_the_same(tiny):
    case, stops = tiny("image", 12), (1, 5)
    asked = (*(part[:1] for part in case.inputs[:1]), *(p[:1, 2:] for p in case.inputs[1:]))
    generator = Generator(case.model, Strategy(case.slots, stops, temperature=0.8, seed=7))
    index = np.array([[9]], np.int32)
    whole = generator(*asked, index).tokens[0, 0].tolist()
    until = next((at for at, token in enumerate(whole) if token in stops), len(whole))
    assert list(stream._tokens(generator, (*asked, index, None, None))) == whole[:until]


@pytest.mark.parametrize(("share", "normalised"), [("tower", False), ("image", True)])
def test_best_of_some_samples(tiny, share, normalised):
    case, stops = tiny(share, 12), (1, 5)
    drawn = {"temperature": 0.8, "top_k": 9, "top_p": 0.9, "best_of": 3, "seed": 7}
    strategy = Strategy(case.slots, stops, length_normalised=normalised, **drawn)
    index = np.array([[40, 2, 9], [3, 31, 5]], np.int32)
    answer = Generator(case.model, strategy)(*case.inputs, index)
    lengths = set()
    for b, q in case.asked:
        samples = []
        for number in range(3):
            key = jax.random.fold_in(jax.random.key(7), index[b, q])
            key = jax.random.fold_in(key, number)
            tokens, logprobs = [], []
            while len(tokens) < case.slots and not set(tokens) & set(stops):
                own = case.logprobs(b, q, tokens)
                logits = own / 0.8
                order = np.argsort(-logits)
                logits[order[9:]] = -np.inf
                probabilities = np.exp(logits) / np.exp(logits).sum()
                before = np.cumsum(probabilities[order]) - probabilities[order]
                logits[order[before >= 0.9]] = -np.inf
                # The same noise on the same, up to a constant, logits.
                draw = jax.random.categorical(
                    jax.random.fold_in(key, len(tokens)), logits.astype(np.float32)
                )
                tokens.append(int(draw))
                logprobs.append(own[tokens[-1]])
            lengths.add(len(tokens))
            score = np.sum(logprobs) / (len(tokens) if normalised else 1)
            samples.append((score, tokens, logprobs))
        _, tokens, logprobs = max(samples)
        fill = [0] * (case.slots - len(tokens))
        assert answer.tokens[b, q].tolist() == tokens + fill
        np.testing.assert_allclose(answer.logprobs[b, q], logprobs + fill, atol=1e-4)
    assert len(lengths) > 2


def test_samples_do_not_hang_on_the_batch(tiny):
    case = tiny("image", 1060)
    generate = Generator(case.model, Strategy(case.slots, temperature=1.0))
    index = np.array([[40, 2, 9], [3, 31, 5]], np.int32)
    images, *prompts = case.inputs
    together = generate(images, *prompts, index).tokens
    # The images and their questions in another order, and two of the questions left out.
    moved = [part[::-1, ::-1].copy() for part in (*prompts, index)]
    moved[1][1, :2] = False
    elsewhere = generate(images[::-1], *moved).tokens[::-1, ::-1]
    assert (elsewhere[0, 1:] == 0).all()
    for b, q in [(0, 0), (1, 1), (1, 2)]:
        np.testing.assert_array_equal(elsewhere[b, q], together[b, q])
    assert len({tuple(together[b, q]) for b, q in case.asked}) == len(case.asked)
    with pytest.raises(ValueError, match="question_index"):
        generate(images, *prompts)


def test_another_seed_draws_otherwise_and_compiles_nothing(tiny):
    case = tiny("image", 1060)
    index = np.array([[40, 2, 9], [3, 31, 5]], np.int32)
    answers, compiled = [], set()
    for seed in (0, 1, 0):
        strategy = Strategy(case.slots, temperature=1.0, seed=seed)
        answers.append(Generator(case.model, strategy)(*case.inputs, index).tokens)
        compiled.add(generate_lib.answer_batch._cache_size())
    np.testing.assert_array_equal(answers[0], answers[2])
    assert (answers[0] != answers[1]).any()
    assert len(compiled) == 1


def test_grammars_must_fit_and_batches_are_raised_to_what_devices_share(tiny):
    grammar = compile_grammar(Tokens((5, 6, 7)))
    with pytest.raises(ValueError, match="shortest answer takes 3"):
        Generator(tiny("image", 12).model, Strategy(2, (1,)), grammar)

    def whole(count, **sizes):
        return Generator(model("image"), GREEDY, mesh=_mesh(**sizes)).whole_batch(count)

    assert whole(5) == whole(8) == 8
    assert whole(9) == 16
    assert whole(5, data=2, tensor=4) == 6
    assert Generator(model("image"), GREEDY).whole_batch(5) == 5


@pytest.mark.parametrize("share", [pytest.param("tower", marks=pytest.mark.slow), "image"])
def test_several_images_a_row(tiny, share):
    case = tiny(share, 12)
    images, prefix_tokens, prefix_mask = case.inputs
    pair = np.stack([images, images[::-1]], axis=1)
    side = case.model.config.vision.num_tokens
    context = np.array([[5, *[IMAGE] * side, 6, *[IMAGE] * side, 7]] * 2, np.int32)
    there = np.ones(context.shape, bool)
    there[1, side + 1 :] = False  # the second row has one image only
    told = {"context_tokens": context, "context_mask": there}
    answer = Generator(case.model, Strategy(case.slots, (1,)))(
        pair, prefix_tokens, prefix_mask, **told
    )
    whole = np.ones_like(answer.tokens, bool)
    given = map(jnp.asarray, (pair, prefix_tokens, prefix_mask, answer.tokens, whole))
    shown, told = list(given), jax.tree.map(jnp.asarray, told)

    @nnx.jit
    def forced(model):
        hidden = model(*shown, **told)
        return jax.nn.log_softmax(model.logits(hidden))

    logprobs = np.asarray(forced(case.model))
    said = answer.tokens > 0
    assert said[case.inputs[2].any(-1)].any(-1).all()
    np.testing.assert_array_equal(answer.tokens[said], logprobs.argmax(-1)[said])
    np.testing.assert_allclose(answer.logprobs[said], logprobs.max(-1)[said], atol=1e-4)


SLOTS, VOCAB, ROWS = 5, 40, 5
MESHES = data(__file__)["meshes"]
GREEDY = Strategy(SLOTS, (1,))
OTHERS = {
    "beams": Strategy(SLOTS, (1,), beams=2),
    "sampled": Strategy(SLOTS, (1,), temperature=1.0, best_of=2, seed=3),
}


def model(share):
    """Four heads, two of keys and values."""
    return talking_model(share, VOCAB, width=32, num_kv_heads=2)


@pytest.fixture(scope="module")
def inputs():
    """Five images, which no mesh divides, of three questions; one of them empty."""
    rng = np.random.default_rng(4)
    mask = np.ones((ROWS, 3, 6), bool)
    mask[0, 1, :4] = False
    mask[1, 0] = False
    tokens = (rng.integers(2, VOCAB, mask.shape) * mask).astype(np.int32)
    images = rng.integers(0, 256, (ROWS, 16, 16, 3)).astype(np.uint8)
    return images, tokens, mask, np.arange(ROWS * 3, dtype=np.int32).reshape(ROWS, 3)


def _mesh(**sizes):
    return meshes.make_mesh(meshes.MeshConfig(**sizes))


def _assert_same(ours, theirs):
    np.testing.assert_array_equal(ours.tokens, theirs.tokens)
    np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-5)
    assert len(np.unique(ours.tokens)) > 5  # an answer that never changes would prove little


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(sizes, id=name, marks=() if name == "all" else pytest.mark.slow)
        for name, sizes in MESHES.items()
    ],
)
def test_eight_devices_write_the_tokens_of_one(inputs, sizes, monkeypatch):
    monkeypatch.setattr(meshes, "_FSDP_MIN_SIZE", 16)
    alone = Generator(model("image"), GREEDY)(*inputs)
    _assert_same(Generator(model("image"), GREEDY, mesh=_mesh(**sizes))(*inputs), alone)


@pytest.mark.heavy
@pytest.mark.parametrize("share", ["image", "tower"])
@pytest.mark.parametrize("strategy", OTHERS.values(), ids=OTHERS)
def test_beams_and_draws_too(inputs, share, strategy):
    alone = Generator(model(share), strategy)(*inputs)
    mesh = _mesh(data=4, tensor=2)
    _assert_same(Generator(model(share), strategy, mesh=mesh)(*inputs), alone)


@pytest.mark.parametrize(("tensor", "heads"), [(2, 1), pytest.param(4, 2, marks=pytest.mark.slow)])
def test_every_device_keeps_its_part_of_the_cache(inputs, tensor, heads):
    """Also in the loop: the compiled program holds no cache of the whole batch or of all heads."""
    mesh = _mesh(data=8 // tensor, tensor=tensor)
    graphdef, state = nnx.split(model("image"))
    state = jax.device_put(state, meshes.tree_shardings(mesh, state))
    batch = meshes.put_batch(tuple(np.concatenate([x, x[:3]]) for x in inputs), mesh)

    @jax.jit
    def cache_of(state, images, tokens, mask, _):
        _, decode = nnx.merge(graphdef, state).prefill(images, tokens, mask, SLOTS)
        return spread_cache(decode, mesh)

    rows = 8 // mesh.shape["data"]
    decode = cache_of(state, *batch)
    for layer in decode.layers:
        for part in layer:
            assert part.sharding.shard_shape(part.shape)[:2] == (rows, heads)
    for part in decode[1:3]:
        assert part.sharding.shard_shape(part.shape)[0] == rows

    def answer(state, *batch):
        return generate(nnx.merge(graphdef, state), *batch, GREEDY, mesh=mesh)

    program = jax.jit(answer).lower(state, *batch).compile().as_text()
    loop = [line for line in program.splitlines() if " while(" in line]
    # Four devices and two heads: XLA may let two devices share a head rather than copy both.
    assert re.search(rf"f32\[{rows},[1-{heads}],3,{SLOTS},8\]", " ".join(loop))
    assert f"f32[8,2,3,{SLOTS},8]" not in program


def test_context_tokens_and_masks_are_spread_with_the_rows(inputs):
    images, tokens, mask, index = inputs
    context = np.full((ROWS, 6), -1, np.int32)  # four image tokens after two of text
    context[:, :2] = np.arange(2 * ROWS).reshape(ROWS, 2) + 2
    present = np.ones_like(context, bool)
    present[2, 0] = False
    asked = (images, tokens, mask, index, context, present)
    alone = Generator(model("image"), GREEDY)(*asked)
    _assert_same(Generator(model("image"), GREEDY, mesh=_mesh())(*asked), alone)
    assert not jnp.array_equal(alone.tokens, Generator(model("image"), GREEDY)(*inputs).tokens)
