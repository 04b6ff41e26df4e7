"""Several sources in one run: in which parts, each in its own way, and resumed exactly."""

import collections
import dataclasses
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cxrjax.errors import UserError
from cxrjax.input_pipeline.examples import QuestionEncoder
from cxrjax.input_pipeline.loader import single_source, train_loader
from cxrjax.input_pipeline.mixture import Mixture, MixtureSource, one_box_route, shares
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.records import write_records

from .conftest import assert_equal, assert_order_holds, take


@pytest.fixture
def mixture(tmp_path, records_file, make_records, config):
    """`mixture(weights, temperature, codecs)`: 7 rows of `many` and 3 of `few`."""
    other = tmp_path / "other"
    (other / "images").mkdir(parents=True)
    for image in range(5):
        Image.fromarray(np.full((90, 90), 250, np.uint8)).save(other / f"images/{image}.png")
    # The same ids as in the other file: they are told apart by position.
    few = [r for r in make_records() if r.image_id in ("image1", "image2", "image3")]
    write_records(other / "records/train.jsonl", few)

    def make(weights=(None, None), temperature=1.0, codecs=("paligemma", "paligemma")):
        parts = [
            MixtureSource(
                "many",
                RecordSource(records_file, questions_per_image=3),
                dataclasses.replace(config, codec=codecs[0]),
                weights[0],
            ),
            MixtureSource(
                "few",
                RecordSource(other / "records/train.jsonl", questions_per_image=4),
                dataclasses.replace(config, codec=codecs[1], prompt="detect"),
                weights[1],
            ),
        ]
        return Mixture(parts, temperature)

    return make


def test_shares_by_size_and_temperature_that_say_something(mixture):
    sizes, free = (900, 100), {"a": None, "b": None}
    np.testing.assert_allclose(shares(sizes, free, 1.0), [0.9, 0.1])
    np.testing.assert_allclose(shares(sizes, free, 2.0), [0.75, 0.25])
    np.testing.assert_allclose(shares(sizes, free, float("inf")), [0.5, 0.5])
    np.testing.assert_allclose(shares(sizes, {"a": 1, "b": 4}), [0.2, 0.8])
    with pytest.raises(UserError, match="no weight for few"):
        mixture((1.0, None))
    for weight in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match=r"weight of few is .*, expected a number above 0"):
            mixture((1.0, weight))
    with pytest.raises(UserError, match="temperature is 0"):
        mixture(temperature=0.0)
    with pytest.raises(UserError, match=r"the share of few is .*; leave it out"):
        mixture((1.0, 1e-12))


@given(
    sizes=st.lists(st.integers(1, 10**8), min_size=2, max_size=5), temperature=st.floats(1.0, 50.0)
)
def test_a_higher_temperature_never_takes_from_the_smallest(sizes, temperature):
    free = {str(i): None for i in range(len(sizes))}
    low, high = shares(sizes, free, temperature), shares(sizes, free, 2 * temperature)
    exact = np.array(sizes, np.float64) ** (1 / temperature)
    np.testing.assert_allclose(low, exact / exact.sum(), rtol=1e-9)
    assert high[np.argmin(sizes)] >= low[np.argmin(sizes)] - 1e-12


@pytest.mark.parametrize(
    ("weights", "temperature", "expected"),
    [
        ((3.0, 1.0), 1.0, (Fraction(3, 4), Fraction(1, 4))),
        ((None, None), float("inf"), (Fraction(1, 2), Fraction(1, 2))),
        ((None, None), 1.0, (Fraction(7, 10), Fraction(3, 10))),
    ],
)
def test_every_stretch_of_a_run_has_its_shares(mixture, weights, temperature, expected):
    mixed = mixture(weights, temperature)
    order = mixed.batches(0, 1)
    rows = [int(order[position][0]) for position in range(300)]
    taken = collections.Counter()
    for count, row in enumerate(rows, start=1):
        taken[mixed.source_of(row)] += 1
        for source, share in enumerate(expected):
            # One row, and the hundredth of a share that Grain's whole numbers leave.
            assert abs(taken[source] - count * share) <= 1 + 0.01 * count * share


def test_a_source_gives_each_row_once_alone_or_mixed(mixture, tokenizer):
    mixed = mixture((1.0, 2.0))
    order = mixed.batches(3, 1)
    rows = [int(order[position][0]) for position in range(120)]
    for source, span in enumerate((range(7), range(7, 10))):
        own = [row for row in rows if mixed.source_of(row) == source]
        passes = [own[i : i + len(span)] for i in range(0, len(own), len(span))]
        assert all(sorted(taken) == list(span) for taken in passes[:-1])
        assert len({tuple(taken) for taken in passes[:-1]}) > 1
    source = mixture().sources[0]
    alone = train_loader(
        single_source(source.records, source.config), tokenizer, global_batch_size=4, seed=5
    )
    only = Mixture([dataclasses.replace(source, name="")])
    mixed = train_loader(only, tokenizer, global_batch_size=4, seed=5)
    for a, b in zip(take(alone, 4), take(mixed, 4), strict=True):
        assert_equal(a, b)
    assert alone.get_state() == mixed.get_state() and not next(mixed).images_by_source


def test_each_source_has_its_own_prompt_and_images_and_the_counts_are_true(mixture, tokenizer):
    mixed = mixture((1.0, 1.0))
    few = mixed.sources[1].records
    seen = collections.Counter()
    for loaded in take(train_loader(mixed, tokenizer, global_batch_size=4, seed=0), 6):
        batch = loaded.batch
        assert batch.prefix_tokens.shape[:2] == (4, 4)
        for row in range(4):
            first = int(batch.question_index[row].max())
            from_few = first >= 15  # the other file has 15 questions
            seen["few" if from_few else "many"] += 1
            assert (batch.images[row].mean() == 250) == from_few
            for slot in np.flatnonzero(batch.question_index[row] >= 0):
                index = int(batch.question_index[row, slot])
                assert (index >= 15) == from_few
                records = few if from_few else mixed.sources[0].records
                record = records.record(index - 15 if from_few else index)
                text = tokenizer.decode(
                    batch.prefix_tokens[row, slot][batch.prefix_mask[row, slot]]
                )
                finding = record.variables["finding"]
                assert text == (f"detect {finding}\n" if from_few else f"{record.question}\n")
        assert loaded.images_by_source == seen
    assert seen == {"many": 12, "few": 12}


@pytest.mark.parametrize("weights", [(3.0, 1.0), (None, None)])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_order_is_a_pure_function_of_seed_and_step(mixture, tokenizer, weights, workers):
    def make(**changes):
        settings = {"global_batch_size": 4, "seed": 0} | changes
        return train_loader(mixture(weights), tokenizer, **settings)

    assert_order_holds(make, workers=workers)


def test_codecs_in_digits_go_together_whatever_their_length(mixture, tokenizer, config):
    """vindr_px has up to 5 digits in pixels, medgemma_json up to 4 of 1,000."""
    long = dataclasses.replace(config, prompt="vqa", answer_buckets=(256,), max_boxes=4)
    parts = [
        MixtureSource(name, source.records, dataclasses.replace(long, codec=codec), 1.0)
        for name, codec, source in zip(
            ("many", "few"), ("vindr_px", "medgemma_json"), mixture().sources, strict=True
        )
    ]
    loader = train_loader(Mixture(parts), tokenizer, global_batch_size=8, seed=0)
    checked = collections.Counter()
    for loaded in take(loader, 3):
        batch, digits = loaded.batch, loaded.batch.digits
        assert digits.positions.shape[-1] == 5
        for row, slot in np.argwhere(batch.box_mask.any(-1)):
            index = int(batch.question_index[row, slot])
            part = parts[index >= 15]
            record = part.records.record(index - 15 * (index >= 15))
            encoded = QuestionEncoder(tokenizer, part.config).encode(record)
            mask = batch.box_mask[row, slot]
            answer = batch.answer_tokens[row, slot]
            weights = digits.place_weights[row, slot][mask]
            tokens = answer[digits.positions[row, slot][mask]]
            written = (tokens[..., None] == digits.token_ids).argmax(-1)  # 0 in padding
            numbers = (written * weights).sum(-1)
            said = numbers * digits.scale[row, slot] + digits.offset[row, slot]
            np.testing.assert_allclose(said, encoded.boxes, atol=1e-6)
            checked[part.name] += 1
    assert min(checked.values()) > 3 and len(checked) == 2


def test_it_can_be_pickled_and_another_one_is_refused_on_resume(mixture, tokenizer):
    mixed = mixture()
    again = pickle.loads(pickle.dumps(mixed))
    assert again.fingerprint == mixed.fingerprint and again[8] == mixed[8]

    def loader(weights):
        return train_loader(mixture(weights), tokenizer, global_batch_size=4, seed=0)

    with pytest.raises(UserError, match="saved with source"):
        loader((1.0, 2.0)).set_state(loader((1.0, 1.0)).get_state())


def test_what_cannot_share_a_batch_is_refused_and_orders_are_their_own(mixture, config):
    with pytest.raises(UserError, match=r"many \(paligemma\) by loc, few \(vindr_px\) by digits"):
        mixture(codecs=("paligemma", "vindr_px"))
    assert one_box_route("none", {"a": "paligemma", "b": "vindr_px"}) == "none"
    many, few = mixture().sources
    with pytest.raises(UserError, match="few and many differ in more than codec"):
        Mixture([many, dataclasses.replace(few, config=dataclasses.replace(config, max_boxes=9))])
    with pytest.raises(UserError, match="expected different names"):
        Mixture([many, many])
    source = mixture().sources[0]
    mixed = Mixture([dataclasses.replace(source, name=name, weight=1.0) for name in "ab"])
    order = mixed.batches(0, 1)
    rows = [int(order[position][0]) for position in range(14)]
    own = [[row - 7 * which for row in rows if mixed.source_of(row) == which] for which in (0, 1)]
    assert sorted(own[0]) == sorted(own[1]) == list(range(7)) and own[0] != own[1]


def test_batches_of_like_lengths_are_a_function_of_seed_and_step(tmp_path, make_records, config):
    (record,) = make_records()[:1]
    lengths = np.random.default_rng(0).integers(1, 400, 128)
    made = [
        record.model_copy(
            update={"question_id": str(n), "image_id": str(n), "reason": "x" * length}
        )
        for n, length in enumerate(lengths.tolist())
    ]
    write_records(path := tmp_path / "records/train.jsonl", made)
    source = MixtureSource("", RecordSource(path, questions_per_image=1), config)
    plain, like = (Mixture([source], like_lengths=on).batches(3, 4) for on in (False, True))
    found = [like[n].tolist() for n in range(64)]
    # Each row once an epoch, two windows of 64 rows each.
    for epoch in (found[:32], found[32:]):
        assert sorted(np.concatenate(epoch)) == list(range(128))
    again = Mixture([source], like_lengths=True).batches(3, 4)
    assert [again[n].tolist() for n in (40, 3, 41, 0)] == [found[n] for n in (40, 3, 41, 0)]
    assert found != [
        Mixture([source], like_lengths=True).batches(4, 4)[n].tolist() for n in range(64)
    ]
    spread = [np.mean([np.ptp(lengths[d[n]]) for n in range(32)]) for d in (plain, like)]
    assert spread[1] < 0.2 * spread[0]
    longest = [lengths[rows].max() for rows in found[:16]]
    assert longest != sorted(longest)
