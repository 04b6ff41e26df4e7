"""The release's published figures are consistent; ours count what there is; what the card has."""

import csv
import gzip
import json
import re

import pytest

from cxrjax.errors import UserError
from cxrjax.papers.cxr_qba import metadata, statistics
from cxrjax.papers.cxr_qba.construct.extraction import StudyImage
from cxrjax.papers.cxr_qba.metadata import COLUMNS, MetadataWriter, read_table
from cxrjax.papers.cxr_qba.native import QUESTION_TYPES, StudyQuestions, StudySceneGraph
from cxrjax.papers.cxr_qba.statistics import RELEASE, RELEASE_TYPES
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.error_rates import about_reading
from cxrjax.records_io.statistics import compare


@pytest.mark.parametrize("group", ["grade/", "strategy/"])
def test_ratings_and_strategies_sum_to_the_questions(group):
    columns = zip(*(row for name, row in RELEASE.items() if name.startswith(group)), strict=True)
    assert [sum(column) for column in columns] == list(RELEASE["questions"])


def test_splits_sum_to_the_total():
    for name, values in RELEASE.items():
        assert sum(values[:3]) == values[3], name
    # The page has validation and test the other way round.
    assert (RELEASE["questions"][1], RELEASE["questions"][2]) == (333_022, 600_763)


def test_golden_sums():
    best = sum(RELEASE[f"grade/{grade}"][3] for grade in ("A++", "A+", "A"))
    assert best == 7_831_370
    assert best + RELEASE["grade/B"][3] == 32_644_051
    assert RELEASE["finetuning_questions"][3] < best
    assert RELEASE["pretraining_questions"][3] < 32_644_051


def test_types_sum_to_their_strategies():
    assert list(RELEASE_TYPES) == list(QUESTION_TYPES)
    for strategy in set(QUESTION_TYPES.values()):
        total = sum(n for kind, n in RELEASE_TYPES.items() if QUESTION_TYPES[kind] == strategy)
        assert total == RELEASE[f"strategy/{strategy}"][3]


@pytest.fixture
def pair(native_pair):
    graph, questions = native_pair
    images = [
        StudyImage("synthetic-0001", (1200, 1000), "PA"),
        StudyImage("synthetic-0002", (900, 1100), "AP"),
        StudyImage("synthetic-0003", None, "LATERAL"),
    ]
    return StudySceneGraph.model_validate(graph), StudyQuestions.model_validate(questions), images


def test_counts(pair):
    _, study, _ = pair
    counted = statistics.StudyStatistics()
    counted.add(study, "train", 2)
    values = counted.values()
    assert values["questions"] == values["train_questions"] == len(study.questions)
    assert values["grade/unrated"] == len(study.questions)
    assert values["sub_answers"] == sum(1 for q in study.questions for _ in q.all_answers())
    assert sum(values[f"question_type/{kind}"] for kind in QUESTION_TYPES) == len(study.questions)
    beside = compare(values, statistics.published())
    table = statistics.markdown(beside, by_rules=True)
    assert f"| questions | {len(study.questions)} | 42,172,827 |" in table
    assert about_reading("openi_en") in table
    assert "read by rules" not in statistics.markdown(beside, by_rules=False)


@pytest.mark.parametrize("suffix", ["csv.gz", "parquet"])
def test_metadata_tables_read_back(pair, tmp_path, suffix):
    graph, study, images = pair
    with MetadataWriter(tmp_path) as writer:
        writer.patient(study.patient_id, "train", 1)
        writer.study(graph, study, images, "train")
    rows = {level: list(read_table(tmp_path / f"{level}_metadata.{suffix}")) for level in COLUMNS}
    answers = [answer for q in study.questions for answer in q.all_answers()]
    numbers = {"patient": 1, "study": 1, "image": 3, "question": len(study.questions)}
    numbers |= {"question_image": 2 * len(study.questions), "answer": len(answers)}
    numbers["answer_image"] = sum(len(answer.localization) for answer in answers)
    assert {level: len(found) for level, found in rows.items()} == numbers
    assert rows["study"][0]["frontal_images"] == 2
    known = {"patient_id": study.patient_id, "study_id": study.study_id, "frontal": False}
    known |= {"image_id": "synthetic-0003", "view_position": "LATERAL"}
    unknown = ("patient_orientation", "height", "width", "localization_quality")
    assert rows["image"][2] == known | dict.fromkeys(unknown)
    ids = list(read_table(tmp_path / f"question_metadata.{suffix}", ["question_id"]))
    assert ids == [{"question_id": q.question_id} for q in study.questions]
    with pytest.raises(UserError, match="no column 'colour'"):
        list(read_table(tmp_path / f"question_metadata.{suffix}", ["colour"]))


BROKEN = {
    "no gzip": b"nonsense",
    "no parquet": b"nonsense",
    "no number": gzip.compress(b"height\ntall\n"),
    "no UTF-8": gzip.compress(b"view_position\n\xff\n"),
    "damaged": gzip.compress(bytes(range(256)))[:10] + b"\xff" * 40,
}


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_tables(tmp_path, fault):
    path = tmp_path / f"x_metadata.{'parquet' if fault == 'no parquet' else 'csv.gz'}"
    path.write_bytes(BROKEN[fault])
    with pytest.raises(UserError, match=r"cannot read the table|not a whole archive"):
        list(read_table(path))


def test_quality_mappings(tmp_path):
    metadata.write_quality_mappings(tmp_path / "quality_mappings.csv")
    with open(tmp_path / "quality_mappings.csv", newline="") as file:
        rows = [tuple(row.values()) for row in csv.DictReader(file)]
    assert rows == list(metadata.quality_mappings())
    assert ("issue_level", "DISCARDED", "D") in rows


@pytest.fixture
def source(tmp_path):
    image = {"image_id": "i1", "image_hw": [100, 100], "view": "PA"}
    image["boxes"] = {"left lung": [[50, 10, 90, 80]], "third left rib": [[50, 10, 90, 20]]}
    study = {"patient_id": "p1", "study_id": "s1", "sections": {"findings": "No effusion."}}
    path = tmp_path / "studies.jsonl"
    path.write_text(json.dumps(study | {"images": [image]}))
    return path


def test_definitions_stand_beside_the_release_s(source, built, tmp_path):
    release = statistics.RELEASE_DEFINITIONS
    numbers = {name: theirs for name, (theirs, _) in release.items()}
    assert numbers["localized_regions"] + numbers["other_regions"] == numbers["regions"]
    assert all(why for _, why in release.values())
    told = built(source, tmp_path / "out").statistics["definitions/regions"]
    assert (told["value"], told["paper"]) == (len(load_definitions().regions), 310)
    assert told["note"]


VERDICTS = ("entity_or_polarity", "certainty", "place", "attribute")
CHECKED = ["sentence_id", "observations", *(f"wrong_{one}" for one in VERDICTS), "missed"]


@pytest.fixture
def rows(sample):
    with open(sample.parent / "hand_check.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_hundred_sentences_by_their_ids(rows):
    assert list(rows[0]) == CHECKED
    ids = [row["sentence_id"] for row in rows]
    assert len(set(ids)) == len(ids) == 100
    assert all(re.fullmatch(r"CXR\d+/S\d\d", name) for name in ids)
    # No words of a report.
    assert all(row[name].isdecimal() for row in rows for name in CHECKED[1:])


def wilson(right, total):
    """A share and its 95 % interval, in percent, by Wilson's formula."""
    z, share = 1.959964, right / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z * (share * (1 - share) / total + z * z / (4 * total * total)) ** 0.5
    half /= 1 + z * z / total
    return 100 * share, 100 * (middle - half), 100 * (middle + half)


def test_the_card_has_its_figures(rows, sample):
    card = " ".join((sample.parent / "README.md").read_text().split())
    total = {name: sum(int(row[name]) for row in rows) for name in CHECKED[1:]}
    every = total["observations"]
    found = every - total["wrong_entity_or_polarity"]
    certain = found - total["wrong_certainty"]
    whole = certain - total["wrong_place"] - total["wrong_attribute"]
    for told in (
        f"Of {every} observations, finding and polarity were right in {found}",
        "({:.1f} %, 95 % interval {:.1f} to {:.1f}".format(*wilson(found, every)),
        f"certainty too in {certain}, place and modifiers as well in {whole}",
        "({:.1f} %, {:.1f} to {:.1f})".format(*wilson(whole, every)),
        f"{total['missed']} were missed",
    ):
        assert told in card
