"""What two splits must not share; questions and pictures that are the same but for details."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cxrjax.errors import UserError
from cxrjax.records_io import leakage
from cxrjax.records_io.leakage import (
    close_pairs,
    find_leakage,
    near_duplicate_texts,
    normalise,
    similarity,
)
from tests.input_pipeline.conftest import make_record


def _record(split, image, number=0, boxes=(), **fields):
    text = fields.pop("text", f"It is at <loc_1_2_3_{image[1:]}>.")
    names = {"image_id": image, "image_path": f"{image}.png", "question_id": f"{image}-{number}"}
    return make_record(text, boxes, split=split, **names | fields)


def _leaks(train, validation, root=None):
    return find_leakage({"train": train, "validation": validation}, root)


def test_disjoint_splits_leak_nothing_although_they_ask_the_same():
    found = _leaks([_record("train", "i1")], [_record("validation", "i2")])
    assert found["leaks"] == []
    shared = found["shared_text"]["train/validation"]
    assert (shared["same_question"], shared["same_answer"]) == (1, 0)
    stated = {"patient_id": 0, "study_id": 0, "image_id": 2, "question_id": 2}
    assert found["records_that_state"] == stated


@pytest.mark.parametrize("kind", ["patient_id", "study_id", "question_id"])
def test_each_identity_that_is_shared_is_a_leak(kind):
    same = {kind: "x"}
    found = _leaks([_record("train", "i1", **same)], [_record("validation", "i2", **same)])
    (leak,) = found["leaks"]
    assert leak["kind"] == kind and leak["splits"] == ("train", "validation")
    assert leak["items"] == ("x", "x")


def test_an_image_in_both_splits_is_one_leak_and_nulls_are_none():
    found = _leaks([_record("train", "i1", 0)], [_record("validation", "i1", 1)])
    assert [leak["kind"] for leak in found["leaks"]] == ["image_id"]


def test_a_picture_under_two_ids_is_found_by_its_content(tmp_path):
    small = np.random.default_rng(0).uniform(0, 255, (9, 9)).astype(np.uint8)
    picture = Image.fromarray(small).resize((300, 300), Image.Resampling.BICUBIC)
    picture.save(tmp_path / "i1.png")
    picture.resize((200, 200)).save(tmp_path / "i2.png")
    Image.fromarray(small.T.copy()).resize((300, 300)).save(tmp_path / "i3.png")
    train = [_record("train", "i1"), _record("train", "i4")]
    validation = [_record("validation", "i2"), _record("validation", "i3")]
    found = _leaks(train, validation, tmp_path)
    (leak,) = found["leaks"]
    assert leak["kind"] == "image_content" and leak["items"] == ("i1", "i2")
    assert found["images_hashed"] == 3
    assert found["images_not_hashed"] == ["1 of 4 files are not there"]


def test_answers_that_training_holds_are_counted():
    long = "there is a large opacity in the lower part of the left lung"
    train = [_record("train", "i1", text=f"Yes, {long}.", boxes=[[1, 2, 3, 4]])]
    validation = [
        _record("validation", "i2", 0, text=f"yes {long}", boxes=[[1, 2, 3, 4]]),
        _record("validation", "i2", 1, text=f"No doubt that {long}"),
        _record("validation", "i2", 2, text="No."),
    ]
    shared = _leaks(train, validation)["shared_text"]["train/validation"]
    assert (shared["answers"], shared["same_answer"]) == (3, 1)
    assert (shared["answers_with_boxes"], shared["same_answer_with_boxes"]) == (1, 1)
    # Of the answers long enough: all 7 runs of eight words, and 6 of 9.
    assert shared["mean_share_of_8_word_runs"] == pytest.approx((1 + 6 / 9) / 2)


def test_one_split_cannot_be_compared():
    with pytest.raises(UserError, match="only 'train'"):
        find_leakage({"train": [_record("train", "i1")]}, None)


def _asked(image, number, question):
    return make_record(image_id=image, question_id=f"{image}-{number}", question=question)


def test_case_punctuation_and_spaces_do_not_tell_texts_apart():
    assert normalise("  Where is the ILD ?\n") == normalise("where is  the ild")
    assert normalise("ﬁbrosis") == "fibrosis"
    assert normalise("Viêm phổi") == normalise("VIÊM PHỔI")
    assert normalise("no effusion") != normalise("effusion")


def test_similarity_is_of_wording():
    same = similarity("where is the pleural effusion", "where is the pleural effusions")
    other = similarity("where is the pleural effusion", "how many nodules are there")
    assert same > 0.8 > 0.2 > other
    assert similarity("a", "a") == similarity("", "") == 1
    assert similarity("a", "b") == 0


def test_repeats_are_found_within_an_image_and_counted_over_all():
    records = [
        _asked("i0", 0, "Where is the ILD?"),
        _asked("i0", 1, "where is the ild"),
        _asked("i0", 2, "How many nodules are there?"),
        _asked("i1", 0, "Where is the ILD?"),
    ]
    variety = leakage.question_variety(records)
    assert [variety[k] for k in ("questions", "distinct", "distinct_normalised")] == [4, 3, 2]
    (pair,) = variety["repeated"]
    assert pair["question_ids"] == ("i0-0", "i0-1") and pair["similarity"] == 1
    assert variety["most_common"]["where is the ild"] == 3
    assert leakage.question_variety([])["questions"] == 0


@given(st.integers(0, 2**32 - 1), st.integers(0, 40))
def test_close_pairs_are_those_of_a_plain_count(seed, bits):
    rng = np.random.default_rng(seed)
    first = list(rng.integers(0, 256, (3, 32), np.uint8))
    flipped = np.unpackbits(first[1])
    flipped[rng.permutation(256)[:bits]] ^= 1
    second = [*rng.integers(0, 256, (2, 32), np.uint8), np.packbits(flipped)]
    expected = [
        (i, j, distance)
        for i, a in enumerate(first)
        for j, b in enumerate(second)
        if (distance := int((np.unpackbits(a) != np.unpackbits(b)).sum())) <= 24
    ]
    assert close_pairs(first, second) == expected
    assert close_pairs([], second) == close_pairs(first, []) == []


@pytest.fixture
def pictures(tmp_path):
    """One picture in three sizes and qualities, two others, and one broken file."""
    rng = np.random.default_rng(3)

    def blobs(seed):
        small = np.random.default_rng(seed).uniform(0, 255, (9, 9)).astype(np.uint8)
        return Image.fromarray(small).resize((300, 360), Image.Resampling.BICUBIC)

    first = blobs(1)
    first.save(tmp_path / "a.png")
    first.resize((120, 144)).save(tmp_path / "a_small.png")
    noisy = np.asarray(first) * 0.8 + rng.normal(0, 4, (360, 300)) + 10
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(tmp_path / "a_poor.jpg", quality=40)
    blobs(2).save(tmp_path / "b.png")
    blobs(4).save(tmp_path / "c.png")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    return tmp_path


def test_copies_have_close_hashes_and_other_pictures_have_not(pictures):
    files = sorted(pictures.iterdir())
    hashes, failures = leakage.hash_images(files, processes=1)
    (failure,) = failures
    assert "broken.png" in failure
    names = [path.stem for path in hashes]
    values = list(hashes.values())
    close = {(names[i], names[j]) for i, j, _ in close_pairs(values, values) if i < j}
    assert close == {("a", "a_small"), ("a", "a_poor"), ("a_poor", "a_small")}


@pytest.mark.slow
def test_processes_give_the_same_hashes(pictures):
    files = sorted(pictures.glob("*.png"))
    alone, failures = leakage.hash_images(files, processes=1)
    shared, same_failures = leakage.hash_images(files, processes=2)
    assert failures == same_failures
    assert {k: v.tolist() for k, v in alone.items()} == {k: v.tolist() for k, v in shared.items()}


def test_near_duplicates_across_splits():
    first = ["Where is the pleural effusion?", "How many nodules?", "x"]
    second = ["where is the pleural effusions", "How many nodules?", "how many nodules", "y", "y"]
    distinct, alike, pairs = near_duplicate_texts(first, second)
    assert (distinct, alike) == (3, 2)
    assert pairs == [("where is the pleural effusion", "where is the pleural effusions")]
    assert near_duplicate_texts([], second) == (3, 0, [])
    assert near_duplicate_texts(first, []) == (0, 0, [])


@given(st.lists(st.text("ab ", max_size=12)), st.lists(st.text("ab ", max_size=12)))
def test_near_duplicates_are_those_of_the_similarity(first, second):
    ours, theirs = ({normalise(text) for text in texts} for texts in (first, second))
    expected = {(a, b) for a in ours for b in theirs if b not in ours and similarity(a, b) >= 0.8}
    distinct, alike, pairs = near_duplicate_texts(first, second)
    assert set(pairs) == expected
    assert alike == len(theirs & ours) + len({b for _, b in expected})
    assert distinct == len(theirs)
