"""Records checked by rules of their own: none of a build contradicts itself, planted faults do."""

import random

import pytest

from cxrjax.apps.review.record_checks import contradictions
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES, FindingBox, ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.construct.mix import plan_splits
from cxrjax.papers.vindr_cxr_vqa.construct.plan import Assembly
from cxrjax.papers.vindr_cxr_vqa.construct.template_writer import TemplateWriter
from cxrjax.papers.vindr_cxr_vqa.record_checks import check_record, grammar_faults
from tests.evaluation import made

CASES = made.cases_of(__file__)

CHECKED = 2_000
HEIGHT, WIDTH = 2400, 2000
HEART, AORTA = (700, 1350, 1500, 1850), (950, 650, 1250, 1000)


def images(count, rng, findings=True):
    """Three readers each, who agree more or less; every other image is of a known size."""
    for number in range(count):
        marked = {name: [] for name in ("R1", "R2", "R3")}
        for label in rng.sample(CLASSES, rng.randint(1, 6)) if findings else ():
            for _ in range(
                1 if label in ("Cardiomegaly", "Aortic enlargement") else rng.choice((1, 1, 2, 3))
            ):
                box = {"Cardiomegaly": HEART, "Aortic enlargement": AORTA}.get(label) or somewhere(
                    rng
                )
                for reader in rng.sample(sorted(marked), rng.randint(1, 3)):
                    moved = tuple(float(value + rng.randint(-20, 20)) for value in box)
                    marked[reader].append(FindingBox(label, moved))
        every = [finding for own in marked.values() for finding in own]
        size = (HEIGHT, WIDTH) if number % 2 else None
        name = f"{'ill' if findings else 'well'}-{number}"
        yield ImageAnnotation(name, f"{name}.png", size, every, marked)


def somewhere(rng):
    """A box in a lung."""
    width, height = rng.randint(80, 500), rng.randint(80, 700)
    x = rng.choice((rng.randint(200, 700), rng.randint(1200, 1500)))
    y = rng.randint(250, 1950 - height)
    return x, y, min(x + width, WIDTH - 200), y + height


@pytest.fixture(scope="module")
def records():
    rng = random.Random(4)
    ill, well = list(images(250, rng)), list(images(200, rng, findings=False))
    plans, _ = plan_splits({"train": ill}, {"train": well}, "balanced", True, 0)
    made_by = Assembly("vindr_cxr_vqa", TemplateWriter(0))
    return list(made_by.records(plans["train"], "train"))


@pytest.mark.slow
def test_none_of_two_thousand_records_contradicts_itself(records):
    assert len(records) >= CHECKED
    assert sum(record.image_hw is not None for record in records) > CHECKED / 3
    assert {record.image_hw is None for record in records if record.question_type == "Which"} == {
        True,
        False,
    }
    assert {record.question_id: told for record in records if (told := check_record(record))} == {}


def changed(records, **text):
    """Each record with a replacement made in a field, where it holds what is replaced."""
    ((field, (old, new)),) = text.items()
    for record in records:
        copy = record.model_copy(deep=True)
        where = copy.answers[0] if field == "answer" else copy
        name = "text" if field == "answer" else field
        if old in getattr(where, name):
            setattr(where, name, getattr(where, name).replace(old, new))
            yield copy


@pytest.mark.parametrize(("kind", "text", "told"), CASES["planted"])
def test_planted_faults_are_found(records, kind, text, told):
    own = [record for record in records if record.question_type == kind]
    found = [check_record(record) for record in changed(own, **text)]
    assert found
    share = sum(any(told in one for one in faults) for faults in found) / len(found)
    # Some changes are no fault: an image's size may not be known, a finding be there indeed.
    assert share > 0.2, (share, found[:3])


@pytest.mark.parametrize(
    "text",
    ["a area", "There is  nothing.", "The the film.", "it is white.", "One areas show it.",
     "Nodule and mass was marked.", "No end"],
)  # fmt: skip
def test_plain_faults_of_english(text):
    assert [*grammar_faults(text)]


def test_a_sample_is_spread_over_all(records):
    told = contradictions(records, 100)
    assert 90 <= told["read"] <= 100 and told["contradictory"] == 0 and told["found"] == {}
    wrong = [*changed(records, question=("?", " ?"))]
    assert contradictions(wrong, 50)["contradictory"] > 40
