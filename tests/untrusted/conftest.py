"""Rows of the tests beside it, by the names of the tests."""

import tomllib
from pathlib import Path

CASES = tomllib.loads(Path(__file__).with_name("cases.toml").read_text(encoding="utf-8"))
