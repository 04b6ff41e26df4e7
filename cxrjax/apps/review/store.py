"""Stores readers' ratings in one SQLite file, each rating on disk once confirmed.

A reader is known by a token, which their own link carries; nothing here tells one reader what
others rated. A sheet that is handed in stays as it is.
"""

import contextlib
import hashlib
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cxrjax.apps.review.correction import Correctable, CorrectionRefusedError
from cxrjax.apps.review.sheet import DIMENSIONS, LEVELS, NOT_APPLICABLE
from cxrjax.errors import UserError
from cxrjax.untrusted.names import shown, shown_value

STORE_FILE = "review.sqlite"
COMMENT = "comment"
CORRECTION = "correction"
LONGEST_COMMENT = 10_000  # characters
_PATIENCE = 2.0  # seconds that a rating waits for the file; the page tries again after 10

_TABLES = """
CREATE TABLE IF NOT EXISTS sample (hash TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS reader (
    name TEXT PRIMARY KEY, token TEXT NOT NULL UNIQUE, handed_in INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS rating (
    reader TEXT NOT NULL REFERENCES reader, question_id TEXT NOT NULL, field TEXT NOT NULL,
    value TEXT NOT NULL, PRIMARY KEY (reader, question_id, field)
);
"""


class RatingRefusedError(ValueError):
    """A rating that the sheet has no place for; the message says what was expected."""


class HandedInError(ValueError):
    """The sheet is handed in, or cannot be yet."""


class BusyError(Exception):
    """The file cannot be used now: another program holds it, or the disk takes no more."""


class ReviewStore:
    """Ratings of readers over one sheet. Methods may be called from several threads.

    Args:
        path: the SQLite file; made where it is not there, gone on with where it is.
        rows: the sheet (`sheet_rows`).
        readers: their names, which are also the stems of their sheets' files.
        correctable: question id -> what its corrections are held to; of others none are kept.

    Raises:
        UserError: question ids repeat, the file is no such database, or it holds a review of other
            questions or by others.
    """

    def __init__(
        self,
        path: Path,
        rows: Sequence[dict[str, str]],
        readers: Sequence[str],
        correctable: Mapping[str, Correctable] | None = None,
    ):
        self.path = path
        self._correctable = correctable or {}
        self.readers = list(readers)
        self._rows = {row["question_id"]: row for row in rows}
        if len(self._rows) != len(rows):
            raise UserError("the sample has a question_id twice: see --check, mend the records")
        self._lock = threading.RLock()
        try:
            # Ratings are nobody else's business on a shared machine.
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._database = sqlite3.connect(
                path, check_same_thread=False, isolation_level=None, timeout=_PATIENCE
            )
            # WAL with FULL: a transaction is on disk when it is committed, also if power fails.
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.executescript(_TABLES)
            self._begin(_hash_of(rows))
        except (sqlite3.Error, OSError, BusyError, UnicodeDecodeError) as error:
            raise UserError(
                f"{path}: cannot keep ratings there: {error}; choose another --out"
            ) from None

    def _check_sound(self) -> None:
        """Refuses a damaged database: names, tokens and ratings that are not text."""
        with self._held() as database:
            for table in ("SELECT name, token FROM reader", "SELECT * FROM rating"):
                for row in database.execute(table):
                    if not all(isinstance(value, str) for value in row):
                        raise UserError(
                            f"{self.path}: a damaged review: {shown_value(row)} in place of text; "
                            "restore the file, or choose another --out"
                        )

    def _begin(self, sheet: str) -> None:
        """Writes the sample and the readers down, or checks that they are the same."""
        with self._transaction() as database:
            kept = database.execute("SELECT hash FROM sample").fetchone()
            if kept is None:
                database.execute("INSERT INTO sample VALUES (?)", (sheet,))
                database.executemany(
                    "INSERT INTO reader (name, token) VALUES (?, ?)",
                    [(name, secrets.token_urlsafe(16)) for name in self.readers],
                )
                return
        if kept[0] != sheet:
            raise UserError(
                f"{self.path}: has a review of other questions: expected the same --records, "
                "--sample and --seed as at its start; to start anew choose another --out"
            )
        self._check_sound()
        if sorted(self.tokens()) != sorted(self.readers):
            raise UserError(
                f"{self.path}: has a review by {' and '.join(self.tokens())}, found "
                f"{' and '.join(self.readers)}; name the same readers or choose another --out"
            )

    @contextlib.contextmanager
    def _held(self) -> Iterator[sqlite3.Connection]:
        """The database, for one thread at a time; all methods below may raise BusyError."""
        if not self._lock.acquire(timeout=_PATIENCE):
            raise BusyError("the ratings are being written by others; try again")
        try:
            yield self._database
        except sqlite3.Error as error:
            raise BusyError(f"the ratings cannot be stored now ({error}); try again") from None
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._held() as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise

    def tokens(self) -> dict[str, str]:
        """Name of each reader -> the token of their link, the same at every start."""
        with self._held() as database:
            return dict(database.execute("SELECT name, token FROM reader ORDER BY rowid"))

    def rate(self, reader: str, question_id: str, field: str, value: str) -> None:
        """Keeps a rating, comment or correction, in place of an earlier one; then it is on disk.

        Args:
            field: a dimension, "comment" or "correction".
            value: one of `LEVELS`; of a comment any text, of a correction its JSON, of both none
                takes it back.

        Raises:
            RatingRefusedError: the sheet has no such question, field or level.
            HandedInError: the reader has handed in.
            BusyError: it could not be kept.
        """
        if question_id not in self._rows:
            raise RatingRefusedError(f"no question {shown(question_id)} in this review")
        if field in DIMENSIONS:
            if self._rows[question_id][field] == NOT_APPLICABLE or value not in LEVELS:
                raise RatingRefusedError(
                    f"{question_id}: {field}: found {shown(value)}, expected "
                    f"{self._rows[question_id][field] or ', '.join(LEVELS)}"
                )
        elif field == CORRECTION and question_id in self._correctable:
            if value:
                try:
                    self._correctable[question_id].read(value)
                except CorrectionRefusedError as error:
                    raise RatingRefusedError(f"{question_id}: correction: {error}") from None
        elif field != COMMENT:
            raise RatingRefusedError(f"{question_id}: no field {shown(field)}")
        elif len(value) > LONGEST_COMMENT:
            raise RatingRefusedError(
                f"{question_id}: a comment of {len(value)} characters, expected at most "
                f"{LONGEST_COMMENT}"
            )
        elif "\0" in value:
            raise RatingRefusedError(f"{question_id}: a comment with a NUL character: delete it")
        with self._transaction() as database:
            self._check_open(reader)
            database.execute(
                "INSERT OR REPLACE INTO rating VALUES (?, ?, ?, ?)",
                (reader, question_id, field, value),
            )

    def ratings(self, reader: str) -> dict[str, dict[str, str]]:
        """Question id -> field -> value, of one reader."""
        found: dict[str, dict[str, str]] = {}
        with self._held() as database:
            for question_id, field, value in database.execute(
                "SELECT question_id, field, value FROM rating WHERE reader = ?", (reader,)
            ):
                found.setdefault(question_id, {})[field] = value
        return found

    def filled_rows(self, reader: str) -> list[dict[str, str]]:
        """The sheet with what the reader has rated so far; the rest is empty."""
        ratings = self.ratings(reader)
        return [row | ratings.get(question_id, {}) for question_id, row in self._rows.items()]

    def hand_in(self, reader: str) -> None:
        """Closes a sheet.

        Raises:
            HandedInError: ratings are missing, or it is handed in already.
        """
        with self._transaction() as database:
            self._check_open(reader)
            rows = self.filled_rows(reader)
            if missing := sum(not row[dimension] for row in rows for dimension in DIMENSIONS):
                raise HandedInError(f"{missing} ratings are missing")
            database.execute("UPDATE reader SET handed_in = 1 WHERE name = ?", (reader,))

    def handed_in(self, reader: str) -> bool:
        """Returns whether the reader has submitted the sheet."""
        query = "SELECT handed_in FROM reader WHERE name = ?"
        with self._held() as database:
            return bool(database.execute(query, (reader,)).fetchone()[0])

    def complete(self) -> bool:
        """Returns whether all readers have submitted."""
        return all(map(self.handed_in, self.readers))

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._database.close()

    def _check_open(self, reader: str) -> None:
        if self.handed_in(reader):
            raise HandedInError("already submitted; ratings can no longer change")


def _hash_of(rows: Sequence[dict[str, str]]) -> str:
    return hashlib.sha256(json.dumps(list(rows)).encode()).hexdigest()


def kept_reviews(
    path: Path, rows: Sequence[dict[str, str]]
) -> dict[str, dict[str, dict[str, str]]]:
    """Reader -> question id -> field -> value of a review, which may still be going on.

    Raises:
        UserError: there is none, or it is one of other questions.
    """
    if not path.is_file():
        raise UserError(f"{path}: no review there; expected the --out of --serve")
    try:
        # Readable only: whoever serves it goes on.
        with contextlib.closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        ) as database:
            kept = database.execute("SELECT hash FROM sample").fetchone()
            readers = [
                name for (name,) in database.execute("SELECT name FROM reader ORDER BY rowid")
            ]
            ratings = database.execute(
                "SELECT reader, question_id, field, value FROM rating"
            ).fetchall()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot read the review there: {error}") from None
    if not all(isinstance(value, str) for row in [readers, *ratings] for value in row):
        raise UserError(f"{path}: a damaged review: expected text in each field; restore the file")
    if kept is None or kept[0] != _hash_of(rows):
        raise UserError(
            f"{path}: has a review of other questions: expected the same --records, --sample and "
            "--seed as at its start"
        )
    found: dict[str, dict[str, dict[str, str]]] = {name: {} for name in readers}
    for reader, question_id, field, value in ratings:
        found[reader].setdefault(question_id, {})[field] = value
    return found
