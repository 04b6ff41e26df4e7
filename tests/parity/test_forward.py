"""Vision features, logits, loss and greedy answers against transformers, in float32."""

import copy
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bench.fuzz.drawn_configs import KINDS, SIZE
from cxrjax.codecs.frames import nearest_tiles
from cxrjax.decoding.generate import Generator
from cxrjax.decoding.strategy import Strategy
from cxrjax.models.hf_import import make_model, open_checkpoint, read_parameters

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

CAUSAL = KINDS[4:]
IMAGE_KINDS = (*KINDS[:3], *CAUSAL)


@nnx.jit
def _all_logits(model, given, context):
    """Logits at every position of [context | prompt | answer], and the answers' hidden states."""
    images, prefix, prefix_mask, answers, answer_mask = given
    embedded, front = model._context(prefix.shape[0], images, context, None, None)
    tokens = jnp.concatenate([prefix, answers], axis=2)
    mask = jnp.concatenate([prefix_mask, answer_mask], axis=2)
    x, layout = model._sequence(
        embedded, front, tokens, mask, prefix.shape[2], is_preset_context=context is None
    )
    x, _ = model.decoder(x, layout)
    hidden = model(*given, context_tokens=context)
    return model.logits(model.decoder.final_norm(x)), hidden


def _both(pair, questions, side):
    """Logits of both at every token that is there, row by row; ours of answers apart; loss."""
    given, context = questions.ours()
    ours, hidden = _all_logits(pair.model, given, context["context_tokens"])
    ours, answers = np.asarray(ours), np.asarray(pair.model.logits(hidden))
    asked = questions.theirs(pair.kind, side)
    with torch.no_grad():
        out = pair.hf(**asked)
    theirs = out.logits.numpy()
    num_context = questions.context.shape[1]
    prefix_slots = given[1].shape[2]
    for row, (prefix, answer) in enumerate(zip(questions.prefix, questions.answers, strict=True)):
        there = np.flatnonzero(asked["attention_mask"][row].numpy())
        n, m = len(prefix), len(answer)
        # Where last layers share keys, nothing stands behind the context's tokens.
        front = ours.shape[1] - prefix_slots - given[3].shape[2]
        start = front + prefix_slots
        mine = np.r_[0:front, start - n : start + m]
        asked_of = theirs[row, there][num_context - front :]
        yield ours[row, mine], asked_of, answers[row, 0, :m], n + front, out.loss


def _resized(pair, height, width):
    config = pair.model.config.for_images(height, width)
    arrays = read_parameters(open_checkpoint(pair.directory), config)
    return dataclasses.replace(pair, model=make_model(config, arrays))


@pytest.mark.parametrize("kind", IMAGE_KINDS)
def test_vision_features(make_pair, close, kind):
    pair = make_pair(kind)
    questions = pair.questions()
    with torch.no_grad():
        asked = questions.theirs(kind)
        names = ("pixel_values", "image_grid_thw", "image_position_ids")
        given = {name: asked[name] for name in names if name in asked}
        found = pair.hf.get_image_features(**given)
    theirs = found.pooler_output
    if kind.startswith(("qwen", "gemma4", "smolvlm")):  # one by one, since they may differ in size
        theirs = np.stack(theirs)
    if kind == "qwen3":
        theirs = np.concatenate([theirs, *map(np.stack, found.deepstack_features)], axis=-1)
    close(nnx.jit(lambda m, x: m.encode_images(x))(pair.model, questions.images), theirs)


@pytest.mark.parametrize("kind", ["gemma4", "gemma4_unified", "gemma4_small"])
def test_gemma4_sees_images_that_are_not_square(make_pair, close, kind):
    pair = make_pair(kind)
    height, width, sizes = 16, 40, pair.model.config.for_images(16, 40)
    shape = (2, height, width, 3)
    images = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    patch, (rows, columns) = sizes.vision.patch_size, sizes.vision.patch_grid
    cut = (images / 2 + 0.5).reshape(2, rows, patch, columns, patch, 3)
    cut = cut.transpose(0, 1, 3, 2, 4, 5).reshape(2, rows * columns, -1)
    places = np.stack(np.divmod(np.arange(rows * columns), columns)[::-1], axis=-1)
    with torch.no_grad():
        theirs = pair.hf.get_image_features(
            pixel_values=torch.tensor(cut), image_position_ids=torch.tensor(np.stack([places] * 2))
        ).pooler_output
    close(nnx.jit(lambda m, x: m.encode_images(x))(pair.model, images), np.stack(theirs))


@pytest.mark.parametrize(
    ("side", "stored"), [("right", "float32"), ("left", "float32"), ("left", "bfloat16")]
)
@pytest.mark.parametrize("kind", KINDS)
def test_logits_at_every_position(make_pair, close, kind, side, stored):
    pair = make_pair(kind, stored)
    for ours, theirs, answers, start, _ in _both(pair, pair.questions(), side):
        close(ours, theirs, 3e-5)
        close(answers, theirs[start - 1 : -1], 3e-5)
    embedder = pair.model.decoder.embedder
    assert embedder.table.dtype == stored
    ids = jnp.arange(20)
    theirs = copy.deepcopy(pair.hf.get_input_embeddings()).to(torch.bfloat16)
    close(
        embedder.encode(ids, jnp.dtype("bfloat16")).astype(jnp.float32),
        theirs(torch.arange(20)).detach().float().numpy(),
        0,
    )


@pytest.mark.parametrize(("kind", "images"), [("gemma3", 2), *((kind, 3) for kind in CAUSAL)])
def test_several_images_in_a_prompt(make_pair, close, kind, images):
    pair = make_pair(kind)
    for ours, theirs, *_ in _both(pair, pair.questions(images=images), "left"):
        close(ours, theirs)


@pytest.mark.parametrize("kind", ["qwen", "qwen3"])
def test_images_that_are_not_square(make_pair, close, kind):
    """Three rows of five tokens, in windows of three by three; three images, then an answer."""
    pair = _resized(make_pair(kind), 18, 30)
    for ours, theirs, *_ in _both(pair, pair.questions(images=3), "left"):
        close(ours, theirs)
    questions = pair.questions()
    ours = Generator(pair.model, Strategy(4, (1,)))(*questions.ours()[0][:3]).tokens[:, 0]
    asked = questions.theirs(kind, "left", answers=False)
    theirs = pair.hf.generate(**asked, max_new_tokens=4, do_sample=False, eos_token_id=1)
    np.testing.assert_array_equal(ours, theirs[:, asked["input_ids"].shape[1] :].numpy())


def test_images_in_tiles(make_pair, close):
    """Six tiles and the whole, three images in a prompt."""
    pair = _resized(make_pair("internvl"), 2 * SIZE, 3 * SIZE)
    for ours, theirs, *_ in _both(pair, pair.questions(images=3), "left"):
        close(ours, theirs)


def test_tiles_are_chosen_as_there():
    from transformers.models.got_ocr2 import image_processing_pil_got_ocr2 as theirs

    rng = np.random.default_rng(0)
    for height, width in [(448, 448), (1000, 1000), *rng.integers(200, 3500, (200, 2)).tolist()]:
        across, down = theirs.get_optimal_tiled_canvas((height, width), (448, 448), 1, 12)
        assert nearest_tiles(height, width) == (448 * down, 448 * across), (height, width)


@pytest.mark.parametrize("kind", KINDS)
def test_loss(make_pair, kind):
    pair = make_pair(kind)
    questions = pair.questions(seed=1)
    total, count, losses = 0.0, 0, set()
    for (_, _, logits, _, loss), answer in zip(
        _both(pair, questions, "right"), questions.answers, strict=True
    ):
        logprobs = jax.nn.log_softmax(logits)
        total -= float(sum(logprobs[np.arange(len(answer)), answer]))
        count += len(answer)
        losses.add(float(loss))
    assert [total / count] == pytest.approx(list(losses), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_answers(make_pair, kind):
    pair = make_pair(kind)
    questions = pair.questions(seed=2)
    given, _ = questions.ours()
    slots = 8
    ours = Generator(pair.model, Strategy(slots, (1,)))(*given[:3]).tokens[:, 0]
    asked = questions.theirs(kind, "left", answers=False)
    theirs = pair.hf.generate(**asked, max_new_tokens=slots, do_sample=False, eos_token_id=1)
    theirs = theirs[:, asked["input_ids"].shape[1] :].numpy()
    np.testing.assert_array_equal(ours[:, : theirs.shape[1]], theirs)
    assert len(np.unique(ours)) > 3  # not one token for ever


@pytest.mark.parametrize("kind", ["paligemma2", "gemma3"])
def test_beam_search(make_pair, kind):
    """Where the reference itself is sure by 1e-3 which answer is the best."""
    pair = make_pair(kind)
    questions = pair.questions(seed=6, rows=6)
    given, _ = questions.ours()
    slots = 6
    greedy = Generator(pair.model, Strategy(slots))(*given[:3]).tokens[:, 0]
    stop = int(greedy[0, 3])  # a token that ends some answers early
    ours = Generator(pair.model, Strategy(slots, (stop,), beams=3))(*given[:3]).tokens[:, 0]
    asked = questions.theirs(kind, "left", answers=False)
    search = {"do_sample": False, "num_beams": 3, "num_return_sequences": 2, "pad_token_id": 0}
    asked |= search | {"return_dict_in_generate": True, "output_scores": True}
    out = pair.hf.generate(**asked, max_new_tokens=slots, eos_token_id=stop)
    scores = out.sequences_scores.reshape(-1, 2).numpy()
    sure = scores[:, 0] - scores[:, 1] > 1e-3
    theirs = out.sequences[::2, asked["input_ids"].shape[1] :].numpy()
    assert sure.sum() >= 3
    np.testing.assert_array_equal(ours[sure, : theirs.shape[1]], theirs[sure])
    assert (ours[:, theirs.shape[1] :] == 0).all()
