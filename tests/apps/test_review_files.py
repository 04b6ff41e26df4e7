"""The sample, the sheet and the consensus file: what goes out, what comes back, what is refused."""

import collections
import csv
import io

import numpy as np
import pytest

from cxrjax.apps.review import agreement, sheet
from cxrjax.apps.review.agreement import consensus_rows, read_consensus
from cxrjax.apps.review.sheet import DIMENSIONS, Ratings, format_csv, read_sheet
from cxrjax.errors import UserError
from cxrjax.metrics.bootstrap import Bootstrap
from tests.apps.page_records import make_record
from tests.apps.rows import ROWS

TYPES = ("Where", "What", "Is_there", "How_many", "Which", "Yes_No")


def _record(number, kind="Where", label="Cardiomegaly", image=None, boxed=True):
    image = image or f"i{number}"
    text = "Here,\nat <loc_1_2_3_4>." if boxed else "No."
    named = {"question": 'Where is "it", exactly?', "question_type": kind, "gt_finding": label}
    named |= {"dataset": "vindr_cxr_vqa", "image_id": image, "answer": {"labels": [label]}}
    return make_record(f"{image}-{number}", text, [[1, 2, 3, 4]] if boxed else (), **named)


def _population():
    """600 questions, 1 % of them about a rare class."""
    return [
        _record(n, TYPES[n % 6], "Atelectasis" if n % 100 == 0 else ("ILD", "Nodule/Mass")[n % 2])
        for n in range(600)
    ]


def test_three_ratings_of_a_question_are_one_to_intervals():
    """Pooled, who rates all three alike knows no more than one rating tells."""
    levels = np.random.default_rng(1).integers(0, 3, (40, 2))
    first, second = (
        Ratings(name, {f"q{k}": dict.fromkeys(DIMENSIONS, int(v)) for k, v in enumerate(of)}, {})
        for name, of in zip(("anna", "bao"), levels.T, strict=True)
    )
    found = agreement.agreement([first, second], Bootstrap(resamples=200))["dimensions"]
    single = found["reasoning_accuracy"]["kappa"]["unweighted"]
    pooled = found["pooled"]["kappa"]["unweighted"]
    assert pooled["value"] == pytest.approx(single["value"])
    assert pooled["bootstrap_ci"] == pytest.approx(single["bootstrap_ci"])
    assert pooled["bootstrap_ci"][0] < pooled["value"] < pooled["bootstrap_ci"][1]


def test_the_sample_has_every_type_decided_by_its_seed_with_one_question_an_image():
    sample = sheet.stratified_sample(_population(), 100, seed=1)
    assert len({record.question_id for record in sample}) == 100
    types = collections.Counter(record.question_type for record in sample)
    classes = collections.Counter(record.gt_finding for record in sample)
    assert set(types) == set(TYPES) and all(abs(n - 100 / 6) < 2 for n in types.values())
    assert classes["Atelectasis"] == 1
    assert abs(classes["ILD"] - 49.5) < 2 and abs(classes["Nodule/Mass"] - 49.5) < 2
    population = _population()
    sample = sheet.stratified_sample(population, 30, seed=1)
    assert sheet.stratified_sample(population[::-1], 30, seed=1) == sample
    assert sheet.stratified_sample(population, 30, seed=2) != sample
    population = [_record(n, image=f"i{n // 4}") for n in range(40)]
    sample = sheet.stratified_sample(population, 10, seed=0)
    assert len({record.image_id for record in sample}) == 10
    assert len(sheet.stratified_sample(population, 40, seed=0)) == 40
    with pytest.raises(UserError, match="a sample of 41 from 40 questions"):
        sheet.stratified_sample(population, 41, seed=0)


@pytest.fixture
def fill(tmp_path):
    """`fill(reader, ratings, edit)` writes a filled sheet of two questions, one without a box."""
    rows = sheet.sheet_rows([_record(0), _record(1, boxed=False)])

    def write(reader, ratings, edit=lambda text: text):
        filled = [dict(row) for row in rows]
        for row, values in zip(filled, ratings, strict=True):
            row |= {n: v for n, v in zip(DIMENSIONS, values, strict=True) if v is not None}
        path = tmp_path / f"{reader}.csv"
        path.write_text(edit(format_csv(sheet.COLUMNS, filled)), encoding="utf-8")
        return path

    return write


GOOD = [("acceptable", "minor", "major"), ("acceptable", "acceptable", None)]


def test_a_sheet_comes_back_as_it_was_filled_or_a_spreadsheet_saved_it(fill):
    ratings = read_sheet(fill("Anna", GOOD))
    assert ratings.reader == "Anna"
    assert ratings.levels == {
        "i0-0": {"reasoning_accuracy": 0, "answer_appropriateness": 1, "spatial_reference": 2},
        "i1-1": {"reasoning_accuracy": 0, "answer_appropriateness": 0},
    }
    plain = read_sheet(fill("A", GOOD)).levels
    for edit in (_by_spreadsheet, lambda text: text.replace("minor", " Minor ")):
        assert read_sheet(fill("B", GOOD, edit)).levels == plain


def _by_spreadsheet(text):
    """As a spreadsheet saves it in much of Europe: BOM, semicolons, CRLF."""
    out = io.StringIO()
    writer = csv.writer(out, delimiter=";", lineterminator="\r\n")
    writer.writerows(csv.reader(io.StringIO(text)))
    return "\ufeff" + out.getvalue()


@pytest.mark.parametrize(("old", "new", "says"), ROWS["bad_sheets"])
def test_bad_sheets_are_refused_with_file_and_line(fill, old, new, says):
    with pytest.raises(UserError, match=says):
        read_sheet(fill("S", GOOD, lambda text: text.replace(old, new)))


def test_sheets_that_cannot_be_read_or_compared_are_refused(tmp_path, fill, readers):
    with pytest.raises(UserError, match="cannot read the sheet"):
        read_sheet(tmp_path / "none.csv")
    (tmp_path / "latin.csv").write_bytes("question_id,é".encode("latin-1"))
    with pytest.raises(UserError, match="save the sheet as 'CSV UTF-8'"):
        read_sheet(tmp_path / "latin.csv")
    with pytest.raises(UserError, match="no question in the sheet"):
        read_sheet(fill("empty", GOOD, lambda text: text.splitlines()[0] + "\n"))
    other = read_sheet(fill("Cat", GOOD, lambda text: text.replace("i1-1", "i5-5")))
    with pytest.raises(UserError, match="question 'i1-1' is in the sheet Anna alone"):
        agreement.shared_items([readers[0], other])


@pytest.fixture
def readers(fill):
    other = [("acceptable", "acceptable", "major"), ("acceptable", "acceptable", None)]
    return read_sheet(fill("Anna", GOOD)), read_sheet(fill("Bao", other))


def _consensus(tmp_path, readers, edit=None):
    rows = consensus_rows(readers)
    for row in rows:
        row["outcome"] = row["outcome"] or "acceptable"
        row["accepted"] = row["accepted"] or "yes"
    if edit:
        edit(rows)
    path = tmp_path / "consensus.csv"
    path.write_text(format_csv(agreement.consensus_columns(len(readers)), rows), encoding="utf-8")
    return path


def test_the_consensus_file_knows_what_is_settled_already(readers):
    rows = consensus_rows(readers)
    assert len(rows) == 5
    by_item = {(row["question_id"], row["dimension"]): row for row in rows}
    agreed = by_item["i0-0", "reasoning_accuracy"]
    assert (agreed["outcome"], agreed["accepted"]) == ("acceptable", "yes")
    differing = by_item["i0-0", "answer_appropriateness"]
    assert (differing["first_rating"], differing["second_rating"]) == ("minor", "acceptable")
    assert (differing["outcome"], differing["accepted"]) == ("", "")
    # Both call it major: that is settled, whether it is accepted after mending is not.
    bad = by_item["i0-0", "spatial_reference"]
    assert (bad["outcome"], bad["accepted"]) == ("major", "")


def test_outcomes_are_counted(tmp_path, readers):
    def refuse(rows):
        rows[2]["accepted"] = "no"

    path = _consensus(tmp_path, readers, refuse)
    settled = read_consensus(path, readers)
    summary = agreement.outcome_summary(settled, readers)
    assert summary["ratings"] == 5
    assert summary["initial_disagreements"] == summary["questions_with_disagreement"] == 1
    assert summary["outcomes"]["spatial_reference"] == {"acceptable": 0, "minor": 0, "major": 1}
    assert summary["questions"] == 2
    assert summary["questions_accepted_on_all_dimensions"] == 1
    assert summary["not_accepted"] == ["i0-0"]


BAD = [(lambda rows, n=n, of=of: rows[n].update(of), says) for n, of, says in ROWS["bad_consensus"]]
BAD += [
    (lambda rows: rows.append(dict(rows[0])), ":7: .* occurs twice"),
    (lambda rows: rows.pop(), r": no row for i1-1 / answer_appropriateness \(1 missing\)"),
]


@pytest.mark.parametrize(("edit", "says"), BAD)
def test_bad_consensus_files_are_refused(tmp_path, readers, edit, says):
    path = _consensus(tmp_path, readers, edit)
    with pytest.raises(UserError, match=f"consensus.csv{says}"):
        read_consensus(path, readers)


def test_a_third_reader_gives_fleiss_kappa_pairs_and_a_place_in_the_consensus(fill, tmp_path):
    third = [("minor", "acceptable", "major"), ("acceptable", "acceptable", None)]
    second = [("acceptable", "acceptable", "major"), GOOD[1]]
    sheets = [
        read_sheet(fill(name, one))
        for name, one in (("Anna", GOOD), ("Bao", second), ("Chi", third))
    ]
    found = agreement.agreement(sheets, Bootstrap(resamples=100))
    assert found["readers"] == ["Anna", "Bao", "Chi"] and len(found["disagreements"]) == 2
    assert found["disagreements"][0]["Chi"] == "minor"
    pooled = found["dimensions"]["pooled"]
    # Of five ratings three are alike, two have one of three readers apart.
    assert pooled["observed_agreement"] == pytest.approx((3 + 2 / 3) / 5)
    chance = (10 / 15) ** 2 + (2 / 15) ** 2 + (3 / 15) ** 2
    kappa = pooled["fleiss_kappa"]
    assert kappa["value"] == pytest.approx(((3 + 2 / 3) / 5 - chance) / (1 - chance))
    assert pooled["pairs"]["Bao and Chi"]["observed_agreement"] == pytest.approx(4 / 5)
    text = agreement.markdown(found)
    assert "Anna, Bao and Chi" in text and "kappa, Bao and Chi" in text and "Fleiss" in text
    rows = consensus_rows(sheets)
    assert rows[0]["third_rating"] == "minor" and rows[0]["outcome"] == ""
    columns = agreement.consensus_columns(3)
    for row in rows:
        row |= {"outcome": row["outcome"] or "minor", "accepted": "yes"}
    path = tmp_path / "consensus.csv"
    path.write_text(format_csv(columns, rows), encoding="utf-8")
    summary = agreement.outcome_summary(read_consensus(path, sheets), sheets)
    assert summary["initial_disagreements"] == 2
    rows[0]["third_rating"] = "major"
    path.write_text(format_csv(columns, rows), encoding="utf-8")
    with pytest.raises(UserError, match="third_rating is 'major', but Chi rated 'minor'"):
        read_consensus(path, sheets)
