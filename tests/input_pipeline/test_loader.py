"""Batches: what is in them, in which order, on which host, after which interruption."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.images.decode import read_image
from cxrjax.images.geometry import resize
from cxrjax.input_pipeline.batch import Batch
from cxrjax.input_pipeline.caches import FeatureCache
from cxrjax.input_pipeline.loader import eval_loader, single_source, train_loader
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.input_pipeline.usable_records import check_records
from cxrjax.records import EarlierImage, read_records, strip_answers, write_records

from .conftest import assert_equal, assert_order_holds, take


@pytest.fixture
def source(records_file):
    return RecordSource(records_file, questions_per_image=3)


@pytest.fixture
def train(source, tokenizer, config):
    """`train(seed, example={}, **changes)`: a loader of the small source."""

    def make(seed=0, example=(), source=source, **changes):
        settings = {"global_batch_size": 4, "seed": seed} | changes
        mixture = single_source(source, dataclasses.replace(config, **dict(example)))
        return train_loader(mixture, tokenizer, **settings)

    return make


ARRAYS = tuple(
    name
    for name in Batch.__dataclass_fields__
    if name not in ("packed_length", "digits", "has_earlier")
)


def test_arrays_have_the_documented_shapes_and_types(train, config):
    batch = next(train()).batch
    shapes = {name: getattr(batch, name).shape for name in ARRAYS}
    p, a = batch.prefix_tokens.shape[-1], batch.answer_tokens.shape[-1]
    assert p in config.prefix_buckets and a in config.answer_buckets
    assert shapes == {
        **{"images": (4, 28, 28, 3), "question_index": (4, 3), "box_mask": (4, 3, 3)},
        **dict.fromkeys(("prefix_tokens", "prefix_mask"), (4, 3, p)),
        **dict.fromkeys(("answer_tokens", "answer_mask"), (4, 3, a)),
        **dict.fromkeys(("coordinate_positions", "target_boxes"), (4, 3, 3, 4)),
    }
    types = {name: getattr(batch, name).dtype for name in ARRAYS}
    assert types["images"] == np.uint8 and types["target_boxes"] == np.float32
    assert all(types[name] == np.bool_ for name in types if name.endswith("_mask"))
    assert types["question_index"] == types["prefix_tokens"] == np.int32
    # It goes through jax as one argument.
    assert jax.jit(lambda b: b.answer_mask.sum())(batch) == batch.answer_mask.sum()


def test_slots_hold_their_question_and_nothing_else(train, source, tokenizer):
    seen = 0
    for loaded in take(train(), 4):
        batch = loaded.batch
        for b, q in np.ndindex(batch.question_index.shape):
            index = batch.question_index[b, q]
            prefix, answer = batch.prefix_mask[b, q], batch.answer_mask[b, q]
            # Left-padded and right-padded: once True always True, and the other way round.
            assert (np.diff(prefix.astype(int)) >= 0).all()
            assert (np.diff(answer.astype(int)) <= 0).all()
            assert (batch.prefix_tokens[b, q][~prefix] == tokenizer.pad_id).all()
            assert (batch.answer_tokens[b, q][~answer] == tokenizer.pad_id).all()
            if index < 0:
                assert loaded.question_ids[b][q] is None
                assert not (prefix.any() or answer.any() or batch.box_mask[b, q].any())
                continue
            seen += 1
            record = source.record(index)
            assert loaded.question_ids[b][q] == record.question_id
            prefix_ids = batch.prefix_tokens[b, q][prefix]
            answer_ids = batch.answer_tokens[b, q][answer]
            assert prefix[-1] and answer[0]
            assert prefix_ids[0] == tokenizer.bos_id and answer_ids[-1] == tokenizer.eos_id
            assert tokenizer.eos_id not in answer_ids[:-1]
            assert tokenizer.decode(prefix_ids) == record.question + "\n"
            assert batch.box_mask[b, q].sum() == len(record.boxes)
            height, width = record.image_hw
            fractions = np.reshape(record.boxes, (-1, 4)) / [width, height, width, height]
            boxes = batch.target_boxes[b, q][batch.box_mask[b, q]]
            np.testing.assert_allclose(boxes, fractions, atol=0.51 / 1024)
            positions = batch.coordinate_positions[b, q][batch.box_mask[b, q]]
            bins = batch.answer_tokens[b, q][positions] - tokenizer.loc_ids[0]
            np.testing.assert_allclose(boxes, (bins + 0.5) / 1024, atol=1e-6)
            pixels = resize(read_image(source.image_root / record.image_path), 28, 28)[0]
            np.testing.assert_array_equal(batch.images[b], pixels)
    assert seen > 20


@pytest.mark.parametrize("codec", ["vindr_px", "medgemma_json"])
def test_boxes_in_digits_come_with_where_the_digits_stand(train, codec):
    digital = {"codec": codec, "answer_buckets": (160,), "geometry": "letterbox"}
    seen = 0
    for loaded in take(train(example=digital), 2):
        batch = loaded.batch
        digits = batch.digits
        depth = CODECS[codec].max_digits
        assert digits.positions.shape == digits.place_weights.shape == (4, 3, 3, 4, depth)
        assert digits.scale.shape == digits.offset.shape == (4, 3, 4)
        assert not digits.place_weights[~batch.box_mask].any()
        value = {token: digit for digit, token in enumerate(digits.token_ids)}
        for b, q, k in np.argwhere(batch.box_mask):
            seen += 1
            tokens = batch.answer_tokens[b, q][digits.positions[b, q, k]]
            read = np.array([value.get(token, 0) for token in tokens.ravel()]).reshape(4, depth)
            numbers = (read * digits.place_weights[b, q, k]).sum(-1)
            box = numbers * digits.scale[b, q] + digits.offset[b, q]
            np.testing.assert_allclose(box, batch.target_boxes[b, q, k], atol=1e-6)
            first = batch.coordinate_positions[b, q, k]
            np.testing.assert_array_equal(first, digits.positions[b, q, k, :, 0])
    assert seen > 5
    assert jax.jit(lambda b: b.digits.scale.sum())(batch) == pytest.approx(digits.scale.sum())


def test_every_epoch_shows_every_question_once_in_another_order(train, source):
    # 7 elements: epochs do not end where batches do.
    assert len(source) == 7
    batches = take(train(global_batch_size=1), 21)
    epochs = [batches[k : k + 7] for k in (0, 7, 14)]
    orders = []
    for epoch in epochs:
        indices = np.concatenate([b.batch.question_index.ravel() for b in epoch])
        assert sorted(indices[indices >= 0]) == list(range(source.num_records))
        orders.append(tuple(indices))
    assert len(set(orders)) == 3


@pytest.mark.parametrize("codec", ["paligemma", "vindr_px"])
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_order_is_a_pure_function_of_seed_and_step(train, codec, workers):
    def make(**changes):
        return train(example={"codec": codec, "answer_buckets": (16, 160)}, **changes)

    assert_order_holds(make, steps=9, every=2, workers=workers)


def test_going_back_repeats_batches_and_seeds_share_no_epochs(train):
    loader = train()
    start, first = loader.get_state(), take(loader, 3)
    loader.set_state(start)
    for a, b in zip(first, take(loader, 3), strict=True):
        assert_equal(a, b)

    def epochs(seed):
        batches = take(train(seed=seed, global_batch_size=7), 4)
        return {tuple(b.batch.question_index.ravel()) for b in batches}

    assert not epochs(0) & epochs(1)


def test_hosts_pad_to_the_lengths_that_any_of_them_needs(train):
    hosts = [take(train(rows=[row]), 8) for row in range(4)]
    padded_for_others = False
    for step in range(8):
        batches = [host[step].batch for host in hosts]
        (length,) = {batch.answer_tokens.shape[-1] for batch in batches}
        needed = [int(batch.answer_mask.sum(-1).max()) for batch in batches]
        assert length == (48 if max(needed) > 16 else 16)
        padded_for_others |= length == 48 and min(needed) <= 16
    assert padded_for_others


def test_lengths_are_the_smallest_bucket_that_all_hosts_need(train, config):
    shapes = {b.batch.answer_tokens.shape[-1] for b in take(train(global_batch_size=1), 14)}
    assert shapes == {16, 48}

    def first(*buckets: int) -> Batch:
        return next(train(example={"packed_buckets": buckets})).batch

    plain = first()
    assert plain.packed_length is None
    longest = int((plain.prefix_mask.sum((1, 2)) + plain.answer_mask.sum((1, 2))).max())
    assert first(longest - 1, longest, longest + 9).packed_length == longest
    assert first(longest - 1, longest + 9).packed_length == longest + 9
    assert first(longest - 1).packed_length is None


@pytest.mark.slow
def test_worker_processes_give_the_same_batches_and_resume_in_the_middle(train):
    expected = take(train(), 7)
    with train(workers=2) as loader:
        for a in expected[:3]:
            assert_equal(next(loader), a)
        state = json.loads(json.dumps(loader.get_state()))
        for a in expected[3:5]:
            assert_equal(next(loader), a)
        # Back, with what the workers had ready thrown away.
        loader.set_state(state)
        for a in expected[3:]:
            assert_equal(next(loader), a)
        after = loader.get_state()
    # With other workers Grain's own state does not fit, and the step does.
    resumed = train(workers=0)
    resumed.set_state(state)
    assert _without_grain(resumed.get_state()) == _without_grain(state)
    for a in expected[3:]:
        assert_equal(next(resumed), a)
    assert _without_grain(resumed.get_state()) == _without_grain(after)
    with train(workers=2) as again:
        again.set_state(state)
        assert again.get_state() == state
        for a in expected[3:]:
            assert_equal(next(again), a)
        assert again.get_state() == after


def _without_grain(state):
    return {name: value for name, value in state.items() if name != "grain"}


@pytest.mark.slow
def test_workers_that_were_started_early_change_nothing(train):
    first, second = take(train(), 2)
    with train(workers=1) as loader:
        before = loader.get_state()
        loader.start()
        assert loader.get_state() == before
        assert_equal(next(loader), first)
    with train(workers=1) as loader:
        loader.start()
        loader.set_state({**before, "step": 1})  # of a run that goes on
        assert_equal(next(loader), second)


def test_grains_iterator_state_is_saved_and_goes_on(train, monkeypatch):
    expected = take(train(), 6)
    loader = train()
    loader.set_state({**loader.get_state(), "step": 2})  # as of a checkpoint without Grain's state
    take(loader, 2)
    state = json.loads(json.dumps(loader.get_state()))
    assert state["step"] == 4 and state["grain"]["begun"] == 2
    assert state["grain"]["iterator"] == {"next_index": 2}
    given = []
    iterator = type(loader._iterator)
    set_state = iterator.set_state

    def note(self, state):
        given.append(state)
        set_state(self, state)

    monkeypatch.setattr(iterator, "set_state", note)
    resumed = train()
    resumed.set_state(state)
    assert resumed.get_state() == state
    for a in expected[4:]:
        assert_equal(next(resumed), a)
    assert given == [{"next_index": 2}]
    # Of another version of Grain, the step alone counts.
    state["grain"]["version"] = "0.0.1"
    resumed.set_state(state)
    assert_equal(next(resumed), expected[4])
    assert given == [{"next_index": 2}]


def test_states_that_contradict_themselves_or_the_run_are_refused(train, source):
    loader = train()
    take(loader, 3)
    state = loader.get_state()
    state["step"] = 5
    with pytest.raises(UserError, match="iterator is at step 3 and the loader at step 5"):
        train().set_state(state)
    state = train().get_state()
    with pytest.raises(UserError, match="saved with seed 0, now 1"):
        train(seed=1).set_state(state)
    with pytest.raises(UserError, match="saved with global_batch_size 4, now 2"):
        train(global_batch_size=2).set_state(state)
    with pytest.raises(UserError, match="saved with source"):
        train(source=source.without({0})).set_state(state)


def test_a_truncated_image_leaves_empty_slots_and_is_reported(train, source):
    path = source.image_root / "images/0.png"
    whole = take(train(global_batch_size=7), 1)[0]
    path.write_bytes(path.read_bytes()[:-30])
    broken = take(train(global_batch_size=7), 1)[0]
    assert {problem.question_id for problem in broken.problems} == {f"i0q{k}" for k in range(5)}
    for problem in broken.problems:
        assert problem.reason == "unreadable_image" and str(path) in problem.detail
        assert source.record(problem.question_index).question_id == problem.question_id
    bad = np.isin(whole.batch.question_index, [p.question_index for p in broken.problems])
    assert bad.sum() == 5
    rows = bad.any(axis=1)
    assert rows.sum() == 2
    assert not broken.batch.images[rows].any()
    for name in ("prefix_mask", "answer_mask", "box_mask"):
        assert not getattr(broken.batch, name)[rows].any()
    assert (broken.batch.question_index[rows] == -1).all()
    # Nothing else moved: no other sample came in its place.
    for name in ARRAYS:
        np.testing.assert_array_equal(
            getattr(broken.batch, name)[~rows], getattr(whole.batch, name)[~rows], err_msg=name
        )


def test_too_long_answers_stop_or_are_set_aside_as_configured(train, source):
    short = {"answer_buckets": (18,)}
    with pytest.raises(UserError, match=r"question i\dq\d: answer of \d+ tokens, expected at most"):
        next(train(example=short, global_batch_size=7))
    loaded = next(train(example=short | {"too_long": "set_aside"}, global_batch_size=7))
    assert {problem.reason for problem in loaded.problems} == {"answer_too_long"}
    kept = set(loaded.batch.question_index.ravel()) - {-1}
    left_out = {problem.question_index for problem in loaded.problems}
    assert kept | left_out == set(range(source.num_records)) and not kept & left_out
    assert kept and left_out


@pytest.mark.slow
def test_errors_in_worker_processes_arrive_as_user_errors(train):
    with (
        train(example={"answer_buckets": (4,)}, workers=1) as loader,
        pytest.raises(UserError, match="expected at most 4"),
    ):
        next(loader)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_evaluation_sees_every_question_once_and_needs_no_answers(
    records_file, tokenizer, config, workers
):
    questions = records_file.parents[1] / "questions/train.jsonl"
    write_records(questions, map(strip_answers, read_records(records_file)))
    source = RecordSource(questions, questions_per_image=3)
    loader = eval_loader(source, tokenizer, config, global_batch_size=4, workers=workers)
    batches = list(loader)
    assert len(batches) == len(loader) == 2
    indices = np.concatenate([b.batch.question_index.ravel() for b in batches])
    assert sorted(indices[indices >= 0]) == list(range(source.num_records))
    ids = [name for b in batches for row in b.question_ids for name in row]
    assert [source.record(i).question_id if i >= 0 else None for i in indices] == ids
    assert batches[-1].batch.images.shape[0] == 4
    assert (batches[-1].batch.question_index[3] == -1).all()
    assert not batches[-1].batch.prefix_mask[3].any() and not batches[-1].batch.images[3].any()
    assert not any(b.batch.answer_mask.any() or b.batch.box_mask.any() for b in batches)
    if not workers:
        for a, b in zip(batches, loader, strict=True):
            assert_equal(a, b)


def test_evaluation_shards_over_hosts(source, tokenizer, config):
    seen = []
    for rows in (range(2), range(2, 4)):
        loader = eval_loader(source, tokenizer, config, global_batch_size=4, rows=rows)
        assert len(loader) == 2
        for loaded in loader:
            assert loaded.batch.images.shape[0] == 2
            seen.extend(i for i in loaded.batch.question_index.ravel() if i >= 0)
    assert sorted(seen) == list(range(source.num_records))


KILLED_RUN = """
import multiprocessing, sys
from cxrjax.input_pipeline.examples import ExampleConfig
from cxrjax.input_pipeline.loader import single_source, train_loader
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.input_pipeline.tokenizer import Tokenizer
from bench.tokenizer_training import template_corpus, train_tokenizer

if __name__ == "__main__":
    loader = train_loader(
        single_source(RecordSource(sys.argv[1]), ExampleConfig(image_size=28)),
        Tokenizer(train_tokenizer(template_corpus())),
        global_batch_size=2,
        seed=0,
        workers=1,
    )
    next(loader)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    sys.stdin.read()
"""


def is_running(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
def test_workers_of_a_killed_run_end_too(records_file, tmp_path):
    script = tmp_path / "run.py"
    script.write_text(KILLED_RUN)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, str(script), str(records_file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as run:
        workers = [int(pid) for pid in run.stdout.readline().split()]
        assert workers and all(map(is_running, workers))
        run.kill()
    deadline = time.monotonic() + 30
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(is_running, workers))


EARLIER = EarlierImage(image_id="image1", image_path="images/1.png", image_hw=(48, 80))


@pytest.fixture
def compared(records_file):
    """The records file with one question of image 0 comparing with image 1."""
    records = list(read_records(records_file))
    at = next(n for n, record in enumerate(records) if record.image_id == "image0")
    records[at] = records[at].model_copy(update={"earlier": EARLIER})
    write_records(records_file, records)
    return RecordSource(records_file, questions_per_image=8), records[at].question_id


def rows(source, tokenizer, config):
    """(question ids, images, has_earlier) of each row, and all problems."""
    found, problems = [], []
    for loaded in eval_loader(
        source, tokenizer, config, global_batch_size=4, workers=0, with_answers=True
    ):
        has = loaded.batch.has_earlier
        for row, ids in enumerate(loaded.question_ids):
            asked = [name for name in ids if name is not None]
            found.append((asked, loaded.batch.images[row], None if has is None else has[row]))
        problems += loaded.problems
    return found, problems


def test_a_question_on_two_images_is_a_row_of_its_own_and_shows_both(compared, tokenizer, config):
    source, compares = compared
    two = dataclasses.replace(config, earlier_images=True)
    found, problems = rows(source, tokenizer, two)
    assert not problems
    (pair,) = [row for row in found if compares in row[0]]
    assert pair[0] == [compares] and pair[2]
    # Greys of the images, 40 and 80 (conftest.py): the one asked about first.
    assert (pair[1][0] == 40).all() and (pair[1][1] == 80).all()
    others = [row for row in found if row[0] and compares not in row[0]]
    assert others and not any(has for _, _, has in others)
    assert all((images[1] == 0).all() for _, images, _ in others)
    assert sum(len(ids) for ids, _, _ in found) == source.num_questions


def test_unless_both_images_are_shown_it_is_left_out_and_reported(
    compared, tokenizer, config, tmp_path
):
    source, compares = compared
    found, problems = rows(source, tokenizer, config)
    assert [(p.question_id, p.reason) for p in problems] == [(compares, "earlier_image")]
    assert compares not in {name for ids, _, _ in found for name in ids}
    assert sum(len(ids) for ids, _, _ in found) == source.num_questions - 1
    with pytest.raises(UserError, match="earlier_images"):
        dataclasses.replace(
            config, earlier_images=True, features=FeatureCache(tmp_path, 4, 8, "float32")
        )


def test_a_question_that_compares_names_its_earlier_image_until_that_is_gone(compared, tmp_path):
    source, compares = compared
    (record,) = [r for _, r in source.records() if r.question_id == compares]
    assert strip_answers(record).earlier == EARLIER
    assert np.unique(record.shown).size == 3
    (tmp_path / "images/1.png").unlink()
    entries = check_records(source).quality.entries
    assert compares in {entry.item for entry in entries if entry.reason == "missing_image"}
