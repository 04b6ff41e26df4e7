"""Regions kept from one build to the next."""

import dataclasses

import numpy as np
import pytest

from cxrjax.errors import UserError
from cxrjax.papers.cxr_qba.construct import region_cache
from cxrjax.papers.cxr_qba.construct.extraction import StudyImage
from cxrjax.papers.cxr_qba.construct.region_cache import RegionCache
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.records_io.quality import QualityLog

DEFINITIONS = load_definitions()
MASK = np.zeros((100, 100), bool)
MASK[20:80, 50:90] = True
BOXES = {"trachea": ((40.0, 5.0, 60.0, 40.0),), "carina": ((9.0, 9.0, 9.0, 9.0),)}
IMAGE = StudyImage("i", (200, 200), "PA", boxes=BOXES, masks={"left lung": MASK}, regions_key="k1")


def test_the_second_time_nothing_is_computed(tmp_path, monkeypatch):
    first, second = QualityLog(), QualityLog()
    with RegionCache(tmp_path / "a" / "regions.sqlite") as cache:
        found = cache.localize(IMAGE, DEFINITIONS, first)
    assert found["left lung"].boxes == ((100, 40, 180, 160),)
    assert found["left lung"].has_mask and not found["trachea"].has_mask
    monkeypatch.setattr(region_cache, "localize", None)
    with RegionCache(tmp_path / "a" / "regions.sqlite") as cache:
        assert cache.localize(IMAGE, DEFINITIONS, second) == found
        changed = dataclasses.replace(IMAGE, regions_key="k2")
        with pytest.raises(TypeError):
            cache.localize(changed, DEFINITIONS, second)
    assert first.entries and first.to_json() == second.to_json()


def test_a_file_that_is_no_cache(tmp_path):
    (tmp_path / "regions.sqlite").write_text("no database, and long enough to be looked at")
    with pytest.raises(UserError, match="cannot be used as a cache"):
        RegionCache(tmp_path / "regions.sqlite")


@pytest.mark.parametrize("damage", [b"", b"\x1f\x8bnothing", None, "text"])
def test_a_damaged_row_is_named(tmp_path, damage):
    path = tmp_path / "regions.sqlite"
    with RegionCache(path) as cache:
        cache.localize(IMAGE, DEFINITIONS, QualityLog())
        cache._file.execute("update regions set of = ?", (damage,))
        with pytest.raises(UserError, match=r"regions\.sqlite: .* delete it"):
            cache.localize(IMAGE, DEFINITIONS, QualityLog())
