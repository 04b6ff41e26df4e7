"""Questions in other words, and about what nobody was taught."""

import collections
import dataclasses
import json
import re
from functools import partial

import numpy as np
import pytest

from cxrjax.commands import predict
from cxrjax.errors import UserError
from cxrjax.evaluation.systems import table
from cxrjax.files import read_packaged
from cxrjax.input_pipeline.examples import ExampleConfig, QuestionEncoder
from cxrjax.input_pipeline.loader import single_source, train_loader
from cxrjax.input_pipeline.prompts import PROMPTS
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.input_pipeline.wording import (
    HELD_OUT,
    REWORDINGS,
    TRAIN_THINGS,
    UNKNOWN_ANSWER,
    WordingVariation,
    reword,
    says_unknown,
    synonyms,
    things_but,
)
from cxrjax.radiology_text.answers import EnglishReader
from cxrjax.radiology_text.mentions import VINDR_CLASSES, MentionReader
from cxrjax.records import read_records, strip_answers, write_records

from .conftest import assert_order_holds, make_record, take

WORDS = read_packaged("cxrjax.input_pipeline", "wording.toml")
LUNGS = ("right lung", "left lung", "lungs")


def _record(question="Where is the Nodule/Mass?", finding="Nodule/Mass", kind="Where", number=0):
    return make_record(
        f"The {finding} is located at <loc_10_20_30_40>.",
        [[10, 20, 30, 40]],
        question=question,
        question_id=f"q{number}",
        question_type=kind,
        variables={"finding": finding} if finding else None,
        image_hw=(100, 100),
    )


def _draws(record, count=300, **settings):
    variation = WordingVariation(**settings)
    return [variation.draw(record, 0, position, 0) for position in range(count)]


def test_only_the_question_is_put_otherwise_and_in_many_ways():
    record = _record()
    draws = _draws(record, share=1.0)
    assert all(answered == record for _, answered in draws)
    questions = collections.Counter(asked.question for asked, _ in draws)
    assert len(questions) > 150
    joined = "\n".join(questions)
    # All of what the demo met: case, a synonym, another form, no mark.
    for wanted in (r"\bnodule/mass\b", r"\bmass\b", r"[Ss]how me", r"(?m)[a-zA-Z]$", "NODULE"):
        assert re.search(wanted, joined), wanted
    # Formats that ask by name ask by the new one, and answer by their own.
    names = {asked.finding.lower() for asked, _ in draws}
    assert {"nodule/mass", "mass", "nodule"} <= names


def test_shares_are_kept_of_forms_that_stand_under_one_type(tmp_path):
    record = _record()
    plain = [asked == record for asked, _ in _draws(record, 1000, share=0.3)]
    # Some of the varied ones come out as they were.
    assert 0.68 < np.mean(plain) < 0.8
    assert not WordingVariation() and WordingVariation(share=0.3)
    unknown = [says_unknown(b.answer_text) for _, b in _draws(record, 1000, unknown_share=0.2)]
    assert 0.16 < np.mean(unknown) < 0.24
    forms = [form for several in WORDS["forms"].values() for form in several]
    assert len({form.lower() for form in forms}) == len(forms)
    assert all(form.count("{x}") == 1 for form in forms)
    path = tmp_path / "questions" / "q.jsonl"
    write_records(path, [strip_answers(_record("What findings are present?", None, "What"))])
    words = [f"--questions={path}", f"--train={path}", f"--out={tmp_path / 'p.jsonl'}"]
    with pytest.raises(UserError, match="--reword=synonym: none of 1 questions has other words"):
        predict.main(["--runner=majority", *words, "--reword=synonym"])


def test_an_unknown_thing_is_asked_about_in_the_words_of_the_question_and_has_no_box():
    for asked, answered in _draws(_record(), 200, unknown_share=1.0):
        thing = asked.finding
        assert thing in TRAIN_THINGS and asked.question == f"Where is the {thing}?"
        assert answered.answer_text == UNKNOWN_ANSWER and not answered.boxes
    # Questions that ask about no one thing stay.
    for record in (
        _record("What findings are present?", None, "What"),
        _record("Is this chest X-ray normal?", "normal", "Yes_No"),
    ):
        assert {b.answer_text for _, b in _draws(record, 50, share=1.0, unknown_share=1.0)} == {
            record.answer_text
        }
        assert all("normal" in a.question.lower() or not a.finding for a, _ in _draws(record, 50))


@pytest.mark.parametrize("prompt", ["vqa", "detect", "grounding", "medgemma_boxes", "medgemma"])
def test_every_format_answers_unknown_and_keeps_the_answers_own_name(prompt, tokenizer):
    codec = "medgemma_json" if prompt == "medgemma_boxes" else "vindr_px"
    config = ExampleConfig(28, codec=codec, prompt=prompt, answer_buckets=(256,))
    encoder = QuestionEncoder(tokenizer, config)
    record = _record()
    for position in range(20):
        asked, answered = WordingVariation(share=1.0).draw(record, 0, position, 0)
        assert encoder.target_text(answered) == encoder.target_text(record)
        said = PROMPTS[prompt].prefix(asked)
        assert (asked.question if prompt in ("vqa", "medgemma") else asked.finding) in said
        if PROMPTS[prompt].end is None:
            varied = encoder.encode(answered, asked=asked)
            assert len(varied.boxes) == 1
            assert tokenizer.decode(varied.prefix).split() == said.split()
    _, answered = WordingVariation(unknown_share=1.0).draw(record, 0, 0, 0)
    assert encoder.target_text(answered).strip() == UNKNOWN_ANSWER


def test_things_are_taught_nowhere_and_held_out_ones_are_never_asked_in_training():
    taught = {said.lower() for name in (*VINDR_CLASSES, *LUNGS) for said in (name, *synonyms(name))}
    words = [{*re.findall(r"\w+", thing.lower())} for thing in TRAIN_THINGS]
    reader = MentionReader()
    for thing in (*TRAIN_THINGS, *HELD_OUT):
        assert thing.lower() not in taught
        assert reader.name_of(thing) is None, thing
    for thing in HELD_OUT:
        assert not any({*re.findall(r"\w+", thing.lower())} <= of_one for of_one in words), thing
    assert len({*TRAIN_THINGS}) == len(TRAIN_THINGS) and len({*HELD_OUT}) == len(HELD_OUT) > 40
    # What a data set teaches is no unknown thing there, by whatever name.
    left = things_but(["Scoliosis", "Right lung"])
    assert {*TRAIN_THINGS} - {*left} == {"scoliosis"}


def test_synonyms_are_names_of_their_class_alone(subtests):
    reader = MentionReader()
    of_all = {name: synonyms(name) for name in (*VINDR_CLASSES, *LUNGS)}
    for name, found in of_all.items():
        with subtests.test(name=name):
            assert len(found) >= 3 and name.lower() not in found
            assert not {s for other in of_all if other != name for s in of_all[other]} & {*found}
            if VINDR_CLASSES.get(name):
                read = {*found} - {*WORDS["synonyms"].get(name, [])}
                assert {reader.name_of(f"There is {said}.") for said in read} <= {name}
    # Of the lungs: who says aorta means no lung.
    assert not any("aort" in s or "athero" in s for s in of_all["Calcification"])


def test_the_reader_takes_unknown_for_undecided_and_for_no_finding():
    asked = (
        *("Where is the stent?", "Is there scoliosis?", "How many zebras are there?"),
        *("zebra present", "Does this image show a stent?", "Which areas show gold?"),
        "Is there Cardiomegaly?",
    )
    for question in asked:
        reading = EnglishReader().read(UNKNOWN_ANSWER, question)
        assert reading.outcome == "undecided" and not reading.assertions, question
    said = MentionReader().read(UNKNOWN_ANSWER, "Cardiomegaly")
    assert not said.present and not said.absent and said.outcome == "undecided"
    assert says_unknown("unknown") and not says_unknown("Unknown mass at <loc_1_2_3_4>.")


@pytest.fixture
def make_loader(records_file, tokenizer, config):
    def make(wording, example=(), **changes):
        source = RecordSource(records_file, questions_per_image=3)
        mixture = single_source(source, dataclasses.replace(config, **dict(example)))
        settings = {"global_batch_size": 4, "seed": 0, "wording": wording} | changes
        return train_loader(mixture, tokenizer, **settings)

    return make


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_loaders_ask_the_same_with_workers_and_after_a_resume(make_loader, workers):
    wording = WordingVariation(0.8, 0.3)

    def prefixes(batches):
        return [each.batch.prefix_tokens.tolist() for each in batches]

    expected = assert_order_holds(partial(make_loader, wording), steps=8, workers=workers)
    assert prefixes(expected) != prefixes(take(make_loader(None), 8))
    # A question comes in other words at its next visit.
    seen = collections.defaultdict(set)
    for each in expected:
        for row, slot in np.ndindex(each.batch.question_index.shape):
            tokens = each.batch.prefix_tokens[row, slot]
            seen[int(each.batch.question_index[row, slot])].add(tokens.tobytes())
    assert max(map(len, seen.values())) >= 3


def test_a_wording_that_fits_no_bucket_is_not_taken_and_counted(make_loader):
    def batches(wording, **example):
        return take(make_loader(wording, example), 6)

    lengths = [int(each.batch.prefix_mask.sum(-1).max()) for each in batches(None)]
    tight, wide = (
        batches(WordingVariation(share=1.0), prefix_buckets=(size,)) for size in (max(lengths), 64)
    )
    counted = 0
    for narrow, whole, own in zip(tight, wide, batches(None), strict=True):
        assert not narrow.problems and narrow.question_ids == own.question_ids
        too_long = whole.batch.prefix_mask.sum(-1) > max(lengths)
        assert narrow.unvaried["wording_too_long"] == too_long.sum()
        counted += int(too_long.sum())
        for place in zip(*np.nonzero(too_long), strict=True):
            said, before = (
                each.batch.prefix_tokens[place][each.batch.prefix_mask[place]]
                for each in (narrow, own)
            )
            np.testing.assert_array_equal(said, before)
    assert counted > 5


@pytest.fixture
def questions(tmp_path):
    records = [
        _record("Where is the ILD?", "ILD", number=1),
        _record("Is there Pneumothorax?", "Pneumothorax", "Is_there", number=2),
        _record("What findings are present?", None, "What", number=3),
    ]
    path = tmp_path / "questions" / "q.jsonl"
    write_records(path, map(strip_answers, records))
    return path


@pytest.mark.parametrize("kind", REWORDINGS)
def test_predict_asks_in_other_words_and_leaves_what_it_asked(questions, tmp_path, kind, capsys):
    records = tmp_path / "records" / "r.jsonl"
    write_records(records, [_record("Where is the ILD?", "ILD", number=1)])
    out = tmp_path / "p.jsonl"
    flags = [f"--train={records}", f"--questions={questions}", f"--out={out}"]
    predict.main(["--runner=majority", *flags, f"--reword={kind}"])
    asked = list(read_records(tmp_path / "p.jsonl.questions.jsonl"))
    before = list(read_records(questions))
    answered = [json.loads(line)["question_id"] for line in out.read_text().splitlines()]
    printed = capsys.readouterr().out
    if kind == "unknown":
        assert [record.question_id for record in asked] == answered == ["q1", "q2"]
        assert all(record.finding in HELD_OUT for record in asked)
        assert "0 of 2 answered 'Unknown.'" in printed
    else:
        assert [record.question_id for record in asked] == answered == ["q1", "q2", "q3"]
        changed = [a.question != b.question for a, b in zip(asked, before, strict=True)]
        assert changed[:2] == [True, True]
        assert changed[2] == (kind not in ("synonym", "form"))
        assert f"{sum(changed)} of 3 questions in other words ({kind})" in printed
    assert next(reword(record, kind) for record in before).question == asked[0].question


@pytest.mark.parametrize(
    "kind, label", [("synonym", "ILD"), ("lower", "ILD"), ("unknown", "zebra")]
)
def test_boxes_keep_the_name_that_was_asked_about_before(
    questions, tmp_path, monkeypatch, kind, label
):
    def answers(source):
        for _, record in source.records():
            yield {
                **{"question_id": record.question_id, "text": "", "boxes": [[0, 0, 1, 1]]},
                **{"labels": ["zebra"], "parse": "ok"},
            }

    monkeypatch.setattr(table, "start_system", lambda *_: answers)
    out = tmp_path / "p.jsonl"
    flags = ["--runner=majority", f"--train={questions}", f"--questions={questions}"]
    predict.main([*flags, f"--out={out}", f"--reword={kind}"])
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines[0]["labels"] == [label]
