"""Data of tests in a `cases.toml` beside them: rows, files, figures by hand."""

import functools
import gzip
import tomllib
from fractions import Fraction
from pathlib import Path

import pytest


@functools.cache
def data(test_file: str) -> dict:
    """The section of a test file; "<null>" stands for None, which TOML lacks."""
    path = Path(test_file)
    tables = tomllib.loads(path.with_name("cases.toml").read_text(encoding="utf-8"))
    return _with_nulls(tables[path.stem])


def cases(names: str):
    """`@cases("text, expected")`: the test is of each row of the table under its own name."""

    def parametrized(test):
        rows = data(test.__code__.co_filename)[test.__name__.removeprefix("test_")]
        return pytest.mark.parametrize(names, rows)(test)

    return parametrized


def write_files(folder: Path, files: dict[str, str]) -> Path:
    """Writes texts by their paths below a folder, those that end in .gz packed."""
    for name, text in files.items():
        path, raw = folder / name, text.encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return folder


def differing(found, expected: dict) -> dict:
    """Name -> (found, expected), where they differ: "6/11" approximately, all else exactly."""
    told = {}
    for name, value in expected.items():
        if isinstance(value, str):
            value = pytest.approx(float(Fraction(value)))
        if found[name] != value:
            told[name] = found[name], value
    return told


def _with_nulls(value):
    if isinstance(value, list):
        return [_with_nulls(one) for one in value]
    if isinstance(value, dict):
        return {key: _with_nulls(one) for key, one in value.items()}
    return None if value == "<null>" else value
