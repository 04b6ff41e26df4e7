"""Tables of tests of pages, by name: what goes in and what comes out."""

import tomllib
from pathlib import Path

ROWS = tomllib.loads(Path(__file__).with_name("rows.toml").read_text(encoding="utf-8"))
