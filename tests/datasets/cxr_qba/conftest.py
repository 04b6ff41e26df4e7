"""Studies that tests of CXR-QBA start from."""

import json
from pathlib import Path

import pytest

from cxrjax.datasets.cxr_qba.construction import Construction, construct_graph
from cxrjax.datasets.cxr_qba.extraction import Report
from cxrjax.datasets.cxr_qba.sources import read_studies
from cxrjax.datasets.cxr_qba.study import Study, StudyImage
from cxrjax.datasets.quality import QualityLog

SAMPLE = Path(__file__).parents[3] / "data" / "cxr_qba" / "sample"


@pytest.fixture(scope="session")
def sample():
    """data/cxr_qba/sample."""
    return SAMPLE


@pytest.fixture(scope="session")
def how():
    """The default construction."""
    return Construction()


@pytest.fixture(scope="session")
def studies():
    """Three synthetic studies: two frontal views and a lateral one, a normal one, a lateral one."""
    return list(read_studies(SAMPLE / "reports", QualityLog()))


@pytest.fixture
def graph_of(how):
    """`graph_of("Small left effusion.", boxes={...})`: the graph of a report's findings."""

    def build(findings, impression="", indication="", boxes=None, quality=None):
        image = StudyImage("i", (1000, 1000), "PA", boxes=boxes or {})
        sections = {"findings": findings, "impression": impression, "indication": indication}
        study = Study("p1", "s1", Report(sections), (image,))
        return construct_graph(study, how, quality or QualityLog())

    return build


@pytest.fixture
def native_pair(sample):
    """(scene graph, questions) of a sample study, as JSON."""
    folder = sample / "release" / "p19" / "p19990001"

    def read(suffix):
        return json.loads((folder / f"s59990001.{suffix}.json").read_text())

    return read("scene_graph"), read("qa")
