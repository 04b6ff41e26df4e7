from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def sample():
    """The synthetic files in the native formats."""
    return Path(__file__).parents[3] / "data" / "gemex" / "sample"
