"""Ratings in SQLite: what is kept, what is refused, what threads do to it."""

import concurrent.futures
import itertools
import json
import sqlite3

import pytest

from cxrjax.apps.review import store as stores
from cxrjax.apps.review.correction import Correctable
from cxrjax.apps.review.sheet import COLUMNS, DIMENSIONS, format_csv, read_sheet
from cxrjax.apps.review.store import HandedInError, RatingRefusedError, ReviewStore
from cxrjax.errors import UserError
from tests.apps.rows import ROWS

READERS = ("anna", "bao")
BOXED, BARE = "q0", "q1"


def _rows(ids=(BOXED, BARE)):
    bare = {"has_box": "no", "spatial_reference": "not applicable"}
    return [
        dict.fromkeys(COLUMNS, "")
        | {"item": str(number), "question_id": question_id}
        | (bare if question_id == BARE else {"has_box": "yes"})
        for number, question_id in enumerate(ids, start=1)
    ]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "review.sqlite"


@pytest.fixture
def store(path):
    opened = ReviewStore(path, _rows(), READERS)
    yield opened
    opened.close()


def _rate_all(store, reader, level="acceptable"):
    for row in store.filled_rows(reader):
        for dimension in DIMENSIONS:
            if row[dimension] != "not applicable":
                store.rate(reader, row["question_id"], dimension, level)


def test_another_connection_sees_a_rating_at_once(store, path):
    store.rate("anna", BOXED, "reasoning_accuracy", "minor")
    store.rate("anna", BOXED, "reasoning_accuracy", "major")
    store.rate("bao", BOXED, "comment", "tép, «dưới»")
    with sqlite3.connect(path) as other:
        assert sorted(other.execute("SELECT * FROM rating")) == [
            ("anna", BOXED, "reasoning_accuracy", "major"),
            ("bao", BOXED, "comment", "tép, «dưới»"),
        ]
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._database.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    assert path.stat().st_mode & 0o077 == 0


def test_a_second_start_goes_on_with_the_same_links(store, path):
    store.rate("anna", BARE, "answer_appropriateness", "minor")
    again = ReviewStore(path, _rows(), READERS[::-1])
    assert again.tokens() == store.tokens() and len(set(store.tokens().values())) == 2
    assert again.ratings("anna") == {BARE: {"answer_appropriateness": "minor"}}
    assert again.ratings("bao") == {}
    again.close()


def test_the_filled_sheet_is_one_that_review_reads(store, tmp_path):
    _rate_all(store, "anna", "minor")
    store.rate("anna", BOXED, "comment", 'a "b",\nc')
    (tmp_path / "anna.csv").write_text(format_csv(COLUMNS, store.filled_rows("anna")))
    ratings = read_sheet(tmp_path / "anna.csv")
    assert ratings.levels == {
        BOXED: dict.fromkeys(DIMENSIONS, 1),
        BARE: {"reasoning_accuracy": 1, "answer_appropriateness": 1},
    }
    assert ratings.comments == {BOXED: 'a "b",\nc'}


def test_what_is_handed_in_stays_as_it_is(store):
    with pytest.raises(HandedInError, match="5 ratings are missing"):
        store.hand_in("anna")
    _rate_all(store, "anna")
    store.hand_in("anna")
    assert store.handed_in("anna") and not store.handed_in("bao") and not store.complete()
    with pytest.raises(HandedInError, match="already submitted"):
        store.rate("anna", BOXED, "reasoning_accuracy", "major")
    with pytest.raises(HandedInError, match="already submitted"):
        store.hand_in("anna")
    _rate_all(store, "bao")
    store.hand_in("bao")
    assert store.complete()
    assert store.ratings("anna")[BOXED]["reasoning_accuracy"] == "acceptable"


LONG = [BOXED, "comment", "x" * 10_001, "a comment of 10001 characters"]


@pytest.mark.parametrize(("name", "field", "value", "says"), [*ROWS["refused_ratings"], LONG])
def test_what_has_no_place_in_the_sheet_is_refused(store, name, field, value, says):
    with pytest.raises(RatingRefusedError, match=says):
        store.rate("anna", name, field, value)
    assert store.ratings("anna") == {}


def test_corrections_are_kept_where_they_can_be(path):
    box = {"box": [1, 2, 30, 40], "label": "", "kind": "answer", "origin": 0}
    told = json.dumps({"boxes": [box], "answer": "At [box 1]."})
    store = ReviewStore(path, _rows(), READERS, {BOXED: Correctable((50, 60), 1)})
    store.rate("anna", BOXED, "correction", told)
    for question, value, says in (
        (BARE, told, "no field 'correction'"),
        (BOXED, told.replace("40", "51"), "within 60 x 50"),
        (BOXED, "{", "not JSON"),
        (BOXED, told.replace("At", r"\u0000"), "NUL"),
    ):
        with pytest.raises(RatingRefusedError, match=says):
            store.rate("anna", question, "correction", value)
    assert stores.kept_reviews(path, _rows()) == {"anna": {BOXED: {"correction": told}}, "bao": {}}
    (row, _) = store.filled_rows("anna")
    assert row["correction"] == told
    store.rate("anna", BOXED, "correction", "")
    assert stores.kept_reviews(path, _rows())["anna"] == {BOXED: {"correction": ""}}
    store.close()
    with pytest.raises(UserError, match="a review of other questions"):
        stores.kept_reviews(path, _rows(("q7",)))


def test_threads_lose_nothing(path):
    ids = [f"q{n}" for n in range(2, 42)]
    store = ReviewStore(path, _rows(ids), READERS)

    def work(reader, dimension):
        for question_id in ids:
            store.rate(reader, question_id, dimension, "minor")

    with concurrent.futures.ThreadPoolExecutor(len(READERS) * len(DIMENSIONS)) as pool:
        list(pool.map(work, *zip(*itertools.product(READERS, DIMENSIONS), strict=True)))
    for reader in READERS:
        assert store.ratings(reader) == {q: dict.fromkeys(DIMENSIONS, "minor") for q in ids}
    store.close()


def test_another_review_in_the_file_is_refused(store, path, tmp_path):
    nobody, bytes_ = tmp_path / "nobody.sqlite", tmp_path / "bytes.sqlite"
    for file, change in (
        (nobody, "name = NULL, token = 'x'"),
        (bytes_, "token = CAST(x'ff' AS TEXT)"),
    ):
        ReviewStore(file, _rows(), READERS).close()
        with sqlite3.connect(file) as damaged:
            damaged.execute(f"UPDATE reader SET {change} WHERE rowid = 1")
    (tmp_path / "text.sqlite").write_text("no database, but long enough to be looked at" * 30)
    for file, rows, readers, says in (
        (path, _rows([BOXED]), READERS, "has a review of other questions"),
        (nobody, _rows(), READERS, r"a damaged review: \(None, 'x'\) in place of text"),
        (bytes_, _rows(), READERS, "cannot keep ratings there|damaged review"),
        (path, _rows(), ("anna", "chi"), "has a review by anna and bao, found anna and chi"),
        (tmp_path / "twice.sqlite", _rows([BOXED, BOXED]), READERS, "has a question_id twice"),
        (tmp_path / "text.sqlite", _rows(), READERS, r"text.sqlite: cannot keep ratings there"),
        (tmp_path / "none" / "r.sqlite", _rows(), READERS, r"r.sqlite: cannot keep ratings there"),
    ):
        with pytest.raises(UserError, match=says):
            ReviewStore(file, rows, readers)
