"""One small folder of studies for all tests."""

import json
from pathlib import Path

import pytest

from cxrjax.simulation.studies.build import TRUTH, StudiesBuilder, StudiesOptions

STUDIES, SIDE = 20, 192


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("studies")
    StudiesBuilder(StudiesOptions(out, STUDIES, seed=1, long_side=SIDE)).build()
    return out


@pytest.fixture(scope="session")
def truth(built) -> list[dict]:
    return [json.loads(line) for line in (built / TRUTH).read_text().splitlines()]
