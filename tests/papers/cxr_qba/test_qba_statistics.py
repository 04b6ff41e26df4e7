"""The release's published figures are consistent, and ours count what there is."""

import csv
import gzip

import pytest

from cxrjax.errors import UserError
from cxrjax.papers.cxr_qba.construct.extraction import StudyImage
from cxrjax.papers.cxr_qba.metadata import (
    COLUMNS,
    MetadataWriter,
    quality_mappings,
    read_table,
    write_quality_mappings,
)
from cxrjax.papers.cxr_qba.native import QUESTION_TYPES, StudyQuestions, StudySceneGraph
from cxrjax.papers.cxr_qba.statistics import (
    RELEASE,
    RELEASE_TYPES,
    SPLITS,
    StudyStatistics,
    markdown,
)
from cxrjax.radiology_text.error_rates import about_reading


@pytest.mark.parametrize("column", range(4), ids=SPLITS)
def test_ratings_and_strategies_sum_to_the_questions(column):
    for group in ("grade/", "strategy/"):
        total = sum(values[column] for name, values in RELEASE.items() if name.startswith(group))
        assert total == RELEASE["questions"][column]


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
def built(native_pair):
    graph, questions = native_pair
    images = [
        StudyImage("synthetic-0001", (1200, 1000), "PA"),
        StudyImage("synthetic-0002", (900, 1100), "AP"),
        StudyImage("synthetic-0003", None, "LATERAL"),
    ]
    return StudySceneGraph.model_validate(graph), StudyQuestions.model_validate(questions), images


def test_counts(built):
    _, study, _ = built
    statistics = StudyStatistics()
    statistics.add(study, "train", 2)
    values = statistics.values()
    assert values["questions"] == values["train_questions"] == len(study.questions)
    assert values["grade/unrated"] == len(study.questions)
    assert values["sub_answers"] == sum(1 for q in study.questions for _ in q.all_answers())
    assert sum(values[f"question_type/{kind}"] for kind in QUESTION_TYPES) == len(study.questions)
    assert f"| {len(study.questions)} |" in (table := markdown(values, by_rules=True))
    assert table.endswith(f"\n{about_reading('openi_en')}\n")
    assert "read by rules" not in markdown(values, by_rules=False)


@pytest.mark.parametrize("suffix", ["csv.gz", "parquet"])
def test_metadata_tables_read_back(built, tmp_path, suffix):
    graph, study, images = built
    with MetadataWriter(tmp_path) as writer:
        writer.patient(study.patient_id, "train", 1)
        writer.study(graph, study, images, "train")
    rows = {level: list(read_table(tmp_path / f"{level}_metadata.{suffix}")) for level in COLUMNS}
    answers = sum(1 for q in study.questions for _ in q.all_answers())
    assert {level: len(found) for level, found in rows.items()} == {
        "patient": 1,
        "study": 1,
        "image": 3,
        "question": len(study.questions),
        "question_image": 2 * len(study.questions),
        "answer": answers,
        "answer_image": sum(len(a.localization) for q in study.questions for a in q.all_answers()),
    }
    assert rows["study"][0]["frontal_images"] == 2
    assert rows["image"][2] == {
        "patient_id": study.patient_id,
        "study_id": study.study_id,
        "image_id": "synthetic-0003",
        "view_position": "LATERAL",
        "patient_orientation": None,
        "frontal": False,
        "height": None,
        "width": None,
        "localization_quality": None,
    }
    ids = list(read_table(tmp_path / f"question_metadata.{suffix}", ["question_id"]))
    assert ids == [{"question_id": q.question_id} for q in study.questions]
    with pytest.raises(UserError, match="no column 'colour'"):
        list(read_table(tmp_path / f"question_metadata.{suffix}", ["colour"]))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x_metadata.csv.gz", b"nonsense"),
        ("x_metadata.parquet", b"nonsense"),
        ("x_metadata.csv.gz", gzip.compress(b"height\ntall\n")),
        ("x_metadata.csv.gz", gzip.compress(b"view_position\n\xff\n")),
        ("x_metadata.csv.gz", gzip.compress(bytes(range(256)))[:10] + b"\xff" * 40),
    ],
    ids=["no gzip", "no parquet", "no number", "no UTF-8", "damaged"],
)
def test_broken_tables(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=r"cannot read the table|not a whole archive"):
        list(read_table(tmp_path / name))


def test_quality_mappings(tmp_path):
    write_quality_mappings(tmp_path / "quality_mappings.csv")
    with open(tmp_path / "quality_mappings.csv", newline="") as file:
        rows = [tuple(row.values()) for row in csv.DictReader(file)]
    assert rows == list(quality_mappings())
    assert ("issue_level", "DISCARDED", "D") in rows
