"""Studies, builds and clients that tests of CXR-QBA start from."""

import json
from pathlib import Path

import pytest
import tenacity

from cxrjax.language_model import completion as server
from cxrjax.language_model.account import AnswerCache
from cxrjax.language_model.client import Client
from cxrjax.language_model.settings import Settings
from cxrjax.papers.cxr_qba.build import QbaBuilder, QbaOptions
from cxrjax.papers.cxr_qba.construct.construction import CxrQbaConstruction, construct_graph
from cxrjax.papers.cxr_qba.construct.extraction import ReportSections, SourceStudy, StudyImage
from cxrjax.papers.cxr_qba.construct.sources import read_studies
from cxrjax.records_io.quality import QualityLog
from cxrjax.simulation.studies.build import StudiesBuilder, StudiesOptions
from tests.papers.cxr_qba.builds import Built

SAMPLE = Path(__file__).parents[3] / "data" / "cxr_qba" / "sample"


@pytest.fixture(scope="session")
def sample():
    """data/cxr_qba/sample."""
    return SAMPLE


@pytest.fixture(scope="session")
def how():
    """The default construction."""
    return CxrQbaConstruction()


@pytest.fixture(scope="session")
def studies():
    """Three synthetic studies: two frontal views and a lateral one, a normal one, a lateral one."""
    return list(read_studies(SAMPLE / "reports", QualityLog()))


@pytest.fixture(scope="session")
def built():
    """`built(source, out, **options)`."""

    def build(source, out, **options):
        QbaBuilder(QbaOptions(source, out, **options)).build()
        return Built(out)

    return build


@pytest.fixture(scope="session")
def plain(built, tmp_path_factory):
    """The sample's reports built as they are; not to be changed."""
    return built(SAMPLE / "reports", tmp_path_factory.mktemp("plain") / "out")


@pytest.fixture(scope="session")
def phantoms(built, tmp_path_factory):
    """(studies, build) of phantoms, with boxes, comparisons and grades; not to be changed."""
    folder = tmp_path_factory.mktemp("phantoms")
    options = StudiesOptions(folder / "in", studies=30, seed=5, long_side=192, processes=1)
    StudiesBuilder(options).build()
    rated = {"rate_with": "surrogate", "longitudinal": True, "processes": 1}
    return folder / "in", built(folder / "in", folder / "out", **rated)


@pytest.fixture
def graph_of(how):
    """`graph_of("Small left effusion.", boxes={...})`: the graph of a report's findings."""

    def build(findings, impression="", indication="", boxes=None, quality=None):
        image = StudyImage("i", (1000, 1000), "PA", boxes=boxes or {})
        sections = {"findings": findings, "impression": impression, "indication": indication}
        study = SourceStudy("p1", "s1", ReportSections(sections), (image,))
        return construct_graph(study, how, quality or QualityLog())

    return build


@pytest.fixture
def native_pair(sample):
    """(scene graph, questions) of a sample study, as JSON."""
    folder = sample / "release/p19/p19990001"
    files = (folder / f"s59990001.{kind}.json" for kind in ("scene_graph", "qa"))
    return tuple(json.loads(file.read_text()) for file in files)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(server, "_backoff", tenacity.wait_exponential_jitter(0.01, 0.05, jitter=0))


@pytest.fixture
def client(tmp_path):
    """`client(server, **settings)`; all have one cache file, one after the other."""
    caches = []

    def make(where, **settings):
        for cache in caches:
            cache.close()
        caches.append(AnswerCache(tmp_path / "answers.jsonl"))
        terms = {"base_url": where.url, "model": "m", "timeout": 5.0} | settings
        return Client(Settings(**terms), caches[-1])

    yield make
    for cache in caches:
        cache.close()
