from pathlib import Path

import pytest

from cxrjax.papers.gemex.build import GemexBuilder, GemexOptions
from cxrjax.papers.gemex.construct.construction import GemexConstruction
from cxrjax.papers.gemex.construct.refine import RuleRefiner
from cxrjax.papers.gemex.construct.template_generator import TemplateGenerator
from cxrjax.records_io.quality import QualityLog
from cxrjax.simulation.studies.build import StudiesBuilder, StudiesOptions


@pytest.fixture(scope="session")
def sample():
    """The synthetic files in the native formats."""
    return Path(__file__).parents[3] / "data" / "gemex" / "sample"


@pytest.fixture(scope="session")
def phantom_records(tmp_path_factory):
    """What several seeds ask about phantom studies, with boxes of the regions."""
    folder = tmp_path_factory.mktemp("checked")
    studies = StudiesOptions(folder / "in", seed=5, studies=70, long_side=128, processes=1)
    StudiesBuilder(studies).build()
    options = GemexOptions(folder / "in", folder / "out", processes=1)
    refined = GemexBuilder(options).plan()
    made = []
    for seed in range(4):
        construction = GemexConstruction(RuleRefiner(), TemplateGenerator(seed), QualityLog())
        made += construction.records(refined, "train")
    return made
