"""Questions that compare with an earlier image: grouped by both, shown both or reported."""

import dataclasses

import numpy as np
import pytest

from cxrjax.errors import UserError
from cxrjax.input_pipeline.caches import FeatureCache
from cxrjax.input_pipeline.loader import eval_loader
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.input_pipeline.usable_records import check_records
from cxrjax.records import EarlierImage, read_records, strip_answers, write_records

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


def test_unless_shown_it_is_left_out_and_reported(compared, tokenizer, config):
    source, compares = compared
    found, problems = rows(source, tokenizer, config)
    assert [(p.question_id, p.reason) for p in problems] == [(compares, "earlier_image")]
    assert compares not in {name for ids, _, _ in found for name in ids}
    assert sum(len(ids) for ids, _, _ in found) == source.num_questions - 1


def test_an_earlier_image_that_is_not_there_sets_its_question_aside(compared, tmp_path):
    source, compares = compared
    (tmp_path / "images/1.png").unlink()
    entries = check_records(source).quality.entries
    assert compares in {entry.item for entry in entries if entry.reason == "missing_image"}


def test_features_of_one_image_refuse_two(config, tmp_path):
    with pytest.raises(UserError, match="earlier_images"):
        dataclasses.replace(
            config, earlier_images=True, features=FeatureCache(tmp_path, 4, 8, "float32")
        )


def test_a_question_without_its_answer_still_names_the_earlier_image(compared):
    source, compares = compared
    (record,) = [r for _, r in source.records() if r.question_id == compares]
    assert strip_answers(record).earlier == EARLIER
    assert np.unique(record.shown).size == 3
