"""Parquet files: those that claim more than they hold are refused before it is made."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cxrjax.errors import ForeignError
from cxrjax.untrusted.parquet import open_parquet, read_batches


def rows(path):
    with open_parquet(path) as parquet:
        return [row for batch in read_batches(parquet, 8) for row in batch.to_pylist()]


def written(path, columns, **how):
    pq.write_table(pa.table(columns), path, **how)
    return path


def test_sound_files_come_back_and_others_are_refused(tmp_path):
    columns = {"a": list(range(99)), "b": [b"x" * n for n in range(99)]}
    path = written(tmp_path / "a.parquet", columns, row_group_size=10, compression="zstd")
    assert rows(path) == [{"a": n, "b": b"x" * n} for n in range(99)]
    pq.write_table(pa.table([[1], [2]], ["a", "a"]), tmp_path / "a.parquet")
    with pytest.raises(ForeignError, match="two columns of one name"):
        open_parquet(tmp_path / "a.parquet")
    with pytest.raises(ForeignError, match="a folder"):
        open_parquet(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_parquet(tmp_path / "missing")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(ForeignError, match="not a whole Parquet file"):
        open_parquet(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"a": [""] * 1_000_000}, "1,000,000 rows in"),
        ({"a": [bytes(80_000_000)]}, "row group 0 claims"),
        ({f"c{n}": [1] for n in range(4_097)}, "4,097 columns"),
    ],
)
def test_files_that_claim_too_much(tmp_path, columns, words):
    path = written(tmp_path / "a.parquet", columns, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 2_000_000
    with pytest.raises(ForeignError, match=words):
        open_parquet(path)


def test_files_that_are_damaged_anywhere(tmp_path):
    columns = {"a": [f"text {n}" for n in range(200)], "b": [b"\1" * n for n in range(200)]}
    whole = written(tmp_path / "a.parquet", columns, row_group_size=50).read_bytes()
    rng = random.Random(0)
    refused: list[str] = []
    for _ in range(150):
        content = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(content))
            if rng.random() < 0.7:
                content[place] = rng.randrange(256)
            else:
                del content[place : place + rng.randrange(100)]
        (tmp_path / "b.parquet").write_bytes(content)
        try:
            rows(tmp_path / "b.parquet")
        except ForeignError as error:
            refused.append(str(error))
        except UnicodeDecodeError:
            pass  # a value, which whoever takes it out of its row judges
    # Arrow does not always survive.
    assert any("crashed" in words for words in refused)
